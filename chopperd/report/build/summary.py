"""Summarise a run: peers, excess and critical devices of its rows, then pooled figures."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict, replace

from chopperd.correlate.ranks.comparing import peers_of, wander_ratio
from chopperd.model.arrays import Float64s
from chopperd.model.kinds import Cause
from chopperd.model.report import CauseShare, GpuLine, Reference, Summary
from chopperd.model.report_rows import Peers, Row
from chopperd.report.build.clocks import known_or_none
from chopperd.report.build.holders import held_over
from chopperd.report.build.rows import DraftRow


def across_devices(drafts: Sequence[DraftRow]) -> list[DraftRow]:
    """Return the rows with peers, excess and `is_critical` set, in the same order.

    Peers are the same model's GPUs in the same job, run and step (for totals: in files that begin
    with the same step); the critical device is the one with the largest window less exposed
    communication. `drafts` are the rows of all devices of a job: its steps, or its totals.
    """
    rows = list(drafts)
    for group in _groups(rows, lambda draft: (*_when(draft), draft.model)):
        if rows[group[0]].model is not None and not _repeats(rows, group):
            _set_peers(rows, group)
    for group in _groups(rows, _when):
        own_time_ns = own_times_ns([rows[i].row for i in group])
        critical = group[own_time_ns.index(max(own_time_ns))]
        for i in group:
            rows[i] = replace(rows[i], row=replace(rows[i].row, is_critical=i == critical))
    return rows


def _when(draft: DraftRow) -> tuple[str | None, str | None, int | None, int | None]:
    """Return the key that rows have in common if they are compared with each other."""
    row = draft.row
    return row.job, row.run, row.step, draft.first_step if row.step is None else None


def _repeats(rows: Sequence[DraftRow], group: Sequence[int]) -> bool:
    """Whether a GPU is in a group more than once, so that it would be its own peer."""
    devices = {(rows[i].process, rows[i].row.device) for i in group}
    known = [rows[i].row.gpu for i in group if rows[i].row.gpu is not None]
    return len(devices) < len(group) or len(set(known)) < len(known)


def own_times_ns(rows: Sequence[Row]) -> list[int]:
    """Return what each device of a step needs without waiting for other ranks.

    That is its window less its waits if those of all rows are known, else less all exposed
    communication.
    """
    waits_ns = [row.exposed_comm_ns.wait if row.exposed_comm_ns else None for row in rows]
    exposed_ns = [row.waterfall_ns.exposed_comm if row.waterfall_ns else 0 for row in rows]
    known_ns = [each for each in waits_ns if each is not None]
    left_ns = known_ns if len(known_ns) == len(rows) else exposed_ns
    return [(row.window_ns or 0) - each for row, each in zip(rows, left_ns, strict=True)]


def _groups(rows: Sequence[DraftRow], key: Callable[[DraftRow], Hashable]) -> Iterable[list[int]]:
    """Group the indices of the rows by key."""
    groups: defaultdict[Hashable, list[int]] = defaultdict(list)
    for index, draft in enumerate(rows):
        groups[key(draft)].append(index)
    return groups.values()


def _set_peers(rows: list[DraftRow], group: list[int]) -> None:
    drafts = [rows[i] for i in group]
    mean_mhz = _or_nan(_mean_mhz(each.row) for each in drafts)
    half_mhz = np.array([each.random_mhz + each.bias_mhz for each in drafts])
    is_peer = np.array([each.is_peer for each in drafts])
    peers = peers_of(np.where(is_peer, mean_mhz, np.nan), half_mhz)
    if peers is None:
        return
    found = peers.excess(mean_mhz, half_mhz)
    said = Peers(n=peers.count, median_mhz=peers.reference_mhz, disagree=peers.disagree)
    for nth in np.flatnonzero(np.isfinite(mean_mhz)):
        draft, dvfs = drafts[nth], drafts[nth].row.dvfs
        if dvfs.lost_ns is not None:
            excess, low, high = (
                None if math.isnan(share) else round(share * draft.covered_ns)
                for share in (found.ratio[nth], found.low[nth], found.high[nth])
            )
            dvfs = replace(dvfs, excess_ns=excess, excess_low_ns=low, excess_high_ns=high)
        rows[group[nth]] = replace(draft, row=replace(draft.row, dvfs=dvfs, peers=said))


def _mean_mhz(row: Row) -> float | None:
    return row.clock.compute.mean_mhz if row.clock and row.clock.compute else None


def _peers_mhz(row: Row) -> float | None:
    return row.peers.median_mhz if row.peers else None


def _or_nan(values: Iterable[float | None]) -> Float64s:
    return np.array([math.nan if value is None else value for value in values])


class RunExcess(Struct, frozen=True, kw_only=True):
    """Loss against peers by the mean clocks of a run, in ns for each row; None where unknown."""

    excess_ns: float | None = None
    low_ns: float | None = None  # of its 95 % interval
    high_ns: float | None = None
    stands_out: bool | None = None  # whether the low end passes the margin
    peers_mhz: float | None = None  # what the clock is compared with


class RunPeers:
    """Compares devices of one job, run and model by their mean clocks over the run."""

    def __init__(self, devices: Iterable[Sequence[DraftRow]]) -> None:
        clocks: defaultdict[Hashable, list[_RunClock]] = defaultdict(list)
        for rows in devices:
            clock = _run_clock(rows)
            if clock is not None and all(each.is_peer for each in rows):
                clocks[_who(rows[0])].append(clock)
        self._peers = {
            who: peers_of(
                np.array([each.mean_mhz for each in those]),
                np.array([each.half_mhz for each in those]),
                wander_ratio([each.shares for each in those]),
            )
            for who, those in clocks.items()
        }

    def excess(self, rows: Sequence[DraftRow]) -> RunExcess:
        """Return the loss against the peers of rows of one model, of one device or each step."""
        clock, peers = _run_clock(rows), self._peers.get(_who(rows[0]))
        if clock is None or peers is None:
            return RunExcess()
        found = peers.excess(np.array([clock.mean_mhz]), np.array([clock.half_mhz]))
        low, high = known_or_none(found.low[0]), known_or_none(found.high[0])
        return RunExcess(
            excess_ns=float(found.ratio[0]) * clock.covered_ns,
            low_ns=None if low is None else low * clock.covered_ns,
            high_ns=None if high is None else high * clock.covered_ns,
            stands_out=None if low is None else bool(found.is_named[0]),
            peers_mhz=peers.reference_mhz,
        )


def _who(draft: DraftRow) -> tuple[str | None, str | None, str | None]:
    return draft.row.job, draft.row.run, draft.model


class _RunClock(NamedTuple):
    """The compute clock over several rows; `shares`: that of each row over its peers'."""

    covered_ns: float  # mean over the rows
    mean_mhz: float
    half_mhz: float  # of its interval
    shares: Float64s


def _run_clock(rows: Sequence[DraftRow]) -> _RunClock | None:
    """Return the clock over the rows whose excess is known; sampling errors are independent."""
    known = [each for each in rows if each.row.dvfs.excess_ns is not None]
    weight_ns = np.array([each.covered_ns for each in known], np.float64)
    if not weight_ns.sum():
        return None
    weight = weight_ns / weight_ns.sum()
    mean_mhz = _or_nan(_mean_mhz(each.row) for each in known)
    peers_mhz = _or_nan(_peers_mhz(each.row) for each in known)
    random_mhz = np.array([each.random_mhz for each in known]) * weight
    bias_mhz = np.array([each.bias_mhz for each in known]) * weight
    return _RunClock(
        covered_ns=float(weight_ns.mean()),
        mean_mhz=float((mean_mhz * weight).sum()),
        half_mhz=float(np.sqrt((random_mhz**2).sum()) + bias_mhz.sum()),
        shares=mean_mhz / peers_mhz,
    )


def summarise(
    steps: Sequence[DraftRow], totals: Sequence[DraftRow], reference: Reference
) -> Summary | None:
    """Summarise rows that `across_devices` completed; None where no device has a record.

    Means are over the critical device of each complete, non-tail step whose clock is known (of
    all such steps, if none is); where there is no such step, over that of the whole files.
    """
    complete = [each for each in steps if is_complete(each.row)]
    critical = [each for each in complete if each.row.is_critical]
    lost = {_when(each) for each in critical if each.row.dvfs.lost_ns is not None}
    if lost:  # steps whose critical device's loss is known; all if none is
        complete = [each for each in complete if _when(each) in lost]
    used = complete or list(totals)
    critical = [each for each in used if each.row.is_critical]
    if not critical:
        return None
    step_ns = _mean([each.row.window_ns for each in critical])
    gap_ratio, gap_low, gap_high = _interval(critical, step_ns)
    devices = _by_device(used)
    peers = RunPeers(devices)
    excess = _excess(critical, peers)
    return Summary(
        basis="critical_steps" if complete else "totals",
        steps=len(critical) if complete else 0,
        step_ns=step_ns,
        lost_ns=_mean([each.row.dvfs.lost_ns for each in critical]),
        gap_ratio=gap_ratio,
        gap_low=gap_low,
        gap_high=gap_high,
        lost_measured_low_ns=_mean([each.row.dvfs.lost_measured_low_ns for each in critical]),
        lost_measured_high_ns=_mean([each.row.dvfs.lost_measured_high_ns for each in critical]),
        excess_ns=excess.excess_ns,
        excess_low_ns=excess.low_ns,
        excess_high_ns=excess.high_ns,
        reference_mhz=reference.sm_clock_mhz,
        reference_source=reference.source,
        coverage_ratio=_coverage(critical),
        causes=_causes(critical),
        gpus=tuple(_gpu_line(rows, peers, has_steps=bool(complete)) for rows in devices),
        waterfall_ns=_mean_waterfall([each.row for each in critical]),
        held=held_over([each.row for each in critical]),
    )


def is_complete(row: Row) -> bool:
    """Whether a row counts in averages and step-time statistics."""
    return not (row.partial or row.tail or row.host_only)


def _mean(values: Sequence[float | None]) -> float | None:
    """Return the mean of the known values; None without any."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _interval(
    rows: Sequence[DraftRow], step_ns: float | None
) -> tuple[float | None, float | None, float | None]:
    """Return lost over window with its 95 % interval; sampling errors of steps are independent."""
    lost_ns = _mean([each.row.dvfs.lost_ns for each in rows])
    if lost_ns is None or not step_ns:
        return None, None, None
    ratio, count = lost_ns / step_ns, len(rows)
    random_ns = math.sqrt(sum(each.random_ns**2 for each in rows)) / count
    bias_ns = sum(each.bias_ns for each in rows) / count
    half = (random_ns + bias_ns) / step_ns
    if math.isnan(half):
        return ratio, None, None
    return ratio, max(0.0, ratio - half), min(1.0, ratio + half)


def _coverage(rows: Sequence[DraftRow]) -> float | None:
    compute_ns = sum(each.row.compute_ns or 0 for each in rows)
    if not compute_ns or all(each.row.clock is None for each in rows):
        return None
    return sum(each.covered_ns for each in rows) / compute_ns


def _causes(rows: Sequence[DraftRow]) -> tuple[CauseShare, ...]:
    """Return the mean loss by cause, largest first; a power cap with the power under it."""
    lost: Counter[str] = Counter()
    known = [each.row.dvfs.by_cause_ns for each in rows if each.row.dvfs.by_cause_ns is not None]
    for by_cause_ns in known:
        lost.update(by_cause_ns)
    whole = sum(lost.values())
    capped = [each for each in rows if each.capped_w is not None and each.row.power_limit_w]
    power_w = _mean([each.capped_w for each in capped])
    limit_w = _mean([each.row.power_limit_w for each in capped])
    return tuple(
        CauseShare(
            cause=cause,
            lost_ns=lost_ns / len(known),
            share=lost_ns / whole,
            power_w=power_w if cause == Cause.POWER_CAP.label else None,
            power_limit_w=limit_w if cause == Cause.POWER_CAP.label else None,
        )
        for cause, lost_ns in lost.most_common()
        if lost_ns
    )


def _mean_waterfall(rows: Sequence[Row]) -> dict[str, float]:
    """Return the mean of each waterfall row in ns; a row that is unknown throughout is left out."""
    sums: defaultdict[str, list[float]] = defaultdict(list)
    for parts in (asdict(row.waterfall_ns) for row in rows if row.waterfall_ns is not None):
        for name, value in parts.items():
            if value is not None:
                sums[name].append(value)
    return {name: sum(values) / len(rows) for name, values in sums.items()}


def _excess(critical: Sequence[DraftRow], peers: RunPeers) -> RunExcess:
    """Return the critical devices' excess a step, by the run's mean clocks: a mean over models."""
    models = _groups(critical, lambda each: each.model)
    rows_of = ([critical[i] for i in group] for group in models)
    every = [excess for rows in rows_of for excess in [peers.excess(rows)] * len(rows)]
    known = [each for each in every if each.excess_ns is not None]
    bounded = known if all(each.low_ns is not None for each in known) else []
    return RunExcess(
        excess_ns=_mean([each.excess_ns for each in known]),
        low_ns=_mean([each.low_ns for each in bounded]),
        high_ns=_mean([each.high_ns for each in bounded]),
    )


def _by_device(used: Sequence[DraftRow]) -> list[list[DraftRow]]:
    def key(each: DraftRow) -> tuple[int, int, int]:
        rank = -1 if each.row.rank is None else each.row.rank
        return rank, each.process, each.row.device or 0

    return [list(rows) for _, rows in groupby(sorted(used, key=key), key)]


def _gpu_line(rows: Sequence[DraftRow], peers: RunPeers, *, has_steps: bool) -> GpuLine:
    first, excess = rows[0].row, peers.excess(rows)
    temperatures = [each.row.temperature_c.mean for each in rows if each.row.temperature_c]
    return GpuLine(
        gpu=first.gpu,
        device=first.device or 0,
        rank=first.rank,
        mean_mhz=_over_covered(rows, _mean_mhz),
        peers_median_mhz=excess.peers_mhz or _over_covered(rows, _peers_mhz),
        gap_ratio=_over_covered(rows, lambda row: row.dvfs.gap_ratio),
        excess_ns_per_step=excess.excess_ns,
        excess_low_ns_per_step=excess.low_ns,
        excess_high_ns_per_step=excess.high_ns,
        stands_out=excess.stands_out,
        temperature_mean_c=_mean(temperatures),
        slowest_steps=sum(bool(each.row.is_critical) for each in rows) if has_steps else None,
    )


def _over_covered(
    rows: Sequence[DraftRow], value_of: Callable[[Row], float | None]
) -> float | None:
    """Return the mean of the rows' known values, weighted by covered compute; None without any."""
    known = [(value, each.covered_ns) for each in rows if (value := value_of(each.row)) is not None]
    weight_ns = sum(covered_ns for _, covered_ns in known)
    return sum(value * ns for value, ns in known) / weight_ns if weight_ns else None

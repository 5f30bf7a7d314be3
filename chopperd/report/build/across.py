"""What only rows of several devices tell together: peers, excess, and the critical device."""

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from chopperd.correlate.peers import peers_of, wander_ratio
from chopperd.model.arrays import Float64s
from chopperd.model.report import Peers, Row
from chopperd.report.build.rows import DraftRow


def across_devices(drafts: Sequence[DraftRow]) -> list[DraftRow]:
    """The rows with peers, excess and `is_critical`, in the same order.

    Peers are the same model's GPUs in the same job, run and step (for totals: in files that begin
    with the same step); the critical device is the one with the largest window less exposed
    communication.

    Args:
        drafts: Rows of all devices of a job: its steps, or its totals.
    """
    rows = list(drafts)
    for group in _groups(rows, lambda draft: (*_when(draft), draft.model)):
        if rows[group[0]].model is not None and not _repeats(rows, group):
            _set_peers(rows, group)
    for group in _groups(rows, _when):
        critical = max(group, key=lambda i: own_time_ns(rows[i].row))
        for i in group:
            rows[i] = replace(rows[i], row=replace(rows[i].row, is_critical=i == critical))
    return rows


def _when(draft: DraftRow) -> tuple[str | None, str | None, int | None, int | None]:
    """What rows that are set beside one another have in common."""
    row = draft.row
    return row.job, row.run, row.step, draft.first_step if row.step is None else None


def _repeats(rows: Sequence[DraftRow], group: Sequence[int]) -> bool:
    """Whether a GPU is in a group more than once, so that it would be its own peer."""
    devices = {(rows[i].process, rows[i].row.device) for i in group}
    known = [rows[i].row.gpu for i in group if rows[i].row.gpu is not None]
    return len(devices) < len(group) or len(set(known)) < len(known)


def own_time_ns(row: Row) -> int:
    """The window less exposed communication: what a device needs when nobody makes it wait."""
    exposed_ns = row.waterfall_ns.exposed_comm if row.waterfall_ns else 0
    return (row.window_ns or 0) - exposed_ns


def _groups(rows: Sequence[DraftRow], key: Callable[[DraftRow], Hashable]) -> Iterable[list[int]]:
    """Indices of the device rows with one key."""
    groups: defaultdict[Hashable, list[int]] = defaultdict(list)
    for index, draft in enumerate(rows):
        groups[key(draft)].append(index)
    return groups.values()


def _set_peers(rows: list[DraftRow], group: list[int]) -> None:
    drafts = [rows[i] for i in group]
    mean_mhz = np.array([_or_nan(mean_mhz_of(each.row)) for each in drafts])
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


def mean_mhz_of(row: Row) -> float | None:
    """The row's mean compute clock; None if unknown."""
    return row.clock.compute.mean_mhz if row.clock and row.clock.compute else None


def peers_mhz_of(row: Row) -> float | None:
    """The peers' median clock; None without peers."""
    return row.peers.median_mhz if row.peers else None


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


@dataclass(frozen=True, slots=True, kw_only=True)
class RunExcess:
    """Loss against peers by the mean clocks of a run, a row (step) in ns; None where not known.

    Attributes:
        excess_ns, low_ns, high_ns: With its 95 % interval.
        stands_out: Whether the low end passes the margin.
        peers_mhz: What the clock is compared with.
    """

    excess_ns: float | None = None
    low_ns: float | None = None
    high_ns: float | None = None
    stands_out: bool | None = None
    peers_mhz: float | None = None


class RunPeers:
    """Compares devices by their mean clocks over a run, those of one job, run and model.

    Args:
        devices: The rows of each device.
    """

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
        """What the rows, at least one, lost against the peers.

        Args:
            rows: Of one device, or one of each step, all of GPUs of one model.
        """
        clock = _run_clock(rows)
        peers = self._peers.get(_who(rows[0]))
        if clock is None or peers is None:
            return RunExcess()
        mean_mhz, half_mhz = np.array([clock.mean_mhz]), np.array([clock.half_mhz])
        found = peers.excess(mean_mhz, half_mhz)
        low, high = float(found.low[0]), float(found.high[0])
        return RunExcess(
            excess_ns=float(found.ratio[0]) * clock.covered_ns,
            low_ns=None if math.isnan(low) else low * clock.covered_ns,
            high_ns=None if math.isnan(high) else high * clock.covered_ns,
            stands_out=None if math.isnan(low) else bool(found.is_named[0]),
            peers_mhz=peers.reference_mhz,
        )


def _who(draft: DraftRow) -> tuple[str | None, str | None, str | None]:
    return draft.row.job, draft.row.run, draft.model


@dataclass(frozen=True, slots=True, kw_only=True)
class _RunClock:
    """The compute clock over several rows: its mean, half its interval, mean covered time.

    `shares` has the clock of each row over its peers'.
    """

    covered_ns: float
    mean_mhz: float
    half_mhz: float
    shares: Float64s


def _run_clock(rows: Sequence[DraftRow]) -> _RunClock | None:
    """The clock over the rows whose excess is known; None where there is none.

    Sampling errors of different rows are independent; timing bias is common to all.
    """
    known = [each for each in rows if each.row.dvfs.excess_ns is not None]
    weight_ns = np.array([each.covered_ns for each in known], np.float64)
    if not weight_ns.sum():
        return None
    weight = weight_ns / weight_ns.sum()
    mean_mhz = np.array([_or_nan(mean_mhz_of(each.row)) for each in known])
    peers_mhz = np.array([_or_nan(peers_mhz_of(each.row)) for each in known])
    random_mhz = np.array([each.random_mhz for each in known]) * weight
    bias_mhz = np.array([each.bias_mhz for each in known]) * weight
    return _RunClock(
        covered_ns=float(weight_ns.mean()),
        mean_mhz=float((mean_mhz * weight).sum()),
        half_mhz=float(np.sqrt((random_mhz**2).sum()) + bias_mhz.sum()),
        shares=mean_mhz / peers_mhz,
    )

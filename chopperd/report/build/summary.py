"""The run in one look, pooled from its rows."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict

from chopperd.model.causes import Cause
from chopperd.model.report import CauseShare, GpuLine, Reference, Row, Summary
from chopperd.report.build.across import RunExcess, RunPeers, mean_mhz_of, peers_mhz_of
from chopperd.report.build.rows import DraftRow


def summarise(
    steps: Sequence[DraftRow], totals: Sequence[DraftRow], reference: Reference
) -> Summary | None:
    """The summary; None where no device has a record.

    Means are over the critical device of each complete, non-tail step whose clock is known (of
    all such steps, if none is); where there is no such step, over that of the whole files.

    Args:
        steps: Step rows of all devices, with peers and critical devices set.
        totals: Rows of the whole files.
        reference: The reference clock that the losses were taken against.
    """
    complete = _with_clocks([each for each in steps if is_complete(each.row)])
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
    )


def _with_clocks(steps: Sequence[DraftRow]) -> list[DraftRow]:
    """The rows of those steps whose critical device's loss is known; all rows if none is."""
    known = {
        each.row.step
        for each in steps
        if each.row.is_critical and each.row.dvfs.lost_ns is not None
    }
    return [each for each in steps if each.row.step in known] if known else list(steps)


def is_complete(row: Row) -> bool:
    """Whether a row counts in averages and step-time statistics."""
    return not (row.partial or row.tail or row.host_only)


def _mean(values: Sequence[float | None]) -> float | None:
    """The mean of the known values; None without any."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _interval(
    rows: Sequence[DraftRow], step_ns: float | None
) -> tuple[float | None, float | None, float | None]:
    """Lost over window with its 95 % interval: gap interval x covered share, pooled over rows.

    Sampling errors of different steps are independent; timing bias is common to all.
    """
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
    """Covered over all compute; None where no clock was joined."""
    compute_ns = sum(each.row.compute_ns or 0 for each in rows)
    if not compute_ns or all(each.row.clock is None for each in rows):
        return None
    return sum(each.covered_ns for each in rows) / compute_ns


def _causes(rows: Sequence[DraftRow]) -> tuple[CauseShare, ...]:
    """Shares of the loss by cause, largest first; a power cap with the power under it."""
    lost: Counter[str] = Counter()
    for each in rows:
        lost.update(each.row.dvfs.by_cause_ns or {})
    whole = sum(lost.values())
    capped = [each for each in rows if each.capped_w is not None and each.row.power_limit_w]
    power_w = _mean([each.capped_w for each in capped])
    limit_w = _mean([each.row.power_limit_w for each in capped])
    return tuple(
        CauseShare(
            cause=cause,
            lost_ns=lost_ns,
            share=lost_ns / whole,
            power_w=power_w if cause == Cause.POWER_CAP.label else None,
            power_limit_w=limit_w if cause == Cause.POWER_CAP.label else None,
        )
        for cause, lost_ns in lost.most_common()
        if lost_ns
    )


def _mean_waterfall(rows: Sequence[Row]) -> dict[str, float]:
    """Mean of each waterfall row; a row that is unknown throughout is left out."""
    sums: defaultdict[str, list[float]] = defaultdict(list)
    for row in rows:
        if row.waterfall_ns is not None:
            for name, value in asdict(row.waterfall_ns).items():
                if value is not None:
                    sums[name].append(value)
    return {name: sum(values) / len(rows) for name, values in sums.items()}


def _excess(critical: Sequence[DraftRow], peers: RunPeers) -> RunExcess:
    """The critical devices' excess a step, by the run's mean clocks: a mean over their models."""
    by_model: defaultdict[str | None, list[DraftRow]] = defaultdict(list)
    for each in critical:
        by_model[each.model].append(each)
    every = [excess for rows in by_model.values() for excess in [peers.excess(rows)] * len(rows)]
    known = [each for each in every if each.excess_ns is not None]
    has_interval = all(each.low_ns is not None for each in known)
    return RunExcess(
        excess_ns=_mean([each.excess_ns for each in known]),
        low_ns=_mean([each.low_ns for each in known]) if has_interval else None,
        high_ns=_mean([each.high_ns for each in known]) if has_interval else None,
    )


def _by_device(used: Sequence[DraftRow]) -> list[list[DraftRow]]:
    """The rows of each device, in rank order."""
    by_device: defaultdict[tuple[int, int, int], list[DraftRow]] = defaultdict(list)
    for each in used:
        rank = -1 if each.row.rank is None else each.row.rank
        by_device[rank, each.process, each.row.device or 0].append(each)
    return [rows for _, rows in sorted(by_device.items())]


def _gpu_line(rows: Sequence[DraftRow], peers: RunPeers, *, has_steps: bool) -> GpuLine:
    first, excess = rows[0].row, peers.excess(rows)
    temperatures = [each.row.temperature_c.mean for each in rows if each.row.temperature_c]
    return GpuLine(
        gpu=first.gpu,
        device=first.device or 0,
        rank=first.rank,
        mean_mhz=_over_covered(rows, mean_mhz_of),
        peers_median_mhz=excess.peers_mhz or _over_covered(rows, peers_mhz_of),
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
    """The mean of what rows have, weighted by their covered compute; None where none has it."""
    known = [(value, each.covered_ns) for each in rows if (value := value_of(each.row)) is not None]
    weight_ns = sum(covered_ns for _, covered_ns in known)
    return sum(value * ns for value, ns in known) / weight_ns if weight_ns else None

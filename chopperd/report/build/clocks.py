"""Fill the clock figures of a row: means with intervals, loss, power, temperature, dies.

They come from the columns of a joined device, at the row's index; NaN becomes None here.
"""

import math
from typing import Final, Literal, TypeVar

import numpy as np

from chopperd.correlate.clock.governing import are_gated, are_running
from chopperd.correlate.clock.signal import RunningClass
from chopperd.correlate.join import RowClocks
from chopperd.model.arrays import Float64s, Int64s
from chopperd.model.kinds import CAUSES, Cause
from chopperd.model.report_rows import ClockDies, ClockStats, Dvfs, RowClock, Temperature
from chopperd.model.samples import GpuSamples
from chopperd.units import NS_PER_S

#: Half-width above which a share is not printed as a figure (two points).
RESOLVED_HALF_WIDTH_RATIO: Final = 0.02
#: `GpuInfo.power_source` of a reading that is the mean of the last second, or of an unknown time,
#: which is taken as one second.
AVERAGES: Final = ("average_1s", "average", "card")
#: Fewer readings of an instant than this give no mean.
_MIN_INSTANTS: Final = 5
_MOSTLY: Final = 0.9

T = TypeVar("T")


def known_or_none(value: float) -> float | None:
    """Return the number, or None for NaN."""
    return None if math.isnan(value) else float(value)


def filled(target: type[T], columns: object, index: int | tuple[int, int], **other: object) -> T:
    """Make a record of the document from same-named columns at an index, and `other` fields."""
    values = dict(other)
    for name in target.__annotations__:
        if name not in other and hasattr(columns, name):
            value = getattr(columns, name)[index].item()
            values[name] = known_or_none(value) if isinstance(value, float) else value
    return target(**values)


def copied(source: object, target: type[T], **other: object) -> T:
    """Make a record from the same-named attributes of `source`, and `other` fields."""
    names = (name for name in target.__annotations__ if hasattr(source, name))
    return target(**({name: getattr(source, name) for name in names} | other))


def row_samples(clocks: RowClocks, index: int) -> slice:
    """Return the slice of `clocks.samples` (and of `clocks.sample_rows`) in the row's window."""
    return inside(clocks.samples.t_ns, clocks, index)


def inside(t_ns: Int64s, clocks: RowClocks, index: int) -> slice:
    """Return the slice of rising times that lie in the row's window."""
    windows = clocks.windows
    edges = windows.start_ns[index], windows.end_ns[index]
    return slice(*np.searchsorted(t_ns, edges, "left").tolist())


def compute_rows(clocks: RowClocks, index: int | None = None) -> Int64s:
    """Return indices of the samples while compute ran; with an index those in that row only."""
    within = slice(0, None) if index is None else row_samples(clocks, index)
    return np.flatnonzero(clocks.samples.label[within] == RunningClass.COMPUTE) + within.start


def clock_of(clocks: RowClocks, index: int, samples: GpuSamples | None = None) -> RowClock:
    """Return the row's clocks over compute and over busy time, and those of its dies."""
    compute, samples_mhz = clocks.compute, clocks.samples.clock_mhz
    covered_ns, in_mask_ns = int(compute.covered_ns[index]), int(compute.in_mask_ns[index])
    in_class_ns, within = int(compute.in_class_ns[index]), row_samples(clocks, index)
    busy_mhz = samples_mhz[within][clocks.samples.label[within] != RunningClass.IDLE]
    mixed: Literal["mixed", "all"] = "mixed" if in_class_ns else "all"
    return RowClock(
        basis=None if not covered_ns else "in_class" if in_class_ns == covered_ns else mixed,
        compute=_stats(
            compute.mean_mhz[index],
            compute.half_width_mhz[index],
            samples_mhz[compute_rows(clocks, index)],
        ),
        busy=_stats(clocks.busy_mhz[index], clocks.busy_half_mhz[index], busy_mhz),
        coverage_ratio=covered_ns / in_mask_ns if in_mask_ns else None,
        dies=None if samples is None else dies_of(samples, clocks, index),
    )


def _stats(mean_mhz: float, half_width_mhz: float, samples_mhz: Float64s) -> ClockStats | None:
    if math.isnan(mean_mhz):
        return None
    some = len(samples_mhz) > 0
    return ClockStats(
        mean_mhz=float(mean_mhz),
        low_mhz=known_or_none(mean_mhz - half_width_mhz),
        high_mhz=known_or_none(mean_mhz + half_width_mhz),
        p05_mhz=float(np.quantile(samples_mhz, 0.05)) if some else None,
        p95_mhz=float(np.quantile(samples_mhz, 0.95)) if some else None,
        std_mhz=float(np.std(samples_mhz, ddof=1)) if len(samples_mhz) > 1 else None,
        samples=len(samples_mhz),
    )


def dies_of(samples: GpuSamples, clocks: RowClocks, index: int) -> ClockDies | None:
    """Return the row's figures of the dies; None without dies, or if none ran at a compute sample.

    The clock of `samples` is the governing die's.
    """
    if samples.die_clocks_mhz is None or not clocks.compute.covered_ns[index]:
        return None
    rows = clocks.sample_rows[compute_rows(clocks, index)]
    dies_mhz = samples.die_clocks_mhz[rows]
    ran = are_running(dies_mhz)
    if not ran.any():
        return None
    running_mhz = np.where(ran, dies_mhz, np.nan)
    means_mhz = np.nanmean(running_mhz[:, ran.any(axis=0)], axis=0)
    at_all = ran.any(axis=1)
    above_mhz = np.nanmean(running_mhz[at_all], axis=1) - samples.sm_clock_mhz[rows][at_all]
    return ClockDies(
        running=len(means_mhz),
        gated=int(are_gated(dies_mhz).any(axis=0).sum()),
        mean_mhz=float(clocks.compute.mean_mhz[index] + above_mhz.mean()),
        spread_mhz=float(np.ptp(means_mhz)) if len(means_mhz) > 1 else None,
        governing=int(np.flatnonzero(ran.any(axis=0))[means_mhz.argmin()]),
    )


def dvfs_of(clocks: RowClocks, reference_mhz: float | None, index: int) -> Dvfs:
    """Return the row's ceiling loss; all None without covered compute or a reference."""
    compute, loss, windows = clocks.compute, clocks.loss, clocks.windows
    covered_ns = int(compute.covered_ns[index])
    if not covered_ns or loss is None or reference_mhz is None:
        return Dvfs()
    lost_ns, by_cause_ns = int(loss.lost_ns[index]), loss.by_cause_ns[index]
    gap_ratio = lost_ns / covered_ns
    half = known_or_none(compute.half_width_mhz[index] / reference_mhz)
    pooled_ns = known_or_none(compute.pooled_mhz[index] * covered_ns / reference_mhz)
    window_ns = int(windows.end_ns[index] - windows.start_ns[index])
    return Dvfs(
        method="sampled",
        gap_ratio=gap_ratio,
        gap_low=None if half is None else max(0.0, gap_ratio - half),
        gap_high=None if half is None else min(1.0, gap_ratio + half),
        lost_ns=lost_ns,
        overhead_factor=reference_mhz / float(compute.mean_mhz[index]),
        by_cause_ns={each.label: int(by_cause_ns[each]) for each in CAUSES if by_cause_ns[each]},
        resolution="coarse" if loss.coarse[index] else None,
        resolved=None if pooled_ns is None else pooled_ns <= RESOLVED_HALF_WIDTH_RATIO * window_ns,
    )


def power_of(
    samples: GpuSamples, clocks: RowClocks, index: int
) -> tuple[float, str] | tuple[None, None]:
    """Return the row's mean power in W and its source: the energy counter, else readings.

    A reading that is a mean counts where the second before it lies in the row; readings of an
    instant count from 5 on. Without an energy counter most steps have neither: (None, None).
    """
    windows, energy_j = clocks.windows, float(clocks.energy.energy_j[index])
    start_ns, end_ns = int(windows.start_ns[index]), int(windows.end_ns[index])
    if not math.isnan(energy_j) and end_ns > start_ns:
        return energy_j * NS_PER_S / (end_ns - start_ns), "energy_counter"
    source = samples.gpu.power_source
    if source is None:
        return None, None
    covers_ns, least = (NS_PER_S, 1) if source in AVERAGES else (0, _MIN_INSTANTS)
    first, last = np.searchsorted(samples.t_unix_ns, (start_ns + covers_ns, end_ns), "left")
    power_w = samples.power_w[first:last]
    known = power_w[np.isfinite(power_w)]
    return (float(known.mean()), source) if len(known) >= least else (None, None)


def capped_w(samples: GpuSamples, clocks: RowClocks, index: int) -> float | None:
    """Return the mean power in W of the row's reads in compute under the power cap; None without.

    A mean of the last second counts only where nearly all of the row is compute.
    """
    window_ns = int(clocks.windows.end_ns[index] - clocks.windows.start_ns[index])
    is_all_compute = int(clocks.compute.in_mask_ns[index]) >= _MOSTLY * window_ns
    if samples.gpu.power_source in AVERAGES and not is_all_compute:
        return None
    rows = clocks.sample_rows[compute_rows(clocks, index)]
    is_capped = (samples.causes[rows] & Cause.POWER_CAP.bit) != 0
    return mean_of_samples(samples.power_w[rows][is_capped])


def mean_of_samples(values: Float64s) -> float | None:
    """Return the mean of the known values; None without any."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else None


def temperature_of(temperature_c: Float64s) -> Temperature | None:
    """Return mean and maximum of the known temperatures; None without any."""
    known = temperature_c[np.isfinite(temperature_c)]
    return Temperature(mean=float(known.mean()), max=float(known.max())) if len(known) else None

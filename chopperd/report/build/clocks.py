"""The clock part of a row: statistics, loss by cause, energy, kernels; NaN becomes None here."""

import math
from collections.abc import Sequence
from typing import Final, TypedDict

import numpy as np

from chopperd.correlate.clock.signal import RunningClass
from chopperd.correlate.groups import OTHER, FamilyTotals, GroupTotals
from chopperd.correlate.join import JoinedDevice, RowClocks
from chopperd.correlate.losses import CeilingLoss
from chopperd.model.arrays import Float64s, Int64s
from chopperd.model.devices import Vendor
from chopperd.model.kinds import CAUSES, KERNEL_CLASSES, Cause
from chopperd.model.report import Reference
from chopperd.model.report_rows import (
    OTHER_PARTS,
    UNKNOWN_PART,
    ClassTotal,
    ClockBasis,
    ClockStats,
    Dvfs,
    Family,
    Part,
    RowClock,
    Temperature,
)
from chopperd.model.samples import GpuSamples
from chopperd.report.text.wording import brief_milliseconds, percent, plural
from chopperd.units import NS_PER_S

_METHOD = "sampled"
#: From this share of the clock on a blur of it is worth a note.
_NOTED_BLUR_RATIO: Final = 0.005
#: Half-width above which a share is not printed as a figure (two points).
RESOLVED_HALF_WIDTH_RATIO: Final = 0.02
_ENERGY_COUNTER = "energy_counter"
#: `GpuInfo.power_source` of a reading that is the mean of the last second, or of a time that
#: nobody states, which is taken for as much.
AVERAGES = ("average_1s", "average", "card")
#: So few readings of an instant say nothing of a mean.
_MIN_INSTANTS = 5
_MOSTLY = 0.9

#: A reference clock this many times the highest sample is hardly the GPU's. AMD states boost clocks
#: far above those of matrix products (MI300X in FP16: 1115 of 2100 MHz); a GPU that a limit holds
#: may be at the lowest that hardware brakes go to (345 of 1980 MHz).
_FAR_ABOVE: Final = 1.5
_FAR_ABOVE_ON_AMD: Final = 2.5
_FAR_ABOVE_WHERE_HELD: Final = 6.0
_NO_LIMIT_BITS: Final = sum(
    cause.bit for cause in (Cause.LOW_UTILIZATION, Cause.UNEXPLAINED, Cause.UNKNOWN)
)
#: Clocks differ from the maximum by up to a step of theirs.
_CLOCK_STEP_MHZ: Final = 15.0


def known_or_none(value: float) -> float | None:
    """The number, or None for NaN."""
    return None if math.isnan(value) else float(value)


def row_samples(clocks: RowClocks, index: int) -> slice:
    """The row's samples of the clock: a slice of `clocks.samples` (and of `clocks.kept`)."""
    return _inside(clocks.samples.t_ns, clocks, index)


def reads_inside(samples: GpuSamples, clocks: RowClocks, index: int) -> slice:
    """The row's reads, clock or not: a slice of `samples`."""
    return _inside(samples.t_unix_ns, clocks, index)


def _inside(t_ns: Int64s, clocks: RowClocks, index: int) -> slice:
    windows = clocks.windows
    first = int(np.searchsorted(t_ns, windows.start_ns[index], "left"))
    return slice(first, int(np.searchsorted(t_ns, windows.end_ns[index], "left")))


def class_samples(clocks: RowClocks, index: int) -> Float64s:
    """Clocks of the row's samples that fell into compute, MHz."""
    inside = row_samples(clocks, index)
    compute = clocks.samples.label[inside] == RunningClass.COMPUTE
    chosen: Float64s = clocks.samples.clock_mhz[inside][compute]
    return chosen


def clock_of(clocks: RowClocks, index: int) -> RowClock:
    """The row's clocks over compute and over busy time."""
    compute, busy = clocks.compute, clocks.busy
    in_mask_ns, covered_ns = int(compute.in_mask_ns[index]), int(compute.covered_ns[index])
    inside = row_samples(clocks, index)
    busy_samples = clocks.samples.clock_mhz[inside][
        clocks.samples.label[inside] != RunningClass.IDLE
    ]
    return RowClock(
        basis=_basis(covered_ns, int(compute.in_class_ns[index])),
        compute=_stats(
            float(compute.mean_mhz[index]),
            float(compute.half_width_mhz[index]),
            class_samples(clocks, index),
        ),
        busy=_stats(float(busy.mean_mhz[index]), float(busy.half_width_mhz[index]), busy_samples),
        coverage_ratio=covered_ns / in_mask_ns if in_mask_ns else None,
    )


def _basis(covered_ns: int, in_class_ns: int) -> ClockBasis | None:
    if not covered_ns:
        return None
    if in_class_ns == covered_ns:
        return "in_class"
    return "mixed" if in_class_ns else "all"


def _stats(mean_mhz: float, half_width_mhz: float, samples_mhz: Float64s) -> ClockStats | None:
    """The statistics; None where the mean is not known."""
    if math.isnan(mean_mhz):
        return None
    some = len(samples_mhz) > 0
    return ClockStats(
        mean_mhz=mean_mhz,
        low_mhz=known_or_none(mean_mhz - half_width_mhz),
        high_mhz=known_or_none(mean_mhz + half_width_mhz),
        p05_mhz=float(np.quantile(samples_mhz, 0.05)) if some else None,
        p95_mhz=float(np.quantile(samples_mhz, 0.95)) if some else None,
        std_mhz=float(np.std(samples_mhz, ddof=1)) if len(samples_mhz) > 1 else None,
        samples=len(samples_mhz),
    )


def dvfs_of(clocks: RowClocks, reference_mhz: float | None, index: int) -> Dvfs:
    """The row's ceiling loss; all None where no compute is covered or there is no reference."""
    covered_ns, loss = int(clocks.compute.covered_ns[index]), clocks.loss
    if not covered_ns or loss is None or reference_mhz is None:
        return Dvfs()
    lost_ns = int(loss.lost_ns[index])
    gap_ratio = lost_ns / covered_ns
    half_ratio = float(clocks.compute.half_width_mhz[index]) / reference_mhz
    return Dvfs(
        method=_METHOD,
        gap_ratio=gap_ratio,
        gap_low=known_or_none(max(0.0, gap_ratio - half_ratio) if half_ratio >= 0 else math.nan),
        gap_high=known_or_none(min(1.0, gap_ratio + half_ratio) if half_ratio >= 0 else math.nan),
        lost_ns=lost_ns,
        overhead_factor=reference_mhz / float(clocks.compute.mean_mhz[index]),
        by_cause_ns=_by_cause(loss, index),
        resolution="coarse" if loss.coarse[index] else None,
        resolved=_resolved(clocks, reference_mhz, index),
    )


def _resolved(clocks: RowClocks, reference_mhz: float, index: int) -> bool | None:
    """Whether the rate resolves the row's lost / window; None without an interval."""
    windows = clocks.windows
    lost_mhz = float(clocks.compute.pooled_mhz[index] * clocks.compute.covered_ns[index])
    if math.isnan(lost_mhz):
        return None
    window_ns = int(windows.end_ns[index] - windows.start_ns[index])
    return lost_mhz / reference_mhz <= RESOLVED_HALF_WIDTH_RATIO * window_ns


def _by_cause(loss: CeilingLoss, index: int) -> dict[str, int]:
    """Loss by cause, causes without loss left out; sums to the loss."""
    parts = loss.by_cause_ns[index]
    return {cause.label: int(parts[cause]) for cause in CAUSES if parts[cause]}


def energy_of(clocks: RowClocks, index: int) -> tuple[float | None, float | None]:
    """The row's energy and its error, J."""
    energy = clocks.energy
    return (
        known_or_none(float(energy.energy_j[index])),
        known_or_none(float(energy.energy_error_j[index])),
    )


def power_of(
    samples: GpuSamples, clocks: RowClocks, index: int
) -> tuple[float, str] | tuple[None, None]:
    """The row's mean power in W and what it is from: the energy counter, else readings.

    A reading that is a mean counts where the second before it lies in the row; of readings of an
    instant it takes a few. Neither is the case for most steps without an energy counter.
    """
    windows, energy_j = clocks.windows, float(clocks.energy.energy_j[index])
    start_ns, end_ns = int(windows.start_ns[index]), int(windows.end_ns[index])
    if not math.isnan(energy_j) and end_ns > start_ns:
        return energy_j * NS_PER_S / (end_ns - start_ns), _ENERGY_COUNTER
    source = samples.gpu.power_source
    if source is None:
        return None, None
    covers_ns, least = (NS_PER_S, 1) if source in AVERAGES else (0, _MIN_INSTANTS)
    first, last = np.searchsorted(samples.t_unix_ns, (start_ns + covers_ns, end_ns), "left")
    power_w = samples.power_w[first:last]
    known = power_w[np.isfinite(power_w)]
    return (float(known.mean()), source) if len(known) >= least else (None, None)


def capped_w(samples: GpuSamples, clocks: RowClocks, index: int) -> float | None:
    """Mean power in W of the row's reads in compute at which the power cap is set; None without.

    A mean of the last second counts only where nearly all of the row is compute.
    """
    window_ns = int(clocks.windows.end_ns[index] - clocks.windows.start_ns[index])
    is_all_compute = int(clocks.compute.in_mask_ns[index]) >= _MOSTLY * window_ns
    if samples.gpu.power_source in AVERAGES and not is_all_compute:
        return None
    inside = row_samples(clocks, index)
    kept = clocks.kept[inside][clocks.samples.label[inside] == RunningClass.COMPUTE]
    is_capped = (samples.causes[kept] & Cause.POWER_CAP.bit) != 0
    return mean_of_samples(samples.power_w[kept][is_capped])


def mean_of_samples(values: Float64s) -> float | None:
    """The mean of the known values; None without any."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else None


def temperature_of(temperature_c: Float64s) -> Temperature | None:
    """Mean and maximum of the known temperatures; None without any."""
    known = temperature_c[np.isfinite(temperature_c)]
    if not len(known):
        return None
    return Temperature(mean=float(known.mean()), max=float(known.max()))


def families_of(totals: FamilyTotals, names: tuple[str, ...]) -> tuple[Family, ...]:
    """The families, longest first."""
    return tuple(
        Family(
            name=group_name(int(totals.family[f]), names),
            class_=KERNEL_CLASSES[int(totals.kernel_class[f])].label,
            count=int(totals.count[f]),
            time_ns=int(totals.time_ns[f]),
            mean_mhz=known_or_none(float(totals.mean_mhz[f])),
            samples=int(totals.samples[f]),
            **_lost(totals, f),
            beta_reason="not measured in this version",
            merged=int(totals.merged[f]),
        )
        for f in range(len(totals.family))
    )


def classes_of(totals: GroupTotals) -> tuple[ClassTotal, ...]:
    """The classes, longest first."""
    return tuple(
        ClassTotal(
            class_=KERNEL_CLASSES[int(totals.group[g])].label,
            count=int(totals.count[g]),
            total_ns=int(totals.time_ns[g]),
            mean_mhz=known_or_none(float(totals.mean_mhz[g])),
            samples=int(totals.samples[g]),
            **_lost(totals, g),
        )
        for g in range(len(totals.group))
    )


class _Lost(TypedDict):
    lost_ns: int | None
    lost_low_ns: int | None
    lost_high_ns: int | None


def _lost(totals: FamilyTotals | GroupTotals, index: int) -> _Lost:
    """The loss of one group with its interval, at least 0."""
    lost_ns, half_ns = float(totals.lost_ns[index]), float(totals.half_ns[index])
    low_ns = lost_ns - half_ns
    return _Lost(
        lost_ns=_whole_or_none(lost_ns),
        lost_low_ns=_whole_or_none(0.0 if low_ns < 0 else low_ns),
        lost_high_ns=_whole_or_none(lost_ns + half_ns),
    )


def parts_of(totals: GroupTotals, names: Sequence[str]) -> tuple[Part, ...]:
    """The groups, longest first; what is of none is `UNKNOWN_PART`, of several `OTHER_PARTS`.

    Args:
        totals: The groups.
        names: What their numbers index.
    """
    return tuple(
        Part(
            name=group_name(int(totals.group[g]), names),
            count=int(totals.count[g]),
            time_ns=int(totals.time_ns[g]),
            mean_mhz=known_or_none(float(totals.mean_mhz[g])),
            samples=int(totals.samples[g]),
            **_lost(totals, g),
            merged=int(totals.merged[g]),
        )
        for g in range(len(totals.group))
    )


def group_name(group: int, names: Sequence[str]) -> str:
    """What a group of `GroupTotals` is called."""
    if group < 0:
        return OTHER_PARTS if group == OTHER else UNKNOWN_PART
    return names[group]


def sensor_conditions(
    joined: JoinedDevice, samples: GpuSamples
) -> tuple[tuple[bool, str, str], ...]:
    """What the interval of the clock holds of its sensor and reads: (condition, code, text)."""
    clocks, gpu = joined.clocks, samples.gpu.gpu
    if clocks is None:
        return ()
    timing, mean_mhz = clocks.timing, float(clocks.compute.mean_mhz[-1])
    blur_ratio = float(clocks.compute.blur_mhz[-1]) / mean_mhz
    over_ms = brief_milliseconds(timing.settling_ns)
    points = f" {timing.distinct_reads:.0f}" if math.isfinite(timing.distinct_reads) else ""
    return (
        (
            blur_ratio >= _NOTED_BLUR_RATIO,
            "clock_blurred",
            f"the clock of GPU {gpu} follows what runs only over {over_ms} ms or more: its sensor "
            "averages or the clock settles so slowly, which can't be told apart; the intervals "
            f"hold both, {percent(blur_ratio)} % of the clock to either side are for that",
        ),
        (
            clocks.regular_reads,
            "regular_reads",
            f"the clock of GPU {gpu} was read at regular intervals, as by nvidia-smi -lms: what "
            f"repeats with them is hidden, and the run's interval counts{points} different points "
            "of the step, not reads; chopperd record reads at random",
        ),
    )


def reference_doubt(
    clocks: RowClocks,
    mine: GpuSamples,
    same_model: Sequence[GpuSamples],
    reference_mhz: float | None,
) -> str:
    """What speaks against a reference clock; empty where nothing does."""
    if reference_mhz is None:
        return ""
    highest_mhz = max(float(np.fmax.reduce(each.sm_clock_mhz, initial=0)) for each in same_model)
    rows = compute_rows(clocks)
    median_mhz = float(np.median(clocks.samples.clock_mhz[rows])) if len(rows) else 0.0
    limits = mine.causes[clocks.kept[rows]] & ~_NO_LIMIT_BITS
    far_above = _FAR_ABOVE_ON_AMD if mine.gpu.vendor is Vendor.AMD else _FAR_ABOVE
    if 2 * np.count_nonzero(limits) > len(rows):
        far_above = _FAR_ABOVE_WHERE_HELD
    if reference_mhz > far_above * highest_mhz:
        return f"is {reference_mhz:.0f} MHz, though no sample is above {highest_mhz:.0f} MHz"
    if reference_mhz < median_mhz:
        return f"is {reference_mhz:.0f} MHz, below the median sample of {median_mhz:.0f} MHz"
    return ""


def compute_rows(clocks: RowClocks) -> Int64s:
    """The samples while compute ran."""
    return np.flatnonzero(clocks.samples.label == RunningClass.COMPUTE)


def above_reference(clocks: RowClocks | None, reference: Reference) -> str:
    """How many samples are above the reference clock; empty where none is."""
    if clocks is None or reference.sm_clock_mhz is None:
        return ""
    of_compute = clocks.samples.clock_mhz[compute_rows(clocks)]
    above = of_compute[of_compute > reference.sm_clock_mhz + _CLOCK_STEP_MHZ]
    if not len(above):
        return ""
    return (
        f"{len(above)} of {plural(len(of_compute), 'sample')} in compute are above the reference "
        f"clock of {reference.sm_clock_mhz:.0f} MHz, up to {above.max():.0f}: no loss there"
    )


def _whole_or_none(value: float) -> int | None:
    return None if math.isnan(value) else round(value)

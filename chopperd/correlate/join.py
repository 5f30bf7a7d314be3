"""One device's timeline joined with its GPU's samples: every figure of its rows, as columns.

Rows are the device's step windows and, last, the whole file. Documents are made of them in
`chopperd.report`; nothing here knows of files, notes or names.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from chopperd.correlate import intervals
from chopperd.correlate.belonging import Belonging, belonging, placed_lag
from chopperd.correlate.clock.lag import LagEstimate
from chopperd.correlate.clock.pieces import ClockPieces
from chopperd.correlate.clock.precision import (
    TimingUncertainty,
    distinct_reads,
    is_regular,
    known_lag_ns,
    timing_of,
)
from chopperd.correlate.clock.sensor_updates import clock_looks
from chopperd.correlate.clock.signal import (
    MAX_GAP_PERIODS,
    LabelledSamples,
    RunningClass,
    achieved_period_ns,
)
from chopperd.correlate.efficiency import EfficiencyTotals, efficiency_totals
from chopperd.correlate.energy import WindowEnergy, window_energy
from chopperd.correlate.groups import (
    FamilyTotals,
    GroupTotals,
    family_totals,
    group_totals,
    put_together,
    record_figures,
)
from chopperd.correlate.losses import (
    CeilingLoss,
    MeanClock,
    Windows,
    ceiling_loss,
    mean_clock,
)
from chopperd.correlate.row_work import foreign_ns, launched_ns, phase_busy_ns
from chopperd.correlate.traffic import Traffic, traffic_of
from chopperd.correlate.waterfall import BusyMasks, busy_masks, idle_masks, lengths_ns
from chopperd.model.arrays import Bools, Float64s, Int8s, Int64s
from chopperd.model.kinds import CopyDirection
from chopperd.model.samples import GpuSamples
from chopperd.model.spec import GpuSpec
from chopperd.model.timeline import DeviceTimeline, HostActivity, Intervals, Phase
from chopperd.model.trace import Collective
from chopperd.units import NS_PER_S

SAMPLE_MARGIN_NS = 2 * NS_PER_S
#: What laying trace and samples on one axis adds, beside the read span: the clock triples' own.
AXIS_UNCERTAINTY_NS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTimes:
    """Lengths of each row in ns, (r,) int64: rows are the windows, then the whole file.

    `phase_ns` has the phases that occur on the device.
    """

    windows: Windows
    busy_ns: Int64s
    compute_ns: Int64s
    comm_ns: Int64s
    copy_ns: Int64s
    overlap_ns: Int64s
    exposed_comm_ns: Int64s
    exposed_copy_ns: Mapping[CopyDirection, Int64s]
    idle_ns: Mapping[str, Int64s]
    launched_ns: Int64s
    foreign_ns: Int64s
    phase_ns: Mapping[Phase, Int64s]


@dataclass(frozen=True, slots=True, kw_only=True)
class BusyClock:
    """Mean clock over all busy time of each row, (r,) float64 MHz, NaN unknown."""

    mean_mhz: Float64s
    half_width_mhz: Float64s


@dataclass(frozen=True, slots=True, kw_only=True)
class RowClocks:
    """Clocks of each row.

    Attributes:
        windows: The rows.
        samples: The samples that were used, on the trace's axis.
        kept: (n,) int64, their indices in the `GpuSamples`: of reads that show one look of the
            sensor, the first.
        compute: Over compute. busy: Over busy time.
        loss: Ceiling loss; None without a reference.
        energy: By the energy counter.
        belonging: Whether the samples are this trace's.
        lag: The sensor's lag as measured.
        subtracted_ns: The lag that was subtracted.
        timing: What the join is uncertain by.
        period_ns: Period of the reads as achieved.
        regular_reads: Whether reads came at regular intervals.
        sensor_period_ns: Time between two looks of the clock sensor; None if not known.
    """

    windows: Windows
    samples: LabelledSamples
    kept: Int64s
    compute: MeanClock
    busy: BusyClock
    loss: CeilingLoss | None
    energy: WindowEnergy
    belonging: Belonging
    lag: LagEstimate
    subtracted_ns: int
    timing: TimingUncertainty
    period_ns: int
    regular_reads: bool
    sensor_period_ns: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedDevice:
    """Everything about one device: its rows, clocks (None without usable samples), its records.

    `families`, `classes`, `operations`, `layers`, `phases` are its records taken together by each.
    """

    timeline: DeviceTimeline
    times: RowTimes
    clocks: RowClocks | None
    families: FamilyTotals
    classes: GroupTotals
    operations: GroupTotals
    layers: GroupTotals
    phases: GroupTotals
    traffic: Traffic
    efficiency: EfficiencyTotals


def join_device(
    timeline: DeviceTimeline,
    activity: tuple[HostActivity, ...],
    gpu_samples: GpuSamples | None,
    reference_mhz: float | None,
    collectives: tuple[Collective, ...] = (),
    spec: GpuSpec | None = None,
) -> JoinedDevice:
    """The device's figures, with clocks where samples cover its time.

    Args:
        timeline: The device.
        activity: Of each host thread.
        gpu_samples: The samples of its GPU on the trace's time axis; None if not known.
        reference_mhz: f_ref; None if unknown.
        collectives: What the timeline's `collective` column indexes.
        spec: What the GPU's vendor states of it; None if unknown.
    """
    masks = busy_masks(timeline)
    windows = _windows(timeline)
    clocks = None
    if gpu_samples is not None and len(timeline):
        clocks = _row_clocks(timeline, masks, windows, gpu_samples, reference_mhz)
    pieces = None if clocks is None else _compute_pieces(clocks, reference_mhz)
    sample_t_ns = np.empty(0, np.int64) if clocks is None else clocks.samples.t_ns
    sample_mhz = np.empty(0) if clocks is None else clocks.samples.clock_mhz
    figures = record_figures(timeline, pieces, reference_mhz, sample_t_ns, sample_mhz)
    numbers = timeline.family, timeline.operation, timeline.layer
    columns, figures = put_together((timeline.kernel_class, timeline.phase, *numbers), figures)
    kernel_class, phase, family, operation, layer = columns
    return JoinedDevice(
        timeline=timeline,
        times=_row_times(timeline, activity, masks, windows),
        clocks=clocks,
        families=family_totals(family, kernel_class, figures),
        classes=group_totals(kernel_class, figures),
        operations=group_totals(operation, figures),
        layers=group_totals(layer, figures),
        phases=group_totals(phase, figures),
        traffic=traffic_of(timeline, masks.comm, collectives),
        efficiency=efficiency_totals(timeline, masks.comm, pieces, spec),
    )


def _windows(timeline: DeviceTimeline) -> Windows:
    """The step windows, then first start to last end of all records."""
    starts = [window.start_ns for window in timeline.windows]
    ends = [window.end_ns for window in timeline.windows]
    first = int(timeline.start_ns.min()) if len(timeline) else 0
    last = int(timeline.end_ns.max()) if len(timeline) else 0
    return Windows(
        start_ns=np.array([*starts, first], np.int64), end_ns=np.array([*ends, last], np.int64)
    )


def _row_times(
    timeline: DeviceTimeline,
    activity: tuple[HostActivity, ...],
    masks: BusyMasks,
    windows: Windows,
) -> RowTimes:
    def inside(mask: Intervals) -> Int64s:
        return lengths_ns(mask, windows.start_ns, windows.end_ns)

    none = np.zeros(1, np.int64)
    idle = idle_masks(timeline, masks.busy, activity)
    return RowTimes(
        windows=windows,
        busy_ns=inside(masks.busy),
        compute_ns=inside(masks.compute),
        comm_ns=inside(masks.comm),
        copy_ns=inside(masks.copy),
        overlap_ns=inside(masks.overlap),
        exposed_comm_ns=inside(masks.exposed_comm),
        exposed_copy_ns={way: inside(mask) for way, mask in masks.exposed_copy_by.items()},
        idle_ns={name: inside(mask) for name, mask in idle.items()},
        launched_ns=np.concatenate((launched_ns(timeline), none)),
        foreign_ns=np.concatenate((foreign_ns(timeline), none)),
        phase_ns=phase_busy_ns(timeline, windows),
    )


def _row_clocks(
    timeline: DeviceTimeline,
    masks: BusyMasks,
    windows: Windows,
    gpu_samples: GpuSamples,
    reference_mhz: float | None,
) -> RowClocks | None:
    kept = _usable(gpu_samples, int(windows.start_ns[-1]), int(windows.end_ns[-1]))
    if len(kept) < 2:
        return None
    seen = clock_looks(
        gpu_samples.t_unix_ns[kept],
        gpu_samples.sm_clock_mhz[kept],
        gpu_samples.gpu.sm_clock_period_ns,
    )
    read_ns = gpu_samples.t_unix_ns[kept]
    kept, taken_ns = kept[seen.row], seen.t_ns
    clock_mhz = gpu_samples.sm_clock_mhz[kept]
    period_ns = _period_ns(taken_ns, windows)
    lag = placed_lag(
        taken_ns,
        clock_mhz,
        masks.compute,
        MAX_GAP_PERIODS * period_ns,
        instant=gpu_samples.gpu.sm_clock_average_ns == 0,
    )
    belongs = belonging(lag, gpu_samples, masks.compute, masks.busy, timeline.unrecorded)
    known_ns = known_lag_ns(gpu_samples.gpu) if belongs.apart_ns is None else None
    subtracted_ns = lag.to_subtract_ns if known_ns is None else known_ns
    t_ns = taken_ns - subtracted_ns
    samples = LabelledSamples(
        t_ns=t_ns, clock_mhz=clock_mhz, label=_labels(masks, t_ns), period_ns=period_ns
    )
    span_ns = float(np.median(gpu_samples.read_span_ns[kept]))
    distinct = np.inf
    if is_regular(taken_ns):
        distinct = distinct_reads(samples, windows.start_ns[:-1], windows.end_ns[:-1])
    drift = timeline.drift
    apart_ns = drift.apart_ns if drift is not None and drift.misleads else 0
    join_ns = span_ns / 2 + AXIS_UNCERTAINTY_NS + apart_ns
    timing = timing_of(gpu_samples.gpu, lag, known_ns, join_ns, clock_mhz, distinct)
    compute = mean_clock(samples, RunningClass.COMPUTE, masks.compute, windows, timing)
    loss = None
    if reference_mhz is not None:
        limited_ns = {cause: counter[kept] for cause, counter in gpu_samples.limited_ns.items()}
        limit_mhz = gpu_samples.gpu.sm_clock_limit_mhz
        causes = gpu_samples.causes[kept]
        loss = ceiling_loss(compute, windows, reference_mhz, limit_mhz, causes, limited_ns)
    return RowClocks(
        windows=windows,
        samples=samples,
        kept=kept,
        compute=compute,
        busy=_busy_clock(samples, masks, windows, timing, compute),
        loss=loss,
        energy=_energy(gpu_samples, windows),
        belonging=belongs,
        lag=lag,
        subtracted_ns=subtracted_ns,
        timing=timing,
        period_ns=_period_ns(read_ns, windows),
        regular_reads=is_regular(read_ns),
        sensor_period_ns=seen.period_ns,
    )


def _energy(gpu_samples: GpuSamples, windows: Windows) -> WindowEnergy:
    """Energy of each row; the whole file is a sum over steps."""
    return window_energy(
        gpu_samples.t_unix_ns,
        gpu_samples.energy_j,
        windows.start_ns,
        windows.end_ns,
        is_sum=np.arange(len(windows)) == len(windows) - 1,
        period_ns=gpu_samples.gpu.energy_period_ns,
    )


def _usable(gpu_samples: GpuSamples, start_ns: int, end_ns: int) -> Int64s:
    """Indices of the samples with a clock around the traced time; none if none lies inside."""
    t_ns = gpu_samples.t_unix_ns
    known = np.isfinite(gpu_samples.sm_clock_mhz)
    if not np.any(known & (t_ns >= start_ns) & (t_ns < end_ns)):
        return np.empty(0, np.int64)
    near = (t_ns >= start_ns - SAMPLE_MARGIN_NS) & (t_ns < end_ns + SAMPLE_MARGIN_NS)
    return np.flatnonzero(known & near)


def _period_ns(t_ns: Int64s, windows: Windows) -> int:
    """The period as achieved in the traced time; around it if only one sample lies inside."""
    inside = (t_ns >= windows.start_ns[-1]) & (t_ns < windows.end_ns[-1])
    return achieved_period_ns(t_ns[inside]) or achieved_period_ns(t_ns)


def _labels(masks: BusyMasks, t_ns: Int64s) -> Int8s:
    """What ran at each instant, by the waterfall's precedence."""
    label = np.full(len(t_ns), RunningClass.IDLE, np.int8)
    for running, mask in (
        (RunningClass.COPY, masks.copy),
        (RunningClass.COMM, masks.comm),
        (RunningClass.COMPUTE, masks.compute),
    ):
        label[intervals.contains(mask, t_ns)] = running
    return label


def _busy_clock(
    samples: LabelledSamples,
    masks: BusyMasks,
    windows: Windows,
    timing: TimingUncertainty,
    compute: MeanClock,
) -> BusyClock:
    """Each class by its own clock, weighted by its covered time."""
    parts = [compute]
    for running, mask in (
        (RunningClass.COMM, masks.exposed_comm),
        (RunningClass.COPY, masks.exposed_copy),
    ):
        if len(mask):
            parts.append(mean_clock(samples, running, mask, windows, timing))
    covered = sum((part.covered_ns for part in parts), np.zeros(len(windows)))
    cycles = sum((_weighted(part, part.mean_mhz) for part in parts), np.zeros(len(windows)))
    square = sum(
        (_weighted(part, part.half_width_mhz) ** 2 for part in parts), np.zeros(len(windows))
    )
    unknown = np.full(len(windows), np.nan)
    known: Bools = covered > 0
    return BusyClock(
        mean_mhz=np.divide(cycles, covered, out=unknown.copy(), where=known),
        half_width_mhz=np.divide(np.sqrt(square), covered, out=unknown, where=known),
    )


def _weighted(part: MeanClock, value: Float64s) -> Float64s:
    return np.where(part.covered_ns > 0, value * part.covered_ns, 0.0)


def _compute_pieces(clocks: RowClocks, reference_mhz: float | None) -> ClockPieces:
    """The compute clock's pieces, cut at the reference."""
    levels = () if reference_mhz is None else (reference_mhz,)
    return ClockPieces.of(clocks.compute.clock, levels)

"""Join one device's timeline with its GPU's samples: every figure of its rows, as columns.

Rows are the device's step windows and, last, the whole file.
"""

from collections.abc import Mapping
from functools import partial
from typing import Final

import numpy as np
from msgspec import Struct

from chopperd.correlate import intervals
from chopperd.correlate.belonging import Belonging, belonging, placed_lag
from chopperd.correlate.clock import precision
from chopperd.correlate.clock.integrals import ClockPieces
from chopperd.correlate.clock.lag import LagEstimate
from chopperd.correlate.clock.sensor_updates import clock_updates
from chopperd.correlate.clock.signal import (
    MAX_GAP_PERIODS,
    LabelledSamples,
    RunningClass,
    achieved_period_ns,
)
from chopperd.correlate.contention import exposed_by_class_ns
from chopperd.correlate.efficiency import EfficiencyTotals, MatrixKernels, type_times_ns
from chopperd.correlate.groups import (
    GroupSums,
    GroupTotals,
    add_alike,
    group_totals,
    places_in,
    record_figures,
    step_groups,
)
from chopperd.correlate.holding import HeldTotals, held_totals
from chopperd.correlate.intervals import lengths_ns
from chopperd.correlate.losses import (
    CeilingLoss,
    MeanClock,
    WindowEnergy,
    ceiling_loss,
    mean_clock,
    window_energy,
)
from chopperd.correlate.traffic import ChopperTotals, Traffic, traffic_of
from chopperd.correlate.waterfall import (
    BusyMasks,
    IdleSplit,
    RowSums,
    Windows,
    busy_masks,
    foreign_ns,
    idle_split,
    launched_ns,
    phase_busy_ns,
    row_of_steps,
    step_windows,
)
from chopperd.model.arrays import Float64s, Int8s, Int64s
from chopperd.model.devices import GpuSpec
from chopperd.model.kinds import CopyDirection
from chopperd.model.samples import GpuSamples
from chopperd.model.timeline import DeviceTimeline, HostActivity, HostStacks, Intervals, Phase
from chopperd.model.trace import Collective
from chopperd.units import NS_PER_S

#: Samples so far around the traced time are used.
SAMPLE_MARGIN_NS: Final = 2 * NS_PER_S
#: Uncertainty of the common time axis besides the read span: that of the clock triples.
AXIS_UNCERTAINTY_NS: Final = 2_000


class RowTimes(Struct, frozen=True, kw_only=True):
    """Lengths of each row in ns, (r,) int64."""

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
    phase_ns: Mapping[Phase, Int64s]  # of phases that occur on the device


class RowClocks(Struct, frozen=True, kw_only=True):
    """Clocks of each row, and how the samples were read and laid on the trace's time axis."""

    windows: Windows  # the rows
    samples: LabelledSamples  # those that were used, on the trace's axis
    #: (n,) int64, their rows in the `GpuSamples`: of reads that show one update, the first.
    sample_rows: Int64s
    compute: MeanClock
    #: Mean clock over all busy time, (r,) float64, and half of its 95 % interval; NaN unknown.
    busy_mhz: Float64s
    busy_half_mhz: Float64s
    loss: CeilingLoss | None  # None without a reference
    energy: WindowEnergy
    belonging: Belonging  # whether the samples are this trace's
    lag: LagEstimate  # the sensor's lag as measured
    subtracted_ns: int  # the lag that was subtracted
    timing: precision.TimingUncertainty
    period_ns: int  # median period of the reads
    regular_reads: bool  # whether reads came at regular intervals
    sensor_period_ns: int | None  # time between two updates of the clock sensor; None unknown


class GroupWork(Struct, frozen=True, kw_only=True):
    """What Chopper counts, and how near the peak it comes, of each group, (g,) as in its totals.

    The group of several small ones has none of it.
    """

    chopper: ChopperTotals
    efficiency: EfficiencyTotals


class JoinedDevice(Struct, frozen=True, kw_only=True):
    """Everything about one device: its rows, its clocks and its records grouped by a column."""

    timeline: DeviceTimeline
    times: RowTimes
    exposed_comm: Intervals  # communication and no compute
    clocks: RowClocks | None  # None without usable samples
    families: GroupTotals
    classes: GroupTotals
    class_exposed_ns: Int64s  # (classes,) as of `exposed_by_class_ns`
    operations: GroupTotals
    layers: GroupTotals
    annotations: GroupTotals
    phases: GroupTotals
    traffic: Traffic
    held: HeldTotals | None  # None where the stacks of the host were not read
    efficiency: EfficiencyTotals
    #: By `families`, `operations`, `layers`, `annotations` and `phases`, of each step's launches.
    steps: Mapping[str, tuple[GroupTotals, ...]]
    #: By `family`, `operation`, `layer` and `annotation`.
    work: Mapping[str, GroupWork]
    #: Matrix kernels' time by `DType`, (r, types) int64, and compute kernels', (r,) int64, ns.
    type_ns: Int64s
    kernel_ns: Int64s


def join_device(
    timeline: DeviceTimeline,
    activity: tuple[HostActivity, ...],
    gpu_samples: GpuSamples | None,
    reference_mhz: float | None,
    collectives: tuple[Collective, ...] = (),
    spec: GpuSpec | None = None,
    stacks: HostStacks | None = None,
) -> JoinedDevice:
    """Compute a device's figures, with clocks where samples cover its time.

    `gpu_samples`: the samples of its GPU on the trace's time axis; None if not known. `spec`: what
    the GPU's vendor states of it; None if unknown. `stacks`: what was open on the threads that
    launch; None without.
    """
    masks = busy_masks(timeline)
    windows = _windows(timeline)
    idle = idle_split(timeline, masks.busy, activity)
    clocks, pieces = None, None
    sample_t_ns, sample_mhz = np.empty(0, np.int64), np.empty(0)
    if gpu_samples is not None and len(timeline):
        clocks = _row_clocks(timeline, masks, windows, gpu_samples, reference_mhz)
    if clocks is not None:
        levels = () if reference_mhz is None else (reference_mhz,)
        pieces = ClockPieces.of(clocks.compute.clock, levels)
        sample_t_ns, sample_mhz = clocks.samples.t_ns, clocks.samples.clock_mhz
    figures = record_figures(timeline, pieces, reference_mhz, sample_t_ns, sample_mhz)
    numbers = timeline.family, timeline.operation, timeline.layer, timeline.annotation
    step = row_of_steps(timeline)[timeline.step].astype(np.int32)
    columns, figures = add_alike((step, timeline.kernel_class, timeline.phase, *numbers), figures)
    row, kernel_class, phase, family, operation, layer, annotation = columns
    of_steps = partial(step_groups, row, len(timeline.windows))
    groups = {
        "family": group_totals(family, figures, kernel_class),
        "operation": group_totals(operation, figures),
        "layer": group_totals(layer, figures),
        "annotation": group_totals(annotation, figures),
    }
    traffic = traffic_of(timeline, masks.comm, collectives)
    matrix = MatrixKernels.of(timeline, masks.comm, pieces, spec)
    type_ns, kernel_ns = type_times_ns(timeline)
    return JoinedDevice(
        timeline=timeline,
        times=_row_times(timeline, idle, masks, windows),
        exposed_comm=masks.exposed_comm,
        clocks=clocks,
        families=groups["family"],
        classes=group_totals(kernel_class, figures),
        class_exposed_ns=exposed_by_class_ns(timeline, masks),
        operations=groups["operation"],
        layers=groups["layer"],
        annotations=groups["annotation"],
        phases=group_totals(phase, figures),
        steps={
            "families": of_steps(family, figures, kernel_class),
            "operations": of_steps(operation, figures),
            "layers": of_steps(layer, figures),
            "annotations": of_steps(annotation, figures),
            "phases": of_steps(phase, figures),
        },
        traffic=traffic,
        held=None
        if stacks is None
        else held_totals(timeline, stacks, activity, masks, idle, windows),
        efficiency=matrix.totals(partial(RowSums, timeline)),
        work={name: _work(timeline, name, each, traffic, matrix) for name, each in groups.items()},
        type_ns=type_ns,
        kernel_ns=kernel_ns,
    )


def _work(
    timeline: DeviceTimeline,
    name: str,
    totals: GroupTotals,
    traffic: Traffic,
    matrix: MatrixKernels,
) -> GroupWork:
    """Return the work of each group of the column `name`."""
    places = places_in(totals, getattr(timeline, name))
    sums_of = partial(GroupSums, places, len(totals))
    return GroupWork(chopper=traffic.kernels.totals(sums_of), efficiency=matrix.totals(sums_of))


def _windows(timeline: DeviceTimeline) -> Windows:
    """Return the step windows and, last, a window from first start to last end of all records."""
    steps = step_windows(timeline)
    first = int(timeline.start_ns.min()) if len(timeline) else 0
    last = int(timeline.end_ns.max()) if len(timeline) else 0
    return Windows(start_ns=np.append(steps.start_ns, first), end_ns=np.append(steps.end_ns, last))


def _row_times(
    timeline: DeviceTimeline, idle: IdleSplit, masks: BusyMasks, windows: Windows
) -> RowTimes:
    def inside(mask: Intervals) -> Int64s:
        return lengths_ns(mask, windows.start_ns, windows.end_ns)

    none = np.zeros(1, np.int64)
    return RowTimes(
        windows=windows,
        busy_ns=inside(masks.busy),
        compute_ns=inside(masks.compute),
        comm_ns=inside(masks.comm),
        copy_ns=inside(masks.copy),
        overlap_ns=inside(masks.overlap),
        exposed_comm_ns=inside(masks.exposed_comm),
        exposed_copy_ns={way: inside(mask) for way, mask in masks.exposed_copy_by.items()},
        idle_ns={name: inside(mask) for name, mask in idle.rows.items()},
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
    gpu = gpu_samples.gpu
    rows = _usable(gpu_samples, int(windows.start_ns[-1]), int(windows.end_ns[-1]))
    if len(rows) < 2:
        return None
    read_ns = gpu_samples.t_unix_ns[rows]
    updates = clock_updates(read_ns, gpu_samples.sm_clock_mhz[rows], gpu.sm_clock_period_ns)
    rows, taken_ns = rows[updates.row], updates.t_ns
    clock_mhz = gpu_samples.sm_clock_mhz[rows]
    period_ns = _period_ns(taken_ns, windows)
    max_gap_ns, instant = MAX_GAP_PERIODS * period_ns, gpu.sm_clock_average_ns == 0
    lag = placed_lag(taken_ns, clock_mhz, masks.compute, max_gap_ns, instant=instant)
    belongs = belonging(lag, gpu_samples, masks.compute, masks.busy, timeline.unrecorded)
    known_ns = precision.known_lag_ns(gpu) if belongs.apart_ns is None else None
    subtracted_ns = lag.to_subtract_ns if known_ns is None else known_ns
    t_ns = taken_ns - subtracted_ns
    samples = LabelledSamples(
        t_ns=t_ns, clock_mhz=clock_mhz, label=_labels(masks, t_ns), period_ns=period_ns
    )
    span_ns = float(np.median(gpu_samples.read_span_ns[rows]))
    distinct = np.inf
    if precision.is_regular(taken_ns):
        distinct = precision.distinct_reads(samples, windows.start_ns[:-1], windows.end_ns[:-1])
    drift = timeline.drift
    apart_ns = drift.apart_ns if drift is not None and drift.misleads else 0
    join_ns = span_ns / 2 + AXIS_UNCERTAINTY_NS + apart_ns
    timing = precision.timing_of(gpu, lag, known_ns, join_ns, clock_mhz, distinct)
    compute = mean_clock(samples, RunningClass.COMPUTE, masks.compute, windows, timing)
    loss = None
    if reference_mhz is not None:
        limited_ns = {cause: counter[rows] for cause, counter in gpu_samples.limited_ns.items()}
        limit_mhz, causes = gpu.sm_clock_limit_mhz, gpu_samples.causes[rows]
        loss = ceiling_loss(compute, windows, reference_mhz, limit_mhz, causes, limited_ns)
    busy_mhz, busy_half_mhz = _busy_clock(samples, masks, windows, timing, compute)
    return RowClocks(
        windows=windows,
        samples=samples,
        sample_rows=rows,
        compute=compute,
        busy_mhz=busy_mhz,
        busy_half_mhz=busy_half_mhz,
        loss=loss,
        energy=_energy(gpu_samples, windows),
        belonging=belongs,
        lag=lag,
        subtracted_ns=subtracted_ns,
        timing=timing,
        period_ns=_period_ns(read_ns, windows),
        regular_reads=precision.is_regular(read_ns),
        sensor_period_ns=updates.period_ns,
    )


def _energy(gpu_samples: GpuSamples, windows: Windows) -> WindowEnergy:
    """Compute the energy of each row; the last, the whole file, counts as a sum over steps."""
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
    """Return the median spacing of reads in the traced time, ns; of all with fewer than 2 in it."""
    inside = (t_ns >= windows.start_ns[-1]) & (t_ns < windows.end_ns[-1])
    return achieved_period_ns(t_ns[inside]) or achieved_period_ns(t_ns)


def _labels(masks: BusyMasks, t_ns: Int64s) -> Int8s:
    """Return the `RunningClass` at each instant, (n,) int8, by the waterfall's precedence."""
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
    timing: precision.TimingUncertainty,
    compute: MeanClock,
) -> tuple[Float64s, Float64s]:
    """Compute each row's mean clock over busy time and half its interval, MHz, (r,); NaN unknown.

    Compute, exposed communication and exposed copies are weighted by their covered time.
    """
    parts = [compute]
    for running, mask in (
        (RunningClass.COMM, masks.exposed_comm),
        (RunningClass.COPY, masks.exposed_copy),
    ):
        if len(mask):
            parts.append(mean_clock(samples, running, mask, windows, timing))
    covered, cycles, square = np.zeros((3, len(windows)))
    for part in parts:
        known = part.covered_ns > 0
        covered += part.covered_ns
        cycles += np.where(known, part.mean_mhz * part.covered_ns, 0.0)
        square += np.where(known, part.half_width_mhz * part.covered_ns, 0.0) ** 2
    unknown = np.full(len(windows), np.nan)
    return (
        np.divide(cycles, covered, out=unknown.copy(), where=covered > 0),
        np.divide(np.sqrt(square), covered, out=unknown, where=covered > 0),
    )

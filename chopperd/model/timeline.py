"""A trace laid out for the join: steps, and for each device what ran when and who launched it."""

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final

from chopperd.model.arrays import Float64s, Int8s, Int32s, Int64s
from chopperd.model.trace import Collective
from chopperd.units import NS_PER_US

#: Clocks that drift apart by less than this over a whole file mislead nobody.
HARMLESS_DRIFT_NS: Final = 50 * NS_PER_US

#: Why a step of more markers than usual is partial: it has the work of several.
ACCUMULATION_IRREGULAR: Final = "accumulation_irregular"


class StepSource(StrEnum):
    """What marked the steps' boundaries, best first."""

    PROFILER_STEP = "profiler_step"
    OPTIMIZER = "optimizer"
    JOB_MARKS = "job_marks"
    GPU_ROWS = "gpu_rows"
    NONE = "none"


class Phase(IntEnum):
    """The part of a step that launched a record; the value is its code in an int8 column."""

    UNKNOWN = -1
    FORWARD = 0
    BACKWARD = 1
    OPTIMIZER = 2

    @property
    def label(self) -> str:
        """The name used outside."""
        return self.name.lower()


#: What a phase's code indexes, from 0 on.
PHASE_LABELS: Final = tuple(phase.label for phase in Phase if phase >= 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """One CPU marker: a step, or one micro-batch of a step under gradient accumulation."""

    step: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One training step by its markers on the host.

    Attributes:
        step: Its number: of the (last) marker, or counted from 0 where only optimizers mark steps.
        start_ns, end_ns: From the first marker's start to the last marker's end.
        markers: The markers it is made of; more than one under gradient accumulation.
        partial_reasons: Why it is not complete ("launches_without_record", "starts_before_trace",
            "trace_ends", ...); empty when it is.
        process: The process whose step it is; None where only one process has steps.
        cycle: Which of the profiler's cycles in the file, from 0: between two nothing was recorded.
    """

    step: int
    start_ns: int
    end_ns: int
    markers: tuple[Marker, ...]
    partial_reasons: tuple[str, ...] = ()
    process: int | str | None = None
    cycle: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """Disjoint half-open intervals, sorted: (n,) int64 starts and ends with start < end."""

    start_ns: Int64s
    end_ns: Int64s

    def __len__(self) -> int:
        """The number of intervals."""
        return len(self.start_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceWindow:
    """The stretch of device time that belongs to one step.

    Attributes:
        step: Index into `Timeline.steps`.
        start_ns, end_ns: Half-open; consecutive windows of a device and a profiler cycle abut.
        tail: Whether it is the last of its cycle, which ends at its last record.
    """

    step: int
    start_ns: int
    end_ns: int
    tail: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HostActivity:
    """When one host thread was in a call that explains an idle device.

    Attributes:
        allocator: In device memory allocation or release (cudaMalloc, hipFree, cuMemMap, ...).
        data: Waiting for data (DataLoader and the configured patterns).
        sync: In a synchronise call.
    """

    allocator: Intervals
    data: Intervals
    sync: Intervals


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockDrift:
    """How launches and device records of a trace drift apart.

    Attributes:
        ratio: By how much the device's clock runs faster than the host's.
        low_ratio, high_ratio: 99 % interval.
        span_ns: Time over which it was seen.
        launch_count: Launches onto an idle device.
    """

    ratio: float
    low_ratio: float
    high_ratio: float
    span_ns: int
    launch_count: int

    @property
    def apart_ns(self) -> int:
        """How far apart it moves both over the span."""
        return round(abs(self.ratio) * self.span_ns)

    @property
    def misleads(self) -> bool:
        """Whether there is a drift for certain, and one that matters."""
        return self.low_ratio * self.high_ratio > 0 and self.apart_ns > HARMLESS_DRIFT_NS


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTimeline:
    """One device of one trace: its records sorted by (start_ns, end_ns), one row each.

    Attributes:
        device: The trace's device number.
        start_ns, end_ns: (n,) int64.
        stream: (n,) int64.
        kernel_class: (n,) int8, `KernelClass`.
        copy_direction: (n,) int8, `CopyDirection`.
        family: (n,) int32, index into `Timeline.families`.
        step: (n,) int32, index into `Timeline.steps` of the step that launched it; -1 none.
        call_start_ns, call_end_ns: (n,) int64, the launching runtime call; meaningless if unlinked.
        call_thread: (n,) int32, index into `Timeline.host_activity`; -1 when unlinked.
        copied_bytes: (n,) int64, of a copy or fill; -1 unknown.
        collective: (n,) int32, index into `Timeline.collectives`; -1 none or unknown.
        operation: (n,) int32, index into `Timeline.operations`: the innermost operator around the
            launch, of collectives the annotation that says which; -1 unknown.
        layer: (n,) int32, index into `Timeline.layers`; -1 unknown.
        phase: (n,) int8, `Phase`.
        flops: (n,) float64, floating point operations of the operator whose work the record is, put
            on one record an operator; NaN for the others and where unknown.
        matrix_dtype: (n,) int8, `DType` of the inputs on all gemm and attention kernels of an
            operator whose work is known; `NONE` on others.
        main_stream: Stream with the most compute time in the file.
        windows: Steps with work on this device, in order.
        unrecorded: Time between neighbours in launch order of which at least one launch has no
            record, where idleness can't be told from work.
        early_count: Records that start before the call of their correlation id.
        drift: How its clock and the host's drift apart, where that was looked for and can be told.
    """

    device: int
    start_ns: Int64s
    end_ns: Int64s
    stream: Int64s
    kernel_class: Int8s
    copy_direction: Int8s
    family: Int32s
    step: Int32s
    call_start_ns: Int64s
    call_end_ns: Int64s
    call_thread: Int32s
    copied_bytes: Int64s
    collective: Int32s
    operation: Int32s
    layer: Int32s
    phase: Int8s
    flops: Float64s
    matrix_dtype: Int8s
    main_stream: int
    windows: tuple[DeviceWindow, ...]
    unrecorded: Intervals
    early_count: int = 0
    drift: ClockDrift | None = None

    def __len__(self) -> int:
        """The number of records."""
        return len(self.start_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostWork:
    """What the operators of a trace did on the host, one row each, in order of their starts.

    Attributes:
        operation: (n,) int32, index into `operations`.
        layer: (n,) int32, index into `layers`; -1 unknown.
        phase: (n,) int8, `Phase`.
        own_ns: (n,) int64, for how long it ran and no operator in it did. Over all operators this
            adds up to the time in which threads were in one.
        operations, layers: Names.
    """

    operation: Int32s
    layer: Int32s
    phase: Int8s
    own_ns: Int64s
    operations: tuple[str, ...]
    layers: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """Which data-parallel framework a trace shows, and by what."""

    name: str
    evidence: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Everything of one trace that the join needs.

    Attributes:
        steps: In time order.
        step_source: What marked them.
        accumulation: Markers per step (most common); None if unknown.
        devices: By device number.
        families: Names that `family` columns index: kernel names, normalised.
        operations: Names that `operation` columns index.
        layers: Names that `layer` columns index.
        collectives: What `collective` columns index.
        host_activity: One entry a thread, indexed as `Trace.threads`.
        unlinked_records: Device records with no launch in the file.
        launch_count, recorded_launch_count: Kernel launches, and those with a record.
        framework: By evidence.
        graph_records: Device records of unknown layer that were launched together with others.
        host: What operators did on the host, where no device record tells of any work; else None.
    """

    steps: tuple[Step, ...]
    step_source: StepSource
    accumulation: int | None
    devices: tuple[DeviceTimeline, ...]
    families: tuple[str, ...]
    operations: tuple[str, ...]
    layers: tuple[str, ...]
    collectives: tuple[Collective, ...]
    host_activity: tuple[HostActivity, ...]
    unlinked_records: int
    launch_count: int
    recorded_launch_count: int
    framework: Framework
    graph_records: int = 0
    host: HostWork | None = None

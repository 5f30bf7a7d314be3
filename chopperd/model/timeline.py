"""A trace laid out for the join: steps, and for each device what ran when and who launched it."""

from enum import IntEnum, StrEnum
from typing import Final, NamedTuple

from msgspec import Struct

from chopperd.model.answers import HolderKind
from chopperd.model.arrays import Bools, Float64s, Int8s, Int32s, Int64s, Timed
from chopperd.model.kinds import Labelled
from chopperd.model.trace import Collective
from chopperd.units import NS_PER_US

#: Drift of host and device clocks over a whole file, in ns, up to which it does not matter.
HARMLESS_DRIFT_NS: Final = 50 * NS_PER_US

#: Why a step of more markers than usual is partial: it has the work of several.
ACCUMULATION_IRREGULAR: Final = "accumulation_irregular"


class StepSource(StrEnum):
    """Source of the steps' boundaries, best first."""

    PROFILER_STEP = "profiler_step"
    OPTIMIZER = "optimizer"
    JOB_MARKS = "job_marks"
    STEP_MARKER = "step_marker"
    GPU_ROWS = "gpu_rows"
    NONE = "none"


class Phase(Labelled):
    """The part of a step that launched a record; the value is its code in an int8 column."""

    UNKNOWN = -1
    FORWARD = 0
    BACKWARD = 1
    OPTIMIZER = 2


#: Labels of the known phases, indexed by a phase's code.
PHASE_LABELS: Final = tuple(phase.label for phase in Phase if phase >= 0)


class Marker(Struct, frozen=True, kw_only=True):
    """One CPU marker: a step, or one micro-batch of a step under gradient accumulation."""

    step: int
    start_ns: int
    end_ns: int


class Step(Struct, frozen=True, kw_only=True):
    """One training step by its markers on the host."""

    # Its number: of the (last) marker, or counted from 0 where only optimizers mark steps
    step: int
    # From the first marker's start to the last marker's end
    start_ns: int
    end_ns: int
    # The markers it is made of; more than one under gradient accumulation
    markers: tuple[Marker, ...]
    # Why it is not complete ("launches_without_record", "starts_before_trace", "trace_ends", ...);
    # empty when it is
    partial_reasons: tuple[str, ...] = ()
    # The process whose step it is; None where only one process has steps
    process: int | str | None = None
    # Which of the profiler's cycles in the file, from 0: between two nothing was recorded
    cycle: int = 0
    # The annotation that marks it, where steps may differ by that: of a serving engine, or of the
    # job's own; else None
    name: str | None = None


class Intervals(Timed, frozen=True, kw_only=True):
    """Disjoint half-open intervals, sorted: (n,) int64 starts and ends with start < end."""


class DeviceWindow(Struct, frozen=True, kw_only=True):
    """The stretch of device time that belongs to one step."""

    step: int  # index into `Timeline.steps`
    # Half-open; consecutive windows of a device and a profiler cycle abut
    start_ns: int
    end_ns: int
    tail: bool  # whether it is the last of its cycle, which ends at its last record


class HostActivity(Struct, frozen=True, kw_only=True):
    """When one host thread was in a call that explains an idle device."""

    # In device memory allocation or release (cudaMalloc, hipFree, cuMemMap, ...)
    allocator: Intervals
    data: Intervals  # waiting for data (DataLoader and the configured patterns)
    sync: Intervals  # in a synchronise call


class ClockDrift(Struct, frozen=True, kw_only=True):
    """Measured drift between the host's clock (launches) and the device's (records) in a trace."""

    ratio: float  # by how much the device's clock runs faster than the host's
    # 99 % interval
    low_ratio: float
    high_ratio: float
    span_ns: int  # time over which it was seen
    launch_count: int  # launches onto an idle device

    @property
    def apart_ns(self) -> int:
        """By how many ns the two clocks drift apart over `span_ns`."""
        return round(abs(self.ratio) * self.span_ns)

    @property
    def misleads(self) -> bool:
        """Whether the drift is certain (its interval excludes 0) and above `HARMLESS_DRIFT_NS`."""
        return self.low_ratio * self.high_ratio > 0 and self.apart_ns > HARMLESS_DRIFT_NS


class Holder(NamedTuple):
    """What the host did while a device was idle or only communicated, as in `answers.Held`."""

    name: str
    kind: HolderKind
    inner: str | None = None
    whole: str | None = None
    region: str | None = None


class NoHolder(IntEnum):
    """Holders that are no thread's doing; the value is their index in `HostStacks.holders`."""

    LATENCY = 0
    DEVICE_WAITS = 1
    THE_COLLECTIVE = 2
    NO_LAUNCH = 3
    NO_RECORD = 4
    NO_SPANS = 5

    @property
    def label(self) -> str:
        """Return the published name."""
        return NO_HOLDERS[self]


#: The names of `NoHolder`, by its values.
NO_HOLDERS: Final = (
    *("(launch latency)", "(device waits)", "(the collective)", "(no launch)"),
    *("(launch without record)", "(no host spans)"),
)


class HostStacks(Struct, frozen=True, kw_only=True):
    """What is open on each thread that launches, and who launched when.

    Between two edges of a thread nothing begins or ends there. The edges of all threads are one
    table, by thread and time; each thread has one before all time.
    """

    first: Int64s  # (threads + 1,), index of each thread's first edge
    at_ns: Int64s  # (e,), the edges
    # (e,), index into `holders`: whoever would hold a device from the edge to the next one, if what
    # is read is this stack
    holder: Int32s
    is_open: Bools  # (e,), whether anything is open there
    process: Int32s  # (threads,), a number of the thread's process
    first_launch: Int64s  # (processes + 1,), index of each process's first launch
    launch_ns: Int64s  # (l,), when each launch began, by process and time
    launch_thread: Int32s  # (l,), on which thread
    holders: tuple[Holder, ...]  # what `holder` indexes; the first are those of `NoHolder`


class DeviceTimeline(Timed, frozen=True, kw_only=True):
    """One device of one trace: its records sorted by (start_ns, end_ns), one row each."""

    device: int  # the trace's device number
    stream: Int64s
    kernel_class: Int8s  # `KernelClass`
    copy_direction: Int8s  # `CopyDirection`
    family: Int32s  # index into `Timeline.families`
    step: Int32s  # index into `Timeline.steps` of the step that launched it; -1 none
    # the launching runtime call; meaningless if unlinked
    call_start_ns: Int64s
    call_end_ns: Int64s
    call_thread: Int32s  # index into `Timeline.host_activity`; -1 when unlinked
    copied_bytes: Int64s  # of a copy or fill; -1 unknown
    collective: Int32s  # index into `Timeline.collectives`; -1 none or unknown
    seq: Int64s  # torch's number of the collective in its process group; -1 unknown
    comms_id: Int64s  # torch's hash of the collective's group, number and ranks; -1 unknown
    # index into `Timeline.operations`: the innermost operator around the launch, of
    # collectives the annotation that says which; -1 unknown
    operation: Int32s
    layer: Int32s  # index into `Timeline.layers`; -1 unknown
    annotation: Int32s  # index into `Timeline.annotations`; -1 unknown
    phase: Int8s  # `Phase`
    # floating point operations of the operator whose work the record is, put on one
    # record an operator; NaN for the others and where unknown
    flops: Float64s
    # `DType` of the inputs on all gemm and attention kernels of an operator whose work
    # is known; `NONE` on others
    matrix_dtype: Int8s
    windows: tuple[DeviceWindow, ...]  # steps with work on this device, in order
    # Time between neighbours in launch order of which at least one launch has no record: it may be
    # idle or busy
    unrecorded: Intervals
    early_count: int = 0  # records that start before the call of their correlation id
    # How its clock and the host's drift apart, where that could be measured
    drift: ClockDrift | None = None


class HostWork(Struct, frozen=True, kw_only=True):
    """What the operators of a trace did on the host, one row each, in order of their starts."""

    operation: Int32s  # index into `operations`
    layer: Int32s  # index into `layers`; -1 unknown
    annotation: Int32s  # index into `annotations`; -1 unknown
    phase: Int8s  # `Phase`
    # for how long it ran and no operator in it did. Over all operators this adds up to
    # the time in which threads were in one.
    own_ns: Int64s
    operations: tuple[str, ...]  # names
    layers: tuple[str, ...]  # names
    annotations: tuple[str, ...]  # names


class Framework(Struct, frozen=True, kw_only=True):
    """The data-parallel framework that a trace shows, and the names that are evidence of it."""

    name: str
    evidence: tuple[str, ...]


class Timeline(Struct, frozen=True, kw_only=True):
    """Everything of one trace that the join needs."""

    steps: tuple[Step, ...]  # in time order
    step_source: StepSource  # what marked them
    accumulation: int | None  # markers per step (most common); None if unknown
    devices: tuple[DeviceTimeline, ...]  # by device number
    families: tuple[str, ...]  # names that `family` columns index: kernel names, normalised
    operations: tuple[str, ...]  # names that `operation` columns index
    layers: tuple[str, ...]  # names that `layer` columns index
    annotations: tuple[str, ...]  # names that `annotation` columns index
    collectives: tuple[Collective, ...]  # what `collective` columns index
    host_activity: tuple[HostActivity, ...]  # one entry a thread, indexed as `Trace.threads`
    unlinked_records: int  # device records with no launch in the file
    # Kernel launches, and those with a record
    launch_count: int
    recorded_launch_count: int
    framework: Framework  # by evidence
    # Device records of unknown layer that were launched together with others
    graph_records: int = 0
    # The job's own marker of steps, if nothing in the trace has it; else None
    unmatched_marker: str | None = None
    # What operators did on the host, where there are no device records; else None
    host: HostWork | None = None
    stacks: HostStacks | None = None  # None where no device needs them

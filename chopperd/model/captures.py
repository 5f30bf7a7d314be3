"""What the agent stores: traces, the captures that they form, and drops of the busy clock.

A capture is the traces of one run that overlap in time: one profiled stretch, of several ranks. Its
report is made over all of them.
"""

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct, field

from chopperd.model.kinds import Cause
from chopperd.model.report_rows import Family, Part, Row
from chopperd.model.run import RunIdentity


class TraceState(StrEnum):
    """The state of a trace.

    `QUEUED`: waits for the worker. `SPOOLED`: stored for later, as analysis is off here.
    `REJECTED`: no usable Kineto trace. `FAILED`: the analysis itself failed or took too long.
    `KILLED`: the worker died over it.
    """

    QUEUED = "queued"
    SPOOLED = "spooled"
    ANALYSED = "analysed"
    REJECTED = "rejected"
    FAILED = "failed"
    KILLED = "killed"


class TraceEntry(Struct, frozen=True, kw_only=True):
    """One trace that was taken in.

    Attributes:
        id: First 16 hex digits of the SHA-256 of its bytes as stored.
        name: Its file name, as it came.
        job: From the inbox folder, the upload, or the trace itself; None if none says.
        owner_uid: The user who may see it, like admins; None if unknown.
        state, reason: Its state, and why (None without a fault).
        stored_bytes: Size of the file.
        received_unix_ns, finished_unix_ns: When it came, and when its state became final.
        rank, run, capture: Known once it is analysed.
        device_map: The map from its devices to GPUs that it was uploaded with; None without.
    """

    id: str
    name: str
    job: str | None
    owner_uid: int | None
    state: TraceState
    reason: str | None
    stored_bytes: int
    received_unix_ns: int
    finished_unix_ns: int | None = None
    rank: int | None = None
    run: str | None = None
    capture: int | None = None
    device_map: str | None = None


class AnalysedTrace(Struct, frozen=True, kw_only=True):
    """The worker's result for one trace."""

    id: str  # of its `TraceEntry`
    job: str | None  # as taken in, else as the trace says
    identity: RunIdentity  # of its run and rank
    # `pipeline.reports.FileReport` in MessagePack: a capture's document is made again from these
    # when another of its traces arrives
    report: bytes


class CaptureEntry(Struct, frozen=True, kw_only=True):
    """A capture as the store knows it."""

    id: int
    job: str | None
    # `chopperd_run` of its traces; a name made by the store where several runs of one job have one
    # time; else None
    run: str | None
    begin_unix_ns: int | None
    end_unix_ns: int | None
    trace_ids: tuple[str, ...]
    note: str | None = None  # why it is not part of another of its time


class Filed(Struct, frozen=True, kw_only=True):
    """A capture that has changed, with the reports of all its traces in order of arrival."""

    entry: CaptureEntry
    reports: tuple[bytes, ...]


class JobEntry(Struct, frozen=True, kw_only=True):
    """A job that traces came from."""

    job: str | None
    runs: tuple[str | None, ...]
    traces: int
    captures: int
    first_unix_ns: int
    last_unix_ns: int


class Viewer(Struct, frozen=True, kw_only=True):
    """The user who asks, on whom it depends which jobs are shown."""

    uid: int | None  # the user at the other end of the connection; None if unknown
    is_admin: bool  # whether the viewer may see all jobs and control the agent

    def may_see(self, owner_uid: int | None) -> bool:
        """Whether what this user owns may be shown."""
        return self.is_admin or (owner_uid is not None and owner_uid == self.uid)


class StepQuery(Struct, frozen=True, kw_only=True):
    """Which step rows are wanted; None does not restrict. Times are of the row's start."""

    job: str | None = None
    run: str | None = None
    rank: int | None = None
    gpu: str | None = None
    step: int | None = None
    from_unix_ns: int | None = None
    to_unix_ns: int | None = None


class StepPage(Struct, frozen=True, kw_only=True):
    """Step rows, newest first, without their parts; `cursor` leads on, None at the end."""

    steps: tuple[Row, ...]
    cursor: str | None


class DeviceKernels(Struct, frozen=True, kw_only=True):
    """The kernels that one step launched on one device, in sums.

    The lists that were not asked for are empty, and all of steps that an older version stored.
    """

    job: str | None
    run: str | None
    rank: int | None
    device: int | None
    gpu: str | None
    families: tuple[Family, ...] = ()
    by_operation: tuple[Part, ...] = ()
    by_layer: tuple[Part, ...] = ()
    by_phase: tuple[Part, ...] = ()
    by_annotation: tuple[Part, ...] = ()


class DropState(StrEnum):
    """The state of a drop: open, or why it ended.

    `RECOVERED`: the clock came back. `NEW_LEVEL`: it lasted so long that later drops are compared
    with the low clock. `INTERRUPTED`: for a minute the GPU was not busy or its clock not known, or
    the agent ended; the clock afterwards is not known.
    """

    OPEN = "open"
    RECOVERED = "recovered"
    NEW_LEVEL = "new_level"
    INTERRUPTED = "interrupted"


class ClockDrop(Struct, frozen=True, kw_only=True):
    """A drop of one GPU's busy clock, on the time axis of its samples."""

    state: DropState  # open, or why it ended
    # The first low sample, and the first one after it that is not; where it did not recover, the
    # last one seen. None while it is open.
    begin_ns: int
    end_ns: int | None
    length_s: float  # from begin to end; while it is open, to the last busy sample
    busy_s: float  # busy time in it
    reference_mhz: float  # the busy clock that it is compared with: that of its onset
    lowest_mhz: float  # lowest mean over a window; of the whole drop where that is shorter
    mean_mhz: float  # busy mean over the drop
    lost_s: float  # busy time lost against the reference
    # The same by the limits in force; holds no zeros
    lost_by_cause_s: Mapping[Cause, float] = field(default_factory=dict)
    # Power just before, and mean over it; None if not reported
    onset_power_w: float | None = None
    mean_power_w: float | None = None
    # Temperature likewise
    onset_temperature_c: float | None = None
    mean_temperature_c: float | None = None

    @property
    def depth_ratio(self) -> float:
        """How far below the reference its minimum was, as a share of the reference."""
        return 1.0 - self.lowest_mhz / self.reference_mhz

    @property
    def mean_depth_ratio(self) -> float:
        """How far below the reference its mean was, as a share of the reference."""
        return 1.0 - self.mean_mhz / self.reference_mhz

    @property
    def cause(self) -> Cause:
        """The cause of the largest share of the loss."""
        return max(self.lost_by_cause_s, key=self.lost_by_cause_s.__getitem__)


class GpuDrop(Struct, frozen=True, kw_only=True):
    """A drop as stored and published; times are Unix times, all else is as in `ClockDrop`.

    Attributes:
        gpu, uuid: The GPU's label and identity.
        cause: Label of what the largest share of the loss is due to.
        lost_by_cause_s: By label.
    """

    gpu: str
    uuid: str
    state: DropState
    begin_unix_ns: int
    end_unix_ns: int | None
    length_s: float
    busy_s: float
    reference_mhz: float
    lowest_mhz: float
    mean_mhz: float
    depth_ratio: float
    mean_depth_ratio: float
    lost_s: float
    cause: str
    lost_by_cause_s: Mapping[str, float]
    onset_power_w: float | None
    mean_power_w: float | None
    onset_temperature_c: float | None
    mean_temperature_c: float | None


class DropQuery(Struct, frozen=True, kw_only=True):
    """Which drops are asked for; None asks for all."""

    gpu: str | None = None  # label or UUID of a GPU
    # Drops that overlap `[from, to)`
    from_unix_ns: int | None = None
    to_unix_ns: int | None = None

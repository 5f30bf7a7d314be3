"""The state of a node right now, from which metrics, status and pages are made.

A value that is not known, or no longer fresh, is None; an old one is never repeated.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from msgspec import Struct, field

from chopperd.model.devices import DeviceReading, GpuInfo, GpuProcess, SensorTiming
from chopperd.model.kinds import Cause, MemoryVerdict


class LiveTotals(Struct, frozen=True, kw_only=True):
    """Integrals of one GPU since the ring was made; monotone; None is "never known"."""

    sm_cycles: float | None = None  # SM cycles over sampled time
    sampled_s: float | None = None  # time between samples close enough to integrate over
    busy_s: float | None = None  # time that the GPU reported itself busy
    busy_sm_cycles: float | None = None  # SM cycles over busy, sampled time
    busy_sampled_s: float | None = None  # busy time with known clock
    energy_j: float | None = None  # energy by the driver's counter
    # Time under each limit by the driver's counters
    limited_s: Mapping[Cause, float] = field(default_factory=dict)
    # Live ceiling loss against the highest SM clock, by cause
    lost_s: Mapping[Cause, float] = field(default_factory=dict)


class DropTotals(Struct, frozen=True, kw_only=True):
    """Drops of one GPU since the agent started; they never fall.

    Attributes:
        count: Drops, counted when they are found.
        length_s, lost_s: Their length and loss, counted when they have ended.
    """

    count: int = 0
    length_s: float = 0.0
    lost_s: float = 0.0


class HungCall(Struct, frozen=True, kw_only=True):
    """A driver call that has not returned for longer than the sampler waits."""

    scope: str
    age_s: float


class DiesLive(Struct, frozen=True, kw_only=True):
    """The compute dies (AMD: XCDs) of a GPU that reports the clock of each, as they run now.

    Attributes:
        clocks_mhz: Each die's clock at the newest sample; 0: switched off, None: not reported.
        running: How many run: are above deep sleep.
        gated: How many are off or asleep while others run.
        mean_mhz: Mean over the running dies of their means of the last 2 s; None if none runs.
        spread_mhz: Highest less lowest of these means; None of fewer than two dies.
        governing: The die with the lowest of them, counted from 0; None if none runs.
    """

    clocks_mhz: tuple[float | None, ...]
    running: int
    gated: int
    mean_mhz: float | None = None
    spread_mhz: float | None = None
    governing: int | None = None


class GpuLive(Struct, frozen=True, kw_only=True):
    """One GPU now."""

    info: GpuInfo
    # Whether it answers: its newest sample is fresh and the driver does not say it is lost
    up: bool
    last_sample_unix_ns: int | None  # time of its newest sample; None before the first
    # Its newest values; fields that are not fresh are None (all, where it is not up). The power
    # limit is that of the start where the driver does not report it again.
    reading: DeviceReading
    totals: LiveTotals | None  # integrals, which do not change while it is not up
    # Live loss against its peers; None while fewer than four of one model are busy
    excess_s: float | None
    # Sampled time in each clock bucket, by the bucket's upper edge in MHz: tenths of the highest SM
    # clock, then infinity; empty where that clock is not known, and while no time was sampled
    residency_s: Mapping[float, float]
    # Reads made, not made, failed; losses
    ticks_count: int
    missed_count: int
    failed_count: int
    lost_count: int
    driver_s: float  # time in driver calls
    asked_hz: float | None  # configured rate; None before a sampler has reported it
    kept_hz: float | None  # achieved rate; None where the GPU is not up
    hung: HungCall | None  # the driver call that hangs; None if there is none
    # Time in driver calls by how much was read
    driver_fast_s: float = 0.0
    driver_full_s: float = 0.0
    # Live loss against its peers in the last whole window of 10 s, as a share of sampled time; None
    # also where it was not busy then
    excess_ratio: float | None = None
    # Drops of its busy clock; None while clock and busyness were never known
    drops: DropTotals | None = None
    # Reason of the achieved rate: "asked", "budget", "idle", "burst" or "quiet"
    pace: str = "asked"
    # What was found of its sensors, by the name of the field in `DeviceReading`
    timing: Mapping[str, SensorTiming] = field(default_factory=dict)
    # Who uses it; None where that is not known, or not any more
    processes: tuple[GpuProcess, ...] | None = None
    trouble: str | None = None  # a fault that the driver reports, for people
    driver_rare_s: float = 0.0  # time in driver calls that are not part of sampling
    invalid_count: int = 0  # values dropped as impossible
    # Its dies; None where it has no clocks of several dies, or no fresh ones
    dies: DiesLive | None = None


class SamplerCondition(StrEnum):
    """The state of sampling as a whole; `UNAVAILABLE`: no back end can be used here."""

    STARTING = "starting"
    RUNNING = "running"
    RESTARTING = "restarting"
    HUNG = "hung"
    UNAVAILABLE = "unavailable"
    PAUSED = "paused"
    STOPPED = "stopped"


class SamplerLive(Struct, frozen=True, kw_only=True):
    """The sampler process now.

    Attributes:
        condition: Its state.
        reason: Why it is not running, for people; None where it is.
        pid: The process; None between two.
        restart_count: Successors started.
        abandoned_pids: Processes that hang in a driver and were abandoned.
    """

    condition: SamplerCondition
    reason: str | None = None
    pid: int | None = None
    restart_count: int = 0
    abandoned_pids: tuple[int, ...] = ()


class Pause(Struct, frozen=True, kw_only=True):
    """A pause of the agent: the reason, and its end (None: until it is resumed)."""

    reason: str
    until_unix_ns: int | None


class ArchiveLive(Struct, frozen=True, kw_only=True):
    """The flight recorder now.

    Attributes:
        bytes: On disk.
        max_bytes: Its limit on disk; None while it has not begun.
        oldest_unix_ns: Of the oldest stored sample; None if there is none.
        lost_samples: Samples that could not be stored (overwritten first, or disk full).
        damaged_chunks: Chunks skipped when read or found at start.
        trouble: Why it does not write now, for people; None if it does.
    """

    bytes: int = 0
    max_bytes: int | None = None
    oldest_unix_ns: int | None = None
    lost_samples: int = 0
    damaged_chunks: int = 0
    trouble: str | None = None


class StoreLive(Struct, frozen=True, kw_only=True):
    """The store of steps and reports now.

    Attributes:
        bytes: On disk.
        steps: Stored step rows.
        traces: Known traces.
        in_memory: Rows that wait in memory because they could not be written.
        trouble: Why it does not write to disk now, for people; None if it does.
        dropped: Changes lost since start, as neither disk nor memory had room.
        set_aside: What was lost with store files that could not be used, until those quarantined
            files are removed; None if there are none.
    """

    bytes: int = 0
    steps: int = 0
    traces: int = 0
    in_memory: int = 0
    trouble: str | None = None
    dropped: int = 0
    set_aside: str | None = None


class AnalysisLive(Struct, frozen=True, kw_only=True):
    """The ingest of traces now.

    Attributes:
        mode: "here", "off" or "spool".
        waiting: Traces that wait for the worker.
        working_on: Id of the trace that the worker has; None if it is idle or absent.
        worker_pid: The worker process; None where there is none.
        outcomes: Traces by outcome since start: "analysed", "duplicate", "rejected", "failed",
            "killed", "spooled".
        worker_losses: Workers that died over their work, or took too long and were killed.
        spool_bytes: Disk space of traces that wait or are retained.
        trouble: Why traces are not accepted now, for people; None if they are.
    """

    mode: str = "here"
    waiting: int = 0
    working_on: str | None = None
    worker_pid: int | None = None
    outcomes: Mapping[str, int] = field(default_factory=dict)
    worker_losses: int = 0
    spool_bytes: int = 0
    trouble: str | None = None


class TracedMemory(Struct, frozen=True, kw_only=True):
    """Device memory of a capture after warm-up, as `RankMemory` has it."""

    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    cv_reserved: float | None
    verdict: MemoryVerdict


#: Keys of `TracedTotals.memory`.
MEMORY_SUMS: Final = ("steps", "segment_calls", "segment_s", "retries")


class TracedTotals(Struct, frozen=True, kw_only=True):
    """Sums over the captures of one GPU since the agent started, s; they never fall.

    Present only while the newest capture is recent enough to represent the present.
    """

    window_s: Mapping[str, float] = field(default_factory=dict)  # window time by waterfall row
    lost_s: Mapping[Cause, float] = field(default_factory=dict)  # ceiling loss by cause
    # Kernel time and its loss by class
    kernel_s: Mapping[str, float] = field(default_factory=dict)
    kernel_lost_s: Mapping[str, float] = field(default_factory=dict)
    # Steps after warm-up whose calls for segments of memory are known, and those calls: see
    # `MEMORY_SUMS`
    memory: Mapping[str, float] = field(default_factory=dict)
    last_capture_unix_ns: int  # when the newest capture ended
    # The share of compute in that capture's busy time; None where not known
    compute_ratio: float | None = None
    # Device memory of that capture; None: not known, or of several processes
    last_memory: TracedMemory | None = None


class ProcessLive(Struct, frozen=True, kw_only=True):
    """The cost of one of the agent's processes: "agent", "sampler", "worker".

    CPU time includes earlier processes of the role; the rest is 0 where there is none now.
    """

    cpu_s: float
    resident_bytes: int
    open_fds: int
    threads: int
    started_unix_ns: int


class GuardedPart(StrEnum):
    """Parts of the agent whose unexpected faults are caught, so that the rest goes on.

    `START` is the start of any part, `REQUEST` the answering of one request.
    """

    SUPERVISION = "supervision"
    SNAPSHOT = "snapshot"
    START = "start"
    RECORDER = "recorder"
    STORE = "store"
    ANALYSIS = "analysis"
    REQUEST = "request"


class SelfTestLive(Struct, frozen=True, kw_only=True):
    """The cost of sampling for the steps that a job marks, as far as it is known.

    Attributes:
        step_time_ratio: Step time with sampling over that without; None until it is measured.
        low_ratio, high_ratio: Its 95 % interval.
        block_count: Periods without sampling that were compared with those around them.
        reason: Why it is not measured, for people; None where it is.
    """

    step_time_ratio: float | None = None
    low_ratio: float | None = None
    high_ratio: float | None = None
    block_count: int = 0
    reason: str | None = None


class NodeSnapshot(Struct, frozen=True, kw_only=True):
    """The node at one instant."""

    taken_unix_ns: int
    taken_mono_ns: int
    started_unix_ns: int  # when the agent started
    version: str
    node: str
    backend: str | None  # back end in use, or asked for; None if none is known
    backend_up: bool  # whether any of its GPUs has a fresh sample
    chosen: str | None = None  # why this back end was taken, for people; None where it was named
    driver: str | None
    simulated: bool
    gpus: tuple[GpuLive, ...]  # in slot order; GPUs that went away remain, with `up` False
    sampler: SamplerLive
    pause: Pause | None = None
    archive: ArchiveLive = field(default_factory=ArchiveLive)
    store: StoreLive = field(default_factory=StoreLive)
    analysis: AnalysisLive = field(default_factory=AnalysisLive)
    # By GPU label, for GPUs with a recent capture
    traced: Mapping[str, TracedTotals] = field(default_factory=dict)
    processes: Mapping[str, ProcessLive] = field(default_factory=dict)  # by role
    self_test: SelfTestLive = field(default_factory=SelfTestLive)  # what sampling costs the steps
    # Unexpected faults that parts of the agent outlived, since it started
    faults: Mapping[GuardedPart, int] = field(default_factory=dict)

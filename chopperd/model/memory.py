"""Device memory of a job: what torch's allocator did, as columns, and the figures of a report.

Published names of the document's key `memory`; `None` is "unknown", and never 0.

Source: DESIGN.md section 2, "FSDP and memory"; facts about torch in c10's CUDACachingAllocator.
"""

from enum import IntEnum
from typing import Final, Literal

from msgspec import Struct

from chopperd.model.arrays import Bools, Int8s, Int32s, Int64s
from chopperd.model.kinds import MemoryVerdict

#: Where figures come from, best first.
MemorySource = Literal["snapshot", "rows", "hook", "runtime"]
MemoryReason = Literal[
    "near_limit", "delayed_frees", "record_stream", "rate_limiter", "expandable_segments", "unknown"
]


class MemoryRows(Struct, frozen=True, kw_only=True):
    """`[memory]` rows of devices (no CPU rows), sorted by at_ns, equal ones in file order."""

    at_ns: Int64s
    thread: Int32s  # index into `Trace.threads`
    device: Int32s  # "Device Id"
    bytes: Int64s  # signed: an allocation's, or a free's below 0; of the block, not the request
    address: Int64s  # "Addr"; -1 absent (2021)
    allocated_bytes: Int64s  # "Total Allocated" after it; -1 absent
    reserved_bytes: Int64s  # "Total Reserved" after it; -1 absent
    is_oom: Bools  # an `[OutOfMemory]` row; its bytes were not given

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.at_ns)


#: Clocks of a snapshot and a trace that differ by more are spoken of.
MOST_SHIFT_NS: Final = 1_000_000


class SnapshotAction(IntEnum):
    """What an entry of a snapshot's `device_traces` is; the value is its code in a column."""

    ALLOC = 0
    FREE_REQUESTED = 1
    FREE_COMPLETED = 2
    SEGMENT_ALLOC = 3
    SEGMENT_FREE = 4
    SEGMENT_MAP = 5
    SEGMENT_UNMAP = 6
    SNAPSHOT = 7
    OOM = 8


class MemorySnapshot(Struct, frozen=True, kw_only=True):
    """One device's entries of a file of `torch.cuda.memory._dump_snapshot`, in the file's order."""

    device: int
    at_ns: Int64s | None  # of whole microseconds, Unix time; None before torch 2.2
    action: Int8s  # `SnapshotAction`
    address: Int64s  # -1 absent
    bytes: Int64s  # as asked for; of segments and of oom the real size
    stream: Int64s
    reserved_bytes: int  # sum of its segments at the dump
    allocated_bytes: int
    expandable: bool | None  # whether segments are; None if not said
    skipped: int  # entries of unknown actions
    is_cut: bool  # whether blocks are older than the first entry, of which others may be lost
    # Taken off its times to fit a trace's, by rows of equal addresses; None: not compared
    shift_ns: int | None = None


class StepMemory(Struct, frozen=True, kw_only=True):
    """A device's memory in one step. Peaks include the state on entry."""

    step: int
    allocations: int | None
    allocated_bytes: int | None  # sum of the allocations
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    held_bytes: int | None  # reserved peak minus the largest allocated while reserved is there
    segment_allocs: int | None  # Malloc and Map, failed ones too
    segment_frees: int | None
    segment_ns: int | None  # of all segment calls, Create, SetAccess, Release, Address calls too
    at_least: bool  # segments by changes of the reserved size, as there are no runtime calls
    event_queries: int | None
    record_streams: int | None
    rate_limiter_ns: int | None
    retries: int | None
    ooms: int | None
    waited_ratio: float | None  # of frees, from a snapshot: those that waited for a stream
    waited_median_ns: int | None
    waited_p95_ns: int | None
    # Against the step before, as `RankMemory` has them pooled
    program_ratio: float | None = None
    determinism_ratio: float | None = None
    # Beside the clock, of the same step's row
    busy_mean_mhz: float | None = None
    busy_p05_mhz: float | None = None
    busy_std_mhz: float | None = None
    power_w: float | None = None
    idle_allocator_ns: int | None = None
    # Of its kernels during communication, over like kernels without any
    contention_factor: float | None = None


class MemoryCorrelation(Struct, frozen=True, kw_only=True):
    """Rank correlation over steps of a memory figure with the clock's deviation.

    `rho` is None where there are too few steps (`effective_steps` under 50), or one side is
    constant. The interval is a block bootstrap's.
    """

    figure: Literal["retries", "segment_ns", "allocator_change", "peak_reserved_bytes"]
    rho: float | None
    low: float | None
    high: float | None
    effective_steps: float | None


class Offload(Struct, frozen=True, kw_only=True):
    """Parameters or optimizer state in host memory, guessed from traffic and names.

    Bytes are those of all steps; hidden are those that are copied while kernels run.
    """

    stage: Literal["parameters", "optimizer"]
    hidden_h2d_bytes: int
    exposed_h2d_bytes: int
    hidden_d2h_bytes: int
    exposed_d2h_bytes: int
    cpu_optimizer_ns: int | None  # idle while inside `Optimizer.step`, a step


class RankMemory(Struct, frozen=True, kw_only=True):
    """One device of one rank over its steps after warm-up; never summed over ranks.

    `program_ratio`: how alike the job's own requests are from step to step;
    `determinism_ratio`: how many of the aligned requests came at the same address (None without
    addresses); pooled over neighbouring steps, `worst_...` that of the worst pair. `verdict` is the
    first that holds of the order in the design; `reasons` are all that hold.
    """

    rank: int | None
    device: int
    gpu: str | None
    source: MemorySource
    steps: tuple[StepMemory, ...]  # all, warm-up included
    warm_up_steps: int  # leading steps that are left out below
    breaks: int  # rows whose total does not go on from the row before: rows are missing
    program_ratio: float | None
    worst_program_ratio: float | None
    determinism_ratio: float | None
    worst_determinism_ratio: float | None
    peak_allocated_bytes: int | None  # largest over steps
    peak_reserved_bytes: int | None
    held_bytes: int | None
    cv_allocated: float | None  # population CV of the steps' peaks; None under two steps
    cv_reserved: float | None
    segment_calls: int | None  # sums over steps
    segment_ns: int | None
    retries: int | None
    ooms: int | None
    verdict: MemoryVerdict
    verdict_text: str  # in words, also why not measured
    reasons: tuple[MemoryReason, ...]
    correlations: tuple[MemoryCorrelation, ...] = ()
    offload: Offload | None = None

"""Parts of the report document: the clocks, the work and the lists of a row, and its trace file."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Literal

from chopperd.model.trace import MOST_DETAILS

# What a row of a report says of its work beside its time: by whom, how much, how fast.

#: `Part.name` of the records of which the operation, layer or phase is not known.
UNKNOWN_PART: Final = "(unknown)"
#: `Part.name` and `Family.name` of those with the least time, where there are very many.
OTHER_PARTS: Final = "(other)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Device records that share an operation, a layer or a phase.

    `time_ns` sums durations (it is no union); `mean_mhz` and `lost_ns`, with its 95 % interval, are
    over its compute, of which kernels that run at once share the loss, by the clock samples that
    fell into it: unknown with fewer than 30. `samples` counts those inside. What is
    not known to be of any is "(unknown)", so that parts sum to all records of the device.
    `merged` is how many operations or layers "(other)" holds, those with the least time of very
    many; 0 for all others.
    """

    name: str
    count: int
    time_ns: int
    mean_mhz: float | None
    samples: int
    lost_ns: int | None
    merged: int = 0
    lost_low_ns: int | None = None
    lost_high_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPart:
    """Operators on the host that share a name, a layer or a phase.

    `host_ns` sums for how long each ran while no operator in it did, over all threads. "(unknown)",
    "(other)" and `merged` are as of `Part`.
    """

    name: str
    count: int
    host_ns: int
    merged: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTime:
    """Host time of a trace without device work, longest first; each list is of all operators."""

    job: str | None
    run: str | None
    rank: int | None
    by_operation: tuple[HostPart, ...] = ()
    by_layer: tuple[HostPart, ...] = ()
    by_phase: tuple[HostPart, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyTraffic:
    """Copies or fills of one direction ("h2d", "d2h", "d2d", "memset").

    `time_ns` sums durations. `bytes` and the rate are over the `sized_count` copies whose size is
    known; None without any. Copies from one device to another are "d2d".
    """

    direction: str
    count: int
    time_ns: int
    sized_count: int
    bytes: int | None
    rate_bytes_per_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTraffic:
    """Communication kernels of one collective in one process group.

    `group_ranks` are the group's members in short, "0-7" or "0-56 by 8", as far as the trace tells
    them. A collective called "other" is several, those with the least time of very many.
    `time_ns` sums durations and counts from this rank's kernel start: it holds the wait for other
    ranks, so that bandwidths are lower bounds of what the links do. They are over the `sized_count`
    kernels whose size is known, None without any: `algorithm` is the collective's bytes over time,
    `bus` what one rank's links carry. `name` is "unknown" where nothing tells it.
    """

    name: str
    group: str | None
    group_description: str | None
    group_size: int | None
    group_ranks: str | None = None
    count: int
    time_ns: int
    sized_count: int
    bytes: int | None
    algorithm_bytes_per_s: float | None
    bus_bytes_per_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Contention:
    """How much longer a family's kernels take beside communication.

    `factor` is the median duration of those with at least the median overlap over that of the
    tenth with the least, with its 95 % interval; `chopper_e50_e0` is Chopper's ratio. `count` is
    the number of kernels that they are of; `reason` says why the factor or its interval is missing.
    """

    factor: float | None
    low: float | None
    high: float | None
    chopper_e50_e0: float | None
    count: int
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChopperTimes:
    """Chopper's own figures of a row, beside ours; sums over its compute kernels.

    Attributes:
        kernel_count: Its compute kernels: without communication and its packing, with a launch.
        kernel_ns: Their durations; with `launch_ns`, Chopper's time of an iteration.
        launch_ns: Gaps between a compute kernel's end and the next one's start.
        prep_ns, call_ns: Their parts before and from the launch call's begin.
        first_launch_ns: From the first kernel of all to the first that computes.
        first_call_ns: From its launch call's begin to its start. Chopper calls the difference its
            prep, which is below 0 where the call came first.
        overlap_ratio: Share of the kernels' time beside communication.
    """

    kernel_count: int
    kernel_ns: int
    launch_ns: int
    prep_ns: int
    call_ns: int
    first_launch_ns: int
    first_call_ns: int
    overlap_ratio: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """Floating point work of a row against the stated dense peak of its GPU.

    Shaped are gemm and attention kernels of operators whose work is known by the recorded shapes;
    rated those of them whose type's peak is known. Times sum durations. `rated_time_ns` =
    `theoretical_ns` x the three overheads, which are Chopper's, at the clock of the peak.

    Attributes:
        flops: Of the operators of shaped kernels; causal attention counts half.
        matrix_time_ns: Of all gemm and attention kernels.
        shaped_time_ns: Of the shaped ones. shaped_share: Of `matrix_time_ns`.
        achieved_flops_per_s: Over `shaped_time_ns`.
        dtype: What most of the operations are of.
        spec_flops_per_s: The vendor's peak for it. spec_mhz: The clock of that peak.
        spec_source: The document that states them.
        rated_time_ns: Of rated kernels. theoretical_ns: Their work at the peak.
        utilization: `theoretical_ns` over `rated_time_ns`.
        overhead_frequency: Of the clock below that of the peak, as sampled.
        overhead_overlap: Of communication beside kernels, by like kernels without it.
        overhead_utilization: What is left over.
        clock_share: Of `rated_time_ns` with a sampled clock.
        overlap_share: Of the time of rated kernels beside communication, that of kernels with like
            ones without; None where nothing overlaps.
        method: How the overheads were found.
        reason: Why figures are missing.
    """

    flops: float | None = None
    matrix_time_ns: int | None = None
    shaped_time_ns: int | None = None
    shaped_share: float | None = None
    achieved_flops_per_s: float | None = None
    dtype: str | None = None
    spec_flops_per_s: float | None = None
    spec_mhz: float | None = None
    spec_source: str | None = None
    rated_time_ns: int | None = None
    theoretical_ns: float | None = None
    utilization: float | None = None
    overhead_utilization: float | None = None
    overhead_overlap: float | None = None
    overhead_frequency: float | None = None
    clock_share: float | None = None
    overlap_share: float | None = None
    method: str | None = None
    reason: str | None = None


# The clocks of a row of the report document, a part of what `report` publishes.

ClockBasis = Literal["in_class", "mixed", "all"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockStats:
    """Time-weighted mean clock with its 95 % interval; percentiles of the samples themselves."""

    mean_mhz: float | None
    low_mhz: float | None
    high_mhz: float | None
    p05_mhz: float | None
    p95_mhz: float | None
    std_mhz: float | None
    samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockDies:
    """The compute dies (AMD: XCDs) of a GPU with several, over a row's samples in compute.

    The row's clocks are those of the governing die, moment by moment; these figures tell how the
    others ran beside it.

    Attributes:
        running: How many dies ran, at some of the samples at least.
        gated: How many were off at some while others ran.
        mean_mhz: Mean clock over the running dies, in the measure of `compute.mean_mhz`.
        spread_mhz: Highest less lowest of the running dies' own means; None of fewer than two.
        governing: The die with the lowest mean, as the driver counts them from 0.
    """

    running: int
    gated: int
    mean_mhz: float
    spread_mhz: float | None
    governing: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RowClock:
    """Clocks of a row: over compute, over busy time, and the share of compute that was covered.

    `dies` is None where the GPU does not tell clocks of several dies.
    """

    basis: ClockBasis | None
    compute: ClockStats | None
    busy: ClockStats | None
    coverage_ratio: float | None
    dies: ClockDies | None = None


# What a report says of a trace file itself, and what the file had lost.


class LostKind(StrEnum):
    """What a trace may lack or hold in vain: the keys of `TraceSummary.lost`.

    Attributes:
        meaning: What is counted, and what that does to figures; schema and README have it from
            here.
    """

    meaning: str

    DAMAGED_EVENTS = "damaged_events", "Events that are no JSON: left out"
    DAMAGED_ARGS = (
        "damaged_args",
        "Events that are no JSON in their details (args): kept with name and times; "
        "what they communicated, or their launch, may be unknown",
    )
    UNDECODABLE_EVENTS = (
        "undecodable_events",
        "JSON that is no event, and rows of the host that can't be right: left out",
    )
    FURTHER_EVENTS = (
        "further_events",
        "Events of a second list or document in the file: left out",
    )
    NEGATIVE_RECORDS = (
        "negative_records",
        "Device records with a negative duration or none: left out; their launches count as "
        "without record",
    )
    ZEROED_RECORDS = (
        "zeroed_records",
        "Device records with neither start nor length, outside the capture: left out likewise",
    )
    OUTLYING_RECORDS = (
        "outlying_records",
        "Device records far beyond all other rows: left out likewise",
    )
    DUPLICATE_RECORDS = "duplicate_records", "Device records that are there twice: counted once"
    DUPLICATE_ROWS = "duplicate_rows", "Rows of the host that are there twice: counted once"
    CUT_RECORDS = (
        "cut_records",
        "Device records that last far past later ones of their stream, by a late end: cut to the "
        "start of the next",
    )
    ROWS_WITHOUT_DETAIL = (
        "rows_without_detail",
        f"Rows whose collective or shapes are unlike the first {MOST_DETAILS:,} of the file: kept, "
        "but what they communicated, or their FLOPs, are unknown",
    )
    LAUNCHES_WITHOUT_RECORD = (
        "launches_without_record",
        "Launches whose records the profiler dropped, or that are lost by the kinds above: the "
        "time in which they may have run is unknown",
    )

    def __new__(cls, value: str, meaning: str) -> "LostKind":
        """A kind with what it means."""
        kind = str.__new__(cls, value)
        kind._value_ = value
        kind.meaning = meaning
        return kind


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSummary:
    """One trace file as read; `lost` counts what is missing or was left out of it, by `LostKind`.

    `overrun_records` is how many device records, all in the figures, ended after the next one of
    their stream had started.
    """

    path: str
    sha256: str
    job: str | None
    run: str | None
    rank: int | None
    rank_source: str | None
    world_size: int | None
    base_time_unix_ns: int | None
    complete: bool
    events: int
    damaged_events: int
    invalid_records: int
    unlinked_kernels: int
    lost: Mapping[str, int] = field(default_factory=dict)
    overrun_records: int = 0

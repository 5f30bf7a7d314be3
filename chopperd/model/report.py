"""The report document (`chopperd.report/1`): what `report --format json` and the REST API give.

Field names are the published ones; every number's name ends in its unit. `None` is "unknown", and
`notes` says why. The JSON Schema in the report package is generated from these classes.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, Literal, TypeAlias, get_args

from msgspec import Struct, field
from msgspec.structs import replace

from chopperd.model.answers import Finding, Held, RanksSummary, StepTimeline, TracedDrop
from chopperd.model.memory import RankMemory
from chopperd.model.report_rows import Row
from chopperd.model.trace import MOST_DETAILS

SCHEMA: Final = "chopperd.report/1"


class Note(Struct, frozen=True, kw_only=True):
    """Why something is missing or in doubt: a stable code and a line for people."""

    code: str
    text: str


class Generated(Struct, frozen=True, kw_only=True):
    """The program that made the document, and the source of its samples."""

    version: str
    node: str | None
    backend: str | None
    driver: str | None
    simulated: bool
    time: str


class LostKind(StrEnum):
    """Kinds of what a trace lacks or has in excess: the keys of `TraceSummary.lost`."""

    meaning: str  # what is counted, and its effect on figures, for the schema and the pages

    DAMAGED_EVENTS = "damaged_events", "Events that are no JSON: left out"
    DAMAGED_ARGS = (
        "damaged_args",
        "Events whose details (args) are not valid JSON: name and times are used; "
        "what they communicated, or their launch, may be unknown",
    )
    UNDECODABLE_EVENTS = (
        "undecodable_events",
        "JSON that is no event, and rows of the host that can't be right: left out",
    )
    FURTHER_EVENTS = ("further_events", "Events of a second list or document in the file: left out")
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


class TraceSummary(Struct, frozen=True, kw_only=True):
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


class Sampling(Struct, frozen=True, kw_only=True):
    """How the clocks were sampled, over the traced windows; per-GPU figures are the worst."""

    asked_hz: float | None
    kept_hz: float | None
    samples_in_compute: int
    sensor_period_ms: float | None
    power_source: str | None


class Alignment(Struct, frozen=True, kw_only=True):
    """How well trace and samples lie on one time axis; `check` is the outcome in words.

    `check`: "measured" (lag found, interval given), "not measurable", or "no samples".
    `realtime_step`: whether the wall clock stepped inside the trace; None where not watched.
    """

    offset_uncertainty_ns: int | None
    lag_ns: int | None
    lag_low_ns: int | None
    lag_high_ns: int | None
    realtime_step: bool | None
    check: str


class Profiler(Struct, frozen=True, kw_only=True):
    """The cost of profiling itself; None where no untraced steps were marked, as yet always."""

    profiled_step_ratio: float | None = None


class FrameworkSummary(Struct, frozen=True, kw_only=True):
    """Data-parallel framework by evidence."""

    name: str
    evidence: tuple[str, ...]


class Reference(Struct, frozen=True, kw_only=True):
    """The reference clock and where it comes from: `device_max`, `configured` or `spec`."""

    sm_clock_mhz: float | None
    source: str | None


class DeviceSummary(Struct, frozen=True, kw_only=True):
    """A traced device and the GPU it was mapped to; `mapping` says by what rule.

    `pid` is the traced process, as its own pid namespace numbers it; `trace` the index in `traces`
    of the file that it is in. Of the power limit, `power_limit_default_w` is the GPU's default.
    """

    device: int
    rank: int | None
    gpu: str | None
    uuid: str | None
    name: str | None
    vendor: str | None
    mapping: str | None
    reference: Reference
    pid: int | None = None
    trace: int | None = None
    power_limit_default_w: float | None = None


class GpuLine(Struct, frozen=True, kw_only=True):
    """One GPU of the run, over its complete, non-tail steps (all of the file if it has none).

    The excess is by the run's mean clocks; `stands_out`: its low end passes 1.5 % of compute
    (more where clocks wander from step to step) and three median absolute deviations of the peers.
    """

    gpu: str | None
    device: int
    rank: int | None
    mean_mhz: float | None
    peers_median_mhz: float | None
    gap_ratio: float | None
    excess_ns_per_step: float | None
    temperature_mean_c: float | None
    slowest_steps: int | None
    excess_low_ns_per_step: float | None = None
    excess_high_ns_per_step: float | None = None
    stands_out: bool | None = None


class CauseShare(Struct, frozen=True, kw_only=True):
    """A cause's mean loss in a step, and its share of the run's ceiling loss.

    `power_w` and `power_limit_w`, of a power cap only, are the power of its GPUs under it, and the
    limit.
    """

    cause: str
    lost_ns: float
    share: float
    power_w: float | None = None
    power_limit_w: float | None = None


class Summary(Struct, frozen=True, kw_only=True):
    """The summary of the run: means over the critical device of each complete, non-tail step.

    Attributes:
        basis: "critical_steps", or "totals" where the file has no complete step.
        steps: Number of steps in the means (0 for totals).
        step_ns: Mean window.
        lost_ns: Mean ceiling loss in a step; None if unknown.
        gap_low, gap_high, gap_ratio: Interval of lost / window (gap interval x covered share).
        excess_ns: Excess over peers in a step, by the run's mean clocks; None without four traced
            peers. excess_low_ns, excess_high_ns: Its interval.
        coverage_ratio: Share of compute covered by samples.
        causes: Shares of the loss, largest first.
        gpus: One line for each GPU.
        waterfall_ns: Mean waterfall.
        held: Holders of the same rows, in sum over the steps; empty where they are unknown.
    """

    basis: str
    steps: int
    step_ns: float | None
    lost_ns: float | None
    gap_ratio: float | None
    gap_low: float | None
    gap_high: float | None
    lost_measured_low_ns: float | None
    lost_measured_high_ns: float | None
    excess_ns: float | None
    reference_mhz: float | None
    reference_source: str | None
    coverage_ratio: float | None
    causes: tuple[CauseShare, ...]
    gpus: tuple[GpuLine, ...]
    waterfall_ns: Mapping[str, float]
    excess_low_ns: float | None = None
    excess_high_ns: float | None = None
    held: tuple[Held, ...] = ()


class HostPart(Struct, frozen=True, kw_only=True):
    """Operators on the host that share a name, a layer, a phase or an annotation.

    `host_ns` sums for how long each ran while no operator in it did, over all threads. "(unknown)",
    "(other)" and `merged` are as of `Part`.
    """

    name: str
    count: int
    host_ns: int
    merged: int = 0


class HostTime(Struct, frozen=True, kw_only=True):
    """Host time of a trace without device work, longest first; each list is of all operators."""

    job: str | None
    run: str | None
    rank: int | None
    by_operation: tuple[HostPart, ...] = ()
    by_layer: tuple[HostPart, ...] = ()
    by_phase: tuple[HostPart, ...] = ()
    by_annotation: tuple[HostPart, ...] = ()


class ReportDocument(Struct, frozen=True, kw_only=True):
    """The whole document; `trace` is the first of `traces`, which rows refer to by rank.

    `host` has the host's time of each trace without device work; `ranks` compares the ranks of one
    job, None for fewer than two. `timeline` has what ran in a few critical steps, at most 12: the
    longest, the median one, and those next to drops.
    """

    schema: str
    generated: Generated
    summary: Summary | None
    findings: tuple[Finding, ...]
    trace: TraceSummary
    traces: tuple[TraceSummary, ...]
    sampling: Sampling
    alignment: Alignment
    profiler: Profiler
    framework: FrameworkSummary
    devices: tuple[DeviceSummary, ...]
    totals: tuple[Row, ...]
    steps: tuple[Row, ...]
    drops: tuple[TracedDrop, ...]
    notes: tuple[Note, ...]
    host: tuple[HostTime, ...] = ()
    ranks: RanksSummary | None = None
    memory: tuple[RankMemory, ...] = ()
    timeline: tuple[StepTimeline, ...] = ()


# The long lists of a row of totals: its work by family, operation, layer, phase or annotation; its
# idle time by holder.

By: TypeAlias = Literal["family", "operation", "layer", "phase", "annotation", "idle"]
#: What a report is broken down by: work, idle time, drops of clocks, or device memory.
Breakdown: TypeAlias = By | Literal["drop", "memory"]
PartsBy: TypeAlias = Literal["operation", "layer", "phase", "annotation"]
#: By what work is summed.
PARTS_BY: Final[tuple[By, ...]] = ("family", *get_args(PartsBy))
#: The field of a row that has its work by each.
FIELDS: Final[Mapping[By, str]] = {
    "family": "families",
    "operation": "by_operation",
    "layer": "by_layer",
    "phase": "by_phase",
    "annotation": "by_annotation",
    "idle": "held",
}


def has_parts(document: ReportDocument, by: Breakdown) -> bool:
    """Whether a report has work by this, of devices or of hosts without any, drops or memory."""
    if by == "drop":
        return bool(document.drops)
    if by == "memory":
        return any(each.steps for each in document.memory)
    field = FIELDS[by]
    return any(getattr(row, field) for row in (*document.steps, *document.totals)) or any(
        getattr(host, field, ()) for host in document.host
    )


def without_parts(row: Row) -> Row:
    """The row without these lists: they may be longer than all else together."""
    return replace(
        row, families=(), by_operation=(), by_layer=(), by_phase=(), by_annotation=(), held=()
    )

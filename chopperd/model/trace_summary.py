"""What a report says of a trace file itself, and what the file had lost."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from chopperd.model.trace import MOST_DETAILS


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

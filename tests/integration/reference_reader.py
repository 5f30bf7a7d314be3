"""An independent, strict and slow reading of Kineto files: whole-file JSON, exact decimals.

It stands beside the product's reader so that what is laid out can be checked against plain Python
over plain dictionaries. It knows the undamaged files of the corpus only.
"""

import gc
import gzip
import json
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from chopperd.model.trace import RecordKind

RECORD_KINDS = {
    "kernel": RecordKind.KERNEL,
    "gpu_memcpy": RecordKind.MEMCPY,
    "memcpy": RecordKind.MEMCPY,
    "gpu_memset": RecordKind.MEMSET,
    "memset": RecordKind.MEMSET,
}
CALLS = {"cuda_runtime", "cuda_driver", "runtime"}
MARKERS = {"user_annotation", "operator"}
Event = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Row:
    """One device record as the file has it; `step` is the marker its launch started in."""

    name: str
    kind: RecordKind
    stream: str
    start_ns: int
    end_ns: int
    step: int | None


def is_comm(row: Row) -> bool:
    """Whether a record communicates, by the names that the corpus has."""
    by_library = row.name.lower().startswith(("nccl", "rccl", "msccl"))
    return row.kind is RecordKind.KERNEL and (by_library or is_symmetric_memory(row.name))


def is_symmetric_memory(name: str) -> bool:
    """Whether a name is of a collective over symmetric memory, which no library's name begins."""
    return "multimem_all_reduce" in name


def is_compute(row: Row) -> bool:
    """Whether a record is a kernel that computes."""
    return row.kind is RecordKind.KERNEL and not is_comm(row)


def is_copy(row: Row) -> bool:
    """Whether a record is a copy or a fill."""
    return row.kind is not RecordKind.KERNEL


def merged(rows: Iterable[Row], start_ns: int = 0, end_ns: int = 1 << 62) -> list[tuple[int, int]]:
    """The union of records inside `[start_ns, end_ns)`, by sorting and sweeping plain integers."""
    found: list[tuple[int, int]] = []
    for start, end in sorted((max(r.start_ns, start_ns), min(r.end_ns, end_ns)) for r in rows):
        if start >= end:
            continue
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def swept_ns(rows: Iterable[Row], start_ns: int = 0, end_ns: int = 1 << 62) -> int:
    """Length of that union."""
    return sum(end - start for start, end in merged(rows, start_ns, end_ns))


def read_json(path: Path) -> dict[str, Any]:
    """The document of a file by the standard library, numbers with a point as decimals."""
    text = gzip.decompress(path.read_bytes())
    gc.disable()  # it looks for cycles among millions of new objects, and doubles the time
    try:
        document: dict[str, Any] = json.loads(text, parse_float=Decimal)
    finally:
        gc.enable()
    return document


def device_rows(path: Path) -> list[Row]:
    """The device records of a file, in file order."""
    document = read_json(path)
    base_ns: int = document.get("baseTimeNanoseconds", 0)
    events = [event for event in document["traceEvents"] if event.get("ph") == "X"]
    launched_us = {
        event["args"]["correlation"]: event["ts"] for event in events if _category(event) in CALLS
    }
    markers = [
        (int(event["name"].removeprefix("ProfilerStep#")), event["ts"], event["ts"] + event["dur"])
        for event in events
        if _category(event) in MARKERS and event["name"].startswith("ProfilerStep#")
    ] or _iterations(events)
    return [
        Row(
            name=event["name"],
            kind=RECORD_KINDS[_category(event)],
            stream=str(event["args"]["stream"]),
            start_ns=(start_ns := base_ns + _ns(event["ts"])),
            end_ns=start_ns + _ns(event["dur"]),
            step=_step(launched_us.get(event["args"]["correlation"]), markers),
        )
        for event in events
        if _category(event) in RECORD_KINDS
    ]


def _iterations(events: list[Event]) -> list[tuple[int, Decimal, Decimal]]:
    """The iterations of vLLM, counted from 0."""
    found = sorted(
        (event["ts"], event["ts"] + event["dur"])
        for event in events
        if event.get("cat") == "user_annotation" and event["name"].startswith("execute_context_")
    )
    return [(number, start, end) for number, (start, end) in enumerate(found)]


def _step(launched_us: Decimal | None, markers: list[tuple[int, Decimal, Decimal]]) -> int | None:
    if launched_us is None:
        return None
    inside = (number for number, start, end in markers if start <= launched_us < end)
    return next(inside, None)


def _category(event: Event) -> str:
    return str(event.get("cat", "")).lower()


def _ns(time_us: Decimal | int) -> int:
    return round(Decimal(time_us) * 1000)

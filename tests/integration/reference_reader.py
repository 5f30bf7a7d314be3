"""An independent, strict and slow reading of Kineto files: whole-file JSON, exact decimals.

It stands beside the product's reader so that what is laid out can be checked against plain Python
over plain dictionaries. It knows the undamaged files of the corpus only.
"""

import gzip
import json
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
    start_ns: int
    end_ns: int
    step: int | None


def device_rows(path: Path) -> list[Row]:
    """The device records of a file, in file order."""
    document = json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal)
    base_ns: int = document.get("baseTimeNanoseconds", 0)
    events = [event for event in document["traceEvents"] if event.get("ph") == "X"]
    launched_us = {
        event["args"]["correlation"]: event["ts"] for event in events if _category(event) in CALLS
    }
    markers = [
        (int(event["name"].removeprefix("ProfilerStep#")), event["ts"], event["ts"] + event["dur"])
        for event in events
        if _category(event) in MARKERS and event["name"].startswith("ProfilerStep#")
    ]
    return [
        Row(
            name=event["name"],
            kind=RECORD_KINDS[_category(event)],
            start_ns=base_ns + _ns(event["ts"]),
            end_ns=base_ns + _ns(event["ts"]) + _ns(event["dur"]),
            step=_step(launched_us.get(event["args"]["correlation"]), markers),
        )
        for event in events
        if _category(event) in RECORD_KINDS
    ]


def _step(launched_us: Decimal | None, markers: list[tuple[int, Decimal, Decimal]]) -> int | None:
    if launched_us is None:
        return None
    inside = (number for number, start, end in markers if start <= launched_us < end)
    return next(inside, None)


def _category(event: Event) -> str:
    return str(event.get("cat", "")).lower()


def _ns(time_us: Decimal | int) -> int:
    return round(Decimal(time_us) * 1000)

"""An independent, strict and slow reading of Kineto files: whole-file JSON, exact decimals.

It stands beside the product's reader so that what is laid out can be checked against plain Python
over plain dictionaries. It knows the files of the corpus and no damage.
"""

import gzip
import json
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from chopperd.model.trace import Damage, RecordKind, SpanKind, Trace
from tests.trace_building import TraceBuilder

RECORD_KINDS = {
    "kernel": RecordKind.KERNEL,
    "gpu_memcpy": RecordKind.MEMCPY,
    "memcpy": RecordKind.MEMCPY,
    "gpu_memset": RecordKind.MEMSET,
    "memset": RecordKind.MEMSET,
}
CALLS = {"cuda_runtime", "cuda_driver", "runtime"}
SPAN_KINDS = {
    "cpu_op": SpanKind.OP,
    "operator": SpanKind.OP,
    "user_annotation": SpanKind.ANNOTATION,
}


@dataclass(frozen=True, slots=True)
class Row:
    """One device record as the file has it."""

    name: str
    kind: RecordKind
    device: int
    start_ns: int
    end_ns: int


def document(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    text = gzip.decompress(data) if path.suffix == ".gz" else data
    loaded: dict[str, Any] = json.loads(text, parse_float=Decimal)
    return loaded


def device_rows(path: Path) -> list[Row]:
    """The valid device records of a file, in file order."""
    whole = document(path)
    return [
        Row(
            name=event["name"],
            kind=RECORD_KINDS[_category(event)],
            device=event["args"].get("device", event["pid"]),
            start_ns=_start_ns(event, whole),
            end_ns=_end_ns(event, whole),
        )
        for event in whole["traceEvents"]
        if _category(event) in RECORD_KINDS and _is_valid(event)
    ]


def read_reference(path: Path) -> Trace:
    """The file as a `Trace`."""
    whole = document(path)
    built = TraceBuilder()
    invalid = 0
    for event in whole["traceEvents"]:
        if event.get("ph") != "X":
            continue
        if _category(event) in RECORD_KINDS and not _is_valid(event):
            invalid += 1
        else:
            _add(built, event, whole)
    return built.build(Damage(invalid_records=invalid))


def _add(built: TraceBuilder, event: dict[str, Any], whole: dict[str, Any]) -> None:
    category, args = _category(event), event.get("args", {})
    start_ns = _start_ns(event, whole)
    duration_ns = _end_ns(event, whole) - start_ns
    name, thread = event["name"], (event["pid"], event["tid"])
    if category in RECORD_KINDS:
        built.record(
            name,
            start_ns,
            duration_ns,
            correlation=args.get("correlation", 0) or -1,
            device=args.get("device", event["pid"]),
            stream=args.get("stream", event["tid"]),
            kind=RECORD_KINDS[category],
            comm="Collective name" in args,
        )
    elif category in CALLS:
        correlation = args.get("correlation", 0) or -1
        built.call(name, start_ns, duration_ns, correlation=correlation, thread=thread)
    elif category in SPAN_KINDS:
        built.span(name, start_ns, duration_ns, kind=SPAN_KINDS[category], thread=thread)
    elif category == "gpu_user_annotation":
        built.device_span(name, start_ns, duration_ns, device=event["pid"], stream=event["tid"])


def _category(event: dict[str, Any]) -> str:
    return str(event.get("cat", "")).lower()


def _is_valid(event: dict[str, Any]) -> bool:
    return event["dur"] >= 0 and not (event["ts"] == 0 and event["dur"] == 0)


def _start_ns(event: dict[str, Any], whole: dict[str, Any]) -> int:
    base_ns: int = whole.get("baseTimeNanoseconds", 0)
    return base_ns + _ns(event["ts"])


def _end_ns(event: dict[str, Any], whole: dict[str, Any]) -> int:
    return _start_ns(event, whole) + _ns(event["dur"])


def _ns(time_us: Decimal | int) -> int:
    return round(Decimal(time_us) * 1000)

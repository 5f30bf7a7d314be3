"""Text around the event array: where it opens, the keys that are read, events in further lists.

Documents may hold megabytes of other keys, of which no values are made, and damage.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final, TypeAlias

import msgspec
import numpy as np
from msgspec import Raw, Struct

from chopperd.traces.read import json_text
from chopperd.traces.read.event_array import event_array
from chopperd.traces.read.rows import TraceRows

_LISTS_COUNTED: Final = 8
"""Only so many further lists are searched for: each search reads the whole rest."""
_FIRST_PIECE_BYTES: Final = 1 << 12
_PIECE_BYTES: Final = 1 << 20
_BEFORE: Final = b'{"":[]'
"""Put before the keys that follow a list, it makes them a document."""
BASE_TIME: Final = "baseTimeNanoseconds"
RANKS: Final = "chopperd_ranks"
"""In a file for viewers that holds the traces of so many ranks (`merge`)."""
ROCM_KEYS: Final = frozenset({"hip_runtime_version", "hip_driver_version", "roctracer_version"})
CUDA_KEYS: Final = frozenset({"cuda_runtime_version", "cuda_driver_version", "cupti_version"})

_KEYS: Final = (
    *(BASE_TIME, "deviceProperties", "distributedInfo", "trace_id", "host_name", "HOSTNAME"),
    *("chopperd_devices", "chopperd_job", "chopperd_run", "chopperd_simulated", RANKS),
    *sorted(ROCM_KEYS | CUDA_KEYS),
)
_TEXTS: Final = msgspec.json.Decoder(
    msgspec.defstruct("_Texts", [(key, Raw, json_text.NO_TEXT) for key in _KEYS])
)

_ODD: Final = {b"NaN": b"1e0", b"Infinity": b"1e000000", rb"\ud": rb"\u0", rb"\uD": rb"\u0"}
"""Invalid numbers and lone surrogates, each with a valid text of the same length."""
_ODD_BYTES: Final = 16
"""Longest distance from where a parser refuses one of them to its beginning or end."""

_MENDED_BYTES: Final = 1 << 16
"""Longer texts are not searched for missing values: it takes too long."""

_EVENTS: Final = b'"traceEvents"'
_EVENTS_KEY: Final = re.compile(rb'"traceEvents"\s*:\s*(?=\[)')
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_OPENINGS_TRIED: Final = 8
_LONG_BYTES: Final = 1 << 20
"""After so much of heads the next candidate for the array is taken."""

Texts: TypeAlias = Mapping[str, bytes]
"""JSON texts by key."""


def document_texts(text: bytes, *, mend: bool = True) -> Texts | json_text.Refusal:
    """Return the JSON texts of an object's keys that are read; what follows the object is ignored.

    Texts are unchanged, including what strict readers refuse in them. With `mend` a missing or
    invalid value is read as null; else it is refused.
    """
    found = json_text.first_value(_TEXTS, memoryview(text))
    strict = text
    if isinstance(found, json_text.Refusal) and _may_be_odd(text, found):
        strict = _strict(text)
        found = json_text.first_value(_TEXTS, memoryview(strict))
    if isinstance(found, json_text.Refusal):
        return _mended(text, found) if mend else found
    values = {key: one for key, one in msgspec.structs.asdict(found[0]).items() if bytes(one)}
    starts = {key: _address(one) - _address(strict) for key, one in values.items()}
    return {key: text[at : at + len(bytes(values[key]))] for key, at in starts.items()}


def _mended(text: bytes, refusal: json_text.Refusal) -> Texts | json_text.Refusal:
    """Read the keys with null for missing values; return `refusal` if there are other faults."""
    is_due = refusal.fault is json_text.Fault.MALFORMED and len(text) <= _MENDED_BYTES
    if not is_due or not json_text.may_lack_value(text, refusal.offset):
        return refusal
    found = json_text.first_value(_TEXTS, memoryview(json_text.with_nulls(text)))
    if isinstance(found, json_text.Refusal):
        return refusal
    values = {key: bytes(one) for key, one in msgspec.structs.asdict(found[0]).items()}
    return {key: value for key, value in values.items() if value}


def _may_be_odd(text: bytes, refusal: json_text.Refusal) -> bool:
    """Whether NaN, Infinity or a lone surrogate, which strict parsers refuse, may be the fault."""
    if refusal.offset is None:  # as for half a pair
        return True
    around = text[max(refusal.offset - _ODD_BYTES, 0) : refusal.offset + _ODD_BYTES]
    return any(odd in around for odd in _ODD)


def _strict(text: bytes) -> bytes:
    for odd, plain in _ODD.items():
        text = text.replace(odd, plain)
    return text


def _address(text: bytes | Raw) -> int:
    """Return the memory address of a text: values are views of the document."""
    return np.frombuffer(text, np.uint8).ctypes.data


def is_cut_short(texts: Texts | json_text.Refusal) -> bool:
    """Whether the text is the valid beginning of a JSON object."""
    return isinstance(texts, json_text.Refusal) and texts.fault is json_text.Fault.INCOMPLETE


class Opening(Struct, frozen=True):
    """Where the event array opens."""

    head: bytes  # the document up to the array; empty if the document is the array
    position: int  # offset of the array's first byte after its bracket
    texts: Texts | json_text.Refusal  # the keys of the head; a refusal where it is damaged


def find_opening(data: bytes) -> Opening | None:
    """Find where the event array opens in a document's first bytes; None if not yet there.

    A `traceEvents` inside another object is skipped: with the array closed right there, the
    document would be incomplete. In a damaged head the first is taken; after a few that are skipped
    the next.
    """
    start = len(data) - len(without_mark(data).lstrip())
    if data[start : start + 1] == b"[":
        return Opening(b"", start + 1, {})
    skipped_bytes = 0
    for number, key in enumerate(_keys_of_events(data, start)):
        head = data[start : key.end()]
        if number == _OPENINGS_TRIED or skipped_bytes > _LONG_BYTES:
            return Opening(head, key.end() + 1, json_text.Refusal(json_text.Fault.INCOMPLETE))
        texts = document_texts(head + b"[]}")
        if not is_cut_short(texts):
            return Opening(head, key.end() + 1, texts)
        skipped_bytes += len(head)
    return None


def _keys_of_events(data: bytes, start: int) -> Iterator[re.Match[bytes]]:
    """Yield candidates for the key of the event array, with its colon."""
    while (start := data.find(_EVENTS, start)) >= 0:
        if key := _EVENTS_KEY.match(data, start):
            yield key
        start += len(_EVENTS)


def without_mark(data: bytes) -> bytes:
    """Return the text without the byte order mark that some editors put first."""
    return data.removeprefix(_BYTE_ORDER_MARK)


def is_cut_mark(data: bytes) -> bool:
    """Whether a text is the beginning of a byte order mark and nothing else."""
    return len(data) < len(_BYTE_ORDER_MARK) and _BYTE_ORDER_MARK.startswith(data)


def trailing_events(tail: bytes) -> int:
    """Count the events in the first few lists after the event array."""
    count = 0
    for _ in range(_LISTS_COUNTED):
        opening = find_opening(_BEFORE + tail)
        if opening is None:
            break
        found, tail = _counted(memoryview(tail)[opening.position - len(_BEFORE) :])
        count += found
    return count


def _counted(text: memoryview) -> tuple[int, bytes]:
    """Count the events in a list; return that and what follows the list. Rows are discarded."""
    rows, at, size = TraceRows(), 0, _FIRST_PIECE_BYTES
    array = event_array(rows, _PIECE_BYTES)
    while at < len(text) and array.tail is None:
        array.feed(bytes(text[at : at + size]))
        at, size = at + size, min(4 * size, _PIECE_BYTES)
    array.finish()
    tail = (array.tail or b"") + text[at:]
    return rows.counts.total() + array.damaged + array.undecodable, tail

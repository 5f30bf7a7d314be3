"""Plain files that the scanner reads by itself, and their hashes: as by the decoder in Python."""

import hashlib
from pathlib import Path

import pytest

from chopperd.model.trace import Trace
from chopperd.traces import reader, scanned_array
from chopperd.traces.reader import read_trace
from tests.decoders import assert_same_columns
from tests.layouts import Event, compact, complete_event, native

KIB = 1 << 10


@pytest.fixture(autouse=True)
def short_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a file of hundreds of MiB: many turns, and again behind an obstacle."""
    monkeypatch.setattr(scanned_array, "_FILE_BYTES", 300 * KIB)
    monkeypatch.setattr(reader, "_READ_ON_AGAIN_BYTES", 200 * KIB)


def events(count: int) -> list[Event]:
    made = []
    for number in range(count):
        event = complete_event("kernel", f"kernel_{number % 7}", 10 * number, 5)
        event["args"] = {"device": 0, "stream": 7, "correlation": number + 1}
        made.append(event)
    return made


def with_a_long_event(text: bytes) -> bytes:
    """One of 700 KiB, which no piece of a file holds, a quarter in."""
    at = text.index(b"kernel_3", len(text) // 4)
    return text[:at] + b"x" * (700 * KIB) + text[at:]


def with_damage(text: bytes) -> bytes:
    """A quote too many in each quarter, and a stretch of 400 KiB that is nothing."""
    for quarter in (3, 2, 1):
        at = text.index(b"kernel_2", quarter * len(text) // 4)
        text = text[:at] + b'"' + text[at:]
    at = text.index(b"kernel_5", len(text) // 3)
    return text[:at] + b'"' * (400 * KIB) + text[at:]


def same(found: Trace, expected: Trace) -> None:
    assert_same_columns(found, expected)
    assert (found.meta, found.damage) == (expected.meta, expected.damage)


@pytest.mark.parametrize("layout", [native, compact])
@pytest.mark.parametrize("change", [bytes, with_a_long_event, with_damage])
@pytest.mark.parametrize("end", [b"", b"cut"])
def test_a_file_is_read_as_by_the_decoder_in_python(
    tmp_path: Path, layout: object, change: object, end: bytes
) -> None:
    assert callable(layout)
    assert callable(change)
    text = change(layout(events(12_000), {"schemaVersion": 1, "trace_id": "t"}))
    path = tmp_path / "trace.json"
    path.write_bytes(text[:-100] if end else text)
    expected = read_trace(path, native=False)
    assert len(expected.records) > 11_000
    assert expected.meta.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    same(read_trace(path), expected)


def test_progress_is_told_to_the_end(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(compact(events(12_000), {}))
    seen: list[tuple[int, int | None]] = []
    read_trace(path, progress=lambda *at: seen.append(at))
    assert seen[-1] == (path.stat().st_size, path.stat().st_size)
    assert len(seen) > 3

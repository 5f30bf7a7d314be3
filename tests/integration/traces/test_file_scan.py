"""Plain files that the scanner reads by itself, and their hashes: as text that is fed to it."""

import gzip
import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from chopperd.errors import TraceFormatError
from chopperd.traces.read import event_array, reader
from chopperd.traces.read.reader import read_trace
from tests.decoders import assert_same_columns, read_without_scanner
from tests.layouts import Event, compact, complete_event, native

KIB = 1 << 10


@pytest.fixture(autouse=True)
def short_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a file of hundreds of MiB: many turns, and again behind an obstacle."""
    monkeypatch.setattr(event_array, "_FILE_BYTES", 300 * KIB)
    monkeypatch.setattr(reader, "_RETRY_BYTES", 200 * KIB)


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


@pytest.mark.parametrize("layout", [native, compact])
@pytest.mark.parametrize("change", [bytes, with_a_long_event, with_damage])
@pytest.mark.parametrize("end", [b"", b"cut"])
def test_a_file_is_read_as_its_text_is(
    tmp_path: Path, layout: object, change: object, end: bytes
) -> None:
    assert callable(layout)
    assert callable(change)
    text = change(layout(events(12_000), {"schemaVersion": 1, "trace_id": "t"}))
    path = tmp_path / "trace.json"
    path.write_bytes(text[:-100] if end else text)
    packed = tmp_path / "packed.gz"
    packed.write_bytes(gzip.compress(path.read_bytes(), 1))
    found, expected = read_trace(path), read_trace(packed)
    assert len(expected.records) > 11_000
    assert found.meta.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert_same_columns(found, expected)
    assert found.damage == expected.damage
    same_file = replace(found.meta, path=expected.meta.path, sha256=expected.meta.sha256)
    assert same_file == expected.meta
    for file, meta in ((path, found.meta), (packed, expected.meta)):
        assert read_trace(file, hashed=False).meta == replace(meta, sha256="")
    if change is not with_damage and not end:
        decoded = read_without_scanner(path)
        assert_same_columns(found, decoded)
        assert (found.meta, found.damage) == (decoded.meta, decoded.damage)


@pytest.mark.parametrize("change", [with_damage, lambda text: text[:-100], lambda text: text[:-1]])
def test_without_the_scanner_a_damaged_file_is_refused_with_what_to_do(
    tmp_path: Path, change: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(change(native(events(12_000), {"schemaVersion": 1})))
    with pytest.raises(TraceFormatError) as error:
        read_without_scanner(path)
    assert str(error.value) == (
        f"{path} is damaged or cut off, and this installation has no native scanner, which alone "
        "reads such files: install chopperd from a wheel, or reinstall it where a C compiler is"
    )


def test_progress_is_told_to_the_end(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(compact(events(12_000), {}))
    seen: list[tuple[int, int | None]] = []
    read_trace(path, progress=lambda *at: seen.append(at))
    assert seen[-1] == (path.stat().st_size, path.stat().st_size)
    assert len(seen) > 3

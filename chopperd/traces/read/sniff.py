"""Recognise Kineto traces and other formats by the beginning of their content."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from chopperd.errors import TraceFormatError
from chopperd.traces.read.source import ReadLimits, TraceSource

_SEARCHED_BYTES: Final = 1 << 20
_PIECE_BYTES: Final = 1 << 16
_BEFORE_JSON: Final = b"\xef\xbb\xbf \t\r\n"
_MARK: Final = b'"traceEvents"'
_REPORT_MARK: Final = b'"chopperd.report/'
_REPORT_BYTES: Final = 1 << 10
_EXPORT: Final = "have torch.profiler write one: prof.export_chrome_trace('trace.json')"
_OTHERS: Final = (
    (
        0,
        b"SQLite format 3\0",
        "an SQLite database (as Nsight Systems and rocprofv3 write)",
        _EXPORT,
    ),
    (0, b"NVIDIA Nsight", "an Nsight Systems report", _EXPORT),
    (0, b"\x89HDF", "an HDF5 file", _EXPORT),
    (0, b"PAR1", "a Parquet file", _EXPORT),
    (257, b"ustar", "a tar archive", "unpack it first"),
    (0, b"# chopperd-samples", "a sample file", "give it with --samples, next to a trace"),
)
"""Offset, bytes there, kind of such a file, and what to do instead."""
_NSIGHT_ENDINGS: Final = (".nsys-rep", ".qdrep")
_PACKET: Final = 0x0A
"""How each packet of a Perfetto trace begins: field 1, a length, so many bytes."""
_LENGTH_BYTES: Final = 5
_WIRE_TYPES: Final = (0, 1, 2, 5)
_BINARY: Final = re.compile(rb"[\x00-\x08]")
_PACKETS_SURE: Final = 4
"""JSON text may resemble one or two: a line feed, a letter for a length."""


def is_kineto(path: Path) -> bool:
    """Whether the file's first MiB, decompressed, opens an event array; False if unreadable.

    A file that does not begin like JSON is not read any further.
    """
    seen = b""
    try:
        with TraceSource(path, ReadLimits(block_bytes=_PIECE_BYTES)) as source:
            for piece in source.chunks():
                seen += piece
                text = seen.lstrip(_BEFORE_JSON)
                if _MARK in text or len(seen) >= _SEARCHED_BYTES or text[:1] not in (b"", b"{"):
                    break
    except TraceFormatError:
        return False
    return seen.lstrip(_BEFORE_JSON).startswith(b"{") and _MARK in seen


def is_report(path: Path) -> bool:
    """Whether the file, decompressed, begins like a report of chopperd; False if unreadable."""
    try:
        with TraceSource(path, ReadLimits(block_bytes=_PIECE_BYTES)) as source:
            return _REPORT_MARK in next(iter(source.chunks()), b"")[:_REPORT_BYTES]
    except TraceFormatError:
        return False


def other_format(text: bytes, name: str) -> str | None:
    """Name the format of a file that is no JSON, and what to do instead, as a sentence's end.

    Source: `Trace` of perfetto.protos (repeated TracePacket packet = 1).
    """
    for offset, mark, kind, remedy in _OTHERS:
        if text.startswith(mark, offset):
            return f"is {kind}, not Kineto JSON: {remedy}"
    packets = _perfetto_packets(text)
    if packets >= _PACKETS_SURE or (packets and text.lstrip()[:1] not in (b"{", b"[")):
        return f"is a Perfetto trace (protobuf), not Kineto JSON: {_EXPORT}"
    if name.endswith(_NSIGHT_ENDINGS) and text.lstrip()[:1] not in (b"{", b"["):
        return f"is an Nsight Systems report, not Kineto JSON: {_EXPORT}"
    return None


def _perfetto_packets(text: bytes) -> int:
    """Count the first few packets of a text, the last perhaps cut; 0 for other bytes."""
    at = count = 0
    if not _BINARY.search(text):
        return 0
    while at < len(text) and count < _PACKETS_SURE:
        size, begins = _packet(text, at)
        if size < 0:
            return 0
        count += 1
        at = begins + size
    return count


def _packet(text: bytes, at: int) -> tuple[int, int]:
    """Return the length of the packet at `at` and where its bytes begin; -1 if there is none."""
    size = shift = 0
    for begins in range(at + 1, at + 1 + _LENGTH_BYTES) if text[at] == _PACKET else ():
        byte = text[begins] if begins < len(text) else 0
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            field = text[begins + 1] if begins + 1 < len(text) else _PACKET
            is_field = field >= 8 and field & 7 in _WIRE_TYPES
            return (size, begins + 1) if is_field and size else (-1, at)
    return -1, at


def kineto_files(directory: Path, *, newer_than_unix_ns: int, depth: int = 3) -> list[Path]:
    """Return a folder's Kineto traces, recognised by content, written since a time; sorted.

    `depth`: how many levels of folders to search, the folder itself being the first.
    """
    return sorted(
        path
        for path in _files(directory, depth)
        if _written_since(path, newer_than_unix_ns) and is_kineto(path)
    )


def _written_since(path: Path, unix_ns: int) -> bool:
    """Whether the file was last written at or after a time; False for one that is gone."""
    try:
        return path.stat().st_mtime_ns >= unix_ns
    except OSError:
        return False


def _files(directory: Path, depth: int) -> Iterator[Path]:
    """Yield files down to a depth; folders that can't be read and links to folders are skipped."""
    try:
        entries = sorted(directory.iterdir())
    except OSError:
        return
    for entry in entries:
        if entry.is_file():
            yield entry
        elif depth > 1 and entry.is_dir() and not entry.is_symlink():
            yield from _files(entry, depth - 1)

"""Tells by content whether a file is a Kineto trace, from its first MiB."""

from pathlib import Path
from typing import Final

from chopperd.errors import TraceFormatError
from chopperd.traces.source import ReadLimits, TraceSource

_LOOK_BYTES: Final = 1 << 20
_PIECE_BYTES: Final = 1 << 16
_BEFORE_JSON: Final = b"\xef\xbb\xbf \t\r\n"
_MARK: Final = b'"traceEvents"'


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
                if _MARK in text or len(seen) >= _LOOK_BYTES or text[:1] not in (b"", b"{"):
                    break
    except TraceFormatError:
        return False
    return seen.lstrip(_BEFORE_JSON).startswith(b"{") and _MARK in seen

"""Tells by content whether a file is a Kineto trace, from its first MiB."""

from pathlib import Path
from typing import Final

from chopperd.errors import TraceFormatError
from chopperd.traces.source import ReadLimits, TraceSource

_LOOK_BYTES: Final = 1 << 20
_MARK: Final = b'"traceEvents"'


def is_kineto(path: Path) -> bool:
    """Whether the file's first MiB, decompressed, opens an event array; False if unreadable."""
    seen = b""
    try:
        with TraceSource(path, ReadLimits(block_bytes=_LOOK_BYTES)) as source:
            for piece in source.chunks():
                seen += piece
                if _MARK in seen or len(seen) >= _LOOK_BYTES:
                    break
    except TraceFormatError:
        return False
    return _MARK in seen

"""The first difference of two readings of a file, and the smallest input that still shows one."""

from collections.abc import Callable
from typing import Final

import numpy as np

from chopperd.errors import TraceFormatError
from chopperd.model.trace import Trace

_TABLES: Final = ("records", "calls", "spans", "device_spans", "flows", "frames", "memory")
_VALUES: Final = (
    "names",
    "functions",
    "threads",
    "collectives",
    "shapes",
    "span_ns",
    "damage",
    "meta",
)


def unlike_traces(one: Trace | TraceFormatError, other: Trace | TraceFormatError) -> str:
    """The first difference of two readings of a file; "" where there is none."""
    if isinstance(one, TraceFormatError) or isinstance(other, TraceFormatError):
        same = isinstance(one, TraceFormatError) and isinstance(other, TraceFormatError)
        return "" if same else f"{_outcome(one)} / {_outcome(other)}"
    for table in _TABLES:
        first, second = getattr(one, table), getattr(other, table)
        if len(first) != len(second):
            return f"{table}: {len(first)} / {len(second)} rows; {one.damage} / {other.damage}"
        for name in first.__struct_fields__:
            if not np.array_equal(getattr(first, name), getattr(second, name)):
                return f"{table}.{name}"
    for attribute in _VALUES:
        values = getattr(one, attribute), getattr(other, attribute)
        if values[0] != values[1]:
            return f"{attribute}: {values[0]} / {values[1]}"
    return ""


def _outcome(found: Trace | TraceFormatError) -> str:
    return str(found) if isinstance(found, TraceFormatError) else str(found.damage)


def smallest(data: bytes, fails: Callable[[bytes], bool], tries: int = 2000) -> bytes:
    """A smaller input that fails likewise: ever shorter pieces are left out.

    Args:
        data: An input that fails.
        fails: Whether another one fails in the same way.
        tries: How many others to try.
    """
    size = max(len(data) // 2, 1)
    while tries > 0:
        at, shrunk = 0, False
        while at < len(data) and tries > 0:
            smaller = data[:at] + data[at + size :]
            tries -= 1
            if fails(smaller):
                data, shrunk = smaller, True
            else:
                at += size
        if size == 1 and not shrunk:
            break
        size = max(size // 2, 1)
    return data

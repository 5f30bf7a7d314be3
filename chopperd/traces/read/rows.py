"""The rows of a trace as they are read, unsorted, by whichever decoder reads them."""

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np

from chopperd.model.arrays import Bools
from chopperd.model.trace import MOST_DETAILS
from chopperd.traces.read.columns import ColumnParts, Interner
from chopperd.traces.read.json_text import Scalar

CollectiveKey: TypeAlias = tuple[Scalar, ...]
"""Name, dtype, elements in and out, group, its description, its size, its ranks: as in `args`."""
ShapesKey: TypeAlias = tuple[bytes, bytes, bytes]
"""JSON texts of dims, types and values."""

MODULE_PREFIX: Final = "nn.Module: "
"""How torch's profiler names the Python functions that are calls of modules."""

SHAPED: Final = (
    "mm",
    "matmul",
    "linear",
    "conv",
    "attention",
    "attn",
    "flash",
    "einsum",
    "sdpa",
    "mha",
)
"""Shapes are kept of operators whose name holds one of these: those that FLOPs are counted of."""

_ANNOTATION_PREFIXES: Final = ("ProfilerStep#", "Iteration<", "Optimizer.")
_ANNOTATION: Final = re.compile(r"ProfilerStep#|Iteration<\d+>|Optimizer\.")


class TraceRows:
    """The rows of a trace as they are read, unsorted, on the file's own time axis.

    Attributes:
        names, threads, collectives, shapes: Interned; what columns number. Of the last two
            `MOST_DETAILS` each.
        places: Interned: under which process records stand, where that is not their device.
        counts: Events by category, "" for none.
        undecodable: Rows left out because a time or the device is missing or absurd.
        invalid_records: Device records left out because their duration is negative or missing.
        has_queues: Whether a device record names its HSA queue.
        records, calls, spans, device_spans, flows: The columns of each table, as in the model.
    """

    def __init__(self) -> None:
        self.names: Interner[str] = Interner()
        self.threads: Interner[tuple[Scalar, Scalar]] = Interner()
        self.collectives: Interner[CollectiveKey] = Interner(MOST_DETAILS)
        self.shapes: Interner[ShapesKey] = Interner(MOST_DETAILS)
        self.places: Interner[Scalar] = Interner()
        self.counts: Counter[str] = Counter()
        self.undecodable = 0
        self.invalid_records = 0
        self.has_queues = False
        self.records = ColumnParts()
        self.calls = ColumnParts()
        self.spans = ColumnParts()
        self.device_spans = ColumnParts()
        self.flows = ColumnParts()


def annotation_names(names: Sequence[str]) -> Bools:
    """Which names are annotations of torch's profiler and optimizers, (n,) bool.

    In 2021 these were operators by category.

    Args:
        names: In order.
    """
    found = np.zeros(len(names), np.bool_)
    for prefix in _ANNOTATION_PREFIXES:
        first = last = bisect_left(names, prefix)
        while last < len(names) and names[last].startswith(prefix):
            last += 1
        found[first:last] = [_ANNOTATION.match(name) is not None for name in names[first:last]]
    return found

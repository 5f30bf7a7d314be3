"""Rows of a trace as either reader makes them: unsorted columns, texts as numbers."""

import re
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Generic, TypeAlias, TypeVar, cast

import numpy as np
import numpy.typing as npt

from chopperd.model.arrays import Bools, Int32s, Int64s, Ints
from chopperd.model.trace import MOST_DETAILS, MOST_FRAMES
from chopperd.traces.native.scanner import JOIN, Scanned
from chopperd.traces.read.json_text import Scalar, scalars_of, values_of
from chopperd.units import NS_PER_US

KeyT = TypeVar("KeyT")
IntT = TypeVar("IntT", bound=np.signedinteger)

ABSENT: Final = -1
BEYOND: Final = -2
"""Number of all values beyond the limit of distinct ones."""
_NULL: Final = b"null"
_FEW_ROWS: Final = 1 << 14
"""Fewer in a block join those before it: small arrays, freed, leave holes that stay empty."""
_LONGEST_TEXT: Final = 64
"""Longer texts are no numbers."""
_HEX: Final = re.compile(r"0[xX][0-9a-fA-F]+")
_DECIMAL: Final = re.compile(r"(?:stream +(?=[-\d]))?([-+]?\d+)", re.ASCII)
_ID: Final = re.compile(r"([-+]?\d+)|0[xX]([0-9a-fA-F]+)", re.ASCII)
CollectiveKey: TypeAlias = tuple[Scalar, ...]
"""Name, dtype, elements in and out, group, its description, its size, its ranks: as in `args`."""
ShapesKey: TypeAlias = tuple[bytes, ...]
"""JSON texts of dims, types and values."""
MarkKey: TypeAlias = tuple[Scalar, ...]
"""Module, name and phase: as in `args`."""

_ANNOTATION_PREFIXES: Final = ("ProfilerStep#", "Iteration<", "Optimizer.")
_ANNOTATION: Final = re.compile(r"ProfilerStep#|Iteration<\d+>|Optimizer\.")


class TraceRows:
    """The rows of a trace as they are read, unsorted, on the file's own time axis.

    `names`, `functions`, `threads`, `collectives`, `shapes`, `marks`: what columns number; of the
    last three at most `MOST_DETAILS` each. `functions` are names of Python functions. `places`: the
    processes of records whose process is not their device. `counts`: events by category, "" for
    none. `undecodable`: rows left out because a time or the device is missing or impossible.
    `invalid_records`: device records left out because their duration is negative or missing.
    `has_queues`: whether a device record names its HSA queue. `records`, `calls`, `spans`,
    `device_spans`, `flows`, `frames`: the columns of each table, as in the model; of `frames` the
    longest `MOST_FRAMES`. `comms`: External id, Seq and Comms Id of operators that start a
    collective. `memory`: rows of devices' memory, not of the host's.
    """

    def __init__(self) -> None:
        self.names: Interner[str] = Interner()
        self.functions: Interner[str] = Interner()
        self.threads: Interner[tuple[Scalar, ...]] = Interner()
        self.collectives: Interner[CollectiveKey] = Interner(MOST_DETAILS)
        self.shapes: Interner[ShapesKey] = Interner(MOST_DETAILS)
        self.marks: Interner[MarkKey] = Interner(MOST_DETAILS)
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
        self.frames = LongestRows(MOST_FRAMES)
        self.comms = ColumnParts()
        self.memory = ColumnParts()


def annotation_names(names: Sequence[str]) -> Bools:
    """Return which of sorted names are annotations of torch's profiler and optimizers."""
    found = np.zeros(len(names), np.bool_)
    for prefix in _ANNOTATION_PREFIXES:
        first = last = bisect_left(names, prefix)
        while last < len(names) and names[last].startswith(prefix):
            last += 1
        found[first:last] = [_ANNOTATION.match(name) is not None for name in names[first:last]]
    return found


class Interner(dict[KeyT, int]):
    """Numbers its keys in the order in which they first occur, those beyond `most` as `BEYOND`."""

    def __init__(self, most: int | None = None) -> None:
        super().__init__()
        self.most = most

    def __missing__(self, key: KeyT) -> int:
        if self.is_full:
            return BEYOND
        self[key] = number = len(self)
        return number

    @property
    def is_full(self) -> bool:
        """Whether no other key will be numbered."""
        return self.most is not None and len(self) >= self.most

    def numbers(self, keys: Sequence[KeyT]) -> list[int]:
        """Return the number of each key, numbering new ones; fast for many new keys."""
        new = [key for key in dict.fromkeys(keys) if key not in self]
        if self.most is not None:
            new = new[: self.most - len(self)]
        self.update(zip(new, range(len(self), len(self) + len(new)), strict=True))
        return list(map(self.__getitem__, keys))


class ColumnParts:
    """The columns of some rows, stored as arrays of some blocks each."""

    def __init__(self) -> None:
        self._parts: dict[str, list[Ints]] = {}

    def append(self, keep: Bools, **columns: Ints) -> None:
        """Add the rows where `keep` is set, given as columns."""
        if not keep.all():
            columns = {name: column[keep] for name, column in columns.items()}
        self.add(**columns)

    def add(self, **columns: Ints) -> None:
        """Add rows, given as columns."""
        for name, column in columns.items():
            parts = self._parts.setdefault(name, [])
            if parts and len(parts[-1]) < _FEW_ROWS:
                parts[-1] = np.concatenate((parts[-1], column))
            else:
                parts.append(column)

    def whole(self, name: str, dtype: type[IntT]) -> npt.NDArray[IntT]:
        """Return a whole column, (n,) `dtype`, which stays stored: it is no copy."""
        column = self.take(name, dtype)
        self._parts[name] = [column]
        return column

    def take(self, name: str, dtype: type[IntT]) -> npt.NDArray[IntT]:
        """Remove a whole column and return it, (n,) `dtype`."""
        parts = self._parts.pop(name, [])
        if not parts:
            return np.empty(0, dtype)
        whole = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return whole.astype(dtype, copy=False)


class LongestRows(ColumnParts):
    """The columns of the longest rows, at most `most`, however the file was cut into blocks.

    Above `most` rows those shorter than 1 us are left out, then those shorter than 2, 4, 8, ... us,
    until no more than `most` are left. `shortest_ns`: from which length on rows stay; 0 where all
    do.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self.count = 0
        self.left_out = 0
        self.shortest_ns = 0
        self._most = most

    def add(self, **columns: Ints) -> None:
        """Add rows, given as columns, of which those that are too short are left out."""
        if not columns:
            return
        self.count += len(columns["start_ns"])
        super().add(**columns)
        if self.shortest_ns:
            self._leave_out_short()
        while self.count > self._most:
            self.shortest_ns = 2 * self.shortest_ns or NS_PER_US
            self._leave_out_short()

    def _leave_out_short(self) -> None:
        for at in range(len(self._parts["start_ns"])):
            length_ns = self._parts["end_ns"][at] - self._parts["start_ns"][at]
            keep = length_ns >= self.shortest_ns
            for parts in self._parts.values():
                parts[at] = parts[at][keep]
        kept = sum(map(len, self._parts["start_ns"]))
        self.left_out += self.count - kept
        self.count = kept


def integers(values: Iterable[Scalar]) -> Int64s:
    """Convert values to (n,) int64; `ABSENT` where one is absent, no number, or too big."""
    given = [ABSENT if value is None else value for value in values]
    try:
        return np.frombuffer(array("q", cast("list[int]", given)), np.int64).copy()
    except (TypeError, OverflowError):
        return np.array([integer(value) for value in given], dtype=np.int64)


def counts_of(values: Sequence[Scalar]) -> Int64s:
    """Convert as `integers` does; `ABSENT` also for 0 and below: ids and sizes that mean "none"."""
    found = integers(values)
    found[found <= 0] = ABSENT
    return found


def integer(value: Scalar) -> int:
    """Convert to an int64 or `ABSENT`: 7, 7.0, "7", "0x7" and "stream 7" are 7."""
    try:
        number = _from_text(value) if isinstance(value, str) else int(value or 0)
    except (ValueError, OverflowError):
        return ABSENT
    return number if -(2**63) <= number < 2**63 else ABSENT


def exact_ids(values: Iterable[Scalar]) -> Int64s:
    """Return the 64 bits of each id, signed or not, (n,) int64; `ABSENT` without, or with more.

    Numbers with a point or an exponent, which a double may not hold exactly, are no ids.
    """
    return np.array([_bits(value) for value in values], np.int64)


def _bits(value: Scalar) -> int:
    if isinstance(value, str):
        found = _ID.fullmatch(value.strip(" ")) if len(value) <= _LONGEST_TEXT else None
        value = None if found is None else int(found[1] or found[2], 10 if found[1] else 16)
    if not isinstance(value, int) or isinstance(value, bool) or not -(2**63) <= value < 2**64:
        return ABSENT
    return value if value < 2**63 else value - 2**64


def _from_text(text: str) -> int:
    text = text.strip(" ") if len(text) <= _LONGEST_TEXT else ""
    if _HEX.fullmatch(text):
        return int(text, 16)
    decimal = _DECIMAL.fullmatch(text)
    return int(decimal[1]) if decimal else ABSENT


class ScannedRows:
    """Adds the rows of one scanner to the rows of a trace."""

    def __init__(self, rows: TraceRows) -> None:
        self._rows = rows
        self._numbers: Mapping[str, Callable[[Sequence[bytes]], Int32s]] = {
            "name": _Numbers(rows.names, _texts).of,
            "function": _Numbers(rows.functions, _texts).of,
            "thread": _Numbers(rows.threads, _joined).of,
            "collective": _Numbers(rows.collectives, _joined).of,
            "shapes": _Numbers(
                rows.shapes, lambda texts: [(*text.split(JOIN),) for text in texts]
            ).of,
            "mark": _Numbers(rows.marks, _joined).of,
            "place": _Numbers(rows.places, scalars_of).of,
        }

    def add(self, found: Scanned) -> None:
        """Add the rows and counts of one `Scanner.take`."""
        rows = self._rows
        for category, count in found.counts.items():
            rows.counts[_texts([category])[0]] += count
        rows.undecodable += found.undecodable_rows
        rows.invalid_records += found.invalid_records
        rows.has_queues |= found.has_queues
        numbers = {name: self._numbers[name](texts) for name, texts in found.texts.items()}
        for table, columns in found.tables.items():
            parts: ColumnParts = getattr(rows, table)
            parts.add(
                **{
                    name: numbers[name][column] if name in numbers else column
                    for name, column in columns.items()
                }
            )


class _Numbers(Generic[KeyT]):
    """Converts a scanner's numbers of texts to a trace's: equal values have one number."""

    def __init__(
        self, interner: Interner[KeyT], decode: Callable[[Sequence[bytes]], Sequence[KeyT]]
    ) -> None:
        self._interner = interner
        self._decode = decode
        self._known: dict[bytes, int] = {}
        self._count = 0
        self._room: Int32s = np.array([ABSENT], np.int32)

    def of(self, texts: Sequence[bytes]) -> Int32s:
        """Return each text's number, (len(texts) + 1,) int32; `ABSENT` last, which -1 indexes."""
        start, self._count = self._count, len(texts)
        if self._count > start:
            if self._count >= len(self._room):
                self._room = np.resize(self._room, 2 * self._count + 1)
            self._room[start : self._count] = self._numbered(texts[start:])
            self._room[self._count] = ABSENT
        return self._room[: self._count + 1]

    def _numbered(self, texts: Sequence[bytes]) -> list[int]:
        """Return the numbers of new texts; a full table knows texts by their bytes only."""
        if self._interner.is_full:
            return [self._known.get(text, BEYOND) for text in texts]
        numbers = self._interner.numbers(self._decode(texts))
        if self._interner.most is not None:
            self._known.update(zip(texts, numbers, strict=True))
        return numbers


def _texts(texts: Sequence[bytes]) -> list[str]:
    return list(map(str, values_of(texts)))


def _joined(texts: Sequence[bytes]) -> list[tuple[Scalar, ...]]:
    """Split texts at `JOIN` and decode the values to scalars, an absent one to None."""
    parts = [part or _NULL for text in texts for part in text.split(JOIN)]
    values, each = scalars_of(parts), len(parts) // len(texts)
    return list(zip(*(values[at::each] for at in range(each)), strict=True))


def _split(texts: Sequence[bytes]) -> list[ShapesKey]:
    return [tuple(text.split(JOIN)) for text in texts]

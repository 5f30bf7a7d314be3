"""Order the values that columns number: names, threads, collectives, shapes, marks; all at once."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Final, Generic, TypeAlias, TypeVar

import msgspec
import numpy as np

from chopperd.model.arrays import Int32s, Int64s
from chopperd.model.trace import Collective, GraphMark, Shapes
from chopperd.traces.read.json_text import Scalar, values_of
from chopperd.traces.read.rows import ABSENT, CollectiveKey, MarkKey, ShapesKey, integer

_EMPTY: Final = b"null"
_BYTES_AT_ONCE: Final = 1 << 9

RawT = TypeVar("RawT")
PlainT = TypeVar("PlainT")
Part: TypeAlias = int | str | None
Thread: TypeAlias = tuple[int | str, int | str]

_EXACT: Final = frozenset({int, str, bytes, type(None)})
"""Types of which equal values are the same value; 1 equals 1.0, and true."""


class Numbering(Generic[PlainT]):
    """Interned values, each once, in an order that does not depend on the file's blocks."""

    def __init__(self, values: Sequence[PlainT], number: Int32s) -> None:
        self.values = tuple(values)
        self._number = number

    def column(self, numbers: Int32s) -> Int32s:
        """Convert a column of interned numbers to indices into `values`; negative ones to -1."""
        if not len(self._number):
            return numbers
        return np.where(numbers < 0, np.int32(ABSENT), self._number[numbers])


def _by_parts(columns: Sequence[Sequence[Part]], plain: Callable[..., PlainT]) -> Numbering[PlainT]:
    """Number values, made by `plain` of their parts, in the order of these; equal ones once."""
    ranks = np.stack([_ranked(column) for column in columns])
    order = np.lexsort(ranks[::-1])
    ranks = ranks[:, order]
    first = np.ones(len(order), np.bool_)
    first[1:] = (ranks[:, 1:] != ranks[:, :-1]).any(axis=0)
    distinct = order[first].tolist()
    number = np.empty(len(order), np.int32)
    number[order] = np.cumsum(first, dtype=np.int32) - 1
    values = map(plain, *(map(column.__getitem__, distinct) for column in columns))
    return Numbering(tuple(values), number)


def _ranked(column: Sequence[Part]) -> Int64s:
    """Return each part's rank in its column, (n,) int64: numbers, then texts, then None."""
    parts = dict.fromkeys(column)
    texts = sorted([part for part in parts if isinstance(part, str)])
    numbers = sorted([part for part in parts if isinstance(part, int)])
    rank = dict(zip((*numbers, *texts, None), range(len(parts) + 1), strict=False))
    return np.fromiter(map(rank.__getitem__, column), np.int64, len(column))


def _plainly(raw: Sequence[RawT], plain: Callable[[RawT], Part]) -> list[Part]:
    """Convert each value by `plain`; equal texts and whole numbers are converted once."""
    if not _EXACT.issuperset(map(type, raw)):
        return [plain(one) for one in raw]
    known = {one: plain(one) for one in set(raw)}
    return [known[one] for one in raw]


def names_of(names: Iterable[str]) -> Numbering[str]:
    """Number names, which are distinct, in alphabetical order."""
    texts = list(names)
    order = sorted(range(len(texts)), key=texts.__getitem__)
    number = np.empty(len(order), np.int32)
    number[order] = np.arange(len(order))
    return Numbering([texts[place] for place in order], number)


def threads_of(threads: Iterable[tuple[Scalar, ...]]) -> Numbering[Thread]:
    """Number threads, sorted by process and thread."""
    columns = [_plainly(column, _identity) for column in _columns(threads, 2)]
    return _by_parts(columns, lambda process, thread: (process, thread))


def collectives_of(collectives: Iterable[CollectiveKey]) -> Numbering[Collective]:
    """Number collectives, sorted by their fields."""
    return _by_fields(collectives, Collective, _COLLECTIVE)


def shapes_of(shapes: Iterable[ShapesKey]) -> Numbering[Shapes]:
    """Number shapes, sorted by their JSON texts without blanks."""
    columns = []
    for column in _columns(shapes, 3):
        texts = list(dict.fromkeys(column))
        plain = dict(zip(texts, compacted(texts), strict=True))
        columns.append([plain[text] for text in column])
    return _by_parts(
        columns, lambda dims, types, values: Shapes(dims=dims, types=types, values=values)
    )


def marks_of(marks: Iterable[MarkKey]) -> Numbering[GraphMark]:
    """Number the marks on kernels of graphs, sorted by their fields."""
    return _by_fields(marks, GraphMark, dict.fromkeys(("module", "name", "phase"), _text))


def _by_fields(
    keys: Iterable[Sequence[Scalar]],
    make: Callable[..., PlainT],
    plain: Mapping[str, Callable[[Scalar], Part]],
) -> Numbering[PlainT]:
    """Number values by their fields, given in order with the conversion of each."""
    columns = [
        _plainly(*each) for each in zip(_columns(keys, len(plain)), plain.values(), strict=True)
    ]
    return _by_parts(columns, lambda *parts: make(**dict(zip(plain, parts, strict=True))))


def compacted(texts: Sequence[bytes]) -> list[str]:
    """Return JSON texts without blanks, equal for equal values; "" for ""."""
    made: list[bytes] = []
    for some in _some_at_once(texts):
        made += map(msgspec.json.encode, values_of([text or _EMPTY for text in some]))
    return [one.decode() if text else "" for text, one in zip(texts, made, strict=True)]


def _some_at_once(texts: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Yield the texts in batches of few bytes: many values at once take memory and time."""
    first, size = 0, 0
    for end, text in enumerate(texts, 1):
        size += len(text)
        if size >= _BYTES_AT_ONCE:
            yield texts[first:end]
            first, size = end, 0
    yield texts[first:]


def _columns(rows: Iterable[Sequence[RawT]], count: int) -> list[list[RawT]]:
    whole = list(rows)
    return [list(map(itemgetter(at), whole)) for at in range(count)]


def _identity(value: Scalar) -> int | str:
    """Return a process's or thread's id; "" if missing, as Kineto writes for "none"."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else str(value)
    return "" if value is None else value


def _text(value: Scalar) -> str | None:
    return None if value is None else str(value)


def _count(value: Scalar) -> int | None:
    number = ABSENT if value is None else integer(value)
    return number if number >= 0 else None


_COLLECTIVE: Final[Mapping[str, Callable[[Scalar], Part]]] = {
    "name": str,
    "dtype": _text,
    "in_elements": _count,
    "out_elements": _count,
    "group": _text,
    "group_description": _text,
    "group_size": _count,
    "ranks": _text,
}
"""The conversion of each field of a collective, in the order of `CollectiveKey`."""

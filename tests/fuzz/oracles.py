"""What must hold of the reading of any input, however damaged."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from time import process_time
from typing import Final, TypeAlias

import numpy as np

from chopperd.errors import TraceFormatError
from chopperd.model.trace import Trace
from chopperd.report.clocked_device import JoinOptions
from chopperd.report.trace_report import report_trace
from chopperd.traces.native.library import scanner_library
from chopperd.traces.reader import read_trace
from chopperd.traces.source import ReadLimits
from chopperd.traces.timeline import lay_out
from tests.fuzz.mutations import Mutated
from tests.fuzz.seeds import Seed

Key: TypeAlias = tuple[object, ...]

#: Sizes of blocks that cut a small file at many places.
BLOCKS: Final = (64, 97, 251, 509, 1021, 4093)

_TABLES: Final = ("records", "calls", "spans", "device_spans", "flows")
_USUAL: Final = ReadLimits()
_REPORTED_EACH: Final = 32
_RARER_EACH: Final = 16
"""Checks that take longer, or ask much the same as another, are made of one input in so many."""
_MAX_RATIO: Final = 3.0
_FLOOR_S: Final = 0.010
"""What single readings may cost more than others: caches, collection of garbage."""
_TIMED_AGAIN: Final = 5


@dataclass(frozen=True, slots=True)
class Failure:
    """What does not hold of an input: a kind that others may share, and the details."""

    kind: str
    detail: str


class Oracles:
    """Reads inputs and tells what does not hold.

    Args:
        folder: Where a file may be written over and over.
        seeds: Sound traces: how long they take is what others are measured by.
        timed: Whether to judge times.
    """

    def __init__(self, folder: Path, seeds: Sequence[Seed], *, timed: bool) -> None:
        self._path = folder / "input.json"
        self._timed = timed
        self._sound = {seed.name: self._sound_prefix(seed) for seed in seeds}
        # All inputs are small: what a reading costs at least is most of what they cost.
        clean_s = max(self._least_s(seed.text) for seed in seeds) if timed else 0.0
        self._limit_s = _MAX_RATIO * clean_s + _FLOOR_S

    def failures(self, one: Mutated, number: int) -> Iterator[Failure]:
        """All that does not hold of an input.

        Args:
            one: The input.
            number: Decides which of the rarer checks are made.
        """
        begin_s = process_time()
        usual = self._read(one.data)
        took_s = process_time() - begin_s
        if isinstance(usual, Failure):
            yield usual
            return
        if self._timed and took_s > self._limit_s:
            yield from self._slow(one.data)
        yield from self._whole_before_damage(one, usual)
        if not one.broken_stream:
            yield from self._otherwise(one.data, usual, number)
        if number % _REPORTED_EACH == 0 and isinstance(usual, Trace):
            yield from _reported(usual)

    def _otherwise(
        self, data: bytes, usual: Trace | TraceFormatError, number: int
    ) -> Iterator[Failure]:
        """Read by the other decoder, in small blocks, by several threads: always the same."""
        blocks = ReadLimits(block_bytes=BLOCKS[number % len(BLOCKS)])
        ways: dict[str, tuple[ReadLimits, bool, int]] = {"in blocks": (blocks, True, 1)}
        if scanner_library() is not None:
            ways["by Python"] = (_USUAL, False, 1)
        if number % _RARER_EACH == 0:
            ways["by Python, in blocks"] = (blocks, False, 1)
        if number % _RARER_EACH == 1:
            ways["by threads, in blocks"] = (blocks, True, 2)
        for way, (limits, native, threads) in ways.items():
            found = self._read(data, limits, native=native, threads=threads)
            if isinstance(found, Failure):
                yield Failure(f"{way}: {found.kind}", found.detail)
            elif difference := unlike(usual, found):
                yield Failure(f"{way}", f"{limits.block_bytes} bytes: {difference}")

    def sound_rows(self, seed: Seed, count: int) -> Counter[Key]:
        """What the tables hold of the first events of a seed."""
        return self._sound[seed.name][count]

    def _read(
        self, data: bytes, limits: ReadLimits = _USUAL, *, native: bool = True, threads: int = 1
    ) -> Trace | TraceFormatError | Failure:
        self._path.write_bytes(data)
        try:
            return read_trace(self._path, limits=limits, native=native, threads=threads)
        except TraceFormatError as error:
            return error
        except Exception as error:  # noqa: BLE001 (any other is what is looked for)
            return Failure(f"raised {type(error).__name__}", repr(error))

    def _sound_prefix(self, seed: Seed) -> list[Counter[Key]]:
        """By the number of events taken, what the tables hold of the first events of a seed."""
        found = []
        for count in range(len(seed.events) + 1):
            trace = self._read(seed.layout(seed.events[:count], seed.keys))
            found.append(rows(trace) if isinstance(trace, Trace) else Counter())
        return found

    def _whole_before_damage(
        self, one: Mutated, found: Trace | TraceFormatError
    ) -> Iterator[Failure]:
        wanted = self.sound_rows(one.seed, one.sound)
        if not wanted:
            return
        if isinstance(found, TraceFormatError):
            yield Failure("refused", f"{one.sound} sound events first: {found}")
        elif lost := wanted - rows(found):
            yield Failure("lost sound events", str(list(lost)[:3]))

    def _slow(self, data: bytes) -> Iterator[Failure]:
        least_s = self._least_s(data)
        if least_s > self._limit_s:
            yield Failure("slow", f"{1e3 * least_s:.1f} ms for {len(data)} bytes")

    def _least_s(self, data: bytes) -> float:
        """The least processor time of several readings, on a machine that others use too."""

        def took_s() -> float:
            begin_s = process_time()
            self._read(data)
            return process_time() - begin_s

        return min(took_s() for _ in range(_TIMED_AGAIN))


def rows(trace: Trace) -> Counter[Key]:
    """What tells the rows of all tables apart, without times that count from a base."""
    kinds: dict[str, tuple[str, ...]] = {
        "records": ("kind", "device", "stream", "correlation"),
        "calls": ("correlation",),
        "spans": ("external_id", "sequence"),
        "device_spans": ("device", "stream"),
    }
    found: Counter[Key] = Counter()
    for name, columns in kinds.items():
        table = getattr(trace, name)
        names = [trace.names[number] for number in table.name.tolist()]
        numbers = [getattr(table, column).tolist() for column in columns]
        lengths = (table.end_ns - table.start_ns).tolist()
        found.update(zip([name] * len(names), names, lengths, *numbers, strict=True))
    return found


def unlike(one: Trace | TraceFormatError, other: Trace | TraceFormatError) -> str:
    """The first difference of two readings of a file; "" where there is none."""
    if isinstance(one, TraceFormatError) or isinstance(other, TraceFormatError):
        same = isinstance(one, TraceFormatError) and isinstance(other, TraceFormatError)
        return "" if same else f"{_outcome(one)} / {_outcome(other)}"
    for table in _TABLES:
        first, second = getattr(one, table), getattr(other, table)
        if len(first) != len(second):
            return f"{table}: {len(first)} / {len(second)} rows; {one.damage} / {other.damage}"
        for field in fields(first):
            if not np.array_equal(getattr(first, field.name), getattr(second, field.name)):
                return f"{table}.{field.name}"
    for attribute in ("names", "threads", "collectives", "shapes", "span_ns", "damage", "meta"):
        values = getattr(one, attribute), getattr(other, attribute)
        if values[0] != values[1]:
            return f"{attribute}: {values[0]} / {values[1]}"
    return ""


def _outcome(found: Trace | TraceFormatError) -> str:
    return str(found) if isinstance(found, TraceFormatError) else str(found.damage)


def _reported(trace: Trace) -> Iterator[Failure]:
    """The whole report must come of whatever was read."""
    try:
        report_trace(trace, lay_out(trace), None, JoinOptions())
    except Exception as error:  # noqa: BLE001 (any is what is looked for)
        yield Failure(f"report raised {type(error).__name__}", repr(error))


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

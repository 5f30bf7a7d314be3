"""What must hold of the reading of any input, however damaged.

Of every input that is not compressed the event array is read by the scanner, whole and cut into
pieces, and if it is sound also by the decoder in Python: all readings are the same, and hold the
events before the first change. The rest takes ten times as long and is asked of some inputs:

* of one in ten, and of all that are compressed, the file is read as a program would: nothing but
  a refusal is raised, and every row that was read is in a table or counted as lost;
* of one in 20, and of all that are compressed, the file is read another way as well: by the other
  decoder, in small blocks; each in turn;
* of one in 40 the whole report is made.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from random import Random
from time import process_time
from typing import Final, TypeAlias, TypeVar

from chopperd.errors import TraceFormatError
from chopperd.model.trace import Trace
from chopperd.report.build.clocked_device import JoinOptions
from chopperd.report.build.trace_report import report_trace
from chopperd.traces.read.document import find_opening
from chopperd.traces.read.reader import read_trace
from chopperd.traces.read.source import ReadLimits
from chopperd.traces.timeline.layout import lay_out
from tests.decoders import is_sound, read_without_scanner
from tests.fuzz.likeness import unlike_traces
from tests.fuzz.mutations import Mutated
from tests.fuzz.readings import ArrayReading, Row, read_array, unlike
from tests.fuzz.seeds import Seed

ReadT = TypeVar("ReadT")
Outcome: TypeAlias = Trace | TraceFormatError

#: Sizes of blocks that cut a small file at many places.
BLOCKS: Final = (7, 64, 97, 251, 509, 1021, 4093)

_USUAL: Final = ReadLimits()
_FILE_EACH: Final = 10
_OTHERWISE_EACH: Final = 20
_REPORTED_EACH: Final = 40
_PYTHON_IN_PIECES_EACH: Final = 6
_MAX_RATIO: Final = 3.0
_FLOOR_S: Final = 0.010
"""What single readings may cost more than others: caches, collection of garbage."""
_TIMED_AGAIN: Final = 5
_TABLES: Final = ("records", "calls", "spans", "device_spans", "flows", "memory")
#: Tables of which rows are left out without a word: of other threads, or already known.
_SILENT: Final = ("frames", "comms")


@dataclass(frozen=True, slots=True)
class Failure:
    """What does not hold of an input: a kind that others may share, and the details."""

    kind: str
    detail: str


class Oracles:
    """Reads inputs and tells what does not hold.

    Attributes:
        seen: Of how many inputs what was seen: what the mutations reach.

    Args:
        folder: Where a file may be written over and over.
        seeds: Sound traces: how long they take is what others are measured by.
        timed: Whether to judge times.
        thorough: Whether to make the rarer checks of eight times as many inputs, in every way.
    """

    def __init__(
        self, folder: Path, seeds: Sequence[Seed], *, timed: bool, thorough: bool = False
    ) -> None:
        self.seen: Counter[str] = Counter()
        self._path = folder / "input.json"
        self._timed = timed
        self._thorough = thorough
        self._sound: dict[tuple[str, int], Counter[Row]] = {}
        # Inputs are small: what a reading costs at least is most of what they cost.
        some = sorted(seeds, key=lambda seed: len(seed.text))[-3:]
        self._clean_bytes = len(some[0].text)
        self._clean_s = max(self._least_s(self._file_reading(seed.text)) for seed in some)

    def failures(self, one: Mutated, number: int) -> Iterator[Failure]:
        """All that does not hold of an input.

        Args:
            one: The input.
            number: Decides which of the rarer checks are made.
        """
        opening = None if one.packed else find_opening(one.data)
        found: ArrayReading | None = None
        if opening is not None:
            array, at = one.data[opening.position :], one.changed_at - opening.position
            read = partial(read_array, [array], native=True)
            first = self._in_time(read, len(array))
            if isinstance(first, Failure):
                yield first
                return
            found = first
            self._see(found)
            if lost := self.sound_rows(one.seed, one.sound) - found.rows:
                yield Failure("lost sound events", str(list(lost)[:3]))
            yield from self._array_otherwise(array, found, _pieces(array, at, number), number)
        elif not one.packed:
            self.seen["no list of events"] += 1
        if one.packed or self._is_due(number, _FILE_EACH):
            yield from self._file(one, found, number)

    def sound_rows(self, seed: Seed, count: int) -> Counter[Row]:
        """What is read of the first events of a seed."""
        rows = self._sound.get((seed.name, count))
        if rows is None:
            array = seed.text[seed.ends[0] : seed.ends[count]] + b"]"
            rows = self._sound[seed.name, count] = read_array([array], native=False).rows
        return rows

    def _is_due(self, number: int, each: int) -> bool:
        return number % (max(each // 8, 1) if self._thorough else each) == 0

    def _array_otherwise(
        self, array: bytes, usual: ArrayReading, pieces: Sequence[bytes], number: int
    ) -> Iterator[Failure]:
        """Read by the other decoder, and in pieces."""
        ways = {"in pieces": partial(read_array, pieces, native=True)}
        if is_sound(b"[" + array) or is_sound(b'{"":[' + array):
            ways["by Python"] = partial(read_array, [array], native=False)
            if self._is_due(number, _PYTHON_IN_PIECES_EACH):
                ways["by Python, in pieces"] = partial(read_array, pieces, native=False)
        for way, read in ways.items():
            found = self._in_time(read, len(array), in_pieces=way.endswith("in pieces"))
            if isinstance(found, Failure):
                yield Failure(f"{way}: {found.kind}", found.detail)
            elif difference := unlike(usual, found):
                yield Failure(way, f"{difference} (pieces {[len(one) for one in pieces][:9]})")

    def _file(self, one: Mutated, array: ArrayReading | None, number: int) -> Iterator[Failure]:
        usual = self._in_time(self._file_reading(one.data), len(one.data))
        if isinstance(usual, Failure):
            yield usual
            return
        self._see_outcome(usual)
        if isinstance(usual, TraceFormatError):
            if one.sound and self.sound_rows(one.seed, one.sound):
                yield Failure("refused", f"{one.sound} sound events first: {usual}")
        elif array is not None and (difference := _not_told(array, usual)):
            yield Failure("rows not told of", difference)
        due = one.packed or self._is_due(number, _OTHERWISE_EACH)
        if due and not one.broken_stream:
            yield from self._file_otherwise(one.data, usual, number)
        if self._is_due(number, _REPORTED_EACH) and isinstance(usual, Trace):
            yield from _reported(usual)

    def _file_otherwise(self, data: bytes, usual: Outcome, number: int) -> Iterator[Failure]:
        """Read by the other decoder, in small blocks: always the same."""
        block_bytes = Random(number).choice((*BLOCKS, max(len(data) // 3, 1)))
        blocks = ReadLimits(block_bytes=block_bytes)
        ways: list[tuple[str, Callable[[], Outcome]]] = [
            ("file in blocks", self._file_reading(data, blocks))
        ]
        if is_sound(data):
            ways.append(("file by Python", self._file_reading(data, native=False)))
            python_in_blocks = self._file_reading(data, blocks, native=False)
            ways.append(("file by Python, in blocks", python_in_blocks))
        turn = number // _OTHERWISE_EACH % len(ways)
        for way, read in ways if self._thorough else ways[turn : turn + 1]:
            found = self._in_time(read, len(data), in_pieces=way.endswith("in blocks"))
            if isinstance(found, Failure):
                yield Failure(f"{way}: {found.kind}", found.detail)
            elif difference := unlike_traces(usual, found):
                yield Failure(way, f"{block_bytes} bytes: {difference}")

    def _file_reading(
        self, data: bytes, limits: ReadLimits = _USUAL, *, native: bool = True
    ) -> Callable[[], Outcome]:
        """What writes a file and reads it."""

        def read() -> Outcome:
            self._path.write_bytes(data)
            try:
                reader = read_trace if native else read_without_scanner
                return reader(self._path, limits=limits)
            except TraceFormatError as error:
                return error

        return read

    def _in_time(
        self, read: Callable[[], ReadT], size_bytes: int, *, in_pieces: bool = False
    ) -> ReadT | Failure:
        """What a reading gives, if nothing is raised and it does not take too long.

        In pieces of a few bytes it may: each is looked at together with all that waits.
        """
        begin_s = process_time()
        try:
            found = read()
        except Exception as error:  # noqa: BLE001 (any is what is looked for)
            return Failure(f"raised {type(error).__name__}", repr(error))
        took_s = process_time() - begin_s
        limit_s = _FLOOR_S + _MAX_RATIO * self._clean_s * max(size_bytes / self._clean_bytes, 1.0)
        if self._timed and not in_pieces and took_s > limit_s:
            least_s = self._least_s(read)
            if least_s > limit_s:
                return Failure("slow", f"{1e3 * least_s:.1f} ms for {size_bytes} bytes")
        return found

    @staticmethod
    def _least_s(read: Callable[[], object]) -> float:
        """The least processor time of several readings, on a machine that others use too."""

        def took_s() -> float:
            begin_s = process_time()
            read()
            return process_time() - begin_s

        return min(took_s() for _ in range(_TIMED_AGAIN))

    def _see(self, found: ArrayReading) -> None:
        self.seen["arrays"] += 1
        kinds = {kind for kind, count in found.lost.items() if count}
        if found.rows:
            kinds.add("some rows")
            kinds.update(str(row[0]) for row in found.rows)
        if not found.event_count:
            kinds.add("no events")
        if found.truncated:
            kinds.add("truncated")
        self.seen.update(kinds)

    def _see_outcome(self, found: Outcome) -> None:
        self.seen["files"] += 1
        if isinstance(found, TraceFormatError):
            self.seen["files: refused"] += 1
            return
        damage = found.damage
        names = (*damage.__struct_fields__, "collectives", "shapes")
        values = {name: getattr(damage, name, None) or getattr(found, name, ()) for name in names}
        self.seen.update(f"files: {name}" for name, value in values.items() if value)


def _pieces(text: bytes, changed_at: int, number: int) -> list[bytes]:
    """A text cut somewhere: about where it was changed, into three or five, or very small."""
    random, size = Random(number), len(text)
    choice = random.randrange(16)
    if choice == 0:
        cuts = list(range(64, size, 64))
    elif choice < 3:
        cuts = list(range(0, size, size // 5 + 1))
    elif choice < 7:
        cuts = [random.randrange(size + 1) for _ in range(random.choice((1, 3)))]
    else:
        cuts = [changed_at + random.randint(-24, 24) for _ in range(random.choice((1, 2, 4)))]
    ends = [0, *sorted(min(max(cut, 0), size) for cut in cuts), size]
    return [text[a:b] for a, b in pairwise(ends)]


def _not_told(array: ArrayReading, trace: Trace) -> str:
    """Rows that are neither in a table nor counted as lost; "" where there are none."""
    damage, lost = trace.damage, array.lost
    kept = sum(len(getattr(trace, table)) for table in _TABLES)
    invalid = damage.invalid_records - lost["invalid records"]
    undecodable = damage.undecodable_events - lost["undecodable"] - lost["undecodable rows"]
    copies = damage.duplicate_records + damage.duplicate_rows
    left_out = invalid + undecodable + copies
    read = sum(many for row, many in array.rows.items() if row[0] not in _SILENT)
    if kept + left_out != read:
        return f"{read} read, {kept} kept, {left_out} left out"
    elements = array.event_count + lost["damaged"] + lost["undecodable"] + damage.further_events
    if elements != trace.meta.event_count:
        return f"{elements} elements, {trace.meta.event_count} told"
    return ""


def _reported(trace: Trace) -> Iterator[Failure]:
    """The whole report must come of whatever was read."""
    try:
        report_trace(trace, lay_out(trace), None, JoinOptions())
    except Exception as error:  # noqa: BLE001 (any is what is looked for)
        yield Failure(f"report raised {type(error).__name__}", repr(error))

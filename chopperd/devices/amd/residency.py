"""The firmware's counters of limited cycles, as cumulative time under each limit."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from chopperd.clock import Clock
from chopperd.devices.amd import table
from chopperd.devices.amd.block import Block, BlockNumber
from chopperd.devices.read_plan import NumberKind
from chopperd.model.kinds import Cause
from chopperd.units import NS_PER_S

logger = logging.getLogger(__name__)

#: How long the firmware's cycles are timed before they are taken for a time; and when that is
#: given up.
_TIMED_NS: Final = NS_PER_S
_GIVEN_UP_NS: Final = 60 * NS_PER_S
#: The firmware's time is exact about when it counted, and may be of another tick than is said.
_AGREE: Final = (0.75, 1.25)
#: What a cycle may last: AMD's documents speak of about 1 ms.
_CYCLE_NS: Final = (1_000, 1_000 * 1_000_000)
_WIDTH: Final = {NumberKind.UINT32: 1 << 32, NumberKind.UINT64: 1 << 64}
#: A counter of cycles can't count more than passed; by so much more, for clocks differ and a look
#: takes its time.
_ROOM: Final = 1.25
_ROOM_NS: Final = NS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class _Begun:
    """When the timing of cycles began: by the time that it goes by, by ours, and in cycles."""

    now_ns: int
    own_ns: int
    cycles: int


@dataclass(slots=True)
class _Counter:
    """One counter, which may wrap or begin anew.

    Attributes:
        number: Where it stands.
        weight: What one of its cycles counts for.
        low: What it is counted from now.
        passed: What came before that, in cycles.
        last: As it stood at the last look.
        is_doubtful: Whether it stood impossibly at the last look.
    """

    number: BlockNumber
    weight: float
    low: int
    last: int
    passed: int = 0
    is_doubtful: bool = False

    def cycles(self, raw: int, most: float) -> int | None:
        """Since it was first seen; it never falls. None where it stands impossibly.

        Args:
            raw: As it stands.
            most: Cycles that can have passed since the last look.
        """
        width = _WIDTH[self.number.kind]
        rise = (raw - self.last) % width
        if rise <= most:
            if raw < self.last or raw - self.low >= width // 4:
                self._count_from(raw, self.last - self.low + rise)
        elif not self.is_doubtful:
            self.is_doubtful = True
            return None
        elif not self.low <= raw <= self.high:
            # Twice: it has begun anew, and what it counted before it was seen is not known.
            self._count_from(raw, self.last - self.low)
        # Else plans have shown it where it is now: if it came back, that would be a rise.
        self.last, self.is_doubtful = raw, False
        return self.passed + raw - self.low

    @property
    def high(self) -> int:
        """What it may come to before it must be counted from another point."""
        return min(self.low + _WIDTH[self.number.kind] // 2, _WIDTH[self.number.kind] - 2)

    def _count_from(self, raw: int, passed: int) -> None:
        self.passed += passed
        self.low = raw


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterPlace:
    """Where a counter stands, for a plan; attributes as in `PlannedCounter`."""

    cause: Cause
    number: BlockNumber
    low: int
    high: int
    scale: float
    addend: float


class Residency:
    """Times under limits from a block's counters; by one thread.

    They begin at 0 when they are first seen. How long a cycle lasts is found by timing the count of
    all cycles with the firmware's own time, or ours where it tells none or one that runs
    otherwise, which takes a second; until then there are none.

    What is unexplained is a difference of counters, which falls by the cycles that two reasons
    counted. It is given as it is, by looks as by plans: were it kept from falling here, a look
    among plans would be a rise that never was.

    Args:
        block: The block, after its first look.
        clock: Tells our time.

    Attributes:
        implausible_count: Looks at a counter that stood impossibly.
    """

    def __init__(self, block: Block, clock: Clock) -> None:
        self._block = block
        self._clock = clock
        self._cycles = _cycles(block)
        found = _found(block) if self._cycles is not None else {}
        self._counters = {cause: tuple(each) for cause, each in found.items() if each}
        self._begun: _Begun | None = None
        self._begun_mono_ns = self._last_mono_ns = clock.mono_ns()
        self._cycle_ns: float | None = None
        self.implausible_count = 0

    @property
    def has_counters(self) -> bool:
        """Whether there is anything to count with."""
        return bool(self._counters)

    @property
    def is_settled(self) -> bool:
        """Whether it is known what there is to know."""
        return not self._counters or self._cycle_ns is not None

    @property
    def origin(self) -> tuple[tuple[int, int], ...]:
        """Where the counters are counted from: another whenever one wrapped or began anew."""
        counters = (each for counters in self._counters.values() for each in counters)
        return tuple((each.low, each.passed) for each in counters)

    def limited_ns(self) -> dict[Cause, int]:
        """The time under each limit after a look; none while a cycle's length is not known."""
        if not self._counters or self._block.failure is not None:
            return {}
        self._cycle_ns = cycle_ns = self._cycle_ns or self._timed()
        now_ns = self._clock.mono_ns()
        passed_ns, self._last_mono_ns = now_ns - self._last_mono_ns, now_ns
        if cycle_ns is None:
            return {}
        most = (passed_ns * _ROOM + _ROOM_NS) / cycle_ns
        counted = {cause: self._counted(each, most) for cause, each in self._counters.items()}
        return {
            cause: round(cycles * cycle_ns)
            for cause, cycles in counted.items()
            if cycles is not None
        }

    def places(self) -> Iterator[CounterPlace]:
        """Where the counters stand, once they are settled."""
        cycle_ns = self._cycle_ns
        if cycle_ns is None:
            return
        for cause, counters in self._counters.items():
            for each in counters:
                scale = cycle_ns * each.weight
                yield CounterPlace(
                    cause=cause,
                    number=each.number,
                    low=each.low,
                    high=each.high,
                    scale=scale,
                    addend=(each.passed - each.low) * scale,
                )

    def _counted(self, counters: Sequence[_Counter], most: float) -> float | None:
        """Cycles of several counters together; None where one of them is not told now."""
        total: float | None = 0.0
        for each in counters:
            raw = each.number.raw()
            cycles = None if raw is None else each.cycles(raw, most)
            if cycles is None:
                self.implausible_count += raw is not None
                total = None
            elif total is not None:
                total += each.weight * cycles
        return total

    def _timed(self) -> float | None:
        """How long a cycle lasts, ns; None while that was not seen for long enough."""
        cycles = None if self._cycles is None else self._cycles.raw()
        own_ns = self._clock.mono_ns()
        now_ns = self._block.stamp_ns()
        if now_ns is None:
            now_ns = own_ns
        if own_ns - self._begun_mono_ns >= _GIVEN_UP_NS:
            logger.warning("the firmware's cycles are no time: its times under limits are not used")
            self._counters = {}
        if cycles is None:
            return None
        if self._begun is None or cycles < self._begun.cycles or now_ns < self._begun.now_ns:
            self._begun = _Begun(now_ns=now_ns, own_ns=own_ns, cycles=cycles)
            self._begin_counters()
            return None
        passed_ns, own_passed_ns = now_ns - self._begun.now_ns, own_ns - self._begun.own_ns
        if not _AGREE[0] * own_passed_ns <= passed_ns <= _AGREE[1] * own_passed_ns:
            passed_ns = own_passed_ns
        if passed_ns < _TIMED_NS:
            return None
        passed_cycles = cycles - self._begun.cycles
        cycle_ns = passed_ns / passed_cycles if passed_cycles else 0.0
        return cycle_ns if _CYCLE_NS[0] <= cycle_ns <= _CYCLE_NS[1] else None

    def _begin_counters(self) -> None:
        """Count from what stands there now."""
        for counters in self._counters.values():
            for each in counters:
                each.low = each.last = each.number.raw() or 0


def _cycles(block: Block) -> BlockNumber | None:
    """The count of all cycles, if it is told."""
    numbers = _present(block, table.CYCLES)
    return numbers[0] if numbers else None


def _found(block: Block) -> Mapping[Cause, list[_Counter]]:
    """The counters of a block that count, by the cause that they are of."""
    if _present(block, table.BELOW_LIMIT_TOTAL):
        by_cause = {
            cause: _of_dies(block, metric, 1.0) for cause, metric in table.BELOW_LIMIT.items()
        }
        by_cause[Cause.UNEXPLAINED] = _of_dies(block, table.BELOW_LIMIT_TOTAL, 1.0)
        for metric in table.BELOW_LIMIT_REASONS:
            by_cause[Cause.UNEXPLAINED] += _of_dies(block, metric, -1.0)
        return by_cause
    return {
        cause: [_counter(each, 1.0) for metric in metrics for each in _present(block, metric)]
        for cause, metrics in table.RESIDENCY.items()
    }


def _of_dies(block: Block, metric: str, weight: float) -> list[_Counter]:
    """A counter for each die, which together count as one."""
    numbers = _present(block, metric)
    return [_counter(number, weight / len(numbers)) for number in numbers]


def _present(block: Block, metric: str) -> list[BlockNumber]:
    """The numbers of a metric that are reported."""
    place = block.place(metric)
    if place is None or place.kind not in _WIDTH:
        return []
    numbers = (block.number(place, position) for position in range(len(place.offsets)))
    return [number for number in numbers if number.raw() is not None]


def _counter(number: BlockNumber, weight: float) -> _Counter:
    raw = number.raw() or 0
    return _Counter(number=number, weight=weight, low=raw, last=raw)

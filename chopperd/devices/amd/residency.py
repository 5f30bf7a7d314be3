"""The firmware's counters of limited cycles, as cumulative time under each limit."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from chopperd.devices.amd import table
from chopperd.devices.amd.block import Block, BlockNumber
from chopperd.devices.read_plan import NumberKind
from chopperd.model.causes import Cause
from chopperd.units import NS_PER_S

#: How long the firmware's cycles are timed before they are taken for a time.
_TIMED_NS: Final = NS_PER_S
#: What a cycle may last: AMD's documents speak of about 1 ms.
_CYCLE_NS: Final = (1_000, 1_000 * 1_000_000)
_WIDTH: Final = {NumberKind.UINT32: 1 << 32, NumberKind.UINT64: 1 << 64}


@dataclass(slots=True)
class _Counter:
    """One counter, which may wrap or begin anew.

    Attributes:
        number: Where it stands.
        weight: What one of its cycles counts for.
        low: What it must not be below while nothing of that happened.
        passed: What came before `low`, in cycles.
    """

    number: BlockNumber
    weight: float
    low: int
    passed: int = 0
    last: int = 0

    def cycles(self, raw: int) -> int:
        """Since it was first seen; it never falls."""
        if raw < self.last:
            width = _WIDTH[self.number.kind]
            has_wrapped = self.last - raw > width // 2
            # One that begins anew adds nothing at first.
            self.passed += self.last - self.low + (width - self.last + raw if has_wrapped else 0)
            self.low = raw
        self.last = raw
        return self.passed + raw - self.low


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
    all cycles with the firmware's own time, which takes a second; until then there are none.

    Args:
        block: The block, after its first look.
    """

    def __init__(self, block: Block) -> None:
        self._block = block
        self._counters = {
            cause: tuple(counters) for cause, counters in _found(block).items() if counters
        }
        cycles = block.place(table.CYCLES)
        self._cycles = None if cycles is None else block.number(cycles, 0)
        self._begun: tuple[int, int] | None = None
        self._cycle_ns: float | None = None

    @property
    def has_counters(self) -> bool:
        """Whether there is anything to count with."""
        return bool(self._counters) and self._cycles is not None

    @property
    def is_settled(self) -> bool:
        """Whether it is known what there is to know."""
        return not self.has_counters or self._cycle_ns is not None

    @property
    def origin(self) -> tuple[tuple[int, int], ...]:
        """Where the counters are counted from: another whenever one wrapped or began anew."""
        counters = (each for counters in self._counters.values() for each in counters)
        return tuple((each.low, each.passed) for each in counters)

    def limited_ns(self) -> dict[Cause, int]:
        """The time under each limit after a look; none while a cycle's length is not known."""
        if not self.has_counters or self._block.failure is not None:
            return {}
        cycle_ns = self._cycle_ns or self._timed()
        if cycle_ns is None:
            return {}
        self._cycle_ns = cycle_ns
        counted = {cause: _counted(counters) for cause, counters in self._counters.items()}
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
                    high=_WIDTH[each.number.kind] - 2,
                    scale=scale,
                    addend=(each.passed - each.low) * scale,
                )

    def _timed(self) -> float | None:
        """How long a cycle lasts, ns; None while that was not seen for long enough."""
        stamp = self._block.stamp()
        cycles = None if self._cycles is None else self._cycles.raw()
        if stamp is None or cycles is None:
            return None
        if self._begun is None or cycles < self._begun[1] or stamp < self._begun[0]:
            self._begun = stamp, cycles
            return None
        passed_ns = (stamp - self._begun[0]) * table.FIRMWARE_TICK_NS
        passed_cycles = cycles - self._begun[1]
        if passed_ns < _TIMED_NS or not passed_cycles:
            return None
        cycle_ns = passed_ns / passed_cycles
        return cycle_ns if _CYCLE_NS[0] <= cycle_ns <= _CYCLE_NS[1] else None


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


def _counted(counters: Sequence[_Counter]) -> float | None:
    """Cycles of several counters together; None where one of them is not reported now."""
    total = 0.0
    for each in counters:
        raw = each.number.raw()
        if raw is None:
            return None
        total += each.weight * each.cycles(raw)
    return total

"""Converts the firmware's counters of limited cycles to cumulative time under each limit."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from chopperd.clock import Clock
from chopperd.devices.amd import table
from chopperd.devices.amd.block import Block, BlockNumber
from chopperd.devices.read_plan import NumberKind
from chopperd.model.kinds import Cause
from chopperd.plausible import Bounds
from chopperd.units import NS_PER_S

logger = logging.getLogger(__name__)

#: How long the firmware's cycles are timed before their length is known; when that is given up.
_TIMED_NS: Final = NS_PER_S
_GIVEN_UP_NS: Final = 60 * NS_PER_S
#: Ratio of the firmware's time to ours within which its timestamp is used: its tick may differ from
#: the documented one.
_AGREE: Final = (0.75, 1.25)
#: Possible length of a cycle: AMD's documents speak of about 1 ms.
_CYCLE_NS: Final = (1_000, 1_000 * 1_000_000)
_WIDTH: Final = {NumberKind.UINT32: 1 << 32, NumberKind.UINT64: 1 << 64}
#: A counter can't count more cycles than have passed, with this margin: the clocks differ, and a
#: read takes time.
_MARGIN: Final = 1.25
_MARGIN_NS: Final = NS_PER_S


@dataclass(slots=True)
class _Counter:
    """One of the firmware's counters of cycles, made continuous when it wraps or restarts at 0."""

    number: BlockNumber
    weight: float  # of one of its cycles
    low: int  # the raw value that is counted from
    last: int  # the raw value at the last read
    passed: int = 0  # cycles counted before `low`
    is_doubtful: bool = False  # whether the last read gave an impossible value

    def cycles(self, raw: int, most: float) -> int | None:
        """Take a raw value; return the cycles since the first, never falling; None if impossible.

        At `most` so many cycles can have passed since the last read.
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
            # The second time: it restarted, and what it counted before this read is not known.
            self._count_from(raw, self.last - self.low)
        # Else plans have reported it at this value: counting the return would be a false rise.
        self.last, self.is_doubtful = raw, False
        return self.passed + raw - self.low

    @property
    def high(self) -> int:
        """Highest raw value that a plan may accept before `low` must move."""
        return min(self.low + _WIDTH[self.number.kind] // 2, _WIDTH[self.number.kind] - 2)

    def _count_from(self, raw: int, passed: int) -> None:
        self.passed += passed
        self.low = raw


class CounterSlot(NamedTuple):
    """Where a plan finds a counter; the fields are as in `PlannedCounter`."""

    cause: Cause
    number: BlockNumber
    bounds: Bounds
    scale: float
    addend: float


class Residency:
    """Computes the time under each limit from a block's counters; used by one thread.

    Times start at 0 when a counter is first seen. The length of a cycle is found by timing the
    count of all cycles for a second, against the firmware's timestamp or, where that is missing or
    runs at another rate, our clock; until then there are no times.

    The unexplained time is a difference of counters, and falls by the cycles that two reasons both
    counted. Reads and plans both return it unchanged: if it were prevented from falling here, a
    read among plans would be a rise that never happened.
    """

    def __init__(self, block: Block, clock: Clock) -> None:
        self._block = block  # after its first read
        self._clock = clock
        self._cycles = next(iter(_reported(block, table.CYCLES)), None)
        found = _counters(block) if self._cycles is not None else {}
        self._counters = {cause: tuple(each) for cause, each in found.items() if each}
        #: Start of the timing: by the time that it goes by, by our clock, and in cycles.
        self._timed_from: tuple[int, int, int] | None = None
        self._begun_mono_ns = self._last_mono_ns = clock.mono_ns()
        self._cycle_ns: float | None = None
        self.implausible_count = 0  # reads of a counter that gave an impossible value

    @property
    def has_counters(self) -> bool:
        """Whether the block reports counters, and they are used."""
        return bool(self._counters)

    @property
    def is_settled(self) -> bool:
        """Whether the length of a cycle is known, or not needed as there are no counters."""
        return not self._counters or self._cycle_ns is not None

    @property
    def origin(self) -> tuple[tuple[int, int], ...]:
        """Start values (`low`, `passed`) of all counters; changes when one wraps or restarts."""
        counters = (each for counters in self._counters.values() for each in counters)
        return tuple((each.low, each.passed) for each in counters)

    def limited_ns(self) -> dict[Cause, int]:
        """Take the block's counters; return the time under each limit, ns.

        Empty while the length of a cycle is not known, and after a failed fetch.
        """
        if not self._counters or self._block.failure is not None:
            return {}
        self._cycle_ns = cycle_ns = self._cycle_ns or self._timed()
        now_ns = self._clock.mono_ns()
        passed_ns, self._last_mono_ns = now_ns - self._last_mono_ns, now_ns
        if cycle_ns is None:
            return {}
        most = (passed_ns * _MARGIN + _MARGIN_NS) / cycle_ns
        counted = {cause: self._counted(each, most) for cause, each in self._counters.items()}
        return {
            cause: round(cycles * cycle_ns)
            for cause, cycles in counted.items()
            if cycles is not None
        }

    def slots(self) -> Iterator[CounterSlot]:
        """Yield where each counter is, for a plan; nothing until the length of a cycle is known."""
        cycle_ns = self._cycle_ns
        if cycle_ns is None:
            return
        for cause, counters in self._counters.items():
            for each in counters:
                scale, bounds = cycle_ns * each.weight, Bounds(each.low, each.high)
                addend = (each.passed - each.low) * scale
                yield CounterSlot(cause, each.number, bounds, scale, addend)

    def _counted(self, counters: Sequence[_Counter], most: float) -> float | None:
        """Take and add weighted cycles of counters; None if one is not reported or impossible."""
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
        """Time the cycles; return the length of one, ns, or None until timed for a second.

        Drops all counters if no length is found within a minute.
        """
        cycles = None if self._cycles is None else self._cycles.raw()
        own_ns, stamp = self._clock.mono_ns(), self._block.stamp_ticks()
        now_ns = own_ns if stamp is None else stamp * table.FIRMWARE_TICK_NS
        if own_ns - self._begun_mono_ns >= _GIVEN_UP_NS:
            logger.warning("the firmware's cycles are no time: its times under limits are not used")
            self._counters = {}
        if cycles is None:
            return None
        begun = self._timed_from
        if begun is None or cycles < begun[2] or now_ns < begun[0]:
            self._timed_from = now_ns, own_ns, cycles
            for counters in self._counters.values():
                for each in counters:
                    each.low = each.last = each.number.raw() or 0
            return None
        passed_ns, own_passed_ns = now_ns - begun[0], own_ns - begun[1]
        if not _AGREE[0] * own_passed_ns <= passed_ns <= _AGREE[1] * own_passed_ns:
            passed_ns = own_passed_ns
        if passed_ns < _TIMED_NS:
            return None
        passed_cycles = cycles - begun[2]
        cycle_ns = passed_ns / passed_cycles if passed_cycles else 0.0
        return cycle_ns if _CYCLE_NS[0] <= cycle_ns <= _CYCLE_NS[1] else None


def _counters(block: Block) -> Mapping[Cause, list[_Counter]]:
    """Make the counters that the block reports, by cause."""
    if _reported(block, table.BELOW_LIMIT_TOTAL):
        by_cause = {
            cause: _mean_of_dies(block, metric, 1.0) for cause, metric in table.BELOW_LIMIT.items()
        }
        by_cause[Cause.UNEXPLAINED] = _mean_of_dies(block, table.BELOW_LIMIT_TOTAL, 1.0)
        for metric in table.BELOW_LIMIT_REASONS:
            by_cause[Cause.UNEXPLAINED] += _mean_of_dies(block, metric, -1.0)
        return by_cause
    return {
        cause: [_counter(each, 1.0) for metric in metrics for each in _reported(block, metric)]
        for cause, metrics in table.RESIDENCY.items()
    }


def _mean_of_dies(block: Block, metric: str, weight: float) -> list[_Counter]:
    """Make a counter for each die of a metric; their weights sum to `weight`."""
    numbers = _reported(block, metric)
    return [_counter(number, weight / len(numbers)) for number in numbers]


def _reported(block: Block, metric: str) -> list[BlockNumber]:
    """Return those numbers of a metric that are reported (not all ones)."""
    slot = block.slot(metric)
    if slot is None or slot.kind not in _WIDTH:
        return []
    numbers = (block.number(slot, index) for index in range(len(slot.offsets)))
    return [number for number in numbers if number.raw() is not None]


def _counter(number: BlockNumber, weight: float) -> _Counter:
    raw = number.raw() or 0
    return _Counter(number=number, weight=weight, low=raw, last=raw)

"""How the numbers of an invented AMD GPU move in time: what plays, and exact integrals of it.

`fake_amd_smi.c` computes the same from the same tables. Time is that of CLOCK_BOOTTIME, as the
kernel stamps `system_clock_counter` with it.
"""

import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

NS_PER_S = 10**9
#: The firmware's counters of residency step once a millisecond.
NS_PER_COUNT = 10**6
#: Counts of 2^-16 J.
COUNTS_PER_J = 65536
#: A stretch of time is told in no more than so many segments.
MOST_PIECES = 16


def boot_ns() -> int:
    """The time by which everything moves."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A stretch of time in which a GPU's values stand still.

    Attributes:
        length_ns: How long.
        die_clocks_mhz: Of each die, None for one that is gated and says nothing; or of all dies
            (of one where the card has one).
        mem_clock_mhz: None: the card's own.
        power_w: Of the card.
        temperature_c: Of the hottest spot.
        memory_temperature_c: Of the memory.
        activity_percent: Of graphics and compute.
        memory_activity_percent: Of the memory controller.
        limits: What limits the clock: "ppt", "socket_thm", "vr_thm", "hbm_thm", "prochot".
    """

    length_ns: int = NS_PER_S
    die_clocks_mhz: int | tuple[int | None, ...] = 2100
    mem_clock_mhz: int | None = None
    power_w: int = 500
    temperature_c: int = 60
    memory_temperature_c: int = 50
    activity_percent: int = 100
    memory_activity_percent: int = 40
    limits: frozenset[str] = frozenset()

    def clock_mhz(self, die: int) -> int | None:
        """The clock of a die; None: it says nothing."""
        if isinstance(self.die_clocks_mhz, int):
            return self.die_clocks_mhz
        return self.die_clocks_mhz[die] if die < len(self.die_clocks_mhz) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Segments one after the other; the last one stays, or they go round and round.

    Attributes:
        segments: At least one.
        origin_ns: When the first begins (CLOCK_BOOTTIME); counters start there.
        repeats: Whether they go round.
    """

    segments: tuple[Segment, ...]
    origin_ns: int = 0
    repeats: bool = False

    def __post_init__(self) -> None:
        assert 1 <= len(self.segments) <= MOST_PIECES

    def levels(self, value: Callable[[Segment], int]) -> tuple[int, ...]:
        """A value of each segment."""
        return tuple(value(segment) for segment in self.segments)

    @property
    def lengths_ns(self) -> tuple[int, ...]:
        """How long each segment takes."""
        return tuple(segment.length_ns for segment in self.segments)


@dataclass(frozen=True, slots=True, kw_only=True)
class Motion:
    """One number that moves.

    Attributes:
        name: The metric's name.
        place: Which number of the metric, where it has several.
        levels: What it is in each segment, or the rate at which it counts then.
        lengths_ns: Of the segments.
        counts: Whether it is a counter.
        numerator, denominator: What the rate times ns is scaled by.
        base: What a counter starts at.
        bits: Where it wraps.
        origin_ns, repeats: As of the timeline.
        at_read: Whether it is of the instant at which it is read, not at which it was measured.
    """

    name: str
    place: int = 0
    levels: tuple[int, ...]
    lengths_ns: tuple[int, ...]
    counts: bool = True
    numerator: int = 1
    denominator: int = 1
    base: int = 0
    bits: int = 64
    origin_ns: int = 0
    repeats: bool = False
    at_read: bool = False
    _ends_ns: tuple[int, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_ends_ns", tuple(accumulate(self.lengths_ns)))

    def at(self, now_ns: int) -> int:
        """The number at an instant."""
        elapsed_ns = now_ns - self.origin_ns
        if not self.counts:
            return self._level(elapsed_ns)
        counted = self._integral(max(elapsed_ns, 0)) * self.numerator // self.denominator
        return (self.base + counted) % (1 << self.bits)

    def _level(self, elapsed_ns: int) -> int:
        left_ns = elapsed_ns % self._ends_ns[-1] if self.repeats else elapsed_ns
        return self.levels[min(bisect_right(self._ends_ns, left_ns), len(self.levels) - 1)]

    def _integral(self, elapsed_ns: int) -> int:
        total = 0
        if self.repeats:
            laps, elapsed_ns = divmod(elapsed_ns, self._ends_ns[-1])
            total = laps * sum(
                level * length for level, length in zip(self.levels, self.lengths_ns, strict=True)
            )
        last = len(self.levels) - 1
        for place, (level, length) in enumerate(zip(self.levels, self.lengths_ns, strict=True)):
            taken = elapsed_ns if place == last else min(elapsed_ns, length)
            total += level * taken
            elapsed_ns -= taken
        return total


def clock(name: str, *, denominator: int = 1, at_read: bool = False, bits: int = 64) -> Motion:
    """A number that tells the time since the machine started, in `denominator` ns."""
    return Motion(
        name=name, levels=(1,), lengths_ns=(NS_PER_S,), denominator=denominator, bits=bits,
        at_read=at_read,
    )  # fmt: skip


def level(name: str, timeline: Timeline, levels: Sequence[int], place: int = 0) -> Motion:
    """A number that is as in the segment of the instant."""
    return Motion(
        name=name, place=place, levels=tuple(levels), lengths_ns=timeline.lengths_ns, counts=False,
        origin_ns=timeline.origin_ns, repeats=timeline.repeats,
    )  # fmt: skip


def counter(
    name: str, timeline: Timeline, rates: Sequence[int], *, place: int = 0, numerator: int = 1,
    denominator: int = NS_PER_COUNT, base: int = 0, bits: int = 64,
) -> Motion:  # fmt: skip
    """A number that counts at a rate of each segment."""
    return Motion(
        name=name, place=place, levels=tuple(rates), lengths_ns=timeline.lengths_ns,
        numerator=numerator, denominator=denominator, base=base, bits=bits,
        origin_ns=timeline.origin_ns, repeats=timeline.repeats,
    )  # fmt: skip

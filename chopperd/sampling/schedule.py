"""Computes when reads are due: fixed periods, a seeded random point in each; reads no clock."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from chopperd.model.arrays import Bools, Float64s, Int64s
from chopperd.model.devices import ReadScope
from chopperd.units import NS_PER_S

UInt64s: TypeAlias = npt.NDArray[np.uint64]

_INCREMENT: Final = np.uint64(0x9E3779B97F4A7C15)
#: A read at the end of its period may be late by this share of a period, as any other may.
_LATE_RATIO: Final = 0.1
#: XORed with a schedule's seed, gives the seed that draws which reads are full.
_FULL_KEY: Final = 1 << 63
_SCOPES: Final = {False: ReadScope.FAST, True: ReadScope.FULL}
#: Ticks are computed in blocks, which costs less than one by one.
_BLOCK: Final = 128


class Tick(NamedTuple):
    """One read that is due."""

    deadline_mono_ns: int  # when it should begin
    #: End of its period, or a tenth of one after its deadline if that is later. A read that is late
    #: is made at once until then; after that the period is left without one, so that a stall is
    #: never followed by a bunch of reads.
    end_mono_ns: int
    scope: ReadScope  # how much to read


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """All ticks of one GPU: period k is `[start + k·P, start + (k+1)·P)` and holds one read."""

    start_mono_ns: int  # start of period 0
    period_ns: int  # P
    full_every_count: int = 1  # one read in this many periods covers everything the device answers
    #: Draws the point inside each period, and which read is full; another for each GPU.
    seed: int = 0

    def deadlines_mono_ns(self, periods: Int64s) -> Int64s:
        """When the read of each period is due, (n,) int64 ns: uniform over the whole period.

        The points of different periods are independent: no step length can beat with the sampler.

        Source: DESIGN.md section 2, "Samples": reads in the middle 90 % leave a hole, which steps
        of exactly one period never move.
        """
        into_ns = (_uniform(self.seed, periods) * self.period_ns).astype(int)
        deadlines_ns: Int64s = self._starts_mono_ns(periods) + into_ns
        return deadlines_ns

    def are_full(self, periods: Int64s) -> Bools:
        """Whether the read of each period is full, (n,) bool; the first of all is.

        One read of each slow period is full, at random: were it always the same one, a step as long
        as the slow period would show the activity and power of one of its phases only.
        """
        slow_periods, place = np.divmod(periods, self.full_every_count)
        drawn = _uniform(self.seed ^ _FULL_KEY, slow_periods) * self.full_every_count
        are_full: Bools = (place == drawn.astype(int)) | (periods == 0)
        return are_full

    def columns(self, first: int, count: int) -> tuple[Int64s, Int64s, Bools]:
        """Return each period's deadline, end and whether its read is full (`Tick`), (count,)."""
        periods = np.arange(first, first + count)
        deadlines_ns = self.deadlines_mono_ns(periods)
        late_ns = int(_LATE_RATIO * self.period_ns)
        ends_ns = np.maximum(self._starts_mono_ns(periods + 1), deadlines_ns + late_ns)
        return deadlines_ns, ends_ns, self.are_full(periods)

    def ticks(self) -> Iterator[Tick]:
        """Yield the ticks of period 0, 1, 2, ... without end."""
        for first in count(0, _BLOCK):
            deadlines_ns, ends_ns, are_full = self.columns(first, _BLOCK)
            scopes = (_SCOPES[full] for full in are_full.tolist())
            ticks = map(Tick, deadlines_ns.tolist(), ends_ns.tolist(), scopes)
            yield from tuple(ticks)  # all now: code that runs once after a sleep runs far slower

    def _starts_mono_ns(self, periods: Int64s) -> Int64s:
        return self.start_mono_ns + periods * self.period_ns


def staggered_schedule(
    *,
    start_mono_ns: int,
    period_ns: int,
    slow_period_ns: int,
    seed: int,
    position: int,
    device_count: int,
) -> Schedule:
    """Make the schedule of one of several GPUs; their starts are spread over one period.

    Period 0 of the first GPU (position 0) starts at `start_mono_ns`; `slow_period_ns`, the time
    between two full reads, is rounded to whole periods.
    """
    return Schedule(
        start_mono_ns=start_mono_ns + position * period_ns // device_count,
        period_ns=period_ns,
        full_every_count=max(1, round(slow_period_ns / period_ns)),
        seed=seed * device_count + position,
    )


def period_ns_of(rate_hz: float) -> int:
    """Convert a rate in Hz to a period in ns."""
    return round(NS_PER_S / rate_hz)


def _uniform(seed: int, periods: Int64s) -> Float64s:
    """Draw numbers in [0, 1), (n,) float64, that depend on the arguments only.

    Source: SplitMix64 (Steele, Lea and Flood, OOPSLA 2014), its state being the seed's hash plus
    the period times the increment.
    """
    words = _mixed(np.full(1, seed % 2**64, np.uint64)) + periods.astype(np.uint64) * _INCREMENT
    uniform: Float64s = (_mixed(words) >> np.uint64(11)) / 2.0**53
    return uniform


def _mixed(words: UInt64s) -> UInt64s:
    """Hash words so that each input bit affects every bit: the finalizer of SplitMix64."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))

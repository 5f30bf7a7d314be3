"""When the next read falls: absolute periods, a seeded random point in each.

Pure arithmetic on times that the caller hands in; no clock is read and nothing waits here.
"""

from dataclasses import dataclass
from typing import Final

from chopperd.model.devices import ReadScope
from chopperd.units import NS_PER_S

#: A read falls between 5 % and 95 % of its period.
_EDGE_RATIO: Final = 0.05
_WORD: Final = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Tick:
    """One read that is due.

    Attributes:
        period: Number of the period it belongs to.
        deadline_mono_ns: When the read shall begin.
        end_mono_ns: End of the period; a read that has not begun by then belongs to no period.
        scope: How much to read.
        missed_count: Periods that were skipped since the tick before this one.
    """

    period: int
    deadline_mono_ns: int
    end_mono_ns: int
    scope: ReadScope
    missed_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """All ticks of one GPU: period k is `[start + k·P, start + (k+1)·P)` and holds one read.

    Attributes:
        start_mono_ns: Start of period 0.
        period_ns: P.
        full_every_count: Every so many periods one read covers everything the device answers.
        full_phase_count: Which of them, so that the GPUs' long reads do not coincide.
        seed: Draws the point inside each period; with another seed for each GPU.
    """

    start_mono_ns: int
    period_ns: int
    full_every_count: int = 1
    full_phase_count: int = 0
    seed: int = 0

    def deadline_mono_ns(self, period: int) -> int:
        """When the read of a period shall begin: uniform over the middle 90 % of the period.

        No step length can beat with the sampler, since the points are independent.
        """
        into = _EDGE_RATIO + (1 - 2 * _EDGE_RATIO) * _uniform(self.seed, period)
        return self.start_mono_ns + period * self.period_ns + int(into * self.period_ns)

    def scope(self, period: int) -> ReadScope:
        """How much the read of a period covers; the first one covers everything."""
        is_full = period == 0 or period % self.full_every_count == self.full_phase_count
        return ReadScope.FULL if is_full else ReadScope.FAST

    def next_tick(self, now_mono_ns: int, after_period: int) -> Tick:
        """The first tick after a period that can still be read inside the middle of its period.

        A late read is made at once while its period's middle lasts; after that the period is
        skipped and counted, so that a stall is never followed by a bunch of reads.

        Args:
            now_mono_ns: The present time.
            after_period: Number of the period last read; -1 before the first.
        """
        period = max(after_period + 1, (now_mono_ns - self.start_mono_ns) // self.period_ns)
        end_mono_ns = self.start_mono_ns + (period + 1) * self.period_ns
        if now_mono_ns > end_mono_ns - int(_EDGE_RATIO * self.period_ns):
            period += 1
            end_mono_ns += self.period_ns
        return Tick(
            period=period,
            deadline_mono_ns=self.deadline_mono_ns(period),
            end_mono_ns=end_mono_ns,
            scope=self.scope(period),
            missed_count=period - after_period - 1,
        )


def staggered_schedule(
    *,
    start_mono_ns: int,
    period_ns: int,
    slow_period_ns: int,
    seed: int,
    position: int,
    device_count: int,
) -> Schedule:
    """The schedule of one of several GPUs, whose periods start spread over one period.

    Args:
        start_mono_ns: Start of period 0 of the first GPU.
        period_ns: Time between two reads of a GPU.
        slow_period_ns: Time between two full reads of a GPU, rounded to whole periods.
        seed: The recording's seed.
        position: Which of the GPUs, from 0.
        device_count: How many GPUs there are.
    """
    full_every_count = max(1, round(slow_period_ns / period_ns))
    return Schedule(
        start_mono_ns=start_mono_ns + position * period_ns // device_count,
        period_ns=period_ns,
        full_every_count=full_every_count,
        full_phase_count=position * full_every_count // device_count,
        seed=_mixed(seed + position + 1),
    )


def period_ns_of(rate_hz: float) -> int:
    """The period of a rate, ns."""
    return round(NS_PER_S / rate_hz)


def _uniform(seed: int, period: int) -> float:
    """A number in [0, 1) that depends on nothing but its arguments."""
    return (_mixed(seed + period * 0x9E3779B97F4A7C15) >> 11) / (1 << 53)


def _mixed(value: int) -> int:
    """A 64-bit word in which each bit of the input moves every bit.

    Source: the finalizer of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
    """
    value &= _WORD
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _WORD
    return value ^ (value >> 31)

"""Computes when reads are due: fixed periods, a seeded random point in each; reads no clock."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from math import ceil, isnan
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from chopperd.model.arrays import Bools, Float64s, Int64s
from chopperd.model.devices import DeviceReading, ReadScope
from chopperd.model.kinds import Cause
from chopperd.sampling.memory.layout import Pace, Records
from chopperd.sampling.settings import SamplerSettings
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


#: The budget may be exceeded by this factor before the loop slows.
_TOLERANCE: Final = 1.1


class DriverBudget:
    """The sampling period at which driver calls stay within their share of the time.

    It is a multiple of the requested period, at most `longest_period_ns`. The time before the first
    judgement does not count: drivers do work of their own in the first calls.
    """

    def __init__(
        self, *, budget_ratio: float, asked_period_ns: int, longest_period_ns: int
    ) -> None:
        self.asked_period_ns = self.period_ns = asked_period_ns  # requested, and to use now
        self.spent_ratio = 0.0  # share of the time before the last judgement in driver calls
        #: What it would have been at the requested period, when the period was last changed.
        self.asked_ratio = 0.0
        self.budget_ratio = budget_ratio  # share that they may take
        self._most_strides = max(1, longest_period_ns // asked_period_ns)
        self._judged_at: tuple[int, int] | None = None

    def reset(self) -> None:
        """Start the next judgement from scratch: another period was used meanwhile."""
        self._judged_at = None

    def judge(self, now_mono_ns: int, driver_ns: int) -> bool:
        """Adapt `period_ns` to the share of driver time; return whether it changed."""
        before, self._judged_at = self._judged_at, (now_mono_ns, driver_ns)
        if before is None or now_mono_ns <= before[0]:
            return False
        self.spent_ratio = (driver_ns - before[1]) / (now_mono_ns - before[0])
        # Between half of the budget and a little over it, nothing changes: the loop would swing.
        if self.budget_ratio / 2 <= self.spent_ratio <= _TOLERANCE * self.budget_ratio:
            return False
        strides = self.period_ns // self.asked_period_ns
        wanted = ceil(strides * self.spent_ratio / self.budget_ratio)
        chosen = min(max(wanted, 1), self._most_strides)
        self.period_ns = chosen * self.asked_period_ns
        if chosen != strides:
            self.asked_ratio = strides * self.spent_ratio
        return chosen != strides


#: An activity reading (1 Hz) is valid for this long, as it is for the live integrals.
_ACTIVITY_NS: Final = 3 * NS_PER_S
#: A gap between reads longer than this ends an idle stretch.
_STRETCH_GAP_NS: Final = 5 * NS_PER_S
#: The driver's time is judged over this time: over less, single slow reads would swing it.
_JUDGE_EVERY_NS: Final = 5 * NS_PER_S
#: Extra time before judging where C code reads: returning to Python costs more than the reads.
_JUDGE_LATER_NS: Final = 10 * NS_PER_S

_IDLE: Final = Cause.LOW_UTILIZATION


class PaceDecision(NamedTuple):
    """The period at which a GPU is read, and why."""

    pace: Pace  # the reason for the period
    period_ns: int  # time between two reads


class IdleStretch:
    """Tracks since when a GPU has been idle, as its reads show.

    A read is idle if the driver's idle bit is set, or the activity of the last seconds is 0. It is
    not idle if nothing is known, if the idle bit is set while the GPU reports activity, or where
    the idle bit was set and no longer is: the activity lags then.
    """

    def __init__(self) -> None:
        self.since_ns: int | None = None  # start of the idle time, if it is known to be idle
        self._last_ns = 0
        self._had_idle_bit: bool | None = False
        self._is_bit_wrong = False
        self._inactive_until_ns = 0

    def note(self, now_mono_ns: int, idle_bit: bool | None, activity: float | None) -> int:
        """Add a read; return for how long the GPU has been idle, ns (0: not idle, or not known).

        `idle_bit` is what the driver reports, `activity` the busy share of its last window; None:
        not known.
        """
        if activity is not None:
            self._inactive_until_ns = 0 if activity else now_mono_ns + _ACTIVITY_NS
            self._is_bit_wrong = bool(idle_bit and activity)
        if self._is_bit_wrong:
            idle_bit = False
        had_idle_bit, self._had_idle_bit = self._had_idle_bit, idle_bit
        if not idle_bit and (had_idle_bit or now_mono_ns > self._inactive_until_ns):
            self.since_ns = None
            return 0
        if self.since_ns is None or now_mono_ns - self._last_ns > _STRETCH_GAP_NS:
            self.since_ns = now_mono_ns
        self._last_ns = now_mono_ns
        return now_mono_ns - self.since_ns


class Pacer:
    """Decides at which period one GPU is read; for one thread.

    The requested period, except: `idle_hz` on a GPU that has been idle for a while, and what the
    driver budget leaves.
    """

    def __init__(self, settings: SamplerSettings) -> None:
        self.asked_period_ns = period_ns_of(settings.hz)
        self._idle_period_ns = period_ns_of(settings.idle_hz) if settings.idle_hz else 0
        self._idle_after_ns = round(settings.idle_after_s * NS_PER_S)
        self._idle = IdleStretch()
        self.budget = DriverBudget(
            budget_ratio=settings.budget_ratio,
            asked_period_ns=self.asked_period_ns,
            # At least 1 s, also where every read is full: a slow driver needs room to slow down.
            longest_period_ns=max(period_ns_of(settings.slow_hz), NS_PER_S),
        )
        self._judge_at_ns = 0
        self._judged_driver_ns = 0
        self._is_idle = False
        self.is_outdated = False  # whether `decide` may give another result now
        self.decision = PaceDecision(Pace.ASKED, self.asked_period_ns)

    @property
    def review_at_mono_ns(self) -> int:
        """When to call `judge` and check `is_outdated` next, where C code makes the reads.

        On an idle GPU after each read, so that the end of idleness is seen at once.
        """
        if self.decision.pace is Pace.IDLE:
            return 0
        at_ns = self._judge_at_ns + _JUDGE_LATER_NS
        since_ns = self._idle.since_ns
        if since_ns is None or self._is_idle or not self._idle_period_ns:
            return at_ns
        return min(at_ns, since_ns + self._idle_after_ns)

    @property
    def review_at_driver_ns(self) -> int:
        """Total driver time (ns) at which to do so: the budget until then is spent."""
        return self._judged_driver_ns + round(self.budget.budget_ratio * _JUDGE_EVERY_NS)

    def note(self, now_mono_ns: int, reading: DeviceReading | None) -> None:
        """Update the idle state from a read; None: the read failed."""
        if not self._idle_period_ns:
            return
        idle_bit = activity = None
        if reading is not None:
            causes, activity = reading.causes, reading.activity_ratio
            idle_bit = None if causes is None else _IDLE in causes
        self._note_idle(now_mono_ns, idle_bit, activity)

    def _note_idle(self, now_mono_ns: int, idle_bit: bool | None, activity: float | None) -> None:
        is_idle = self._idle.note(now_mono_ns, idle_bit, activity) >= self._idle_after_ns
        if is_idle is not self._is_idle:
            self._is_idle = is_idle
            self.is_outdated = True

    def note_records(self, records: Records) -> None:
        """Update the idle state from (n,) records of reads that the C code made.

        These records are enough: the full ones (activity), one each second or so (that the GPU was
        read), the last one that was not idle, the last one that was active, and the last. Of a busy
        GPU the last one is enough.
        """
        if not self._idle_period_ns or not len(records):
            return
        activity = records["activity_ratio"]
        is_idle = (records["causes"] & _IDLE.bit) != 0
        if not is_idle.any() and not (activity == 0).any():
            known = float(np.fmax.reduce(activity))
            self._note_record(records[-1], None if isnan(known) else known)
            return
        chosen = records["scope"] != 0
        chosen[1:] |= np.diff(records["t_mono_ns"] // NS_PER_S) != 0
        chosen[-1] = True
        for is_busy in (~is_idle, activity > 0):
            chosen[np.flatnonzero(is_busy)[-1:]] = True
        for row in np.flatnonzero(chosen).tolist():
            value = float(activity[row])
            self._note_record(records[row], None if isnan(value) else value)

    def _note_record(self, record: np.void, activity: float | None) -> None:
        causes = int(record["causes"])
        idle_bit = None if causes & Cause.UNKNOWN.bit else bool(causes & _IDLE.bit)
        self._note_idle(int(record["t_mono_ns"]), idle_bit, activity)

    def judge(self, now_mono_ns: int, driver_ns: int) -> None:
        """Judge the total driver time up to now against the budget, every 5 s.

        Only while the budget's own period is used: another one says nothing about the budget.
        """
        if now_mono_ns < self._judge_at_ns:
            return
        self._judged_driver_ns = driver_ns
        self._judge_at_ns = now_mono_ns + _JUDGE_EVERY_NS
        if self.decision.pace is not Pace.IDLE:
            self.is_outdated |= self.budget.judge(now_mono_ns, driver_ns)

    def decide(self) -> PaceDecision:
        """Decide at which period to read from now on; stores the result in `decision`."""
        self.is_outdated = False
        asked_ns, kept_ns, before = self.asked_period_ns, self.budget.period_ns, self.decision
        if self._is_idle and self._idle_period_ns > kept_ns:
            self.decision = PaceDecision(Pace.IDLE, self._idle_period_ns)
        else:
            pace = Pace.ASKED if kept_ns == asked_ns else Pace.BUDGET
            self.decision = PaceDecision(pace, kept_ns)
        if (before.pace is Pace.IDLE) is not (self.decision.pace is Pace.IDLE):
            self.budget.reset()
            self._judge_at_ns = 0
        return self.decision

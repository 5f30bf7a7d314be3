"""Decides at which period one GPU is read, and why, within its budget of driver time."""

from math import ceil, isnan
from typing import Final, NamedTuple

import numpy as np

from chopperd.model.devices import DeviceReading
from chopperd.model.kinds import Cause
from chopperd.sampling.memory.layout import Pace, Records
from chopperd.sampling.schedule import period_ns_of
from chopperd.sampling.settings import SamplerSettings
from chopperd.units import NS_PER_S

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

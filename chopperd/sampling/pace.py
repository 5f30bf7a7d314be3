"""At which period one GPU is read now, and why, within its share of the driver's time."""

from math import ceil, isnan
from typing import Final, NamedTuple

import numpy as np

from chopperd.model.devices import DeviceReading
from chopperd.model.kinds import Cause
from chopperd.sampling.memory.layout import Pace, Records
from chopperd.sampling.orders import OrderBook
from chopperd.sampling.schedule import period_ns_of
from chopperd.sampling.settings import SamplerSettings
from chopperd.units import NS_PER_S

# How much of a driver's time one GPU's loop may take: past its budget the loop slows.

#: The budget may be passed by this factor before the loop slows.
_TOLERANCE: Final = 1.1


class DriverBudget:
    """Picks the period of a loop so that driver calls stay within their share of the time.

    The period is a multiple of the one asked for, at most the slow loop's. What comes before the
    first judgement is left out: drivers do work of their own in the first calls.

    Attributes:
        asked_period_ns: The period that was asked for.
        period_ns: The period to keep now.
        spent_ratio: Share of the time before the last judgement that driver calls took.

    Args:
        budget_ratio: The share that they may take.
        asked_period_ns: The period that was asked for.
        longest_period_ns: The longest period to fall back to.
    """

    def __init__(
        self, *, budget_ratio: float, asked_period_ns: int, longest_period_ns: int
    ) -> None:
        self.asked_period_ns = self.period_ns = asked_period_ns
        self.spent_ratio = 0.0
        self._budget_ratio = budget_ratio
        self._most_strides = max(1, longest_period_ns // asked_period_ns)
        self._judged_at: tuple[int, int] | None = None

    def begin_anew(self) -> None:
        """Leave out what comes before the next judgement: another period was kept meanwhile."""
        self._judged_at = None

    def judge(self, now_mono_ns: int, driver_ns: int) -> bool:
        """Look at the driver's time since the last call; whether the period has changed by it.

        Args:
            now_mono_ns: The present time.
            driver_ns: Time spent in driver calls up to now.
        """
        before, self._judged_at = self._judged_at, (now_mono_ns, driver_ns)
        if before is None or now_mono_ns <= before[0]:
            return False
        self.spent_ratio = (driver_ns - before[1]) / (now_mono_ns - before[0])
        return self._adapt()

    def _adapt(self) -> bool:
        """Take the period at which the calls since the last judgement would have kept the budget.

        Between half of the budget and a little over it, nothing changes: the loop would swing.
        """
        if self._budget_ratio / 2 <= self.spent_ratio <= _TOLERANCE * self._budget_ratio:
            return False
        strides = self.period_ns // self.asked_period_ns
        wanted = ceil(strides * self.spent_ratio / self._budget_ratio)
        kept = min(max(wanted, 1), self._most_strides)
        self.period_ns = kept * self.asked_period_ns
        return kept != strides


# At which period one GPU is to be read now, and why; pure arithmetic on what it is told.
#
# What is asked for holds, but for: no driver call in a quiet time, the rate of a burst, once a
# second on a GPU that has been idle for a while, and what the driver's budget leaves.

#: An activity reading (1 Hz) holds for so long, as it does for the live integrals.
_ACTIVITY_NS: Final = 3 * NS_PER_S
#: Looks further apart are not one stretch.
_STRETCH_GAP_NS: Final = 5 * NS_PER_S
#: What driver calls take is judged over so long: over less, single slow reads would swing it. A
#: burst has more reads, and can do more harm, in a second.
_JUDGE_EVERY_NS: Final = 5 * NS_PER_S
_JUDGE_BURST_EVERY_NS: Final = NS_PER_S
#: Where reads are made without Python it is judged so much later: coming back costs more than they.
_PATIENCE_NS: Final = 10 * NS_PER_S

_FOREVER_NS: Final = 2**62
_IDLE: Final = Cause.LOW_UTILIZATION


class Kept(NamedTuple):
    """What is kept to.

    Attributes:
        pace: Why.
        period_ns: Time between two reads; 0: none is made.
        wanted_ns: The period where driver calls cost nothing.
        until_mono_ns: When it is over, without anything new.
    """

    pace: Pace
    period_ns: int
    wanted_ns: int
    until_mono_ns: int


class IdleStretch:
    """Tells from looks at a GPU since when it has been idle.

    A look is idle if the driver says so of this instant (the idle bit), or the activity of the last
    seconds is 0. Nothing known is not idle, nor is an idle bit that is set while the GPU reports
    activity. Where the idle bit was set and no longer is, the GPU
    has begun to work, whatever the activity, which lags, still says.

    Attributes:
        since_ns: Since when; None if it is not idle, or that is not known.
    """

    def __init__(self) -> None:
        self.since_ns: int | None = None
        self._last_ns = 0
        self._had_idle_bit: bool | None = False
        self._is_bit_wrong = False
        self._inactive_until_ns = 0

    def note(self, now_mono_ns: int, idle_bit: bool | None, activity: float | None) -> int:
        """For how long it has been idle with this look; 0 if it is not, or that is not known.

        Args:
            now_mono_ns: When the look was.
            idle_bit: Whether the driver says that it is idle; None: not known.
            activity: Share of the last time that it was busy; None: not read with this look.
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
    """Decides for one GPU; to be used by its thread.

    Attributes:
        kept: What is kept to since the last `decide`.
        asked_period_ns: The period that was asked for.

    Args:
        settings: Rates and budgets.
        orders: What the agent asks for.
    """

    def __init__(self, settings: SamplerSettings, orders: OrderBook) -> None:
        self.asked_period_ns = period_ns_of(settings.hz)
        self._settings = settings
        self._orders = orders
        self._slow_period_ns = period_ns_of(settings.slow_hz)
        self._idle_period_ns = period_ns_of(settings.idle_hz) if settings.idle_hz else 0
        self._idle_after_ns = round(settings.idle_after_s * NS_PER_S)
        self._idle = IdleStretch()
        self._budget = self._new_budget(settings.budget_ratio, self.asked_period_ns)
        self._burst_budget: DriverBudget | None = None
        self._judge_at_ns = 0
        self._judged_driver_ns = 0
        self._version = 0
        self._is_idle = False
        self._has_news = False
        self.kept = Kept(Pace.ASKED, self.asked_period_ns, self.asked_period_ns, _FOREVER_NS)

    @property
    def spent_ratio(self) -> float:
        """Share of the time before the last judgement that driver calls took."""
        return (self._burst_budget or self._budget).spent_ratio

    @property
    def look_at_mono_ns(self) -> int:
        """When to `judge` and ask `has_news` again, where reads are made without this object.

        On an idle GPU after each read: that it works again must not wait.
        """
        if self.kept.pace is Pace.IDLE:
            return 0
        patience_ns = 0 if self._burst_budget is not None else _PATIENCE_NS
        at_ns = min(self._judge_at_ns + patience_ns, self.kept.until_mono_ns)
        since_ns = self._idle.since_ns
        if since_ns is None or self._is_idle or not self._idle_period_ns:
            return at_ns
        return min(at_ns, since_ns + self._idle_after_ns)

    @property
    def look_at_driver_ns(self) -> int:
        """The same by the time in driver calls: once it is all that they may take until then."""
        ratio, every_ns = self._settings.budget_ratio, _JUDGE_EVERY_NS
        if self._burst_budget is not None:
            ratio = max(self._settings.burst_budget_ratio, ratio)
            every_ns = _JUDGE_BURST_EVERY_NS
        return self._judged_driver_ns + round(ratio * every_ns)

    def note(self, now_mono_ns: int, reading: DeviceReading | None) -> None:
        """Take in what a look at the GPU gave; None: it failed."""
        if not self._idle_period_ns:
            return
        idle_bit = activity = None
        if reading is not None:
            causes, activity = reading.causes, reading.activity_ratio
            idle_bit = None if causes is None else _IDLE in causes
        self._note_look(now_mono_ns, idle_bit, activity)

    def _note_look(self, now_mono_ns: int, idle_bit: bool | None, activity: float | None) -> None:
        is_idle = self._idle.note(now_mono_ns, idle_bit, activity) >= self._idle_after_ns
        if is_idle is not self._is_idle:
            self._is_idle = is_idle
            self._has_news = True

    def note_records(self, records: Records) -> None:
        """Take in (n,) looks that were recorded without this object, as far as they tell.

        Those are the full ones (activity), one in each second or so (that the GPU was looked at),
        the last that was not idle, the last that was active, and the last. Of a busy GPU the last
        tells all.
        """
        if not self._idle_period_ns or not len(records):
            return
        activity = records["activity_ratio"]
        is_idle = (records["causes"] & _IDLE.bit) != 0
        if not is_idle.any() and not (activity == 0).any():
            known = float(np.fmax.reduce(activity))
            self._note_record(records[-1], None if isnan(known) else known)
            return
        tells = records["scope"] != 0
        tells[1:] |= np.diff(records["t_mono_ns"] // NS_PER_S) != 0
        tells[-1] = True
        for is_busy in (~is_idle, activity > 0):
            tells[np.flatnonzero(is_busy)[-1:]] = True
        for row in np.flatnonzero(tells).tolist():
            value = float(activity[row])
            self._note_record(records[row], None if isnan(value) else value)

    def _note_record(self, record: np.void, activity: float | None) -> None:
        causes = int(record["causes"])
        idle_bit = None if causes & Cause.UNKNOWN.bit else bool(causes & _IDLE.bit)
        self._note_look(int(record["t_mono_ns"]), idle_bit, activity)

    def judge(self, now_mono_ns: int, driver_ns: int) -> None:
        """Look, now and then, at the time that driver calls have taken.

        Only a stretch in which the budget's own period was kept says anything of it.

        Args:
            now_mono_ns: Now.
            driver_ns: Time in driver calls up to now.
        """
        if now_mono_ns < self._judge_at_ns:
            return
        in_burst = self._burst_budget is not None
        self._judged_driver_ns = driver_ns
        self._judge_at_ns = now_mono_ns + (_JUDGE_BURST_EVERY_NS if in_burst else _JUDGE_EVERY_NS)
        if self.kept.pace in {Pace.ASKED, Pace.BUDGET, Pace.BURST}:
            budget = self._burst_budget or self._budget
            self._has_news |= budget.judge(now_mono_ns, driver_ns)

    def has_news(self, now_mono_ns: int) -> bool:
        """Whether `decide` may say something else now; asked at every tick, so it costs little."""
        return (
            self._has_news
            or self._orders.version != self._version
            or now_mono_ns >= self.kept.until_mono_ns
        )

    def decide(self, now_mono_ns: int) -> Kept:
        """What to keep to from now on."""
        self._has_news = False
        self._version = self._orders.version
        before, self.kept = self.kept, self._decided(now_mono_ns)
        if _manner(before.pace) is not _manner(self.kept.pace):
            self._budget.begin_anew()
            self._judge_at_ns = 0
        return self.kept

    def _decided(self, now_ns: int) -> Kept:
        burst = self._orders.burst(now_ns)
        if burst is None:
            self._burst_budget = None
        else:
            highest_hz = self._settings.burst_hz or self._settings.hz
            wanted_ns = period_ns_of(min(burst.hz, highest_hz))
            return self._in_burst(min(wanted_ns, self.asked_period_ns), burst.until_mono_ns)
        quiet = self._orders.quiet(now_ns)
        if quiet is not None:
            return Kept(Pace.QUIET, 0, self.asked_period_ns, quiet.until_mono_ns)
        asked_ns, kept_ns = self.asked_period_ns, self._budget.period_ns
        if self._is_idle and self._idle_period_ns > kept_ns:
            return Kept(Pace.IDLE, self._idle_period_ns, asked_ns, _FOREVER_NS)
        pace = Pace.ASKED if kept_ns == asked_ns else Pace.BUDGET
        return Kept(pace, kept_ns, asked_ns, _FOREVER_NS)

    def _in_burst(self, wanted_ns: int, until_ns: int) -> Kept:
        budget = self._burst_budget
        if budget is None or budget.asked_period_ns != wanted_ns:
            ratio = max(self._settings.burst_budget_ratio, self._settings.budget_ratio)
            budget = self._burst_budget = self._new_budget(ratio, wanted_ns)
        return Kept(Pace.BURST, budget.period_ns, wanted_ns, until_ns)

    def _new_budget(self, budget_ratio: float, asked_period_ns: int) -> DriverBudget:
        return DriverBudget(
            budget_ratio=budget_ratio,
            asked_period_ns=asked_period_ns,
            # Also where every read is full: a driver that is slow must have somewhere to go.
            longest_period_ns=max(self._slow_period_ns, NS_PER_S),
        )


def _manner(pace: Pace) -> Pace:
    """What a budget tells apart: its own slowing down is none of it."""
    return Pace.ASKED if pace is Pace.BUDGET else pace

"""How much of a driver's time one GPU's loop may take: past its budget the loop slows."""

from math import ceil
from typing import Final

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

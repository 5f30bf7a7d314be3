"""How much of a driver's time one GPU's loop may take: past its budget the loop slows."""

from math import ceil
from typing import Final

from chopperd.units import NS_PER_S

#: Driver time is judged over so many reads, and at least so long.
_WINDOW_READS: Final = 5
_WINDOW_NS: Final = NS_PER_S


class DriverBudget:
    """Picks the period of a loop so that driver calls stay within their share of the time.

    The period is a multiple of the one asked for, at most the slow loop's. The first call is left
    out: drivers do work of their own in it.

    Attributes:
        period_ns: The period to keep now.
        spent_ratio: Share of the last window that driver calls took.

    Args:
        budget_ratio: The share that they may take.
        asked_period_ns: The period that was asked for.
        longest_period_ns: The longest period to fall back to.
    """

    def __init__(
        self, *, budget_ratio: float, asked_period_ns: int, longest_period_ns: int
    ) -> None:
        self.period_ns = asked_period_ns
        self.spent_ratio = 0.0
        self._budget_ratio = budget_ratio
        self._asked_period_ns = asked_period_ns
        self._most_strides = max(1, longest_period_ns // asked_period_ns)
        self._window_start_ns: int | None = None
        self._spent_ns = 0

    def spend(self, end_mono_ns: int, call_ns: int) -> bool:
        """Count a call; whether the period has changed by it.

        Args:
            end_mono_ns: When the call returned.
            call_ns: How long it took.
        """
        if self._window_start_ns is None:
            self._window_start_ns = end_mono_ns
            return False
        self._spent_ns += call_ns
        window_ns = end_mono_ns - self._window_start_ns
        if window_ns < max(_WINDOW_NS, _WINDOW_READS * self.period_ns):
            return False
        self.spent_ratio = self._spent_ns / window_ns
        self._window_start_ns, self._spent_ns = end_mono_ns, 0
        return self._adapt()

    def _adapt(self) -> bool:
        """Take the period at which the last window's calls would have kept the budget."""
        strides = self.period_ns // self._asked_period_ns
        wanted = ceil(strides * self.spent_ratio / self._budget_ratio)
        kept = min(max(wanted, 1), self._most_strides)
        self.period_ns = kept * self._asked_period_ns
        return kept != strides

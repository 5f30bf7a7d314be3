"""Checks a counter of energy against the power reported beside it, before it is believed."""

import logging
from enum import Enum, auto
from typing import Final

from chopperd.units import NS_PER_S

logger = logging.getLogger(__name__)

#: One comparison takes at least so long, and so much energy by the power.
_LONG_ENOUGH_NS: Final = 2 * NS_PER_S
_ENOUGH_J: Final = 10.0
#: Looks further apart tell nothing of the power in between.
_GAP_NS: Final = 3 * NS_PER_S
#: The power may be a mean over a time that is not known, so the two agree only about: a counter
#: that stands still, or runs at a rate that its unit does not say, is far outside.
_AGREE: Final = (0.6, 1.6)
#: Comparisons in a row that must fail: while the load changes, one of a lagging power may.
_FAILURES: Final = 5


class Verdict(Enum):
    """What is known of a counter."""

    OPEN = auto()
    RIGHT = auto()
    WRONG = auto()


class EnergyCheck:
    """Compares a counter's rise with the integral of the power over the same looks.

    Counters that stand still (MI100) or run at another rate than their unit says have been seen; on
    a module of processor and GPU one may be of both.

    Source: ROCm/amdsmi issues 38 and 115, ml-energy/zeus issue 113.

    Args:
        label: The GPU, for people.
    """

    def __init__(self, label: str) -> None:
        self._label = label
        self._last: tuple[int, float, float] | None = None
        self._failed_count = 0
        self.verdict = Verdict.OPEN
        self._begin()

    def take(self, mono_ns: int, energy_j: float | None, power_w: float | None) -> Verdict:
        """Take a look in; what is known after it."""
        if self.verdict is not Verdict.OPEN or energy_j is None or power_w is None:
            return self.verdict
        last, self._last = self._last, (mono_ns, energy_j, power_w)
        if last is None or mono_ns - last[0] > _GAP_NS or energy_j < last[1]:
            self._begin()
            return self.verdict
        self._passed_ns += mono_ns - last[0]
        self._counted_j += energy_j - last[1]
        self._expected_j += (power_w + last[2]) / 2 * (mono_ns - last[0]) / NS_PER_S
        if self._passed_ns >= _LONG_ENOUGH_NS and self._expected_j >= _ENOUGH_J:
            self._judge()
        return self.verdict

    def _begin(self) -> None:
        """Begin a comparison."""
        self._passed_ns = 0
        self._counted_j = 0.0
        self._expected_j = 0.0

    def _judge(self) -> None:
        """End a comparison."""
        if _AGREE[0] <= self._counted_j / self._expected_j <= _AGREE[1]:
            self.verdict = Verdict.RIGHT
            return
        self._failed_count += 1
        if self._failed_count < _FAILURES:
            self._begin()
            return
        self.verdict = Verdict.WRONG
        logger.warning(
            "GPU %s: its counter of energy rises by %.3g J while its power makes %.3g J; not used",
            self._label,
            self._counted_j,
            self._expected_j,
        )

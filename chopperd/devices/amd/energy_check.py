"""Checks a counter of energy against the power reported beside it, before it is believed."""

import logging
from enum import Enum, auto
from typing import Final

from chopperd.units import NS_PER_S

logger = logging.getLogger(__name__)

_LONG_ENOUGH_NS: Final = 2 * NS_PER_S
#: Looks further apart tell nothing of the power in between.
_GAP_NS: Final = 3 * NS_PER_S
_ENOUGH_J: Final = 10.0
#: A counter that has not moved for so long, at a power that should have moved it, stands still.
_STILL_NS: Final = 10 * NS_PER_S
#: Power is a mean over a time that is not known, so the two agree only about.
_AGREE: Final = (0.6, 1.6)


class Verdict(Enum):
    """What is known of a counter."""

    OPEN = auto()
    RIGHT = auto()
    WRONG = auto()


class EnergyCheck:
    """Compares a counter's rise with the integral of the power over the same looks.

    Counters that stand still (MI100) or run at another rate than their unit says have been seen:
    ROCm/amdsmi issues 38 and 115, ml-energy/zeus issue 113.
    """

    def __init__(self, label: str) -> None:
        self._label = label
        self._last: tuple[int, float, float] | None = None
        self._passed_ns = 0
        self._counted_j = 0.0
        self._expected_j = 0.0
        self.verdict = Verdict.OPEN

    def take(self, mono_ns: int, energy_j: float | None, power_w: float | None) -> Verdict:
        """Take a look in; what is known after it."""
        if self.verdict is not Verdict.OPEN or energy_j is None or power_w is None:
            return self.verdict
        last, self._last = self._last, (mono_ns, energy_j, power_w)
        if last is not None and mono_ns - last[0] <= _GAP_NS and energy_j >= last[1]:
            self._passed_ns += mono_ns - last[0]
            self._counted_j += energy_j - last[1]
            self._expected_j += (power_w + last[2]) / 2 * (mono_ns - last[0]) / NS_PER_S
            self.verdict = self._judged()
        return self.verdict

    def _judged(self) -> Verdict:
        if self._passed_ns < _LONG_ENOUGH_NS or self._expected_j < _ENOUGH_J:
            return Verdict.OPEN
        ratio = self._counted_j / self._expected_j
        if _AGREE[0] <= ratio <= _AGREE[1]:
            return Verdict.RIGHT
        if not self._counted_j and self._passed_ns < _STILL_NS:
            return Verdict.OPEN
        logger.warning(
            "GPU %s: its counter of energy rose by %.3g J while its power makes %.3g J; not used",
            self._label,
            self._counted_j,
            self._expected_j,
        )
        return Verdict.WRONG

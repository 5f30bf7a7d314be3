"""The compute dies of a simulated GPU: one governs and has the true clock, the others run higher.

Which figures are drawn is nobody's measurement: dies some tenths of a percent apart that tremble
about their means, as clocks of one chip under load do.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from chopperd.model.arrays import Float64s, Int64s
from chopperd.units import NS_PER_MS

_WAVES: Final = 3
_SHORTEST_WAVE_NS: Final = 17 * NS_PER_MS
_LONGEST_WAVE_NS: Final = 300 * NS_PER_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class DieModel:
    """How the dies of a GPU hang together.

    Attributes:
        count: How many the driver has room for.
        spread_ratio: The running ones are up to this far above the governing one.
        tremble_ratio: Deviation about their means, within a second, of those above it.
        gated: Numbers of those that are switched off. absent: Of those that there are none of.
        turn_ns: After so long the next running die governs; 0: it is always the same.
    """

    count: int
    spread_ratio: float = 0.012
    tremble_ratio: float = 0.004
    gated: tuple[int, ...] = ()
    absent: tuple[int, ...] = ()
    turn_ns: int = 0

    @property
    def running(self) -> tuple[int, ...]:
        """The others, rising."""
        return tuple(sorted(set(range(self.count)) - {*self.gated, *self.absent}))


class Dies:
    """The dies of one GPU, a function of time and of the true clock.

    Args:
        model: How they hang together.
        rng: Drawn from once, here.
    """

    def __init__(self, model: DieModel, rng: np.random.Generator) -> None:
        running = len(model.running)
        spread = rng.uniform(0.0, model.spread_ratio, running)
        shape = running, _WAVES
        self._model = model
        self._above: Float64s = spread - spread.min()
        self._period_ns: Int64s = rng.integers(_SHORTEST_WAVE_NS, _LONGEST_WAVE_NS, shape)
        self._phase: Float64s = rng.uniform(0.0, 2 * np.pi, shape)

    def governing(self, t_ns: Int64s) -> Int64s:
        """The number of the die that governs at each time."""
        turned = (int(self._above.argmin()) + self._turns(t_ns)) % len(self._above)
        return np.array(self._model.running, np.int64)[turned]

    def clocks_mhz(self, clock_mhz: Float64s, t_ns: Int64s) -> Float64s:
        """(n, count) their clocks where the true one is `clock_mhz`, (n,), at `t_ns`, (n,).

        0 of those that are off, NaN of those that there are none of.
        """
        running = len(self._above)
        place = (np.arange(running) - self._turns(t_ns)[:, None]) % running
        above = self._above[place]
        trembling = np.where(above > 0, self._tremble(t_ns), 0.0)
        clocks = np.zeros((len(t_ns), self._model.count))
        clocks[:, self._model.absent] = np.nan
        clocks[:, self._model.running] = clock_mhz[:, None] * (1 + above + trembling)
        return clocks

    def _turns(self, t_ns: Int64s) -> Int64s:
        turn_ns = self._model.turn_ns
        return t_ns // turn_ns if turn_ns else np.zeros_like(t_ns)

    def _tremble(self, t_ns: Int64s) -> Float64s:
        """(n, running): some waves each, of no common period."""
        within = t_ns[:, None, None] % self._period_ns / self._period_ns
        waves = np.sin(2 * np.pi * within + self._phase)
        height = self._model.tremble_ratio * np.sqrt(2 / _WAVES)
        trembling: Float64s = height * waves.sum(axis=2)
        return trembling

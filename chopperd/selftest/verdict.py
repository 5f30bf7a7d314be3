"""Judges whether the sampled clock explains the time of matrix products, by ratios.

A product that only computes takes a number of clock cycles that does not depend on its data. So
random data, which draw more power and with it a lower clock, must take longer than zeros by the
inverse ratio of the clocks: the cycles of a product, its time times the clock, are the same.
"""

from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Final

import numpy as np

from chopperd.model.arrays import Float64s, Int64s
from chopperd.selftest.protocol import Phase

BLOCKS_A_PHASE: Final = 5
#: A block with fewer samples has too few for a mean clock: NaN.
MIN_SAMPLES_A_BLOCK: Final = 5
#: A clock is reported in steps of at most this (NVIDIA: 15 MHz): its mean may be off by half.
CLOCK_STEP_MHZ: Final = 15.0
#: Student's t, 97.5 %, by degrees of freedom; the last holds for more.
_T_975: Final = {4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}


class Outcome(StrEnum):
    """Result of the comparison."""

    AGREES = "agrees"
    TRIVIAL = "agrees, but nothing changed"
    DISAGREES = "disagrees"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """A ratio with its 95 % interval."""

    value_ratio: float
    low_ratio: float
    high_ratio: float

    @property
    def holds_one(self) -> bool:
        """Whether the interval contains 1, that is, no difference."""
        return self.low_ratio <= 1 <= self.high_ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The comparison of random data with zeros."""

    outcome: Outcome  # the result
    meaning: str  # the result in words
    time: Ratio | None = None  # time of a product, random data over zeros
    clock: Ratio | None = None  # clock, zeros over random data
    cycles: Ratio | None = None  # time over clock ratio: 1 where the clock explains the time


def verdict(phases: list[Phase], t_mono_ns: Int64s, clock_mhz: Float64s) -> Verdict:
    """Compare the times and clocks of random data with those of zeros.

    Each phase is cut into 5 blocks. Time, clock and their product of a block are taken as
    logarithms, whose means over an operand's blocks are compared by Student's t; the clock's step
    widens what rests on it. The clock, (n,) and NaN where it was not reported, was sampled at
    `t_mono_ns`, (n,) rising.
    """
    (zeros_ns, zeros_mhz), (random_ns, random_mhz) = (
        _blocks(phases, each, t_mono_ns, clock_mhz) for each in ("zeros", "random")
    )
    if min(len(zeros_ns), len(random_ns)) < BLOCKS_A_PHASE:
        return Verdict(outcome=Outcome.UNKNOWN, meaning="the load timed too few products")
    time = _ratio(random_ns, zeros_ns)
    if np.isnan(zeros_mhz).any() or np.isnan(random_mhz).any():
        meaning = "the clock was not sampled in all of the load"
        return Verdict(outcome=Outcome.UNKNOWN, meaning=meaning, time=time)
    step = sum(CLOCK_STEP_MHZ / 2 / each.mean() for each in (zeros_mhz, random_mhz))
    clock = _ratio(zeros_mhz, random_mhz, step)
    cycles = _ratio(random_ns * random_mhz, zeros_ns * zeros_mhz, step)
    outcome = _outcome(time, clock, cycles)
    return Verdict(
        outcome=outcome, meaning=_meaning(outcome, cycles), time=time, clock=clock, cycles=cycles
    )


def _blocks(
    phases: list[Phase], operand: str, t_mono_ns: Int64s, clock_mhz: Float64s
) -> tuple[Float64s, Float64s]:
    """Return time of a product and mean clock (NaN: too few samples) of parts of the phases."""
    product_ns, mean_mhz = [], []
    for phase in phases:
        edges_ns = np.array(phase.edge_mono_ns, np.int64)
        if phase.operand != operand or len(edges_ns) <= BLOCKS_A_PHASE:
            continue
        cuts = np.linspace(0, len(edges_ns) - 1, BLOCKS_A_PHASE + 1).astype(int)
        for first, last in pairwise(cuts.tolist()):
            took_ns = int(edges_ns[last] - edges_ns[first])
            product_ns.append(took_ns / ((last - first) * phase.products_a_batch))
            mean_mhz.append(_mean(t_mono_ns, clock_mhz, int(edges_ns[first]), int(edges_ns[last])))
    return np.array(product_ns), np.array(mean_mhz)


def _mean(t_ns: Int64s, values: Float64s, start_ns: int, end_ns: int) -> float:
    """Mean of the known values in `[start_ns, end_ns)`; NaN if there are too few."""
    inside = values[(t_ns >= start_ns) & (t_ns < end_ns)]
    known = inside[~np.isnan(inside)]
    return float(known.mean()) if len(known) >= MIN_SAMPLES_A_BLOCK else float("nan")


def _ratio(over: Float64s, under: Float64s, step_ratio: float = 0.0) -> Ratio:
    """Compute the ratio of geometric means; `step_ratio` widens its interval on both sides."""
    logs = np.log(over), np.log(under)
    middle = float(logs[0].mean() - logs[1].mean())
    variance = sum(float(each.var(ddof=1)) / len(each) for each in logs)
    freedom = min(min(map(len, logs)) - 1, max(_T_975))
    half = _T_975[freedom] * float(np.sqrt(variance)) + step_ratio
    low, value, high = np.exp([middle - half, middle, middle + half]).tolist()
    return Ratio(value_ratio=value, low_ratio=low, high_ratio=high)


def _outcome(time: Ratio, clock: Ratio, cycles: Ratio) -> Outcome:
    if not cycles.holds_one:
        return Outcome.DISAGREES
    return Outcome.TRIVIAL if time.holds_one and clock.holds_one else Outcome.AGREES


def _meaning(outcome: Outcome, cycles: Ratio) -> str:
    if outcome is Outcome.AGREES:
        return "the sampled clock explains how long the products took"
    if outcome is Outcome.TRIVIAL:
        return (
            "neither clock nor time differ: this GPU does not slow down by this load, "
            "which shows nothing about the clock"
        )
    if cycles.value_ratio > 1:
        return (
            "random data took longer than the sampled clock explains: something else slowed them, "
            "or the clock fell between the samples, or another GPU was sampled"
        )
    return (
        "the sampled clock fell by more than the time rose: the products do not wait for this "
        "clock alone, or it is not the one that they ran at"
    )

"""Two ways to run, taken in turns: their ratio with its interval."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

#: Student's t, 97.5 %, by degrees of freedom from 1.
_T_975: Final = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A stretch of time under one condition: [start_mono_ns, end_mono_ns)."""

    condition: str
    pair: int
    start_mono_ns: int
    end_mono_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """One operation of a job: when it began, and what it took."""

    start_mono_ns: int
    took_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedRatio:
    """Median times under one condition over those under another, pair by pair.

    Attributes:
        pairs: How many had both.
        value_ratio: Geometric mean over the pairs; None without two pairs, like the bounds.
        low_ratio, high_ratio: Its 95 % interval.
    """

    pairs: int
    value_ratio: float | None = None
    low_ratio: float | None = None
    high_ratio: float | None = None


def inside(done: Sequence[Done], stretch: Stretch) -> list[int]:
    """What the operations took that lay inside, ns."""
    return [
        each.took_ns
        for each in done
        if stretch.start_mono_ns <= each.start_mono_ns
        and each.start_mono_ns + each.took_ns <= stretch.end_mono_ns
    ]


def medians(done: Sequence[Done], stretches: Sequence[Stretch]) -> dict[tuple[str, int], float]:
    """The median time of each stretch that has any, by condition and pair, ns."""
    times = {(each.condition, each.pair): inside(done, each) for each in stretches}
    return {key: float(np.median(took)) for key, took in times.items() if took}


def paired_ratio(found: Mapping[tuple[str, int], float], over: str, under: str) -> PairedRatio:
    """One condition over the other, by Student's t on the logarithms of the pairs' ratios."""
    pairs = sorted(
        pair for condition, pair in found if condition == over and (under, pair) in found
    )
    logs = np.log([found[over, pair] / found[under, pair] for pair in pairs])
    if len(logs) < 2:
        return PairedRatio(pairs=len(logs))
    t = _T_975[min(len(logs) - 1, len(_T_975)) - 1]
    half = t * float(logs.std(ddof=1)) / len(logs) ** 0.5
    low, value, high = np.exp([logs.mean() - half, logs.mean(), logs.mean() + half]).tolist()
    return PairedRatio(pairs=len(logs), value_ratio=value, low_ratio=low, high_ratio=high)


def shown(ratio: PairedRatio) -> str:
    """`1.002 [0.998, 1.006], 6 pairs`."""
    if ratio.value_ratio is None:
        return f"not known, {ratio.pairs} pairs"
    bounds = f"[{ratio.low_ratio:.4f}, {ratio.high_ratio:.4f}]"
    return f"{ratio.value_ratio:.4f} {bounds}, {ratio.pairs} pairs"

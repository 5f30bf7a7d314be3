"""How often `compare` declares a difference where there is none, and finds one that is there.

`python -m bench.compare` prints, for kinds of step times whose truth is known, false differences of
200 pairs of equal runs, and how often a step that is 2 % longer is found, at 100 effective steps.
"""

import argparse
from dataclasses import dataclass
from math import ceil
from typing import Final

import numpy as np

from chopperd.correlate.comparison import differences
from chopperd.model.arrays import Float64s
from chopperd.model.comparison import STEP, Difference

PAIRS: Final = 200
MOST_FALSE: Final = 18
LEAST_FOUND: Final = 0.8
STEP_NS: Final = 500e6
INJECTED: Final = 0.02
_ROWS: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Step times about a mean.

    Attributes:
        name: Of the kind.
        cv: Their standard deviation, as a share of the mean.
        rho: How much each resembles the one before (AR(1)).
        tails: Whether one in fifty is longer by 5 to 15 %, as by a checkpoint or a pause.
    """

    name: str
    cv: float
    rho: float = 0.0
    tails: bool = False


KINDS: Final = (
    Kind(name="independent, 1 %", cv=0.01),
    Kind(name="independent, 3 %", cv=0.03),
    Kind(name="half like the last, 2 %", cv=0.02, rho=0.5),
    Kind(name="much like the last, 2 %", cv=0.02, rho=0.8),
    Kind(name="pauses, 1 %", cv=0.01, tails=True),
)


def drawn(kind: Kind, rng: np.random.Generator, effective: int = 100) -> Float64s:
    """The step times of one run that has so many effective steps by the truth of its kind."""
    count = ceil(effective * (1 + kind.rho) / (1 - kind.rho))
    noise = rng.standard_normal(count) * np.sqrt(1 - kind.rho**2)
    noise[0] /= np.sqrt(1 - kind.rho**2)
    for nth in range(1, count):
        noise[nth] += kind.rho * noise[nth - 1]
    pauses = rng.uniform(0.05, 0.15, count) * (rng.random(count) < 0.02) if kind.tails else 0.0
    return np.asarray(STEP_NS * (1 + kind.cv * noise + pauses))


def pair(kind: Kind, seed: int, longer: float = 0.0) -> tuple[Difference, tuple[Difference, ...]]:
    """Two runs compared, the second's steps longer by a share, each with rows that share them."""
    rng = np.random.default_rng([seed, 15])
    sides = []
    for scale in (1.0, 1.0 + longer):
        step_ns = drawn(kind, rng, 120) * scale  # as the estimate of what counts as one errs
        shares = rng.dirichlet(np.full(_ROWS, 50.0), len(step_ns)).T
        rows = {f"waterfall_ns/{nth}": step_ns * share for nth, share in enumerate(shares)}
        sides.append([{STEP: step_ns, **rows}])
    return differences(sides[0], sides[1])


def main(argv: list[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=PAIRS)
    pairs = parser.parse_args(argv).pairs
    print(f"{pairs} pairs of equal runs: false differences, of the step time and of any row")
    print(f"(at most {MOST_FALSE} of 200); then how often +2 % is found (at least 80 %).\n")
    print("| step times | step time false | a row false | past the gate | +2 % found | verdict |")
    print("|---|---|---|---|---|---|")
    for kind in KINDS:
        equal = [pair(kind, seed) for seed in range(pairs)]
        false = sum(step.differs for step, _ in equal)
        rows = sum(any(row.differs for row in others) for _, others in equal)
        gated = sum(step.verdict != "too_few" for step, _ in equal)
        longer = [pair(kind, seed, INJECTED)[0] for seed in range(pairs, 2 * pairs)]
        found = sum(step.verdict == "higher" for step in longer) / pairs
        met = max(false, rows) <= MOST_FALSE * pairs / PAIRS and found >= LEAST_FOUND
        print(
            f"| {kind.name} | {false} | {rows} | {gated} | {100 * found:.0f} % |"
            f" {'met' if met else '**not met**'} |"
        )


if __name__ == "__main__":
    main()

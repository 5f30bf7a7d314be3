"""Tables and figures as the results page prints them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def median_and_range(values: Sequence[float], form: str = ".2f") -> str:
    """`median (least-most)`."""
    middle, least, most = np.median(values), min(values), max(values)
    return f"{middle:{form}} ({least:{form}}-{most:{form}})"


def verdict(*, met: bool) -> str:
    """How a figure stands against its limit."""
    return "met" if met else "**NOT met**"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """What was measured, against what it must and should be at most.

    Attributes:
        what: Its name, with the unit.
        shown: How it is printed.
        value: The figure that counts.
        must: At most this; None where nothing is demanded.
        aim: Better at most this; None where there is no aim.
    """

    what: str
    shown: str
    value: float
    must: float | None = None
    aim: float | None = None

    @property
    def judged(self) -> str:
        """Whether it is met, in words."""
        if self.must is None:
            return ""
        met = verdict(met=self.value <= self.must)
        if self.aim is None or self.value > self.must:
            return met
        return f"{met}, aim {verdict(met=self.value <= self.aim)}"

    @property
    def cells(self) -> list[str]:
        """Its row of `figure_table`."""
        share = f"{self.value / self.must:.2f}" if self.must else ""
        return [self.what, self.shown, _limit(self.must), _limit(self.aim), share, self.judged]


def _limit(limit: float | None) -> str:
    return "" if limit is None else f"{limit:g}"


def figure_table(figures: Iterable[Figure]) -> str:
    """Figures beside what they must be and what is aimed at, and their share of the former."""
    header = ("what", "measured", "must", "aim", "of must", "")
    return table(header, [figure.cells for figure in figures])

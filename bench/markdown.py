"""Tables and figures as the results page prints them."""

from collections.abc import Iterable, Sequence

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
    return "met" if met else "**not met**"

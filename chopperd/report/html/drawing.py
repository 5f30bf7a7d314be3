"""Draw in SVG that fits any width: lengths across in percent, heights and type in px."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import floor, log10
from typing import Final

from chopperd.model.report_rows import Row, Waterfall
from chopperd.palette import CAUSES, ROWS
from chopperd.report.html.markup import Content, Html, number, share, tag
from chopperd.report.text import wording as fmt
from chopperd.report.text.wording import known

_LOSS: Final = "dvfs_loss"
COMPUTE: Final = "compute_at_ref"
#: Rows after the loss, in the order of the stack; compute at the reference is last.
AFTER: Final = tuple(key for key in ROWS if key not in {_LOSS, COMPUTE})
EXCESS: Final = "more than its peers"
PHYSICS: Final = "its peers lose it too"
CEILING: Final = "at most, peers unknown"
#: The least share of a window that is drawn.
LEAST: Final = 3e-4
#: A point so many px from the line between its neighbours is on it.
_STRAIGHT: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A part of a bar: the key of a row or cause, whether it is pale, its time, its words."""

    key: str
    time_ns: float
    words: str
    is_pale: bool = False
    of_clock: bool = False  # whether the key is that of a cause

    @property
    def classes(self) -> str:
        """Return the class of its shape."""
        return f"{'p' if self.is_pale else 'f'}-{self.key}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """What a bar of one device shows, of a step or as a mean; times in ns, None unknown."""

    rows_ns: Mapping[str, float | None]
    by_cause_ns: Mapping[str, float]
    window_ns: float
    lost_ns: float | None
    excess_ns: float | None
    low_ns: float | None = None  # the interval of the excess
    high_ns: float | None = None

    @property
    def excess_share(self) -> float | None:
        """Return the share of the loss that the peers do not have; None if unknown."""
        if not known(self.excess_ns) or not self.lost_ns:
            return None
        return min(max(self.excess_ns / self.lost_ns, 0.0), 1.0)

    def pieces(self) -> list[Piece]:
        """Return its parts without compute at the reference: losses first, on the axis.

        What would be thinner than can be seen is in the tables only.
        """
        excess = self.excess_share
        found = []
        for is_pale in (False, True):
            ratio = 0.0 if excess is None else excess
            part = 1 - ratio if is_pale else ratio
            words = EXCESS if not is_pale else CEILING if excess is None else PHYSICS
            found += [
                Piece(
                    key=key,
                    time_ns=part * ns,
                    words=f"{mark.words}: {words}",
                    is_pale=is_pale,
                    of_clock=True,
                )
                for key, mark in CAUSES.items()
                if (ns := self.by_cause_ns.get(key) or 0) and part
            ]
        found += [
            Piece(key=key, time_ns=ns, words=words_of(key, self.lost_ns))
            for key in AFTER
            if (ns := self.rows_ns.get(key) or 0)
        ]
        return [each for each in found if each.time_ns >= LEAST * self.window_ns]

    def compute(self) -> list[Piece]:
        """Return compute at the reference clock; nothing where it is unknown or none."""
        ns = self.rows_ns.get(COMPUTE)
        return [Piece(key=COMPUTE, time_ns=ns, words=ROWS[COMPUTE].words)] if ns else []


def words_of(key: str, lost_ns: float | None) -> str:
    """Return a row's words; compute of a device without any clock is not "not sampled"."""
    is_clockless = key == "compute_unsampled" and lost_ns is None
    return "compute, clock unknown" if is_clockless else ROWS[key].words


def bar_of(row: Row) -> Bar | None:
    """Return the bar of a step's row; None without a waterfall."""
    if row.waterfall_ns is None or not row.window_ns:
        return None
    dvfs = row.dvfs
    return Bar(
        rows_ns=rows_of(row.waterfall_ns),
        by_cause_ns=dict(dvfs.by_cause_ns or {}),
        window_ns=row.window_ns,
        lost_ns=dvfs.lost_ns,
        excess_ns=dvfs.excess_ns,
        low_ns=dvfs.excess_low_ns,
        high_ns=dvfs.excess_high_ns,
    )


def rows_of(waterfall: Waterfall) -> dict[str, float | None]:
    """Return a waterfall by the keys of its rows."""
    return {key: getattr(waterfall, key) for key in ROWS}


def mean_bar(
    rows: Sequence[Row], excess_ns: float | None, low_ns: float | None, high_ns: float | None
) -> Bar | None:
    """Return the mean over rows of one device, with the excess of all of them; None without any."""
    bars = [each for each in map(bar_of, rows) if each is not None]
    if not bars:
        return None
    causes = dict.fromkeys(key for each in bars for key in each.by_cause_ns)
    lost_ns = [each.lost_ns for each in bars]
    return Bar(
        rows_ns={key: _mean([each.rows_ns[key] for each in bars]) for key in ROWS},
        by_cause_ns={
            key: sum(each.by_cause_ns.get(key, 0) for each in bars) / len(bars) for key in causes
        },
        window_ns=sum(each.window_ns for each in bars) / len(bars),
        lost_ns=_mean(lost_ns),
        excess_ns=excess_ns,
        low_ns=low_ns,
        high_ns=high_ns,
    )


def _mean(values: Sequence[float | None]) -> float | None:
    """Return the mean, unknown ones as 0; None where none is known."""
    some = [each for each in values if known(each)]
    return sum(some) / len(values) if some else None


# Shapes.


def svg(height: float, *content: Content, label: str = "", classes: str = "") -> Html:
    """Return a drawing as wide as its place; without a label it only repeats what is next to it."""
    return tag(
        "svg",
        content,
        class_=classes or None,
        height=height,
        role="img" if label else None,
        aria_label=label or None,
        aria_hidden=None if label else "true",
    )


def rect(x: float, width: float, y: float, height: float, *, classes: str, title: str = "") -> Html:
    """Return a rectangle: x and width as ratios of the width, y and height in px."""
    inner = (tag("title", title),) if title else ()
    return tag(
        "rect",
        *inner,
        x=share(x),
        width=share(max(width, 0.0)),
        y=y,
        height=max(height, 0.0),
        class_=classes,
    )


def line(x1: float, y1: float, x2: float, y2: float, classes: str) -> Html:
    """Return a line: x as ratios of the width, y in px."""
    return tag("line", x1=share(x1), y1=y1, x2=share(x2), y2=y2, class_=classes)


def text(x: float, y: float, words: str, *, anchor: str = "start", classes: str = "") -> Html:
    """Return text at a ratio of the width and y px; `anchor`: start, middle or end."""
    return tag("text", words, x=share(x), y=y, text_anchor=anchor, class_=classes or None)


def stacked(pieces: Iterable[Piece], whole_ns: float, y: float, height: float) -> list[Html]:
    """Return the pieces next to each other from the left, as shares of `whole_ns`."""
    shapes, at_ns = [], 0.0
    for each in pieces:
        x, width = at_ns / whole_ns, each.time_ns / whole_ns
        shapes.append(rect(x, width, y, height, classes=each.classes, title=title(each)))
        at_ns += each.time_ns
    return shapes


def swatch(key: str, *, is_pale: bool = False) -> Html:
    """Return a small square in the colour of a row or cause."""
    name = f"{'p' if is_pale else 'f'}-{key}"
    inner = tag("rect", x=1, y=1, width=10, height=10, rx=2, class_=name)
    return tag("svg", inner, class_="sw", aria_hidden="true")


def whisker(x1: float, x2: float, y: float, reach: float = 4) -> list[Html]:
    """Return an interval along x, with a halo."""
    ends = (line(x, y - reach, x, y + reach, "whisker") for x in (x1, x2))
    return [line(x1, y, x2, y, "halo"), line(x1, y, x2, y, "whisker"), *ends]


def upright(x: float, ends: tuple[float, float], half: float) -> list[Html]:
    """Return an interval along y, with a halo; `half` is half the width of its ends, a ratio."""
    caps = (line(x - half, y, x + half, y, "whisker") for y in ends)
    return [line(x, *_both(x, ends), "halo"), line(x, *_both(x, ends), "whisker"), *caps]


def _both(x: float, ends: tuple[float, float]) -> tuple[float, float, float]:
    return ends[0], x, ends[1]


def ticks(low: float, high: float, most: int) -> list[float]:
    """Return round numbers in [low, high], at most `most` of them."""
    span = high - low
    if span <= 0 or most < 1:
        return [low]
    rough = span / most
    unit = 10.0 ** floor(log10(rough))
    step = next(unit * by for by in (1, 2, 2.5, 5, 10) if unit * by >= rough * (1 - 1e-9))
    first = -floor(-low / step + 1e-9)
    return [at * step for at in range(first, floor(high / step + 1e-9) + 1)]


def legend(bars: Iterable[Bar], *, with_compute: bool) -> Html:
    """Return the legend of what is in these bars, and of nothing else."""
    every = list(bars)
    pieces = [piece for each in every for piece in each.pieces()]
    solid = {each.key for each in pieces if each.of_clock and not each.is_pale}
    pale = {each.key: each.words for each in reversed(pieces) if each.of_clock and each.is_pale}
    items = [
        tag(
            "li",
            [swatch(key)] * (key in solid),
            [swatch(key, is_pale=True)] * (key in pale),
            _of(mark.words, solid, key, pale.get(key, "")),
        )
        for key, mark in CAUSES.items()
        if key in solid or key in pale
    ]
    rows = {each.key: each.words for each in pieces if not each.of_clock}
    items += [tag("li", swatch(key), rows[key]) for key in AFTER if key in rows]
    if with_compute and any(each.compute() for each in every):
        items.append(tag("li", swatch(COMPUTE), ROWS[COMPUTE].words))
    if any(known(each.low_ns) and known(each.high_ns) for each in every):
        items.append(tag("li", _WHISKER, "95 % interval of the excess"))
    return tag("ul", items, class_="legend")


def _of(cause: str, solid: set[str], key: str, pale: str) -> str:
    """Return what a cause's colours stand for: solid and pale, or one of them."""
    if key in solid:
        return f"{cause}: excess, physics" if pale else f"{cause}: excess"
    return f"{cause}: physics" if pale.endswith(PHYSICS) else f"{cause}: ceiling"


_WHISKER: Final = tag(
    "svg", tag("path", d="M6 1v10M3 1h6M3 11h6", class_="whisker"), class_="sw", aria_hidden="true"
)


def title(piece: Piece) -> str:
    """Return what a piece's tooltip says."""
    return f"{piece.words} {fmt.milliseconds(piece.time_ns)} ms"


def polyline(points: Sequence[tuple[float, float]]) -> str:
    """Return the path through points, without those that lie on the line between others."""
    kept = list(points[:1])
    for one, other in pairwise(points[1:]):
        (x0, y0), (x1, y1), (x2, y2) = kept[-1], one, other
        if abs((y2 - y0) * (x1 - x0) - (y1 - y0) * (x2 - x0)) > _STRAIGHT * abs(x2 - x0):
            kept.append(one)
    kept += points[1:][-1:]
    return "M" + "L".join(f"{number(round(x, 1))} {number(round(y, 1))}" for x, y in kept)

"""Draw what ran in a step: a lane for each kind of work, on the scale of its time."""

from collections.abc import Iterable, Mapping
from typing import Final

from chopperd.model.answers import StepTimeline
from chopperd.report.html import drawing
from chopperd.report.html.drawing import svg
from chopperd.report.html.markup import Content, Html, tag
from chopperd.report.text import wording as fmt
from chopperd.units import ms_from_ns

#: Lanes, by the classes in them; other classes of compute are one lane.
_LANES: Final[Mapping[str, tuple[str, ...]]] = {
    "GEMM": ("gemm",),
    "attention": ("attention",),
    "other compute": (),
    "communication": ("comm",),
    "copies": ("memcpy", "memset"),
}
_NAMED: Final = frozenset(name for names in _LANES.values() for name in names)
_COLOURS: Final[Mapping[str, str]] = {"communication": "lane comm", "copies": "lane copy"}
_LANE: Final = 10
#: Units that are less than a pixel.
_UNSEEN: Final = 4
#: Numbers from here on end at their place.
_LAST: Final = 0.97


def spans(timeline: StepTimeline, classes: Iterable[str]) -> list[tuple[int, int]]:
    """Return the intervals of some classes as a union, begin and end in units.

    Those nearer to each other than a pixel are one.
    """
    found: list[tuple[int, int]] = []
    for name in classes:
        at = 0
        coded = timeline.lanes.get(name, ())
        for gap, length in zip(coded[0::2], coded[1::2], strict=True):
            found.append((at + gap, at + gap + length))
            at += gap + length
    merged: list[tuple[int, int]] = []
    for begin, end in sorted(found):
        if merged and begin - merged[-1][1] < _UNSEEN:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((begin, end))
    return merged


def path(intervals: Iterable[tuple[int, int]], y: float) -> str:
    """Return the path along intervals, to be drawn as a thick line at a height."""
    found, at = f"M0 {y:g}", 0
    for begin, end in intervals:
        found += f"m{begin - at} 0h{end - begin}"
        at = end
    return found


def between(intervals: Iterable[tuple[int, int]], whole: int) -> list[tuple[int, int]]:
    """Return the intervals between these, up to the end."""
    edges = [0, *(edge for each in intervals for edge in each), whole]
    pairs = zip(edges[0::2], edges[1::2], strict=True)
    return [(begin, end) for begin, end in pairs if end > begin]


def units(timeline: StepTimeline) -> int:
    """Return how long a timeline is, in its units."""
    return max(-(-timeline.window_ns // timeline.unit_ns), 1)


def boxed(timeline: StepTimeline, height: float, *content: Content) -> Html:
    """Return shapes whose x is in units of the timeline and y in px."""
    return tag(
        "svg",
        content,
        class_="box",
        viewBox=f"0 0 {units(timeline)} {height:g}",
        height=height,
        preserveAspectRatio="none",
    )


def others(timeline: StepTimeline) -> list[str]:
    """Return the classes of compute without a lane of their own."""
    return [name for name in timeline.lanes if name not in _NAMED]


def lanes(timeline: StepTimeline) -> Html:
    """Return what ran, a line for each kind of work."""
    lines = []
    for label, names in _LANES.items():
        ran = spans(timeline, names or others(timeline))
        if not ran:
            continue
        busy = sum(end - begin for begin, end in ran) / units(timeline)
        shape = tag("path", d=path(ran, _LANE / 2), class_=_COLOURS.get(label, "lane"))
        said = f"{label}: {fmt.percent(busy, 0)} % of the step"
        drawn = svg(_LANE, boxed(timeline, _LANE, shape), label=said)
        lines += [tag("span", label), drawn]
    return tag("div", lines, class_="lanes")


def axis(timeline: StepTimeline) -> Html:
    """Return the scale of time under a drawing."""
    window = ms_from_ns(timeline.window_ns)
    words = [
        drawing.text(
            mark / window, 12, f"{mark:g}" if mark else "0 ms", anchor=_anchor(mark / window)
        )
        for mark in drawing.ticks(0, window, 6)
    ]
    return tag("div", tag("span"), svg(16, words), class_="plot clock")


def _anchor(x: float) -> str:
    """Return how a number stands at its place, so that none leaves the drawing."""
    return "start" if x <= 0 else "end" if x > _LAST else "middle"

"""Draw the clock of critical steps under what ran: the area above the line is the loss."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from chopperd.model.answers import StepTimeline, TracedDrop
from chopperd.model.report import ReportDocument
from chopperd.model.report_rows import ClockStats, Row
from chopperd.palette import CAUSES, ROWS
from chopperd.report.html import drawing
from chopperd.report.html.drawing import svg, swatch
from chopperd.report.html.lanes import axis, between, boxed, lanes, others, path, spans, units
from chopperd.report.html.markup import Html, number, sentence, tag
from chopperd.report.html.tables import room
from chopperd.report.text import wording as fmt
from chopperd.report.text.wording import known

_SUB: Final = (
    "Critical device of a step. The coloured area between the line and the reference is the loss: "
    "solid what the peers do not lose, pale what they lose too."
)
_LANES_ONLY: Final = "Critical device of a step. Its clock is not known."
_HEIGHT: Final = 200
_TOP: Final = 30
#: Lines of words nearer to each other than this, in px, are moved apart.
_APART: Final = 13
_COMPUTE: Final = "compute"
_UNSAMPLED: Final = "compute_unsampled"
#: Samples by what ran: the class of their points, and the words.
_KINDS: Final = (
    ("compute", {_COMPUTE}, "sample in compute"),
    ("comm", {"comm"}, "sample in communication only"),
    ("rest", {"copy", "idle"}, "sample while copying or idle"),
)


@dataclass(frozen=True, slots=True)
class _Sample:
    """A sample: its time in units, its clock, what ran, and the key of its cause."""

    at: float
    mhz: float
    ran: str
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Level:
    """Heights of clocks in the drawing, and the clocks that it is compared with."""

    low_mhz: float
    high_mhz: float
    reference_mhz: float | None
    peers_mhz: float | None
    mean: ClockStats | None

    def y(self, mhz: float) -> float:
        """Return the height of a clock, px from the top."""
        ratio = (mhz - self.low_mhz) / (self.high_mhz - self.low_mhz)
        return _TOP + (_HEIGHT - _TOP) * (1 - ratio)


def clock_under_kernels(document: ReportDocument) -> Html | None:
    """Return a drawing for each step with a timeline, one of which is shown; None without any."""
    if not document.timeline:
        return None
    rows = {(r.job, r.run, r.rank, r.device, r.step, r.start_unix_ns): r for r in document.steps}
    pairs = []
    for each in document.timeline:
        place = each.job, each.run, each.rank, each.device, each.step, each.start_unix_ns
        if place in rows:
            pairs.append((each, rows[place]))
    if not pairs:
        return None
    first = max(range(len(pairs)), key=lambda nth: _own_ns(pairs[nth][1]))
    shown: set[str] = set()
    choices = [
        _choice(nth, *pair, document, shown, is_first=nth == first)
        for nth, pair in enumerate(pairs)
    ]
    is_clocked = any(each.samples for each, _ in pairs)
    title = "Clock under the kernels" if is_clocked else "What ran in a step"
    group = tag("div", choices, class_="figures", role="radiogroup", aria_label="Step")
    return room("clock", title, _SUB if is_clocked else _LANES_ONLY, group, _legend(shown))


def _own_ns(row: Row) -> int:
    return (row.window_ns or 0) - (row.waterfall_ns.exposed_comm if row.waterfall_ns else 0)


def _choice(
    nth: int,
    timeline: StepTimeline,
    row: Row,
    document: ReportDocument,
    shown: set[str],
    *,
    is_first: bool,
) -> list[Html]:
    """Return the button of a step and its figure, which style alone shows when it is chosen.

    What the figure has of the legend is added to `shown`.
    """
    identity = f"t-{nth}"
    step = str(timeline.step)
    button = tag(
        "input", type="radio", name="timeline", id=identity, checked=is_first, data_step=step
    )
    figure = tag(
        "figure",
        lanes(timeline),
        _clock(timeline, row, document, shown) if timeline.samples else None,
        axis(timeline),
        tag("figcaption", sentence(_said(timeline, row)), class_="caption"),
    )
    return [button, tag("label", f"step {step}", for_=identity), figure]


def _said(timeline: StepTimeline, row: Row) -> str:
    gpu = f"GPU {row.gpu}" if row.gpu is not None else f"device {row.device}"
    rank = "" if row.rank is None else f", rank {row.rank}"
    text = f"{gpu}{rank}, step {row.step}: {fmt.milliseconds(row.window_ns)} ms"
    mean = row.clock.compute if row.clock is not None else None
    if mean is None or not known(mean.mean_mhz):
        return text
    interval = ""
    if known(mean.low_mhz) and known(mean.high_mhz):
        interval = f" [{fmt.whole(mean.low_mhz)}, {fmt.whole(mean.high_mhz)}]"
    text += f", {fmt.whole(mean.mean_mhz)} MHz{interval} in compute"
    every = f", every {timeline.every}th drawn" if timeline.every > 1 else ""
    return f"{text} from {fmt.plural(mean.samples, 'sample')}{every}"


def _samples(timeline: StepTimeline) -> list[_Sample]:
    found, at = [], 0.0
    values = timeline.samples
    for nth in range(0, len(values) - 4, 5):
        dt, mhz, _, ran, cause = values[nth : nth + 5]
        at += float(dt or 0)
        if mhz is not None:
            key = str(cause) if cause in CAUSES else "unknown"
            found.append(_Sample(at, float(mhz), str(ran), key))
    return found


def _level(row: Row, samples: Sequence[_Sample], reference_mhz: float | None) -> _Level:
    mean = row.clock.compute if row.clock is not None else None
    peers_mhz = row.peers.median_mhz if row.peers is not None else None
    clocks = [each.mhz for each in samples]
    every = [*clocks, *(each for each in (reference_mhz, peers_mhz) if known(each))]
    low, high = min(every), max(every)
    margin = (high - low) * 0.08 or 10.0
    return _Level(
        low_mhz=low - margin,
        high_mhz=high if high == reference_mhz else high + margin,
        reference_mhz=reference_mhz,
        peers_mhz=peers_mhz,
        mean=mean,
    )


def _clock(timeline: StepTimeline, row: Row, document: ReportDocument, shown: set[str]) -> Html:
    """Return the drawing of the clock in one step."""
    samples = _samples(timeline)
    level = _level(row, samples, _reference_mhz(document, row))
    computing = [each for each in samples if each.ran == _COMPUTE]
    runs = list(_runs(computing, (timeline.most_apart_ns or 0) / timeline.unit_ns))
    areas = list(_areas(runs, level)) if level.reference_mhz is not None else []
    unsampled = _unsampled(runs, units(timeline), level)
    compute = spans(timeline, ("gemm", "attention", *others(timeline)))
    idle = tag("path", d=path(between(compute, units(timeline)), _HEIGHT / 2), class_="cover")
    lines = [tag("path", d=_line(run, level), class_="line") for run in runs if len(run) > 1]
    drops = [each for each in document.drops if _overlaps(each, timeline, row)]
    heights = {mhz: level.y(mhz) for mhz in drawing.ticks(level.low_mhz, level.high_mhz, 7)}
    drawn = svg(
        _HEIGHT,
        boxed(timeline, _HEIGHT, unsampled, [shape for _, shape in areas], idle),
        [drawing.line(0, y, 1, y, "grid") for y in heights.values()],
        boxed(timeline, _HEIGHT, lines, list(_dots(samples, level))),
        _words(level),
        [_drop(each, timeline) for each in drops],
        label=_said(timeline, row),
    )
    shown |= {key for key, _ in areas} | {each.ran for each in samples}
    shown |= {_UNSAMPLED} if unsampled else set()
    shown |= {"peers"} if known(level.peers_mhz) else set()
    return tag("div", _gutter(heights), drawn, class_="plot clock")


def _reference_mhz(document: ReportDocument, row: Row) -> float | None:
    place = row.rank, row.device, row.gpu
    found = (e for e in document.devices if (e.rank, e.device, e.gpu) == place)
    return next((each.reference.sm_clock_mhz for each in found), None)


def _gutter(heights: Mapping[float, float]) -> Html:
    """Return the scale of clocks at the left."""
    every = [*((f"{mhz:g}", y + 4) for mhz, y in heights.items()), ("MHz", 12)]
    words = [tag("text", text, x="100%", dx=-8, y=y, text_anchor="end") for text, y in every]
    return svg(_HEIGHT, words)


def _runs(samples: Sequence[_Sample], most_apart: float) -> Iterator[list[_Sample]]:
    """Yield the samples in compute in groups, between which the clock is not known."""
    run: list[_Sample] = []
    for each in samples:
        if run and each.at - run[-1].at > most_apart:
            yield run
            run = []
        run.append(each)
    if run:
        yield run


def _areas(runs: Iterable[list[_Sample]], level: _Level) -> Iterator[tuple[str, Html]]:
    """Yield the class and shape of each area of loss: of a cause, solid or pale."""
    reference_mhz, peers_mhz = level.reference_mhz or 0.0, level.peers_mhz
    split_mhz = level.low_mhz if peers_mhz is None else min(peers_mhz, reference_mhz)
    bounds = (("f", level.low_mhz, split_mhz), ("p", split_mhz, reference_mhz))
    for cause, part in (each for run in runs for each in _by_cause(run)):
        for kind, low_mhz, high_mhz in bounds:
            if min(mhz for _, mhz in part) < high_mhz and low_mhz < high_mhz:
                name = f"{kind}-{cause}"
                yield name, tag("path", d=_area(part, low_mhz, high_mhz, level), class_=name)


def _by_cause(run: Sequence[_Sample]) -> Iterator[tuple[str, list[tuple[float, float]]]]:
    """Yield stretches of one cause as points of the line; a cause holds halfway to the next."""
    cause, points = run[0].cause, [(run[0].at, run[0].mhz)]
    for one, other in pairwise(run):
        if other.cause != cause:
            middle = ((one.at + other.at) / 2, (one.mhz + other.mhz) / 2)
            yield cause, [*points, middle]
            cause, points = other.cause, [middle]
        points.append((other.at, other.mhz))
    yield cause, points


def _area(
    points: Sequence[tuple[float, float]], low_mhz: float, high_mhz: float, level: _Level
) -> str:
    """Return the area between the line, as far as it lies within bounds, and the upper one."""
    within = _crossing(_crossing(points, low_mhz), high_mhz)
    edge = [(at, level.y(min(max(mhz, low_mhz), high_mhz))) for at, mhz in within]
    return f"{drawing.polyline(edge)}V{number(level.y(high_mhz))}H{number(edge[0][0])}z"


def _crossing(points: Sequence[tuple[float, float]], mhz: float) -> list[tuple[float, float]]:
    """Return the points of a line, with those at which it crosses a clock."""
    found = [points[0]]
    for one, other in pairwise(points):
        if (one[1] - mhz) * (other[1] - mhz) < 0:
            share = (mhz - one[1]) / (other[1] - one[1])
            found.append((one[0] + share * (other[0] - one[0]), mhz))
        found.append(other)
    return found


def _unsampled(runs: Sequence[list[_Sample]], units: int, level: _Level) -> list[Html]:
    """Return hatched shapes where no samples say what the clock was."""
    edges = [0.0, *(edge for run in runs for edge in (run[0].at, run[-1].at)), float(units)]
    top = level.y(level.reference_mhz or level.high_mhz)
    return [
        tag(
            "rect",
            x=begin,
            width=end - begin,
            y=top,
            height=_HEIGHT - top,
            class_="f-compute_unsampled",
        )
        for begin, end in zip(edges[0::2], edges[1::2], strict=True)
        if end - begin > 1
    ]


def _line(run: Sequence[_Sample], level: _Level) -> str:
    return drawing.polyline([(each.at, level.y(each.mhz)) for each in run])


def _dots(samples: Sequence[_Sample], level: _Level) -> Iterator[Html]:
    """Yield the samples as points, those of each kind as one shape."""
    for name, kinds, _ in _KINDS:
        d = "".join(f"M{e.at:.0f} {level.y(e.mhz):.1f}h0" for e in samples if e.ran in kinds)
        if d:
            yield tag("path", d=d, class_=f"dots {name}")


def _words(level: _Level) -> list[Html]:
    """Return the lines of reference, peers and mean, with their names and the mean's interval."""
    found: list[tuple[float, str, str]] = []
    shapes: list[Html] = []
    mean = level.mean
    if mean is not None and known(mean.mean_mhz):
        if known(mean.low_mhz) and known(mean.high_mhz):
            upper, lower = level.y(mean.high_mhz), level.y(mean.low_mhz)
            shapes.append(drawing.rect(0, 1, upper, lower - upper, classes="band"))
        found.append((level.y(mean.mean_mhz), f"mean {fmt.whole(mean.mean_mhz)}", "thin"))
    if known(level.peers_mhz):
        found.append((level.y(level.peers_mhz), f"peers {fmt.whole(level.peers_mhz)}", "thin"))
    if known(level.reference_mhz):
        found.append(
            (level.y(level.reference_mhz), f"reference {fmt.whole(level.reference_mhz)}", "thin")
        )
    written = -100.0
    for y, words, classes in sorted(found):
        shapes.append(drawing.line(0, y, 1, y, classes))
        written = max(y - 4, written + _APART)
        shapes.append(drawing.text(0.995, written, words, anchor="end", classes="over"))
    return shapes


def _overlaps(drop: TracedDrop, timeline: StepTimeline, row: Row) -> bool:
    start_ns = timeline.start_unix_ns
    if start_ns is None or (drop.rank, drop.device) != (row.rank, row.device):
        return False
    end_ns = drop.end_unix_ns
    return drop.start_unix_ns < start_ns + timeline.window_ns and (
        end_ns is None or end_ns > start_ns
    )


def _drop(drop: TracedDrop, timeline: StepTimeline) -> list[Html]:
    start_ns, window_ns = timeline.start_unix_ns or 0, timeline.window_ns
    left = max((drop.start_unix_ns - start_ns) / window_ns, 0.0)
    end_ns = drop.end_unix_ns
    right = 1.0 if end_ns is None else min((end_ns - start_ns) / window_ns, 1.0)
    cause = fmt.largest_shares(drop.by_cause_ns, 1)
    words = f"drop to {fmt.whole(drop.mean_mhz)} MHz" + (f", {cause}" if cause else "")
    middle = min(max((left + right) / 2, 0.12), 0.88)
    return [
        drawing.rect(left, right - left, 18, 2, classes="alert"),
        drawing.text(middle, 13, words, anchor="middle", classes="alert"),
    ]


def _legend(shown: set[str]) -> Html:
    """Return the legend of what the figures show, and of nothing else."""
    items = []
    for key, mark in CAUSES.items():
        solid, pale = f"f-{key}" in shown, f"p-{key}" in shown
        if solid or pale:
            both = [swatch(key)] * solid + [swatch(key, is_pale=True)] * pale
            rest = "physics" if "peers" in shown else "ceiling"
            items.append(tag("li", both, f"{mark.words}: {'excess, physics' if solid else rest}"))
    if _UNSAMPLED in shown:
        items.append(tag("li", swatch(_UNSAMPLED), ROWS[_UNSAMPLED].words))
    for name, kinds, words in _KINDS:
        if kinds & shown:
            dot = tag("path", d="M6 6h.01", class_=f"dots {name}")
            items.append(tag("li", tag("svg", dot, class_="sw", aria_hidden="true"), words))
    return tag("ul", items, class_="legend")

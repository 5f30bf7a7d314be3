"""Draw GPUs against their peers, classes of kernels, holders of idle time, and the key figure."""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from chopperd.correlate.ranks.comparing import peers_of
from chopperd.model.report import GpuLine, ReportDocument
from chopperd.model.report_rows import ClassTotal, ClockStats
from chopperd.palette import ROWS
from chopperd.report.html import drawing
from chopperd.report.html.drawing import line, rect, svg
from chopperd.report.html.markup import Html, figure, sentence, share, tag
from chopperd.report.html.tables import Column, panel
from chopperd.report.text import sections
from chopperd.report.text import wording as fmt
from chopperd.report.text.costs import gpu_name
from chopperd.report.text.holders import ROW_WORDS, who_held_it
from chopperd.report.text.tables import classes
from chopperd.report.text.wording import known

_COMM: Final = frozenset({"comm", "memcpy", "memset"})
_EXCESS_OF: Final = "excess ms [95 %]"


def gauge(document: ReportDocument) -> Html | None:
    """Return the key figure beside the first lines: the mean step as one bar, with its parts."""
    summary = document.summary
    if summary is None or not summary.step_ns or not summary.waterfall_ns:
        return None
    causes = {each.cause: each.share * (summary.lost_ns or 0) for each in summary.causes}
    bar = drawing.Bar(
        rows_ns={key: summary.waterfall_ns.get(key) for key in ROWS},
        by_cause_ns=causes,
        window_ns=summary.step_ns,
        lost_ns=summary.lost_ns,
        excess_ns=summary.excess_ns,
    )
    pieces = [*bar.pieces(), *bar.compute()]
    shapes = drawing.stacked(pieces, bar.window_ns, 0, 26)
    largest = sorted(pieces, key=lambda piece: -piece.time_ns)[:6]
    key = [
        (
            drawing.swatch(each.key, is_pale=each.is_pale),
            tag("span", each.words),
            tag("span", fmt.milliseconds(each.time_ns)),
        )
        for each in pieces
        if each in largest
    ]
    is_file = summary.basis == "totals"
    label = "The whole file" if is_file else "A step of the critical device"
    return tag(
        "div",
        tag("div", label, class_="label"),
        tag("div", fmt.short_ms(summary.step_ns), " ", tag("small", "ms"), class_="big"),
        svg(26, shapes, label=f"{label}: " + ", ".join(map(drawing.title, largest))),
        tag("div", key, class_="key"),
        class_="gauge",
    )


def compared(document: ReportDocument) -> Html | None:
    """Return the table of GPUs; each mean clock is drawn, with its interval and the peers'."""
    table = sections.gpus(document)
    summary = document.summary
    if table is None or summary is None:
        return None
    lines = sections.by_excess(summary.gpus)[: len(table.rows)]
    drawn = _clocks(document, lines)
    sub = ""
    if drawn:
        sub = (
            "Mean clock in compute with its 95 % interval; grey: the natural spread around the "
            "peers' median. A GPU is named only when its whole interval is out of it."
        )
    return panel("gpus", table, tag("p", sub, class_="sub") if sub else None, extra=drawn)


def _clocks(document: ReportDocument, lines: Sequence[GpuLine]) -> list[Column]:
    means = [each.mean_mhz for each in lines if known(each.mean_mhz)]
    if len(means) < 2:
        return []
    stats = {
        (row.rank, row.device): row.clock.compute
        for row in document.totals
        if row.clock is not None and row.clock.compute is not None
    }
    found = [stats.get((each.rank, each.device)) for each in lines]
    ends = [end for each in found if each for end in (each.low_mhz, each.high_mhz) if known(end)]
    medians = [each.peers_median_mhz for each in lines if known(each.peers_median_mhz)]
    low, high = min(*means, *ends, *medians), max(*means, *ends, *medians)
    spread = _spread(document, stats)
    if spread is not None:
        low, high = min(low, spread[0]), max(high, spread[1])
    margin = (high - low) * 0.04 or 1.0
    scale = _Scale(low - margin, high + margin)
    cells = [_clock(one, of, spread, scale) for one, of in zip(lines, found, strict=True)]
    return [_ScaleColumn(scale, cells)]


class _Scale:
    """Where a clock is across a drawing."""

    def __init__(self, low_mhz: float, high_mhz: float) -> None:
        self.low_mhz, self.high_mhz = low_mhz, high_mhz

    def __call__(self, mhz: float) -> float:
        return (mhz - self.low_mhz) / (self.high_mhz - self.low_mhz)


class _ScaleColumn(Column):
    """The column of clocks, with its scale as header."""

    def __init__(self, scale: _Scale, cells: Sequence[Html]) -> None:
        super().__init__(2, "", cells, "bar")
        self._scale = scale

    def header(self) -> Html:
        """Return the scale, in MHz."""
        marks = drawing.ticks(self._scale.low_mhz, self._scale.high_mhz, 4)
        words = [
            drawing.text(x, 12, f"{mark:g}", anchor="middle")
            for mark in marks
            if 0.04 < (x := self._scale(mark)) < 0.96
        ]
        return tag("td", svg(16, words), class_="bar")


def _spread(
    document: ReportDocument, stats: Mapping[tuple[int | None, int | None], ClockStats]
) -> tuple[float, float] | None:
    """Return how far equal GPUs lie around their median; None for fewer than four of one model."""
    lines = document.summary.gpus if document.summary is not None else ()
    means = np.array([each.mean_mhz if known(each.mean_mhz) else np.nan for each in lines])
    halves = np.array([_half_mhz(stats.get((each.rank, each.device))) for each in lines])
    peers = peers_of(means, halves)
    if peers is None or len({each.name for each in document.devices}) > 1:
        return None
    half_mhz = peers.margin_ratio * peers.reference_mhz
    return peers.reference_mhz - half_mhz, peers.reference_mhz + half_mhz


def _half_mhz(of: ClockStats | None) -> float:
    if of is None or not known(of.low_mhz) or not known(of.high_mhz):
        return np.nan
    return (of.high_mhz - of.low_mhz) / 2


def _clock(
    one: GpuLine, of: ClockStats | None, spread: tuple[float, float] | None, scale: _Scale
) -> Html:
    shapes = []
    if spread is not None:
        shapes.append(
            rect(scale(spread[0]), scale(spread[1]) - scale(spread[0]), -6, 32, classes="spread")
        )
    if known(one.peers_median_mhz):
        x = scale(one.peers_median_mhz)
        shapes.append(line(x, -6, x, 26, "axis"))
    if not known(one.mean_mhz):
        return svg(20, shapes)
    said = f"{gpu_name(one)}: {fmt.whole(one.mean_mhz)} MHz"
    if of is not None and known(of.low_mhz) and known(of.high_mhz):
        shapes += drawing.whisker(scale(of.low_mhz), scale(of.high_mhz), 10)
        said += f" [{fmt.whole(of.low_mhz)}, {fmt.whole(of.high_mhz)}]"
    colour = "alert" if one.stands_out else "point"
    dot = tag(
        "circle", tag("title", said), cx=share(scale(one.mean_mhz)), cy=10, r=4, class_=colour
    )
    return svg(20, shapes, dot, label=said)


def classes_of(document: ReportDocument) -> Html | None:
    """Return the table of classes, with bars of total and exposed time, and the excess."""
    table = classes(document)
    if table is None:
        return None
    rows = [row for row in document.totals if row.classes and row.is_critical]
    rows = rows or [row for row in document.totals if row.classes]
    by_name: dict[str, list[ClassTotal]] = {}
    for each in (each for row in rows for each in row.classes):
        by_name.setdefault(fmt.words(each.class_), []).append(each)
    found = [by_name.get(row[0], []) for row in table.rows]
    longest_ns = max((sum(e.total_ns for e in those) for those in found), default=0) or 1
    extra = [Column(1, "", [_class_bar(those, longest_ns) for those in found], "bar")]
    if len(rows) == 1 and any(known(e.excess_ns) for those in found for e in those):
        cells = [_excess(those[0]) if those else "" for those in found]
        extra.append(Column(len(table.known_cells()[0]), _EXCESS_OF, cells, "num"))
    sub = "Bar: exposed time; pale: the rest of the total, with another class at the same time."
    return panel("classes", table, tag("p", sub, class_="sub"), extra=extra)


def _class_bar(those: Sequence[ClassTotal], longest_ns: float) -> Html:
    total_ns = sum(each.total_ns for each in those)
    exposed = [each.exposed_ns for each in those if each.exposed_ns is not None]
    of = those[0].class_ if those else ""
    colour = {"comm": "exposed_comm"}.get(of, "exposed_copy" if of in _COMM else "kernel")
    shapes = [rect(0, total_ns / longest_ns, 3, 10, classes=f"p-{colour}")]
    if those and len(exposed) == len(those):
        shapes.append(
            rect(0, min(sum(exposed), total_ns) / longest_ns, 3, 10, classes=f"f-{colour}")
        )
    return svg(16, shapes)


def _excess(each: ClassTotal) -> Html | None:
    if not known(each.excess_ns):
        return figure(fmt.UNKNOWN)
    interval = fmt.ms_interval(each.excess_low_ns, each.excess_high_ns)
    return sentence(" ".join(filter(None, (fmt.milliseconds(each.excess_ns), interval))))


def holders_of(document: ReportDocument) -> Html | None:
    """Return the table of who held the device, with the colours of its rows."""
    table = who_held_it(document)
    if table is None:
        return None
    keys = {words: key for key, words in ROW_WORDS.items()}
    swatches = [drawing.swatch(keys[row[0]]) if row[0] in keys else "" for row in table.rows]
    return panel("held", table, extra=[Column(0, "", swatches)])

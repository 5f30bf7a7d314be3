"""Draw what each step lost to the clock, and its time outside compute."""

from collections.abc import Sequence
from typing import Final

from chopperd.model.report import ReportDocument
from chopperd.model.report_rows import Row
from chopperd.report.html import drawing
from chopperd.report.html.drawing import Bar, rect, svg
from chopperd.report.html.markup import Html, sentence, tag
from chopperd.report.html.tables import room, table_of
from chopperd.report.text import sections
from chopperd.report.text import wording as fmt
from chopperd.report.text.lists import critical_rows
from chopperd.report.text.wording import known
from chopperd.units import ms_from_ns

_HEIGHT: Final = 190
_TOP: Final = 22
#: Steps that are drawn, the last ones; and of how many the number is written under the bar.
_MOST_STEPS: Final = 160
_MOST_NUMBERS: Final = 24
#: On a narrow screen every other number is left out of more than so many.
_MOST_ON_PHONES: Final = 12
#: Bars of fewer steps are not wider than of so many.
_LEAST_SLOTS: Final = 8
_BAR: Final = 0.62
#: The title, and the line under it, by whether the clock is known.
_TITLES: Final = {
    True: (
        "What each step lost",
        "Critical device of each step: what its clock lost, and time outside compute. "
        "Compute at the reference clock is not drawn.",
    ),
    False: (
        "Time outside compute, by step",
        "Critical device of each step. Its clock is not known.",
    ),
}


def strip(document: ReportDocument) -> Html | None:
    """Return the drawing of the steps' losses with its table; None without steps of a device."""
    pairs = [(row, bar) for row in critical_rows(document.steps) if (bar := drawing.bar_of(row))]
    shown = pairs[-_MOST_STEPS:]
    table = sections.steps(document)
    if not shown or table is None or len({row.step for row, _ in shown}) < len(shown):
        return None
    is_clocked = any(known(bar.lost_ns) for _, bar in shown)
    if not is_clocked:
        shown = [(row, _outside(bar)) for row, bar in shown]
    title, sub = _TITLES[is_clocked]
    if len(shown) < len(pairs):
        sub += f" The last {len(shown)} of {fmt.count(len(pairs))} steps."
    details = tag(
        "details",
        tag("summary", "As a table"),
        table_of(table),
        tag("p", sentence(table.caption), class_="caption"),
    )
    legend = drawing.legend([bar for _, bar in shown], with_compute=False)
    return room("steps", title, sub, _plot(document, shown), legend, details)


def _plot(document: ReportDocument, shown: Sequence[tuple[Row, Bar]]) -> Html:
    """Return the drawing: scale, a bar and a number a step, and the marks of drops."""
    rows = [row for row, _ in shown]
    bars = [bar for _, bar in shown]
    top_ns = max(_drawn_ns(each) for each in bars) or 1.0
    top_ns = max(top_ns, *(each.high_ns or 0 for each in bars))
    slots = max(len(bars), _LEAST_SLOTS)
    marks = drawing.ticks(0, ms_from_ns(top_ns), 4)
    heights = [_y(mark * 1e6, top_ns) for mark in marks]
    places = ((nth / slots, 1 / slots) for nth in range(len(bars)))
    drawn = svg(
        _HEIGHT,
        [drawing.line(0, y, 1, y, "grid") for y in heights],
        [_bar(*place, *pair, top_ns) for place, pair in zip(places, shown, strict=False)],
        _drops(document, rows, slots),
        label=_said(rows, bars),
        classes="strip",
    )
    numbers = [_number(nth, row, len(rows)) for nth, row in enumerate(rows)]
    empty = [tag("span")] * (slots - len(rows))
    picks = tag("div", numbers, empty, class_="picks")
    return tag("div", _axis(marks, top_ns), drawn, picks, class_="plot")


def _drawn_ns(bar: Bar) -> float:
    return sum(piece.time_ns for piece in bar.pieces())


def _outside(bar: Bar) -> Bar:
    """Return the bar without compute, as no clock is known in any step: that is no loss."""
    return Bar(
        rows_ns={**bar.rows_ns, "compute_unsampled": None},
        by_cause_ns={},
        window_ns=bar.window_ns,
        lost_ns=None,
        excess_ns=None,
    )


def _y(time_ns: float, top_ns: float) -> float:
    return _HEIGHT - (_HEIGHT - _TOP) * time_ns / top_ns


def _axis(marks: Sequence[float], top_ns: float) -> Html:
    words = [
        tag("text", f"{mark:g}", x=36, y=_y(mark * 1e6, top_ns) + 4, text_anchor="end")
        for mark in marks
    ]
    unit = tag("text", "ms", x=36, y=10, text_anchor="end")
    return svg(_HEIGHT, words, unit)


def _bar(left: float, slot: float, row: Row, bar: Bar, top_ns: float) -> Html:
    x, width, base_ns = left + slot * (1 - _BAR) / 2, slot * _BAR, 0.0
    shapes: list[Html] = []
    for piece in bar.pieces():
        upper = _y(base_ns + piece.time_ns, top_ns)
        height = _y(base_ns, top_ns) - upper
        said = drawing.title(piece)
        shapes.append(rect(x, width, upper, height, classes=piece.classes, title=said))
        base_ns += piece.time_ns
    if known(bar.low_ns) and known(bar.high_ns) and bar.lost_ns:
        ends = _y(bar.low_ns, top_ns), _y(bar.high_ns, top_ns)
        shapes += drawing.upright(left + slot / 2, ends, slot * 0.09)
    faded = " faded" if row.tail or row.partial else ""
    return tag("g", shapes, class_=f"step{faded}", data_step=row.step)


def _number(nth: int, row: Row, count: int) -> Html:
    every = -(-count // _MOST_NUMBERS)
    window = fmt.short_ms(row.window_ns)
    remark = next((each for each in ("tail", "partial") if getattr(row, each)), "")
    said = f"step {row.step}, {window} ms{', ' + remark if remark else ''}"
    if nth % every:
        return tag("span", data_step=row.step, title=said)
    below = tag("span", remark or f"{window} ms", class_="opt") if every == 1 else None
    is_close = nth % 2 and count > _MOST_ON_PHONES
    name = tag("b", str(row.step), class_="opt" if is_close else None)
    return tag("span", name, below, data_step=row.step, title=said)


def _drops(document: ReportDocument, shown: Sequence[Row], slots: int) -> list[Html]:
    """Return a mark above the steps in which the clock of the critical device dropped."""
    places = {row.step: (nth, row) for nth, row in enumerate(shown)}
    found: list[Html] = []
    for drop in document.drops:
        touched = [
            nth
            for step, (nth, row) in places.items()
            if drop.steps
            and step is not None
            and drop.steps[0] <= step <= drop.steps[1]
            and (row.rank, row.device) == (drop.rank, drop.device)
        ]
        if touched:
            left, right = min(touched) / slots, (max(touched) + 1) / slots
            words = f"drop, {fmt.decimal(drop.duration_ns / 1e9, 1)} s"
            found.append(rect(left, right - left, _TOP - 8, 2, classes="alert"))
            middle = min(max((left + right) / 2, 0.05), 0.95)
            found.append(drawing.text(middle, _TOP - 12, words, anchor="middle", classes="alert"))
    return found


def _said(shown: Sequence[Row], bars: Sequence[Bar]) -> str:
    totals = [_drawn_ns(each) for each in bars]
    most = max(range(len(totals)), key=totals.__getitem__)
    return (
        f"{fmt.plural(len(shown), 'step')}, each with its loss by cause and its time outside "
        f"compute; the most in step {shown[most].step}: {fmt.milliseconds(totals[most])} of "
        f"{fmt.milliseconds(bars[most].window_ns)} ms"
    )

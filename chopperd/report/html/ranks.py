"""Draw where the step went on each device, the one that sets the pace first."""

from collections import defaultdict
from typing import Final, TypeAlias

import msgspec

from chopperd.model.report import ReportDocument
from chopperd.model.report_rows import Row
from chopperd.palette import CAUSES, ROWS
from chopperd.report.build.summary import is_complete
from chopperd.report.html import drawing
from chopperd.report.html.drawing import Bar, svg
from chopperd.report.html.markup import Html, figure, tag
from chopperd.report.html.tables import Column, room, table_of, title_of
from chopperd.report.text import sections
from chopperd.report.text import wording as fmt
from chopperd.report.text.wording import known
from chopperd.units import ms_from_ns

_SUB: Final = (
    "Mean of the complete steps, the device that sets the pace first. Losses stand at the left, "
    "so that they can be compared."
)
_HEADS: Final = ("excess ms [95 %]", "lost ms", "window ms")
_BAR_HEIGHT: Final = 18
#: Numbers nearer to the right end of the scale have no room.
_LAST: Final = 0.97

_Place: TypeAlias = tuple[int | None, int | None]
_Interval: TypeAlias = tuple[float | None, float | None, float | None]


def by_rank(document: ReportDocument) -> Html | None:
    """Return a bar for each device, and the waterfall of the critical one as a table."""
    waterfall = sections.waterfall(document)
    if waterfall is None:
        return None
    lines = _ranked(document)
    bars = [bar for _, bar in lines]
    longest_ns = max((each.window_ns for each in bars), default=1.0)
    heads = (
        tag("th", each, scope="col", class_="num opt" if each == _HEADS[-1] else "num")
        for each in _HEADS
    )
    table = tag(
        "table",
        tag("caption", "Mean time of each device", class_="sr"),
        tag("thead", tag("tr", tag("th", "GPU", scope="col"), _scale(longest_ns), heads)),
        tag("tbody", [_line(row, bar, longest_ns) for row, bar in lines]),
        class_="bars",
    )
    title, of = title_of(waterfall)
    by_words = {drawing.words_of(key, ns): key for key in ROWS for ns in (None, 1.0)}
    keys = [by_words.get(row[0]) for row in waterfall.rows]
    swatches = [drawing.swatch(key) if key else "" for key in keys]
    details = tag(
        "details",
        tag("summary", f"As a table: {of}"),
        table_of(waterfall, [Column(0, "", swatches)]),
    )
    sub = _SUB if len(lines) > 1 else f"{of[:1].upper()}{of[1:]}."
    legend = drawing.legend(bars, with_compute=True)
    is_clocked = any(known(each.lost_ns) for each in bars)
    return room("ranks", title, sub, table, legend, details, _keys(is_clocked=is_clocked))


def _keys(*, is_clocked: bool) -> Html:
    """Return what the script draws bars of other steps with: keys and words in order."""
    rows = [*drawing.AFTER, drawing.COMPUTE]
    data = {
        "causes": [(key, mark.words) for key, mark in CAUSES.items()],
        "rows": [(key, drawing.words_of(key, 1.0 if is_clocked else None)) for key in rows],
        "least": drawing.LEAST,
        "excess": drawing.EXCESS,
        "physics": drawing.PHYSICS,
        "ceiling": drawing.CEILING,
    }
    text = Html(msgspec.json.encode(data).decode())
    return tag("script", text, type="application/json", id="rank-keys")


def _ranked(document: ReportDocument) -> list[tuple[Row, Bar]]:
    """Return a row and the mean bar of each device, the largest own work first."""
    summary = document.summary
    is_file = summary is None or summary.basis == "totals"
    rows = document.totals if is_file else [row for row in document.steps if is_complete(row)]
    by_device: defaultdict[_Place, list[Row]] = defaultdict(list)
    for row in rows:
        if row.device is not None:
            by_device[row.rank, row.device].append(row)
    steps = len({(row.job, row.run, row.step) for row in rows})
    found = []
    for place, those in by_device.items():
        excess = _of_row(those[0]) if steps == 1 else _of_run(document, place, steps)
        bar = drawing.mean_bar(those, *excess)
        if bar is not None:
            found.append((those[0], bar, sum(map(_own_ns, those)) / len(those)))
    found.sort(key=lambda each: -each[2])
    return [(row, bar) for row, bar, _ in found]


def _own_ns(row: Row) -> float:
    """Return the window without waiting for other ranks; without communication if not known."""
    split = row.exposed_comm_ns
    comm_ns = row.waterfall_ns.exposed_comm if row.waterfall_ns else 0
    wait_ns = split.wait if split is not None and split.wait is not None else comm_ns
    return (row.window_ns or 0) - wait_ns


def _of_row(row: Row) -> _Interval:
    dvfs = row.dvfs
    return dvfs.excess_ns, dvfs.excess_low_ns, dvfs.excess_high_ns


def _of_run(document: ReportDocument, place: _Place, steps: int) -> _Interval:
    """Return a device's excess a step, with its interval, if these are all steps of the summary.

    It is by the mean clocks of the run: those of single steps do not add up to it.
    """
    summary = document.summary
    for each in () if summary is None or summary.steps != steps else summary.gpus:
        if (each.rank, each.device) == place:
            return (
                each.excess_ns_per_step,
                each.excess_low_ns_per_step,
                each.excess_high_ns_per_step,
            )
    return None, None, None


def name_of(row: Row) -> Html:
    """Return a device's name: its GPU, and its rank."""
    gpu = f"GPU {row.gpu}" if row.gpu is not None else f"device {row.device}"
    rank = tag("span", f" rank {row.rank}", class_="ci") if row.rank is not None else None
    return tag("span", tag("b", gpu), rank)


def _line(row: Row, bar: Bar, longest_ns: float) -> Html:
    pieces = bar.pieces()
    shapes = drawing.stacked([*pieces, *bar.compute()], longest_ns, 1, 16)
    if known(bar.low_ns) and known(bar.high_ns) and bar.lost_ns:
        shapes += drawing.whisker(bar.low_ns / longest_ns, bar.high_ns / longest_ns, 9)
    largest = max(pieces, key=lambda piece: piece.time_ns, default=None)
    said = f"; most: {drawing.title(largest)}" if largest else ""
    label = f"window {fmt.milliseconds(bar.window_ns)} ms{said}"
    interval = fmt.ms_interval(bar.low_ns, bar.high_ns)
    grey = tag("span", f" {interval}", class_="ci") if interval else None
    return tag(
        "tr",
        tag("th", name_of(row), scope="row"),
        tag("td", svg(_BAR_HEIGHT, shapes, label=label), class_="bar"),
        tag("td", figure(fmt.milliseconds(bar.excess_ns)), grey, class_="num"),
        tag("td", figure(fmt.milliseconds(bar.lost_ns)), class_="num"),
        tag("td", figure(fmt.milliseconds(bar.window_ns)), class_="num opt"),
        data_rank=row.rank,
        data_device=row.device,
    )


def _scale(longest_ns: float) -> Html:
    longest = ms_from_ns(longest_ns)
    words = [
        drawing.text(
            mark / longest,
            11,
            f"{mark:g}" if mark else "0 ms",
            anchor="middle" if mark else "start",
        )
        for mark in drawing.ticks(0, longest, 5)
        if mark / longest < _LAST
    ]
    return tag("td", svg(14, words), class_="bar")

"""Render the report as text: four lines for a manager, then tables, in 100 columns."""

from collections.abc import Iterable, Iterator, Sequence
from io import StringIO
from re import compile as pattern
from textwrap import wrap
from typing import Final, TypeVar

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from chopperd.model.report import By, ReportDocument
from chopperd.model.report_rows import (
    CollectiveTraffic,
    Contention,
    CopyTraffic,
    Efficiency,
    Family,
    Row,
)
from chopperd.model.safe_text import visible_lines
from chopperd.report.text import sections
from chopperd.report.text.headline import HeadlineRow, headline
from chopperd.report.text.sections import table
from chopperd.report.text.tables import TITLES, classes, families, host_parts, parts, why_none
from chopperd.report.text.wording import (
    UNKNOWN,
    count,
    decimal,
    known,
    milliseconds,
    percent,
    shorten,
    size,
    spread,
    words,
)

# Tables of copies, collectives, contention and efficiency, over the whole files.

_SHOWN: Final = 8
_GIGA: Final = 1e9
_COLLECTIVE_WIDTH: Final = 16
_GROUP_WIDTH: Final = 18
_RANKS_WIDTH: Final = 13
_SIZED: Final = "moved, GB/s: of those whose size the trace gives"
_WAITS: Final = "ms hold the wait for late ranks; bus: what a rank's links carry"

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")


def copies(document: ReportDocument) -> Group | None:
    """Render the table of copies, one line a direction, over all devices; None without copies."""
    every = [each for row in document.totals for each in row.copies]
    if not every:
        return None
    alike = _grouped((each.direction, each) for each in every)
    columns = ("<direction", "count", "ms", "moved", "GB/s")
    rows = [_copy_cells(direction, members) for direction, members in alike.items()]
    partly = any(each.sized_count < each.count for each in every)
    return table("COPIES  whole file", columns, rows, caption=_SIZED if partly else "")


def _copy_cells(direction: str, members: Sequence[CopyTraffic]) -> tuple[str, ...]:
    return (
        direction,
        count(sum(each.count for each in members)),
        milliseconds(sum(each.time_ns for each in members)),
        _moved(each.bytes for each in members),
        _rates(each.rate_bytes_per_s for each in members),
    )


def _moved(sizes: Iterable[int | None]) -> str:
    known_sizes = [each for each in sizes if each is not None]
    return size(sum(known_sizes)) if known_sizes else UNKNOWN


def _rates(rates: Iterable[float | None]) -> str:
    return spread([each / _GIGA for each in rates if known(each)], digits=1)


def collectives(document: ReportDocument) -> Group | None:
    """Render the table of collectives, a line for each kind of group, over all devices.

    Shows those with the most time; None without any.
    """
    every = [each for row in document.totals for each in row.collectives]
    if not every:
        return None
    alike = _grouped(((each.name, each.group_description, each.group_size), each) for each in every)
    lines = sorted(alike.values(), key=lambda those: -sum(each.time_ns for each in those))
    title = "COLLECTIVES  whole file"
    if len(lines) > _SHOWN:
        title += f", {_SHOWN} with the most time of {count(len(lines))} (--format json)"
    columns = ("<collective", "<group", "ranks", "count", "ms", "moved", "GB/s", "bus GB/s")
    rows = [_collective_cells(members) for members in lines[:_SHOWN]]
    partly = any(each.sized_count < each.count for each in every)
    return table(title, columns, rows, caption=f"{_WAITS}\n{_SIZED}" if partly else _WAITS)


def _collective_cells(members: Sequence[CollectiveTraffic]) -> tuple[str, ...]:
    first = members[0]
    names = sorted({each.group for each in members if each.group is not None})
    label = first.group_description or ", ".join(names) or UNKNOWN
    return (
        shorten(first.name, _COLLECTIVE_WIDTH),
        shorten(label, _GROUP_WIDTH),
        _ranks(members),
        count(sum(each.count for each in members)),
        milliseconds(sum(each.time_ns for each in members)),
        _moved(each.bytes for each in members),
        _rates(each.algorithm_bytes_per_s for each in members),
        _rates(each.bus_bytes_per_s for each in members),
    )


def _ranks(members: Sequence[CollectiveTraffic]) -> str:
    """Return the size of the groups, with their ranks where all are one group: "8: 0-7"."""
    size_of_group = members[0].group_size
    ranks = {each.group_ranks for each in members}
    only = ranks.pop() if len(ranks) == 1 else None
    if size_of_group is None:
        return only or UNKNOWN
    text = count(size_of_group)
    fits = only is not None and len(text) + 2 + len(only) <= _RANKS_WIDTH
    return f"{text}: {only}" if fits else text


def contention(document: ReportDocument, width: int) -> Group | None:
    """Render the table of families and what concurrent communication costs them.

    Shows those with the most time for which that is known; None without any.
    """
    found = [
        (family, family.contention)
        for row in document.totals
        for family in row.families
        if family.contention is not None and known(family.contention.low)
    ]
    if not found:
        return None
    found.sort(key=lambda each: -each[0].time_ns)
    columns = ("<name", "<class", "count", "ms", "<times as long [95 %]", "Chopper's E50/E0")
    rows = [_contention_cells(family, how, width) for family, how in found[:_SHOWN]]
    return table("BESIDE COMMUNICATION  whole file, each device", columns, rows)


def _contention_cells(family: Family, how: Contention, width: int) -> tuple[str, ...]:
    low, high = decimal(how.low, 2), decimal(how.high, 2)
    return (
        shorten(family.name, max(width - 72, 16)),
        words(family.class_),
        count(how.count),
        milliseconds(family.time_ns),
        f"{decimal(how.factor, 2)} [{low}, {high}]",
        decimal(how.chopper_e50_e0, 2),
    )


def _grouped(pairs: Iterable[tuple[KeyT, ValueT]]) -> dict[KeyT, list[ValueT]]:
    """Group values by key, in the order in which keys are first met."""
    groups: dict[KeyT, list[ValueT]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


_TERA: Final = 1e12
_MEANING: Final = (
    "took = at peak x use x overlap x clock, at the clock of the stated peak: Chopper's chain of\n"
    "utilization, overlap and frequency\n"
    "shaped: share of matrix kernels' time whose work is known"
)


def efficiency(document: ReportDocument) -> Group | None:
    """Render the table of devices with the most shaped work; None where no work is known."""
    found = [
        (row, row.efficiency)
        for row in document.totals
        if row.efficiency is not None and known(row.efficiency.achieved_flops_per_s)
    ]
    if not found:
        return None
    found.sort(key=lambda each: -(each[1].flops or 0.0))
    title = "EFFICIENCY  whole file, matrix kernels of recorded shapes"
    if len(found) > _SHOWN:
        title += f", {_SHOWN} of {len(found)} devices (--format json)"
    columns = (
        *("<gpu", "rank", "<type", "TFLOP/s", "of peak %", "at peak ms", "use", "overlap"),
        *("clock", "took ms", "shaped %"),
    )
    rows = [_cells(row, each) for row, each in found[:_SHOWN]]
    return table(title, columns, rows, caption=_caption([each for _, each in found]))


def _cells(row: Row, each: Efficiency) -> tuple[str, ...]:
    rate = each.achieved_flops_per_s
    took_ns = each.shaped_time_ns if each.rated_time_ns is None else each.rated_time_ns
    return (
        f"dev {row.device}" if row.gpu is None else row.gpu,
        UNKNOWN if row.rank is None else str(row.rank),
        each.dtype or UNKNOWN,
        decimal(rate / _TERA if known(rate) else None, 1),
        percent(each.utilization),
        milliseconds(each.theoretical_ns),
        decimal(each.overhead_utilization, 3),
        decimal(each.overhead_overlap, 3),
        decimal(each.overhead_frequency, 3),
        milliseconds(took_ns),
        percent(each.shaped_share),
    )


def _caption(found: list[Efficiency]) -> str:
    """Return the caption: what overheads mean, if there are any, and why figures are missing."""
    reasons = dict.fromkeys(each.reason for each in found if each.reason is not None)
    rated = any(each.theoretical_ns is not None for each in found)
    meaning = [_MEANING] if rated else []
    return "\n".join([*meaning, *reasons])


WIDTH: Final = 100
_LABEL_WIDTH: Final = 12
_NO_BREAK: Final = "\u00a0"
_BRACKETS: Final = pattern(r"\([^()]*\)|\[[^\[\]]*\]")
_SIMULATED: Final = "SIMULATED DATA: these figures come from a simulation, not from hardware"


def render_text(document: ReportDocument, *, width: int = WIDTH, by: By | None = None) -> str:
    """Render the report as plain text, the same for the same document; ends in a line break."""
    return page_text(render_rich(document, width=width, by=by), width=width)


def page_text(page: RenderableType, *, width: int = WIDTH, styled: bool = False) -> str:
    """Render a page as text; `styled` adds escape codes of the colours that every terminal has.

    A width below `WIDTH` is taken as `WIDTH`: a table that is narrower would cut digits off.
    """
    buffer = StringIO()
    console = Console(
        file=buffer,
        width=max(width, WIDTH),
        color_system="standard" if styled else None,
        force_terminal=styled,
        legacy_windows=False,
        highlight=False,
        markup=False,
        emoji=False,
    )
    console.print(Shown(page))
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


class Shown:
    """A page that is printed without terminal control characters, except for its own styles.

    Args:
        page: As it was made; cells of tables are in one line already.
    """

    def __init__(self, page: RenderableType) -> None:
        self._page = page

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the page's text with control characters escaped, and its styles."""
        for text, style, control in console.render(self._page, options):
            yield Segment(visible_lines(text), style, control)


def render_rich(document: ReportDocument, *, width: int = WIDTH, by: By | None = None) -> Group:
    """Render the report for a rich console; styles show on a terminal only."""
    page: list[RenderableType] = [simulated_mark()] if document.generated.simulated else []
    page.append(_headline(headline(document), width))
    for section in _sections(document, width, by=by):
        page += ["", section]
    return Group(*page)


def simulated_mark() -> Text:
    """Return the line that marks a page as made of simulated data."""
    return Text(f" {_SIMULATED}", style="bold reverse")


def _sections(document: ReportDocument, width: int, *, by: By | None) -> Iterator[RenderableType]:
    tables = (
        sections.waterfall(document),
        sections.steps(document),
        _beside(sections.gpus(document), classes(document)),
        *_by(document, width, by),
        contention(document, width) if by == "family" else None,
        copies(document),
        collectives(document),
        efficiency(document),
        sections.findings(document),
        sections.notes(document),
        sections.sources(document, width),
    )
    yield from (table for table in tables if table is not None)


def _by(document: ReportDocument, width: int, by: By | None) -> tuple[RenderableType, ...]:
    """Return the tables by `by`, of devices and of traces with host work only, or why none."""
    if by is None:
        return ()
    found = [families(document, width)] if by == "family" else []
    if by != "family":
        found += [parts(document, by, width), host_parts(document, by, width)]
    tables = tuple(each for each in found if each is not None)
    return tables or (Group(Text(TITLES[by], style="bold"), Text(why_none(document))),)


def _beside(left: Group | None, right: Group | None) -> RenderableType | None:
    """Lay out two tables next to each other; return the only one, or None, where one is missing."""
    if left is None or right is None:
        return left or right
    grid = Table.grid(padding=(0, 3, 0, 0))
    grid.add_row(left, right)
    return grid


def _headline(rows: tuple[HeadlineRow, ...], width: int) -> Table:
    grid = Table.grid(padding=0)
    grid.add_column(width=_LABEL_WIDTH + 1, no_wrap=True)
    grid.add_column()
    for row in rows:
        lines = _packed(row, width - _LABEL_WIDTH - 1)
        grid.add_row(Text(f" {row.label}", style="bold"), Text("\n".join(lines)))
    return grid


def _packed(row: HeadlineRow, width: int) -> list[str]:
    """Lay out clauses in lines of `width`, broken between clauses where that is possible."""
    lines: list[str] = []
    for clause in row.clauses:
        joined = f"{lines[-1]}{row.separator}{clause}" if lines else clause
        if lines and len(joined) > width:
            lines[-1] = f"{lines[-1]}{row.separator}".rstrip()
            lines.append(clause)
        else:
            lines[-1:] = [joined]
    return [part for line in lines for part in _wrapped(line, width)]


def _wrapped(line: str, width: int) -> list[str]:
    """Wrap the line to `width`, without a break inside brackets."""
    held = _BRACKETS.sub(lambda found: found[0].replace(" ", _NO_BREAK), line)
    return [part.replace(_NO_BREAK, " ") for part in wrap(held, width)] or [""]

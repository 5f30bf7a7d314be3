"""The report as text: four lines for a manager, then tables, in 100 columns."""

from collections.abc import Iterator
from io import StringIO
from re import compile as pattern
from textwrap import wrap
from typing import Final

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from chopperd.model.report import By, ReportDocument
from chopperd.model.safe_text import visible_lines
from chopperd.report.text import sections
from chopperd.report.text.headline import HeadlineRow, headline
from chopperd.report.text.tables import TITLES, classes, families, host_parts, parts, why_none
from chopperd.report.text.traffic_tables import collectives, contention, copies, efficiency

WIDTH: Final = 100
_LABEL_WIDTH: Final = 12
_NO_BREAK: Final = "\u00a0"
_BRACKETS: Final = pattern(r"\([^()]*\)|\[[^\[\]]*\]")
_SIMULATED: Final = "SIMULATED DATA: these figures come from a simulation, not from hardware"


def render_text(document: ReportDocument, *, width: int = WIDTH, by: By | None = None) -> str:
    """The report as plain text, the same for the same document; ends in a line break."""
    return page_text(render_rich(document, width=width, by=by), width=width)


def page_text(page: RenderableType, *, width: int = WIDTH, styled: bool = False) -> str:
    """A page as text; `styled` adds escape codes of the colours that every terminal has.

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
    """A page without terminal control characters, except for its own styles.

    Args:
        page: As it was made; cells of tables are in one line already.
    """

    def __init__(self, page: RenderableType) -> None:
        self._page = page

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The page's text, made visible."""
        for text, style, control in console.render(self._page, options):
            yield Segment(visible_lines(text), style, control)


def render_rich(document: ReportDocument, *, width: int = WIDTH, by: By | None = None) -> Group:
    """The report for a rich console; styles show on a terminal only."""
    page: list[RenderableType] = [simulated_mark()] if document.generated.simulated else []
    page.append(_headline(headline(document), width))
    for section in _sections(document, width, by=by):
        page += ["", section]
    return Group(*page)


def simulated_mark() -> Text:
    """The line above pages with simulated data."""
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
    """The requested tables, of devices and of hosts without any; or why there are none."""
    if by is None:
        return ()
    found = [families(document, width)] if by == "family" else []
    if by != "family":
        found += [parts(document, by, width), host_parts(document, by, width)]
    tables = tuple(each for each in found if each is not None)
    return tables or (Group(Text(TITLES[by], style="bold"), Text(why_none(document))),)


def _beside(left: Group | None, right: Group | None) -> RenderableType | None:
    """Two tables next to each other, or the only one."""
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
    """Clauses laid into lines of `width`, broken between clauses where that is possible."""
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
    """The line in lines of `width`, never broken inside brackets."""
    held = _BRACKETS.sub(lambda found: found[0].replace(" ", _NO_BREAK), line)
    return [part.replace(_NO_BREAK, " ") for part in wrap(held, width)] or [""]

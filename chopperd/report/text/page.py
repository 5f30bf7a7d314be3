"""Lay out pages of text: titled tables that adapt to the width, and their printing.

What the tables say is in the other modules of this room.
"""

from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from typing import Final

from msgspec import Struct, field
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from chopperd.report.text.wording import UNKNOWN, bar, shorten
from chopperd.safe_text import visible, visible_lines

#: Columns of a page that is not printed on a terminal, and the fewest of any.
WIDTH: Final = 100
LEAST_WIDTH: Final = 80
_GAP: Final = 2
_BETWEEN: Final = 3
_BAR_WIDTH: Final = 40
_LEAST_BAR: Final = 8
_LEAST_NAME: Final = 28
_MARKS: Final = "<~-?="
SIMULATED: Final = "SIMULATED DATA: these figures come from a simulation, not from hardware"


class Section(Struct, frozen=True, kw_only=True):
    """A titled, borderless table that leaves out what the width has no room for.

    The name of a column may begin with marks: `<` aligns it left, else right; `~` is a name that
    is cut in the middle where there is too little room; `-` is left out where nothing in it is
    known; `?`, where there is no room, with more of them the sooner; `=` draws shares as bars.
    `styles` are those of rows, by position. Only the last column breaks lines.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    header: bool = True
    caption: str = ""
    styles: Mapping[int, str] = field(default_factory=dict)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield title, table and caption within the console's width."""
        yield Text(visible(self.title), style="bold")
        yield self._table(options.max_width)
        if self.caption:
            yield Text(self.caption, style="dim")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """Return the width that the table takes next to another."""
        return Measurement(self.width(), self.width())

    def width(self) -> int:
        """Return the width at which nothing known is left out."""
        widest = self._sum(self._known(), least=False)
        return max(widest, cell_len(self.title), *map(len, self.caption.split("\n")))

    def known_cells(self) -> tuple[list[tuple[str, str]], list[list[str]]]:
        """Return marks and name of each column, and the rows: without bars and what is unknown."""
        shown = [i for i in self._known() if "=" not in self._marks(i)]
        names = [(self._marks(i), self._name(i)) for i in shown]
        return names, [[row[i] for i in shown] for row in self.rows]

    def _table(self, width: int) -> Table:
        shown = self._fitting(width)
        sizes = self._sizes(shown, width)
        body = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), show_header=self.header)
        for i in shown:
            is_left = not {"<", "="}.isdisjoint(self._marks(i))
            name = Text(self._name(i), style="dim")
            body.add_column(name, justify="left" if is_left else "right", no_wrap=True)
        body.columns[-1].no_wrap = False
        for nth, row in enumerate(self.rows):
            style = self.styles.get(nth, "")
            body.add_row(*(Text(self._cell(row[i], i, sizes[i]), style=style) for i in shown))
        return body

    def _cell(self, text: str, i: int, size: int) -> str:
        if "=" in self._marks(i):
            return bar(float(text), size) if text else ""
        return shorten(visible(text), size) if "~" in self._marks(i) else visible(text)

    def _known(self) -> list[int]:
        """Return the columns without those that may go and in which nothing is known."""
        return [
            i
            for i in range(len(self.columns))
            if "-" not in self._marks(i) or any(row[i] not in {"", UNKNOWN} for row in self.rows)
        ]

    def _fitting(self, width: int) -> list[int]:
        shown = self._known()
        for i in sorted(shown, key=lambda i: (-self._marks(i).count("?"), -i)):
            if "?" not in self._marks(i) or self._sum(shown, least=True) <= width:
                break
            shown.remove(i)
        return shown

    def _sizes(self, shown: Sequence[int], width: int) -> dict[int, int]:
        """Return the width of each column; bars give way first, then the widest names."""
        sizes = {i: self._size(i, least=False) for i in shown}
        too_much = self._sum(shown, least=False) - width
        elastic = [i for i in shown if not {"~", "="}.isdisjoint(self._marks(i))]
        for i in sorted(elastic, key=lambda i: ("=" not in self._marks(i), -sizes[i])):
            given = min(max(too_much, 0), sizes[i] - self._size(i, least=True))
            sizes[i] -= given
            too_much -= given
        return sizes

    def _sum(self, shown: Sequence[int], *, least: bool) -> int:
        return sum(self._size(i, least=least) for i in shown) + _GAP * max(len(shown) - 1, 0)

    def _size(self, i: int, *, least: bool) -> int:
        marks = self._marks(i)
        if "=" in marks:
            return _LEAST_BAR if least else _BAR_WIDTH
        texts = [visible(row[i]) for row in self.rows] + [self._name(i)] * self.header
        widest = max(map(cell_len, texts), default=0)
        if least and ("~" in marks or ("<" in marks and i == len(self.columns) - 1)):
            return min(widest, _LEAST_NAME)
        return widest

    def _name(self, i: int) -> str:
        return self.columns[i].lstrip(_MARKS)

    def _marks(self, i: int) -> str:
        return self.columns[i].removesuffix(self._name(i)) if self._name(i) else self.columns[i]


def table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    header: bool = True,
    caption: str = "",
    styles: Mapping[int, str] | None = None,
) -> Section:
    """Make a `Section`, whose class says what the marks of columns mean."""
    return Section(
        title=title,
        columns=tuple(columns),
        rows=[tuple(row) for row in rows],
        header=header,
        caption=caption,
        styles=styles or {},
    )


def plain(title: str, rows: Sequence[Sequence[str]]) -> Section:
    """Make a table of left-aligned columns without header."""
    return table(title, ("<",) * len(rows[0]), rows, header=False)


class Beside:
    """Two tables next to each other, or one below the other where there is no room."""

    def __init__(self, left: Section, right: Section) -> None:
        self.both = (left, right)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield both tables within the console's width."""
        left, right = self.both
        grid = Table.grid(padding=(0, _BETWEEN, 0, 0))
        grid.add_row(left, right)
        has_room = left.width() + _BETWEEN + right.width() <= options.max_width
        yield grid if has_room else Group(left, "", right)


def simulated_mark() -> Text:
    """Return the line that marks a page as made of simulated data."""
    return Text(f" {SIMULATED}", style="bold reverse")


def page_text(page: RenderableType, *, width: int = WIDTH, styled: bool = False) -> str:
    """Render a page as text, at least `LEAST_WIDTH` wide; `styled` adds escape codes of colours."""
    buffer = StringIO()
    console = Console(
        file=buffer,
        width=max(width, LEAST_WIDTH),
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
    """A page that is printed without terminal control characters, except for its own styles."""

    def __init__(self, page: RenderableType) -> None:
        self._page = page

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the page's text with control characters escaped, and its styles."""
        for text, style, control in console.render(self._page, options):
            yield Segment(visible_lines(text), style, control)

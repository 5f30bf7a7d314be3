"""Turn the tables and first lines of the text report into HTML, with the same words."""

from collections.abc import Mapping, Sequence
from typing import Final

from chopperd.report.html.markup import Content, Html, cell, copied, joined, sentence, tag
from chopperd.report.text.headline import HeadlineRow
from chopperd.report.text.page import Section

_CHECK: Final = "check: "
#: Titles that are no words in capitals.
_TITLES: Final[Mapping[str, str]] = {"GPUS": "GPUs", "FSDP AND MEMORY": "FSDP and memory"}
_HOT: Final[Mapping[str, str]] = {"bold red": "hot", "dim": "sub-row"}


class Column:
    """A column that a page adds to a table: where, its name, and a cell for each row."""

    def __init__(self, at: int, name: str, cells: Sequence[Content], classes: str = "") -> None:
        self.at, self.name, self.cells, self.classes = at, name, cells, classes

    def header(self) -> Html:
        """Return its header."""
        return tag("th", self.name, scope="col", class_=self.classes or None)

    def cell(self, nth: int) -> Html:
        """Return the cell of a row."""
        return tag("td", self.cells[nth], class_=self.classes or None)


def title_of(section: Section) -> tuple[str, str]:
    """Return a table's title as a heading, and what it says of it: the text after two spaces."""
    name, _, of = section.title.partition("  ")
    return _TITLES.get(name, name.capitalize()), of


def panel(identity: str, section: Section, *before: Content, extra: Sequence[Column] = ()) -> Html:
    """Return a section of the page: title, drawings, the table and its caption."""
    title, of = title_of(section)
    return room(identity, title, of, *before, table_of(section, extra), caption_of(section))


def room(identity: str, title: str, sub: str, *content: Content) -> Html:
    """Return a section of the page with a heading and a line under it."""
    heading = tag("h2", title, id=f"h-{identity}")
    line = tag("p", sentence(sub), class_="sub") if sub else None
    return tag("section", heading, line, *content, id=identity, aria_labelledby=f"h-{identity}")


def caption_of(section: Section) -> Html | None:
    """Return a table's caption; None without."""
    lines = section.caption.split("\n") if section.caption else []
    return (
        tag("p", [[sentence(line), tag("br")] for line in lines], class_="caption")
        if lines
        else None
    )


def table_of(section: Section, extra: Sequence[Column] = ()) -> Html:
    """Return a table; columns that give way in narrow text do so on a narrow screen."""
    columns, rows = section.known_cells()
    marks = [
        (
            not {"<", "="}.isdisjoint(mark),
            " ".join(("name",) * ("~" in mark) + ("opt",) * ("?" in mark)),
        )
        for mark, _ in columns
    ]
    names = [
        tag("th", name, scope="col", class_=_names("" if is_left else "num", narrow))
        for (_, name), (is_left, narrow) in zip(columns, marks, strict=True)
    ]
    body = []
    for nth, row in enumerate(rows):
        cells = [
            cell(text, is_left=is_left, classes=narrow)
            for text, (is_left, narrow) in zip(row, marks, strict=True)
        ]
        style = _HOT.get(section.styles.get(nth, ""))
        body.append(
            tag("tr", _with(cells, [each.cell(nth) for each in extra], extra), class_=style)
        )
    head = None
    if section.header:
        head = tag("thead", tag("tr", _with(names, [each.header() for each in extra], extra)))
    title, of = title_of(section)
    label = tag("caption", " ".join(filter(None, (title, of))), class_="sr")
    inner = tag("table", label, head, tag("tbody", body), class_=None if head else "plain")
    return tag("div", inner, class_="scroll", tabindex="0", role="group", aria_label=title)


def _with(cells: Sequence[Html], added: Sequence[Html], extra: Sequence[Column]) -> list[Html]:
    shown = list(cells)
    for column, one in sorted(zip(extra, added, strict=True), key=lambda each: -each[0].at):
        shown.insert(column.at, one)
    return shown


def _names(*names: str) -> str | None:
    return " ".join(filter(None, names)) or None


def verdict(rows: Sequence[HeadlineRow], beside: Content = None) -> Html:
    """Return the first lines of a report as the head of the page."""
    first, *others = rows
    clause, *more = first.clauses or ("",)
    title, colon, details = clause.partition(": ")
    rest = [*([details] if details else []), *more]
    heading = [
        tag("span", first.label, class_="what"),
        " ",
        tag("span", sentence(title + colon.rstrip()), class_="amount"),
    ]
    lead = tag("p", sentence(first.separator.join(rest)), class_="lead") if rest else None
    lines = [
        (tag("dt", row.label), tag("dd", [_clause(row, nth) for nth in range(len(row.clauses))]))
        for row in others
    ]
    words = tag("div", tag("h1", heading), lead, tag("dl", lines, class_="answers"))
    return tag("div", words, beside, class_="verdict")


def _clause(row: HeadlineRow, nth: int) -> Html:
    """Return a clause with what separates it from the next; a command as one to copy."""
    text = row.clauses[nth]
    if text.startswith(_CHECK):
        return joined([_CHECK, copied(text.removeprefix(_CHECK))])
    is_last = nth == len(row.clauses) - 1
    return sentence(text if is_last else text + row.separator)

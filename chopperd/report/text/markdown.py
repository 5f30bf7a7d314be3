"""Render the report as GitHub-flavoured Markdown, for issues and chat: its text, cut to be read."""

from collections.abc import Iterator
from typing import Final

from chopperd.model.report import Breakdown, ReportDocument
from chopperd.model.safe_text import visible
from chopperd.report.text.headline import headline
from chopperd.report.text.page import SIMULATED, Section
from chopperd.report.text.report import laid_out
from chopperd.report.text.wording import UNKNOWN

#: The most lines of a report, and rows of one table.
_MOST_LINES: Final = 120
_MOST_ROWS: Final = 10
#: Tables that give way to a report's other ones, the first word of their titles.
_FIRST_TO_GO: Final = ("FROM", "EFFICIENCY", "COPIES", "COLLECTIVES", "CLASSES", "NOTES", "STEPS")
_ESCAPED: Final = str.maketrans(
    {"\\": "\\\\", "|": "\\|", "<": "&lt;", "*": "\\*", "`": "\\`", "[": "\\[", "@": "&#64;"}
)


def render_markdown(document: ReportDocument, *, by: Breakdown | None = None) -> str:
    """Render the first screen and the tables; those without room are counted."""
    lines = [f"> **{SIMULATED}**", ""] if document.generated.simulated else []
    for row in headline(document):
        text = escaped(row.separator.join(row.clauses))
        lines.append(f"**{row.label}** {text}" + "  ")  # two spaces break the line
    sections = [each for part in laid_out(document, by=by) for each in part]
    blocks = [(section.title.split(" ")[0], ["", *block(section)]) for section in sections]
    room = _MOST_LINES - len(lines) - 2
    for title in (*_FIRST_TO_GO, *(title for title, _ in reversed(blocks))):
        if sum(len(block) for _, block in blocks) > room:
            blocks = [each for each in blocks if each[0] != title]
    lines += [line for _, block in blocks for line in block]
    if len(blocks) < len(sections):
        lines += ["", f"*and {len(sections) - len(blocks)} more tables (`--format text`)*"]
    return "\n".join(lines) + "\n"


def escaped(text: str) -> str:
    """Return text that Markdown and HTML in it leave as it is, in one line."""
    return visible(text).translate(_ESCAPED)


def block(section: Section) -> Iterator[str]:
    """Yield the lines of a table with its title and caption."""
    yield f"**{escaped(section.title)}**"
    yield ""
    columns, rows = section.known_cells()
    names = [escaped(name) if section.header else "" for _, name in columns]
    yield _row(names)
    yield _row([":--" if "<" in marks else "--:" for marks, _ in columns])
    for row in rows[:_MOST_ROWS]:
        cells = zip(columns, row, strict=True)
        yield _row([_code(cell) if "~" in marks else escaped(cell) for (marks, _), cell in cells])
    if len(rows) > _MOST_ROWS:
        yield _row([f"and {len(rows) - _MOST_ROWS} more", *[""] * (len(columns) - 1)])
    if section.caption:
        yield ""
        yield f"*{escaped(' · '.join(section.caption.splitlines()))}*"


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _code(name: str) -> str:
    """Return a name as code, in which only the border of a table's cell has to be escaped."""
    if name in {"", UNKNOWN}:
        return name
    return f"`{visible(name).replace('`', chr(39)).replace('|', chr(92) + '|')}`"

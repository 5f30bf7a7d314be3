"""Render the report as text or Markdown: first screen, then tables; those of traffic are here."""

from collections.abc import Iterable, Iterator, Sequence
from re import compile as pattern
from textwrap import wrap
from typing import Final, TypeVar

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from chopperd.model.kinds import COMPUTE_CLASSES
from chopperd.model.report import Breakdown, ReportDocument
from chopperd.model.report_rows import CollectiveTraffic, Efficiency, Row
from chopperd.report.text import answers, sections
from chopperd.report.text import wording as fmt
from chopperd.report.text.headline import HeadlineRow, headline
from chopperd.report.text.holders import by_holder, who_held_it
from chopperd.report.text.page import (
    SIMULATED,
    WIDTH,
    Beside,
    Section,
    page_text,
    simulated_mark,
    table,
)
from chopperd.report.text.tables import TITLES, classes, families, host_parts, parts, why_none
from chopperd.report.text.wording import UNKNOWN, known
from chopperd.safe_text import visible

# Tables of copies, collectives, contention and efficiency, over the whole files.

_SHOWN: Final = 8
_COMPUTE: Final = frozenset(each.label for each in COMPUTE_CLASSES)
_GIGA: Final = 1e9
_GROUP_WIDTH: Final = 18
_RANKS_WIDTH: Final = 13
_SIZED: Final = "moved, GB/s: of those whose size the trace gives"
_WAITS: Final = "ms hold the wait for late ranks; bus: what a rank's links carry"

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")


def copies(document: ReportDocument) -> Section | None:
    """Render the table of copies, one line a direction, over all devices; None without copies."""
    every = [each for row in document.totals for each in row.copies]
    if not every:
        return None
    alike = _grouped((each.direction, each) for each in every)
    columns = ("<direction", "count", "ms", "moved", "-GB/s")
    rows = [
        (
            direction,
            fmt.count(sum(each.count for each in those)),
            fmt.milliseconds(sum(each.time_ns for each in those)),
            _moved(each.bytes for each in those),
            _rates(each.rate_bytes_per_s for each in those),
        )
        for direction, those in alike.items()
    ]
    partly = any(each.sized_count < each.count for each in every)
    return table("COPIES  whole file", columns, rows, caption=_SIZED if partly else "")


def _moved(sizes: Iterable[int | None]) -> str:
    known_sizes = [each for each in sizes if each is not None]
    return fmt.size(sum(known_sizes)) if known_sizes else UNKNOWN


def _rates(rates: Iterable[float | None]) -> str:
    return fmt.spread([each / _GIGA for each in rates if known(each)], digits=1)


def collectives(document: ReportDocument) -> Section | None:
    """Render the kinds of groups with the most time in collectives; None without any."""
    every = [each for row in document.totals for each in row.collectives]
    if not every:
        return None
    alike = _grouped(((each.name, each.group_description, each.group_size), each) for each in every)
    lines = sorted(alike.values(), key=lambda those: -sum(each.time_ns for each in those))
    title = "COLLECTIVES  whole file"
    if len(lines) > _SHOWN:
        title += f", {_SHOWN} with the most time of {fmt.count(len(lines))} (--format json)"
    columns = (
        *("~<collective", "-?~<group", "-ranks", "count", "ms", "moved", "-??GB/s", "-bus GB/s"),
    )
    rows = [_collective_cells(members) for members in lines[:_SHOWN]]
    partly = any(each.sized_count < each.count for each in every)
    return table(title, columns, rows, caption=f"{_WAITS}\n{_SIZED}" if partly else _WAITS)


def _collective_cells(members: Sequence[CollectiveTraffic]) -> tuple[str, ...]:
    first = members[0]
    names = sorted({each.group for each in members if each.group is not None})
    label = first.group_description or ", ".join(names) or UNKNOWN
    return (
        first.name,
        fmt.shorten(label, _GROUP_WIDTH),
        _ranks(members),
        fmt.count(sum(each.count for each in members)),
        fmt.milliseconds(sum(each.time_ns for each in members)),
        _moved(each.bytes for each in members),
        _rates(each.algorithm_bytes_per_s for each in members),
        _rates(each.bus_bytes_per_s for each in members),
    )


def _ranks(members: Sequence[CollectiveTraffic]) -> str:
    """Return the size of the groups, with their ranks where all are one group: "8: 0-7"."""
    ranks = {each.group_ranks for each in members}
    only = ranks.pop() if len(ranks) == 1 else None
    if members[0].group_size is None:
        return only or UNKNOWN
    text = fmt.count(members[0].group_size)
    fits = only is not None and len(text) + 2 + len(only) <= _RANKS_WIDTH
    return f"{text}: {only}" if fits else text


def contention(document: ReportDocument) -> Section | None:
    """Render what concurrent communication costs the families; None if unknown."""
    found = [
        (family, family.contention)
        for row in document.totals
        for family in row.families
        if family.contention is not None and known(family.contention.low)
    ]
    if not found:
        return None
    found.sort(key=lambda each: -each[0].time_ns)
    columns = ("~<name", "<class", "?count", "ms", "<times as long [95 %]", "-?E50/E0")
    rows = [
        (
            fmt.brief_name(family.name),
            fmt.words(family.class_),
            fmt.count(how.count),
            fmt.milliseconds(family.time_ns),
            f"{fmt.decimal(how.factor, 2)} [{fmt.decimal(how.low, 2)}, {fmt.decimal(how.high, 2)}]",
            fmt.decimal(how.chopper_e50_e0, 2),
        )
        for family, how in found[:_SHOWN]
    ]
    caption = "E50/E0: as Chopper has it"
    return table("BESIDE COMMUNICATION  whole file, each device", columns, rows, caption=caption)


def _grouped(pairs: Iterable[tuple[KeyT, ValueT]]) -> dict[KeyT, list[ValueT]]:
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


def efficiency(document: ReportDocument) -> Section | None:
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
        *("<gpu", "-rank", "<type", "TFLOP/s", "-of peak %", "-?at peak ms", "-use", "-overlap"),
        *("-clock", "took ms", "??shaped %"),
    )
    rows = [_cells(row, each) for row, each in found[:_SHOWN]]
    lines = [_caption([each for _, each in found]), _types(document.totals)]
    return table(title, columns, rows, caption="\n".join(filter(None, lines)))


def _types(rows: Sequence[Row]) -> str:
    """Return the shares of compute time by the type of what is multiplied; "" if none is known."""
    times_ns: dict[str, float] = {}
    all_ns = 0
    for row in rows:
        compute_ns = sum(each.total_ns for each in row.classes if each.class_ in _COMPUTE)
        all_ns += compute_ns
        for name, share in (row.dtype_ratio or {}).items():
            times_ns[name] = times_ns.get(name, 0.0) + share * compute_ns
    if not times_ns:
        return ""
    left_ns = all_ns - sum(times_ns.values())
    shares = [*sorted(times_ns.items(), key=lambda each: -each[1]), ("of no known type", left_ns)]
    return (
        f"compute time: {', '.join(f'{name} {fmt.percent(ns / all_ns)} %' for name, ns in shares)}"
    )


def _cells(row: Row, each: Efficiency) -> tuple[str, ...]:
    rate = each.achieved_flops_per_s
    took_ns = each.shaped_time_ns if each.rated_time_ns is None else each.rated_time_ns
    return (
        f"dev {row.device}" if row.gpu is None else row.gpu,
        UNKNOWN if row.rank is None else str(row.rank),
        each.dtype or UNKNOWN,
        fmt.decimal(rate / _TERA if known(rate) else None, 1),
        fmt.percent(each.utilization),
        fmt.milliseconds(each.theoretical_ns),
        fmt.decimal(each.overhead_utilization, 3),
        fmt.decimal(each.overhead_overlap, 3),
        fmt.decimal(each.overhead_frequency, 3),
        fmt.milliseconds(took_ns),
        fmt.percent(each.shaped_share),
    )


def _caption(found: list[Efficiency]) -> str:
    """Return the caption: what overheads mean, if there are any, and why figures are missing."""
    reasons = dict.fromkeys(each.reason for each in found if each.reason is not None)
    is_rated = any(each.theoretical_ns is not None for each in found)
    return "\n".join([*([_MEANING] if is_rated else []), *reasons])


# The page.

_INDENT: Final = 9
_NO_BREAK: Final = "\u00a0"
#: What a line is not broken in: brackets that are short, and a figure and its unit.
_BRACKETS: Final = pattern(r"\([^()]{,40}\)|\[[^\[\]]{,40}\]")
_FIGURE: Final = pattern(r"(?<=\d) (?=(?:ms|%|MHz|C|Hz|W)\b|%)")


def render_text(
    document: ReportDocument, *, width: int = WIDTH, by: Breakdown | None = None
) -> str:
    """Render the report as plain text, the same for the same document; ends in a line break."""
    return page_text(render_rich(document, by=by), width=width)


def render_rich(document: ReportDocument, *, by: Breakdown | None = None) -> Group:
    """Render the report for a rich console, as wide as that is; styles show on a terminal only."""
    page: list[RenderableType] = [simulated_mark()] if document.generated.simulated else []
    page.append(FirstScreen(headline(document)))
    for part in laid_out(document, by=by):
        page += ["", Beside(*part) if len(part) > 1 else part[0]]
    return Group(*page)


class FirstScreen:
    """The rows of the headline, each with its label, in lines of the console's width."""

    def __init__(self, rows: Sequence[HeadlineRow]) -> None:
        self._rows = rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the lines."""
        for nth, row in enumerate(self._rows):
            label = f" {row.label}".ljust(_INDENT - 2 if nth else _INDENT - 3) + "  "
            label += " " * (not nth)
            first, *more = _packed(row, options.max_width, len(label))
            yield Text(label, style=row.style or "bold").append(Text(first, style="not bold"))
            yield from (Text(" " * _INDENT + line) for line in more)


def _packed(row: HeadlineRow, width: int, label: int) -> list[str]:
    """Break a row's text into lines of `width`, the first with its label, others indented."""
    text = row.separator.join(row.clauses)
    text = _BRACKETS.sub(lambda found: found[0].replace(" ", _NO_BREAK), text)
    text = _FIGURE.sub(_NO_BREAK, text)
    lines = wrap(
        text,
        width,
        initial_indent=" " * label,
        subsequent_indent=" " * _INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.lstrip(" ").replace(_NO_BREAK, " ") for line in lines] or [""]


def laid_out(document: ReportDocument, *, by: Breakdown | None) -> Iterator[tuple[Section, ...]]:
    """Yield the tables of a report in order, those that may stand next to each other together."""
    pair = [each for each in (sections.gpus(document), classes(document)) if each is not None]
    tables = (
        sections.waterfall(document),
        who_held_it(document),
        *broken_down(document, by),
        answers.ranks(document),
        sections.steps(document),
        *pair,
        answers.drops(document),
        answers.memory(document),
        contention(document) if by == "family" else None,
        copies(document),
        collectives(document),
        efficiency(document),
        answers.findings(document),
        sections.notes(document),
        sections.sources(document),
    )
    for each in filter(None, tables):
        if each not in pair:
            yield (each,)
        elif each is pair[0]:
            yield tuple(pair)


def broken_down(document: ReportDocument, by: Breakdown | None) -> tuple[Section | None, ...]:
    """Return the tables that `--by` adds; of a trace without device work the host's operators."""
    if by is None:
        is_host = bool(document.host) and not document.totals
        return (host_parts(document, "operation"),) if is_host else ()
    if by == "drop":
        return (answers.drop_work(document),)
    if by == "memory":
        return (answers.memory_steps(document),)
    if by == "family":
        found = [families(document)]
    elif by == "idle":
        found = [by_holder(document)]
    else:
        found = [parts(document, by), host_parts(document, by)]
    tables = tuple(each for each in found if each is not None)
    return tables or (table(TITLES[by], ("<",), [(why_none(document),)], header=False),)


# GitHub-flavoured Markdown, for issues and chat: its text, cut to be read.

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

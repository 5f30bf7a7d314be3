"""Render tables of device work by class, family, and each kind of part, over all devices."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from chopperd.model.report import FIELDS, By, HostPart, PartsBy, ReportDocument
from chopperd.model.report_rows import UNKNOWN_PART, ClassTotal, Family, Part
from chopperd.report.text import wording as fmt
from chopperd.report.text.holders import used_rows
from chopperd.report.text.page import Section, table
from chopperd.report.text.wording import UNKNOWN, known

#: Lines of a table.
SHOWN: Final = 20
_REASON_WIDTH: Final = 24
TITLES: Final[Mapping[By, str]] = {
    "family": "FAMILIES",
    "operation": "OPERATIONS",
    "layer": "LAYERS",
    "phase": "PHASES",
    "annotation": "ANNOTATIONS",
    "idle": "IDLE",
}
#: The caption where all work is of unknown operation, layer or phase, with the noun for the work.
_NOTHING_KNOWN: Final[Mapping[PartsBy, str]] = {
    "operation": "the trace names no operator of any {}",
    "layer": "the trace names no module of any {} (with_stack=True does)",
    "phase": "the trace shows no phase of any {}: it holds no backward pass",
    "annotation": "the program annotates no {} (torch.profiler.record_function does)",
}
_SUMS: Final = "ms: sums of durations, and streams overlap"
_HOST_SUMS: Final = (
    "of traces without device work; host ms: while an operator ran and no operator in it"
)

Item = TypeVar("Item")
Key = TypeVar("Key", str, tuple[str, str])


def _lines(
    items: Iterable[Item], key: Callable[[Item], Key], time_ns: Callable[[Item], int]
) -> tuple[list[tuple[Key, int, list[Item]]], int]:
    """Return (key, summed time in ns, items), most time first, and the time of all in ns."""
    groups: defaultdict[Key, list[Item]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    lines = [(name, sum(map(time_ns, members)), members) for name, members in groups.items()]
    lines.sort(key=lambda line: (-line[1], line[0]))
    return lines, sum(time for _, time, _ in lines)


def _title(
    name: str, lines: Sequence[tuple[object, int, Sequence[Family | Part | HostPart]]]
) -> str:
    if len(lines) <= SHOWN:
        return name
    merged = any(each.merged for _, _, members in lines for each in members)
    there = f"{'more than ' if merged else ''}{fmt.count(len(lines))}"
    return f"{name}, {SHOWN} with the most time of {there} (--format json)"


def _share(time_ns: int, all_ns: int) -> str:
    return fmt.percent(time_ns / all_ns if all_ns else None)


def summed_loss(members: Sequence[Family | ClassTotal | Part], shares: int = 1) -> str:
    """Format summed losses, over `shares`, in ms with half the interval; "≥": some unknown."""
    losses_ns = [each.lost_ns for each in members if each.lost_ns is not None]
    if not losses_ns:
        return UNKNOWN
    halves_ns = [
        (each.lost_high_ns - each.lost_low_ns) / 2
        for each in members
        if each.lost_low_ns is not None and each.lost_high_ns is not None
    ]
    mark = "" if len(losses_ns) == len(members) else "≥ "
    text = mark + fmt.milliseconds(sum(losses_ns) / shares)
    has_intervals = len(halves_ns) == len(losses_ns)
    return f"{text} ±{fmt.milliseconds(sum(halves_ns) / shares)}" if has_intervals else text


def classes(document: ReportDocument) -> Section | None:
    """Render one line for each kernel class: its time, how much of it is exposed, and the loss.

    Means of the steps behind the summary where their classes are known, else sums over the file.
    """
    stepped = [row for row in used_rows(document) if row.classes and row.step is not None]
    rows = stepped or [row for row in document.totals if row.classes and row.is_critical]
    rows = rows or [row for row in document.totals if row.classes]
    if not rows:
        return None
    shares = 1 if not stepped else len(rows)
    window_ns = sum(row.window_ns or 0 for row in rows)
    lines, _ = _lines(
        (each for row in rows for each in row.classes),
        lambda each: each.class_,
        lambda each: each.total_ns,
    )
    cells = [
        (
            fmt.words(name),
            fmt.milliseconds(time_ns / shares),
            fmt.milliseconds(_exposed(members, shares)),
            _share(time_ns, window_ns),
            summed_loss(members, shares),
        )
        for name, time_ns, members in lines
    ]
    device = "critical device" if len(rows) == 1 else f"{len(rows)} devices"
    title = f"CLASSES  {'critical device, a step' if stepped else f'whole file, {device}'}"
    caption = "total: sums of durations; %: of the window"
    columns = ("<class", "total ms", "-exposed ms", "%", "-lost ms")
    return table(title, columns, cells, caption=caption)


def _exposed(members: Sequence[ClassTotal], shares: int) -> float | None:
    """Return the time of a class with none before it in the waterfall; None if unknown of any."""
    known_ns = [each.exposed_ns for each in members if each.exposed_ns is not None]
    return sum(known_ns) / shares if len(known_ns) == len(members) else None


def families(document: ReportDocument) -> Section | None:
    """Render the families with the most kernel time; None without any."""
    every = [family for row in document.totals for family in row.families]
    lines, _ = _lines(every, lambda each: (each.class_, each.name), lambda each: each.time_ns)
    if not lines:
        return None
    reasons = {family.beta_reason for family in every}
    is_measured = any(known(family.beta) for family in every)
    is_shared = len(every) > 1 and len(reasons) == 1 and not is_measured
    shared = reasons.pop() if is_shared else None
    cells = [
        (
            fmt.brief_name(name),
            fmt.words(class_),
            fmt.count(sum(family.count for family in members)),
            fmt.milliseconds(time_ns),
            fmt.spread([family.mean_mhz for family in members if known(family.mean_mhz)]),
            fmt.count(sum(family.samples for family in members)),
            summed_loss(members),
            _launch(members),
            _of_peak(members),
            _beta(members) if shared is None else UNKNOWN,
        )
        for (class_, name), time_ns, members in lines[:SHOWN]
    ]
    title = _title("FAMILIES  whole file", lines)
    columns = (
        *("~<name", "<class", "???count", "ms", "-MHz", "-??samples", "-lost ms"),
        *("-?launch ms", "-?of peak %", "<-beta"),
    )
    return table(title, columns, cells, caption="" if shared is None else f"beta: {shared}")


def _launch(members: Sequence[Family | Part]) -> str:
    """Format the time between compute kernels that ends with one of these."""
    known_ns = [each.chopper.launch_ns for each in members if each.chopper is not None]
    return fmt.milliseconds(sum(known_ns)) if known_ns else UNKNOWN


def _of_peak(members: Sequence[Family | Part]) -> str:
    shares = [each.efficiency.utilization for each in members if each.efficiency is not None]
    return fmt.spread([100 * each for each in shares if known(each)], digits=1)


def _beta(members: Sequence[Family]) -> str:
    """Format the sensitivity with its interval, lowest to highest of several, or why none."""
    measured = [family for family in members if known(family.beta)]
    if len(measured) == 1:
        only = measured[0]
        low, high = fmt.decimal(only.beta_low, 2), fmt.decimal(only.beta_high, 2)
        return f"{fmt.decimal(only.beta, 2)} [{low}, {high}]"
    if measured:
        return fmt.spread([family.beta for family in measured if known(family.beta)], digits=2)
    reasons = {family.beta_reason for family in members if family.beta_reason}
    return fmt.shorten(fmt.words(min(reasons)), _REASON_WIDTH) if reasons else UNKNOWN


def why_none(document: ReportDocument) -> str:
    """Return why a report lacks a table of work that was asked for."""
    if document.totals:
        return "not in this report: names are not shown (privacy.names), or it is an older one"
    return "no device work in the trace" + ("" if len(document.traces) < 2 else "s")


def parts(document: ReportDocument, by: PartsBy) -> Section | None:
    """Render the parts with the most time, those of unknown name as one; None without any."""
    every: Iterable[Part] = (each for row in document.totals for each in getattr(row, FIELDS[by]))
    lines, all_ns = _lines(every, lambda each: each.name, lambda each: each.time_ns)
    if not lines:
        return None
    rows = [
        (
            fmt.brief_name(name),
            fmt.count(sum(part.count for part in members)),
            fmt.milliseconds(time_ns),
            _share(time_ns, all_ns),
            fmt.spread([part.mean_mhz for part in members if known(part.mean_mhz)]),
            fmt.count(sum(part.samples for part in members)),
            summed_loss(members),
            _launch(members),
            _of_peak(members),
        )
        for name, time_ns, members in lines[:SHOWN]
    ]
    is_known = any(name != UNKNOWN_PART for name, _, _ in lines)
    caption = _SUMS if is_known else _NOTHING_KNOWN[by].format("record")
    columns = (
        *(f"~<{by}", "???count", "ms", "%", "-MHz", "-??samples", "-lost ms"),
        *("-?launch ms", "-?of peak %"),
    )
    return table(_title(f"{TITLES[by]}  whole file", lines), columns, rows, caption=caption)


def host_parts(document: ReportDocument, by: PartsBy) -> Section | None:
    """Render the parts with the most host time, in traces without device work; None without."""
    field = FIELDS[by]
    every: Iterable[HostPart] = (each for host in document.host for each in getattr(host, field))
    lines, all_ns = _lines(every, lambda each: each.name, lambda each: each.host_ns)
    if not lines:
        return None
    rows = [
        (
            fmt.brief_name(name),
            fmt.count(sum(part.count for part in members)),
            fmt.milliseconds(time_ns),
            _share(time_ns, all_ns),
        )
        for name, time_ns, members in lines[:SHOWN]
    ]
    is_known = any(name != UNKNOWN_PART for name, _, _ in lines)
    caption = _HOST_SUMS if is_known else _NOTHING_KNOWN[by].format("operator")
    title = _title(f"{TITLES[by]}  host, whole file", lines)
    return table(title, (f"~<{by}", "count", "host ms", "%"), rows, caption=caption)

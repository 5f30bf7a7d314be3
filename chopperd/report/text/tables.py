"""Kernel classes and families over the whole files, summed over devices."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rich.console import Group

from chopperd.model.report import By, HostPart, PartsBy, ReportDocument
from chopperd.model.report_rows import UNKNOWN_PART, ClassTotal, Family, Part, Row
from chopperd.report.text.sections import table
from chopperd.report.text.wording import (
    UNKNOWN,
    count,
    decimal,
    known,
    milliseconds,
    percent,
    shorten,
    spread,
    words,
)

_FAMILIES_SHOWN: Final = 20
_REASON_WIDTH: Final = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """Families that share a line, with the sums over them."""

    name: str
    class_: str
    members: tuple[Family, ...]

    @property
    def time_ns(self) -> int:
        """Summed kernel time, not a union."""
        return sum(family.time_ns for family in self.members)


def summed_loss(members: Sequence[Family | ClassTotal | Part]) -> str:
    """A sum of ceiling losses in ms with half its interval; a lower bound where one is unknown."""
    told = [each.lost_ns for each in members if each.lost_ns is not None]
    if not told:
        return UNKNOWN
    halves_ns = [
        (each.lost_high_ns - each.lost_low_ns) / 2
        for each in members
        if each.lost_low_ns is not None and each.lost_high_ns is not None
    ]
    text = ("" if len(told) == len(members) else "≥ ") + milliseconds(sum(told))
    return f"{text} ±{milliseconds(sum(halves_ns))}" if len(halves_ns) == len(told) else text


def cut(shown: int, lines: int, *, merged: bool) -> str:
    """What a title says where not all lines are shown.

    Args:
        shown: How many are.
        lines: How many there are.
        merged: Whether one of them holds several.
    """
    if shown == lines:
        return ""
    there = f"{'more than ' if merged else ''}{count(lines)}"
    return f", {shown} with the most time of {there} (--format json)"


def classes(document: ReportDocument) -> Group | None:
    """One line a class: kernel time, its share, and what the clock cost there at most."""
    members: defaultdict[str, list[ClassTotal]] = defaultdict(list)
    for row in document.totals:
        for each in row.classes:
            members[each.class_].append(each)
    if not members:
        return None
    times_ns = {name: sum(each.total_ns for each in those) for name, those in members.items()}
    all_ns = sum(times_ns.values())
    rows = [
        (
            words(name),
            milliseconds(time_ns),
            percent(time_ns / all_ns if all_ns else None),
            summed_loss(members[name]),
        )
        for name, time_ns in sorted(times_ns.items(), key=lambda item: (-item[1], item[0]))
    ]
    return table("CLASSES  whole file", ("<class", "ms", "%", "lost ms"), rows)


def families(document: ReportDocument, width: int) -> Group | None:
    """The families with the most kernel time."""
    groups = _grouped(document)
    if not groups:
        return None
    shown = groups[:_FAMILIES_SHOWN]
    merged = any(family.merged for group in groups for family in group.members)
    title = f"FAMILIES  whole file{cut(len(shown), len(groups), merged=merged)}"
    columns = ("<name", "<class", "count", "ms", "MHz", "samples", "lost ms", "<beta")
    reason = _shared_reason(groups)
    cells = [_family_cells(group, width, with_reason=reason is None) for group in shown]
    return table(title, columns, cells, caption="" if reason is None else f"beta: {reason}")


def _shared_reason(groups: Iterable[_Group]) -> str | None:
    """Why no family has a sensitivity, where that is the same for all; else None."""
    every = [family for group in groups for family in group.members]
    reasons = {family.beta_reason for family in every}
    if len(every) < 2 or len(reasons) > 1 or any(known(family.beta) for family in every):
        return None
    return reasons.pop()


def _family_cells(group: _Group, width: int, *, with_reason: bool) -> tuple[str, ...]:
    return (
        shorten(group.name, max(width - 76, 16)),
        words(group.class_),
        count(sum(family.count for family in group.members)),
        milliseconds(group.time_ns),
        spread([family.mean_mhz for family in group.members if known(family.mean_mhz)]),
        count(sum(family.samples for family in group.members)),
        summed_loss(group.members),
        _beta(group.members) if with_reason else UNKNOWN,
    )


def _beta(members: Sequence[Family]) -> str:
    """The sensitivity with its interval; over several devices, from the lowest to the highest."""
    measured = [family for family in members if known(family.beta)]
    if len(measured) == 1:
        only = measured[0]
        low, high = decimal(only.beta_low, 2), decimal(only.beta_high, 2)
        return f"{decimal(only.beta, 2)} [{low}, {high}]"
    if measured:
        return spread([family.beta for family in measured if known(family.beta)], digits=2)
    reasons = {family.beta_reason for family in members if family.beta_reason}
    return shorten(words(min(reasons)), _REASON_WIDTH) if reasons else UNKNOWN


def _grouped(document: ReportDocument) -> list[_Group]:
    """Families of all devices put together by name and class; most time first."""
    members: dict[tuple[str, str], list[Family]] = {}
    for family in _all_families(document):
        members.setdefault((family.name, family.class_), []).append(family)
    groups = [
        _Group(name=name, class_=class_, members=tuple(group))
        for (name, class_), group in members.items()
    ]
    return sorted(groups, key=lambda group: (-group.time_ns, group.class_, group.name))


def _all_families(document: ReportDocument) -> Iterable[Family]:
    return (family for row in document.totals for family in row.families)


# What tables of operations, layers and phases are called, and what they say if nothing is told.

#: Lines of a table.
SHOWN: Final = 20
TITLES: Final[Mapping[By, str]] = {
    "family": "FAMILIES",
    "operation": "OPERATIONS",
    "layer": "LAYERS",
    "phase": "PHASES",
}
#: With the word for what nothing is told of.
NOTHING_TOLD: Final[Mapping[PartsBy, str]] = {
    "operation": "the trace tells no operator of any {}",
    "layer": "the trace tells no module of any {} (with_stack=True does)",
    "phase": "the trace tells no phase of any {}: it holds no backward pass",
}


def why_none(document: ReportDocument) -> str:
    """Why a report has nothing of what was asked for."""
    if document.totals:
        return "not in this report: names are not shown (privacy.names), or it is an older one"
    return "no device work in the trace" + ("" if len(document.traces) < 2 else "s")


# Device work by operation, layer or phase over the whole files, summed over devices.

_COLUMNS: Final = ("count", "ms", "%", "MHz", "samples", "lost ms")
_SHARED: Final = "ms: sums of durations, and streams overlap"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """Parts of one name, of all devices."""

    name: str
    members: tuple[Part, ...]

    @property
    def time_ns(self) -> int:
        """Summed time, not a union."""
        return sum(part.time_ns for part in self.members)


def parts(document: ReportDocument, by: PartsBy, width: int) -> Group | None:
    """The operations, layers or phases with the most time; what is of none has a line too."""
    lines = _lines(part for row in document.totals for part in _parts_of(row, by))
    if not lines:
        return None
    all_ns = sum(line.time_ns for line in lines)
    shown = lines[:SHOWN]
    merged = any(part.merged for line in lines for part in line.members)
    title = f"{TITLES[by]}  whole file{cut(len(shown), len(lines), merged=merged)}"
    rows = [_cells(line, all_ns, width) for line in shown]
    none_told = all(line.name == UNKNOWN_PART for line in lines)
    caption = NOTHING_TOLD[by].format("record") if none_told else _SHARED
    return table(title, (f"<{by}", *_COLUMNS), rows, caption=caption)


def _parts_of(row: Row, by: PartsBy) -> Sequence[Part]:
    if by == "operation":
        return row.by_operation
    return row.by_layer if by == "layer" else row.by_phase


def _lines(found: Iterable[Part]) -> list[_Line]:
    """Parts put together by name, most time first."""
    members: dict[str, list[Part]] = {}
    for part in found:
        members.setdefault(part.name, []).append(part)
    lines = [_Line(name=name, members=tuple(alike)) for name, alike in members.items()]
    return sorted(lines, key=lambda line: (-line.time_ns, line.name))


def _cells(line: _Line, all_ns: int, width: int) -> tuple[str, ...]:
    return (
        shorten(line.name, max(width - 66, 16)),
        count(sum(part.count for part in line.members)),
        milliseconds(line.time_ns),
        percent(line.time_ns / all_ns if all_ns else None),
        spread([part.mean_mhz for part in line.members if known(part.mean_mhz)]),
        count(sum(part.samples for part in line.members)),
        summed_loss(line.members),
    )


# The table of host time by operation, layer or phase, of traces without device work.

_HOST_COLUMNS: Final = ("count", "host ms", "%")
_CAPTION: Final = (
    "of traces without device work; host ms: while an operator ran and no operator in it"
)


def host_parts(document: ReportDocument, by: PartsBy, width: int) -> Group | None:
    """The operations, layers or phases with the most host time; None where none is told."""
    members: dict[str, list[HostPart]] = {}
    for trace in document.host:
        for part in getattr(trace, f"by_{by}"):
            members.setdefault(part.name, []).append(part)
    if not members:
        return None
    time_ns = {name: sum(part.host_ns for part in alike) for name, alike in members.items()}
    all_ns = sum(time_ns.values())
    names = sorted(members, key=lambda name: (-time_ns[name], name))
    merged = any(part.merged for alike in members.values() for part in alike)
    rows = [
        (
            shorten(name, max(width - 40, 16)),
            count(sum(part.count for part in members[name])),
            milliseconds(time_ns[name]),
            percent(time_ns[name] / all_ns if all_ns else None),
        )
        for name in names[:SHOWN]
    ]
    title = f"{TITLES[by]}  host, whole file{cut(len(rows), len(names), merged=merged)}"
    caption = NOTHING_TOLD[by].format("operator") if set(names) == {UNKNOWN_PART} else _CAPTION
    return table(title, (f"<{by}", *_HOST_COLUMNS), rows, caption=caption)

"""Kernel classes and families over the whole files, summed over devices."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from rich.console import Group

from chopperd.model.report import ClassTotal, Family, ReportDocument
from chopperd.model.row_work import Part
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

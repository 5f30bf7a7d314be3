"""Show the names in a report, which reveal architectures: in full, as hashes, or not at all."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace

from chopperd.model.answers import BACKWARD_REGION, NOTHING_OPEN, DropShare, Held, TracedDrop
from chopperd.model.report import HostPart, HostTime
from chopperd.model.report_rows import OTHER_PARTS, UNKNOWN_PART, Family, Part, Row
from chopperd.report.build.clocks import copied
from chopperd.report.build.holders import merged
from chopperd.report.build.trace_notes import REPEATING_ANNOTATIONS
from chopperd.report.build.trace_report import TraceReport

Names: TypeAlias = Literal["full", "hashed", "classes"]
PartT = TypeVar("PartT", Part, HostPart)
RowT = TypeVar("RowT", Row, HostTime)
_Cover: TypeAlias = Literal["hashed", "classes"]

_HASH_DIGITS = 12


def trace_with_names(report: TraceReport, names: Names) -> TraceReport:
    """Return the report on one trace with names shown as the site wants: hashed, or not at all.

    Evidence of a framework, what a program calls its process groups, which may be names of modules,
    and which ranks are in them are shown in full or not at all.

    "hashed": the class and a hash of the name, equal for equal names; "classes": one family for
    each class, and no operations, layers or annotations.
    """
    if names == "full":
        return report
    classes = {each.name: each.class_ for total in report.totals for each in total.row.families}
    return replace(
        report,
        notes=tuple(note for note in report.notes if note.code != REPEATING_ANNOTATIONS),
        framework=replace(report.framework, evidence=()),
        totals=tuple(replace(each, row=_covered(each.row, names)) for each in report.totals),
        steps=tuple(replace(each, row=_covered(each.row, names)) for each in report.steps),
        host_steps=tuple(_covered(each, names) for each in report.host_steps),
        host=report.host and _with_parts(report.host, names),
        drops=tuple(replace(drop, families=_ran(drop, classes, names)) for drop in report.drops),
    )


def _ran(drop: TracedDrop, classes: Mapping[str, str], names: _Cover) -> tuple[DropShare, ...]:
    """Return the families in a drop by their hashed names; none for "classes"."""
    if names == "classes":
        return ()
    return tuple(
        replace(each, name=_hashed_name(classes[each.name], each.name))
        for each in drop.families
        if each.name in classes
    )


def _covered(row: Row, names: _Cover) -> Row:
    step_name = row.step_name and f"step-{_digest(row.step_name)}"
    return replace(
        _with_parts(row, names),
        step_name=step_name if names == "hashed" else None,
        families=_hashed(row.families) if names == "hashed" else _classes(row),
        held=tuple(merged(row.held, lambda each: _covered_holder(each, names))),
        collectives=tuple(
            replace(each, group_description=None, group_ranks=None) for each in row.collectives
        ),
    )


def _with_parts(of: RowT, names: _Cover) -> RowT:
    """Return a row with hashes for names of operations, layers and annotations; or without them."""
    return replace(
        of,
        by_operation=_parts(of.by_operation, "operation", names),
        by_layer=_parts(of.by_layer, "layer", names),
        by_annotation=_parts(of.by_annotation, "annotation", names),
    )


def _parts(parts: Sequence[PartT], what: str, names: _Cover) -> tuple[PartT, ...]:
    return tuple(
        part
        if part.name in {UNKNOWN_PART, OTHER_PARTS}
        else replace(part, name=f"{what}-{_digest(part.name)}")
        for part in (parts if names == "hashed" else ())
    )


def _hashed(families: Sequence[Family]) -> tuple[Family, ...]:
    return tuple(
        family
        if family.name == OTHER_PARTS
        else msgspec.structs.replace(family, name=_hashed_name(family.class_, family.name))
        for family in families
    )


def _hashed_name(kernel_class: str, name: str) -> str:
    return f"{kernel_class}-{_digest(name)}"


def _covered_holder(held: Held, names: _Cover) -> Held:
    """Return a holder with hashes for names; for "classes" with its kind, and nothing beside it."""

    def shown(name: str | None) -> str | None:
        if name is None or name == BACKWARD_REGION:
            return name
        return f"host-{_digest(name)}" if names == "hashed" else None

    name = held.name
    if name.startswith(NOTHING_OPEN):
        following = name.removeprefix(f"{NOTHING_OPEN} before ")
        known = following != name and names == "hashed"
        name = f"{NOTHING_OPEN} before {shown(following)}" if known else NOTHING_OPEN
    elif held.kind != "none":
        name = shown(name) or f"({held.kind})"
    inner, whole, region = shown(held.inner), shown(held.whole), shown(held.region)
    return replace(held, name=name, inner=inner, whole=whole, region=region)


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:_HASH_DIGITS]


def _classes(row: Row) -> tuple[Family, ...]:
    """Return one family for each class, longest first, with the clock and the loss of the class.

    Of a step they are sums over its families, without clocks.
    """
    if not row.classes:
        return summed(row.families)
    reasons = {family.class_: family.beta_reason for family in row.families}
    return tuple(
        copied(
            each,
            Family,
            name=each.class_,
            time_ns=each.total_ns,
            beta_reason=reasons.get(each.class_),
        )
        for each in sorted(row.classes, key=lambda each: -each.total_ns)
    )


def summed(families: Sequence[Family]) -> tuple[Family, ...]:
    """Return one family for each class, longest first, without clocks."""
    found: dict[str, Family] = {}
    for each in families:
        known = found.get(each.class_)
        found[each.class_] = Family(
            name=each.class_,
            class_=each.class_,
            count=each.count + (known.count if known else 0),
            time_ns=each.time_ns + (known.time_ns if known else 0),
            mean_mhz=None,
            samples=each.samples + (known.samples if known else 0),
            lost_ns=None,
            beta_reason=each.beta_reason,
        )
    return tuple(sorted(found.values(), key=lambda each: -each.time_ns))

"""The report as one flat table: a line a step and device, then a line a device in total."""

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from io import StringIO
from math import isfinite
from types import NoneType, UnionType
from typing import Final, get_args, get_origin, get_type_hints

from chopperd.model.causes import CAUSES
from chopperd.model.report import ReportDocument, Row

_LISTS: Final = frozenset(
    {
        *("micro_steps", "copies", "collectives"),
        *("families", "by_operation", "by_layer", "by_phase"),
    }
)
_ADDED: Final = ("row", "simulated")


def render_csv(document: ReportDocument) -> str:
    """CSV with a header; nested names are joined by `_`, unknown is empty.

    Every line has `row` ("step" or "total") and `simulated`. Lists in a row (micro-steps, families
    and the like) are in the JSON form only.
    """
    rows = {"step": document.steps, "total": document.totals}
    return _csv(rows, simulated=document.generated.simulated)


def render_steps_csv(steps: Sequence[Row], *, simulated: bool | None) -> str:
    """Step rows alone, in the same form; `simulated` None is unknown."""
    return _csv({"step": steps}, simulated=simulated)


def _csv(rows: Mapping[str, Sequence[Row]], *, simulated: bool | None) -> str:
    paths = tuple(_paths(Row))
    buffer = StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([*_ADDED, *("_".join(path) for path in paths)])
    for kind, those in rows.items():
        for row in those:
            cells = (_cell(_at(row, path)) for path in paths)
            writer.writerow([kind, _cell(simulated), *cells])
    return buffer.getvalue()


def _paths(record: type) -> Iterator[tuple[str, ...]]:
    """The path of every single value under a dataclass, in the order of its fields."""
    types = get_type_hints(record)
    for field in fields(record):
        if field.name in _LISTS:
            continue
        for rest in _paths_under(types[field.name]):
            yield (field.name, *rest)


def _paths_under(kind: object) -> Iterator[tuple[str, ...]]:
    """What lies under a field: nested dataclasses and the closed set of causes unfolded.

    A field that can only be None has no column yet.
    """
    if kind is NoneType:
        return
    for option in get_args(kind) if isinstance(kind, UnionType) else (kind,):
        if isinstance(option, type) and is_dataclass(option):
            yield from _paths(option)
            return
        if get_origin(option) is Mapping:
            yield from ((cause.label,) for cause in CAUSES)
            return
    yield ()


def _at(value: object, path: tuple[str, ...]) -> object:
    """The value at a path; None as soon as something on the way is unknown.

    A cause that a known split does not name has lost 0 ns, as the causes sum to the loss.
    """
    for name in path:
        if value is None:
            return None
        value = value.get(name, 0) if isinstance(value, Mapping) else getattr(value, name)
    return value


def _cell(value: object) -> str:
    if value is None or (isinstance(value, float) and not isfinite(value)):
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return "+".join(str(part) for part in value)
    return str(value)

"""Flatten the rows of a report into columns, shared by its CSV, Parquet and DataFrames.

A column's name is the path to its value, joined by `_` ("clock_compute_mean_mhz"). Lists in a row
are tables of their own, each line with the key of its row.
"""

import csv
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from io import StringIO
from math import isfinite
from types import NoneType, UnionType
from typing import Final, Literal, TypeAlias, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct

from chopperd.model.answers import DropShare, TracedDrop
from chopperd.model.kinds import CAUSES
from chopperd.model.memory import RankMemory, StepMemory
from chopperd.model.report import FIELDS, Breakdown, HostPart, HostTime, ReportDocument
from chopperd.model.report_rows import Row
from chopperd.safe_text import csv_text

Value: TypeAlias = int | float | bool | str | None
Kind: TypeAlias = type[int] | type[float] | type[bool] | type[str]
#: The columns that identify a row of a report.
KEYS: Final = ("row", "job", "run", "rank", "step", "device", "gpu")


_BY_CAUSE: Final = "by_cause_ns"
_DROP_KEYS: Final = ("gpu", "rank", "device", "start_unix_ns")


class Column(Struct, frozen=True, kw_only=True):
    """A value under a record: its path and its kind; unknown is None for all kinds."""

    name: str  # the published names on the path, joined by `_`
    path: tuple[str, ...]  # attributes
    kind: Kind  # lists of texts are texts, joined by `+`, as are counts by name ("damaged:3+cut:1")

    def of(self, record: object) -> Value:
        """Return the value under a record; None if anything on the path is unknown.

        A cause that is missing from a known split has lost 0 ns, as the causes sum to the loss.
        """
        value = record
        for name in self.path:
            if value is None:
                return None
            value = value.get(name, 0) if isinstance(value, Mapping) else getattr(value, name)
        return _plain(value)


class Table(Struct, frozen=True, kw_only=True):
    """Columns of equal length by name, and the kind of each; unknown is None."""

    kinds: Mapping[str, Kind]
    columns: Mapping[str, Sequence[Value]]

    def __len__(self) -> int:
        """Return the number of lines."""
        return len(next(iter(self.columns.values()), ()))


@cache
def columns_of(record: type) -> tuple[Column, ...]:
    """Return a column for each single value under a record class, in field order; no lists."""
    return tuple(_columns(record, (), ()))


@cache
def lists_of(record: type) -> Mapping[str, type]:
    """Return the fields of a record that are lists of records, with the class of their items."""
    found = {name: _item(kind) for name, kind in get_type_hints(record).items()}
    return {name: item for name, item in found.items() if item is not None}


def row_table(document: ReportDocument) -> Table:
    """Make the table of all rows, those of steps before those of whole files.

    Every line has `row` ("step" or "total") and `simulated`.
    """
    return rows_table(_rows(document), simulated=document.generated.simulated)


def rows_table(rows: Sequence[tuple[str, Row]], *, simulated: bool | None) -> Table:
    """Make a table of rows, each with the word for its kind; `simulated` None is unknown."""
    head = Table(
        kinds={"row": str, "simulated": bool},
        columns={"row": [word for word, _ in rows], "simulated": [simulated] * len(rows)},
    )
    return _joined(head, record_table([row for _, row in rows], Row))


def list_table(document: ReportDocument, field: str) -> Table:
    """Make a table of the items of a list in all rows, one per line, with the key of the row."""
    items = [(word, row, each) for word, row in _rows(document) for each in getattr(row, field)]
    words: list[Value] = [word for word, _, _ in items]
    return _joined(
        Table(kinds={"row": str}, columns={"row": words}),
        record_table([row for _, row, _ in items], Row, KEYS),
        record_table([each for _, _, each in items], lists_of(Row)[field], name=own_name),
    )


def host_table(document: ReportDocument, field: str) -> Table:
    """Make a table of host time, one part per line, with its job, run and rank.

    Only traces without device work have any. `field` is a list of `HostTime` ("by_layer").
    """
    items = [(host, part) for host in document.host for part in getattr(host, field)]
    return _joined(
        record_table([host for host, _ in items], HostTime),
        record_table([part for _, part in items], HostPart),
    )


def drop_work_table(document: ReportDocument) -> Table:
    """Make a table of what ran in drops: a line per drop and class or family (`by`)."""
    shares = [
        (drop, by, each)
        for drop in document.drops
        for by, those in (("class", drop.classes), ("family", drop.families))
        for each in those
    ]
    return _joined(
        record_table([drop for drop, _, _ in shares], TracedDrop, _DROP_KEYS),
        Table(kinds={"by": str}, columns={"by": [by for _, by, _ in shares]}),
        record_table([each for _, _, each in shares], DropShare),
    )


def record_table(
    records: Sequence[object],
    record: type,
    keys: Collection[str] | None = None,
    name: Callable[[str], str] = str,
) -> Table:
    """Make a table of records of one class, one per line: of `keys` only, renamed by `name`."""
    columns = [each for each in columns_of(record) if keys is None or each.name in keys]
    named = {name(column.name): column for column in columns}
    return Table(
        kinds={each: column.kind for each, column in named.items()},
        columns={each: [column.of(record) for record in records] for each, column in named.items()},
    )


def _joined(*tables: Table) -> Table:
    return Table(
        kinds={name: kind for each in tables for name, kind in each.kinds.items()},
        columns={name: values for each in tables for name, values in each.columns.items()},
    )


def own_name(name: str) -> str:
    """Return an item's column name, prefixed by `item_` where it is a key of the row: `step`."""
    return f"item_{name}" if name in KEYS else name


def _rows(document: ReportDocument) -> list[tuple[str, Row]]:
    steps: list[tuple[str, Row]] = [("step", row) for row in document.steps]
    return steps + [("total", row) for row in document.totals]


def _columns(record: type, path: tuple[str, ...], names: tuple[str, ...]) -> Iterator[Column]:
    published = _published_names(record)
    for name, kind in get_type_hints(record).items():
        if name in published and _item(kind) is None:
            yield from _under(kind, (*path, name), (*names, published[name]))


def _under(kind: object, path: tuple[str, ...], names: tuple[str, ...]) -> Iterator[Column]:
    """Yield the columns under a field; one that can only be None has no column yet."""
    options = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    known = [option for option in options if option is not NoneType]
    if not known:
        return
    (option,) = known
    if _is_record(option):
        yield from _columns(option, path, names)
    elif get_origin(option) is Mapping and path[-1] == _BY_CAUSE:
        for cause in CAUSES:
            name = "_".join((*names, cause.label))
            yield Column(name=name, path=(*path, cause.label), kind=int)
    else:
        yield Column(name="_".join(names), path=path, kind=_kind(option))


def _kind(option: object) -> Kind:
    if get_origin(option) is Literal:
        return str
    return next((kind for kind in (bool, int, float) if option is kind), str)


def _item(kind: object) -> type | None:
    """Return the class of the items of a list of records; None of anything else."""
    item = get_args(kind)[0] if get_origin(kind) is tuple and get_args(kind) else None
    return item if _is_record(item) else None


def _is_record(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _published_names(record: type) -> Mapping[str, str]:
    """Return published names by attribute; they differ where one is a Python keyword."""
    if not _is_record(record):
        return {}
    return {field.name: field.encode_name for field in msgspec.structs.fields(record)}


def _plain(value: object) -> Value:
    if isinstance(value, tuple):
        return "+".join(str(part) for part in value)
    if isinstance(value, Mapping):
        return "+".join(f"{name}:{count}" for name, count in value.items())
    if isinstance(value, float) and not isfinite(value):
        return None
    return value if isinstance(value, int | float | bool | str) else None


# The report as one flat table: a line a step and device, then a line a device in total.


def render_by_csv(document: ReportDocument, by: Breakdown | None) -> str:
    """Render the table of a breakdown; without one, that of steps."""
    if by == "drop":
        return render_drops_csv(document)
    if by == "memory":
        return render_memory_csv(document)
    return render_list_csv(document, FIELDS[by]) if by else render_csv(document)


def render_csv(document: ReportDocument) -> str:
    """Render all rows as CSV with a header; nested names are joined by `_`, unknown is empty.

    Every line has `row` ("step" or "total") and `simulated`. Lists in a row (micro-steps, families
    and the like) are in other forms, and in tables of their own.
    """
    return _csv(row_table(document))


def render_steps_csv(steps: Sequence[Row], *, simulated: bool | None) -> str:
    """Render step rows as CSV in the form of `render_csv`; `simulated` None is unknown."""
    return _csv(rows_table([("step", row) for row in steps], simulated=simulated))


def render_list_csv(document: ReportDocument, field: str) -> str:
    """Render a list in the rows ("families") as CSV: a line per item, with the key of its row.

    Without device work the host's time is listed, if known: `host_ns` instead of `time_ns`.
    """
    if not document.totals and any(getattr(host, field, ()) for host in document.host):
        return _csv(host_table(document, field))
    return _csv(list_table(document, field))


def render_drops_csv(document: ReportDocument) -> str:
    """Render the drops of clocks as CSV, a line a drop."""
    return _csv(record_table(document.drops, TracedDrop))


def render_memory_csv(document: ReportDocument) -> str:
    """Render device memory as CSV: a line a step of each device, with the device's figures.

    Figures of the device over its steps after warm-up are named `device_...`.
    """
    pairs = [(each, step) for each in document.memory for step in each.steps]
    keys = {"rank", "device", "gpu"}
    every = {column.name for column in columns_of(RankMemory)}
    return _csv(
        _joined(
            record_table([each for each, _ in pairs], RankMemory, keys),
            record_table([step for _, step in pairs], StepMemory),
            record_table([each for each, _ in pairs], RankMemory, every - keys, "device_{}".format),
        )
    )


def _csv(table: Table) -> str:
    buffer = StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(table.columns)
    writer.writerows(
        [_cell(value) for value in line] for line in zip(*table.columns.values(), strict=True)
    )
    return buffer.getvalue()


def _cell(value: Value) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return csv_text(value) if isinstance(value, str) else str(value)

"""What holds for every report document, whatever it was made from."""

import csv
import json
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from io import StringIO

import jsonschema
import msgspec
from msgspec.structs import asdict

from chopperd.model.report import FIELDS, ReportDocument
from chopperd.model.report_rows import Row
from chopperd.report.forms.schema import SCHEMA_FILE, formatted

Json = dict[str, "Json"] | list["Json"] | str | int | float | bool | None


@cache
def _validator() -> jsonschema.Draft202012Validator:
    schema = json.loads(files("chopperd.report").joinpath(SCHEMA_FILE).read_text())
    return jsonschema.Draft202012Validator(schema)


def check_document(document: ReportDocument) -> None:
    """The published schema, all forms, and the sums that a reader may rely on."""
    _validator().validate(json.loads(formatted(document, "json")))
    for by in FIELDS:
        text = formatted(document, "text", by=by)
        assert max(map(len, text.splitlines())) <= 100
    table = list(csv.DictReader(StringIO(formatted(document, "csv"))))
    assert len(table) == len(document.steps) + len(document.totals)
    for row in (*document.steps, *document.totals):
        check_row(row)
        check_parts(row)


def check_parts(row: Row) -> None:
    """Operations, layers and phases each sum to the families, which are of all records."""
    for parts in (row.by_operation, row.by_layer, row.by_phase, row.by_annotation):
        for figure in ("count", "time_ns", "samples"):
            of_families = sum(getattr(family, figure) for family in row.families)
            assert sum(getattr(part, figure) for part in parts) == of_families
        assert len({part.name for part in parts}) == len(parts)


def check_row(row: Row) -> None:
    """A row's waterfall sums to its window, its causes to its loss, its parts to their wholes."""
    if row.host_only:
        assert row.waterfall_ns is None
        assert row.busy_ns is None
        assert row.device is None
        return
    waterfall = row.waterfall_ns
    assert waterfall is not None
    parts = {name: value or 0 for name, value in asdict(waterfall).items()}
    assert min(parts.values()) >= 0
    assert sum(parts.values()) == row.window_ns
    compute = ("compute_at_ref", "dvfs_loss", "compute_unsampled")
    assert sum(parts[name] for name in compute) == row.compute_ns
    assert waterfall.dvfs_loss == row.dvfs.lost_ns
    assert (waterfall.compute_at_ref is None) == (waterfall.dvfs_loss is None)
    if row.dvfs.by_cause_ns is not None:
        assert sum(row.dvfs.by_cause_ns.values()) == row.dvfs.lost_ns
    copies = row.exposed_copy_ns
    assert copies is not None
    assert copies.h2d + copies.d2h + copies.d2d + copies.memset == waterfall.exposed_copy
    check_traffic(row)
    busy_ns = parts["exposed_comm"] + parts["exposed_copy"] + (row.compute_ns or 0)
    assert row.busy_ns == busy_ns


def check_traffic(row: Row) -> None:
    """Copies and collectives take the time of the families of their classes."""
    for traffic, classes in ((row.copies, {"memcpy", "memset"}), (row.collectives, {"comm"})):
        assert all(0 <= each.sized_count <= each.count for each in traffic)
        assert all((each.bytes is None) == (each.sized_count == 0) for each in traffic)
        if row.families and traffic:
            of_class = [each for each in row.families if each.class_ in classes]
            assert sum(each.time_ns for each in traffic) == sum(each.time_ns for each in of_class)
            assert sum(each.count for each in traffic) == sum(each.count for each in of_class)
    times = row.chopper
    if times is not None:
        assert times.launch_ns == times.prep_ns + times.call_ns


def leaves(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Every single value of a document with its path, as the JSON form has it."""
    plain = msgspec.to_builtins(value)
    stack: list[tuple[str, object]] = [(path, plain)]
    while stack:
        where, here = stack.pop()
        if isinstance(here, dict):
            stack += [(f"{where}.{key}".lstrip("."), below) for key, below in here.items()]
        elif isinstance(here, list | tuple):
            stack += [(f"{where}[]", below) for below in here]
        else:
            yield where, here

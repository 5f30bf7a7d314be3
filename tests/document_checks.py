"""What holds for every report document, whatever it was made from."""

import csv
import json
from collections.abc import Iterator
from dataclasses import asdict
from functools import cache
from importlib.resources import files
from io import StringIO

import jsonschema
import msgspec

from chopperd.model.report import ReportDocument, Row
from chopperd.report.formats import formatted
from chopperd.report.schema import SCHEMA_FILE

Json = dict[str, "Json"] | list["Json"] | str | int | float | bool | None


@cache
def _validator() -> jsonschema.Draft202012Validator:
    schema = json.loads(files("chopperd.report").joinpath(SCHEMA_FILE).read_text())
    return jsonschema.Draft202012Validator(schema)


def check_document(document: ReportDocument) -> None:
    """The published schema, all forms, and the sums that a reader may rely on."""
    _validator().validate(json.loads(formatted(document, "json")))
    text = formatted(document, "text", by_family=True)
    assert max(map(len, text.splitlines())) <= 100
    table = list(csv.DictReader(StringIO(formatted(document, "csv"))))
    assert len(table) == len(document.steps) + len(document.totals)
    for row in (*document.steps, *document.totals):
        check_row(row)


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
    busy_ns = parts["exposed_comm"] + parts["exposed_copy"] + (row.compute_ns or 0)
    assert row.busy_ns == busy_ns


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

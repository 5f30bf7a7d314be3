"""The report as one flat table: a line a step and device, then a line a device in total."""

import csv
from collections.abc import Sequence
from io import StringIO

from chopperd.model.report import ReportDocument, Row
from chopperd.model.safe_text import csv_text
from chopperd.report.forms.columns import (
    Table,
    Value,
    host_table,
    list_table,
    row_table,
    rows_table,
)


def render_csv(document: ReportDocument) -> str:
    """CSV with a header; nested names are joined by `_`, unknown is empty.

    Every line has `row` ("step" or "total") and `simulated`. Lists in a row (micro-steps, families
    and the like) are in other forms, and in tables of their own.
    """
    return _csv(row_table(document))


def render_steps_csv(steps: Sequence[Row], *, simulated: bool | None) -> str:
    """Step rows alone, in the same form; `simulated` None is unknown."""
    return _csv(rows_table([("step", row) for row in steps], simulated=simulated))


def render_list_csv(document: ReportDocument, field: str) -> str:
    """A list in the rows as a table: a line an item, each with the key of its row.

    Where there is no device work but the host's is known, that: `host_ns` instead of `time_ns`.

    Args:
        document: The report.
        field: The field of a row that holds it ("families").
    """
    if not document.totals and any(getattr(host, field, ()) for host in document.host):
        return _csv(host_table(document, field))
    return _csv(list_table(document, field))


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

"""The long lists of a row of totals: its device work by family, operation, layer or phase."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, Literal, TypeAlias, get_args

from chopperd.model.report import ReportDocument, Row

By: TypeAlias = Literal["family", "operation", "layer", "phase"]
PartsBy: TypeAlias = Literal["operation", "layer", "phase"]
PARTS_BY: Final[tuple[By, ...]] = get_args(By)
#: The field of a row that has its work by each.
FIELDS: Final[Mapping[By, str]] = {
    "family": "families",
    "operation": "by_operation",
    "layer": "by_layer",
    "phase": "by_phase",
}


def has_parts(document: ReportDocument, by: By) -> bool:
    """Whether a report has work by this, of devices or of hosts without any."""
    field = FIELDS[by]
    return any(getattr(row, field) for row in (*document.steps, *document.totals)) or any(
        getattr(host, field, ()) for host in document.host
    )


def without_parts(row: Row) -> Row:
    """The row without these lists: they may be longer than all else together."""
    if row.families or row.by_operation or row.by_layer or row.by_phase:
        return replace(row, families=(), by_operation=(), by_layer=(), by_phase=())
    return row

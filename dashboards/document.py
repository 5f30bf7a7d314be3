"""A board as JSON for Grafana's provisioning: grafanalib's, without keys of old schemas."""

import json
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from grafanalib._gen import DashboardEncoder
from grafanalib.core import Dashboard, Panel, Templating, Time

from dashboards.panels import Variable

Document: TypeAlias = dict[str, object]

#: Grafana 11.
SCHEMA_VERSION: Final = 41

_BOARD_KEYS: Final = frozenset(
    {
        "annotations", "description", "editable", "graphTooltip", "links", "panels", "refresh",
        "schemaVersion", "tags", "templating", "time", "timezone", "title", "uid",
        "version",
    }
)  # fmt: skip
_PANEL_KEYS: Final = frozenset(
    {
        "datasource", "description", "fieldConfig", "gridPos", "id", "options", "targets", "title",
        "type",
    }
)  # fmt: skip


def board_document(
    *,
    uid: str,
    title: str,
    description: str,
    variables: Sequence[Variable],
    panels: Sequence[Panel],
) -> Document:
    """Build a board's document, with keys of the present schema only."""
    board = Dashboard(
        uid=uid,
        title=title,
        description=description,
        tags=["chopperd"],
        timezone="browser",
        refresh="30s",
        graphTooltip=1,  # one cross-hair over all panels
        editable=True,
        schemaVersion=SCHEMA_VERSION,
        time=Time("now-3h", "now"),
        templating=Templating(list=list(variables)),
        panels=list(panels),
    ).auto_panel_ids()
    return _without_legacy(json.loads(json.dumps(board, cls=DashboardEncoder)))


def encoded(document: Mapping[str, object]) -> str:
    """Return the text of a board's file; keys are sorted, so that diffs are small."""
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


def _without_legacy(board: Mapping[str, object]) -> Document:
    reduced = _only(board, _BOARD_KEYS)
    reduced["panels"] = [_only(panel, _PANEL_KEYS) for panel in _objects(reduced["panels"])]
    return reduced


def _only(value: Mapping[str, object], keys: frozenset[str]) -> Document:
    return {key: _without_nulls(item) for key, item in value.items() if key in keys}


def _without_nulls(value: object) -> object:
    """Remove null entries, except in thresholds, where null means "no lower limit"."""
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: item if key == "thresholds" else _without_nulls(item)
        for key, item in value.items()
        if item is not None
    }


def _objects(value: object) -> list[Document]:
    assert isinstance(value, list)
    return value

"""A board as JSON for Grafana's provisioning: grafanalib's, without keys of old schemas."""

import json
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from grafanalib._gen import DashboardEncoder
from grafanalib.core import Annotations, Dashboard, Templating, Time

from chopperd.palette import ALERT_LIGHT, ROWS
from dashboards.looks import GREY
from dashboards.panels import DATASOURCE, Shelf, arranged, banner
from dashboards.queries import MIN_STEP, RATE, chosen

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
        "collapsed", "datasource", "description", "fieldConfig", "gridPos", "id", "options",
        "panels", "targets", "title", "transformations", "transparent", "type",
    }
)  # fmt: skip
_ROW_KEYS: Final = frozenset(
    {"collapsed", "datasource", "gridPos", "id", "panels", "title", "type"}
)
_BANNER_HEIGHT: Final = 2


def board_document(
    *, uid: str, title: str, description: str, shelves: Sequence[Shelf], one_workload: bool = False
) -> Document:
    """Build a board's document, with keys of the present schema only.

    Args:
        uid: By which links and bookmarks find it.
        title: Its name.
        description: What it answers.
        shelves: Its panels; the banner comes above.
        one_workload: Whether it is about one workload at a time.
    """
    top = Shelf(_BANNER_HEIGHT, (banner(chosen("agent_simulated")),))
    board = Dashboard(
        uid=uid,
        title=f"chopperd / {title}",
        description=description,
        tags=["chopperd"],
        links=[_other_boards()],
        timezone="browser",
        refresh="30s",
        graphTooltip=1,  # one cross-hair over all panels
        editable=True,
        schemaVersion=SCHEMA_VERSION,
        time=Time("now-3h", "now"),
        annotations=Annotations(list=_annotations()),
        templating=Templating(list=_variables(one_workload=one_workload)),
        panels=arranged((top, *shelves)),
    ).auto_panel_ids()
    return _without_legacy(json.loads(json.dumps(board, cls=DashboardEncoder)))


def encoded(document: Mapping[str, object]) -> str:
    """Return the text of a board's file; keys are sorted, so that diffs are small."""
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


def _variables(*, one_workload: bool) -> list[Document]:
    """Return the same variables for all boards; each is looked up among the ones before it."""
    node = 'chopperd_agent_build_info{cluster=~"$cluster"}'
    gpu = 'chopperd_gpu_up{cluster=~"$cluster", instance=~"$node"}'
    datasource: Document = {
        "name": "datasource",
        "label": "Prometheus",
        "type": "datasource",
        "query": "prometheus",
        "refresh": 1,  # when the board is loaded
    }
    return [
        datasource,
        _variable("cluster", "Cluster", "label_values(chopperd_agent_build_info, cluster)"),
        _variable("node", "Node", f"label_values({node}, instance)"),
        _variable(
            "workload",
            "Workload",
            'label_values(chopperd_workload_info{cluster=~"$cluster"}, workload)',
            several=not one_workload,
        ),
        _variable("gpu", "GPU", f"label_values({gpu}, gpu)"),
    ]


def _variable(name: str, label: str, query: str, *, several: bool = True) -> Document:
    """Return a variable; "All" is the default, and matches also what lacks the label."""
    every: object = ["$__all"] if several else "$__all"
    return {
        "name": name,
        "label": label,
        "type": "query",
        "query": query,
        "datasource": DATASOURCE,
        "refresh": 2,  # when the time range changes
        "sort": 3,  # by number
        "includeAll": True,
        "multi": several,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"] if several else "All", "value": every},
    }


def _annotations() -> list[Document]:
    drops = f"increase({chosen('gpu_clock_drops_total')}[{RATE}]) > 0"
    restarts = f"increase({chosen('agent_restarts_total')}[{RATE}]) > 0"
    captured = f"{chosen('traced_last_capture_timestamp_seconds')} * 1000"
    return [
        _annotation("Drops of the clock", drops, ALERT_LIGHT, "GPU {{gpu}} of {{instance}}"),
        _annotation(
            "Captures",
            captured,
            ROWS["exposed_comm"].colour,
            "GPU {{gpu}} of {{instance}}",
            useValueForTime=True,
        ),
        _annotation("Paused", f"{chosen('agent_paused')} == 1", GREY, "{{instance}}"),
        _annotation("Sampler replaced", restarts, GREY, "{{instance}}"),
    ]


def _annotation(name: str, expr: str, colour: str, text: str, **more: object) -> Document:
    return {
        "name": name,
        "datasource": DATASOURCE,
        "enable": True,
        "hide": False,
        "expr": expr,
        "iconColor": colour,
        "step": MIN_STEP,
        "titleFormat": name,
        "textFormat": text,
        **more,
    }


def _other_boards() -> Document:
    return {
        "type": "dashboards",
        "title": "chopperd",
        "tags": ["chopperd"],
        "asDropdown": False,
        "icon": "external link",
        "includeVars": True,
        "keepTime": True,
        "targetBlank": False,
        "tooltip": "",
        "url": "",
    }


def _without_legacy(board: Mapping[str, object]) -> Document:
    reduced = _only(board, _BOARD_KEYS)
    reduced["panels"] = [_panel(panel) for panel in _objects(reduced["panels"])]
    return reduced


def _panel(panel: Mapping[str, object]) -> Document:
    reduced = _only(panel, _PANEL_KEYS)
    if reduced["type"] == "row":
        reduced["panels"] = [_panel(each) for each in _objects(reduced["panels"])]
        return {key: reduced[key] for key in reduced.keys() & _ROW_KEYS}
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

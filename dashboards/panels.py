"""Panels, queries and variables as Grafana 11 reads them, for any board.

What grafanalib lacks of Grafana's present schema is added here; what it emits too much is taken
away by `dashboards.document`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import attr
from grafanalib.core import GridPos, Panel, Stat, TimeSeries

Variable: TypeAlias = Mapping[str, object]

DATASOURCE: Final[Mapping[str, str]] = {"type": "prometheus", "uid": "${datasource}"}

#: The least step of queries, from which Grafana makes `$__rate_interval`: four of these. It goes
#: before the data source's own, which is 15 s unless somebody has set it.
MIN_STEP: Final = "$scrape"

_COLUMNS: Final = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """PromQL expression and the name of its series; `instant` asks only for the present value."""

    expr: str
    legend: str
    instant: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """Colour of values from `start` on; None: from the lowest on."""

    colour: str
    start: float | None = None


@dataclass(frozen=True, slots=True)
class Shelf:
    """Panels of one height, side by side and equally wide."""

    height: int
    panels: Sequence[Panel]


PLAIN: Final = (Step("green"),)


def time_series(
    title: str,
    description: str,
    queries: Sequence[Query],
    *,
    unit: str,
    stacked: bool = False,
    overrides: Sequence[Mapping[str, object]] = (),
) -> Panel:
    """Make a panel of lines over time from 0 up, or of stacked areas."""
    return TimeSeries(
        title=title,
        description=description,
        dataSource=DATASOURCE,
        targets=_targets(queries),
        unit=unit,
        axisSoftMin=0,
        fillOpacity=60 if stacked else 0,
        stacking={"mode": "normal" if stacked else "none", "group": "A"},
        showPoints="never",
        tooltipMode="multi",
        tooltipSort="desc",
        thresholds=_steps(PLAIN),
        overrides=list(overrides),
        extraJson={"options": {"legend": {"showLegend": True}}},
    )


def stat(
    title: str,
    description: str,
    query: Query,
    *,
    unit: str,
    steps: Sequence[Step] = PLAIN,
    texts: Mapping[str, str] | None = None,
    absent: str = "unknown",
) -> Panel:
    """Make a panel of the newest value of each series.

    Args:
        title: What it is.
        description: What it means.
        query: An instant query.
        unit: Grafana's name of the unit.
        steps: Colours by value.
        texts: What to show instead of a value.
        absent: What to show where there is no value.
    """
    options = {value: {"text": text} for value, text in (texts or {}).items()}
    return Stat(
        title=title,
        description=description,
        dataSource=DATASOURCE,
        targets=_targets([query]),
        format=unit,
        graphMode="none",
        reduceCalc="lastNotNull",
        color={"mode": "thresholds"},
        thresholds=_steps(steps),
        mappings=[{"type": "value", "options": options}] if options else [],
        noValue=absent,
    )


def share_bars(title: str, description: str, query: Query, *, absent: str) -> Panel:
    """Make a panel with a horizontal bar from 0 to 1 for each series, in the query's order."""
    return _BarGauge(
        title=title,
        description=description,
        dataSource=DATASOURCE,
        targets=_targets([query]),
        thresholds=_steps(PLAIN),
        extraJson={"fieldConfig": {"defaults": {"noValue": absent}}},
    )


def dashed(series: str) -> Mapping[str, object]:
    """Return an override: series whose names match are dashed and not in the legend."""
    hidden = {"legend": True, "tooltip": False, "viz": False}
    return {
        "matcher": {"id": "byRegexp", "options": f"/{series}/"},
        "properties": [
            {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [10, 10]}},
            {"id": "custom.hideFrom", "value": hidden},
        ],
    }


def datasource_variable() -> Variable:
    """Return a variable that lets the reader choose one of Grafana's Prometheus servers."""
    return {
        "name": "datasource",
        "label": "Prometheus",
        "type": "datasource",
        "query": "prometheus",
        "refresh": 1,  # when the board is loaded
    }


def scrape_variable() -> Variable:
    """Return a variable for the scrape interval; its default is the longest supported."""
    rarest = "1m"
    choices = ("15s", "30s", rarest)
    return {
        "name": "scrape",
        "label": "Scraped every",
        "type": "custom",
        "query": ",".join(choices),
        "options": [_choice(text, selected=text == rarest) for text in choices],
        "current": _choice(rarest, selected=True),
        "includeAll": False,
        "multi": False,
    }


def label_variable(name: str, label: str, query: str, *, every: bool = False) -> Variable:
    """Return a variable to choose one value that a query finds; with `every` several or all."""
    several = {
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }
    return {
        "name": name,
        "label": label,
        "type": "query",
        "query": query,
        "datasource": DATASOURCE,
        "refresh": 2,  # when the time range changes
        "sort": 3,  # by number
        **(several if every else {"includeAll": False, "multi": False}),
    }


def arranged(shelves: Sequence[Shelf]) -> list[Panel]:
    """Return the panels with their places in Grafana's grid of 24 columns."""
    placed = []
    y = 0
    for shelf in shelves:
        width = _COLUMNS // len(shelf.panels)
        for column, panel in enumerate(shelf.panels):
            place = GridPos(h=shelf.height, w=width, x=column * width, y=y)
            placed.append(attr.evolve(panel, gridPos=place))
        y += shelf.height
    return placed


class _BarGauge(Panel):  # type: ignore[misc]
    """Bar gauge with options that Grafana 11 needs and grafanalib's own lacks."""

    def to_json_data(self) -> object:
        """Return the panel as data for grafanalib's encoder."""
        defaults = {
            "unit": "percentunit",
            "min": 0,
            "max": 1,
            "color": {"mode": "continuous-BlPu"},
            "mappings": [],
        }
        options = {
            "displayMode": "basic",
            "orientation": "horizontal",
            "showUnfilled": True,
            "valueMode": "color",
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        }
        config = {"defaults": defaults, "overrides": []}
        return self.panel_json({"type": "bargauge", "fieldConfig": config, "options": options})


def _choice(text: str, *, selected: bool) -> Mapping[str, object]:
    return {"selected": selected, "text": text, "value": text}


def _targets(queries: Sequence[Query]) -> list[Mapping[str, object]]:
    """Return the queries as Grafana 11 expects them; grafanalib's `Target` has an older form."""
    return [
        {
            "datasource": DATASOURCE,
            "editorMode": "code",
            "expr": query.expr,
            "format": "time_series",
            "instant": query.instant,
            "interval": MIN_STEP,
            "legendFormat": query.legend,
            "range": not query.instant,
            "refId": chr(ord("A") + index),
        }
        for index, query in enumerate(queries)
    ]


def _steps(steps: Sequence[Step]) -> list[Mapping[str, object]]:
    """Return thresholds; Grafana does not draw grafanalib's panels without any."""
    return [{"color": step.colour, "value": step.start} for step in steps]

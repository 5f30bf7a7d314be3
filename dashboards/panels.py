"""Panels as Grafana 11 reads them, for any board.

grafanalib has the board, its grid and its encoder; its panels lack much of Grafana's present
schema, so that type, options and fields are written here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import attr
from grafanalib.core import GridPos, Panel, RowPanel

from chopperd.palette import SIMULATED, Mark
from dashboards.looks import GREY, INK, Json, gpu_links, held_by_texts, mappings
from dashboards.queries import MIN_STEP, Query, needs

DATASOURCE: Final[Mapping[str, str]] = {"type": "prometheus", "uid": "${datasource}"}

_COLUMNS: Final = 24


@dataclass(frozen=True, slots=True)
class Step:
    """Colour of values from `start` on; None: from the lowest on."""

    colour: str
    start: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """What a panel says.

    Attributes:
        title: What it shows.
        description: What that means, and how far to trust it.
        absent: A sentence for when there is nothing to show, with what to do next.
    """

    title: str
    description: str
    absent: str


@dataclass(frozen=True, slots=True)
class Shelf:
    """Panels of one height, side by side; `widths` in Grafana's 24 columns, or all alike."""

    height: int
    panels: Sequence[Panel]
    widths: Sequence[int] = ()


class Drawn(Panel):  # type: ignore[misc]
    """A panel of any kind, by its `extraJson`; grafanalib places, numbers and encodes it."""

    def to_json_data(self) -> object:
        """Return the panel as data for grafanalib's encoder."""
        return self.panel_json({})


def lines(  # one line a thing that a panel of lines can be told
    words: Words,
    queries: Sequence[Query],
    *,
    unit: str,
    stacked: bool = False,
    from_zero: bool = True,
    levels: Sequence[Step] = (),
    overrides: Sequence[Json] = (),
) -> Panel:
    """Make a panel of lines over time, or of stacked areas; `levels` are drawn as lines."""
    custom: Json = {
        "drawStyle": "line",
        "lineWidth": 1,
        "fillOpacity": 60 if stacked else 0,
        "stacking": {"mode": "normal" if stacked else "none", "group": "A"},
        "showPoints": "never",
        "spanNulls": False,  # a gap in what is known stays one
        "thresholdsStyle": {"mode": "line" if levels else "off"},
        **({"axisSoftMin": 0} if from_zero else {}),
    }
    fields = _fields(unit, (Step("transparent"), *levels), custom)
    options: Json = {"legend": _LEGEND, "tooltip": {"mode": "multi", "sort": "desc"}}
    return _drawn("timeseries", words, queries, fields, options, overrides)


def stat(
    words: Words,
    queries: Sequence[Query],
    *,
    unit: str,
    steps: Sequence[Step] = (),
    texts: Mapping[str, Mark | str] | None = None,
    spark: bool = False,
    overrides: Sequence[Json] = (),
) -> Panel:
    """Make a panel of the newest value of each series, coloured by `steps`; `texts` name values."""
    fields = _fields(unit, (Step(INK), *steps)) | {"mappings": mappings(texts or {})}
    options: Json = {
        "colorMode": "value",
        "graphMode": "area" if spark else "none",
        "justifyMode": "auto",
        "orientation": "auto",
        "percentChangeColorMode": "standard",
        "reduceOptions": _LAST,
        "showPercentChange": False,
        "textMode": "auto",
        "wideLayout": True,
    }
    return _drawn("stat", words, queries, fields, options, overrides)


def held_by_rows(words: Words, query: Query) -> Panel:
    """Make a panel with a row a series that shows by colour what holds each GPU, over time."""
    custom: Json = {"fillOpacity": 85, "lineWidth": 0}
    fields = _fields("none", (Step(GREY),), custom) | {"mappings": mappings(held_by_texts())}
    options: Json = {
        "alignValue": "left",
        "legend": {"calcs": [], "displayMode": "list", "placement": "bottom", "showLegend": True},
        "mergeValues": True,
        "rowHeight": 0.9,
        "showValue": "never",
        "tooltip": {"mode": "single", "sort": "none"},
    }
    return _drawn("state-timeline", words, (query,), fields, options, ())


def table(
    words: Words, queries: Sequence[Query], columns: Mapping[str, str], *, overrides: Sequence[Json]
) -> Panel:
    """Make a table of instant queries, merged by their labels.

    Args:
        words: What it says.
        queries: One a column of values; Grafana names these `Value`, or `Value #A` where several.
        columns: Name of each column in order, by its label or value; others are left out.
        overrides: Units, bars and links of columns, by the new names.
    """
    organised: Json = {
        "excludeByName": {"Time": True, "__name__": True},
        "includeByName": dict.fromkeys(columns, True),
        "indexByName": {name: place for place, name in enumerate(columns)},
        "renameByName": dict(columns),
    }
    options: Json = {
        "cellHeight": "sm",
        "footer": {"show": False, "reducer": [], "countRows": False},
        "showHeader": True,
    }
    panel = _drawn("table", words, queries, _fields("none", (Step(INK),)), options, overrides)
    transformations: list[Json] = [
        {"id": "merge", "options": {}},
        {"id": "organize", "options": organised},
    ]
    return attr.evolve(panel, transformations=transformations)


def share_bars(
    words: Words, queries: Sequence[Query], *, unit: str = "percentunit", overrides: Sequence[Json]
) -> Panel:
    """Make a panel with a horizontal bar for each series, in the query's order."""
    fields = _fields(unit, (Step(GREY),)) | {"min": 0}
    if unit == "percentunit":
        fields["max"] = 1
    options: Json = {
        "displayMode": "basic",
        "maxVizHeight": 40,
        "minVizHeight": 12,
        "minVizWidth": 8,
        "namePlacement": "auto",
        "orientation": "horizontal",
        "reduceOptions": _LAST,
        "showUnfilled": False,
        "sizing": "auto",
        "valueMode": "text",
    }
    return _drawn("bargauge", words, queries, fields, options, overrides)


def rank_bars(words: Words, query: Query, *, overrides: Sequence[Json]) -> Panel:
    """Make a panel with a stacked horizontal bar a `place`, made of the query's `row`s."""
    fields = _fields("percentunit", (Step(GREY),), {"fillOpacity": 90, "lineWidth": 0})
    options: Json = {
        "barRadius": 0,
        "barWidth": 0.8,
        "fullHighlight": False,
        "groupWidth": 0.7,
        "legend": {"calcs": [], "displayMode": "list", "placement": "bottom", "showLegend": True},
        "orientation": "horizontal",
        "showValue": "never",
        "stacking": "normal",
        "tooltip": {"mode": "multi", "sort": "none"},
        "xTickLabelRotation": 0,
        "xTickLabelSpacing": 0,
    }
    panel = _drawn("barchart", words, (query,), fields, options, overrides)
    matrix = {"columnField": "row", "rowField": "place", "valueField": "Value"}
    return attr.evolve(panel, transformations=[{"id": "groupingToMatrix", "options": matrix}])


def heatmap(
    words: Words, query: Query, *, unit: str, scheme: str = "Greys", bucket: float | None = None
) -> Panel:
    """Make a heat map: of how many series are in each `bucket`, or of a row a series."""
    calculation: Json = {
        "xBuckets": {"mode": "size"},
        "yBuckets": {"mode": "size", "scale": {"type": "linear"}, "value": str(bucket)},
    }
    options: Json = {
        "calculate": bucket is not None,
        **({"calculation": calculation} if bucket is not None else {}),
        "cellGap": 1,
        "cellValues": {"unit": "none" if bucket is not None else unit},
        "color": {
            "exponent": 0.5, "fill": GREY, "mode": "scheme", "reverse": False,
            "scale": "exponential", "scheme": scheme, "steps": 64,
        },
        "exemplars": {"color": GREY},
        "filterValues": {"le": 1e-9},
        "legend": {"show": True},
        "rowsFrame": {"layout": "auto"},
        "showValue": "never",
        "tooltip": {"mode": "single", "showColorScale": True, "yHistogram": False},
        "yAxis": {"axisPlacement": "left", "reverse": False, **({"unit": unit} if bucket else {})},
    }  # fmt: skip
    return _drawn("heatmap", words, (query,), _fields(unit, (Step(GREY),), {}), options, ())


def banner(simulated: str) -> Panel:
    """Make the strip that says that figures are simulated; nothing is seen where they are not."""
    words = Words(title="", description="Shown only where figures are simulated.", absent=" ")
    text = Mark("SIMULATED DATA: not from hardware", SIMULATED)
    query = Query(expr=f"max({simulated}) == 1", instant=True)
    panel = stat(words, (query,), unit="none", texts={"1": text})
    return attr.evolve(_changed(panel, options={"colorMode": "background"}), transparent=True)


def with_links(panel: Panel) -> Panel:
    """Return the panel with the links of a GPU at each of its series."""
    return _changed(panel, fields={"links": gpu_links()})


def row(title: str, shelves: Sequence[Shelf]) -> Shelf:
    """Return a shelf that is a collapsed row with shelves of its own."""
    return Shelf(
        1, (RowPanel(title=title, dataSource=DATASOURCE, collapsed=True, panels=arranged(shelves)),)
    )


def arranged(shelves: Sequence[Shelf]) -> list[Panel]:
    """Return the panels with their places in Grafana's grid of 24 columns."""
    placed = []
    y = 0
    for shelf in shelves:
        x = 0
        alike = _COLUMNS // len(shelf.panels)
        for panel, width in zip(shelf.panels, shelf.widths or [alike] * 24, strict=False):
            placed.append(attr.evolve(panel, gridPos=GridPos(h=shelf.height, w=width, x=x, y=y)))
            x += width
        y += shelf.height
    return placed


_LAST: Final[Json] = {"calcs": ["lastNotNull"], "fields": "", "values": False}
_LEGEND: Final[Json] = {
    "calcs": ["mean", "max", "lastNotNull"],
    "displayMode": "table",
    "placement": "right",
    "showLegend": True,
    "sortBy": "Last *",
    "sortDesc": True,
}


def _drawn(
    kind: str,
    words: Words,
    queries: Sequence[Query],
    fields: Json,
    options: Json,
    overrides: Sequence[Json],
) -> Panel:
    """Put a panel together; it says what its queries need beyond the profile `standard`."""
    wanted = {n: None for query in queries if not query.optional for n in needs(query.expr)}
    needed = "".join(f" Needs {need}." for need in wanted)
    defaults = {**fields, "noValue": f"{words.absent}{needed}"}
    config = {"defaults": defaults, "overrides": list(overrides)}
    return Drawn(
        title=words.title,
        description=f"{words.description}{needed}",
        dataSource=DATASOURCE,
        targets=_targets(queries),
        extraJson={"type": kind, "fieldConfig": config, "options": options},
    )


def _changed(panel: Panel, fields: Json | None = None, options: Json | None = None) -> Panel:
    """Return the panel with further entries for all its series, or further options."""
    config = panel.extraJson["fieldConfig"]
    parts = {
        "fieldConfig": {**config, "defaults": {**config["defaults"], **(fields or {})}},
        "options": {**panel.extraJson["options"], **(options or {})},
    }
    return attr.evolve(panel, extraJson={**panel.extraJson, **parts})


def _fields(unit: str, steps: Sequence[Step], custom: Json | None = None) -> Json:
    """Return what all series of a panel have; Grafana draws nothing without thresholds."""
    thresholds = [{"color": step.colour, "value": step.start} for step in steps]
    return {
        "unit": unit,
        "mappings": [],
        "thresholds": {"mode": "absolute", "steps": thresholds},
        **({} if custom is None else {"custom": custom}),
        **({"color": {"mode": "palette-classic"}} if custom else {"color": {"mode": "thresholds"}}),
    }


def _targets(queries: Sequence[Query]) -> list[Json]:
    """Return the queries as Grafana 11 expects them; grafanalib's `Target` has an older form."""
    return [
        {
            "datasource": DATASOURCE,
            "editorMode": "code",
            "expr": query.expr,
            "format": "table" if query.table else "time_series",
            "instant": query.instant,
            "interval": MIN_STEP,
            "legendFormat": query.legend,
            "range": not query.instant,
            "refId": chr(ord("A") + index),
        }
        for index, query in enumerate(queries)
    ]

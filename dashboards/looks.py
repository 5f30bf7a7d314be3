"""How series, columns and cells look: words and colours of the palette, dashes, bars, links."""

from collections.abc import Mapping
from typing import Final, TypeAlias

from chopperd.palette import ALERT_LIGHT, CAUSES, COMPUTE_GRAFANA, Mark
from dashboards.recording import HELD_BY

Json: TypeAlias = dict[str, object]

INK: Final = "text"
AMBER: Final = CAUSES["power_cap"].colour
THERMAL: Final = CAUSES["thermal"].colour
RED: Final = ALERT_LIGHT
GREY: Final = COMPUTE_GRAFANA

_DASHES: Final = {"fill": "dash", "dash": [10, 10]}
_DOTS: Final = {"fill": "dot", "dash": [2, 6]}


def held_by_texts() -> Mapping[str, Mark]:
    """Return word and colour of each value of `held_by`."""
    nothing = Mark("at its reference", COMPUTE_GRAFANA)
    return {str(code): CAUSES.get(name, nothing) for code, name in enumerate(HELD_BY)}


def marked(marks: Mapping[str, Mark]) -> list[Json]:
    """Return overrides that give series of these names their words, colour and dashes."""
    return [
        named(
            name,
            displayName=mark.words,
            color=_fixed(mark.colour),
            **({"custom.lineStyle": _DASHES} if mark.texture == "dashes" else {}),
        )
        for name, mark in marks.items()
    ]


def named(name: str, /, **properties: object) -> Json:
    """Return an override of the series or column of a name."""
    return _override({"id": "byName", "options": name}, properties)


def matching(pattern: str, /, **properties: object) -> Json:
    """Return an override of series whose names match a regular expression."""
    return _override({"id": "byRegexp", "options": f"/{pattern}/"}, properties)


def plain(pattern: str, colour: str = GREY, width: int = 1, dash: str = "") -> Json:
    """Return an override: lines whose names match have a colour, a width, and perhaps a dash."""
    style = {"": {}, "dash": {"custom.lineStyle": _DASHES}, "dot": {"custom.lineStyle": _DOTS}}
    return matching(pattern, color=_fixed(colour), **{"custom.lineWidth": width}, **style[dash])


def band(low: str, high: str) -> Json:
    """Return an override: the area between two lines is filled."""
    return named(high, **{"custom.fillBelowTo": low, "custom.fillOpacity": 20})


def bar_cell(name: str, most: float, colour: str, unit: str = "percentunit") -> Json:
    """Return an override: a column with a bar from 0 to `most` in each cell."""
    cell = {"type": "gauge", "mode": "basic", "valueDisplayMode": "text"}
    own = {"unit": unit, "min": 0, "max": most, "color": _fixed(colour)}
    return named(name, **own, **{"custom.cellOptions": cell})


def mapped_cell(name: str, texts: Mapping[str, Mark]) -> Json:
    """Return an override: a column whose values have words and colours."""
    cell = {"type": "color-text"}
    return named(name, mappings=mappings(texts), **{"custom.cellOptions": cell})


def gpu_links(instance: str = "${__field.labels.instance}", gpu: str = "") -> list[Json]:
    """Return links from a GPU to its board, and to the agent's page of it."""
    number = gpu or "${__field.labels.gpu}"
    board = (
        "/d/chopperd-node-gpu?var-datasource=${datasource}&${cluster:queryparam}"
        f"&var-node={instance}&var-gpu={number}&${{__url_time_range}}"
    )
    page = f"http://{instance}:9470/?gpu={number}"
    return [
        {"title": "Node and GPU", "url": board, "targetBlank": False},
        {"title": "The agent's page (needs a route to its API)", "url": page, "targetBlank": True},
    ]


#: Links of cells, whose labels are columns.
CELL_LINKS: Final = gpu_links("${__data.fields.node}", "${__data.fields.GPU}")


def mappings(texts: Mapping[str, Mark | str]) -> list[Json]:
    """Return what stands for each value, by its text."""
    options = {
        value: {"text": text}
        if isinstance(text, str)
        else {"text": text.words, "color": text.colour}
        for value, text in texts.items()
    }
    return [{"type": "value", "options": options}] if options else []


def _fixed(colour: str) -> Json:
    return {"mode": "fixed", "fixedColor": colour}


def _override(matcher: Json, properties: Mapping[str, object]) -> Json:
    values = [{"id": name, "value": value} for name, value in properties.items()]
    return {"matcher": matcher, "properties": values}

"""Checks for what makes a board show nothing, or something wrong, in Grafana."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from dashboards.panels import DATASOURCE

_RATE: Final = re.compile(r"\b(?:i?rate|increase|i?delta|deriv)\([^\[]*(\[[^\]]*\])")
#: Windows that Grafana makes of the least step, or of the time shown.
_MADE_BY_GRAFANA: Final = frozenset({"[$__rate_interval]", "[$__range]"})
#: Others hold four scrapes that are a minute apart.
_LEAST_WINDOW_S: Final = 240
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class _Target(msgspec.Struct):
    expr: str = ""
    interval: str = ""
    legendFormat: str = ""  # noqa: N815, Grafana's name
    datasource: object = None


class _Panel(msgspec.Struct):
    title: str = ""
    datasource: object = None
    targets: Sequence[_Target] = ()
    panels: Sequence["_Panel"] = ()


class _Variable(msgspec.Struct):
    name: str
    type: str
    query: object = None
    datasource: object = None


class _Variables(msgspec.Struct):
    list: Sequence[_Variable] = ()


class _Annotation(msgspec.Struct):
    name: str = ""
    datasource: object = None


class _Annotations(msgspec.Struct):
    list: Sequence[_Annotation] = ()


class _Board(msgspec.Struct):
    panels: Sequence[_Panel] = ()
    templating: _Variables = msgspec.field(default_factory=_Variables)
    annotations: _Annotations = msgspec.field(default_factory=_Annotations)


def board_problems(document: Mapping[str, object]) -> list[str]:
    """Return every problem of a board, one a line; empty if there is none."""
    board = msgspec.convert(document, _Board)
    problems = [
        f"panel {panel.title!r}: {problem}"
        for panel in _all_panels(board.panels)
        for problem in _panel_problems(panel)
    ]
    variables = board.templating.list
    if not any(_chooses_datasource(variable) for variable in variables):
        problems.append("no variable `datasource` lets the reader choose a Prometheus")
    queried = (variable for variable in variables if variable.type == "query")
    asking: Sequence[_Variable | _Annotation] = (*queried, *board.annotations.list)
    problems += [
        f"{entry.name!r} asks {entry.datasource!r}, not the chosen Prometheus"
        for entry in asking
        if entry.datasource != DATASOURCE
    ]
    if b"${DS_" in msgspec.json.encode(document):
        problems.append("a provisioned file gets no import dialog that would fill in ${DS_...}")
    return problems


def panel_problems(document: Mapping[str, object]) -> list[str]:
    """Return every problem of one panel."""
    return list(_panel_problems(msgspec.convert(document, _Panel)))


def expressions(document: Mapping[str, object]) -> Iterator[tuple[str, str, str]]:
    """Yield each query of a board: panel's title, expression and pattern of series names."""
    board = msgspec.convert(document, _Board)
    for panel in _all_panels(board.panels):
        for target in panel.targets:
            yield panel.title, target.expr, target.legendFormat


def _panel_problems(panel: _Panel) -> Iterator[str]:
    askers: Sequence[_Panel | _Target] = (panel, *panel.targets)
    for asking in askers:
        if asking.datasource != DATASOURCE:
            yield f"asks {asking.datasource!r}, not the chosen Prometheus"
    for target in panel.targets:
        for window in _RATE.findall(target.expr):
            if window not in _MADE_BY_GRAFANA and _window_s(window) < _LEAST_WINDOW_S:
                yield f"{window} may hold fewer than two scrapes: use [$__rate_interval]"
        if not target.interval:
            yield "has no least step: Grafana would assume scrapes 15 s apart"


def _window_s(window: str) -> int:
    """Return the length of a window such as [5m]; 0 where it is none."""
    found = re.fullmatch(r"\[(\d+)([smhd])\]", window)
    return int(found[1]) * _SECONDS[found[2]] if found else 0


def _chooses_datasource(variable: _Variable) -> bool:
    return (variable.name, variable.type, variable.query) == (
        "datasource",
        "datasource",
        "prometheus",
    )


def _all_panels(panels: Sequence[_Panel]) -> Iterator[_Panel]:
    for panel in panels:
        yield panel
        yield from _all_panels(panel.panels)

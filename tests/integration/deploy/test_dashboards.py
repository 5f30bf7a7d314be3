"""The Grafana boards: as their sources say, and with nothing that shows an empty panel."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from chopperd.export.metric import Profile
from chopperd.export.rendering import CATALOGUE
from dashboards.__main__ import FOLDERS, board_files
from dashboards.checks import board_problems, expressions, panel_problems
from tests.promql import filled_in, grouping_labels, selectors

BOARDS = board_files()
METRICS = {metric.name: metric for metric in CATALOGUE}
_PLACEHOLDER = re.compile(r"{{(\w+)}}")
#: Fractions are 0..1 in Grafana's `percentunit`, 0..100 in its `percent`.
UNITS = {"hertz", "watt", "celsius", "percentunit", "s", "none"}


class _Place(msgspec.Struct):
    x: int
    y: int
    w: int
    h: int

    def cells(self) -> set[tuple[int, int]]:
        rows, columns = range(self.y, self.y + self.h), range(self.x, self.x + self.w)
        return {(column, row) for column in columns for row in rows}


class _Thresholds(msgspec.Struct):
    steps: list[Mapping[str, object]]


class _Defaults(msgspec.Struct):
    unit: str
    thresholds: _Thresholds


class _FieldConfig(msgspec.Struct):
    defaults: _Defaults


class _Legend(msgspec.Struct):
    showLegend: bool = False  # noqa: N815, Grafana's name


class _Options(msgspec.Struct):
    legend: _Legend | None = None


class _Target(msgspec.Struct):
    interval: str


class _Panel(msgspec.Struct):
    id: int
    type: str
    title: str
    description: str
    gridPos: _Place  # noqa: N815, Grafana's name
    fieldConfig: _FieldConfig  # noqa: N815, Grafana's name
    options: _Options
    targets: list[_Target]


class _Current(msgspec.Struct):
    value: str | list[str]


class _Variable(msgspec.Struct):
    name: str
    query: str
    current: _Current | None = None


class _Variables(msgspec.Struct):
    list: list[_Variable]


class _Board(msgspec.Struct):
    schemaVersion: int  # noqa: N815, Grafana's name
    panels: list[_Panel]
    templating: _Variables


@pytest.fixture(params=sorted(BOARDS))
def document(request: pytest.FixtureRequest) -> Mapping[str, object]:
    return msgspec.json.decode(BOARDS[request.param], type=dict[str, object])


@pytest.fixture
def board(document: Mapping[str, object]) -> _Board:
    return msgspec.convert(document, _Board)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.parent.name)
def test_the_files_are_what_the_sources_make(folder: Path) -> None:
    on_disk = {file.name: file.read_text(encoding="utf-8") for file in folder.iterdir()}
    assert on_disk == BOARDS, "run `make dashboards`"


def test_boards_are_of_the_present_schema_without_keys_of_older_ones(
    board: _Board, document: Mapping[str, object]
) -> None:
    assert board.schemaVersion == 41
    legacy = {"rows", "style", "hideControls", "sharedCrosshair", "gnetId", "__inputs", "id"}
    assert not legacy & document.keys()
    assert {panel.type for panel in board.panels} <= {"timeseries", "stat", "bargauge"}


def test_every_panel_says_what_it_means_in_a_known_unit_and_has_thresholds(board: _Board) -> None:
    for panel in board.panels:
        assert panel.title
        assert panel.description
        assert panel.fieldConfig.defaults.unit in UNITS
        # Grafana fails on "" and takes the first step's null for "from the lowest on".
        assert panel.fieldConfig.defaults.thresholds.steps[0]["value"] is None


def test_lines_are_named_in_a_legend(board: _Board) -> None:
    lines = [panel for panel in board.panels if panel.type == "timeseries"]
    assert lines
    # Grafana shows none where the key is missing, as it is in grafanalib's output.
    assert all(panel.options.legend == _Legend(showLegend=True) for panel in lines)


def test_panels_have_ids_of_their_own_and_do_not_overlap(board: _Board) -> None:
    assert len({panel.id for panel in board.panels}) == len(board.panels)
    cells = [cell for panel in board.panels for cell in panel.gridPos.cells()]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) == 23


def test_every_expression_names_what_the_catalogue_has(document: Mapping[str, object]) -> None:
    for title, expression, legend in expressions(document):
        known = set()
        for selector in selectors(filled_in(expression, node="n", window="4m")):
            metric = METRICS[selector.metric]
            # Every agent exports it unless told not to.
            assert metric.profile <= Profile.STANDARD, title
            labels = {label.name for label in metric.labels}
            assert selector.labels == {"cluster", "instance"} | (labels & {"gpu"}), title
            known |= labels
        assert grouping_labels(filled_in(expression, node="n", window="4m")) <= known, title
        assert set(_PLACEHOLDER.findall(legend)) <= known, title


def test_variables_are_looked_up_where_every_agent_has_them(board: _Board) -> None:
    queries = {variable.name: variable.query for variable in board.templating.list}
    assert list(queries)[:4] == [
        "datasource",
        "cluster",
        "node",
        "gpu",
    ]  # each asks for those before
    assert queries["cluster"] == "label_values(chopperd_agent_build_info, cluster)"
    of_cluster = 'cluster="$cluster"'
    assert queries["node"] == f"label_values(chopperd_agent_build_info{{{of_cluster}}}, instance)"
    assert queries["gpu"] == f'label_values(chopperd_gpu_up{{{of_cluster}, instance="$node"}}, gpu)'
    assert {"chopperd_agent_build_info", "chopperd_gpu_up"} <= METRICS.keys()


def test_rates_hold_four_scrapes_until_the_reader_says_how_often_they_come(board: _Board) -> None:
    (scrape,) = (entry for entry in board.templating.list if entry.name == "scrape")
    # Grafana takes four of these for a rate: 240 s, which are four scrapes a minute apart.
    assert scrape.current == _Current(value="1m")
    for panel in board.panels:
        assert [target.interval for target in panel.targets] == ["$scrape"] * len(panel.targets)


def test_captures_are_never_drawn_as_a_rate(document: Mapping[str, object]) -> None:
    for title, expression, _ in expressions(document):
        assert "chopperd_traced" not in expression or "rate(" not in expression, title


@pytest.mark.corpus
def test_the_check_finds_what_is_wrong_in_case_36(shared: Path) -> None:
    file = shared / "cases/36-grafana-datasource/bad_dashboard.json"
    problems = board_problems(json.loads(file.read_text(encoding="utf-8")))
    assert any(
        problem.startswith("panel") and "${DS_PROMETHEUS}" in problem for problem in problems
    )
    assert any("no variable" in problem for problem in problems)
    assert any("import dialog" in problem for problem in problems)


@pytest.mark.corpus
def test_the_check_finds_what_is_wrong_in_case_37(shared: Path) -> None:
    file = shared / "cases/37-grafana-rate-window/panel.json"
    problems = panel_problems(json.loads(file.read_text(encoding="utf-8")))
    assert any("[1m]" in problem for problem in problems)
    assert any("least step" in problem for problem in problems)


@pytest.mark.parametrize("datasource", [None, "default", {"type": "prometheus", "uid": "P1809F7C"}])
def test_the_check_finds_a_variable_that_asks_a_fixed_prometheus(datasource: object) -> None:
    document = msgspec.json.decode(BOARDS["node-and-gpu.json"], type=dict[str, object])
    queried = {"name": "node", "type": "query", "query": "up", "datasource": datasource}
    chooser = {"name": "datasource", "type": "datasource", "query": "prometheus"}
    document["templating"] = {"list": [chooser, queried]}
    assert len(board_problems(document)) == 1

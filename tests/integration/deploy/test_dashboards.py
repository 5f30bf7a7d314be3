"""The Grafana boards: as their sources say, and with nothing that shows an empty panel."""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import pytest

from chopperd.export.rendering import CATALOGUE
from chopperd.palette import CAUSES, COMPUTE_GRAFANA, ROWS, Mark
from dashboards.__main__ import FOLDERS, RULE_FOLDERS, board_files
from dashboards.checks import board_problems, expressions, panel_problems
from dashboards.metrics import KNOWN, PLANNED, TARGET_LABELS, metric
from dashboards.queries import chosen, needs
from dashboards.recording import HELD_BY, RECORDED, recorded
from dashboards.rules_file import rule_files
from tests.promql import filled_in, grouping_labels, selectors
from tests.tools import ROOT

BOARDS = board_files()
_PLACEHOLDER = re.compile(r"{{(\w+)}}")
#: Fractions are 0..1 in Grafana's `percentunit`, 0..100 in its `percent`.
UNITS = {"hertz", "watt", "celsius", "percentunit", "s", "h", "bytes", "none"}
KINDS = {"timeseries", "stat", "bargauge", "barchart", "table", "heatmap", "state-timeline", "row"}
#: Labels that expressions make.
MADE_LABELS = {"place"}


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
    unit: str = ""
    noValue: str = ""  # noqa: N815, Grafana's name
    thresholds: _Thresholds = msgspec.field(default_factory=lambda: _Thresholds([]))
    mappings: list[Mapping[str, object]] = []


class _Matcher(msgspec.Struct):
    id: str
    options: str


class _Property(msgspec.Struct):
    id: str
    value: object = None


class _Override(msgspec.Struct):
    matcher: _Matcher
    properties: list[_Property]


class _FieldConfig(msgspec.Struct):
    defaults: _Defaults = msgspec.field(default_factory=_Defaults)
    overrides: list[_Override] = []


class _Legend(msgspec.Struct):
    showLegend: bool = False  # noqa: N815, Grafana's name
    displayMode: str = ""  # noqa: N815, Grafana's name
    calcs: list[str] = []
    sortDesc: bool = False  # noqa: N815, Grafana's name


class _Options(msgspec.Struct):
    legend: _Legend | None = None


class _Target(msgspec.Struct):
    interval: str
    expr: str
    legendFormat: str = ""  # noqa: N815, Grafana's name


class _Panel(msgspec.Struct):
    id: int
    type: str
    title: str
    gridPos: _Place  # noqa: N815, Grafana's name
    description: str = ""
    fieldConfig: _FieldConfig = msgspec.field(default_factory=_FieldConfig)  # noqa: N815, Grafana's
    options: _Options = msgspec.field(default_factory=_Options)
    targets: list[_Target] = []
    panels: list["_Panel"] = []


class _Current(msgspec.Struct):
    value: str | list[str]


class _Variable(msgspec.Struct):
    name: str
    query: str
    current: _Current | None = None
    includeAll: bool = False  # noqa: N815, Grafana's name
    allValue: str = ""  # noqa: N815, Grafana's name


class _Variables(msgspec.Struct):
    list: list[_Variable]


class _Annotation(msgspec.Struct):
    name: str
    expr: str


class _Annotations(msgspec.Struct):
    list: list[_Annotation]


class _Link(msgspec.Struct):
    type: str
    tags: list[str]
    includeVars: bool  # noqa: N815, Grafana's name
    keepTime: bool  # noqa: N815, Grafana's name


class _Board(msgspec.Struct):
    uid: str
    schemaVersion: int  # noqa: N815, Grafana's name
    panels: list[_Panel]
    templating: _Variables
    annotations: _Annotations
    links: list[_Link]

    def drawn(self) -> list[_Panel]:
        """All panels, also those of rows; not the banner, which has neither title nor legend."""
        rows = [each for row in self.panels for each in row.panels]
        return [panel for panel in (*self.panels, *rows) if panel.title and panel.type != "row"]


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


@pytest.mark.parametrize("folder", RULE_FOLDERS, ids=lambda folder: folder.parts[-2])
def test_the_rules_are_what_the_sources_make(folder: Path) -> None:
    for name, text in rule_files().items():
        assert (folder / name).read_text(encoding="utf-8") == text, "run `make dashboards`"


def test_there_are_five_boards_whose_bookmarks_stay() -> None:
    uids = {name: msgspec.json.decode(text, type=_Board).uid for name, text in BOARDS.items()}
    assert uids == {
        "fleet.json": "chopperd-fleet",
        "node-and-gpu.json": "chopperd-node-gpu",
        "job.json": "chopperd-job",
        "fsdp.json": "chopperd-fsdp",
        "agent.json": "chopperd-agent",
    }


def test_boards_are_of_the_present_schema_without_keys_of_older_ones(
    board: _Board, document: Mapping[str, object]
) -> None:
    assert board.schemaVersion == 41
    legacy = {"rows", "style", "hideControls", "sharedCrosshair", "gnetId", "__inputs", "id"}
    assert not legacy & document.keys()
    assert {panel.type for panel in (*board.panels, *board.drawn())} <= KINDS


def test_every_panel_says_what_it_means_in_a_known_unit_and_has_thresholds(board: _Board) -> None:
    for panel in board.drawn():
        assert panel.description.endswith("."), panel.title
        assert panel.fieldConfig.defaults.unit in UNITS
        # Grafana fails on "" and takes the first step's null for "from the lowest on".
        assert panel.fieldConfig.defaults.thresholds.steps[0]["value"] is None


def test_an_empty_panel_says_why_in_a_sentence(board: _Board) -> None:
    for panel in board.drawn():
        assert re.match(r"[A-Z].*\.$", panel.fieldConfig.defaults.noValue), panel.title


def test_lines_are_named_in_a_table_of_mean_largest_and_last(board: _Board) -> None:
    for panel in board.drawn():
        if panel.type == "timeseries":
            # Grafana shows none where the key is missing, as it is in grafanalib's output.
            assert panel.options.legend == _Legend(
                showLegend=True,
                displayMode="table",
                calcs=["mean", "max", "lastNotNull"],
                sortDesc=True,
            )


def test_panels_have_ids_of_their_own_and_do_not_overlap(board: _Board) -> None:
    ids = [panel.id for panel in (*board.panels, *board.drawn())]
    assert len({*ids}) == len({panel.title for panel in board.drawn()} | {"banner"}) + sum(
        panel.type == "row" for panel in board.panels
    )
    shelves = [board.panels, *(row.panels for row in board.panels if row.panels)]
    for panels in shelves:
        cells = [cell for panel in panels for cell in panel.gridPos.cells()]
        assert len(cells) == len(set(cells))
        assert max(x for x, _ in cells) == 23


def test_simulated_figures_are_said_to_be_so_before_all_else(board: _Board) -> None:
    banner = board.panels[0]
    assert banner.gridPos == _Place(x=0, y=0, w=24, h=2)
    assert 'max(chopperd_agent_simulated{cluster=~"$cluster"' in banner.targets[0].expr
    assert banner.targets[0].expr.endswith("== 1")
    (mapping,) = banner.fieldConfig.defaults.mappings
    assert "SIMULATED DATA: not from hardware" in msgspec.json.encode(mapping).decode()
    assert banner.fieldConfig.defaults.noValue == " "


def test_every_expression_names_what_is_exported_planned_or_recorded(
    document: Mapping[str, object],
) -> None:
    """By a parser of PromQL; the build looks names up by itself."""
    for title, expression, legend in expressions(document):
        known = set(MADE_LABELS)
        for selector in selectors(filled_in(expression, window="4m")):
            series = RECORDED.get(selector.metric) or KNOWN[selector.metric]
            allowed = {*series.labels, *TARGET_LABELS}
            assert selector.labels <= allowed, title
            known |= allowed
        assert grouping_labels(filled_in(expression, window="4m")) <= known, title
        assert set(_PLACEHOLDER.findall(legend)) <= known, title


def test_every_expression_is_of_the_chosen_clusters_nodes_and_gpus(
    document: Mapping[str, object],
) -> None:
    for title, expression, _ in expressions(document):
        for selector in selectors(filled_in(expression, window="4m")):
            series = RECORDED.get(selector.metric) or KNOWN[selector.metric]
            wanted = {"cluster"}
            if not selector.metric.startswith(("cluster", "workload")):
                wanted |= {"instance"} | ({"gpu"} & series.labels.keys())
            assert wanted <= selector.labels, title


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (lambda: metric("gpu_sm_clock"), "no metric chopperd_gpu_sm_clock"),
        (lambda: metric("gpu_up", rank="0"), "no label rank"),
        (lambda: metric("gpu_temperature_celsius", sensor="room"), "never 'room'"),
        (lambda: chosen("gpu_upp"), "neither the catalogue nor a rule"),
        (lambda: chosen("gpu:chopperd_gpu_excess:ratio1m"), "neither the catalogue nor a rule"),
        (lambda: recorded("node:chopperd_gpu:sum"), "no rule records"),
        (lambda: recorded("gpu_cause:chopperd_gpu_dvfs_gap:ratio5m", cause="heat"), "never 'heat'"),
        (lambda: list(needs("sum(chopperd_gpu_missing)")), "neither the catalogue nor a rule"),
    ],
)
def test_a_board_that_names_what_is_not_there_is_not_built(
    wrong: Callable[[], object], why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        wrong()


def test_planned_metrics_that_exist_meanwhile_have_the_planned_labels() -> None:
    exported = {each.name: {label.name for label in each.labels} for each in CATALOGUE}
    for name in PLANNED.keys() & exported.keys():
        assert exported[name] == set(PLANNED[name].labels)


def test_panels_that_need_more_than_the_default_say_so_and_are_listed(board: _Board) -> None:
    listed = (ROOT / "docs/boards.md").read_text(encoding="utf-8")
    for panel in board.drawn():
        wanted = {need for target in panel.targets for need in needs(target.expr)}
        if "Needs" in panel.fieldConfig.defaults.noValue:
            assert wanted
            assert all(f"Needs {need}." in panel.description for need in wanted)
            assert f"| {panel.title} |" in listed
        else:
            # Of the queries without which it does.
            assert len([t for t in panel.targets if not [*needs(t.expr)]]) >= 1


def test_variables_are_looked_up_where_every_agent_has_them(board: _Board) -> None:
    queries = {variable.name: variable.query for variable in board.templating.list}
    # Each asks for those before.
    assert list(queries) == ["datasource", "cluster", "node", "workload", "gpu"]
    assert queries["cluster"] == "label_values(chopperd_agent_build_info, cluster)"
    of_cluster = 'cluster=~"$cluster"'
    assert queries["node"] == f"label_values(chopperd_agent_build_info{{{of_cluster}}}, instance)"
    assert queries["workload"] == f"label_values(chopperd_workload_info{{{of_cluster}}}, workload)"
    of_node = f'{of_cluster}, instance=~"$node"'
    assert queries["gpu"] == f"label_values(chopperd_gpu_up{{{of_node}}}, gpu)"
    assert {
        "chopperd_agent_build_info",
        "chopperd_gpu_up",
        "chopperd_workload_info",
    } <= KNOWN.keys()


def test_all_is_the_first_choice_and_matches_what_lacks_the_label(board: _Board) -> None:
    for variable in board.templating.list[1:]:
        assert variable.includeAll
        assert variable.allValue == ".*"
        assert variable.current is not None
        assert variable.current.value in ("$__all", ["$__all"])


def test_rates_hold_four_scrapes_that_are_a_minute_apart(board: _Board) -> None:
    # Grafana takes four of these for a rate: 240 s.
    for panel in board.drawn():
        assert {target.interval for target in panel.targets} == {"1m"}


def test_captures_are_never_drawn_as_a_rate(document: Mapping[str, object]) -> None:
    for title, expression, _ in expressions(document):
        for call in re.findall(r"(?:rate|increase)\((\w+)", expression):
            assert not call.startswith("chopperd_traced"), title


def test_no_mean_clock_holds_idle_time(document: Mapping[str, object]) -> None:
    """Neither the newest clock nor cycles of all time are drawn, only those of busy time."""
    idle = {"chopperd_gpu_sm_clock_hertz", "chopperd_gpu_sm_cycles_total"}
    for title, expression, _ in expressions(document):
        named = {selector.metric for selector in selectors(filled_in(expression, window="4m"))}
        assert not named & idle, title


def test_a_board_marks_drops_captures_pauses_and_restarts(board: _Board) -> None:
    found = {each.name: each.expr for each in board.annotations.list}
    assert list(found) == ["Drops of the clock", "Captures", "Paused", "Sampler replaced"]
    for expression in found.values():
        (selector,) = selectors(filled_in(expression, window="4m"))
        assert not KNOWN[selector.metric].needs
    (link,) = board.links
    assert link == _Link(type="dashboards", tags=["chopperd"], includeVars=True, keepTime=True)


@pytest.mark.parametrize(("by", "marks"), [("{{cause}}", CAUSES), ("{{row}}", ROWS)])
def test_causes_and_rows_have_the_words_and_colours_of_every_output(
    by: str, marks: Mapping[str, Mark]
) -> None:
    seen = 0
    for text in BOARDS.values():
        for panel in msgspec.json.decode(text, type=_Board).drawn():
            if any(target.legendFormat == by for target in panel.targets):
                seen += 1
                looks = {
                    each.matcher.options: {entry.id: entry.value for entry in each.properties}
                    for each in panel.fieldConfig.overrides
                }
                for name, mark in marks.items():
                    assert looks[name]["displayName"] == mark.words
                    assert looks[name]["color"] == {"mode": "fixed", "fixedColor": mark.colour}
    assert seen


def test_what_holds_a_gpu_has_the_words_and_colours_of_every_output() -> None:
    timelines = [
        panel
        for text in BOARDS.values()
        for panel in msgspec.json.decode(text, type=_Board).drawn()
        if panel.type == "state-timeline"
    ]
    assert len(timelines) == 3
    wanted = {str(code): CAUSES[name] for code, name in enumerate(HELD_BY) if code}
    for panel in timelines:
        (mapping,) = panel.fieldConfig.defaults.mappings
        options = mapping["options"]
        assert isinstance(options, dict)
        assert options.pop("0") == {"text": "at its reference", "color": COMPUTE_GRAFANA}
        assert options == {
            code: {"text": mark.words, "color": mark.colour} for code, mark in wanted.items()
        }


def test_coverage_stands_on_every_board_with_a_loss() -> None:
    for text in BOARDS.values():
        board = msgspec.json.decode(text, type=_Board)
        named = {
            selector.metric
            for panel in board.drawn()
            for target in panel.targets
            for selector in selectors(filled_in(target.expr, window="4m"))
        }
        if any("excess" in name or "gap" in name for name in named if "workload" not in name):
            assert any(panel.title.startswith("Coverage") for panel in board.drawn()), board.uid


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

"""Scrape example, recording rules and the boards' expressions by the real promtool.

Expected values are worked out by hand from `SERIES`.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec
import pytest

from chopperd.export.rendering import CATALOGUE
from dashboards import node_and_gpu
from dashboards.checks import expressions
from tests.promql import filled_in, grouping_labels, selectors
from tests.tools import ROOT, needed, output

PROMETHEUS = ROOT / "deploy/prometheus"
#: What Grafana makes of the board's first choice, scrapes a minute apart, the rarest supported.
WINDOW = "4m"

#: What a node with three GPUs exports, as promtool writes series: start, growth a minute, minutes.
#: GPU 0 is busy half of the time at 1.5 of 2.0 GHz: of 30 s a minute a quarter, 7.5 s, goes to the
#: clock. GPU 1 is as busy at 2.0 GHz. GPU 2 is idle. Captures come after 4 minutes: on GPU 0 one
#: more, of 2 s and 2 s; on GPU 1 the first; on GPU 2 the first since the agent began anew.
SERIES: Mapping[str, str] = {
    'gpu_busy_sm_cycles_total{gpu="0"}': "1e12+45e9x20",
    'gpu_busy_sm_cycles_total{gpu="1"}': "0+60e9x20",
    'gpu_busy_sm_cycles_total{gpu="2"}': "7e9+0x20",
    'gpu_busy_sampled_seconds_total{gpu="0"}': "500+30x20",
    'gpu_busy_sampled_seconds_total{gpu="1"}': "0+30x20",
    'gpu_busy_sampled_seconds_total{gpu="2"}': "5+0x20",
    'gpu_dvfs_lost_live_seconds_total{gpu="0", cause="power_cap"}': "100+6x20",
    'gpu_dvfs_lost_live_seconds_total{gpu="0", cause="thermal"}': "0+1.5x20",
    'gpu_dvfs_lost_live_seconds_total{gpu="1", cause="power_cap"}': "0+0x20",
    'gpu_dvfs_lost_live_seconds_total{gpu="2", cause="power_cap"}': "1+0x20",
    'gpu_excess_live_seconds_total{gpu="0"}': "0+1.5x20",
    'gpu_excess_live_seconds_total{gpu="1"}': "9+0x20",
    'gpu_energy_joules_total{gpu="0"}': "1e9+12000x20",
    'gpu_up{gpu="0"}': "1+0x20",
    'gpu_up{gpu="1"}': "0+0x20",
    'gpu_last_sample_timestamp_seconds{gpu="0"}': "-0.5+60x20",
    "agent_simulated": "0+0x20",
    'traced_last_capture_timestamp_seconds{gpu="0"}': "960+0x20",
    'traced_last_capture_timestamp_seconds{gpu="1"}': "60+0x20",
    'traced_window_seconds_total{gpu="0", row="compute_at_ref"}': "100x3 102x14",
    'traced_window_seconds_total{gpu="0", row="dvfs_loss"}': "50x3 52x14",
    'traced_window_seconds_total{gpu="1", row="compute_at_ref"}': "_x4 4x14",
    'traced_window_seconds_total{gpu="2", row="compute_at_ref"}': "1000x3 6x14",
    'traced_window_seconds_total{gpu="2", row="idle_data"}': "1x3 2x14",
}
EVALUATED = "18m"
#: What the panels show then.
_TRACED = "Where the steps went that were traced in the last 15 minutes"
SHOWN: Mapping[str, Mapping[str, float]] = {
    "Figures are": {"": 0},
    "GPUs": {'gpu="0"': 1, 'gpu="1"': 0},
    "Largest excess": {'gpu="0"': 0.05},
    "Age of the newest capture": {"": 120},
    "SM clock while busy": {'gpu="0"': 1.5e9, 'gpu="1"': 2e9},
    "Clock gap by cause (ceiling)": {'cause="power_cap"': 0.1, 'cause="thermal"': 0.025},
    "Excess against peers": {'gpu="0"': 0.05, 'gpu="1"': 0},
    # Of 16 s: 2 + 4 + 6, 2, and 2.
    _TRACED: {'row="compute_at_ref"': 0.75, 'row="dvfs_loss"': 0.125, 'row="idle_data"': 0.125},
    "Power against its limits": {'gpu="0"': 200},
    "Age of the newest sample when scraped": {'gpu="0"': 0.5},
}
RECORDED: Mapping[str, Mapping[str, float]] = {
    "gpu:chopperd_gpu_busy_sm_clock_hertz:mean5m": {'gpu="0"': 1.5e9, 'gpu="1"': 2e9},
    "gpu_cause:chopperd_gpu_dvfs_gap:ratio5m": {
        'gpu="0", cause="power_cap"': 0.2,
        'gpu="0", cause="thermal"': 0.05,
        'gpu="1", cause="power_cap"': 0,
    },
    "gpu:chopperd_gpu_excess:ratio5m": {'gpu="0"': 0.05, 'gpu="1"': 0},
}
#: Labels that the sums over a node do not keep.
_OF_TARGET = 'instance="n", job="chopperd"'
_WHOLE_NODE = {"Age of the newest capture", "Clock gap by cause (ceiling)", _TRACED}


class _Recorded(msgspec.Struct):
    record: str
    expr: str


class _Group(msgspec.Struct):
    rules: list[_Recorded]


class _RulesFile(msgspec.Struct):
    groups: list[_Group]


class _Rule(msgspec.Struct):
    regex: str
    target_label: str
    replacement: str


class _Job(msgspec.Struct):
    relabel_configs: list[_Rule]


class _ScrapeFile(msgspec.Struct):
    scrape_configs: list[_Job]


def _first_expressions(cluster: str = "") -> dict[str, str]:
    """The first expression of each panel, as Grafana sends it."""
    found: dict[str, str] = {}
    for title, expression, _ in expressions(node_and_gpu.board()):
        found.setdefault(title, filled_in(expression, node="n", window=WINDOW, cluster=cluster))
    return found


def _expectation(expression: str, values: Mapping[str, float], of_target: str) -> object:
    """A test of promtool's, which compares exactly: to 4 digits after the point."""
    samples = [
        {"labels": "{" + ", ".join(filter(None, (labels, of_target))) + "}", "value": value}
        for labels, value in values.items()
    ]
    rounded = f"round({expression}, 0.0001)"
    return {"expr": rounded, "eval_time": EVALUATED, "exp_samples": samples}


def _series(of_target: str = _OF_TARGET) -> Iterator[dict[str, str]]:
    for series, values in SERIES.items():
        name, _, labels = series.partition("{")
        yield {"series": f"chopperd_{name}{{{of_target}, {labels or '}'}", "values": values}


def _run(
    folder: Path, expectations: list[object], series: Iterable[Mapping[str, str]] | None = None
) -> str:
    """The real promtool's word on expectations over `SERIES`; it must agree with all."""
    given = list(_series() if series is None else series)
    test = {"interval": "1m", "input_series": given, "promql_expr_test": expectations}
    document = {
        "rule_files": [str(PROMETHEUS / "rules.yml")],
        "evaluation_interval": "1m",
        "tests": [test],
    }
    file = folder / "test.yml"
    file.write_text(json.dumps(document), encoding="utf-8")
    return output("promtool", "test", "rules", file)


def test_rules_name_what_the_catalogue_has() -> None:
    metrics = {metric.name: {label.name for label in metric.labels} for metric in CATALOGUE}
    text = (PROMETHEUS / "rules.yml").read_text(encoding="utf-8")
    (group,) = msgspec.convert(msgspec.yaml.decode(text), _RulesFile).groups
    for rule in group.rules:
        labels = set().union(*(metrics[selector.metric] for selector in selectors(rule.expr)))
        assert rule.record.partition(":")[0] == "_".join(sorted(labels, reverse=True))
        assert grouping_labels(rule.expr) <= labels


def test_the_scrape_example_and_the_rules_are_what_prometheus_takes() -> None:
    assert "1 rule files found" in output("promtool", "check", "config", PROMETHEUS / "scrape.yml")
    assert "3 rules found" in output("promtool", "check", "rules", PROMETHEUS / "rules.yml")


def test_panels_show_what_is_worked_out_by_hand(tmp_path: Path) -> None:
    found = _first_expressions()
    expectations = [
        _expectation(found[title], values, "" if title in _WHOLE_NODE else _OF_TARGET)
        for title, values in SHOWN.items()
    ]
    assert "SUCCESS" in _run(tmp_path, expectations)


def test_nodes_of_one_name_in_two_clusters_stay_apart(tmp_path: Path) -> None:
    """Cluster a as worked out by hand; the node of b has other figures everywhere."""
    found = _first_expressions("a")
    of_a = f'cluster="a", {_OF_TARGET}'
    series = [*_series(of_a)]
    series += [{**each, "values": "0+7777x60"} for each in _series(f'cluster="b", {_OF_TARGET}')]
    expectations = [
        _expectation(found[title], values, "" if title in _WHOLE_NODE else of_a)
        for title, values in SHOWN.items()
    ]
    assert "SUCCESS" in _run(tmp_path, expectations, series)


def test_rules_record_what_is_worked_out_by_hand(tmp_path: Path) -> None:
    expectations = [
        _expectation(f"last_over_time({name}[1m])", values, _OF_TARGET)
        for name, values in RECORDED.items()
    ]
    assert "SUCCESS" in _run(tmp_path, expectations)


def test_a_wrong_figure_would_be_noticed(tmp_path: Path) -> None:
    needed("promtool")
    expression = _first_expressions()["Power against its limits"]
    with pytest.raises(AssertionError, match="FAILED"):
        _run(tmp_path, [_expectation(expression, {'gpu="0"': 201}, _OF_TARGET)])


@pytest.mark.parametrize(
    ("address", "node"),
    [("node-1.example:9469", "node-1.example"), ("[fd00::1]:9469", "[fd00::1]")],
)
def test_scraped_nodes_are_named_without_their_port(address: str, node: str) -> None:
    text = (PROMETHEUS / "scrape.yml").read_text(encoding="utf-8")
    (job,) = msgspec.convert(msgspec.yaml.decode(text), _ScrapeFile).scrape_configs
    (rule,) = job.relabel_configs
    # Prometheus anchors at both ends; $1 is Python's \\1.
    assert rule.target_label == "instance"
    assert re.sub(f"^{rule.regex}$", rule.replacement.replace("$", "\\"), address) == node

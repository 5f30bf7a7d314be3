"""Alerts by the real promtool: each fires when it should, and not a little short of that.

Series are a value a minute; what is said of them (busy shares, clocks, losses) is the truth that
alerts are compared with.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Final, TypeAlias

import pytest

from chopperd.export.metric import Profile
from chopperd.export.rendering import CATALOGUE
from dashboards.alerts import ALERTS, Alert
from dashboards.recording import RULES
from tests.promql import selectors
from tests.tools import ROOT, output

PROMETHEUS: Final = ROOT / "deploy/prometheus"
MINUTES: Final = 100
#: A share or a clock of a GPU in a minute.
Course: TypeAlias = Callable[[int, int], float]
Series: TypeAlias = dict[str, str]


def always(value: float) -> Course:
    return lambda _gpu, _minute: value


def of(
    chosen: Sequence[int], value: float, other: float, since: int = 0, until: int = MINUTES
) -> Course:
    """`value` for the chosen GPUs in a time, `other` for all else."""
    return lambda gpu, minute: value if gpu in chosen and since <= minute < until else other


AT_WORK: Final = always(1.0)
AT_1700_MHZ: Final = always(1.7e9)
COOL: Final = always(0.0)


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node whose GPUs are at work all the time at 1.7 GHz, unless said.

    Attributes:
        gpus: How many.
        busy: Share of time busy.
        clock_hz: While busy.
        lost: Share of busy time lost, by cause.
        hot: Share of busy time under a thermal limit.
        known: Share of busy time with known clock.
        more: Further series, by name and labels.
    """

    gpus: int = 8
    busy: Course = AT_WORK
    clock_hz: Course = AT_1700_MHZ
    lost: Mapping[str, Course] = field(default_factory=dict)
    hot: Course = COOL
    known: float = 1.0
    more: Mapping[str, str] = field(default_factory=dict)

    def series(self) -> list[Series]:
        found = []
        for gpu in range(self.gpus):
            label = f'gpu="{gpu}"'
            busy = [60 * self.busy(gpu, minute) for minute in range(MINUTES)]
            sampled = [each * self.known for each in busy]
            of_gpu: dict[str, list[float]] = {
                f"gpu_busy_seconds_total{{{label}}}": busy,
                f"gpu_busy_sampled_seconds_total{{{label}}}": sampled,
                f"gpu_busy_sm_cycles_total{{{label}}}": _times(sampled, self.clock_hz, gpu),
                f'gpu_clock_limited_seconds_total{{{label}, cause="thermal"}}': _times(
                    busy, self.hot, gpu
                ),
            }
            for cause, course in self.lost.items():
                name = f'gpu_dvfs_lost_live_seconds_total{{{label}, cause="{cause}"}}'
                of_gpu[name] = _times(sampled, course, gpu)
            found += [_series(name, list(accumulate(each))) for name, each in of_gpu.items()]
            found += [
                _series(f"gpu_up{{{label}}}", f"1x{MINUTES}"),
                _series(f'gpu_info{{{label}, name="H", parent=""}}', f"1x{MINUTES}"),
            ]
        return found + [_series(name, text) for name, text in self.more.items()]


def _times(seconds: Sequence[float], course: Course, gpu: int) -> list[float]:
    return [each * course(gpu, minute) for minute, each in enumerate(seconds)]


def _series(name: str, values: str | Sequence[float]) -> Series:
    metric, _, own = name.partition("{")
    whole = metric if metric == "up" else f"chopperd_{metric}"
    labels = ("" if metric == "up" else 'job="chopperd", ') + (own or "}")
    text = values if isinstance(values, str) else " ".join(f"{each:.9g}" for each in values)
    return {"series": f'{whole}{{instance="n", {labels}', "values": text}


def firing(name: str, minute: int, expected: Sequence[str]) -> dict[str, object]:
    """Expect the alerts of a name that fire: labels of each, but those that all have."""
    common = f'alertname="{name}", alertstate="firing"'
    of_all = f'{common}, severity="warning", instance="n"'
    samples = [
        {"labels": f"ALERTS{{{', '.join(filter(None, (of_all, labels)))}}}", "value": 1}
        for labels in expected
    ]
    return {"expr": f"ALERTS{{{common}}}", "eval_time": f"{minute}m", "exp_samples": samples}


def _promtool(folder: Path, test: Mapping[str, object]) -> str:
    document = {
        "rule_files": [str(PROMETHEUS / name) for name in ("rules.yml", "optional-alerts.yml")],
        "evaluation_interval": "1m",
        "group_eval_order": [
            *("chopperd-gpu", "chopperd-node", "chopperd-cluster", "chopperd-workload"),
            *("chopperd-alerts", "chopperd-optional-alerts"),
        ],
        "tests": [{"interval": "1m", **test}],
    }
    file = folder / "test.yml"
    file.write_text(json.dumps(document), encoding="utf-8")
    return output("promtool", "test", "rules", file)


#: The GPU is named by its number, and by its model where peers are compared.
_MODEL: Final = 'name="H", job="chopperd"'
_JOB: Final = 'job="chopperd"'
_BRAKED: Final = {"power_brake": of((2,), 0.5, 0.0)}
#: Blips of 1 % while idle, then a job.
_JOB_AT_20: Final[Course] = lambda _gpu, minute: 1.0 if minute >= 20 else 0.01  # noqa: E731

#: Name, node, last minute without and first minute with the alert, and its labels.
FIRES: Final[Mapping[str, tuple[str, Node, int, int, Sequence[str]]]] = {
    "down": (
        "ChopperdAgentDown",
        Node(more={'up{job="gpu/chopperd"}': "1x10 0x80"}),
        20,
        22,
        ['job="gpu/chopperd"'],
    ),
    # Five minutes without a change, then ten.
    "stale": (
        "ChopperdAgentStale",
        Node(more={"agent_snapshot_timestamp_seconds": "0+60x10 600x80"}),
        23,
        27,
        [_JOB],
    ),
    "reads nothing": (
        "ChopperdAgentStale",
        Node(more={"agent_ticks_total": "0+600x10 6000x80", "agent_paused": "0x90"}),
        23,
        27,
        [_JOB],
    ),
    "hung": (
        "ChopperdDriverCallHung",
        Node(more={'agent_driver_call_hung_seconds{gpu="3", call="fast"}': "_x10 0+60x80"}),
        20,
        23,
        ['gpu="3"'],
    ),
    "brake": (
        "ChopperdHardwareSlowdown",
        Node(lost={"power_brake": of((2,), 0.5, 0.0, since=30), "power_cap": always(0.1)}),
        38,
        43,
        [f'gpu="2", cause="power_brake", {_JOB}'],
    ),
    # Also before the job came: it waits until that is ten minutes old.
    "brake from the start": (
        "ChopperdHardwareSlowdown",
        Node(busy=_JOB_AT_20, lost=_BRAKED),
        31,
        45,
        [f'gpu="2", cause="power_brake", {_JOB}'],
    ),
    # GPUs 2 and 3 of four at 1005 of 2062 MHz, the brake and the cap asserted: 51.3 % lost.
    "case 58": (
        "ChopperdHardwareSlowdown",
        Node(
            gpus=4,
            clock_hz=of((2, 3), 1.005e9, 1.815e9),
            lost={"power_brake": of((2, 3), 0.513, 0.0), "power_cap": of((0, 1), 0.12, 0.0)},
        ),
        9,
        30,
        [f'gpu="{gpu}", cause="power_brake", {_JOB}' for gpu in (2, 3)],
    ),
    "hot": (
        "ChopperdHotGpu",
        Node(hot=of((5,), 0.2, 0.02, since=20)),
        49,
        54,
        [f'gpu="5", {_JOB}'],
    ),
    "outlier": (
        "ChopperdRankClockOutlier",
        Node(clock_hz=of((5,), 1.615e9, 1.7e9, since=20)),
        50,
        56,
        [f'gpu="5", {_MODEL}'],
    ),
    "outlier from the start": (
        "ChopperdRankClockOutlier",
        Node(busy=_JOB_AT_20, clock_hz=of((5,), 1.615e9, 1.7e9)),
        51,
        65,
        [f'gpu="5", {_MODEL}'],
    ),
    # GPUs 5 and 6 at 345 MHz, the others at 1755.
    "case 60": (
        "ChopperdRankClockOutlier",
        Node(clock_hz=of((5, 6), 0.345e9, 1.755e9)),
        30,
        50,
        [f'gpu="{gpu}", {_MODEL}' for gpu in (5, 6)],
    ),
    "lowered": (
        "ChopperdPowerLimitLowered",
        Node(
            more={
                'gpu_power_limit_watts{gpu="1"}': "700x10 600x80",
                'gpu_power_limit_default_watts{gpu="1"}': "700x90",
            }
        ),
        25,
        27,
        [""],
    ),
    "lost": (
        "ChopperdGpuLost",
        Node(gpus=0, more={'gpu_up{gpu="0"}': "1x10 0x80"}),
        20,
        22,
        ['gpu="0"'],
    ),
    "hot node": ("ChopperdHotNode", Node(hot=always(0.2)), 30, 37, [""]),
    "uncovered": ("ChopperdLowCoverage", Node(known=0.4), 30, 37, [""]),
    "trouble": (
        "ChopperdAgentTrouble",
        Node(more={'agent_trouble{part="store"}': "0x10 1x80"}),
        40,
        42,
        ['part="store"'],
    ),
}

#: Name, and a node on which it stays silent.
SILENT: Final[Mapping[str, tuple[str, Node]]] = {
    "another exporter is down": ("ChopperdAgentDown", Node(more={'up{job="node"}': "0x90"})),
    "paused": (
        "ChopperdAgentStale",
        Node(more={"agent_ticks_total": "6000x90", "agent_paused": "1x90"}),
    ),
    "all calls hang": (
        "ChopperdAgentStale",
        Node(
            more={
                "agent_ticks_total": "6000x90",
                "agent_paused": "0x90",
                'agent_driver_call_hung_seconds{gpu="3", call="fast"}': "0+60x90",
            }
        ),
    ),
    "no GPU": (
        "ChopperdAgentStale",
        Node(gpus=0, more={"agent_ticks_total": "0x90", "agent_paused": "0x90"}),
    ),
    "a slow call": (
        "ChopperdDriverCallHung",
        Node(more={'agent_driver_call_hung_seconds{gpu="3", call="fast"}': "55x90"}),
    ),
    "under a power cap": ("ChopperdHardwareSlowdown", Node(lost={"power_cap": always(0.3)})),
    "a touch of brake": (
        "ChopperdHardwareSlowdown",
        Node(lost={"power_brake": of((2,), 0.015, 0.0)}),
    ),
    "idle with a brake": ("ChopperdHardwareSlowdown", Node(busy=always(0.01), lost=_BRAKED)),
    "warm": ("ChopperdHotGpu", Node(hot=of((5,), 0.04, 0.0))),
    "hot for 20 minutes": ("ChopperdHotGpu", Node(hot=of((5,), 0.2, 0.0, since=20, until=40))),
    "all hot": ("ChopperdHotGpu", Node(hot=always(0.2))),
    "2.5 % below": ("ChopperdRankClockOutlier", Node(clock_hz=of((5,), 1.6575e9, 1.7e9))),
    # 5 % below, but the others differ by 2 % as a rule.
    "among unequal peers": (
        "ChopperdRankClockOutlier",
        Node(clock_hz=lambda gpu, _: 1.7e9 * (0.95, 0.98, 0.98, 0.98, 1.02, 1.02, 1.02, 1.0)[gpu]),
    ),
    "seven GPUs": ("ChopperdRankClockOutlier", Node(gpus=7, clock_hz=of((5,), 1.5e9, 1.7e9))),
    "a job of its own": (
        "ChopperdRankClockOutlier",
        Node(busy=of((5,), 0.6, 1.0), clock_hz=of((5,), 1.5e9, 1.7e9)),
    ),
    "low for 20 minutes": (
        "ChopperdRankClockOutlier",
        Node(clock_hz=of((5,), 1.5e9, 1.7e9, since=20, until=40)),
    ),
    "rounded limit": (
        "ChopperdPowerLimitLowered",
        Node(
            more={
                'gpu_power_limit_watts{gpu="1"}': "694x90",
                'gpu_power_limit_default_watts{gpu="1"}': "700x90",
            }
        ),
    ),
    "answers": ("ChopperdGpuLost", Node()),
    "one hot": ("ChopperdHotNode", Node(hot=of((5,), 0.2, 0.0))),
    "covered": ("ChopperdLowCoverage", Node(known=0.6)),
    "well": ("ChopperdAgentTrouble", Node(more={'agent_trouble{part="store"}': "0x90"})),
}


@pytest.mark.parametrize("case", FIRES)
def test_an_alert_fires_after_its_time_and_names_what_is_wrong(tmp_path: Path, case: str) -> None:
    name, node, before, after, labels = FIRES[case]
    asked = [firing(name, before, []), firing(name, after, labels)]
    test = {"input_series": node.series(), "promql_expr_test": asked}
    assert "SUCCESS" in _promtool(tmp_path, test)


@pytest.mark.parametrize("case", SILENT)
def test_an_alert_stays_silent_short_of_that(tmp_path: Path, case: str) -> None:
    name, node = SILENT[case]
    query = f'count_over_time(ALERTS{{alertname="{name}", alertstate="firing"}}[{MINUTES}m])'
    asked = {"expr": query, "eval_time": f"{MINUTES - 11}m", "exp_samples": []}
    test = {"input_series": node.series(), "promql_expr_test": [asked]}
    assert "SUCCESS" in _promtool(tmp_path, test)


def test_every_alert_is_seen_to_fire_and_to_stay_silent() -> None:
    names = {alert.name for alert in ALERTS}
    assert {name for name, *_ in FIRES.values()} == names
    assert {name for name, *_ in SILENT.values()} == names


def test_what_people_read_names_gpu_node_and_figure(tmp_path: Path) -> None:
    alert = next(each for each in ALERTS if each.name == "ChopperdHotGpu")
    annotations = {
        "summary": "GPU 5 of n: 20% of busy time under a thermal limit",
        "description": alert.description,
        "runbook_url": "docs/runbooks/ChopperdHotGpu.md",
    }
    labels = {"severity": "warning", "instance": "n", "gpu": "5", "job": "chopperd"}
    node = Node(hot=of((5,), 0.2, 0.0))
    asked = {
        "eval_time": "60m",
        "alertname": alert.name,
        "exp_alerts": [{"exp_labels": labels, "exp_annotations": annotations}],
    }
    test = {"input_series": node.series(), "alert_rule_test": [asked]}
    assert "SUCCESS" in _promtool(tmp_path, test)


def test_the_defaults_are_those_of_the_design_and_none_pages() -> None:
    assert [alert.name for alert in ALERTS if alert.is_default] == [
        "ChopperdAgentDown",
        "ChopperdAgentStale",
        "ChopperdDriverCallHung",
        "ChopperdHardwareSlowdown",
        "ChopperdHotGpu",
        "ChopperdRankClockOutlier",
        "ChopperdPowerLimitLowered",
    ]
    assert all(alert.labels == {"severity": "warning"} for alert in ALERTS)
    # Whatever begins with a job is older than its first ten minutes before it fires.
    assert all(alert.for_minutes >= 10 for alert in ALERTS)


def test_no_alert_needs_more_than_the_default_profile() -> None:
    profiles = {metric.name: metric.profile for metric in CATALOGUE}
    recorded = {rule.record: rule.expr for rule in RULES}

    def metrics(expression: str) -> set[str]:
        named = {selector.metric for selector in selectors(expression)}
        of_rules = (metrics(recorded[name]) for name in named & recorded.keys())
        return (named - recorded.keys()).union(*of_rules)

    for alert in ALERTS:
        for name in metrics(alert.expr) - {"up"}:
            assert profiles[name] <= Profile.STANDARD, alert.name


def test_windows_hold_four_scrapes_that_are_a_minute_apart() -> None:
    """As case 37 wants of rules."""
    for text in (*(rule.expr for rule in RULES), *(alert.expr for alert in ALERTS)):
        assert all(int(minutes) >= 4 for minutes in re.findall(r"\[(\d+)m\]", text))
        assert not re.findall(r"\[\d+s\]", text)


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_an_alert_has_a_runbook_that_says_what_to_check_and_do(alert: Alert) -> None:
    text = (ROOT / alert.runbook).read_text(encoding="utf-8")
    assert text.startswith(f"# {alert.name}\n")
    for heading in ("**Means:**", "**Check**", "**Do:**", "**Not to be believed**"):
        assert f"\n{heading}" in text
    if not re.search(r"`chopperd [a-z]", text):
        pytest.fail("no command of chopperd verifies it")


def test_the_page_lists_every_alert_and_every_rule() -> None:
    page = (ROOT / "docs/boards.md").read_text(encoding="utf-8")
    listed = re.findall(
        r"^\| \[`(\w+)`\]\(runbooks/\1\.md\) .* \| (\d+) min \| (on|off) \|$", page, re.M
    )
    assert listed == [
        (alert.name, str(alert.for_minutes), "on" if alert.is_default else "off")
        for alert in ALERTS
    ]
    assert re.findall(r"^\| `([a-z_]+:\S+)` \|", page, re.M) == [rule.record for rule in RULES]

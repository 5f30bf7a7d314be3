"""Scrape example, recording rules and the boards' expressions by the real promtool.

Expected values are worked out by hand from `SERIES`; a query that is not listed is held by the test
that asks a real Prometheus.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec
import pytest

from dashboards.__main__ import BOARDS
from dashboards.checks import expressions
from dashboards.metrics import KNOWN, TARGET_LABELS
from dashboards.recording import RECORDED, RULES
from tests.promql import filled_in, grouping_labels, selectors
from tests.tools import ROOT, needed, output

PROMETHEUS = ROOT / "deploy/prometheus"
#: What Grafana makes of the panels' least step.
WINDOW = "4m"

#: What a node with four GPUs exports, as promtool writes series: start, growth a minute, minutes.
#: All but GPU 3 are busy half of the time, of a reference of 2.0 GHz. GPU 0 at 1.5 GHz: of 30 s a
#: minute a quarter, 7.5 s, goes to the clock, and 1.5 s of that is excess. GPU 1 and 2 at 2.0 GHz;
#: GPU 2's clock is known for 24 of 30 s. GPU 3 is idle, and has a part. GPU 4 is lost. Captures
#: come after 4 minutes: on GPU 0 one more, of 2 s and 2 s; on GPU 1 the first; on GPU 2 the first
#: since the agent began again. GPU 0 and 1 are rank 7 and 8 of the workload w; 1 is shared with v.
SERIES: Mapping[str, str] = {
    'gpu_up{gpu="0"}': "1+0x20",
    'gpu_up{gpu="1"}': "1+0x20",
    'gpu_up{gpu="2"}': "1+0x20",
    'gpu_up{gpu="3"}': "1+0x20",
    'gpu_up{gpu="4"}': "0+0x20",
    'gpu_info{gpu="0", name="H", parent=""}': "1+0x20",
    'gpu_info{gpu="1", name="H", parent=""}': "1+0x20",
    'gpu_info{gpu="2", name="H", parent=""}': "1+0x20",
    'gpu_info{gpu="3", name="H", parent=""}': "1+0x20",
    'gpu_info{gpu="3.0", name="H", parent="3"}': "1+0x20",
    'workload_info{gpu="0", workload="w", rank="7"}': "1+0x20",
    'workload_info{gpu="1", workload="w", rank="8"}': "1+0x20",
    'workload_info{gpu="1", workload="v", rank="0"}': "1+0x20",
    'gpu_sm_clock_reference_hertz{gpu="0"}': "2e9+0x20",
    'gpu_sm_clock_reference_hertz{gpu="1"}': "2e9+0x20",
    'gpu_sm_clock_reference_hertz{gpu="2"}': "2e9+0x20",
    'gpu_busy_seconds_total{gpu="0"}': "500+30x20",
    'gpu_busy_seconds_total{gpu="1"}': "0+30x20",
    'gpu_busy_seconds_total{gpu="2"}': "0+30x20",
    'gpu_busy_seconds_total{gpu="3"}': "5+0x20",
    'gpu_busy_sm_cycles_total{gpu="0"}': "1e12+45e9x20",
    'gpu_busy_sm_cycles_total{gpu="1"}': "0+60e9x20",
    'gpu_busy_sm_cycles_total{gpu="2"}': "0+48e9x20",
    'gpu_busy_sm_cycles_total{gpu="3"}': "7e9+0x20",
    'gpu_busy_sampled_seconds_total{gpu="0"}': "500+30x20",
    'gpu_busy_sampled_seconds_total{gpu="1"}': "0+30x20",
    'gpu_busy_sampled_seconds_total{gpu="2"}': "0+24x20",
    'gpu_busy_sampled_seconds_total{gpu="3"}': "5+0x20",
    'gpu_dvfs_lost_live_seconds_total{gpu="0", cause="power_cap"}': "100+6x20",
    'gpu_dvfs_lost_live_seconds_total{gpu="0", cause="thermal"}': "0+1.5x20",
    'gpu_dvfs_lost_live_seconds_total{gpu="1", cause="power_cap"}': "0+0x20",
    'gpu_dvfs_lost_live_seconds_total{gpu="2", cause="thermal"}': "0+0.6x20",
    'gpu_dvfs_lost_live_seconds_total{gpu="3", cause="power_cap"}': "1+0x20",
    'gpu_clock_limited_seconds_total{gpu="0", cause="thermal"}': "0+6x20",
    'gpu_clock_limited_seconds_total{gpu="0", cause="hw_thermal"}': "0+3x20",
    'gpu_clock_limited_seconds_total{gpu="0", cause="power_cap"}': "0+20x20",
    'gpu_excess_live_seconds_total{gpu="0"}': "0+1.5x20",
    'gpu_excess_live_seconds_total{gpu="1"}': "9+0x20",
    'gpu_energy_joules_total{gpu="0"}': "1e9+12000x20",
    'gpu_energy_joules_total{gpu="1"}': "0+18000x20",
    'gpu_power_limit_watts{gpu="0"}': "600+0x20",
    'gpu_power_limit_watts{gpu="1"}': "696+0x20",
    'gpu_power_limit_default_watts{gpu="0"}': "700+0x20",
    'gpu_power_limit_default_watts{gpu="1"}': "700+0x20",
    'gpu_temperature_celsius{gpu="0", sensor="gpu"}': "80+0x20",
    'gpu_temperature_celsius{gpu="0", sensor="memory"}': "90+0x20",
    'gpu_last_sample_timestamp_seconds{gpu="0"}': "-0.5+60x20",
    'gpu_memory_size_bytes{gpu="0"}': "80e9+0x20",
    'gpu_memory_size_bytes{gpu="1"}': "80e9+0x20",
    'gpu_clock_residency_seconds_total{gpu="0", bucket="0.8"}': "0+30x20",
    'gpu_clock_residency_seconds_total{gpu="1", bucket="1.0"}': "0+60x20",
    'agent_build_info{version="1"}': "1+0x20",
    'agent_backend_up{backend="nvml"}': "1+0x20",
    "agent_simulated": "1+0x20",
    "agent_series": "500+0x20",
    'agent_kept_rate_hertz{gpu="0"}': "10+0x20",
    'agent_kept_rate_hertz{gpu="1"}': "1+0x20",
    'agent_driver_seconds_total{call="fast"}': "0+0.12x20",
    'agent_driver_call_hung_seconds{gpu="4", call="full"}': "0+60x20",
    "agent_step_time_ratio": "1.002+0x20",
    'agent_step_time_bound_ratio{bound="low"}': "0.999+0x20",
    'agent_process_cpu_seconds_total{role="agent"}': "0+0.3x20",
    'agent_traces_total{outcome="rejected"}': "0+1x20",
    'agent_trouble{part="store"}': "1+0x20",
    'steps_total{gpu="0"}': "0+120x20",
    'steps_total{gpu="1"}': "0+120x20",
    'steps_total{gpu="2"}': "0+600x20",
    'step_seconds_total{gpu="0"}': "0+60x20",
    'step_seconds_total{gpu="1"}': "0+48x20",
    'step_seconds_total{gpu="2"}': "0+60x20",
    'step_tokens_total{gpu="0"}': "0+6000x20",
    'step_tokens_total{gpu="1"}': "0+6000x20",
    'traced_last_capture_timestamp_seconds{gpu="0"}': "960+0x20",
    'traced_last_capture_timestamp_seconds{gpu="1"}': "60+0x20",
    'traced_window_seconds_total{gpu="0", row="compute_at_ref"}': "100x3 102x14",
    'traced_window_seconds_total{gpu="0", row="dvfs_loss"}': "50x3 52x14",
    'traced_window_seconds_total{gpu="1", row="compute_at_ref"}': "_x4 3x14",
    'traced_window_seconds_total{gpu="1", row="idle_allocator"}': "_x4 1x14",
    'traced_window_seconds_total{gpu="2", row="compute_at_ref"}': "1000x3 6x14",
    'traced_window_seconds_total{gpu="2", row="idle_data"}': "1x3 2x14",
    'traced_kernel_seconds_total{gpu="0", class="gemm"}': "_x4 8x14",
    'traced_kernel_seconds_total{gpu="1", class="gemm"}': "_x4 2x14",
    'traced_kernel_lost_seconds_total{gpu="0", class="gemm"}': "_x4 1x14",
    'traced_last_rank_total{gpu="0"}': "_x4 3x14",
    'traced_memory_reserved_peak_bytes{gpu="0"}': "76e9+0x20",
    'traced_memory_reserved_peak_bytes{gpu="1"}': "40e9+0x20",
    'traced_memory_steps_total{gpu="0"}': "10x3 15x14",
    'traced_memory_segment_calls_total{gpu="0"}': "30x3 40x14",
    'traced_memory_segment_seconds_total{gpu="0"}': "0.1x3 0.2x14",
    'traced_memory_retries_total{gpu="0"}': "1x3 3x14",
    'traced_determinism_verdict{gpu="0", verdict="churns"}': "1+0x20",
    'traced_determinism_verdict{gpu="1", verdict="varies"}': "1+0x20",
}
EVALUATED = "18m"
_TRACED: Final = "Where the steps went that were traced in the last 15 minutes"
_RANK_0: Final = 'gpu="0", workload="w", rank="7"'
_OF_W: Final = 'gpu="1", workload="w", rank="8"'
_OF_V: Final = 'gpu="1", workload="v", rank="0"'
#: What the panels show then: board, title and name of the series; labels of the target are `@`.
SHOWN: Mapping[tuple[str, str, str], Mapping[str, float]] = {
    ("fleet", "GPUs to visit", "GPUs"): {"": 1},
    # 0.025 s of each second, from 17 minutes of the hour that an hour's rate sees to its end: by
    # Prometheus' extrapolation the counter's whole growth of 18 * 1.5 s; in hours.
    ("fleet", "GPU-hours lost to excess, upper", "h"): {"": 27 / 3600},
    ("fleet", "GPUs that answer", "answer"): {"": 4},
    ("fleet", "GPUs that answer", "of"): {"": 5},
    ("fleet", "GPUs that answer", "lost"): {"": 1},
    # 600 of 700 W; 696 is within the tolerance of 1 %.
    ("fleet", "Power limit below default", "GPUs"): {"": 1},
    ("fleet", "Send someone to these", "#0"): {'gpu="0"': 0.05},
    ("fleet", "Send someone to these", "#1"): {'gpu="0"': 2},
    ("fleet", "Send someone to these", "#3"): {'gpu="0"': 80},
    ("fleet", "Send someone to these", "#4"): {'gpu="0", workload="w"': 1},
    # 0.025 GPUs' worth, 6 : 1.5 by the causes' shares.
    ("fleet", "GPUs' worth of time lost to excess, by cause", "{{cause}}"): {
        'cause="power_cap"': 0.02,
        'cause="thermal"': 0.005,
    },
    ("fleet", "Clock while busy over reference, all GPUs", "{{instance}} GPU {{gpu}}"): {
        '@gpu="0"': 0.75,
        '@gpu="1"': 1,
        '@gpu="2"': 1,
    },
    # GPU 0: 6 of 30 s; GPU 2: by its loss, 0.6 of 24 s. No series without either.
    ("fleet", "Heat by rack and hour", "{{place}}"): {'place="n"': (0.2 + 0.025) / 2},
    # 0.25, 0 and 0.025 of three GPUs.
    ("fleet", "At most lost, by model", "{{name}}"): {'name="H"': 0.275 / 3},
    # 0.05 of GPU 0, 0 of GPU 1.
    ("fleet", "At most lost, by model", "{{name}}: excess"): {'name="H"': 0.025},
    ("fleet", "Jobs by the cost of their slowest rank", "#0"): {
        'workload="w"': 0.05 * 2 * 24,
        'workload="v"': 0,
    },
    ("fleet", "Jobs by the cost of their slowest rank", "#2"): {
        'workload="w"': 2,
        'workload="v"': 1,
    },
    ("fleet", "Power", "GPUs"): {"": 500},
    ("fleet", "Coverage, the lowest nodes", "{{instance}}"): {"@@": 84 / 90},
    ("node-and-gpu", "Largest excess, upper", "GPU {{gpu}}"): {'@gpu="0"': 0.05},
    ("node-and-gpu", "Held by, now", "GPU {{gpu}}"): {'@gpu="0"': 2},
    ("node-and-gpu", "GPUs", "answer"): {"": 4},
    ("node-and-gpu", "GPUs", "of"): {"": 5},
    ("node-and-gpu", "GPUs", "a call hangs"): {"": 1080},
    ("node-and-gpu", "Coverage", "known"): {"": 84 / 90},
    ("node-and-gpu", "Age of the newest capture", "age"): {"": 120},
    # Nothing holds GPU 1; heat holds GPU 2; GPU 3 is idle.
    ("node-and-gpu", "Held by", "{{instance}} GPU {{gpu}}"): {
        '@gpu="0"': 2,
        '@gpu="1"': 0,
        '@gpu="2"': 3,
    },
    ("node-and-gpu", "SM clock while busy", "{{instance}} GPU {{gpu}}"): {
        '@gpu="0"': 1.5e9,
        '@gpu="1"': 2e9,
        '@gpu="2"': 2e9,
    },
    ("node-and-gpu", "SM clock while busy", "furthest below: {{instance}} GPU {{gpu}}"): {
        '@gpu="0"': 1.5e9
    },
    ("node-and-gpu", "SM clock while busy", "reference"): {"": 2e9},
    ("node-and-gpu", "SM clock while busy", "median"): {"": 2e9},
    ("node-and-gpu", "Clock while busy against the node's median", "{{instance}} GPU {{gpu}}"): {
        '@gpu="0"': -0.5e9,
        '@gpu="1"': 0,
        '@gpu="2"': 0,
    },
    ("node-and-gpu", "At most lost to the clock, by cause", "{{cause}}"): {
        '@gpu="0", cause="power_cap"': 0.2,
        '@gpu="0", cause="thermal"': 0.05,
    },
    ("node-and-gpu", "Excess against peers, upper", "{{instance}} GPU {{gpu}}"): {
        '@gpu="0"': 0.05,
        '@gpu="1"': 0,
    },
    ("node-and-gpu", "Power against its limits", "{{instance}} GPU {{gpu}}"): {
        '@gpu="0"': 200,
        '@gpu="1"': 300,
    },
    ("node-and-gpu", "Power against its limits", "limit"): {"": 696},
    ("node-and-gpu", "Power against its limits", "default"): {"": 700},
    ("node-and-gpu", "Time at each clock", "{{bucket}}"): {'bucket="0.8"': 0.5, 'bucket="1.0"': 1},
    # Of 16 s: 2 + 3 + 6, 2, 1 and 2.
    ("node-and-gpu", _TRACED, "{{row}}"): {
        'row="compute_at_ref"': 11 / 16,
        'row="dvfs_loss"': 2 / 16,
        'row="idle_data"': 2 / 16,
        'row="idle_allocator"': 1 / 16,
    },
    ("job", "Step time, slowest rank", "step"): {"": 0.5},
    ("job", "Tokens a second", "tokens"): {"": 200},
    # Two GPUs have an excess.
    ("job", "The slowest rank costs, upper", "a day"): {"": 0.05 * 2 * 24},
    ("job", "Slowest rank", "#0"): {_RANK_0: 0.05},
    ("job", "Slowest rank", "#1"): {'gpu="0"': 2},
    ("job", "Step time", "slowest rank"): {"": 0.5},
    # 0.5, 0.4 and, without a workload, 0.1 s.
    ("job", "Step time", "median rank"): {"": 0.4},
    ("job", "Clock while busy against the median rank", "{{rank}} {{instance}} GPU {{gpu}}"): {
        f"@{_RANK_0}": -0.5e9,
        f"@{_OF_W}": 0,
        f"@{_OF_V}": 0,
        '@gpu="2"': 0,
    },
    ("job", "Held by, a row a rank", "{{rank}} {{instance}} GPU {{gpu}}"): {
        f"@{_RANK_0}": 2,
        f"@{_OF_W}": 0,
        f"@{_OF_V}": 0,
        '@gpu="2"': 3,
    },
    ("job", "Where each rank's steps went that were traced in the last 15 minutes", ""): {
        'place="n GPU 0", row="compute_at_ref"': 0.5,
        'place="n GPU 0", row="dvfs_loss"': 0.5,
        'place="n GPU 1", row="compute_at_ref"': 0.75,
        'place="n GPU 1", row="idle_allocator"': 0.25,
        'place="n GPU 2", row="compute_at_ref"': 0.75,
        'place="n GPU 2", row="idle_data"': 0.25,
    },
    ("job", "Classes: time, and at most lost", "#0"): {'class="gemm"': 10},
    ("job", "Classes: time, and at most lost", "#1"): {'class="gemm"': 0.1},
    ("job", "Power, and tokens a joule", "power"): {"": 500},
    ("job", "Power, and tokens a joule", "tokens a joule"): {"": 0.4},
    ("job", "Who was last", "#0"): {_RANK_0: 3},
    ("fsdp", "Ranks by verdict", "{{verdict}}"): {'verdict="churns"': 1, 'verdict="varies"': 1},
    ("fsdp", "Reserved peak, fullest GPU", "reserved"): {"": 0.95},
    ("fsdp", "Retries in captures", "retries"): {"": 2},
    # On GPU 1 one of four seconds.
    ("fsdp", "Malloc or free on the critical path", "idle"): {"": 0.25},
    # 10 calls and 2 retries in 5 steps.
    ("fsdp", "Segment calls and retries a step", "segment calls"): {"": 2},
    ("fsdp", "Segment calls and retries a step", "retries"): {"": 0.4},
    ("fsdp", "Ranks", "#2"): {_RANK_0: 0.02},
    ("agent", "Agents", "answer"): {"": 1},
    ("agent", "Agents", "read GPUs"): {"": 1},
    ("agent", "Oldest newest sample", "age"): {"": 0.5},
    ("agent", "Effect on steps", "largest"): {"": 0.002},
    ("agent", "Effect on steps", "{{bound}}"): {'bound="low"': -0.001},
    ("agent", "Achieved samples a second, lowest GPU", "{{instance}}"): {"@@": 1},
    # 2 ms a second over four GPUs that answer.
    ("agent", "Share of time in driver calls, a GPU", "{{call}}"): {'call="fast"': 0.0005},
    ("agent", "CPU of a node's agent", "{{role}}"): {'role="agent"': 0.005},
    ("agent", "Nodes with a problem, by part", "problem: {{part}}"): {'part="store"': 1},
}
RECORDED_VALUES: Mapping[str, Mapping[str, float]] = {
    "gpu_workload:chopperd_gpu:info": {
        f"@{_RANK_0}": 1,
        f"@{_OF_W}": 1,
        f"@{_OF_V}": 1,
        '@gpu="2"': 1,
        '@gpu="3"': 1,
        '@gpu="4"': 1,
    },
    "gpu:chopperd_gpu_busy:ratio5m": {
        '@gpu="0"': 0.5,
        '@gpu="1"': 0.5,
        '@gpu="2"': 0.5,
        '@gpu="3"': 0,
    },
    "gpu:chopperd_gpu_busy:min10m": {
        '@gpu="0"': 0.5,
        '@gpu="1"': 0.5,
        '@gpu="2"': 0.5,
        '@gpu="3"': 0,
    },
    "gpu:chopperd_gpu_busy_sm_clock_hertz:mean5m": {
        '@gpu="0"': 1.5e9,
        '@gpu="1"': 2e9,
        '@gpu="2"': 2e9,
    },
    "gpu_cause:chopperd_gpu_dvfs_gap:ratio5m": {
        '@gpu="0", cause="power_cap"': 0.2,
        '@gpu="0", cause="thermal"': 0.05,
        '@gpu="1", cause="power_cap"': 0,
        '@gpu="2", cause="thermal"': 0.025,
    },
    "gpu:chopperd_gpu_excess:ratio5m": {'@gpu="0"': 0.05, '@gpu="1"': 0},
    "gpu:chopperd_gpu_coverage:ratio5m": {'@gpu="0"': 1, '@gpu="1"': 1, '@gpu="2"': 0.8},
    "gpu:chopperd_gpu_clock_to_reference:ratio5m": {'@gpu="0"': 0.75, '@gpu="1"': 1, '@gpu="2"': 1},
    "gpu_name:chopperd_gpu_busy_sm_clock_hertz:mean5m": {
        '@gpu="0", name="H"': 1.5e9,
        '@gpu="1", name="H"': 2e9,
        '@gpu="2", name="H"': 2e9,
    },
    # Three are too few; the tests of alerts have more.
    "gpu_name:chopperd_gpu_clock_below_peers:ratio5m": {},
    "gpu:chopperd_gpu_thermal:ratio5m": {'@gpu="0"': 0.2, '@gpu="2"': 0.025},
    "gpu:chopperd_gpu_held_by:code5m": {'@gpu="0"': 2, '@gpu="1"': 0, '@gpu="2"': 3},
    "node:chopperd_gpu:count": {"@@": 5},
    "node:chopperd_gpu_up:sum": {"@@": 4},
    "node:chopperd_gpu_busy:ratio5m": {"@@": 0.375},
    "node:chopperd_gpu_coverage:ratio5m": {"@@": 84 / 90},
    "node:chopperd_gpu_excess:max5m": {"@@": 0.05},
    "node_cause:chopperd_gpu_excess:gpus5m": {
        '@@cause="power_cap"': 0.02,
        '@@cause="thermal"': 0.005,
    },
    "node:chopperd_gpu_thermal:median5m": {"@@": (0.2 + 0.025) / 2},
    "node:chopperd_gpu_power_watts:sum5m": {"@@": 500},
    "cluster:chopperd_gpu:count": {"@@@": 5},
    "cluster:chopperd_gpu_up:sum": {"@@@": 4},
    "cluster:chopperd_gpu_busy:gpus5m": {"@@@": 1.5},
    "cluster_cause:chopperd_gpu_excess:gpus5m": {
        '@@@cause="power_cap"': 0.02,
        '@@@cause="thermal"': 0.005,
    },
    "cluster:chopperd_gpu_power_watts:sum5m": {"@@@": 500},
    "workload:chopperd_gpu:count": {'@@@workload="w"': 2, '@@@workload="v"': 1},
    "workload:chopperd_gpu_excess:max5m": {'@@@workload="w"': 0.05, '@@@workload="v"': 0},
    "workload:chopperd_gpu_power_watts:sum5m": {'@@@workload="w"': 500, '@@@workload="v"': 300},
}


class _Rule(msgspec.Struct):
    regex: str
    target_label: str
    replacement: str


class _Job(msgspec.Struct):
    relabel_configs: list[_Rule]


class _ScrapeFile(msgspec.Struct):
    scrape_configs: list[_Job]


def _queries(cluster: str = ".*", gpu: str = ".*") -> dict[tuple[str, str, str], str]:
    """The expressions of all panels; those of tables by their number."""
    found: dict[tuple[str, str, str], str] = {}
    for file, make in BOARDS.items():
        counts: dict[str, int] = {}
        for title, expression, legend in expressions(make()):
            counts[title] = number = counts.get(title, -1) + 1
            query = filled_in(expression, window=WINDOW, cluster=cluster, gpu=gpu)
            board = file.removesuffix(".json")
            found[board, title, legend] = found[board, title, f"#{number}"] = query
    return found


def _expectation(expression: str, values: Mapping[str, float], cluster: str = "") -> object:
    """A test of promtool's, which compares exactly: here to 6 digits after the point.

    `@` before labels stands for those of the target, `@@` for those of its node, `@@@` for those of
    its cluster; tables and sums have the labels that they ask for.
    """
    of_cluster = f'cluster="{cluster}"' if cluster else ""
    of_node = ", ".join(filter(None, (of_cluster, 'instance="n"')))
    of_target = f'{of_node}, job="chopperd"'
    places = {"": "", "@": of_target, "@@": of_node, "@@@": of_cluster}
    samples = []
    for labels, value in values.items():
        own = labels.lstrip("@")
        where = places[labels[: len(labels) - len(own)]]
        samples.append(
            {"labels": "{" + ", ".join(filter(None, (own, where))) + "}", "value": value}
        )
    rounded = f"round({expression}, 0.000001)"
    samples = [{**each, "value": round(float(str(each["value"])), 6)} for each in samples]
    return {"expr": rounded, "eval_time": EVALUATED, "exp_samples": samples}


def _series(cluster: str = "") -> Iterator[dict[str, str]]:
    of_target = (f'cluster="{cluster}", ' if cluster else "") + 'instance="n", job="chopperd"'
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
        "group_eval_order": [f"chopperd-{each}" for each in ("gpu", "node", "cluster", "workload")],
        "tests": [test],
    }
    file = folder / "test.yml"
    file.write_text(json.dumps(document), encoding="utf-8")
    return output("promtool", "test", "rules", file)


def test_rules_name_what_the_catalogue_has() -> None:
    """By a parser of PromQL; and their names say what they are of."""
    for rule in RULES:
        labels = {"cluster", "instance"}
        for selector in selectors(rule.expr):
            series = RECORDED.get(selector.metric) or KNOWN[selector.metric]
            labels |= series.labels.keys()
            assert selector.labels <= series.labels.keys() | set(TARGET_LABELS)
        assert grouping_labels(rule.expr) <= labels
        assert {*rule.level.split("_")} <= labels | {"node", "cluster", "workload"}


def test_the_scrape_example_and_the_rules_are_what_prometheus_takes() -> None:
    assert "1 rule files found" in output("promtool", "check", "config", PROMETHEUS / "scrape.yml")
    for file in ("rules.yml", "optional-alerts.yml"):
        assert "SUCCESS" in output("promtool", "check", "rules", PROMETHEUS / file)


def test_panels_show_what_is_worked_out_by_hand(tmp_path: Path) -> None:
    found = _queries()
    expectations = [
        _expectation(found[key], _of_table(key, values)) for key, values in SHOWN.items()
    ]
    assert "SUCCESS" in _run(tmp_path, expectations)


def test_what_was_not_sampled_comes_on_top_of_the_loss(tmp_path: Path) -> None:
    """Of GPU 2 alone, a fifth of whose busy time has no known clock."""
    asked = "node-and-gpu", "At most lost to the clock, by cause", "not sampled"
    expression = _queries(gpu="2")[asked]
    assert "SUCCESS" in _run(tmp_path, [_expectation(expression, {'@gpu="2"': 0.2})])


def _of_table(key: tuple[str, str, str], values: Mapping[str, float]) -> Mapping[str, float]:
    """Rows of tables by GPU or workload keep node and cluster, to link with."""
    _, title, number = key
    if not number.startswith("#") or "class" in str(values):
        return values
    place = "@@@" if title.startswith("Jobs") else "@@"
    return {f"{place}{labels}": value for labels, value in values.items()}


def test_nodes_of_one_name_in_two_clusters_stay_apart(tmp_path: Path) -> None:
    """Cluster a as worked out by hand; the node of b has other figures everywhere."""
    found = _queries("a")
    series = [*_series("a")]
    series += [{**each, "values": "0+7777x60"} for each in _series("b")]
    expectations = [
        _expectation(found[key], _of_table(key, values), "a") for key, values in SHOWN.items()
    ]
    assert "SUCCESS" in _run(tmp_path, expectations, series)


def test_rules_record_what_is_worked_out_by_hand(tmp_path: Path) -> None:
    assert RECORDED_VALUES.keys() == RECORDED.keys()
    expectations = [
        _expectation(f"last_over_time({name}[1m])", values)
        for name, values in RECORDED_VALUES.items()
    ]
    assert "SUCCESS" in _run(tmp_path, expectations)


def test_a_wrong_figure_would_be_noticed(tmp_path: Path) -> None:
    needed("promtool")
    expression = _queries()["fleet", "Power", "GPUs"]
    with pytest.raises(AssertionError, match="FAILED"):
        _run(tmp_path, [_expectation(expression, {"": 501})])


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

"""How often the default alerts fire on healthy nodes, and whether they do on faulty ones.

`python -m bench.alerts` makes the metric series of days of a node of eight equal GPUs by the
simulation's physics (power cap, heat), a scrape each 30 s, and has promtool evaluate the default
alerts over them, with the rules that they need: Prometheus' own engine, with `for` and all. Jobs
start and end, nodes idle, agents restart, scrapes fail, two jobs share a node. The truth is known:
nothing is wrong, or one thing is.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from bench.markdown import table, verdict
from chopperd.model.arrays import Float64s
from chopperd.simulation.physics import Silicon, draw_silicon
from chopperd.simulation.presets import H100, NodePreset
from chopperd.units import NS_PER_S
from dashboards.rules_file import default_alerts_file

GPUS: Final = 8
SCRAPE_S: Final = 30
SCRAPES_AN_HOUR: Final = 3600 // SCRAPE_S
#: At most one alert in a thousand GPU-days.
MOST_A_GPU_DAY: Final = 1e-3
SPREAD: Final = 0.01
_PRESET: Final = NodePreset(gpu=H100, badly_cooled=None)
_DEFAULT_W: Final = H100.power_limit_w

#: Which alert each fault has to raise, on which GPU; the limit is of the node.
FAULTS: Final[Mapping[str, tuple[str, str]]] = {
    "hot GPU": ("ChopperdHotGpu", "5"),
    "clock outlier": ("ChopperdRankClockOutlier", "5"),
    "power brake": ("ChopperdHardwareSlowdown", "5"),
    "lowered limit": ("ChopperdPowerLimitLowered", ""),
}


@dataclass(slots=True)
class Day:
    """A node's day: (scrapes, GPUs) of what happens between a scrape and the one before.

    Attributes:
        busy: Share of time busy.
        clock_mhz: While busy.
        hot: Share of busy time under a thermal limit.
        braked: Share of busy time lost to a power brake.
        limit_w: Enforced power limit.
        restarts: Scrapes before which the agent began again.
        missing: Scrapes that failed.
        down: Scrapes that found no agent.
    """

    busy: Float64s
    activity: Float64s
    clock_mhz: Float64s
    hot: Float64s
    braked: Float64s
    limit_w: Float64s
    restarts: set[int] = field(default_factory=set)
    missing: set[int] = field(default_factory=set)
    down: set[int] = field(default_factory=set)


def day(seed: int, fault: str = "", hours: int = 24, *, wide: bool = False) -> Day:
    """Draw a day from a seed, perhaps with a fault from its middle on, under a job that lasts.

    Clocks of equal GPUs differ by ±1 %, as their cooling does by some; `wide`: also by the
    simulation's draw of their silicon, so that some are really 3 % below.
    """
    rng = np.random.default_rng([seed, 41])
    scrapes = hours * SCRAPES_AN_HOUR
    shape = scrapes, GPUS
    found = Day(
        busy=_blips(rng, shape),
        activity=np.full(shape, 0.3),
        clock_mhz=np.zeros(shape),
        hot=np.zeros(shape),
        braked=np.zeros(shape),
        limit_w=np.full(shape, _DEFAULT_W),
    )
    at = int(rng.integers(0, 120))
    while at < scrapes:
        length = int(rng.exponential(600)) + 20
        _add_job(found, rng, slice(at, min(at + length, scrapes)))
        at += length + int(rng.exponential(60)) * int(rng.integers(0, 4))
    if fault:
        _add_job(found, rng, slice(scrapes // 2 - SCRAPES_AN_HOUR, scrapes), shared=False)
    _interruptions(found, rng, scrapes / (24 * SCRAPES_AN_HOUR))
    silicon = draw_silicon(_PRESET, seed)
    if not wide:
        alike = np.ones(GPUS)
        silicon = replace(silicon, dynamic_w=H100.dynamic_w * alike, static_w=H100.static_w * alike)
    _run_clocks(found, rng, silicon, fault)
    return found


def _blips(rng: np.random.Generator, shape: tuple[int, int]) -> Float64s:
    """An idle node: monitoring and notebooks wake a GPU now and then."""
    return np.asarray((rng.random(shape) < 0.05) * rng.uniform(0, 0.3, shape))


def _add_job(found: Day, rng: np.random.Generator, when: slice, *, shared: bool = True) -> None:
    """A job on all GPUs, or two on half of them each, whose work and clocks differ."""
    halves = [np.arange(GPUS)]
    if shared and rng.random() < 0.2:
        halves = [np.arange(GPUS // 2), np.arange(GPUS // 2, GPUS)]
    for gpus in halves:
        length = when.stop - when.start
        steady = rng.uniform(0.55, 0.95)
        wander = 0.01 * rng.standard_normal((length, 1)) + 0.003 * rng.standard_normal(
            (length, len(gpus))
        )
        activity = np.clip(steady + wander, 0.3, 1.0)
        busy = np.clip(rng.normal(rng.uniform(0.8, 1.0), 0.02, (length, len(gpus))), 0, 1)
        # Ranks come within two minutes, and compile and load for up to eight: each as it can.
        for column, start in enumerate(rng.integers(0, 4, len(gpus))):
            warm = int(start) + int(rng.integers(4, 16))
            busy[: int(start), column] = 0
            busy[int(start) : warm, column] = rng.uniform(0.05, 1.0)
            activity[:warm, column] = rng.uniform(0.3, 1.0)
        # Evaluation, checkpoints: all ranks pause for up to two minutes.
        for pause in np.flatnonzero(rng.random(length) < 0.01):
            busy[pause : pause + int(rng.integers(1, 5))] *= rng.uniform(0, 0.5)
        found.busy[when, gpus] = busy
        found.activity[when, gpus] = activity


def _interruptions(found: Day, rng: np.random.Generator, days: float) -> None:
    """Agents restart, scrapes fail, a node is rebooted within eight minutes."""

    def times(a_day: float) -> list[int]:
        drawn = rng.random(len(found.busy)) < a_day * days / len(found.busy)
        return np.flatnonzero(drawn).tolist()

    for at in times(2):
        found.restarts.add(at)
        found.down.update(range(at, at + int(rng.integers(0, 3))))
    for at in times(3):
        found.missing.update(range(at, at + int(rng.integers(1, 6))))
    for at in times(0.2):
        length = int(rng.integers(6, 16))
        found.down.update(range(at, at + length))
        found.restarts.add(at + length)
        found.busy[at : at + length] = 0


def _run_clocks(found: Day, rng: np.random.Generator, silicon: Silicon, fault: str) -> None:
    """Clock and heat of each scrape's time by the simulation's physics, GPUs ±1 % apart."""
    spread = 1 + rng.uniform(-SPREAD, SPREAD, GPUS)
    temperature_c = np.full(GPUS, 35.0)
    elapsed_ns = np.full(GPUS, float(SCRAPE_S * NS_PER_S))
    healthy = silicon.resistance_c_per_w.copy()
    for at in range(len(found.busy)):
        wrong = fault if at >= len(found.busy) // 2 else ""
        silicon.resistance_c_per_w[:] = healthy
        silicon.resistance_c_per_w[5] *= 1.75 if wrong == "hot GPU" else 1.0
        resting_w = silicon.resting_w(temperature_c)
        capped = silicon.capped_clock_mhz(found.activity[at], resting_w)
        cooled = silicon.cooled_clock_mhz(temperature_c)
        clock = np.minimum(capped, cooled) * spread
        found.hot[at] = cooled < capped
        if wrong == "clock outlier":
            clock[5] *= 0.94
        elif wrong == "power brake":
            clock[5] = 0.5 * H100.sm_clock_max_mhz
            found.braked[at, 5] = 0.5
        elif wrong == "lowered limit":
            found.limit_w[at] = 500.0
        found.clock_mhz[at] = np.minimum(clock, H100.sm_clock_max_mhz)
        activity = np.maximum(found.activity[at] * found.busy[at], 0.01)
        power_w = silicon.power_w(clock, activity, resting_w)
        temperature_c = silicon.temperature_c(temperature_c, power_w, elapsed_ns)
    silicon.resistance_c_per_w[:] = healthy


def series_of(found: Day) -> list[dict[str, str]]:
    """What Prometheus scrapes of it, as promtool takes series."""
    text = partial(_text, found)
    busy_s = SCRAPE_S * found.busy
    lost = busy_s * np.maximum(0.0, 1 - found.clock_mhz / H100.sm_clock_max_mhz)
    braked = busy_s * found.braked
    scrapes = len(found.busy)
    up = ["0" if at in found.down else "1" for at in range(scrapes)]
    all_up = np.ones(scrapes)
    series = {
        "up{": " ".join("_" if at in found.missing else value for at, value in enumerate(up)),
        "chopperd_agent_snapshot_timestamp_seconds{": text(
            SCRAPE_S * np.arange(scrapes, dtype=np.float64), False
        ),
        "chopperd_agent_ticks_total{": text(10.0 * SCRAPE_S * all_up, True),
        "chopperd_agent_paused{": text(0 * all_up, False),
    }
    for gpu in range(GPUS):
        label = f'gpu="{gpu}", '
        lost_to = f"chopperd_gpu_dvfs_lost_live_seconds_total{{{label}"
        hot = found.hot[:, gpu]
        counters = {
            f"chopperd_gpu_busy_seconds_total{{{label}": busy_s[:, gpu],
            f"chopperd_gpu_busy_sampled_seconds_total{{{label}": busy_s[:, gpu],
            f"chopperd_gpu_busy_sm_cycles_total{{{label}": 1e6
            * busy_s[:, gpu]
            * found.clock_mhz[:, gpu],
            f'{lost_to}cause="power_brake", ': braked[:, gpu],
            f'{lost_to}cause="thermal", ': (lost[:, gpu] - braked[:, gpu]) * hot,
            f'{lost_to}cause="power_cap", ': (lost[:, gpu] - braked[:, gpu]) * (1 - hot),
            f'chopperd_gpu_clock_limited_seconds_total{{{label}cause="thermal", ': busy_s[:, gpu]
            * hot,
        }
        series |= {name: text(values, True) for name, values in counters.items()}
        series |= {
            f"chopperd_gpu_up{{{label}": text(all_up, False),
            f'chopperd_gpu_info{{{label}name="H", parent="", ': text(all_up, False),
            f"chopperd_gpu_power_limit_watts{{{label}": text(found.limit_w[:, gpu], False),
            f"chopperd_gpu_power_limit_default_watts{{{label}": text(_DEFAULT_W * all_up, False),
        }
    own = 'instance="n", job="chopperd"}'
    return [{"series": f"{name}{own}", "values": values} for name, values in series.items()]


def _text(found: Day, values: Float64s, counts: bool) -> str:
    """A value a scrape; counters begin again with the agent, and failed scrapes have none."""
    total, lines = 0.0, []
    for at, value in enumerate(values.tolist()):
        total = value + (0.0 if at in found.restarts or not counts else total)
        away = at in found.missing or at in found.down
        lines.append("_" if away else f"{total:.10g}")
    return " ".join(lines)


def alerts_of(found: Day) -> list[str]:
    """Each alert that fires in the day, by name and GPU, as promtool evaluates the rules.

    promtool compares, so what it says to an expectation of none is read.
    """
    asked = {
        "expr": 'count_over_time(ALERTS{alertstate="firing"}[1d])',
        "eval_time": f"{len(found.busy) * SCRAPE_S // 60 - 1}m",
        "exp_samples": [],
    }
    document = {
        "rule_files": ["rules.yml"],
        "evaluation_interval": "1m",
        "group_eval_order": [f"chopperd-{name}" for name in ("gpu", "node", "alerts")],
        "tests": [
            {
                "interval": f"{SCRAPE_S}s",
                "input_series": series_of(found),
                "promql_expr_test": [asked],
            }
        ],
    }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "test.yml"
        file.write_text(json.dumps(document), encoding="utf-8")
        (Path(folder) / "rules.yml").write_text(default_alerts_file(), encoding="utf-8")
        done = subprocess.run(
            ["promtool", "test", "rules", file], capture_output=True, text=True, check=False
        )
    return list(_fired(done.stdout + done.stderr))


def _fired(said: str) -> Iterator[str]:
    """The alerts in what promtool says it got.

    Raises:
        ValueError: It says something else.
    """
    if "SUCCESS" in said:
        return
    if "got:" not in said:
        raise ValueError(said)
    for labels in said.split("got:")[1].split("{")[1:]:
        pairs = dict(pair.split("=", 1) for pair in labels.split("}")[0].split(", ") if "=" in pair)
        gpu = pairs.get("gpu", '""').strip('"')
        yield f"{pairs['alertname'].strip(chr(34))} {gpu}".strip()


def false_alerts(days: Sequence[int], workers: int, *, wide: bool) -> Counter[str]:
    """Alerts of healthy days, by name and GPU."""
    with ThreadPoolExecutor(workers) as pool:
        fired = pool.map(lambda seed: alerts_of(day(seed, wide=wide)), days)
        return Counter(name for each in fired for name in each)


def found_faults(seeds: Sequence[int], workers: int) -> dict[str, list[list[str]]]:
    """What fires on days with each fault."""
    with ThreadPoolExecutor(workers) as pool:
        return {
            fault: list(pool.map(lambda seed, fault=fault: alerts_of(day(seed, fault)), seeds))
            for fault in FAULTS
        }


def main() -> int:
    """Print the results; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=int, default=125)
    parser.add_argument("--faulty", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--wide", action="store_true", help="GPUs differ by their silicon, too")
    given = parser.parse_args()
    false = false_alerts(range(given.days), given.workers, wide=given.wide)
    gpu_days = given.days * GPUS
    met = verdict(met=false.total() <= MOST_A_GPU_DAY * gpu_days)
    print(
        f"{false.total()} false alerts in {gpu_days} GPU-days of healthy nodes: {met} (1 in 1,000)"
    )
    print("".join(f"\n* {name}: {count}" for name, count in false.most_common()))
    rows = []
    for fault, fired in found_faults(range(1000, 1000 + given.faulty), given.workers).items():
        wanted = " ".join(FAULTS[fault]).strip()
        raised = sum(wanted in each for each in fired)
        others = sorted({name for each in fired for name in each} - {wanted})
        rows.append([fault, wanted, f"{raised} of {len(fired)}", ", ".join(others) or "none"])
    print("\n" + table(("fault", "alert", "raised", "others"), rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())

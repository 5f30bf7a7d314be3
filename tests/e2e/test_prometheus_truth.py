"""A real Prometheus scrapes the agent: what PromQL says of the clock is what the simulation did.

The truth is integrated exactly over the simulation's own track, between the very times at which
Prometheus scraped; it knows nothing of samples.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from chopperd.model.causes import Cause
from chopperd.model.timeline import Intervals
from chopperd.simulation.node import SimulatedNode
from chopperd.simulation.spec import SimulationSpec
from chopperd.simulation.track import Track, joined_truth
from tests.e2e.agents import agent_under, now_spec
from tests.e2e.prometheus import Prometheus, Series, prometheus

#: Two scrapes at 30 s and a little; both jobs are asked over the same stretch.
LENGTH_S: Final = 64
RANGE: Final = "70s"
TOLERANCE: Final = 0.01
REFERENCE_MHZ: Final = 1980.0
SCRAPES: Final = """
  - job_name: every-second
    scrape_interval: 1s
    scrape_timeout: 1s
    static_configs: [{{targets: ["{address}"]}}]
  - job_name: every-half-minute
    scrape_interval: 30s
    static_configs: [{{targets: ["{address}"]}}]
"""


class Truth:
    """What the simulated GPUs did from its start on, integrated over their tracks."""

    def __init__(self, spec: SimulationSpec, end_ns: int) -> None:
        node = SimulatedNode(spec)
        self._tracks: list[list[Track]] = [[] for _ in node.gpus]
        at_ns = [spec.start_unix_ns] * len(node.gpus)
        while min(at_ns) < end_ns:  # all GPUs together: the node keeps few steps
            for gpu, tracks in enumerate(self._tracks):
                tracks.append(node.track(gpu, at_ns[gpu]))
                at_ns[gpu] = tracks[-1].end_ns

    def mean_hz(self, gpu: int, begin_ns: int, end_ns: int) -> float:
        """The time-weighted mean clock."""
        clock = joined_truth(self._tracks[gpu])
        return clock.mean_mhz(_interval(begin_ns, end_ns)) * 1e6

    def gap_by_cause(self, gpu: int, begin_ns: int, end_ns: int) -> dict[str, float]:
        """Ceiling loss over time busy, by cause."""
        busy = self._busy(gpu, begin_ns, end_ns)
        lost = joined_truth(self._tracks[gpu]).lost_by_cause_ns(busy, REFERENCE_MHZ)
        busy_ns = int((busy.end_ns - busy.start_ns).sum())
        return {cause.label: float(each.sum()) / busy_ns for cause, each in lost.items()}

    def _busy(self, gpu: int, begin_ns: int, end_ns: int) -> Intervals:
        """The cells in which anything ran, cut to the time."""
        starts, ends = [], []
        for track in self._tracks[gpu]:
            edges, is_busy = track.busy.edges_ns, track.busy.value > 0
            starts.append(np.clip(edges[:-1][is_busy], begin_ns, end_ns))
            ends.append(np.clip(edges[1:][is_busy], begin_ns, end_ns))
        return Intervals(start_ns=np.concatenate(starts), end_ns=np.concatenate(ends))


@dataclass(frozen=True, slots=True)
class Asked:
    """A Prometheus asked as of one moment, so that all answers are about the same scrapes."""

    server: Prometheus
    at_s: float

    def query(self, expression: str) -> list[Series]:
        """What an expression gave at that moment."""
        return self.server.query(expression, self.at_s)

    def span_ns(self, name: str, job: str, gpu: str) -> tuple[int, int]:
        """The times of the first and the last scrape in the range, Unix ns."""
        (series,) = self.query(f'{name}{{job="{job}", gpu="{gpu}"}}[{RANGE}]')
        times_s = [time_s for time_s, _ in series.points]
        assert len(times_s) >= 2
        return round(times_s[0] * 1e9), round(times_s[-1] * 1e9)


def _interval(begin_ns: int, end_ns: int) -> Intervals:
    return Intervals(start_ns=np.array([begin_ns]), end_ns=np.array([end_ns]))


def test_clock_and_gap_by_promql_are_the_simulations(tmp_path: Path) -> None:
    spec = now_spec(seed=3)
    with agent_under(tmp_path, spec) as agent:
        scrapes = SCRAPES.format(address=agent.metrics)
        with prometheus(tmp_path, scrapes) as server:
            time.sleep(LENGTH_S)
            asked = Asked(server, time.time())
            truth = Truth(spec, time.time_ns())
            for job in ("every-second", "every-half-minute"):
                _clock_is_right(asked, job, truth)
                _gap_is_right(asked, job, truth)


def _clock_is_right(asked: Asked, job: str, truth: Truth) -> None:
    ratio = _ratio("chopperd_gpu_sm_cycles_total", "chopperd_gpu_sampled_seconds_total", job)
    means = {each.labels["gpu"]: each.value for each in asked.query(ratio)}
    assert sorted(means) == [str(gpu) for gpu in range(8)]
    for gpu, mean_hz in means.items():
        span = asked.span_ns("chopperd_gpu_sampled_seconds_total", job, gpu)
        assert mean_hz == pytest.approx(truth.mean_hz(int(gpu), *span), rel=TOLERANCE), (job, gpu)


def _gap_is_right(asked: Asked, job: str, truth: Truth) -> None:
    lost = f'rate(chopperd_gpu_dvfs_lost_live_seconds_total{{job="{job}"}}[{RANGE}])'
    busy = f'rate(chopperd_gpu_busy_sampled_seconds_total{{job="{job}"}}[{RANGE}])'
    found: dict[str, dict[str, float]] = {}
    for each in asked.query(f"{lost} / on(gpu, instance, job) group_left {busy}"):
        found.setdefault(each.labels["gpu"], {})[each.labels["cause"]] = each.value
    assert len(found) == 8
    for gpu, gaps in found.items():
        span = asked.span_ns("chopperd_gpu_busy_sampled_seconds_total", job, gpu)
        true = truth.gap_by_cause(int(gpu), *span)
        assert sum(gaps.values()) > 0.05  # there is something to be right about
        for cause in Cause:
            is_found, is_true = gaps.get(cause.label, 0.0), true.get(cause.label, 0.0)
            assert is_found == pytest.approx(is_true, abs=TOLERANCE), (job, gpu, cause)


def _ratio(above: str, below: str, job: str) -> str:
    rates = [f'rate({name}{{job="{job}"}}[{RANGE}])' for name in (above, below)]
    return " / ".join(rates)

"""An agent that is scraped: it holds no more for it, and PromQL says what the simulation did.

The truth is integrated exactly over the simulation's own track, between the very times at which
Prometheus scraped; it knows nothing of samples.
"""

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from bench.truth import lost_by_cause_ns, mean_mhz
from chopperd.model.kinds import Cause
from chopperd.model.timeline import Intervals
from chopperd.simulation.node import SimulatedNode
from chopperd.simulation.presets import SimulationSpec
from chopperd.simulation.track import Track, joined_truth
from tests.e2e.agents import RunningAgent, agent_under, now_spec
from tests.e2e.prometheus import Prometheus, Series, prometheus
from tests.waiting import settled, wait_for

#: The slow job's first scrape is up to 15 s, and Prometheus' own 5 s, after its start; both jobs
#: are asked over the same stretch.
LONGEST_S: Final = 90
RANGE: Final = "35s"
#: Twice the usual rate: half a minute then has as many samples as a minute usually has.
HZ: Final = "20"
TOLERANCE: Final = 0.01
REFERENCE_MHZ: Final = 1980.0
CALLS: Final = 200
#: Every kind of question; what is not there yet is an answer too.
PATHS: Final = (
    "/api/v1/status",
    "/api/v1/gpus",
    "/api/v1/gpus/3",
    "/api/v1/gpus/3/samples?points=100",
    "/api/v1/jobs",
    "/api/v1/steps",
    "/api/v1/traces",
    "/openapi.json",
)
#: `rate` extrapolates a series that begins in its range to no less than 0, each by its own slope:
#: ratios of rates are exact only where the agent is older than the range is long.
LEAST_AGE_S: Final = 23
SCRAPES: Final = """
  - job_name: every-second
    scrape_interval: 1s
    scrape_timeout: 1s
    static_configs: [{{targets: ["{address}"]}}]
  - job_name: every-15-seconds
    scrape_interval: 15s
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
        return mean_mhz(clock, _interval(begin_ns, end_ns)) * 1e6

    def gap_by_cause(self, gpu: int, begin_ns: int, end_ns: int) -> dict[str, float]:
        """Ceiling loss over time busy, by cause."""
        busy = self._busy(gpu, begin_ns, end_ns)
        lost = lost_by_cause_ns(joined_truth(self._tracks[gpu]), busy, REFERENCE_MHZ)
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


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningAgent]:
    """One agent for all tests here."""
    settings, folder = {"SAMPLING__HZ": HZ}, tmp_path_factory.mktemp("scraped")
    with agent_under(folder, now_spec(seed=3), settings) as running:
        yield running
        assert running.stop() == 0


def test_200_scrapes_and_200_calls_leave_threads_and_files_as_they_were(
    agent: RunningAgent,
) -> None:
    wait_for(lambda: sum(_up(agent)) == 8, "all GPUs")
    for path in PATHS:
        agent.text(path)
    before = settled(lambda: _held(agent))
    for number in range(CALLS):
        assert agent.scrape()
        assert agent.text(PATHS[number % len(PATHS)])
    wait_for(lambda: _held(agent) == before, "connections to close", 10)


def test_clock_and_gap_by_promql_are_the_simulations(agent: RunningAgent, tmp_path: Path) -> None:
    ready_s = agent.spec.start_unix_ns / 1e9 + LEAST_AGE_S
    time.sleep(max(0.0, ready_s - time.time()))
    with prometheus(tmp_path, SCRAPES.format(address=agent.metrics)) as server:
        wait_for(lambda: _has_scraped_twice(server), "two scrapes of the slow job", LONGEST_S)
        asked = Asked(server, time.time())
        truth = Truth(agent.spec, time.time_ns())
        for job in ("every-second", "every-15-seconds"):
            _clock_is_right(asked, job, truth)
            _gap_is_right(asked, job, truth)


def _has_scraped_twice(server: Prometheus) -> bool:
    expression = f'count_over_time(chopperd_gpu_up{{job="every-15-seconds"}}[{RANGE}])'
    counts = [each.value for each in server.query(expression, time.time())]
    return len(counts) == 8 and min(counts) >= 2


def _up(agent: RunningAgent) -> list[float]:
    return [value for name, value in agent.scrape().items() if name.startswith("chopperd_gpu_up[")]


def _held(agent: RunningAgent) -> tuple[list[tuple[str, int, int]], int]:
    """Threads and open files of the agent and of its children, by program; and how many."""
    held = []
    for pid in agent.chopperd.processes():
        process = Path("/proc") / str(pid)
        with suppress(OSError):  # it has ended since
            name = " ".join(process.joinpath("cmdline").read_text().split("\0")[1:4])
            held.append((name, _entries(process / "task"), _entries(process / "fd")))
    return sorted(held), len(held)


def _entries(folder: Path) -> int:
    return sum(1 for _ in folder.iterdir())


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

"""The whole agent in this process, with a real sampler process on the simulated back end."""

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chopperd.agent.service import Agent
from chopperd.config.load import load_config
from chopperd.errors import ConfigError
from chopperd.model.live import NodeSnapshot, SamplerCondition
from chopperd.simulation.presets import SimulationSpec
from tests.agent_http import Asked, ask
from tests.integration.processes import is_alive
from tests.waiting import wait_for

#: Deadlines of the product are asserted with this slack.
SLACK = 5
CYCLES = 'chopperd_gpu_sm_cycles_total{gpu="0"}'


class Running:
    """An agent in a thread.

    Args:
        folder: Where its state and sockets are.
        settings: Variables of its configuration, on top of those.
    """

    def __init__(self, folder: Path, *, backend: str | None = "simulated", **settings: str) -> None:
        self.runtime = Path(settings.get("CHOPPERD_PATHS__RUNTIME", folder / "run"))
        variables = {
            "CHOPPERD_PATHS__STATE": str(folder / "state"),
            "CHOPPERD_PATHS__RUNTIME": str(self.runtime),
            "CHOPPERD_METRICS__LISTEN": "127.0.0.1:0",
            "CHOPPERD_API__LISTEN": "127.0.0.1:0",
            **settings,
        }
        self._ready = threading.Event()
        simulation = SimulationSpec(start_unix_ns=time.time_ns()) if backend is None else None
        self.agent = Agent(
            load_config(None, variables),
            backend=backend,
            simulation=simulation,
            on_ready=lambda _agent: self._ready.set(),
        )
        self.statuses: list[int] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        self.statuses.append(self.agent.run())

    def ready(self) -> "Running":
        assert self._ready.wait(60)
        return self

    def sampling(self) -> "Running":
        self.ready()
        wait_for(lambda: self.snapshot.backend_up, "a fresh GPU")
        return self

    @property
    def snapshot(self) -> NodeSnapshot:
        return self.agent.snapshot()

    def ask(self, route: str, method: str = "GET") -> Asked:
        return ask(self.runtime / "api.sock", route, method)

    def cycles(self) -> float:
        return self.ask("/metrics").metric(CYCLES) or 0.0

    def has_left_nothing(self) -> bool:
        return not self.agent._sampling.live().abandoned_pids

    def stop(self) -> float:
        """End it; how long that took, in s."""
        start = time.monotonic()
        self.agent.stop()
        self._thread.join(60)
        assert not self._thread.is_alive()
        return time.monotonic() - start


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """Starts agents; afterwards all have ended, in time and with status 0."""
    started: list[Running] = []

    def start(**settings: str | None) -> Running:
        started.append(Running(tmp_path, **settings))  # type: ignore[arg-type]
        return started[-1]

    yield start
    for running in started:
        assert running.stop() < 2.0 * SLACK
        assert running.statuses == [0]
        wait_for(running.has_left_nothing, "the sampler's end", 2.0 * SLACK)


def test_an_agent_samples_serves_and_says_where(run: Callable[..., Running]) -> None:
    running = run(CHOPPERD_NODE__NAME="gpu-17").sampling()
    assert running.snapshot.node == "gpu-17"
    wait_for(lambda: sum(gpu.up for gpu in running.snapshot.gpus) == 8, "all GPUs")
    assert running.snapshot.sampler.condition is SamplerCondition.RUNNING
    assert running.ask("/healthz").status == running.ask("/readyz").status == 200
    metrics = running.ask("/metrics")
    assert metrics.metric('chopperd_gpu_up{gpu="7"}') == 1
    assert metrics.metric('chopperd_agent_backend_up{backend="simulated"}') == 1
    wait_for(lambda: running.cycles() > 0, "integrals")
    wait_for(lambda: running.snapshot.archive.bytes > 0, "the flight recorder")
    addresses = running.agent.addresses
    assert addresses.metrics is not None
    assert addresses.metrics[1] > 0
    processes = running.ask("/api/v1/status").json["processes"]
    assert processes["agent"]["cpu_s"] > 0
    assert processes["sampler"]["resident_bytes"] > 0


def test_a_pause_file_stops_sampling_at_once_and_counters_go_on_after(
    run: Callable[..., Running],
) -> None:
    running = run().sampling()
    wait_for(lambda: running.cycles() > 0, "integrals")
    pid = running.snapshot.sampler.pid
    assert pid is not None
    (running.runtime / "pause").write_text("reason=benchmark")
    wait_for(lambda: not is_alive(pid), "the sampler's end", within_s=1.0 * SLACK)
    wait_for(lambda: said_to_be_paused(running.snapshot), "its being said")
    paused = running.snapshot.pause
    assert paused is not None
    assert paused.reason == "benchmark"
    assert running.ask("/healthz").status == 200
    before = running.cycles()
    (running.runtime / "pause").unlink()
    runs = SamplerCondition.RUNNING
    wait_for(lambda: running.snapshot.sampler.condition is runs, "the going on")
    resumed = running.cycles()
    assert resumed >= before
    wait_for(lambda: running.cycles() > resumed, "more integrals")
    assert running.snapshot.sampler.restart_count == 0


def said_to_be_paused(snapshot: NodeSnapshot) -> bool:
    """Whether a snapshot was taken when the sampler had ended, and no process was left alone."""
    sampler = snapshot.sampler
    return sampler.condition is SamplerCondition.PAUSED and not sampler.abandoned_pids


def test_a_pause_by_request_starts_nothing_until_it_is_over(run: Callable[..., Running]) -> None:
    running = run().sampling()
    pid = running.snapshot.sampler.pid
    assert pid is not None
    assert running.ask("/api/v1/pause?for=3&reason=nccl", "POST").status == 200
    wait_for(lambda: not is_alive(pid), "the sampler's end", within_s=1.0 * SLACK)
    wait_for(lambda: running.snapshot.sampler.pid is None, "its being said")
    wait_for(lambda: running.snapshot.sampler.pid is not None, "the end of the pause")
    assert not (running.runtime / "pause").exists()
    wait_for(lambda: running.snapshot.backend_up, "fresh GPUs")


def test_an_agent_that_starts_paused_does_not_sample(
    run: Callable[..., Running], tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "pause").touch()
    running = run().ready()
    wait_for(lambda: running.snapshot.pause is not None, "its being said")
    assert running.snapshot.sampler.condition is SamplerCondition.PAUSED
    assert running.snapshot.sampler.pid is None
    assert running.ask("/readyz").status == 503


def test_without_a_usable_back_end_the_agent_runs_and_says_why(run: Callable[..., Running]) -> None:
    running = run(backend="replay").ready()
    unavailable = SamplerCondition.UNAVAILABLE
    wait_for(lambda: running.snapshot.sampler.condition is unavailable, "the failure")
    reason = running.snapshot.sampler.reason
    assert reason is not None
    assert "replay" in reason
    assert not running.snapshot.backend_up
    assert running.ask("/healthz").status == 200
    assert running.ask("/readyz").status == 503
    metrics = running.ask("/metrics")
    assert metrics.metric('chopperd_agent_backend_up{backend="replay"}') == 0


def test_without_any_gpu_the_log_names_the_simulated_back_end(
    run: Callable[..., Running], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="chopperd.agent.service"):
        running = run(backend="auto").ready()
        unavailable = SamplerCondition.UNAVAILABLE
        wait_for(lambda: running.snapshot.sampler.condition is unavailable, "the failure")
        wait_for(lambda: "`chopperd run --backend simulated`" in caplog.text, "the hint")


def test_a_back_end_that_does_not_exist_is_an_error_of_the_configuration(tmp_path: Path) -> None:
    variables = {
        "CHOPPERD_PATHS__STATE": str(tmp_path / "state"),
        "CHOPPERD_PATHS__RUNTIME": str(tmp_path / "run"),
        "CHOPPERD_METRICS__LISTEN": "",
        "CHOPPERD_API__LISTEN": "",
    }
    with pytest.raises(ConfigError, match="backend 'nvlm' is not known"):
        Agent(load_config(None, variables), backend="nvlm").run()
    assert not (tmp_path / "run" / "api.sock").exists()


def test_a_second_agent_on_the_same_state_is_refused(
    run: Callable[..., Running], tmp_path: Path
) -> None:
    run().ready()
    variables = {
        "CHOPPERD_PATHS__STATE": str(tmp_path / "state"),
        "CHOPPERD_PATHS__RUNTIME": str(tmp_path / "other"),
    }
    with pytest.raises(ConfigError, match=rf"another agent \(pid {os.getpid()}\)"):
        Agent(load_config(None, variables), backend="simulated").run()


def test_where_nothing_can_be_written_the_agent_samples_and_says_so(
    run: Callable[..., Running], tmp_path: Path
) -> None:
    (tmp_path / "state").write_text("in the way")
    running = run(CHOPPERD_PATHS__RUNTIME=str(tmp_path / "state" / "run")).sampling()
    for part in ("archive", "store", "analysis"):
        wait_for(lambda: getattr(running.snapshot, part).trouble, f"{part} to be said")  # noqa: B023
    assert running.agent.addresses.api_socket is None
    assert running.agent.addresses.metrics is not None


def test_a_part_that_does_not_start_is_said_and_leaves_the_others(
    run: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_arguments: object, **_named: object) -> None:
        raise ImportError("no module named pipeline")

    monkeypatch.setattr("chopperd.ingest.service.new_ingest", broken)
    running = run().sampling()
    wait_for(lambda: running.snapshot.analysis.trouble is not None, "its being said")
    trouble = running.snapshot.analysis.trouble
    assert trouble is not None
    assert "no module named pipeline" in trouble
    assert running.ask("/metrics").status == running.ask("/healthz").status == 200
    assert running.ask("/api/v1/status").json["analysis"]["trouble"] == trouble
    assert running.ask("/api/v1/traces", "POST").status == 503
    started = 'chopperd_agent_faults_total{part="start"}'
    wait_for(lambda: running.ask("/metrics").metric(started) == 1, "its being counted")


def test_a_request_that_fails_by_a_fault_of_ours_is_counted(
    run: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_arguments: object) -> None:
        raise LookupError("a defect")

    monkeypatch.setattr("chopperd.store.captures.capture_store.CaptureStore.jobs", broken)
    running = run().ready()
    failed = 'chopperd_agent_faults_total{part="request"}'
    wait_for(lambda: running.ask("/metrics").metric(failed) == 0, "nothing to be counted")
    assert running.ask("/api/v1/jobs").status == 500
    wait_for(lambda: running.ask("/metrics").metric(failed) == 1, "its being counted")


def test_without_a_store_the_agent_serves_all_that_needs_none(
    run: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where Python was built without SQLite."""
    monkeypatch.setitem(sys.modules, "chopperd.agent.storage", None)
    running = run().sampling()
    assert running.ask("/readyz").status == 200
    assert running.cycles() >= 0
    wait_for(
        lambda: running.ask("/metrics").metric('chopperd_agent_trouble{part="store"}') == 1,
        "its being said",
    )
    status = running.ask("/api/v1/status").json
    assert "chopperd.agent.storage" in status["store"]["trouble"]
    assert running.ask("/api/v1/gpus/0").status == 200
    for route in ("steps", "jobs", "traces", "drops", "report/latest"):
        refused = running.ask(f"/api/v1/{route}")
        assert refused.status == 503, route
        assert "chopperd.agent.storage" in refused.json["detail"]
    assert running.ask("/api/v1/traces", "POST").status == 503


def test_a_killed_sampler_is_replaced_and_counters_go_on(run: Callable[..., Running]) -> None:
    running = run(backend=None).sampling()
    wait_for(lambda: running.cycles() > 0, "integrals")
    before, pid = running.cycles(), running.snapshot.sampler.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: running.snapshot.sampler.pid not in {None, pid}, "a successor", 1.0 * SLACK)
    wait_for(lambda: running.cycles() > before, "more integrals")
    assert running.snapshot.sampler.restart_count == 1


def test_an_agent_can_be_stopped_while_it_starts(run: Callable[..., Running]) -> None:
    running = run()
    wait_for(lambda: running.agent._snapshots is not None, "a snapshot")
    assert running.stop() < 2.0 * SLACK

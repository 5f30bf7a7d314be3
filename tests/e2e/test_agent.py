"""`chopperd run` as a process: how it starts, how it is told to end, and what it leaves."""

import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.agent_http import Asked, ask
from tests.e2e.running import SLACK, Chopperd
from tests.fakes.nvml.fixtures import SCENARIO_VARIABLE
from tests.fakes.nvml.scenario import TIMEOUT, Scenario
from tests.waiting import wait_for

END_S = 2.0 * SLACK


@dataclass(frozen=True)
class AgentProcess:
    """An agent that was started.

    Attributes:
        chopperd: The program, with its folders.
        process: The agent; its log is standard error.
    """

    chopperd: Chopperd
    process: "subprocess.Popen[str]"

    def ask(self, route: str) -> Asked:
        return ask(self.chopperd.folder / "run" / "api.sock", route)

    def is_sampling(self) -> bool:
        try:
            return self.ask("/readyz").status == 200
        except OSError:
            return False

    def status(self) -> int:
        """The exit status, once it has ended; fails where that takes too long."""
        return self.process.wait(timeout=END_S)

    def ended(self) -> tuple[int, str]:
        """Status and log, once it and all that it started has ended."""
        status = self.status()
        _, log = self.process.communicate(timeout=60)
        return status, log


Start = Callable[..., AgentProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts agents that keep to a folder of their own; nothing may be left of any."""
    started: list[AgentProcess] = []

    def begin(*arguments: str, wait: bool = True, **environment: str) -> AgentProcess:
        chopperd = Chopperd.under(tmp_path, environment)
        chopperd.environment.update(
            CHOPPERD_PATHS__STATE=str(chopperd.folder / "state"),
            CHOPPERD_PATHS__RUNTIME=str(chopperd.folder / "run"),
            CHOPPERD_METRICS__LISTEN=environment.get("CHOPPERD_METRICS__LISTEN", ""),
            CHOPPERD_API__LISTEN="",
        )
        agent = AgentProcess(chopperd, chopperd.start("run", *arguments))
        started.append(agent)
        if wait:
            wait_for(agent.is_sampling, "a fresh sample")
        return agent

    yield begin
    for agent in started:
        if agent.process.poll() is None:
            agent.process.send_signal(signal.SIGTERM)
        agent.ended()
    for agent in started:
        agent.chopperd.nothing_left(within_s=2 * SLACK)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_each_signal_that_asks_for_an_end_is_heeded(start: Start, number: signal.Signals) -> None:
    agent = start("--backend", "simulated")
    agent.process.send_signal(number)
    status, log = agent.ended()
    assert status == 0, log
    assert "chopperd ends" in log
    assert not (agent.chopperd.folder / "run" / "api.sock").exists()


def test_it_is_told_to_end_before_it_has_begun(start: Start) -> None:
    """At any moment from when its own code runs."""
    for delay_s in (0.0, 0.05, 0.1, 0.2, 0.4):
        agent = start("--backend", "simulated", wait=False)
        wait_for(lambda: _heeds(agent.process.pid, signal.SIGTERM), "its own code")  # noqa: B023
        time.sleep(delay_s)
        agent.process.send_signal(signal.SIGTERM)
        status, log = agent.ended()
        assert status == 0, log
        assert "Traceback" not in log


def _heeds(pid: int, number: signal.Signals) -> bool:
    """Whether a process has a handler for a signal."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (caught,) = (line.split()[1] for line in lines if line.startswith("SigCgt:"))
    return bool(int(caught, 16) >> (number - 1) & 1)


def test_it_ends_with_status_0_also_while_a_client_listens(start: Start) -> None:
    agent = start("--backend", "simulated")
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(agent.chopperd.folder / "run" / "api.sock"))
        client.sendall(b"GET /api/v1/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert client.recv(1024).startswith(b"HTTP/1.1 200")
        agent.process.send_signal(signal.SIGTERM)
        status, log = agent.ended()
    assert status == 0, log
    assert not (agent.chopperd.folder / "run" / "api.sock").exists()
    assert f"paths.state = '{agent.chopperd.folder}/state' (CHOPPERD_PATHS__STATE)" in log
    assert "sampling.hz = 10.0 (default)" in log
    assert "sampling running" in log
    assert "0: NVIDIA H100 80GB HBM3" in log
    assert "chopperd ends" in log
    assert "ERROR" not in log


def test_an_interrupt_ends_it_while_it_starts(start: Start) -> None:
    agent = start("--backend", "simulated", wait=False)
    wait_for(agent.chopperd.samplers, "the sampler")
    agent.process.send_signal(signal.SIGINT)
    status, log = agent.ended()
    assert status == 0, log


def test_killed_it_leaves_nothing_and_the_next_samples_soon(start: Start) -> None:
    agent = start("--backend", "simulated")
    agent.process.kill()
    assert agent.ended()[0] == -signal.SIGKILL
    agent.chopperd.nothing_left(within_s=END_S)
    begin_ns = time.time_ns()
    again = start("--backend", "simulated")
    oldest_ns = again.ask("/api/v1/status").json["started_unix_ns"]
    assert oldest_ns - begin_ns < 1e9 * SLACK
    samples = again.ask("/api/v1/gpus/0").json
    assert samples["last_sample_unix_ns"] > begin_ns


def test_a_driver_that_hangs_is_left_alone_at_the_end_and_named(
    start: Start, nvml_library: Callable[[], Path], tmp_path: Path
) -> None:
    scenario = Scenario(tmp_path / "scenario.bin", 1)
    agent = start(
        "--backend",
        "nvml",
        LD_LIBRARY_PATH=str(nvml_library().parent),
        **{SCENARIO_VARIABLE: str(scenario.path)},
    )
    (sampler,) = agent.chopperd.samplers()
    scenario.gpus[0].fails(TIMEOUT, "nvmlDeviceGetClockInfo", delay_ms=60_000)
    before = scenario.gpus[0].calls_of("nvmlDeviceGetClockInfo")
    wait_for(lambda: scenario.gpus[0].calls_of("nvmlDeviceGetClockInfo") > before, "the call")
    agent.process.send_signal(signal.SIGTERM)
    assert agent.status() == 0
    assert agent.chopperd.samplers() == [sampler]  # not killed: it ends with the call
    scenario.gpus[0].fails(TIMEOUT, "nvmlDeviceGetClockInfo")
    assert f"sampler process {sampler} is still in a driver call" in agent.ended()[1]


def test_the_service_manager_is_told(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "notify"
    messages: list[str] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(path))
        manager.settimeout(60)

        def receive() -> None:
            while not messages or messages[-1] != "STOPPING=1":
                messages.append(manager.recv(4096).decode())

        receiver = threading.Thread(target=receive)
        receiver.start()
        agent = start("--backend", "simulated", NOTIFY_SOCKET=str(path), WATCHDOG_USEC="400000")
        wait_for(lambda: messages.count("WATCHDOG=1") > 2, "signs of life")
        wait_for(lambda: "READY=1" in messages, "its readiness")
        wait_for(lambda: any("8 of 8 GPUs up" in each for each in messages), "how it stands")
        agent.process.send_signal(signal.SIGTERM)
        assert agent.ended()[0] == 0
        receiver.join()
    assert messages.count("READY=1") == 1
    assert messages.index("EXTEND_TIMEOUT_USEC=30000000") < messages.index("READY=1")


def test_a_port_in_use_is_told_before_anything_starts(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        where = f"127.0.0.1:{server.getsockname()[1]}"
        agent = start(wait=False, CHOPPERD_METRICS__LISTEN=where)
        status, log = agent.ended()
    assert status == 2
    (line,) = log.splitlines()
    assert line.startswith("chopperd: metrics.listen")
    assert "another program listens there already" in line


def test_a_second_agent_is_told_whose_the_folder_is(start: Start) -> None:
    first = start("--backend", "simulated")
    status, log = start("--backend", "simulated", wait=False).ended()
    assert status == 2
    assert f"pid {first.process.pid}" in log


def test_help_shows_it(start: Start) -> None:
    agent = start("--help", wait=False)
    assert agent.status() == 0
    assert agent.process.stdout is not None
    assert "--backend" in agent.process.stdout.read()

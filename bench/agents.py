"""A whole agent as the benchmarks run it: `chopperd run` over eight GPUs of the fake driver.

Its state lies in a folder of its own, and nothing of it is left when a benchmark is done with it.
"""

import http.client
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import msgspec

from bench.processes import ROOT
from chopperd.api.models import Traces
from chopperd.clock import SystemClock
from chopperd.model.captures import TraceEntry, TraceState
from chopperd.sampling.memory.ring_reader import RingReader
from chopperd.simulation.node import SimulatedNode
from chopperd.simulation.presets import SimulationSpec
from chopperd.units import NS_PER_MS, NS_PER_S
from tests.agent_http import Asked, ask
from tests.fakes.nvml.build import BuildUnavailableError, build
from tests.fakes.nvml.fixtures import SCENARIO_VARIABLE
from tests.fakes.nvml.scenario import Scenario, Segment
from tests.ports import free_port

GPUS: Final = 8
JOB: Final = "bench"
CLOCK: Final = SystemClock()
_DEADLINE_S: Final = 120.0
_UNDONE: Final = frozenset({TraceState.QUEUED})


class NotInTimeError(Exception):
    """Something did not happen within the time that any machine would need for it."""


def wait_until(
    what: str, condition: Callable[[], object], *, within_s: float = _DEADLINE_S, every_ms: int = 50
) -> None:
    """Return once the condition holds; it is looked at so often that looking costs little.

    Raises:
        NotInTimeError: It does not in time.
    """
    until_ns = CLOCK.mono_ns() + round(within_s * NS_PER_S)
    while not condition():
        if CLOCK.mono_ns() > until_ns:
            raise NotInTimeError(f"waited {within_s:g} s in vain: {what}")
        CLOCK.sleep_until(CLOCK.mono_ns() + every_ms * NS_PER_MS)


def print_report(made: Callable[[], str]) -> None:
    """Print what was measured, or why nothing can be."""
    try:
        print(made())
    except BuildUnavailableError as error:
        print(f"Skipped: the fake driver can't be built: {error}.")


def idle(seconds: float) -> None:
    """Do nothing for a while."""
    CLOCK.sleep_until(CLOCK.mono_ns() + round(seconds * NS_PER_S))


@dataclass(slots=True, kw_only=True)
class BenchAgent:
    """An agent; `start` again after its end goes on with the same state.

    Attributes:
        folder: Holds `state` and `run`.
        scenario: What the driver answers; change it at any time.
        node: A simulated job on GPUs of the same UUIDs, to make traces of.
        environment: Of the process.
        metrics_port: Where it is scraped.
    """

    folder: Path
    scenario: Scenario
    node: SimulatedNode
    environment: Mapping[str, str]
    metrics_port: int
    _processes: "list[subprocess.Popen[bytes]]" = field(default_factory=list)

    @property
    def pid(self) -> int:
        """The agent's process."""
        return self._processes[-1].pid

    @property
    def socket(self) -> Path:
        """Where its API answers."""
        return self.folder / "run" / "api.sock"

    @property
    def inbox(self) -> Path:
        """Where its job drops traces."""
        return self.folder / "state" / "inbox" / JOB

    def start(self) -> None:
        """Start it; does not wait for anything."""
        command = [sys.executable, "-P", "-m", "chopperd", "run", "--backend", "nvml"]
        log = (self.folder / "log").open("ab")
        with log:
            self._processes.append(
                subprocess.Popen(
                    command,
                    cwd=self.folder,
                    env=self.environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )

    def kill(self) -> None:
        """End it at once, as a crash would."""
        self._processes[-1].kill()
        self._processes[-1].wait()

    def stop(self) -> None:
        """Tell it to end, and wait for that."""
        process = self._processes[-1]
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(_DEADLINE_S)

    def ask(self, route: str) -> Asked | None:
        """What it answers; None while it does not serve."""
        try:
            return ask(self.socket, route)
        except (OSError, http.client.HTTPException):
            return None

    def status(self) -> dict[str, Any]:
        """What it says of itself."""
        answer = ask(self.socket, "/api/v1/status")
        status: dict[str, Any] = answer.json
        return status

    def is_good(self) -> bool:
        """Whether a scrape shows that every GPU is up."""
        answer = self.ask("/metrics")
        if answer is None or answer.status != 200:
            return False
        return all(answer.metric(f'chopperd_gpu_up{{gpu="{gpu}"}}') == 1 for gpu in range(GPUS))

    def sampler_pid(self) -> int:
        """The sampler's process."""
        return int(self.status()["sampler"]["pid"])

    def worker_pid(self) -> int | None:
        """The analysis worker's process; None while there is none."""
        pid: int | None = self.status()["analysis"]["worker_pid"]
        return pid

    def traces(self) -> tuple[TraceEntry, ...]:
        """The newest traces that it knows."""
        text = ask(self.socket, "/api/v1/traces?limit=500").text
        return msgspec.json.decode(text, type=Traces).traces

    def finished_count(self) -> int:
        """Traces whose state is final."""
        return sum(trace.state not in _UNDONE for trace in self.traces())

    @contextmanager
    def ring(self) -> Iterator[RingReader]:
        """Its samples as they are made, read beside it from the sampler's own memory.

        Source: proc(5), `/proc/PID/fd`; the name of a memfd is in its link.
        """
        folder = Path(f"/proc/{self.sampler_pid()}/fd")
        files = [entry for entry in folder.iterdir() if "memfd:chopperd" in str(entry.readlink())]
        fd = os.open(files[0], os.O_RDONLY)
        try:
            reader = RingReader(fd)
            yield reader
            reader.close()
        finally:
            os.close(fd)


@contextmanager
def agent(**settings: str) -> Iterator[BenchAgent]:
    """An agent that was not started yet; at the end it is stopped and its folder gone.

    Args:
        settings: Variables of its configuration, by name without `CHOPPERD_`.

    Raises:
        BuildUnavailableError: The fake driver can't be compiled here.
    """
    with TemporaryDirectory(prefix="chopperd-bench-") as name:
        folder = Path(name)
        library = build(folder)
        node = SimulatedNode(SimulationSpec(start_unix_ns=CLOCK.unix_ns() - 60 * NS_PER_S))
        scenario = _scenario(folder / "scenario.bin", node)
        port = free_port()
        own = {
            "PATHS__STATE": str(folder / "state"),
            "PATHS__RUNTIME": str(folder / "run"),
            "METRICS__LISTEN": f"127.0.0.1:{port}",
            "API__LISTEN": "",
            "INGEST__SETTLE_S": "0.5",
            **settings,
        }
        made = BenchAgent(
            folder=folder,
            scenario=scenario,
            node=node,
            metrics_port=port,
            environment={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "LD_LIBRARY_PATH": str(library.parent),
                SCENARIO_VARIABLE: str(scenario.path),
                **{f"CHOPPERD_{key}": text for key, text in own.items()},
            },
        )
        try:
            yield made
        finally:
            made.stop()
            wait_until("its processes to end", lambda: not processes_in(folder))


@contextmanager
def good_agent(**settings: str) -> Iterator[BenchAgent]:
    """An agent that samples and serves."""
    with agent(**settings) as started:
        started.start()
        wait_until("a good scrape", started.is_good)
        yield started


def _scenario(path: Path, node: SimulatedNode) -> Scenario:
    """Eight GPUs that are now at full clock, now at their power limit, as a job's are."""
    scenario = Scenario(path, GPUS)
    for played, gpu in zip(scenario.gpus, node.gpus, strict=True):
        played.uuid = (gpu.uuid or "").encode()
        played.plays(
            Segment(length_ns=80 * NS_PER_MS, sm_clock_mhz=1755, reasons=4),
            Segment(length_ns=30 * NS_PER_MS, sm_clock_mhz=1980, power_mw=300_000),
            repeats=True,
        )
    return scenario


def processes_in(folder: Path) -> list[int]:
    """Living processes that were started with a folder's scenario, directly or not."""
    mark = f"{SCENARIO_VARIABLE}={folder}/".encode()
    return [pid for pid in _pids() if mark in _environment(pid)]


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]


def _environment(pid: int) -> bytes:
    """The environment of a living process; nothing of one that is gone, or not ours."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def kernel_kib(pid: int, file: str, name: str) -> int:
    """A figure in KiB of `smaps_rollup` ("Pss") or `status` ("VmHWM") of a process.

    Source: proc(5); both files write kB and mean 1024 bytes.
    """
    for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0])
    raise RuntimeError(f"/proc/{pid}/{file} has no {name}")


def pss_mib(pid: int) -> float:
    """Memory of a process, that shared with others divided among them."""
    return kernel_kib(pid, "smaps_rollup", "Pss") / 1024

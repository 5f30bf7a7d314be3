"""A whole agent as a process, with a state folder of its own, and what it answers."""

import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from chopperd.api.models import Steps, Traces
from chopperd.model.captures import TraceEntry
from chopperd.model.report import ReportDocument
from chopperd.model.report_rows import Row
from chopperd.simulation.presets import SimulationSpec
from tests.agent_http import ask
from tests.e2e.running import PYTHON, Chopperd
from tests.fakes.nvml.fixtures import SCENARIO_VARIABLE
from tests.waiting import wait_for

_START_S: Final = 30.0
Answer = TypeVar("Answer")


@dataclass(slots=True)
class RunningAgent:
    """An agent that was started; `start` again after its end goes on with the same state.

    Attributes:
        chopperd: Folder and environment.
        simulation: What it simulates; None where it reads the driver of its environment.
        process: The agent; None before the first start.
        metrics: Address ("127.0.0.1:9469").
        socket: Of the API, which knows who asks.
    """

    chopperd: Chopperd
    simulation: SimulationSpec | None
    process: "subprocess.Popen[bytes] | None" = None
    metrics: str = ""
    socket: Path = Path()
    logs: list[Path] = field(default_factory=list)

    @property
    def pid(self) -> int:
        """The agent's process."""
        assert self.process is not None
        return self.process.pid

    @property
    def spec(self) -> SimulationSpec:
        """What it simulates."""
        assert self.simulation is not None
        return self.simulation

    @property
    def state(self) -> Path:
        """The state folder."""
        return Path(self.chopperd.environment["CHOPPERD_PATHS__STATE"])

    def start(self) -> None:
        """Start it and wait until it serves."""
        addresses = self.chopperd.folder / "addresses"
        addresses.unlink(missing_ok=True)
        log = self.chopperd.folder / f"agent-{len(self.logs)}.log"
        self.logs.append(log)
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                (
                    *self.chopperd.wrapper,
                    PYTHON,
                    "-m",
                    "tests.e2e.simulated_agent",
                    *self._arguments(),
                ),
                cwd=self.chopperd.folder,
                env={**self.chopperd.environment, "PYTHONPATH": str(Path(__file__).parents[2])},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        wait_for(addresses.exists, f"the agent to serve ({log})", _START_S)
        self.metrics, socket = addresses.read_text().splitlines()
        self.socket = Path(socket)

    def _arguments(self) -> tuple[str, ...]:
        return () if self.simulation is None else (self.simulation.to_json(),)

    def health(self) -> int:
        """What `/healthz` answers."""
        try:
            with urllib.request.urlopen(f"http://{self.metrics}/healthz", timeout=10) as response:
                status: int = response.status
                return status
        except urllib.error.HTTPError as error:
            return error.code

    def log(self) -> str:
        """All that it and its sampler have said."""
        return "".join(log.read_text() for log in self.logs)

    def kill(self) -> None:
        """End it at once, as a crash would."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """Ask it to end; its exit status."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(30)

    def text(self, path: str, accept: str = "*/*") -> str:
        """What the API answers."""
        answer = ask(self.socket, path, accept=accept)
        assert answer.status == 200, answer
        return answer.text

    def get(self, path: str, kind: type[Answer]) -> Answer:
        """What the API answers, decoded."""
        return msgspec.json.decode(self.text(path), type=kind)

    def steps(self, parameters: str = "") -> list[Row]:
        """All stored step rows that match."""
        rows: list[Row] = []
        cursor = ""
        while True:
            page = self.get(f"/api/v1/steps?limit=500{parameters}{cursor}", Steps)
            rows.extend(page.steps)
            if page.cursor is None:
                return rows
            cursor = f"&cursor={page.cursor}"

    def traces(self) -> tuple[TraceEntry, ...]:
        """Traces that it knows."""
        return self.get("/api/v1/traces", Traces).traces

    def latest(self, job: str) -> ReportDocument | None:
        """The report on a job's newest capture; None while there is none."""
        answer = ask(self.socket, f"/api/v1/report/latest?job={job}")
        if answer.status == 404:
            return None
        assert answer.status == 200, answer
        return msgspec.json.decode(answer.text, type=ReportDocument)

    def scrape(self) -> dict[str, float]:
        """Its metrics now, by name and labels; empty while it has none."""
        try:
            with urllib.request.urlopen(f"http://{self.metrics}/metrics", timeout=10) as response:
                text = response.read().decode()
        except urllib.error.HTTPError as error:
            if error.code == 503:
                return {}
            raise
        return {
            f"{sample.name}{sorted(sample.labels.items())}": sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def drop(self, job: str, name: str, content: bytes) -> None:
        """Put a trace into the inbox as a job does: written beside, then renamed."""
        folder = self.state / "inbox" / job
        folder.mkdir(exist_ok=True)
        part = folder / f".{name}.part"
        part.write_bytes(content)
        part.rename(folder / name)


@contextmanager
def agent_under(
    folder: Path,
    spec: SimulationSpec | None,
    settings: dict[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    wrapper: tuple[str, ...] = (),
) -> Iterator[RunningAgent]:
    """An agent that serves; afterwards it has ended, and nothing of it is left.

    Args:
        folder: For its state and its output.
        spec: What it simulates; None: it reads a driver, NVIDIA's unless the settings say which.
        settings: Variables of its configuration, by name without `CHOPPERD_`.
        environment: Other variables: where the driver is (`nvml_environment`).
        wrapper: What it is started by.
    """
    own = {
        "PATHS__STATE": str(folder / "state"),
        "PATHS__RUNTIME": str(folder / "run"),
        "METRICS__LISTEN": "127.0.0.1:0",
        "API__LISTEN": "127.0.0.1:0",
        "INGEST__SETTLE_S": "0.2",
        **(settings or {}),
    }
    if spec is None:
        own.setdefault("SAMPLING__BACKEND", "nvml")
    variables = {f"CHOPPERD_{key}": text for key, text in own.items()}
    program = Chopperd.under(folder, {**(environment or {}), **variables})
    program = replace(program, wrapper=wrapper)
    agent = RunningAgent(program, spec)
    agent.start()
    try:
        yield agent
    finally:
        if agent.process is not None and agent.process.poll() is None:
            agent.process.terminate()
            agent.process.wait(30)
        program.nothing_left(within_s=10)


def nvml_environment(library: Path, scenario: Path) -> dict[str, str]:
    """Variables by which a process finds a fake NVIDIA driver.

    A busy machine makes driver calls look long; the rate is not to fall for that.
    """
    return {
        "LD_LIBRARY_PATH": str(library.parent),
        SCENARIO_VARIABLE: str(scenario),
        "CHOPPERD_SAMPLING__DRIVER_BUDGET_RATIO": "0.5",
    }


def now_spec(seed: int = 0, preset: str = "fsdp2-h100") -> SimulationSpec:
    """A simulation that starts now."""
    return SimulationSpec(seed=seed, preset=preset, start_unix_ns=time.time_ns())

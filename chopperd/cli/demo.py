"""Simulated job of `chopperd demo`, in a thread next to the agent."""

import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from secrets import token_urlsafe
from socket import socket
from typing import Final

from msgspec.structs import replace

from chopperd.client.agent import AgentClient
from chopperd.clock import SystemClock
from chopperd.config.sections import Config, PathsConfig
from chopperd.errors import ChopperdError
from chopperd.model.captures import TraceState
from chopperd.model.report import ReportDocument
from chopperd.simulation.kineto import rank_trace
from chopperd.simulation.node import SimulatedNode
from chopperd.simulation.presets import Brake, SimulationSpec
from chopperd.store.disk import PRIVATE
from chopperd.units import NS_PER_S

#: The inbox ignores files with this suffix.
_UNFINISHED: Final = ".part"


def write_traces(
    node: SimulatedNode, begin_unix_ns: int, end_unix_ns: int, folder: Path, prefix: str = ""
) -> Iterator[Path]:
    """Write each rank's trace under a temporary name; yield its path, for `finish_trace`, by rank.

    A trace covers the steps that lie between the two times (at least one).
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in simulated_traces(node, begin_unix_ns, end_unix_ns):
        path = folder / f"{prefix}{name}{_UNFINISHED}"
        with path.open("wb") as file:
            file.writelines(content)
        yield path


def finish_trace(path: Path) -> Path:
    """Rename a file of `write_traces` to its final name; return that."""
    return path.rename(path.with_name(path.name.removesuffix(_UNFINISHED)))


def simulated_traces(
    node: SimulatedNode, begin_unix_ns: int, end_unix_ns: int
) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Yield name and content of each rank's trace, as `write_traces`."""
    first_step = node.step_at(begin_unix_ns) + 1
    last_step = max(node.step_at(end_unix_ns) - 1, first_step)
    for rank in range(len(node.gpus)):
        yield f"rank{rank}.pt.trace.json", rank_trace(node, rank, first_step, last_step)


JOB: Final = "demo"
_STATE: Final = "state"
_INBOX: Final = "inbox"
_TOKEN: Final = "token"
_SETTLE_S: Final = 0.3
_ASK_EVERY_S: Final = 0.1
_TIMEOUT_S: Final = 60.0
_CAPTURE_EVERY_S: Final = 30.0
#: In the second capture the power supply of this GPU slows it down, after this share of the capture
#: and at least so long before its end, as a drop must last for a second to be found.
_BRAKED_GPU: Final = 2
_BRAKED_FROM: Final = 0.4
_BRAKED_S: Final = 6.0
_LEAST_BRAKED_S: Final = 1.5
_PENDING: Final = frozenset({TraceState.QUEUED, TraceState.SPOOLED})


class _EndedError(Exception):
    """The agent is stopping, so the demonstration has to end."""


class Demonstration:
    """Runs a simulated job whose traces the agent analyses, and shows the first report.

    `config` is from `demo_config`; `seconds` the length of a capture; `stays`: whether captures
    continue after the first.
    """

    def __init__(
        self,
        spec: SimulationSpec,
        config: Config,
        show: Callable[[ReportDocument], None],
        *,
        seconds: float,
        stays: bool,
    ) -> None:
        self._spec, self._show, self._seconds, self._stays = spec, show, seconds, stays
        self._client = AgentClient.of(config)
        self._inbox = Path(config.paths.state or "") / _INBOX / JOB
        self._node = SimulatedNode(spec)
        self._clock = SystemClock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chopperd-demo")
        self._stop_agent: Callable[[], None] = lambda: None
        self._failure: Exception | None = None
        self.is_shown = False

    def start(self, stop_agent: Callable[[], None]) -> None:
        """Start the job next to a running agent; `stop_agent` is called when it is done."""
        self._stop_agent = stop_agent
        self._thread.start()

    def finish(self) -> None:
        """End the job and wait for its thread; raise the job's error if it failed."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            self._play()
        except _EndedError:
            pass
        except Exception as error:  # noqa: BLE001 - raised again by `finish`
            self._failure = error
        self._stop_agent()

    def _play(self) -> None:
        self._wait("all GPUs are sampled and their processes listed", self._are_sampled)
        self._capture(0)
        self._wait("its traces are analysed", self._are_analysed)
        self._show(self._client.report_latest(JOB))
        self.is_shown = True
        number = 1
        while self._stays:
            at_ns = self._spec.start_unix_ns + round(number * _CAPTURE_EVERY_S * NS_PER_S)
            self._pause((at_ns - self._clock.unix_ns()) / NS_PER_S)
            self._capture(number)
            number += 1

    def _capture(self, number: int) -> None:
        """Simulate the job for the length of a capture; its trace files are complete at the end."""
        begin_ns = self._clock.unix_ns()
        end_ns = begin_ns + round(self._seconds * NS_PER_S)
        paths = []
        for path in write_traces(self._node, begin_ns, end_ns, self._inbox, f"capture{number}-"):
            paths.append(path)
            self._pause(0.0)
        self._pause((end_ns - self._clock.unix_ns()) / NS_PER_S)
        for path in paths:
            finish_trace(path)

    def _are_sampled(self) -> bool:
        gpus = self._client.gpus().gpus
        are_listed = not self._spec.pids or all(gpu.processes for gpu in gpus)
        return len(gpus) == len(self._node.gpus) and all(gpu.up for gpu in gpus) and are_listed

    def _are_analysed(self) -> bool:
        """Whether the agent's report covers every rank; an error if a trace was not analysed."""
        traces = self._client.traces()
        for each in traces:
            if each.state not in {*_PENDING, TraceState.ANALYSED}:
                why = f"{each.name} was {each.state.value}: {each.reason or 'no reason known'}"
                raise ChopperdError(f"the agent could not analyse its own demo: {why}")
        if sum(each.state is TraceState.ANALYSED for each in traces) < len(self._node.gpus):
            return False
        return len(self._client.report_latest(JOB).traces) == len(self._node.gpus)

    def _wait(self, what: str, condition: Callable[[], bool]) -> None:
        limit_ns = self._clock.mono_ns() + round(_TIMEOUT_S * NS_PER_S)
        while not condition():
            if self._clock.mono_ns() > limit_ns:
                raise ChopperdError(f"waited {_TIMEOUT_S:.0f} s in vain until {what}")
            self._pause(_ASK_EVERY_S)

    def _pause(self, for_s: float) -> None:
        """Wait `for_s` seconds; raises `_EndedError` if the agent stops."""
        if self._ended.wait(max(for_s, 0.0)):
            raise _EndedError


def demo_spec(seed: int, preset: str, start_unix_ns: int, *, seconds: float) -> SimulationSpec:
    """Return the simulation, in which a GPU is slowed down for a while in the second capture."""
    from_s = _CAPTURE_EVERY_S + min(_BRAKED_FROM * seconds, seconds - _LEAST_BRAKED_S)
    begin_unix_ns = start_unix_ns + round(from_s * NS_PER_S)
    end_unix_ns = begin_unix_ns + round(_BRAKED_S * NS_PER_S)
    brake = Brake(gpu=_BRAKED_GPU, start_unix_ns=begin_unix_ns, end_unix_ns=end_unix_ns)
    return SimulationSpec(seed=seed, preset=preset, start_unix_ns=start_unix_ns, brake=brake)


@contextmanager
def job_processes(spec: SimulationSpec) -> Iterator[tuple[int, ...]]:
    """Start a waiting process a rank, with its GPU visible, that ends with us; give the pids."""
    node = SimulatedNode(spec)
    ranks = range(len(node.gpus) if node.program is not None else 0)
    is_cuda = node.program is not None and node.program.job.runtime == "cuda"
    name = "CUDA_VISIBLE_DEVICES" if is_cuda else "HIP_VISIBLE_DEVICES"
    lifeline_fd, held_fd = os.pipe()
    try:
        with ExitStack() as stack:
            pids = []
            for rank in ranks:
                process = subprocess.Popen(
                    ["cat"],
                    stdin=lifeline_fd,
                    stdout=subprocess.DEVNULL,
                    env={name: str(rank)},
                    process_group=0,
                )
                pids.append(stack.enter_context(process).pid)
            os.close(lifeline_fd)
            stack.callback(os.close, held_fd)
            yield tuple(pids)
    except FileNotFoundError as error:
        raise ChopperdError("the demo needs the program cat (coreutils)") from error


def demo_config(config: Config, folder: Path) -> Config:
    """Return the configuration of an agent with its own folder, which disturbs no other agent.

    Ports are as configured if they are free, else any.
    """
    return replace(
        config,
        paths=PathsConfig(state=str(folder / _STATE), runtime=str(folder)),
        sampling=replace(config.sampling, hz=config.sampling.record_hz),
        ingest=replace(config.ingest, settle_s=_SETTLE_S),
        analysis=replace(config.analysis, mode="here"),
        store=replace(config.store, min_free_ratio=0.0),
        metrics=replace(config.metrics, listen=_free(config.metrics.listen)),
        api=replace(config.api, listen=_free(config.api.listen), token_file=str(folder / _TOKEN)),
    )


def write_token(config: Config) -> str:
    """Write a new token for the demo's agent, and return it: its page shows the job with it."""
    token = token_urlsafe()
    path = config.api.token_file or ""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE), "w") as file:
        file.write(token)
    return token


def _free(listen: str) -> str:
    """Return the address, with port 0 (any free port) if its own port is in use."""
    address, _, port = listen.rpartition(":")
    if not port:
        return listen
    with socket() as probe:
        try:
            probe.bind((address, int(port)))
        except OSError:
            return f"{address}:0"
    return listen

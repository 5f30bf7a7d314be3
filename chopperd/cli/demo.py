"""The simulated job of `chopperd demo`, in a thread next to the agent."""

import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from socket import socket
from typing import Final

from chopperd.client.agent import AgentClient
from chopperd.clock import SystemClock
from chopperd.config.sections import Config, PathsConfig
from chopperd.errors import ChopperdError
from chopperd.model.captures import TraceEntry, TraceState
from chopperd.model.report import ReportDocument
from chopperd.pipeline.simulated import finish_trace, write_traces
from chopperd.simulation.node import SimulatedNode
from chopperd.simulation.presets import SimulationSpec
from chopperd.units import NS_PER_S

JOB: Final = "demo"
_STATE: Final = "state"
_INBOX: Final = "inbox"
_SETTLE_S: Final = 0.3
_ASK_EVERY_S: Final = 0.1
_PATIENCE_S: Final = 60.0
_CAPTURE_EVERY_S: Final = 30.0
_PENDING: Final = frozenset({TraceState.QUEUED, TraceState.SPOOLED})


class _EndedError(Exception):
    """The agent ends; nothing more is to be played."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """What is played.

    Attributes:
        spec: The simulation.
        seconds: Length of each capture.
        stays: Whether captures go on after the first.
    """

    spec: SimulationSpec
    seconds: float
    stays: bool


class Demonstration:
    """Has the simulated job traced, and the agent's report on it shown.

    Args:
        play: What is played.
        config: Of the agent, from `demo_config`.
        show: Shows the first report.
    """

    def __init__(self, play: Play, config: Config, show: Callable[[ReportDocument], None]) -> None:
        self._what, self._show = play, show
        self._client = AgentClient.of(config)
        self._inbox = Path(config.paths.state or "") / _INBOX / JOB
        self._node = SimulatedNode(play.spec)
        self._clock = SystemClock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chopperd-demo")
        self._stop_agent: Callable[[], None] = lambda: None
        self._failure: Exception | None = None
        self._is_shown = False

    @property
    def is_shown(self) -> bool:
        """Whether the report was shown."""
        return self._is_shown

    def start(self, stop_agent: Callable[[], None]) -> None:
        """Begin, beside an agent that serves.

        Args:
            stop_agent: Called when all is done.
        """
        self._stop_agent = stop_agent
        self._thread.start()

    def finish(self) -> None:
        """End; raises what went wrong."""
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
        self._show(self._report())
        self._is_shown = True
        number = 1
        while self._what.stays:
            self._pause(_CAPTURE_EVERY_S)
            self._capture(number)
            number += 1

    def _capture(self, number: int) -> None:
        """Let the job run for a while, and hand in its traces then, as a profiler does."""
        begin_ns = self._clock.unix_ns()
        end_ns = begin_ns + round(self._what.seconds * NS_PER_S)
        paths = []
        for path in write_traces(self._node, begin_ns, end_ns, self._inbox, f"capture{number}-"):
            paths.append(path)
            self._pause(0.0)
        self._pause((end_ns - self._clock.unix_ns()) / NS_PER_S)
        for path in paths:
            finish_trace(path)

    def _are_sampled(self) -> bool:
        gpus = self._client.gpus().gpus
        are_listed = not self._what.spec.pids or all(gpu.processes for gpu in gpus)
        return len(gpus) == len(self._node.gpus) and all(gpu.up for gpu in gpus) and are_listed

    def _are_analysed(self) -> bool:
        """Whether the report covers every rank.

        Raises:
            ChopperdError: A trace was refused.
        """
        traces = self._client.traces()
        refused = [each for each in traces if each.state not in {*_PENDING, TraceState.ANALYSED}]
        if refused:
            raise ChopperdError(f"the agent could not analyse its own demo: {_why(refused[0])}")
        if sum(each.state is TraceState.ANALYSED for each in traces) < len(self._node.gpus):
            return False
        return len(self._report().traces) == len(self._node.gpus)

    def _report(self) -> ReportDocument:
        return self._client.report_latest(JOB)

    def _wait(self, what: str, condition: Callable[[], bool]) -> None:
        limit_ns = self._clock.mono_ns() + round(_PATIENCE_S * NS_PER_S)
        while not condition():
            if self._clock.mono_ns() > limit_ns:
                raise ChopperdError(f"waited {_PATIENCE_S:.0f} s in vain until {what}")
            self._pause(_ASK_EVERY_S)

    def _pause(self, for_s: float) -> None:
        """Wait, and leave if the agent ends.

        Raises:
            _EndedError: It does.
        """
        if self._ended.wait(max(for_s, 0.0)):
            raise _EndedError


@contextmanager
def job_processes(spec: SimulationSpec) -> Iterator[tuple[int, ...]]:
    """A real process for each rank, which sees the rank's GPU alone; each does nothing but wait.

    They end with this process, however that ends.
    """
    node = SimulatedNode(spec)
    ranks = range(len(node.gpus) if node.program is not None else 0)
    is_cuda = node.program is not None and node.program.job.runtime == "cuda"
    name = "CUDA_VISIBLE_DEVICES" if is_cuda else "HIP_VISIBLE_DEVICES"
    lifeline_fd, held_fd = os.pipe()
    try:
        with ExitStack() as stack:
            processes = [
                stack.enter_context(
                    subprocess.Popen(
                        ["cat"],
                        stdin=lifeline_fd,
                        stdout=subprocess.DEVNULL,
                        env={name: str(rank)},
                        process_group=0,
                    )
                )
                for rank in ranks
            ]
            os.close(lifeline_fd)
            stack.callback(os.close, held_fd)
            yield tuple(process.pid for process in processes)
    except FileNotFoundError as error:
        raise ChopperdError("the demo needs the program cat (coreutils)") from error


def demo_config(config: Config, folder: Path) -> Config:
    """The configuration of an agent that keeps all it has in a folder, and hurts no other one.

    Ports are as configured where they are free, else any.
    """
    return replace(
        config,
        paths=PathsConfig(state=str(folder / _STATE), runtime=str(folder)),
        sampling=replace(config.sampling, hz=config.sampling.record_hz),
        ingest=replace(config.ingest, settle_s=_SETTLE_S),
        analysis=replace(config.analysis, mode="here"),
        store=replace(config.store, min_free_ratio=0.0),
        metrics=replace(config.metrics, listen=_free(config.metrics.listen)),
        api=replace(config.api, listen=_free(config.api.listen)),
    )


def _free(listen: str) -> str:
    """The address, with any port where its own is taken."""
    address, _, port = listen.rpartition(":")
    if not port:
        return listen
    with socket() as probe:
        try:
            probe.bind((address, int(port)))
        except OSError:
            return f"{address}:0"
    return listen


def _why(trace: TraceEntry) -> str:
    return f"{trace.name} was {trace.state.value}: {trace.reason or 'no reason known'}"

"""Sampling for a command line: the recorded program, its samples, and samples from files."""

import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import tzinfo
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final

from chopperd.cli.output import complain
from chopperd.clock import SystemClock
from chopperd.config.paths import RECORDER_FOLDER, readable_state_folders
from chopperd.config.sections import Config
from chopperd.errors import BackendUnavailableError, StoreError

if TYPE_CHECKING:
    import subprocess

    from chopperd.model.samples import SampleSet
    from chopperd.model.services import SampleSource
    from chopperd.pipeline.reports import Samples
    from chopperd.sampling.recording import Recorder
    from chopperd.simulation.presets import SimulationSpec


# Starting the sampler of a recording from what the configuration and a command line say.

AUTO: Final = "auto"


@contextmanager
def recording(
    config: Config,
    backend: str | None,
    hz: float | None,
    simulation: "SimulationSpec | None" = None,
) -> Iterator["Callable[[], SampleSet] | None"]:
    """Sample every GPU meanwhile; gives what ends it and returns the samples.

    It gives None where no GPU can be used. However the block is left, nothing goes on after it.

    Raises:
        BackendUnavailableError: The back end was asked for by name and can't be used.
    """
    recorder = _recorder(config, backend, hz, simulation)
    with closing(recorder):
        try:
            recorder.start()
        except BackendUnavailableError as error:
            if (backend or config.sampling.backend) != AUTO:
                raise
            complain(f"{error}; CMD runs without clock samples")
            yield None
            return
        yield recorder.finish


def _recorder(
    config: Config, backend: str | None, hz: float | None, simulation: "SimulationSpec | None"
) -> "Recorder":
    from chopperd.sampling.recording import Recorder
    from chopperd.sampling.settings import SamplerSettings
    from chopperd.sampling.supervisor import SamplerSupervisor

    name, clock = backend or config.sampling.backend, SystemClock()
    settings = SamplerSettings(
        hz=hz or config.sampling.record_hz,
        slow_hz=config.sampling.record_slow_hz,
        # There is no driver to spare in a simulation.
        budget_ratio=1.0 if simulation else config.sampling.record_driver_budget_ratio,
        idle_hz=config.sampling.record_idle_hz,
    )
    command = sampler_command(name, simulation)
    return Recorder(SamplerSupervisor(command, settings, clock), clock)


def sampler_command(backend: str, simulation: "SimulationSpec | None" = None) -> list[str]:
    """What starts a sampler process on a back end."""
    # -P: the working directory must not shadow a module of ours.
    command = [sys.executable, "-P", "-m", "chopperd", "_sampler", "--backend", backend]
    return command if simulation is None else [*command, "--simulation", simulation.to_json()]


# Running the command of `record`: signals passed on, its status as a shell gives it.

_EXIT_NOT_EXECUTABLE: Final = 126
_EXIT_NOT_FOUND: Final = 127
_EXIT_SIGNAL: Final = 128


def run_command(command: Sequence[str]) -> int:
    """Run a command to its end, passing signals on; its status as a shell gives it."""
    import subprocess

    relay = _Relay()
    before = {number: signal.signal(number, relay) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with subprocess.Popen(command) as process:
            relay.attach(process)
            status = process.wait()
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        status = _EXIT_NOT_FOUND if missing else _EXIT_NOT_EXECUTABLE
        complain(f"can't run {command[0]}: {error.strerror}")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return _EXIT_SIGNAL - status if status < 0 else status


@dataclass(slots=True)
class _Relay:
    """A signal handler that passes signals on to a child, also those from before its start."""

    process: "subprocess.Popen[bytes] | None" = None
    early: list[int] = field(default_factory=list)

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        if self.process is None:
            self.early.append(number)
        elif number != signal.SIGINT or not _in_foreground():
            self.process.send_signal(number)

    def attach(self, process: "subprocess.Popen[bytes]") -> None:
        self.process = process
        for number in self.early:
            process.send_signal(number)


def _in_foreground() -> bool:
    """Whether a Ctrl-C at the terminal reaches our children without us."""
    try:
        with Path("/dev/tty").open("rb") as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False


# Which clock samples a report is made with: a file's, else the local flight recorder's.

logger = logging.getLogger(__name__)


def samples_to_join(config: Config, file: Path | None, tz: tzinfo | None = None) -> "Samples":
    """The samples of a file or, where none is named, of a local recorder; None without either.

    Args:
        config: Says where the recorder's folder may be.
        file: As given; read as `store.samples.read_samples` does.
        tz: Zone of local times in the file.

    Raises:
        StoreError: The file can't be read.
    """
    if file is None:
        folders = (state / RECORDER_FOLDER for state in readable_state_folders(config))
        found = next((folder for folder in folders if os.access(folder, os.R_OK | os.X_OK)), None)
        return None if found is None else LocalSamples(found)
    from chopperd.store.samples.files import read_samples

    return read_samples(file, tz=tz)


class LocalSamples:
    """A local recorder's samples, marked as such; its trouble costs a report its clocks only.

    Args:
        folder: The recorder's.
    """

    def __init__(self, folder: Path) -> None:
        from chopperd.store.recorder.reader import RecordedSamples

        self._recorded: SampleSource = RecordedSamples(folder)
        self._folder = folder

    def between(
        self, from_unix_ns: int, to_unix_ns: int, gpus: Sequence[str] | None = None
    ) -> "SampleSet | None":
        """As `SampleSource.between`, with a note that says where they come from."""
        try:
            samples = self._recorded.between(from_unix_ns, to_unix_ns, gpus)
        except StoreError as error:
            logger.warning("%s; reported without clocks", error)
            return None
        if samples is None:
            return None
        from chopperd.model.report import Note

        text = (
            f"clock samples are this machine's ({samples.node}), from {self._folder}: they are "
            "not of a trace that was written elsewhere"
        )
        note = Note(code="local_samples", text=text)
        return replace(samples, notes=(note, *samples.notes))

"""Sampling for commands: run a program, record its samples, find the samples for a report."""

import logging
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import tzinfo
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from chopperd.cli.output import complain
from chopperd.clock import SystemClock
from chopperd.config.paths import RECORDER_FOLDER, own_command, readable_state_folders
from chopperd.config.sections import Config
from chopperd.errors import BackendUnavailableError, StoreError

if TYPE_CHECKING:
    import subprocess

    from chopperd.model.samples import SampleSet
    from chopperd.model.services import SampleSource
    from chopperd.pipeline.reports import Samples
    from chopperd.sampling.recording import Recorder
    from chopperd.sampling.settings import SamplerSettings
    from chopperd.simulation.presets import SimulationSpec


AUTO: Final = "auto"


@contextmanager
def recording(
    config: Config,
    backend: str | None,
    hz: float | None,
    simulation: "SimulationSpec | None" = None,
) -> Iterator["Callable[[], SampleSet] | None"]:
    """Sample every GPU during the block; give a function that ends it and returns the samples.

    Gives None if no GPU can be used. The sampler ends with the block.

    Raises:
        BackendUnavailableError: The back end was requested by name and can't be used.
    """
    from chopperd.sampling.settings import SamplerSettings

    settings = SamplerSettings(
        hz=hz or config.sampling.record_hz,
        slow_hz=config.sampling.record_slow_hz,
        # A simulation has no driver whose time must be limited.
        budget_ratio=1.0 if simulation else config.sampling.record_driver_budget_ratio,
        idle_hz=config.sampling.record_idle_hz,
    )
    name = backend or config.sampling.backend
    with closing(recorder_of(sampler_command(name, simulation), settings)) as recorder:
        try:
            recorder.start()
        except BackendUnavailableError as error:
            if name != AUTO:
                raise
            complain(f"{error}; CMD runs without clock samples")
            yield None
            return
        yield recorder.finish


def recorder_of(command: list[str], settings: "SamplerSettings") -> "Recorder":
    """Return a recorder for the samples of a sampler process; it is not started yet."""
    from chopperd.sampling.recording import Recorder
    from chopperd.sampling.supervisor import SamplerSupervisor

    clock = SystemClock()
    return Recorder(SamplerSupervisor(command, settings, clock), clock)


def sampler_command(backend: str, simulation: "SimulationSpec | None" = None) -> list[str]:
    """Return the command line of a sampler process on a back end."""
    command = own_command("_sampler", "--backend", backend)
    return command if simulation is None else [*command, "--simulation", simulation.to_json()]


_EXIT_NOT_EXECUTABLE: Final = 126
_EXIT_NOT_FOUND: Final = 127
_EXIT_SIGNAL: Final = 128


def run_command(command: Sequence[str]) -> int:
    """Run a command to its end, passing signals on; return its exit status as in a shell."""
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
    """Signal handler that passes signals on to a child, also those received before its start."""

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
    """Whether the terminal itself sends a Ctrl-C to our child processes."""
    try:
        with Path("/dev/tty").open("rb") as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False


logger = logging.getLogger(__name__)


def samples_to_join(config: Config, file: Path | None, tz: tzinfo | None = None) -> "Samples":
    """Return the samples for a report: of a file, else of the local recorder, else None.

    `tz`: of local times in the file. Raises `StoreError` if that can't be read.
    """
    if file is None:
        folders = (state / RECORDER_FOLDER for state in readable_state_folders(config))
        found = next((folder for folder in folders if os.access(folder, os.R_OK | os.X_OK)), None)
        return None if found is None else LocalSamples(found)
    from chopperd.store.samples.files import read_samples

    return read_samples(file, tz=tz)


class LocalSamples:
    """Samples in a local recorder's folder, marked as such; none if they can't be read."""

    def __init__(self, folder: Path) -> None:
        from chopperd.store.recorder.reader import RecordedSamples

        self._recorded: SampleSource = RecordedSamples(folder)
        self._folder = folder

    def between(
        self, from_unix_ns: int, to_unix_ns: int, gpus: Sequence[str] | None = None
    ) -> "SampleSet | None":
        """Return samples as `SampleSource.between`, with a note on their source."""
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

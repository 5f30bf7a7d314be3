"""Hidden commands of processes that chopperd starts itself; temporary folders."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from chopperd.cli.output import write
from chopperd.clock import SystemClock
from chopperd.errors import ConfigError
from chopperd.logs import configure_logging
from chopperd.units import NS_PER_MS, NS_PER_S


def run(name: str, arguments: Sequence[str]) -> int:
    """Run a hidden command in this process; return its status, or raise `ConfigError`."""
    if name not in _PROCESSES:
        raise ConfigError([f"no command {name}"])
    configure_logging("warning", as_json=False)
    return _PROCESSES[name](arguments)


def _values(arguments: Sequence[str], required: Sequence[str], *others: str) -> dict[str, str]:
    """Parse options to values by name; refuse unknown arguments and missing required options."""
    given = dict(zip(arguments[::2], arguments[1::2], strict=False))
    is_whole = 2 * len(given) == len(arguments)
    if not is_whole or not given.keys() <= {*required, *others} or not given.keys() >= {*required}:
        wanted = " ".join(f"{name} VALUE" for name in (*required, *others))
        raise ConfigError([f"expected {wanted}"])
    return given


def _sampler(arguments: Sequence[str]) -> int:
    from chopperd.devices.base import BackendOptions
    from chopperd.devices.registry import AUTO, choose
    from chopperd.sampling import process
    from chopperd.sampling.settings import SamplerSettings

    given = _values(arguments, ["--ring-fd", "--settings"], "--backend", "--simulation")
    simulation, which = given.get("--simulation"), BackendOptions()
    if simulation:
        from chopperd.simulation.presets import SimulationSpec

        which = BackendOptions(simulation=SimulationSpec.from_json(simulation))
    how = SamplerSettings.from_json(given["--settings"])
    name = given.get("--backend", AUTO)
    return process.main(int(given["--ring-fd"]), lambda: choose(name, which), how)


def _probe(arguments: Sequence[str]) -> int:
    from chopperd.diagnosis.probe import probe_lines

    given = _values(arguments, ["--backend", "--calls"])
    for line in probe_lines(given["--backend"], int(given["--calls"])):
        write(f"{line.decode()}\n")
    return 0


def _probe_amd(arguments: Sequence[str]) -> int:
    from chopperd.diagnosis.probe import look_lines

    for line in look_lines(Path(_values(arguments, ["--sysfs"])["--sysfs"])):
        write(f"{line.decode()}\n")
    return 0


def _snapshot(arguments: Sequence[str]) -> int:
    """Unpickle a snapshot of memory from standard input; write its columns to standard output."""
    from chopperd.traces.read.snapshot import main

    _values(arguments, [])
    return main()


def _analysis(arguments: Sequence[str]) -> int:
    """Analyse traces for the parent until it ends or closes standard input."""
    from chopperd.pipeline.worker import one_thread_each

    one_thread_each()
    from chopperd.pipeline import worker
    from chopperd.store.recorder.reader import RecordedSamples

    flags = [each for each in arguments if each == "--in-foreground"]
    given = _values([each for each in arguments if each not in flags], ["--memory-max-bytes"])
    return worker.main(
        RecordedSamples, memory_max_bytes=int(given["--memory-max-bytes"]), in_background=not flags
    )


_PREFIX: Final = "chopperd-"
_ID_LENGTH: Final = 8
_RETRY_NS: Final = 50 * NS_PER_MS
_GIVE_UP_NS: Final = 10 * NS_PER_S


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Make a private temporary folder; it is removed afterwards, even if we are killed.

    A process of ours, started before, removes it when its standard input closes as we end.
    """
    # The sampler does without these, and is smaller for it.
    import subprocess
    from shutil import rmtree
    from tempfile import gettempdir
    from uuid import uuid4

    from chopperd.config.paths import own_command

    folder = Path(gettempdir()) / f"{_PREFIX}{uuid4().hex[:_ID_LENGTH]}"
    with subprocess.Popen(
        own_command("_sweep", "--folder", str(folder)),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,  # an interrupt from the terminal is ours to handle
    ):
        folder.mkdir(mode=0o700)
        try:
            yield folder
        finally:
            rmtree(folder, ignore_errors=True)


def _sweep(arguments: Sequence[str]) -> int:
    """Wait until standard input closes, as the parent ends, then remove its temporary folder.

    Processes that are still ending may write into it: removal is repeated until it is gone.
    """
    from shutil import rmtree

    folder, clock = Path(_values(arguments, ["--folder"])["--folder"]), SystemClock()
    sys.stdin.buffer.read()
    limit_ns = clock.mono_ns() + _GIVE_UP_NS
    while folder.exists() and clock.mono_ns() < limit_ns:
        rmtree(folder, ignore_errors=True)
        clock.sleep_until(clock.mono_ns() + _RETRY_NS)
    return int(folder.exists())


_PROCESSES: Final[Mapping[str, Callable[[Sequence[str]], int]]] = {
    "_analysis": _analysis,
    "_probe": _probe,
    "_probe_amd": _probe_amd,
    "_sampler": _sampler,
    "_snapshot": _snapshot,
    "_sweep": _sweep,
}

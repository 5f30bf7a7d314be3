"""The processes that chopperd starts for itself, by hidden commands; people never run them."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from chopperd.cli.output import write
from chopperd.errors import ConfigError
from chopperd.logs import configure_logging


def run(name: str, arguments: Sequence[str]) -> int:
    """The exit status of an own process.

    Raises:
        ConfigError: There is none of this name, or its arguments are not its own.
    """
    if name not in _PROCESSES:
        raise ConfigError([f"no command {name}"])
    configure_logging("warning", as_json=False)
    return _PROCESSES[name](arguments)


def _values(arguments: Sequence[str], required: Sequence[str], *others: str) -> dict[str, str]:
    """The value of each option of a command line that holds options with values only.

    Raises:
        ConfigError: It holds anything else, or lacks a required option.
    """
    given = dict(zip(arguments[::2], arguments[1::2], strict=False))
    is_whole = 2 * len(given) == len(arguments)
    if not is_whole or not given.keys() <= {*required, *others} or not given.keys() >= {*required}:
        wanted = " ".join(f"{name} VALUE" for name in (*required, *others))
        raise ConfigError([f"expected {wanted}"])
    return given


def _sampler(arguments: Sequence[str]) -> int:
    """Sample into shared memory until the parent ends or says so."""
    from chopperd.devices.base import BackendOptions
    from chopperd.devices.registry import AUTO, choose
    from chopperd.sampling import process
    from chopperd.sampling.settings import SamplerSettings
    from chopperd.simulation.spec import SimulationSpec

    given = _values(arguments, ["--ring-fd", "--settings"], "--backend", "--simulation")
    simulation = given.get("--simulation")
    which = BackendOptions(simulation=SimulationSpec.from_json(simulation) if simulation else None)
    how = SamplerSettings.from_json(given["--settings"])
    name = given.get("--backend", AUTO)
    return process.main(int(given["--ring-fd"]), lambda: choose(name, which), how)


def _sweep(arguments: Sequence[str]) -> int:
    """Remove a temporary folder of the parent once that has ended."""
    from chopperd.cli.scratch import sweep

    return sweep(Path(_values(arguments, ["--folder"])["--folder"]))


def _probe(arguments: Sequence[str]) -> int:
    """Look at the GPUs once and write what was found to standard output, line by line."""
    from chopperd.diagnosis.probe import probe_lines

    given = _values(arguments, ["--backend", "--calls"])
    for line in probe_lines(given["--backend"], int(given["--calls"])):
        write(f"{line.decode()}\n")
    return 0


def _probe_amd(arguments: Sequence[str]) -> int:
    """Look at what of AMD's may hang or end a process, and write it likewise."""
    from chopperd.diagnosis.amd_probe import look_lines

    for line in look_lines(Path(_values(arguments, ["--sysfs"])["--sysfs"])):
        write(f"{line.decode()}\n")
    return 0


def _analysis(arguments: Sequence[str]) -> int:
    """Analyse traces for the parent until it ends or closes standard input."""
    from chopperd.pipeline.background import one_thread_each

    one_thread_each()
    from chopperd.pipeline import worker
    from chopperd.store.recorder.reader import RecordedSamples

    flags = [each for each in arguments if each == "--in-foreground"]
    given = _values([each for each in arguments if each not in flags], ["--memory-max-bytes"])
    return worker.main(
        RecordedSamples,
        memory_max_bytes=int(given["--memory-max-bytes"]),
        in_background=not flags,
    )


_PROCESSES: Final[Mapping[str, Callable[[Sequence[str]], int]]] = {
    "_analysis": _analysis,
    "_probe": _probe,
    "_probe_amd": _probe_amd,
    "_sampler": _sampler,
    "_sweep": _sweep,
}

"""The processes that chopperd starts for itself, by hidden commands; people never run them."""

from argparse import ArgumentParser
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NoReturn

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


class _Arguments(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError([message])


def _sampler(arguments: Sequence[str]) -> int:
    """Sample into shared memory until the parent ends or says so."""
    from chopperd.devices.base import BackendOptions
    from chopperd.devices.registry import open_backend
    from chopperd.sampling import process
    from chopperd.sampling.settings import SamplerSettings
    from chopperd.simulation.spec import SimulationSpec

    parser = _Arguments(prog="_sampler", allow_abbrev=False)
    parser.add_argument("--ring-fd", type=int, required=True)
    parser.add_argument("--settings", required=True)
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--simulation")
    given = parser.parse_args(arguments)
    simulation = SimulationSpec.from_json(given.simulation) if given.simulation else None
    which = BackendOptions(simulation=simulation)
    how = SamplerSettings.from_json(given.settings)
    return process.main(given.ring_fd, lambda: open_backend(given.backend, which), how)


def _analysis(arguments: Sequence[str]) -> int:
    """Analyse traces for the parent until it ends or closes standard input."""
    from chopperd.pipeline.background import one_thread_each

    one_thread_each()
    from chopperd.pipeline import worker
    from chopperd.store.recorded_samples import RecordedSamples

    parser = _Arguments(prog="_analysis", allow_abbrev=False)
    parser.add_argument("--memory-max-bytes", type=int, required=True)
    parser.add_argument("--in-foreground", action="store_true")
    given = parser.parse_args(arguments)
    return worker.main(
        RecordedSamples,
        memory_max_bytes=given.memory_max_bytes,
        in_background=not given.in_foreground,
    )


_PROCESSES: Final[Mapping[str, Callable[[Sequence[str]], int]]] = {
    "_analysis": _analysis,
    "_sampler": _sampler,
}

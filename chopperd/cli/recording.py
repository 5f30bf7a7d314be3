"""Starting the sampler of a recording from what the configuration and a command line say."""

import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Final

from chopperd.cli.output import complain
from chopperd.clock import SystemClock
from chopperd.config.sections import Config
from chopperd.errors import BackendUnavailableError

if TYPE_CHECKING:
    from chopperd.model.samples import SampleSet
    from chopperd.sampling.recording import Recorder
    from chopperd.simulation.spec import SimulationSpec

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

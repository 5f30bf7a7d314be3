"""Starting the sampler of a recording from what the configuration and a command line say."""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from chopperd.cli.output import complain
from chopperd.clock import SystemClock
from chopperd.config import Config
from chopperd.errors import BackendUnavailableError

if TYPE_CHECKING:
    from chopperd.model.samples import SampleSet
    from chopperd.simulation.spec import SimulationSpec

AUTO: Final = "auto"


def start_recording(
    config: Config,
    backend: str | None,
    hz: float | None,
    simulation: "SimulationSpec | None" = None,
) -> "Callable[[], SampleSet] | None":
    """Start to sample every GPU; gives what ends it, or None where no GPU can be used.

    Raises:
        BackendUnavailableError: The back end was asked for by name and can't be used.
    """
    from chopperd.sampling.recording import Recorder
    from chopperd.sampling.settings import SamplerSettings
    from chopperd.sampling.supervisor import SamplerSupervisor

    name, clock = backend or config.sampling.backend, SystemClock()
    settings = SamplerSettings(
        hz=hz or config.sampling.record_hz,
        slow_hz=config.sampling.slow_hz,
        # There is no driver to spare in a simulation.
        budget_ratio=1.0 if simulation else config.sampling.record_driver_budget_ratio,
    )
    # -P: the job's working directory must not shadow a module of ours.
    start_sampler = [sys.executable, "-P", "-m", "chopperd", "_sampler", "--backend", name]
    if simulation is not None:
        start_sampler += ["--simulation", simulation.to_json()]
    recorder = Recorder(SamplerSupervisor(start_sampler, settings, clock), clock)
    try:
        recorder.start()
    except BackendUnavailableError as error:
        if name != AUTO:
            raise
        complain(f"{error}; CMD runs without clock samples")
        return None
    return recorder.finish

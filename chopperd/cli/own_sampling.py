"""Sampling of the command's own, for a page of the node where no agent is asked."""

import os
from collections.abc import Generator
from typing import Final

from chopperd import __version__
from chopperd.agent.sampling import Sampling
from chopperd.cli.recording import sampler_command
from chopperd.clock import Clock, SystemClock
from chopperd.config.sections import Config
from chopperd.live.node import AgentFacts, LiveNode
from chopperd.model.live import NodeSnapshot
from chopperd.sampling.settings import SamplerSettings
from chopperd.sampling.supervisor import SamplerSupervisor
from chopperd.units import NS_PER_MS

SIMULATED: Final = "simulated"
_HZ: Final = 10.0
_TOTALS_EVERY_S: Final = 1.0
_LOOK_EVERY_NS: Final = 500 * NS_PER_MS
_STOP_S: Final = 2.0


def own_snapshots(
    config: Config, backend: str, clock: Clock | None = None
) -> Generator[NodeSnapshot]:
    """The node twice a second, until closed; no sampler is left then.

    Raises:
        BackendUnavailableError: The back end can't be used; says why.
    """
    clock = clock or SystemClock()
    settings = SamplerSettings(
        hz=_HZ,
        slow_hz=config.sampling.slow_hz,
        # Somebody is watching, as under `record`; there is no driver to spare in a simulation.
        budget_ratio=1.0 if backend == SIMULATED else config.sampling.record_driver_budget_ratio,
        totals_every_s=_TOTALS_EVERY_S,
    )
    node = LiveNode(
        clock,
        version=__version__,
        node=os.uname().nodename,
        backend=backend,
        slow_hz=settings.slow_hz,
    )
    supervisor = SamplerSupervisor(sampler_command(backend), settings, clock)
    sampling = Sampling(supervisor)
    try:
        supervisor.start()
        while True:
            sampling.poll(paused=False)
            node.follow(sampling.ring)
            yield node.snapshot(AgentFacts(sampler=sampling.live()))
            clock.sleep_until(clock.mono_ns() + _LOOK_EVERY_NS)
    finally:
        node.follow(None)
        sampling.stop(_STOP_S)
        sampling.close()

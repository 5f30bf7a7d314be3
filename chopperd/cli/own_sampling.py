"""Sampling of the command's own, for a page of the node where no agent is asked."""

from collections.abc import Generator
from typing import Final

from chopperd import __version__
from chopperd.cli.recording import sampler_command
from chopperd.clock import Clock, SystemClock
from chopperd.config.naming import node_name
from chopperd.config.sections import Config
from chopperd.live.node import AgentFacts, LiveNode
from chopperd.model.live import NodeSnapshot, SamplerCondition, SamplerLive
from chopperd.sampling.settings import SamplerSettings
from chopperd.sampling.supervisor import SamplerSupervisor, SupervisorState
from chopperd.units import NS_PER_MS

SIMULATED: Final = "simulated"
_CONDITIONS: Final = {
    SupervisorState.RUNNING: SamplerCondition.RUNNING,
    SupervisorState.DOWN: SamplerCondition.HUNG,
}
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
        node=node_name(config),
        backend=backend,
        slow_hz=settings.slow_hz,
    )
    supervisor = SamplerSupervisor(sampler_command(backend), settings, clock)
    try:
        supervisor.start()
        while True:
            supervisor.poll()
            node.follow(supervisor.ring)
            yield node.snapshot(AgentFacts(sampler=_live(supervisor)))
            clock.sleep_until(clock.mono_ns() + _LOOK_EVERY_NS)
    finally:
        node.follow(None)
        supervisor.stop(_STOP_S)
        supervisor.close()


def _live(supervisor: SamplerSupervisor) -> SamplerLive:
    return SamplerLive(
        condition=_CONDITIONS.get(supervisor.state, SamplerCondition.RESTARTING),
        pid=supervisor.pid,
        restart_count=supervisor.restart_count,
        abandoned_pids=supervisor.left_pids,
    )

"""Sampling of the command's own, for a page of the node where no agent is asked."""

import os
from collections.abc import Generator
from typing import Final

from chopperd import __version__
from chopperd.agent.sampling import Sampling
from chopperd.cli.recording import sampler_command
from chopperd.clock import Clock, SystemClock
from chopperd.config.sections import Config
from chopperd.errors import BackendUnavailableError
from chopperd.live.node import AgentFacts, LiveNode
from chopperd.model.live import NodeSnapshot, SamplerCondition
from chopperd.sampling.settings import SamplerSettings
from chopperd.sampling.supervisor import SamplerSupervisor
from chopperd.units import NS_PER_MS

_HZ: Final = 10.0
_TOTALS_EVERY_S: Final = 1.0
_LOOK_EVERY_NS: Final = 500 * NS_PER_MS
_START_EVERY_NS: Final = 20 * NS_PER_MS
_STOP_S: Final = 2.0


def own_snapshots(
    config: Config, backend: str, clock: Clock | None = None
) -> Generator[NodeSnapshot]:
    """The node twice a second, until closed; no sampler is left then.

    Raises:
        BackendUnavailableError: The back end can't be used, or stopped to answer; says why.
    """
    clock = clock or SystemClock()
    settings = SamplerSettings(
        hz=_HZ,
        slow_hz=config.sampling.slow_hz,
        budget_ratio=config.sampling.driver_budget_ratio,
        totals_every_s=_TOTALS_EVERY_S,
    )
    node = LiveNode(
        clock,
        version=__version__,
        node=os.uname().nodename,
        backend=backend,
        slow_hz=settings.slow_hz,
    )
    sampling = Sampling(SamplerSupervisor(sampler_command(backend), settings, clock))
    try:
        sampling.launch()
        yield from _looks(sampling, node, clock)
    finally:
        node.follow(None)
        sampling.stop(_STOP_S)
        sampling.close()


def _looks(sampling: Sampling, node: LiveNode, clock: Clock) -> Generator[NodeSnapshot]:
    while True:
        sampling.poll(paused=False)
        live = sampling.live()
        if live.condition is SamplerCondition.UNAVAILABLE:
            raise BackendUnavailableError(live.reason or "no GPU can be used")
        node.follow(sampling.ring)
        if sampling.ring is not None:
            yield node.snapshot(AgentFacts(sampler=live))
        pause_ns = _START_EVERY_NS if sampling.ring is None else _LOOK_EVERY_NS
        clock.sleep_until(clock.mono_ns() + pause_ns)

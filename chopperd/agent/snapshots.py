"""What the agent says of its node: a snapshot each second, the newest one for whoever asks."""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from chopperd import __version__
from chopperd.clock import Clock
from chopperd.live.node import AgentFacts, LiveNode, ProcessCosts
from chopperd.model.live import (
    GuardedPart,
    NodeSnapshot,
    Pause,
    SamplerCondition,
    SamplerLive,
    SelfTestLive,
)
from chopperd.units import NS_PER_S

if TYPE_CHECKING:
    from chopperd.agent.parts import Parts
    from chopperd.agent.sampling import Sampling

_EVERY_NS: Final = NS_PER_S
#: GPUs show themselves within this time of the first sight of the ring, or are down.
_COMING_NS: Final = 3 * NS_PER_S


class Snapshots:
    """Takes snapshots (`model.services.SnapshotSource`); `latest` is for any thread.

    Attributes:
        drops: Drops of the busy clock that are to be kept.

    Args:
        clock: Tells the time.
        node: Name of the node.
        backend: Back end asked for.
        slow_hz: Rate of the reads that cover all fields.
        faults: Tells the faults that were outlived.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        node: str,
        backend: str,
        slow_hz: float,
        faults: Callable[[], Mapping[GuardedPart, int]],
    ) -> None:
        self._clock = clock
        self._faults = faults
        self._costs = ProcessCosts(clock)
        self._due_ns = 0
        self._ring_seen_ns: int | None = None
        self._node = LiveNode(
            clock,
            version=__version__,
            node=node,
            backend=backend,
            slow_hz=slow_hz,
        )
        nothing = AgentFacts(sampler=SamplerLive(condition=SamplerCondition.STARTING))
        self.drops = self._node.drops
        self._latest = self._node.snapshot(nothing)

    def latest(self) -> NodeSnapshot:
        """The newest snapshot."""
        return self._latest

    def take_if_due(
        self,
        sampling: "Sampling",
        pause: Pause | None,
        parts: "Parts | None",
        self_test: SelfTestLive | None = None,
    ) -> NodeSnapshot | None:
        """A new snapshot, if the last is a second old or GPUs are about to show; None otherwise."""
        now_ns = self._clock.mono_ns()
        if now_ns < self._due_ns and not self._gpus_are_coming(sampling, now_ns):
            return None
        if now_ns >= self._due_ns:
            following_ns = self._due_ns + _EVERY_NS
            self._due_ns = following_ns if following_ns > now_ns else now_ns + _EVERY_NS
        self._node.follow(sampling.ring)
        facts = self._facts(sampling, pause, parts)
        if self_test is not None:
            facts = replace(facts, self_test=self_test)
        self._latest = self._node.snapshot(facts)
        return self._latest

    def _gpus_are_coming(self, sampling: "Sampling", now_ns: int) -> bool:
        """Whether sampling has just begun and not every GPU has shown itself yet.

        A scrape that comes soon after the start then finds them all.
        """
        if sampling.ring is None:
            return False
        if self._ring_seen_ns is None:
            self._ring_seen_ns = now_ns
        gpus = self._latest.gpus
        is_new = now_ns - self._ring_seen_ns < _COMING_NS
        return not gpus or (is_new and not all(gpu.up for gpu in gpus))

    def _facts(
        self, sampling: "Sampling", pause: Pause | None, parts: "Parts | None"
    ) -> AgentFacts:
        sampler = sampling.live()
        pids: dict[str, int | None] = {"agent": os.getpid(), "sampler": sampler.pid}
        if parts is None:
            return AgentFacts(
                sampler=sampler,
                pause=pause,
                processes=self._costs.look(pids),
                faults=self._faults(),
            )
        analysis = parts.analysis()
        pids["worker"] = analysis.worker_pid
        return AgentFacts(
            sampler=sampler,
            pause=pause,
            archive=parts.archive(),
            store=parts.store(),
            analysis=analysis,
            traced=parts.traced(self._latest.gpus),
            processes=self._costs.look(pids),
            faults=self._faults(),
        )

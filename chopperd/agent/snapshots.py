"""Snapshots of the node each second, from the sampler's memory and the agent's parts."""

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from chopperd import __version__
from chopperd.clock import Clock
from chopperd.live.node import LiveNode, ProcessCosts
from chopperd.model import live
from chopperd.units import NS_PER_S

if TYPE_CHECKING:
    from chopperd.agent.parts import Parts
    from chopperd.agent.sampling import Sampling

_EVERY_NS: Final = NS_PER_S
#: A GPU without a sample this long after the ring was first seen is down.
_COMING_NS: Final = 3 * NS_PER_S


class Snapshots:
    """Takes snapshots (`model.services.SnapshotSource`); `latest` is for any thread.

    `drops` are those of the busy clock, to be stored; `faults` counts caught faults by part.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        node: str,
        backend: str,
        slow_hz: float,
        faults: Callable[[], Mapping[live.GuardedPart, int]],
        self_test: live.SelfTestLive | None = None,
    ) -> None:
        self._clock, self._faults, self._self_test = clock, faults, self_test or live.SelfTestLive()
        self._costs = ProcessCosts(clock)
        self._due_ns = 0
        self._ring_seen_ns: int | None = None
        self._node = LiveNode(
            clock, version=__version__, node=node, backend=backend, slow_hz=slow_hz
        )
        self.drops = self._node.drops
        self._latest = self._node.snapshot(
            live.SamplerLive(condition=live.SamplerCondition.STARTING)
        )

    def latest(self) -> live.NodeSnapshot:
        """Return the newest snapshot."""
        return self._latest

    def take_if_due(
        self, sampling: "Sampling", pause: live.Pause | None, parts: "Parts | None"
    ) -> live.NodeSnapshot | None:
        """Take a snapshot if the last is a second old or GPUs are about to appear; else None."""
        now_ns = self._clock.mono_ns()
        if now_ns < self._due_ns and not self._gpus_are_coming(sampling, now_ns):
            return None
        if now_ns >= self._due_ns:
            following_ns = self._due_ns + _EVERY_NS
            self._due_ns = following_ns if following_ns > now_ns else now_ns + _EVERY_NS
        self._node.follow(sampling.ring)
        sampler = sampling.live()
        pids: dict[str, int | None] = {"agent": os.getpid(), "sampler": sampler.pid}
        if parts is None:
            snapshot = self._node.snapshot(sampler)
        else:
            analysis = parts.analysis()
            pids["worker"] = analysis.worker_pid
            snapshot = replace(
                self._node.snapshot(sampler, parts.traced(self._latest.gpus)),
                archive=parts.archive(),
                store=parts.store(),
                analysis=analysis,
            )
        self._latest = replace(
            snapshot,
            pause=pause,
            processes=self._costs.read(pids),
            self_test=self._self_test,
            faults=self._faults(),
        )
        return self._latest

    def _gpus_are_coming(self, sampling: "Sampling", now_ns: int) -> bool:
        """Whether sampling has just begun and some GPU has no sample yet.

        A scrape that comes soon after the start then finds them all.
        """
        if sampling.ring is None:
            return False
        if self._ring_seen_ns is None:
            self._ring_seen_ns = now_ns
        gpus = self._latest.gpus
        is_new = now_ns - self._ring_seen_ns < _COMING_NS
        return not gpus or (is_new and not all(gpu.up for gpu in gpus))

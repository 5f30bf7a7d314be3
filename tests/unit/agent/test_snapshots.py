"""When snapshots are taken: each second, and sooner while GPUs show themselves after the start."""

import pytest

from chopperd.agent.parts import Snapshots
from chopperd.live.node import LiveNode
from chopperd.model.live import SamplerCondition, SamplerLive
from tests.fakes.clock import ScriptedClock

TURN_NS = 200_000_000


class FakeSampling:
    """Sampling that has a ring, of no GPU yet, during some turns."""

    def __init__(self, ring_turns: range) -> None:
        self._ring_turns = ring_turns
        self.turn = 0

    @property
    def ring(self) -> object | None:
        return object() if self.turn in self._ring_turns else None

    def live(self) -> SamplerLive:
        return SamplerLive(condition=SamplerCondition.STARTING)


def taken_at_turns(ring_turns: range, turns: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The turns of 0.2 s at which a snapshot was taken."""
    clock, sampling = ScriptedClock(), FakeSampling(ring_turns)
    monkeypatch.setattr(LiveNode, "follow", lambda *_: None)  # a ring without a GPU shows none
    snapshots = Snapshots(clock, node="n", backend="auto", slow_hz=1.0, faults=dict)
    taken = []
    for sampling.turn in range(turns):
        if snapshots.take_if_due(sampling, None, None) is not None:  # type: ignore[arg-type]
            taken.append(sampling.turn)
        clock.advance(TURN_NS)
    return taken


def test_without_a_ring_a_snapshot_is_taken_each_second(monkeypatch: pytest.MonkeyPatch) -> None:
    assert taken_at_turns(range(0), 16, monkeypatch) == [0, 5, 10, 15]


def test_while_gpus_are_to_show_it_is_taken_each_turn_and_each_second_after(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those taken early do not put off the ones that are due."""
    taken = taken_at_turns(range(3, 9), 22, monkeypatch)
    assert taken == [0, 3, 4, 5, 6, 7, 8, 10, 15, 20]

"""The columns of a rank's collectives: from a timeline by hand, packed and joined."""

import numpy as np
import pytest
from msgspec.structs import replace

from chopperd.correlate.ranks import collectives
from chopperd.correlate.ranks.collectives import (
    RankCollectives,
    collectives_of_device,
    joined,
    pack,
    unpack,
)
from chopperd.model.kinds import KernelClass
from chopperd.model.trace import Collective
from chopperd.traces.timeline.layout import lay_out
from tests.trace_building import TraceBuilder
from tests.unit.correlate.builders import Rec, device, spans
from tests.unit.correlate.ranks.building import SEND, US, Coll, rank

TIMELINE = replace(
    lay_out(TraceBuilder().build()),
    collectives=(
        Collective(name="allreduce", group="0", ranks="[0, 1]", group_size=2, dtype="Float"),
        Collective(name="allreduce", group="0", ranks="[2, 3]", group_size=2, dtype="Float"),
        Collective(name="send"),
    ),
)


def comm(start: int, end: int, collective: int = 0, seq: int = -1, comms_id: int = -1) -> Rec:
    kind = KernelClass.COMM
    return Rec(start, end, kind, step=-1, collective=collective, seq=seq, comms_id=comms_id)


def same(one: RankCollectives, other: RankCollectives) -> bool:
    columns = ("kind", "step", "seq", "comms_id", "start_ns", "end_ns")
    return (
        all(np.array_equal(getattr(one, c), getattr(other, c)) for c in columns)
        and np.array_equal(one.exposed.start_ns, other.exposed.start_ns)
        and np.array_equal(one.exposed.end_ns, other.exposed.end_ns)
        and (one.kinds, one.until_ns, one.left_out) == (other.kinds, other.until_ns, other.left_out)
    )


def test_communication_is_taken_and_computing_is_not() -> None:
    records = [Rec(0, 5, step=-1), comm(3, 9, 1, seq=4, comms_id=-8), comm(10, 12, -1)]
    found = collectives_of_device(device(records), TIMELINE, spans((5, 9), (10, 12)))
    assert found.start_ns.tolist() == [3, 10]
    assert found.kind.tolist() == [0, -1]
    assert [kind.name for kind in found.kinds] == ["allreduce"]
    assert found.seq.tolist() == [4, -1]
    assert found.comms_id.tolist() == [-8, -1]
    assert found.step.tolist() == [-1, -1]
    assert found.left_out == 0


def test_a_group_is_its_name_and_its_ranks() -> None:
    records = [comm(3, 9), comm(13, 19, 1), comm(23, 29, 2)]
    found = collectives_of_device(device(records), TIMELINE, spans())
    first, second, send = found.kinds
    assert first.group != second.group
    assert first.shape == second.shape != 0
    assert (send.group, send.shape, send.group_size) == (0, 0, None)
    assert (first.is_symmetric, first.is_pairwise) == (True, False)
    assert (send.is_symmetric, send.is_pairwise) == (False, True)


@pytest.mark.parametrize(("name", "until"), [("MOST_COLLECTIVES", 30), ("MOST_PIECES", 32)])
def test_what_is_beyond_the_bounds_is_left_out_and_counted(
    monkeypatch: pytest.MonkeyPatch, name: str, until: int
) -> None:
    # Three kernels, of which the third starts at 30 and is exposed from 32 on.
    monkeypatch.setattr(collectives, name, 2)
    records = [comm(10, 15), comm(20, 25), comm(30, 35)]
    exposed = spans((10, 15), (20, 25), (32, 35))
    found = collectives_of_device(device(records), TIMELINE, exposed)
    assert found.until_ns == until
    assert found.start_ns.tolist() == ([10, 20] if until == 30 else [10, 20, 30])
    assert found.left_out == (1 if until == 30 else 0)
    assert found.exposed.start_ns.tolist() == [10, 20]


def test_packed_columns_come_back_as_they_were() -> None:
    one = rank(
        [Coll(0, 10, seq=2**62, comms_id=-(2**63)), Coll(20, 30, SEND, step=-1), Coll(40, 44, None)]
    )
    one = replace(one, start_ns=one.start_ns + 1_790_000_000_000_000_000, left_out=3)
    packed = pack(one, device=2)
    assert packed.device == 2
    assert same(unpack(packed), one)
    assert same(unpack(pack(rank([]), device=0)), rank([]))


def test_a_collective_takes_some_bytes() -> None:
    # 1000 steps of forty collectives with jitter: a plain table has 40 bytes of each.
    rng = np.random.default_rng(0)
    start = np.cumsum(rng.integers(500, 5000, 40_000))
    one = rank([Coll(a, a + 100.0, seq=n, step=n // 40) for n, a in enumerate(start.tolist())])
    assert sum(map(len, pack(one, 0).columns)) < 16 * len(one)


def test_files_of_one_process_are_joined_in_time() -> None:
    early = rank([Coll(0, 10, seq=1), Coll(20, 30, None)])
    later = replace(rank([Coll(50, 60, SEND, step=2)], until=90), left_out=4)
    both = joined([later, early])
    assert both.start_ns.tolist() == [0, 20 * US, 50 * US]
    assert [both.kinds[each].name for each in both.kind[[0, 2]]] == ["allreduce", "send"]
    assert both.kind[1] == -1
    assert (both.until_ns, both.left_out) == (90 * US, 4)
    assert len(both.exposed) == 3
    assert same(joined([early]), early)
    assert len(joined([rank([]), early])) == 2

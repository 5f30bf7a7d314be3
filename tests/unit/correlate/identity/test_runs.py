"""Which traces are of one run, against partitions worked out by hand."""

from itertools import permutations

import pytest
from msgspec.structs import replace

from chopperd.correlate.identity.runs import is_rival, runs_of, why_unrelated
from chopperd.model.run import ProcessGroup, RunIdentity

S = 1_000_000_000


def rank(
    number: int | None = 0,
    *,
    at_s: float = 0.0,
    first_step: int | None = 10,
    world_size: int | None = 4,
    **said: object,
) -> RunIdentity:
    """One rank's trace of three steps of 1 s, from a time on."""
    begin_ns = 1_000 * S + round(at_s * S)
    steps = (
        () if first_step is None else tuple((first_step + n, begin_ns + n * S) for n in range(4))
    )
    identity = RunIdentity(
        rank=number,
        world_size=world_size,
        begin_unix_ns=begin_ns,
        end_unix_ns=begin_ns + 3 * S,
        steps=steps,
    )
    return replace(identity, **said)


def group(name: str, ranks: list[int]) -> ProcessGroup:
    stride = ranks[1] - ranks[0]
    return ProcessGroup(
        name=name, size=len(ranks), first=ranks[0], stride=stride, digest=hash(tuple(ranks))
    )


def timeless(number: int, steps: tuple[tuple[int, int], ...] = ()) -> RunIdentity:
    return RunIdentity(rank=number, world_size=4, steps=steps)


def found(traces: list[RunIdentity], *, is_told: bool = False, is_named: bool = True) -> list[int]:
    return runs_of(traces, is_told=is_told, is_named=is_named)


def test_ranks_with_trace_ids_of_their_own_are_one_run_whatever_their_order() -> None:
    ranks = [rank(n, at_s=0.01 * n, trace_id=f"id{n}") for n in range(4)]
    for order in permutations(ranks):
        assert found(list(order)) == [0] * 4
    assert found(ranks, is_named=False) == [0] * 4


@pytest.mark.parametrize(
    "other",
    [
        rank(1, world_size=8),
        rank(1, backend="gloo"),
        rank(1, run="r"),
        rank(0),
        rank(1, first_step=500),
        rank(1, at_s=1.6),
        rank(1, groups=(group("0", [0, 1, 2, 3]), group("1", [0, 1]))),
        rank(1, groups=(group("0", [0, 2]),)),
    ],
)
def test_ranks_that_contradict_each_other_are_two_runs(other: RunIdentity) -> None:
    """Truth: the first one's world of 4, backend, no run, rank 0, steps from 10 on, one group."""
    one = rank(0, backend="nccl", groups=(group("0", [0, 1, 2, 3]),))
    assert found([one, other], is_told=True) == [0, 1]


@pytest.mark.parametrize(
    "other",
    [
        rank(1, world_size=None),
        rank(1, at_s=0.5),
        rank(2, groups=(group("0", [0, 1, 2, 3]), group("2", [2, 3]))),
        rank(1, first_step=500, host_name="b"),
        rank(1, first_step=None),
        rank(0, first_step=500, trace_id="same"),
    ],
)
def test_ranks_that_do_not_contradict_each_other_are_one_run(other: RunIdentity) -> None:
    one = rank(
        0,
        backend="nccl",
        groups=(group("0", [0, 1, 2, 3]), group("1", [0, 1])),
        trace_id="same",
        host_name="a",
    )
    assert found([one, other]) == [0, 0]


def test_two_equal_jobs_at_one_time_come_apart_by_the_instant_of_their_steps() -> None:
    """Job B runs 0.3 s behind job A; of its ranks one came before A's of that number."""
    a = [rank(n, at_s=0.01 * n) for n in range(3)]
    b = [rank(n, at_s=0.3 + 0.01 * n) for n in range(3)]
    assert found([a[0], b[1]]) == [0, 0], "nothing tells them apart yet"
    assert found([a[0], b[1], a[1], b[0], b[2], a[2]]) == [0, 1, 0, 1, 1, 0]


def test_without_steps_the_nearest_start_tells_equal_jobs_apart() -> None:
    a = [rank(n, at_s=0.01 * n, first_step=None) for n in range(2)]
    b = [rank(n, at_s=0.3 + 0.01 * n, first_step=None) for n in range(2)]
    assert found([a[0], b[1], a[1], b[0]]) == [0, 1, 0, 1]


def test_runs_that_are_written_are_runs_whatever_else_they_say() -> None:
    traces = [rank(0, run="x"), rank(0, run="x"), rank(1, run="y"), rank(1, at_s=9, run="x")]
    assert found(traces, is_told=True) == [0, 0, 2, 0]


def test_only_what_overlaps_is_joined_unless_somebody_says_that_it_is_one_job() -> None:
    early, late = rank(0), rank(1, at_s=60, first_step=70)
    bridge = rank(2, first_step=None, end_unix_ns=early.begin_unix_ns + 61 * S)  # type: ignore[operator]
    assert found([early, late]) == [0, 1]
    assert found([early, late, bridge]) == [0, 0, 0]
    assert found([early, late], is_told=True) == [0, 0]


def test_cycles_of_one_rank_are_one_run_and_a_step_run_twice_is_two() -> None:
    first, second = rank(0), rank(0, at_s=60, first_step=70)
    assert found([first, second], is_told=True) == [0, 0]
    assert found([first, rank(0, at_s=60)], is_told=True) == [0, 1]
    assert found([first, rank(0, at_s=60, first_step=None)], is_told=True) == [0, 0]


def test_without_times_ranks_are_compared_by_their_steps() -> None:
    assert found([timeless(0), timeless(1)]) == [0, 0]
    assert found([timeless(0), timeless(0)]) == [0, 1]
    assert found([timeless(0), rank(1)]) == [0, 1]
    numbered = ((1, 0), (3, 2))
    later = timeless(0, steps=((3, 2), (5, 4)))
    assert found([timeless(0, steps=numbered), later]) == [0, 0]
    assert found([timeless(0, steps=numbered), timeless(0, steps=((2, 1), (4, 3)))]) == [0, 1]


def test_traces_without_a_rank_are_jobs_of_their_own_unless_the_job_has_a_name() -> None:
    """Eight independent one-GPU jobs of one inbox are no peers; one capture of them all is one."""
    unranked = [rank(None, world_size=None, first_step=None) for _ in range(2)]
    assert found(unranked, is_named=False) == [0, 1]
    assert found(unranked) == [0, 0]
    asked = [replace(each, trace_id="one") for each in unranked]
    assert found(asked, is_named=False) == [0, 0]


def test_rivals_differ_in_nothing_but_the_claim_of_one_rank() -> None:
    assert is_rival(rank(0), rank(0, at_s=0.3))
    assert not is_rival(rank(0), rank(1))
    assert not is_rival(rank(0), rank(0, world_size=2))
    assert not is_rival(rank(0), rank(0, first_step=500))


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (rank(1), None),
        (rank(1, at_s=30), None),  # clocks of two hosts that differ by half a minute
        (rank(0, at_s=3600, first_step=500), None),  # a later cycle of the same process
        (rank(1, at_s=3600, first_step=500), None),
        (rank(1, world_size=None), None),
        (timeless(1), None),
        (rank(0, trace_id="x", at_s=0), "both are rank 0"),
        (rank(0, at_s=60), "both are rank 0"),
        (timeless(0), "both are rank 0"),
        (rank(1, world_size=8), "its world size is 4, not 8"),
        (rank(1, backend="gloo"), "it communicates by nccl, not gloo"),
        (rank(1, run="b"), "its run is unnamed, not b"),
        (rank(1, groups=(group("0", [0, 2]),)), "its process groups have other ranks"),
        (rank(1, at_s=13 * 3600, first_step=None), "it was traced 13 hours apart"),
        (rank(1, at_s=603), "it has the same steps 10 minutes apart"),
        (rank(1, at_s=-603), "it has the same steps 10 minutes apart"),
    ],
)
def test_what_says_that_files_are_not_of_one_job(other: RunIdentity, why: str | None) -> None:
    one = rank(0, backend="nccl", groups=(group("0", [0, 1]),))
    assert why_unrelated(one, other) == why


def test_one_run_id_or_one_trace_id_joins_whatever_else_is_said() -> None:
    assert why_unrelated(rank(0, run="a"), rank(0, run="a", world_size=9)) is None
    assert why_unrelated(rank(0, run="a"), rank(1, run="b")) == "its run is a, not b"
    assert why_unrelated(rank(0, trace_id="x"), rank(0, trace_id="x")) is None

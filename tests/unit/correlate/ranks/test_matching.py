"""Which collective is which over ranks: small jobs, the pairs written down by hand."""

import numpy as np
import pytest
from msgspec.structs import replace

from chopperd.correlate.ranks.collectives import CollectiveKind
from chopperd.correlate.ranks.matching import Matches, match
from tests.unit.correlate.ranks.building import ALL_REDUCE, BROADCAST, SEND, US, Coll, rank


def pairs(found: Matches) -> list[list[int]]:
    return [each.tolist() for each in found.instance]


def test_collectives_are_matched_by_their_numbers_whatever_their_order_in_the_files() -> None:
    # Rank 1's file begins one collective later, and torch's numbers say so.
    a = rank([Coll(0, 100, seq=5), Coll(200, 300, seq=6), Coll(400, 500, seq=7)])
    b = rank([Coll(250, 300, seq=6), Coll(410, 500, seq=7)])
    found = match([a, b], 2)
    assert pairs(found) == [[-1, 0, 1], [0, 1]]
    assert found.matched_by == "seq"
    assert found.last_start_ns.tolist() == [250 * US, 410 * US]
    assert found.last_rank.tolist() == [1, 1]
    assert found.transfer_ns.tolist() == [50 * US, 90 * US]
    assert (len(found), found.total) == (2, 3)
    assert not found.lacks_ranks.any()


def test_kernels_of_one_operator_have_one_number_and_are_counted() -> None:
    a = rank([Coll(0, 10, seq=5), Coll(10, 20, seq=5), Coll(50, 60, seq=6)])
    b = rank([Coll(1, 10, seq=5), Coll(10, 20, seq=5), Coll(52, 60, seq=6)])
    assert pairs(match([a, b], 2)) == [[0, 1, 2], [0, 1, 2]]


def test_numbers_that_count_per_process_are_not_believed() -> None:
    # By number, rank 1's are one late: the ends are 200 us apart. By order they agree.
    a = rank([Coll(200 * n, 200 * n + 100, seq=n) for n in range(10)])
    b = rank([Coll(200 * n + 10, 200 * n + 100, seq=n + 1) for n in range(10)])
    found = match([a, b], 2)
    assert pairs(found) == [list(range(10))] * 2
    assert found.matched_by == "order"


@pytest.mark.parametrize("kind", [ALL_REDUCE, BROADCAST], ids=lambda kind: kind.name)
@pytest.mark.parametrize("seq", [5, -1])
def test_collectives_of_two_comms_ids_are_no_match(kind: CollectiveKind, seq: int) -> None:
    # Ends and order agree throughout; of the third, torch's hashes say that they are two.
    ids = [(-7, -7), (8, 8), (9, 10), (-1, 11)]
    a, b = (
        rank(
            [
                Coll(200 * n + nth, 200 * n + 100, kind, seq=seq + n if seq > 0 else -1, comms_id=i)
                for n, i in enumerate(each[nth] for each in ids * 3)
            ]
        )
        for nth in range(2)
    )
    found = match([a, b], 2)
    apart = {2, 6, 10}
    expected = [-1 if n in apart else n - sum(k < n for k in apart) for n in range(12)]
    assert pairs(found) == [expected] * 2


def test_a_group_without_numbers_is_matched_by_order_beside_one_with_them() -> None:
    other = replace(ALL_REDUCE, group=2)
    a = rank([Coll(0, 100, seq=1), Coll(200, 300, other)])
    b = rank([Coll(20, 100, seq=1), Coll(230, 300, other)])
    found = match([a, b], 2)
    assert (pairs(found), found.matched_by) == ([[0, 1], [0, 1]], "mixed")


def test_groups_of_one_name_and_other_ranks_are_apart() -> None:
    left, right = replace(ALL_REDUCE, group=3), replace(ALL_REDUCE, group=4)
    ranks = [rank([Coll(n, 100, kind)]) for n, kind in enumerate((left, left, right, right))]
    found = match(ranks, 4)
    assert pairs(found) == [[0], [0], [1], [1]]
    assert not found.lacks_ranks.any()


def test_order_counts_within_a_step_so_that_files_may_begin_anywhere() -> None:
    a = rank([Coll(0, 100, step=1), Coll(200, 300, step=2), Coll(400, 500, step=2)])
    b = rank([Coll(210, 300, step=2), Coll(410, 500, step=2)])
    assert pairs(match([a, b], 2)) == [[-1, 0, 1], [0, 1]]


def test_a_rank_that_lost_a_record_is_shifted_by_one() -> None:
    # Rank 2 has no record of the third of six: its later ones are one number early.
    whole = [Coll(500 * n, 500 * n + 100) for n in range(6)]
    lost = [each for n, each in enumerate(whole) if n != 2]
    found = match([rank(whole), rank(whole), rank(lost)], 3)
    assert pairs(found) == [[0, 1, -1, 2, 3, 4]] * 2 + [[0, 1, 2, 3, 4]]
    assert (len(found), found.total) == (5, 6)


def test_a_rank_with_one_record_too_many_is_shifted_back() -> None:
    whole = [Coll(500 * n, 500 * n + 100) for n in range(6)]
    more = sorted([*whole, Coll(700, 720)], key=lambda each: each.start)
    found = match([rank(whole), rank(whole), rank(more)], 3)
    assert pairs(found) == [[0, 1, 2, 3, 4, 5]] * 2 + [[0, 1, -1, 2, 3, 4, 5]]


def test_what_follows_in_a_step_is_left_out_where_two_ranks_disagree() -> None:
    # Ranks 2 and 3 are 200 and 250 us off from the second on: no shift of one rank helps.
    whole = [Coll(500 * n, 500 * n + 100) for n in range(4)]
    off = [
        [Coll(500 * n + late, 500 * n + late + 100) if n else whole[0] for n in range(4)]
        for late in (200, 250)
    ]
    found = match([rank(whole), rank(whole), *map(rank, off)], 4)
    assert pairs(found) == [[0, -1, -1, -1]] * 4


def test_a_rank_whose_ends_fit_nothing_leaves_out_the_rest_of_the_step() -> None:
    # Rank 2 agrees once and then is 130, 170, ... us off; the next step is right again.
    first = [Coll(500 * n, 500 * n + 100) for n in range(6)]
    off = [first[0], *(Coll(500 * n + 40 * n, 500 * n + 90 + 40 * n) for n in range(2, 7))]
    later = [Coll(9000, 9100, step=2)]
    found = match([rank(first + later), rank(first + later), rank(off + later)], 3)
    assert [each[0] for each in pairs(found)] == [0, 0, 0]
    assert [each[-1] for each in pairs(found)] == [1, 1, 1]
    assert len(found) == 2


def test_ends_may_be_a_fifth_of_the_transfer_apart() -> None:
    a = rank([Coll(0, 10_000)])
    assert len(match([a, rank([Coll(100, 11_900)])], 2)) == 1
    assert len(match([a, rank([Coll(100, 12_100)])], 2)) == 0


def test_too_many_shifts_leave_the_rest_of_the_step_out() -> None:
    # Every other record of rank 1 is missing: four shifts are tried.
    whole = [Coll(500 * n, 500 * n + 100) for n in range(20)]
    found = match([rank(whole), rank(whole[::2])], 2)
    matched = pairs(found)
    assert matched[0][:8:2] == matched[1][:4] == [0, 1, 2, 3]
    assert set(matched[1][5:]) == {-1}


def test_collectives_with_a_root_are_left_out_where_the_numbers_of_them_differ() -> None:
    two = [Coll(0, 100, BROADCAST), Coll(200, 300, BROADCAST)]
    assert len(match([rank(two), rank(two)], 2)) == 2
    assert len(match([rank(two), rank(two[:1])], 2)) == 0


def test_other_sizes_under_one_number_are_not_the_same_collective() -> None:
    larger = replace(ALL_REDUCE, shape=2)
    found = match([rank([Coll(0, 100, seq=1)]), rank([Coll(0, 100, larger, seq=1)])], 2)
    assert len(found) == 0


def test_sends_and_unknown_kernels_are_matched_with_nothing() -> None:
    a = rank([Coll(0, 100, SEND, seq=1), Coll(200, 300, None)])
    found = match([a, a], 2)
    assert pairs(found) == [[-1, -1], [-1, -1]]
    assert (found.matched_by, found.total) == (None, 1)


@pytest.mark.parametrize(("size", "world", "lacks"), [(2, 8, False), (4, 4, True), (None, 8, True)])
def test_a_group_lacks_ranks_where_fewer_than_its_size_are_traced(
    size: int | None, world: int, *, lacks: bool
) -> None:
    kind = replace(ALL_REDUCE, group_size=size)
    found = match([rank([Coll(0, 100, kind)]), rank([Coll(10, 100, kind)])], world)
    assert found.lacks_ranks.tolist() == [lacks]


def test_nothing_matches_nothing() -> None:
    assert len(match([rank([]), rank([])], 2)) == 0
    assert len(match([], 1)) == 0


@pytest.mark.parametrize("with_seq", [True, False])
@pytest.mark.parametrize("seed", range(20))
def test_random_jobs_are_matched_as_they_were_made(seed: int, *, with_seq: bool) -> None:
    """Truth by construction: every rank's kernels carry the number of the collective they are."""
    rng = np.random.default_rng(seed)
    kinds = [ALL_REDUCE, replace(ALL_REDUCE, name="allgather"), replace(ALL_REDUCE, group=2)]
    kinds = [replace(each, group_size=4) for each in kinds]
    at = np.zeros(4)
    rows: list[list[Coll]] = [[], [], [], []]
    truth: list[list[int]] = [[], [], [], []]
    for number in range(60):
        kind = kinds[rng.integers(3)]
        starts = at + rng.uniform(200, 600) + rng.exponential(50, 4)
        ends = starts.max() + rng.uniform(20, 400) + rng.uniform(-5, 5, 4)
        for nth in range(4):
            if number < 3 and nth == 1:  # this file begins later
                continue
            seq = number if with_seq else -1
            rows[nth].append(Coll(starts[nth], ends[nth], kind, step=number // 10, seq=seq))
            truth[nth].append(number)
        at = ends
    found = match([rank(each) for each in rows], 4)
    assert len(found) == 57 or not with_seq
    for matched, numbers in zip(found.instance, truth, strict=True):
        known = matched >= 0
        assert known.sum() == len(found)
        own = np.array(numbers)[known]
        for other, others in zip(found.instance, truth, strict=True):
            which = dict(zip(other.tolist(), others, strict=True))
            assert [which[each] for each in matched[known].tolist()] == own.tolist()

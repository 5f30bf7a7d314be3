"""Waits, lateness and causes of small jobs, worked out by hand; and against a brute force."""

import numpy as np
import pytest
from msgspec.structs import replace

from chopperd.correlate.ranks.comparing import (
    Judgement,
    cause,
    caused_ns,
    judged,
    late_ns,
    median_rank,
    split_ns,
    waits,
    with_cause,
)
from chopperd.correlate.ranks.matching import match
from chopperd.model.arrays import Float64s, Int64s
from tests.unit.correlate.builders import spans
from tests.unit.correlate.ranks.building import BROADCAST, US, Coll, rank


def us(*values: float) -> Int64s:
    return np.array([round(each * US) for each in values], np.int64)


def test_a_rank_waits_from_its_start_to_the_last_ones() -> None:
    # Rank 1 comes 60 us late; both end at 100: 60 us of waiting, 40 of transfer.
    ranks = [rank([Coll(0, 100)]), rank([Coll(60, 100)])]
    found = match(ranks, 2)
    first, second = (waits(each, found, nth) for nth, each in enumerate(ranks))
    assert first.wait_ns.tolist() == [60 * US]
    assert second.wait_ns.tolist() == [0]
    wait_ns, known = split_ns(ranks[0], first, us(0, 50, -10), us(100, 100, 0))
    assert wait_ns.tolist() == [60 * US, 10 * US, 0]
    assert known.all()


def test_only_exposed_time_counts() -> None:
    # Compute runs until 30: of 60 us of waiting, 30 are exposed.
    ranks = [rank([Coll(0, 100)], exposed=spans((30 * US, 100 * US))), rank([Coll(60, 100)])]
    found = match(ranks, 2)
    wait_ns, _ = split_ns(ranks[0], waits(ranks[0], found, 0), us(0), us(100))
    assert wait_ns.tolist() == [30 * US]


def test_time_in_which_another_collective_transfers_is_no_wait() -> None:
    # On another stream one collective moves data from 20 to 50, while the first waits until 60.
    ranks = [rank([Coll(0, 100, seq=1), Coll(20, 50, seq=2)]), rank([])]
    ranks[1] = rank([Coll(20, 50, seq=2), Coll(60, 100, seq=1)])
    found = match(ranks, 2)
    wait_ns, known = split_ns(ranks[0], waits(ranks[0], found, 0), us(0), us(100))
    assert (wait_ns.tolist(), known.tolist()) == ([30 * US], [True])


def test_the_root_of_a_broadcast_does_not_wait_for_those_who_come_after_it_left() -> None:
    # It sends from 0 to 10 and goes on; the receiver comes at 200 and takes 15.
    ranks = [rank([Coll(0, 10, BROADCAST)]), rank([Coll(200, 215, BROADCAST)])]
    found = match(ranks, 2)
    assert waits(ranks[0], found, 0).wait_ns.tolist() == [0]
    assert waits(ranks[1], found, 1).wait_ns.tolist() == [0]


def test_windows_with_unmatched_communication_have_no_split() -> None:
    # 100 us matched; an unmatched kernel of 1 us (1 %) in the first window, of 2 in the second.
    mine = [
        Coll(0, 100, step=1),
        Coll(200, 201, None),
        Coll(300, 400, step=2),
        Coll(500, 502, None),
    ]
    ranks = [rank(mine), rank([Coll(60, 100, step=1), Coll(360, 400, step=2)])]
    found = match(ranks, 2)
    every = waits(ranks[0], found, 0)
    wait_ns, known = split_ns(ranks[0], every, us(0, 250, 0), us(250, 600, 600))
    assert known.tolist() == [True, False, False]
    assert wait_ns[0] == 60 * US
    assert every.wait_ns.tolist() == [60 * US, -1, 60 * US, -1]


def test_windows_beyond_the_columns_end_have_no_split() -> None:
    ranks = [rank([Coll(0, 100)], until=150), rank([Coll(60, 100)])]
    found = match(ranks, 2)
    _, known = split_ns(ranks[0], waits(ranks[0], found, 0), us(0, 0), us(150, 151))
    assert known.tolist() == [True, False]


def test_the_last_to_come_caused_the_waits_of_all_others() -> None:
    ranks = [rank([Coll(start, 100), Coll(start + 200, 300, step=2)]) for start in (0, 30, 70)]
    found = match(ranks, 3)
    every = [waits(each, found, nth) for nth, each in enumerate(ranks)]
    # In step 1: 70 + 40; step 2 is not asked for.
    assert caused_ns(ranks, found, every, np.array([1])).tolist() == [0, 0, 110 * US]


@pytest.mark.parametrize("seed", range(10))
def test_waits_equal_those_counted_ns_by_ns(seed: int) -> None:
    """Brute force: for each ns, whether the rank's collectives wait, transfer or are unmatched."""
    rng = np.random.default_rng(seed)
    length = 4000
    made: tuple[list[tuple[int, int, int]], list[tuple[int, int, int]]] = ([], [])
    for number in range(12):
        starts = rng.integers(0, length - 300, 2)
        end = int(starts.max() + rng.integers(20, 200))
        if end - starts.min() > 600:
            continue
        for nth in range(2):
            made[nth].append((int(starts[nth]), end, number))
    made[0].append((1500, 1700, -1))  # of no number: unmatched
    ranks = [
        rank(
            [Coll(a / US, b / US, seq=s) if s >= 0 else Coll(a / US, b / US, None) for a, b, s in m]
        )
        for m in (sorted(each) for each in made)
    ]
    exposed = np.zeros(length, bool)
    for start, end, _ in made[0]:
        exposed[start:end] = True
    compute = rng.random(length) < 0.3
    exposed &= ~compute
    edges = np.flatnonzero(np.diff(np.concatenate(([0], exposed.astype(int), [0]))))
    pieces = spans(*zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))
    ranks[0] = replace(ranks[0], exposed=pieces)
    waiting, moving = np.zeros(length, bool), np.zeros(length, bool)
    other = {number: start for start, _, number in made[1]}
    for start, end, number in made[0]:
        if number >= 0:
            came = min(max(start, other[number]), end)
            waiting[start:came] = True
            moving[came:end] = True
    found = match(ranks, 2)
    assert len(found) == len(other)
    every = waits(ranks[0], found, 0)
    windows = np.arange(0, length, 500)
    wait_ns, known = split_ns(ranks[0], every, windows, windows + 500)
    for nth, start in enumerate(windows.tolist()):
        inside = slice(start, start + 500)
        e, w, m = exposed[inside], waiting[inside], moving[inside]
        assert wait_ns[nth] == (e & w & ~m).sum()
        assert known[nth] == ((e & ~w & ~m).sum() <= 0.01 * e.sum())


def ms(*rows: tuple[float, ...]) -> Float64s:
    return np.array(rows, np.float64) * 1e6


def test_own_work_is_the_window_without_exposed_communication() -> None:
    # Own work 90, 80, 80 ms: rank 0 is 10 ms later than the median.
    late = late_ns(ms((100, 100, 100)), ms((10, 20, 20)))
    assert late.tolist() == ms((10, 0, 0)).tolist()


def test_of_two_ranks_the_slower_is_late_by_all_of_the_difference() -> None:
    assert late_ns(ms((100, 100)), ms((10, 30))).tolist() == ms((20, 0)).tolist()


def test_the_median_of_two_ranks_is_the_lower_and_of_more_the_middle() -> None:
    assert median_rank(ms((3, 1))).tolist() == ms((1,))[0].tolist()
    assert median_rank(ms((3, 1, 2, 5), (1, 1, 1, 9))).tolist() == [2.5e6, 1e6]


def test_a_straggler_is_late_in_more_than_half_of_the_steps_and_in_three() -> None:
    # Steps of 100 ms: late from above 1 ms on.
    late = ms((1.1, 1.1, 0, 1), (1.1, 1.1, 0, 1), (1.1, 0, 5, 1), (0, 0, 0, 1))
    verdicts = judged(late, np.full(4, 100e6))
    assert [each.verdict for each in verdicts] == ["straggler", "pauses", "pauses", "even"]
    assert verdicts[0].is_late.tolist() == [True, True, True, False]
    assert verdicts[2].pause_ns == 5_000_000
    assert verdicts[0].mean_ns == pytest.approx(825_000)


def test_fewer_than_three_steps_have_no_verdict() -> None:
    verdicts = judged(ms((9, 0), (9, 0)), np.full(2, 100e6))
    assert [each.verdict for each in verdicts] == [None, None]
    assert with_cause(verdicts[0], [fall(), fall()], 0) == Judgement(verdict=None)


def test_natural_spread_is_one_and_a_half_percent_or_three_deviations() -> None:
    # Of three ranks 1.4 ms of 100 are natural and 1.6 are not.
    verdicts = judged(ms(*[(0, 1.4, 1.6)] * 3), np.full(3, 100e6))
    assert [each.is_spread for each in verdicts] == [False, True, False]
    # Of four: deviations of 0, 0.4, 1.2, 1.9 from their median 0.8 are 0.8, 0.4, 0.4, 1.1, in the
    # median 0.6: 1.8 are natural.
    verdicts = judged(ms(*[(0, 0.4, 1.2, 1.9)] * 3), np.full(3, 100e6))
    assert [each.is_spread for each in verdicts] == [False, False, True, False]


def test_lateness_by_the_clock_within_natural_spread_accuses_nobody() -> None:
    late = ms(*[(0, 0, 1.4)] * 3)
    verdict = judged(late, np.full(3, 100e6))[2]
    by_clock = [fall(), fall(), fall(dvfs_loss=11.4)]
    by_data = [fall(), fall(), fall(idle_data=1.4)]
    assert with_cause(verdict, by_clock, 2) == Judgement(verdict="even")
    named = with_cause(verdict, by_data, 2)
    assert named == Judgement(verdict="straggler", cause="idle_data", cause_ns=1.4)


def test_a_late_rank_of_which_no_row_is_longer_has_no_cause() -> None:
    verdict = judged(ms(*[(0, 0, 9)] * 3), np.full(3, 100e6))[2]
    assert with_cause(verdict, [fall()] * 3, 2) == Judgement(verdict="straggler")


def fall(**rows: float | None) -> dict[str, float | None]:
    usual = {"compute_at_ref": 70.0, "dvfs_loss": 10.0, "compute_unsampled": 0.0, "unknown": 0.0}
    return usual | {"exposed_comm": 20.0, "idle_data": 0.0, "idle_launch_prep": 1.0} | rows


def test_the_cause_is_the_row_that_exceeds_the_median_ranks_most() -> None:
    usual = [fall(), fall()]
    assert cause([*usual, fall(idle_data=5.0, dvfs_loss=12.0)], 2) == ("idle_data", 5.0)
    assert cause([*usual, fall(idle_data=1.0, dvfs_loss=13.0)], 2) == ("dvfs_loss", 3.0)
    assert cause([*usual, fall(unknown=50.0, exposed_comm=90.0)], 2) is None


def test_compute_covered_in_part_is_scaled_to_all_of_it() -> None:
    # Half of rank 2's 90 is covered, and loses 20 of 45: 40 of 90, 30 more than the others.
    part = fall(compute_at_ref=25.0, dvfs_loss=20.0, compute_unsampled=45.0)
    name, more_ns = cause([fall(), fall(), part], 2) or ("", 0.0)
    assert name == "dvfs_loss"
    assert more_ns == pytest.approx(30.0)


def test_compute_without_clocks_on_any_rank_is_one_row() -> None:
    bare = fall(compute_at_ref=None, dvfs_loss=None, compute_unsampled=95.0)
    assert cause([fall(), fall(), bare], 2) == ("compute_unsampled", 15.0)
    little = fall(compute_at_ref=30.0, dvfs_loss=5.0, compute_unsampled=60.0)
    assert cause([fall(), fall(), little], 2) == ("compute_unsampled", 15.0)

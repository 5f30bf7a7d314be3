"""Sets of time against brute force: each law is checked ns by ns on a small grid."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from chopperd.correlate import intervals
from chopperd.model.timeline import Intervals
from tests.trace_building import column

GRID = range(-2, 34)
POINTS = np.array(GRID, np.int64)

pairs = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=12)
cut_lists = st.lists(st.integers(-2, 33), max_size=8)
laws = settings(max_examples=25, deadline=None)


def made(of: list[tuple[int, int]]) -> Intervals:
    return intervals.union(column([s for s, _ in of]), column([e for _, e in of]))


def covered(a: Intervals) -> set[int]:
    """The grid points of a set, ns by ns."""
    return {t for s, e in zip(a.start_ns, a.end_ns, strict=True) for t in range(s, e)}


def covered_by_pairs(of: list[tuple[int, int]]) -> set[int]:
    return {t for s, e in of for t in range(s, e)}


def assert_disjoint_and_sorted(a: Intervals) -> None:
    assert a.start_ns.dtype == a.end_ns.dtype == np.int64
    assert np.all(a.start_ns < a.end_ns)
    assert np.all(a.end_ns[:-1] <= a.start_ns[1:])


@laws
@given(pairs)
def test_a_union_covers_what_its_parts_cover_in_the_fewest_pieces(
    of: list[tuple[int, int]],
) -> None:
    a = made(of)
    assert covered(a) == covered_by_pairs(of)
    assert_disjoint_and_sorted(a)
    assert np.all(a.end_ns[:-1] < a.start_ns[1:])


@laws
@given(pairs, pairs, cut_lists)
def test_intersection_and_difference_are_those_of_sets_of_ns(
    of_a: list[tuple[int, int]], of_b: list[tuple[int, int]], cuts: list[int]
) -> None:
    a, b = intervals.split_at(made(of_a), column(cuts)), made(of_b)
    both, only_a = intervals.intersection(a, b), intervals.difference(a, b)
    assert covered(both) == covered(a) & covered(b)
    assert covered(only_a) == covered(a) - covered(b)
    assert_disjoint_and_sorted(both)
    assert_disjoint_and_sorted(only_a)
    assert covered(intervals.intersection(b, a)) == covered(both)
    assert intervals.length_ns(both) + intervals.length_ns(only_a) == intervals.length_ns(a)


@laws
@given(pairs, cut_lists)
def test_splitting_keeps_the_time_and_cuts_it_at_every_cut_inside(
    of: list[tuple[int, int]], cuts: list[int]
) -> None:
    a = made(of)
    pieces = intervals.split_at(a, column(cuts))
    assert covered(pieces) == covered(a)
    assert_disjoint_and_sorted(pieces)
    inner = {c for c in cuts if {c - 1, c} <= covered(a)}
    assert set(pieces.start_ns.tolist()) == set(a.start_ns.tolist()) | inner


@laws
@given(pairs, st.integers(-2, 33), st.integers(-2, 33))
def test_clipping_keeps_what_lies_in_the_window(
    of: list[tuple[int, int]], start: int, end: int
) -> None:
    clipped = intervals.clip(made(of), start, end)
    assert covered(clipped) == covered_by_pairs(of) & set(range(start, end))
    assert_disjoint_and_sorted(clipped)


@laws
@given(pairs)
def test_membership_and_lengths_agree_with_counting(of: list[tuple[int, int]]) -> None:
    a, inside = made(of), covered_by_pairs(of)
    assert intervals.contains(a, POINTS).tolist() == [t in inside for t in GRID]
    assert intervals.length_ns(a) == len(inside)
    before = intervals.length_before_ns(a, POINTS).tolist()
    assert before == [sum(t < point for t in inside) for point in GRID]


def test_touching_intervals_join_in_a_union_and_empty_ones_vanish() -> None:
    a = intervals.union(column([20, 0, 5, 9, 30]), column([20, 5, 9, 8, 31]))
    assert (a.start_ns.tolist(), a.end_ns.tolist()) == ([0, 30], [9, 31])


def test_unix_times_in_ns_stay_exact() -> None:
    t = 1_790_857_026_000_000_001
    a = intervals.union(column([t, t + 3]), column([t + 1, t + 10]))
    assert intervals.length_ns(a) == 8
    assert intervals.length_before_ns(a, column([t, t + 4, t + 9])).tolist() == [0, 2, 7]


def test_the_empty_set_works_everywhere() -> None:
    some = made([(0, 5)])
    assert len(intervals.union(column([]), column([]))) == 0
    assert len(intervals.intersection(intervals.EMPTY, some)) == 0
    assert len(intervals.difference(intervals.EMPTY, some)) == 0
    assert intervals.length_ns(intervals.difference(some, intervals.EMPTY)) == 5
    assert len(intervals.split_at(intervals.EMPTY, column([1]))) == 0
    assert len(intervals.clip(intervals.EMPTY, 0, 9)) == 0
    assert not intervals.contains(intervals.EMPTY, POINTS).any()
    assert intervals.length_before_ns(intervals.EMPTY, column([0, 9])).tolist() == [0, 0]

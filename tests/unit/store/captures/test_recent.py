"""Sums for the metrics: exact, cheap, and never larger than the time they stand for."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from chopperd.store.captures.recent import KEPT_NS, RecentCaptures
from chopperd.units import NS_PER_S
from tests.unit.report.documents import without_clocks
from tests.unit.store.captures.examples import totals_row

AGE_NS = 900 * NS_PER_S


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5000)), max_size=12),
    st.lists(st.integers(0, 6000), min_size=1, max_size=6),
)
def test_sums_equal_those_over_the_captures_that_are_young_enough(
    puts: list[tuple[int, int]], times_s: list[int]
) -> None:
    """Each capture stands for 0.131 s of loss; the last put of a capture counts."""
    recent = RecentCaptures()
    for capture, end_s in puts:
        recent.put(capture, end_s * NS_PER_S, [totals_row()])
    last = dict(puts)
    for now_s in sorted(times_s):
        young = [end for end in last.values() if end > now_s - 900]
        traced = recent.traced(now_s * NS_PER_S, AGE_NS)
        if not young:
            assert traced == {}
            continue
        assert traced["0"].window_s["dvfs_loss"] == len(young) * 131 / 1000
        assert traced["0"].last_capture_unix_ns == max(young) * NS_PER_S


def test_sums_are_made_once_until_a_capture_comes_or_grows_old() -> None:
    recent = RecentCaptures()
    recent.put(1, 10 * NS_PER_S, [totals_row()])
    first = recent.traced(20 * NS_PER_S, AGE_NS)
    assert recent.traced(909 * NS_PER_S, AGE_NS) is first
    assert recent.traced(910 * NS_PER_S, AGE_NS) == {}
    recent.put(2, 900 * NS_PER_S, [totals_row()])
    assert recent.traced(911 * NS_PER_S, AGE_NS)["0"].window_s["dvfs_loss"] == 0.131


def test_a_clock_that_is_set_back_is_followed() -> None:
    recent = RecentCaptures()
    recent.put(1, 10 * NS_PER_S, [totals_row()])
    assert recent.traced(2_000 * NS_PER_S, AGE_NS) == {}
    assert recent.traced(20 * NS_PER_S, AGE_NS).keys() == {"0"}


def test_captures_are_not_kept_for_ever() -> None:
    recent = RecentCaptures()
    for capture in range(1000):
        recent.put(capture, capture * 60 * NS_PER_S, [totals_row()])
    recent.traced(1000 * 60 * NS_PER_S, AGE_NS)
    assert len(recent) == KEPT_NS // (60 * NS_PER_S)


def test_what_a_capture_does_not_know_is_absent_not_zero() -> None:
    recent = RecentCaptures()
    (totals,) = without_clocks().totals
    recent.put(1, NS_PER_S, [totals_row(gpu="1")])
    recent.put(2, NS_PER_S, [replace(totals, gpu="0")])
    traced = recent.traced(NS_PER_S, AGE_NS)["0"]
    assert "dvfs_loss" not in traced.window_s
    assert "compute_at_ref" not in traced.window_s
    assert traced.window_s["compute_unsampled"] == 1.004
    assert traced.lost_s == {}

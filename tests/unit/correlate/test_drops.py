"""Drops by hand, and against plain loops over the whole stream."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from chopperd.correlate.clock.slots import ClockSamples
from chopperd.correlate.drops import DropDetector, DropRules
from chopperd.model.arrays import rows_of
from chopperd.model.captures import ClockDrop, DropState
from chopperd.model.kinds import Cause
from chopperd.units import NS_PER_S
from tests.unit.correlate.clock_streams import Runs, drops_by_loops, found_in, stream

#: Short ones, so that few samples show everything.
QUICK = DropRules(trailing_s=6.0, warm_up_s=2.0, new_level_s=8.0, gap_s=4.0)


def only(drops: list[ClockDrop]) -> ClockDrop:
    assert len(drops) == 1
    return drops[0]


def test_a_drop_has_its_onset_end_depth_and_loss() -> None:
    drop = only(found_in(stream([(60, 1500), (5, 1380), (20, 1500)])))
    assert (drop.state, drop.begin_ns, drop.end_ns) == ("recovered", 60 * 10**9, 65 * 10**9)
    assert (drop.length_s, drop.reference_mhz) == (5.0, 1500.0)
    # By hand: 120 of 1500 MHz are 8 %, of 5 s busy.
    assert drop.depth_ratio == pytest.approx(0.08)
    assert drop.mean_depth_ratio == pytest.approx(0.08)
    assert (drop.busy_s, drop.lost_s) == pytest.approx((5.0, 0.4))
    assert drop.lost_by_cause_s == {Cause.POWER_CAP: pytest.approx(0.4)}
    assert drop.cause is Cause.POWER_CAP


@pytest.mark.parametrize("clock_mhz", [1500.0, 1430.0, 1600.0])
def test_what_stays_within_five_percent_is_no_drop(clock_mhz: float) -> None:
    assert found_in(stream([(60, 1500), (30, clock_mhz), (30, 1500)])) == []


def test_a_dip_shorter_than_the_window_counts_by_the_mean_over_the_window() -> None:
    # 0.4 s at 10 % below are 4 % of a second, and at 20 % below 8 %.
    assert found_in(stream([(60, 1500), (0.4, 1350), (20, 1500)])) == []
    drop = only(found_in(stream([(60, 1500), (0.4, 1200), (20, 1500)])))
    assert (drop.length_s, drop.depth_ratio) == pytest.approx((0.4, 0.2))


def test_it_ends_above_two_and_a_half_percent_below_the_reference_only() -> None:
    back = only(found_in(stream([(60, 1500), (5, 1350), (5, 1450), (5, 1350), (20, 1500)])))
    assert back.length_s == 15.0
    assert back.lost_s == pytest.approx(10 * 0.1 + 5 * 50 / 1500)
    assert len(found_in(stream([(60, 1500), (5, 1350), (5, 1470), (5, 1350), (20, 1500)]))) == 2


def test_there_is_no_drop_before_ten_busy_seconds_and_one_right_after() -> None:
    assert found_in(stream([(5, 1500), (30, 1200)])) == []
    assert only(found_in(stream([(11.2, 1500), (30, 1200)]))).state is DropState.OPEN


def test_an_open_drop_is_told_as_far_as_it_has_come() -> None:
    drop = only(found_in(stream([(60, 1500), (4.1, 1350)])))
    assert (drop.state, drop.end_ns, drop.begin_ns) == ("open", None, 60 * 10**9)
    # Samples at 60.0, 60.1, ... 63.9 s; the one at 64.0 is in a slot that is not over.
    assert (drop.length_s, drop.busy_s) == pytest.approx((3.9, 4.0))
    assert drop.lost_s == pytest.approx(0.4)


def test_after_ten_minutes_it_is_a_new_level_that_later_drops_are_told_against() -> None:
    first, second = found_in(stream([(60, 1500), (660, 1350), (5, 1200), (20, 1350)]))
    assert first.state is DropState.NEW_LEVEL
    assert first.length_s == pytest.approx(600, abs=0.3)
    assert first.lost_s == pytest.approx(60, abs=0.1)
    assert (second.begin_ns, second.reference_mhz) == (720 * NS_PER_S, 1350.0)


def test_the_reference_is_the_last_minute_without_the_drops_in_it() -> None:
    """Low for twice as long as it is high in between: each is told against the level before."""
    drops = found_in(stream([(60, 1500), *[(80, 1350), (20, 1500)] * 3]))
    assert [drop.reference_mhz for drop in drops] == [1500.0] * 3
    assert [drop.length_s for drop in drops] == [80.0] * 3


def test_a_slow_fall_is_no_drop() -> None:
    """One percent a minute, as of a GPU that warms up."""
    assert found_in(stream([(1, 1500 - 0.25 * second) for second in range(240)])) == []


def test_idle_time_is_left_out_and_does_not_end_a_drop() -> None:
    drop = only(found_in(stream([(60, 1500), (3, 1350), (30, None), (2, 1350), (20, 1500)])))
    assert (drop.state, drop.length_s) == ("recovered", 35.0)
    assert (drop.busy_s, drop.lost_s) == pytest.approx((5.0, 0.5))


def test_a_minute_without_a_busy_sample_interrupts_it_and_begins_anew() -> None:
    drop = only(found_in(stream([(60, 1500), (3, 1350), (61, None), (30, 1200)])))
    assert drop.state == "interrupted"
    assert drop.length_s == pytest.approx(2.9)
    # Without a drop the gap is forgotten likewise: what ran before is no reference any more.
    assert found_in(stream([(60, 1500), (61, None), (30, 1200)])) == []


def test_time_alone_interrupts_an_open_drop_too() -> None:
    detector = DropDetector()
    assert detector.advance(NS_PER_S) == []
    assert detector.add(stream([(60, 1500), (3, 1350)])) == []
    assert detector.advance(122 * NS_PER_S) == []
    drop = only(detector.advance(123 * NS_PER_S))
    assert drop.state == "interrupted"
    assert drop.length_s == pytest.approx(2.9)
    assert (detector.current(), detector.found_count) == (None, 1)
    assert detector.advance(500 * NS_PER_S) == []
    assert detector.add(stream([(30, 1200)], first_s=501)) == []
    assert detector.advance(900 * NS_PER_S) == []


def test_a_clock_that_swings_has_no_drops_by_its_swing_and_others_nonetheless() -> None:
    """1700 and 1300 MHz in turns of 0.7 and 0.4 s: means over a second lie up to 6 % apart."""
    swing: Runs = [(0.7, 1700), (0.4, 1300)] * 60
    assert found_in(stream(swing)) == []
    low: Runs = [(seconds, clock * 0.75) for seconds, clock in swing[:20] if clock]
    drop = only(found_in(stream([*swing, *low, *swing])))
    assert drop.begin_ns / NS_PER_S == pytest.approx(66, abs=0.7)
    assert drop.mean_depth_ratio == pytest.approx(0.25, abs=0.02)


def test_no_mean_is_over_less_than_a_step_where_that_is_known() -> None:
    runs: Runs = [(60, 1500), (1.2, 1350), (20, 1500)]
    assert len(found_in(stream(runs))) == 1
    assert found_in(stream(runs), rules=DropRules(step_s=4.0)) == []


@pytest.mark.parametrize(
    ("cause", "told"),
    [(Cause.THERMAL, Cause.THERMAL), (None, Cause.UNEXPLAINED), (Cause.UNKNOWN, Cause.UNKNOWN)],
)
def test_its_cause_is_by_the_limits_in_force(cause: Cause | None, told: Cause) -> None:
    drop = only(found_in(stream([(60, 1500)]), stream([(5, 1350)], cause, first_s=60)))
    assert (drop.cause, set(drop.lost_by_cause_s)) == (told, {told})


def test_the_cause_is_what_most_of_the_loss_is_due_to_not_most_of_the_time() -> None:
    drop = only(
        found_in(
            stream([(60, 1500)]),
            stream([(6, 1400)], Cause.POWER_CAP, first_s=60),
            stream([(4, 1200)], Cause.THERMAL, first_s=66),
            stream([(20, 1500)], first_s=70),
        )
    )
    assert drop.cause is Cause.THERMAL
    # 6 s at 100 and 4 s at 300 of 1500 MHz.
    assert drop.lost_by_cause_s[Cause.POWER_CAP] == pytest.approx(0.4)
    assert drop.lost_by_cause_s[Cause.THERMAL] == pytest.approx(0.8)
    assert drop.lowest_mhz == pytest.approx(1200)


def test_power_and_temperature_are_told_of_just_before_and_over_it() -> None:
    """Read once a second; a reading stands for five seconds at most."""
    samples = stream([(60, 1500), (5, 1350), (20, 1500)])
    power_w, temperature_c = samples.power_w.copy(), samples.temperature_c.copy()
    power_w[::10] = 600.0
    power_w[600::10] = 500.0
    temperature_c[:500:10] = 60.0
    temperature_c[610::10] = 70.0
    drop = only(found_in(replace(samples, power_w=power_w, temperature_c=temperature_c)))
    assert (drop.onset_power_w, drop.mean_power_w) == pytest.approx((600, 500))
    assert drop.onset_temperature_c is None
    assert drop.mean_temperature_c == pytest.approx(70)


def test_samples_one_by_one_give_the_same_drops() -> None:
    samples = stream([(20, 1500), (5, 1350), (20, 1500)])
    singles = [rows_of(samples, slice(place, place + 1)) for place in range(len(samples.t_ns))]
    assert found_in(*singles) == found_in(samples)
    assert len(found_in(samples)) == 1


@given(
    runs=st.lists(
        st.tuples(
            st.sampled_from([0.3, 0.9, 2.5, 5.0, 9.0]),
            st.sampled_from([1500.0, 1500.0, 1480.0, 1430.0, 1380.0, 1200.0, None]),
        ),
        max_size=8,
    ),
    noise_mhz=st.sampled_from([0.0, 20.0, 60.0]),
    cuts=st.lists(st.integers(0, 500), max_size=5),
    seed=st.integers(0, 100),
)
@settings(max_examples=50, deadline=None)
def test_drops_are_those_of_plain_loops_however_the_stream_is_cut(
    runs: Runs, noise_mhz: float, cuts: list[int], seed: int
) -> None:
    samples = _noisy(stream([(4, 1500), *runs]), noise_mhz, seed)
    whole = found_in(samples, rules=QUICK)
    edges = [0, *sorted(cuts), len(samples.t_ns)]
    parts = [rows_of(samples, slice(*edge)) for edge in pairwise(edges)]
    assert found_in(*parts, rules=QUICK) == whole
    by_loops = drops_by_loops(samples, QUICK)
    assert [drop.state.value for drop in whole] == [state for state, *_ in by_loops]
    for drop, (_, begin_ns, end_ns, mean_mhz) in zip(whole, by_loops, strict=True):
        assert drop.begin_ns == begin_ns
        assert drop.length_s == pytest.approx((end_ns - begin_ns) / NS_PER_S)
        assert drop.mean_mhz == pytest.approx(mean_mhz)
        assert drop.lost_s == pytest.approx(
            max(drop.busy_s * (1 - mean_mhz / drop.reference_mhz), 0), abs=1e-9
        )
        assert sum(drop.lost_by_cause_s.values()) == pytest.approx(drop.lost_s)


def _noisy(samples: ClockSamples, noise_mhz: float, seed: int) -> ClockSamples:
    """The samples with a clock that scatters and times that are a little off."""
    draw = np.random.default_rng(seed)
    t_ns = samples.t_ns + draw.integers(0, 30_000_000, len(samples.t_ns))
    clock_mhz = samples.sm_clock_mhz + draw.normal(0, noise_mhz, len(t_ns))
    return replace(samples, t_ns=t_ns, sm_clock_mhz=clock_mhz)

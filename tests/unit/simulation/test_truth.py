import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.truth import limited_ns, lost_by_cause_ns, lost_ns, mean_mhz
from chopperd.model.kinds import Cause
from chopperd.model.timeline import Intervals
from chopperd.simulation.track import ClockTruth, StepFunction

ORIGIN_NS = 1_790_857_026_000_000_000


def truth_of(cells: list[tuple[int, float, int]]) -> ClockTruth:
    lengths, clocks, causes = zip(*cells, strict=True)
    edges = ORIGIN_NS + np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    clock = StepFunction(edges_ns=edges, value=np.array(clocks, np.float64))
    return ClockTruth(clock=clock, causes=np.array(causes, np.int64))


def interval(start_ns: int, end_ns: int) -> Intervals:
    starts, ends = np.array([ORIGIN_NS + start_ns]), np.array([ORIGIN_NS + end_ns])
    return Intervals(start_ns=starts, end_ns=ends)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 40), st.floats(300, 2000)), min_size=1, max_size=12),
    st.data(),
)
def test_integrals_equal_a_sum_over_every_nanosecond(
    cells: list[tuple[int, float]], data: st.DataObject
) -> None:
    truth = truth_of([(length, clock, 0) for length, clock in cells])
    each_ns = np.repeat([clock for _, clock in cells], [length for length, _ in cells])
    start = data.draw(st.integers(0, len(each_ns) - 1))
    end = data.draw(st.integers(start + 1, len(each_ns)))
    span, inside = interval(start, end), each_ns[start:end]
    assert truth.clock.over(span)[0] == pytest.approx(inside.sum(), rel=1e-12)
    assert mean_mhz(truth, span) == pytest.approx(inside.mean(), rel=1e-12)
    all_lost_ns = lost_ns(truth, span, 1500.0)[0]
    assert all_lost_ns == pytest.approx(np.maximum(0, 1 - inside / 1500).sum(), abs=1e-9)
    by_cause = lost_by_cause_ns(truth, span, 1500.0)
    assert sum(each[0] for each in by_cause.values()) == pytest.approx(all_lost_ns, abs=1e-9)


def test_limits_in_force_share_a_loss_evenly_and_none_is_unexplained() -> None:
    both = Cause.POWER_CAP.bit | Cause.THERMAL.bit
    truth = truth_of(
        [(100, 500, both), (100, 750, 0), (100, 1000, 0), (100, 500, Cause.THERMAL.bit)]
    )
    # by hand, against 1000 MHz: 50 ns shared, 25 ns with no limit, none, 50 ns thermal
    lost = lost_by_cause_ns(truth, interval(0, 400), 1000.0)
    assert {cause: each[0] for cause, each in lost.items()} == {
        Cause.POWER_CAP: pytest.approx(25),
        Cause.THERMAL: pytest.approx(75),
        Cause.UNEXPLAINED: pytest.approx(25),
    }


def test_a_standing_limit_takes_the_loss_above_it() -> None:
    truth = truth_of([(100, 500, Cause.POWER_CAP.bit), (100, 900, Cause.POWER_CAP.bit)])
    # by hand, limit 800 of 1000 MHz: 20 + 10 ns are the limit's, 30 ns below it the power cap's
    lost = lost_by_cause_ns(truth, interval(0, 200), 1000.0, limit_mhz=800.0)
    assert {cause: each[0] for cause, each in lost.items()} == {
        Cause.USER_LIMIT: pytest.approx(30),
        Cause.POWER_CAP: pytest.approx(30),
    }


def test_a_limit_counter_is_the_time_integral_of_its_bit() -> None:
    truth = truth_of([(10, 900, Cause.THERMAL.bit), (10, 900, 0), (10, 900, Cause.THERMAL.bit)])
    times = ORIGIN_NS + np.array([0, 5, 10, 20, 24, 30])
    assert limited_ns(truth, Cause.THERMAL, times).tolist() == [0, 5, 10, 10, 14, 20]


def test_a_time_outside_the_simulated_span_is_refused() -> None:
    truth = truth_of([(10, 900, 0)])
    with pytest.raises(ValueError, match="outside"):
        truth.clock.at(np.array([ORIGIN_NS + 11]))

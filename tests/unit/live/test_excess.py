"""Live loss against peers, by hand."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from chopperd.live.readings import BusyClock, BusyClocks, window_excess_s
from chopperd.model.kinds import Cause
from chopperd.units import NS_PER_MS, NS_PER_S
from tests.fakes.records import records
from tests.fakes.samples import gpu_info

PERIOD_NS = 100 * NS_PER_MS
GPU = replace(gpu_info(), sm_clock_max_mhz=2000.0)


def busy(mean_mhz: float, busy_s: float = 10.0, model: str = "H100") -> BusyClock:
    return BusyClock(model=model, sampled_s=10.0, busy_s=busy_s, mean_hz=mean_mhz * 1e6)


def test_a_gpu_below_the_median_of_its_model_loses_the_share_of_its_busy_time() -> None:
    clocks = [busy(1600), busy(1600), busy(1600), busy(1600), busy(1440, busy_s=8.0)]
    # By hand: the median is 1600; 1 - 1440/1600 = 0.1 of 8 s.
    assert list(window_excess_s(clocks)) == [0, 0, 0, 0, pytest.approx(0.8)]


def test_where_a_capture_knows_the_share_of_compute_the_loss_is_times_that() -> None:
    clocks = [busy(1600), busy(1600), busy(1600), busy(1440), busy(1440)]
    # By hand: 0.1 of 10 s, of which 60 % is compute; of the last GPU nothing is known.
    found = window_excess_s(clocks, [0.6, 0.6, 0.6, 0.6, None])
    assert list(found) == [0, 0, 0, pytest.approx(0.6), pytest.approx(1.0)]


def test_the_median_of_an_even_number_is_between_the_middle_two() -> None:
    clocks = [busy(1700), busy(1650), busy(1550), busy(1500)]
    # By hand: the median is 1600.
    assert list(window_excess_s(clocks)) == [
        0,
        0,
        pytest.approx(10 * (1 - 1550 / 1600)),
        pytest.approx(10 * (1 - 1500 / 1600)),
    ]


def test_fewer_than_four_busy_gpus_of_a_model_say_nothing() -> None:
    three = [busy(1600), busy(1600), busy(1000), None, None]
    assert window_excess_s(three) == (None,) * 5
    mixed = [busy(1600), busy(1600), busy(1000), busy(900, model="A100")]
    assert window_excess_s(mixed) == (None,) * 4


def test_models_are_compared_among_themselves() -> None:
    clocks = [busy(1980), busy(1410, model="A100")] * 4
    assert window_excess_s(clocks) == (0,) * 8


@given(st.lists(st.none() | st.floats(300, 2000).map(busy), max_size=9))
@settings(max_examples=60, deadline=None)
def test_excess_is_never_negative_and_at_most_half_lose(clocks: list[BusyClock | None]) -> None:
    excess_s = window_excess_s(clocks)
    known = [lost_s for lost_s in excess_s if lost_s is not None]
    assert len(known) in {0, sum(clock is not None for clock in clocks)}
    assert all(0 <= lost_s <= 10 for lost_s in known)
    assert sum(lost_s > 0 for lost_s in known) <= len(known) // 2


def test_the_busy_clock_is_of_the_window_and_of_busy_time_only() -> None:
    clocks = BusyClocks(GPU)
    idle = {"sm_clock_mhz": 300.0, "causes": Cause.LOW_UTILIZATION.bit}
    clocks.add(records([idle] * 50 + [{"sm_clock_mhz": 1500.0}] * 49 + [{"sm_clock_mhz": 1500.0}]))
    clocks.add(records([{"sm_clock_mhz": 900.0}] * 50, first_ns=10 * NS_PER_S))
    found = clocks.close_window(10 * NS_PER_S, PERIOD_NS)
    # By hand: samples at 5.0, 5.1, ... 9.9 s are busy: 4.9 s between them and half of the interval
    # before them.
    assert found is not None
    assert found.model == "NVIDIA H100 80GB HBM3"
    assert found.busy_s == pytest.approx(4.95)
    assert found.mean_hz == pytest.approx(1500e6)
    later = clocks.close_window(20 * NS_PER_S, PERIOD_NS)
    # 4.9 s at 900 MHz and the interval across the border, half at each.
    assert later is not None
    assert later.busy_s == pytest.approx(5.0)
    assert later.mean_hz == pytest.approx((4.95 * 900e6 + 0.05 * 1500e6) / 5.0)


def test_a_window_hardly_busy_has_no_mean() -> None:
    clocks = BusyClocks(GPU)
    assert clocks.close_window(NS_PER_S, PERIOD_NS) is None
    clocks.add(records([{"sm_clock_mhz": 1500.0}] * 10))
    assert clocks.close_window(10 * NS_PER_S, PERIOD_NS) is None  # 0.9 s


def test_no_records_are_no_window() -> None:
    clocks = BusyClocks(GPU)
    clocks.add(records([]))
    assert clocks.close_window(NS_PER_S, PERIOD_NS) is None


def test_what_the_sums_round_off_is_no_excess() -> None:
    """Means are differences of sums that grow for weeks: equal clocks differ by 1e-12 or so."""
    clocks = [busy(1600), busy(1600), busy(1600), busy(1600 * (1 - 1e-11))]
    assert window_excess_s(clocks) == (0, 0, 0, 0)
    clocks[-1] = busy(1599.99)
    assert window_excess_s(clocks)[-1] == pytest.approx(10 * 0.01 / 1600)

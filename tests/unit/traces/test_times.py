from decimal import ROUND_HALF_EVEN, Decimal

from hypothesis import given, settings
from hypothesis import strategies as st

from chopperd.traces.decode import Refusal, exact_events, quick_events
from chopperd.traces.times import NO_TIME, ns_from_decimal_us, ns_from_us


def decimal_us(whole_us: int, thousandths: int) -> str:
    return f"{whole_us}.{thousandths:03d}"


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**43 - 1), st.integers(0, 999))
def test_relative_times_of_three_decimals_are_exact(whole_us: int, thousandths: int) -> None:
    text = decimal_us(whole_us, thousandths)
    expected = whole_us * 1000 + thousandths
    assert ns_from_us([float(text)]).tolist() == [expected]
    assert ns_from_us([-float(text)]).tolist() == [-expected]
    assert ns_from_decimal_us([Decimal(text)]).tolist() == [expected]


def test_each_thousandth_below_the_limit_of_floats_is_told_apart() -> None:
    # Just below 2**43 us float64 is spaced 0.98 ns, the widest at which this holds.
    whole_us = 2**43 - 1
    texts = [decimal_us(whole_us, thousandth) for thousandth in range(1000)]
    expected = [whole_us * 1000 + thousandth for thousandth in range(1000)]
    assert ns_from_us([float(text) for text in texts]).tolist() == expected


@settings(max_examples=25, deadline=None)
@given(st.integers(10**15, 2 * 10**15), st.integers(0, 999))
def test_absolute_times_of_19_digits_are_exact_from_the_text_on(
    whole_us: int, thousandths: int
) -> None:
    text = f'[{{"ph":"X","ts":{decimal_us(whole_us, thousandths)}}}]'.encode()
    assert isinstance(quick_events(text), Refusal)
    events = exact_events(text)
    assert not isinstance(events, Refusal)
    times = ns_from_decimal_us([event.ts for event in events])  # type: ignore[union-attr]
    assert times.tolist() == [whole_us * 1000 + thousandths]


@settings(max_examples=25, deadline=None)
@given(st.integers(-(4 * 10**15), 4 * 10**15))
def test_integer_times_are_exact_up_to_the_farthest(whole_us: int) -> None:
    assert ns_from_us([whole_us]).tolist() == [whole_us * 1000]


@settings(max_examples=25, deadline=None)
@given(st.decimals(-(10**12), 10**12, allow_nan=False, places=6))
def test_further_decimals_round_to_a_nearest_ns(value_us: Decimal) -> None:
    expected = int((value_us * 1000).to_integral_value(ROUND_HALF_EVEN))
    assert ns_from_decimal_us([value_us]).tolist() == [expected]
    assert abs(ns_from_us([float(value_us)]).tolist()[0] - expected) <= 1


def test_absent_and_absurd_times_are_marked() -> None:
    absurd = [None, float("nan"), float("inf"), 1e16, -1e16, 2**62]
    assert ns_from_us(absurd).tolist() == [NO_TIME] * len(absurd)
    texts = ["nan", "-inf", "1e400", "-1e99999999", "5e15"]
    assert ns_from_decimal_us([None, *map(Decimal, texts)]).tolist() == [NO_TIME] * 6
    assert ns_from_us([1.0, None, 2]).tolist() == [1000, NO_TIME, 2000]


def test_two_absurdly_far_times_and_a_base_fit_int64() -> None:
    farthest = ns_from_us([4e15]).tolist()[0]
    assert 2 * farthest < 2**63

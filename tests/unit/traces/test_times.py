from decimal import ROUND_HALF_EVEN, Decimal
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chopperd.traces.decode import Refusal, exact_events, quick_events
from chopperd.traces.times import NO_TIME, ns_from_texts_us, ns_from_us


def decimal_us(whole_us: int, thousandths: int) -> str:
    return f"{whole_us}.{thousandths:03d}"


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**43 - 1), st.integers(0, 999))
def test_relative_times_of_three_decimals_are_exact(whole_us: int, thousandths: int) -> None:
    text = decimal_us(whole_us, thousandths)
    expected = whole_us * 1000 + thousandths
    assert ns_from_us([float(text)]).tolist() == [expected]
    assert ns_from_us([-float(text)]).tolist() == [-expected]
    assert ns_from_texts_us([text.encode()]).tolist() == [expected]


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
    times = ns_from_texts_us([event.ts for event in events])  # type: ignore[union-attr]
    assert times.tolist() == [whole_us * 1000 + thousandths]


@settings(max_examples=25, deadline=None)
@given(st.integers(-(4 * 10**15), 4 * 10**15))
def test_integer_times_are_exact_up_to_the_farthest(whole_us: int) -> None:
    assert ns_from_us([whole_us]).tolist() == [whole_us * 1000]


@settings(max_examples=25, deadline=None)
@given(st.decimals(-(10**12), 10**12, allow_nan=False, places=6))
def test_further_decimals_round_to_a_nearest_ns(value_us: Decimal) -> None:
    expected = int((value_us * 1000).to_integral_value(ROUND_HALF_EVEN))
    assert ns_from_texts_us([str(value_us).encode()]).tolist() == [expected]
    assert abs(ns_from_us([float(value_us)]).tolist()[0] - expected) <= 1


def test_absent_and_absurd_times_are_marked() -> None:
    absurd = [None, float("nan"), float("inf"), 1e16, -1e16, 2**62]
    assert ns_from_us(absurd).tolist() == [NO_TIME] * len(absurd)
    texts = [b"NaN", b"null", b"true", b"[7]", b'""', b'"x"', b"1e400", b"-1e99999999999", b"5e15"]
    assert ns_from_texts_us([None, *texts]).tolist() == [NO_TIME] * 10
    assert ns_from_us([1.0, None, 2]).tolist() == [1000, NO_TIME, 2000]


def test_two_absurdly_far_times_and_a_base_fit_int64() -> None:
    farthest = ns_from_us([4e15]).tolist()[0]
    assert 2 * farthest < 2**63


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("0.0005", 0), ("0.0015", 2), ("0.00051", 1), ("-0.0015", -2), ("1000.0005", 1000000),
        ("1000.00050000000000000000000000000000000001", 1000001), ("15e-4", 2), ("5E-4", 0),
        ("1000.0004999999999999999999999999999999999", 1000000), ("0.0004", 0), ("0.00009", 0),
        ("4000000000000000.0004", 4 * 10**18), ("4000000000000000.0005", 4 * 10**18),
        ("4000000000000000.001", NO_TIME), ("0e99999999999999999999", 0), ("1e-99999999999", 0),
        ("0." + "0" * 400 + "1e400", 100), ("1" + "0" * 400 + "e-400", 1000), ("1.5e3", 1500000),
    ],
)  # fmt: skip
def test_times_of_any_length_go_to_the_nearest_ns_halves_to_even(text: str, ns: int) -> None:
    """By hand."""
    assert ns_from_texts_us([text.encode(), f'"{text}"'.encode()])[0] == ns


@settings(max_examples=100, deadline=None)
@given(st.integers(-(10**9), 10**9), st.integers(-12, 6))
def test_whatever_the_exponent_the_nearest_ns_is_found(digits: int, exponent: int) -> None:
    """Against fractions."""
    expected = round(Fraction(digits) * Fraction(10) ** exponent * 1000)
    assert ns_from_texts_us([f"{digits}e{exponent}".encode()]).tolist() == [expected]


def test_a_text_is_a_time_where_it_is_a_number_as_json_writes_them() -> None:
    numbers = (b'"12.5"', b'"1e1"', b'"\\u0037"')
    assert ns_from_texts_us(numbers).tolist() == [12500, 10000, 7000]
    others = (b'" 7"', b'"7 "', b'"+7"', b'".5"', b'"5."', b'"1_0"', b'"07"', b'"inf"', b'"0x7"')
    assert ns_from_texts_us(others).tolist() == [NO_TIME] * len(others)
    assert ns_from_texts_us(['"\u0667"'.encode(), b'"%s7"' % (b"0" * 70)]).tolist() == [NO_TIME] * 2

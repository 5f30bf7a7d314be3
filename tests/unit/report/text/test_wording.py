"""Expected strings are worked out by hand."""

from math import inf, nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chopperd.report.text.wording import (
    bar,
    brief_ms,
    decimal,
    duration,
    largest_shares,
    milliseconds,
    moment,
    ms_interval,
    percent,
    plural,
    shorten,
    size,
    spread,
)


@pytest.mark.parametrize("unknown", [None, nan, inf])
def test_unknown_is_a_dash_and_never_a_zero(unknown: float | None) -> None:
    assert decimal(unknown, 1) == "-"
    assert milliseconds(unknown) == "-"
    assert brief_ms(unknown) == "-"
    assert percent(unknown) == "-"
    assert bar(unknown, 40) == ""


@pytest.mark.parametrize(
    ("value_ns", "table", "sentence"),
    [
        (0, "0", "0"),
        (1_412_000_000, "1412", "1412"),
        (131_400_000, "131", "131"),
        (53_000_000, "53.0", "53"),
        (4_250_000, "4.25", "4.2"),
        (400_000, "0.400", "0.40"),
        (1_000, "0.001", "<0.01"),
        (100, "<0.001", "<0.01"),
        (12_345_000_000, "12,345", "12,345"),
    ],
)
def test_times_show_the_digits_that_count(value_ns: int, table: str, sentence: str) -> None:
    assert milliseconds(value_ns) == table
    assert brief_ms(value_ns) == sentence


def test_a_small_share_is_below_a_tenth_and_not_zero() -> None:
    assert percent(0.0004) == "<0.1"
    assert percent(-0.0004) == "-<0.1"
    assert percent(0.0) == "0"
    assert percent(0.093) == "9.3"
    assert percent(0.004, 0) == "<1"


def test_an_interval_with_an_unknown_end_is_none() -> None:
    assert ms_interval(49_000_000, 4_250_000) == "[49, 4.2]"
    assert ms_interval(None, 4_250_000) == ms_interval(0, nan) == ""


def test_the_largest_shares_are_of_the_whole_sum() -> None:
    """90, 7 and 3 of 100; what has no share is not named, nor is anything of nothing."""
    lost = {"thermal": 7.0, "power_cap": 90.0, "unexplained": 3.0, "user_limit": 0.0}
    assert largest_shares(lost, 2) == "power cap 90 %, thermal 7 %"
    assert largest_shares(lost, 9, 0.05) == "power cap 90 %, thermal 7 %"
    assert largest_shares(lost, 9) == "power cap 90 %, thermal 7 %, unexplained 3 %"
    assert largest_shares({"thermal": 0.0}, 2) == largest_shares({}, 2) == ""


def test_long_names_lose_their_middle() -> None:
    assert shorten("abcdefghij", 10) == "abcdefghij"
    assert shorten("abcdefghijk", 10) == "abcd…ghijk"


@settings(max_examples=25, deadline=None)
@given(st.text(alphabet="aäb_<"), st.integers(min_value=1, max_value=50))
def test_a_shortened_name_fits_and_keeps_both_ends(text: str, width: int) -> None:
    short = shorten(text, width)
    assert len(short) <= width
    if len(text) > width > 2:
        assert short[0] == text[0]
        assert short[-1] == text[-1]


def test_a_spread_is_one_figure_where_all_agree_as_printed() -> None:
    assert spread([]) == "-"
    assert spread([1410.2, 1409.9]) == "1410"
    assert spread([1410.0, 1480.0, 1450.0]) == "1410-1480"
    assert spread([0.7, 0.8], digits=2) == "0.70-0.80"


@settings(max_examples=25, deadline=None)
@given(st.floats(min_value=0, max_value=1))
def test_a_bar_is_never_longer_than_its_scale_nor_empty_for_something(share: float) -> None:
    drawn = bar(share, 40)
    assert len(drawn) <= 40
    assert bool(drawn) == (share > 0)


def test_half_a_bar_is_half_as_long() -> None:
    assert bar(1.0, 40) == "█" * 40
    assert bar(0.5, 40) == "█" * 20
    assert bar(0.5, 1) == "▌"


def test_a_count_of_one_is_singular() -> None:
    assert plural(1, "step") == "1 step"
    assert plural(1240, "sample") == "1,240 samples"


@pytest.mark.parametrize(
    ("value_bytes", "text"),
    [
        *((0, "0 B"), (4, "4 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB")),
        # Rounded, never 1024.0 of a unit.
        *((2**20 - 52, "1023.9 KiB"), (2**20 - 51, "1.0 MiB"), (3 * 2**20, "3.0 MiB")),
        *(
            (2**30 - 1, "1.0 GiB"),
            (2**30, "1.0 GiB"),
            (5 * 2**40, "5.0 TiB"),
            (2**60, "1,048,576.0 TiB"),
        ),
    ],
)
def test_a_size_is_in_the_largest_unit_of_which_it_is_one(value_bytes: int, text: str) -> None:
    assert size(value_bytes) == text


@pytest.mark.parametrize(
    ("value_s", "text"),
    [
        (-1.0, "0 s"),
        (8.4, "8 s"),
        (725.0, "12 min 5 s"),
        (3600.0, "1 h 0 min"),
        (273_700, "3 d 4 h"),
    ],
)
def test_a_duration_has_its_two_largest_units(value_s: float, text: str) -> None:
    assert duration(value_s) == text


def test_a_moment_is_to_the_second_in_utc() -> None:
    """86,400 s a day: 1,800,000,000 s are 20,833 days and 8 hours after 1970."""
    assert moment(1_800_000_000_999_999_999) == "2027-01-15 08:00:00 UTC"

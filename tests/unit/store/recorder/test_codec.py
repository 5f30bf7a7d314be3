"""Laws of the codec, for any columns; what it makes of samples is measured elsewhere."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from chopperd.errors import StoreError
from chopperd.store.recorder.codec import (
    Column,
    compressed,
    decoded_columns,
    encoded_columns,
    expanded,
)

int64s = st.integers(-(2**63), 2**63 - 1)
floats = st.one_of(
    st.floats(),
    st.just(np.nan),
    st.integers(-(2**60), 2**60).map(float),
    st.integers(-(10**9), 10**9).map(lambda n: n / 1000),
    st.integers(0, 10**9).map(lambda n: n / 65_536),
    st.integers(0, 132).map(lambda n: n * 15.0),
)


def ints(count: int) -> st.SearchStrategy[Column]:
    return hnp.arrays(np.int64, count, elements=st.one_of(int64s, st.integers(0, 3)))


def columns_of(count: int) -> st.SearchStrategy[dict[str, Column]]:
    column = st.one_of(ints(count), hnp.arrays(np.float64, count, elements=floats))
    return st.dictionaries(st.text(max_size=4), column, max_size=5)


def same(mine: Column, other: Column) -> bool:
    """To the last bit; all NaN are one."""
    if mine.dtype != other.dtype or len(mine) != len(other):
        return False
    if mine.dtype == np.float64 and not np.array_equal(np.isnan(mine), np.isnan(other)):
        return False
    known = ~np.isnan(mine)
    return np.array_equal(mine[known].view(np.int64), other[known].view(np.int64))


@given(columns=st.integers(0, 20).flatmap(columns_of))
@settings(max_examples=60, deadline=None)
def test_any_columns_come_back_to_the_last_bit(columns: dict[str, Column]) -> None:
    back = decoded_columns(encoded_columns(columns))
    assert list(back) == list(columns)
    for name, column in columns.items():
        assert same(column, back[name]), name


@pytest.mark.parametrize(
    "column",
    [
        np.array([2**63 - 1, -(2**63), 0, 5, -(2**63)]),
        np.array([-(2**62), 2**62 - 1, 3, 3]),
        np.array([0.0, -0.0, 0.0]),
        np.array([np.inf, -np.inf, 1.5, np.nan]),
        np.array([5e-324, 1.7e308, 0.1 + 0.2]),
        np.array([np.nan, np.nan]),
        np.array([2.0**53, 2.0**53 + 2]),
        np.zeros(0),
        np.zeros(0, np.int64),
    ],
)
def test_hard_numbers_come_back_to_the_last_bit(column: Column) -> None:
    assert same(column, decoded_columns(encoded_columns({"x": column}))["x"])


def test_a_view_with_gaps_in_memory_is_coded_as_its_copy() -> None:
    table = np.arange(30, dtype=np.int64).reshape(10, 3)
    assert encoded_columns({"x": table[:, 1]}) == encoded_columns({"x": table[:, 1].copy()})


def test_what_does_not_change_takes_no_room() -> None:
    one = {"x": np.full(1, 2619.0)}
    many = {"x": np.full(5_000, 2619.0)}
    assert len(encoded_columns(many)) <= len(encoded_columns(one)) + 2


def test_steps_of_a_clock_take_a_byte_and_milliwatts_two() -> None:
    rng = np.random.default_rng(3)
    steps = rng.integers(0, 200, 4_000)
    # White noise of 200 values holds 7.6 bits each, whatever they are multiplied by.
    coded = encoded_columns({"sm_clock_mhz": (steps * 15).astype(np.float64)})
    assert len(coded) < 4_000 * 1.02
    milliwatts = rng.integers(300_000, 360_000, 4_000)
    assert len(encoded_columns({"power_w": np.divide(milliwatts, 1000.0)})) < 4_000 * 2.05


def test_columns_with_the_same_gaps_say_so_once() -> None:
    rng = np.random.default_rng(4)
    known = rng.random(8_000) < 0.5
    column = np.where(known, 1.0, np.nan)
    once = len(encoded_columns({"a": column}))
    assert len(encoded_columns({"a": column, "b": column, "c": column * 2})) < once + 100


@given(data=st.binary(max_size=64))
@settings(max_examples=100, deadline=None)
def test_other_bytes_are_refused_and_never_crash(data: bytes) -> None:
    for damaged in (data, compressed(data), compressed(b"\x09\x00\x00\x00" + data)):
        try:
            decoded_columns(damaged)
        except StoreError:
            continue


def test_data_that_is_cut_off_is_refused() -> None:
    coded = encoded_columns({"x": np.arange(100)})
    with pytest.raises(StoreError, match="damaged"):
        decoded_columns(coded[:-3])
    with pytest.raises(StoreError, match="can't be decoded"):
        decoded_columns(compressed(expanded(coded)[:20]))

"""Places among rising times, against numpy's own search one by one."""

from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chopperd.correlate.intervals import places, places_of_spans

sides = st.sampled_from(["left", "right"])
numbers = st.lists(st.integers(0, 12), max_size=20)


@settings(max_examples=100, deadline=None)
@given(values=numbers.map(sorted), points=numbers, rise=st.booleans(), side=sides)
def test_places_are_those_of_a_plain_search_whatever_the_order_of_points(
    values: list[int], points: list[int], rise: bool, side: Literal["left", "right"]
) -> None:
    among = np.array(values, np.int64)
    sought = np.array(sorted(points) if rise else points, np.int64)
    found = places(among, sought, side)
    assert found.tolist() == np.searchsorted(among, sought, side).tolist()


@settings(max_examples=100, deadline=None)
@given(
    values=numbers.map(sorted),
    spans=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 6)), max_size=20),
    side=sides,
)
def test_both_ends_of_spans_are_found_as_by_two_plain_searches(
    values: list[int], spans: list[tuple[int, int]], side: Literal["left", "right"]
) -> None:
    among = np.array(values, np.int64)
    start = np.array([at for at, _ in spans], np.int64)
    end = start + np.array([length for _, length in spans], np.int64)
    first, last = places_of_spans(among, start, end, side)
    assert first.tolist() == np.searchsorted(among, start, side).tolist()
    assert last.tolist() == np.searchsorted(among, end, side).tolist()


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_point_on_a_value_is_after_it_only_from_the_right(side: Literal["left", "right"]) -> None:
    found = places(np.array([10]), np.array([9, 10, 10, 11]), side)
    assert found.tolist() == ([0, 0, 0, 1] if side == "left" else [0, 1, 1, 1])

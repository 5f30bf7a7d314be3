"""Sums by row, each record added up by itself."""

from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from chopperd.correlate.waterfall import RowSums
from chopperd.model.timeline import DeviceTimeline
from tests.unit.correlate.builders import Rec, device

KEYS = 3
#: Steps of records; -1 and 2 have no window where there are fewer than three.
steps = st.lists(st.integers(-1, 2), max_size=12)
window_counts = st.integers(0, 3)


def built(of_steps: list[int], window_count: int) -> DeviceTimeline:
    """One record of i + 1 ns for each step named, in a device of some windows."""
    records = [Rec(10 * at, 10 * at + at + 1, step=step) for at, step in enumerate(of_steps)]
    return device(records, windows=[(100 * at, 100 * at + 100) for at in range(window_count)])


@given(steps, window_counts, st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_rows_are_sums_of_their_steps_records_and_the_last_is_all(
    of_steps: list[int], window_count: int, dice: Random
) -> None:
    timeline = built(of_steps, window_count)
    chosen = [at for at in range(len(of_steps)) if dice.random() < 0.7]
    values = [dice.randrange(1 << 40) for _ in chosen]
    key = [dice.randrange(KEYS) for _ in chosen]
    told = list(zip([of_steps[at] for at in chosen], values, key, strict=True))
    rows = [*([one] for one in range(window_count)), [-1, 0, 1, 2]]
    plain = [sum(value for step, value, _ in told if step in row) for row in rows]
    apart = [
        [sum(value for step, value, its in told if step in row and its == one) for one in range(3)]
        for row in rows
    ]
    counts = [
        [sum(step in row and its == one for step, _, its in told) for one in range(3)]
        for row in rows
    ]
    sums = RowSums(timeline, np.array(chosen, np.int64))
    amounts, keys = np.array(values, np.int64), np.array(key, np.int64)
    assert sums.whole(amounts).tolist() == plain
    assert sums.of(amounts.astype(np.float64)).tolist() == plain
    assert sums.apart(keys, KEYS, amounts).tolist() == apart
    assert sums.apart(keys, KEYS).tolist() == counts


def test_a_device_without_windows_has_the_whole_files_row_alone() -> None:
    timeline = built([0, 0, -1], 0)
    assert RowSums(timeline, np.arange(3)).whole(np.array([1, 2, 3])).tolist() == [6]

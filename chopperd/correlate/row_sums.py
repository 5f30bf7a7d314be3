"""Sums over a device's records for each row: its own step's records, and last, all of the file's.

The work of a step is by launch: whatever it launched counts for it, wherever that ran.
"""

import numpy as np

from chopperd.model.arrays import Int64s
from chopperd.model.timeline import DeviceTimeline


def row_sums(
    timeline: DeviceTimeline,
    records: Int64s,
    key: Int64s,
    key_count: int,
    values: Int64s | None = None,
) -> Int64s:
    """(r, key_count) int64: the sum of the values of each row's records, apart by key.

    Args:
        timeline: The device; rows are its windows' steps, then the whole file.
        records: (n,) int64, indices of the records that count.
        key: (n,) int64, 0 to `key_count` - 1.
        key_count: How many keys there are.
        values: (n,) int64, what to add up; None counts the records.
    """
    rows = len(timeline.windows)
    row = row_of_steps(timeline)[timeline.step[records]]
    own = np.flatnonzero(row >= 0)
    flat = row[own] * key_count + key[own]
    of_rows = np.bincount(flat, None if values is None else values[own], rows * key_count)
    of_all = np.bincount(key, values, key_count)
    sums = np.concatenate((of_rows, of_all)).reshape(rows + 1, key_count)
    return np.rint(sums).astype(np.int64)


def row_of_steps(timeline: DeviceTimeline) -> Int64s:
    """(s + 1,) int64: the row of each step that has one, -1 for others; the last is of step -1."""
    last = max((window.step for window in timeline.windows), default=-1)
    last = max(last, int(timeline.step.max(initial=-1)))
    row = np.full(last + 2, -1, np.int64)
    for number, window in enumerate(timeline.windows):
        row[window.step] = number
    return row

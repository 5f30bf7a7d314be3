"""Sums over a device's records for each row: its own step's records, and last, all of the file's.

The work of a step is by launch: whatever it launched counts for it, wherever that ran.
"""

import numpy as np

from chopperd.model.arrays import Float64s, Int64s
from chopperd.model.timeline import DeviceTimeline


class RowSums:
    """Sums of what is known of some records of a device, (r,) a row and in all.

    Rows are the steps of the device's windows, then all the records, of steps without a window too.

    Args:
        timeline: The device.
        records: (n,) int64, indices of the records that count.
    """

    def __init__(self, timeline: DeviceTimeline, records: Int64s) -> None:
        self._row_count = len(timeline.windows)
        row = _row_of_steps(timeline)[timeline.step[records]]
        own = np.flatnonzero(row >= 0)
        self._own: Int64s | slice = (
            own if len(own) < len(row) else slice(None)
        )  # mostly all: nothing to copy
        self._row = row[self._own]

    def of(self, values: Int64s | Float64s) -> Float64s:
        """(r,) float64: the sum of the values, (n,), of each row's records."""
        of_rows = np.bincount(self._row, values[self._own], self._row_count)
        return np.append(of_rows, values.sum()).astype(np.float64, copy=False)

    def whole(self, values: Int64s) -> Int64s:
        """(r,) int64: the same of whole values."""
        return np.rint(self.of(values)).astype(np.int64)

    def apart(self, key: Int64s, key_count: int, values: Int64s | None = None) -> Int64s:
        """(r, key_count) int64: the sum of each row's records, apart by key.

        Args:
            key: (n,) int64, 0 to `key_count` - 1.
            key_count: How many keys there are.
            values: (n,) int64, what to add up; None counts the records.
        """
        flat = self._row * key_count + key[self._own]
        own = None if values is None else values[self._own]
        of_rows = np.bincount(flat, own, self._row_count * key_count)
        of_all = np.bincount(key, values, key_count)
        sums = np.concatenate((of_rows, of_all)).reshape(self._row_count + 1, key_count)
        return np.rint(sums).astype(np.int64)


def _row_of_steps(timeline: DeviceTimeline) -> Int64s:
    """(s + 1,) int64: the row of each step that has one, -1 for others; the last is of step -1."""
    last = max((window.step for window in timeline.windows), default=-1)
    last = max(last, int(timeline.step.max(initial=-1)))
    row = np.full(last + 2, -1, np.int64)
    for number, window in enumerate(timeline.windows):
        row[window.step] = number
    return row

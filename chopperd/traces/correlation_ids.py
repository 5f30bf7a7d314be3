"""Correlation ids: the call with the id of a device record, and ids that several processes use.

Each process counts its own ids, so that a file put together from several has some of them twice.
"""

from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np

from chopperd.model.arrays import Bools, Int32s, Int64s
from chopperd.model.trace import DeviceRecords, RuntimeCalls

Threads: TypeAlias = Sequence[tuple[int | str, int | str]]
"""(pid, tid) of each thread, as in `Trace.threads`."""

_FEW_RATIO: Final = 0.01
"""Up to this share of a device's records may seem to be another process's, by chance or damage."""


def calls_by_id(wanted: Int64s, correlation: Int64s, launch: Bools) -> Int64s:
    """Return the index of the call with each wanted correlation id: (records,) int64; -1 if none.

    Of several calls with one id it is the last launch (`launch`), else the last call.
    """
    if len(correlation) == 0:
        return np.full(len(wanted), -1, np.int64)
    keys = 2 * correlation + launch
    order = np.argsort(keys, kind="stable")
    at = np.searchsorted(keys[order], 2 * wanted + 1, side="right") - 1
    found = order[at]
    return np.where((wanted > 0) & (correlation[found] == wanted), found, -1)


def processes(threads: Threads) -> Int32s:
    """Return the number of each thread's process, counted from 0: (threads,) int32."""
    number: dict[int | str, int] = {}
    return np.array([number.setdefault(pid, len(number)) for pid, _ in threads], np.int32)


def shared_by_processes(calls: RuntimeCalls, threads: Threads) -> Bools:
    """Return which calls share their correlation id with another process's call: (calls,) bool."""
    shared = np.zeros(len(calls), np.bool_)
    of_call = processes(threads)[calls.thread]
    if len(calls) == 0 or (of_call == of_call[0]).all():
        return shared
    order = np.lexsort((of_call, calls.correlation))
    correlation, of_call = calls.correlation[order], of_call[order]
    opens = np.diff(correlation, prepend=correlation[0] - 1) != 0
    first = np.flatnonzero(opens)
    last = np.append(first[1:], len(order)) - 1
    several = (of_call[first] != of_call[last]) & (correlation[first] > 0)
    shared[order] = several[np.cumsum(opens) - 1]
    return shared


def merged_devices(records: DeviceRecords, calls: RuntimeCalls, threads: Threads) -> list[int]:
    """Return the devices whose records may be of several processes, as files were merged.

    The process that launched a record is known by ids that calls of only one process have.
    """
    of_call = processes(threads)[calls.thread]
    if len(calls) == 0 or (of_call == of_call[0]).all():
        return []
    shared = shared_by_processes(calls, threads)
    call = calls_by_id(records.correlation, calls.correlation, np.zeros(len(calls), np.bool_))
    linked = call >= 0
    device, process = records.device[linked], of_call[call[linked]]
    process = np.where(shared[call[linked]], -1, process)
    found = []
    for number in np.unique(device).tolist():
        owners, counts = np.unique(process[device == number], return_counts=True)
        many = counts > max(_FEW_RATIO * counts.sum(), 1)
        if np.count_nonzero(many) > 1 or (many.any() and owners[counts.argmax()] < 0):
            found.append(number)
    return found

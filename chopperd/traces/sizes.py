"""How many bytes a copy or fill moves: by its own record, else by the call that launched it."""

import numpy as np

from chopperd.model.arrays import Int64s
from chopperd.model.trace import DeviceRecords, RecordKind, RuntimeCalls


def copied_bytes(records: DeviceRecords, calls: RuntimeCalls, call: Int64s) -> Int64s:
    """(records,) int64: bytes of each copy and fill; -1 unknown, and for kernels.

    A call's size is that of its record only if it has just one.

    Args:
        records: The device records.
        calls: The runtime calls.
        call: (records,) int64, the call that launched each; -1 unlinked.

    Source: `args.bytes` of Kineto's copies; ROCm 6.2 writes none there, and `size` of its calls.
    """
    told = records.copied_bytes
    asked = np.flatnonzero((told < 0) & (call >= 0) & (records.kind != RecordKind.KERNEL))
    if not len(asked):
        return told
    alone = np.bincount(call[call >= 0], minlength=len(calls))[call[asked]] == 1
    sizes = told.copy()
    sizes[asked[alone]] = calls.size_bytes[call[asked[alone]]]
    return sizes

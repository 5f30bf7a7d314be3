"""How many bytes a copy or fill moves: by its own record, else by the call that launched it."""

import numpy as np

from chopperd.model.arrays import Int8s, Int64s
from chopperd.model.kinds import COPY_CLASSES
from chopperd.model.trace import DeviceRecords, RuntimeCalls


def copied_bytes(
    records: DeviceRecords, calls: RuntimeCalls, call: Int64s, kernel_class: Int8s
) -> Int64s:
    """(records,) int64: bytes of each copy and fill; -1 unknown, and for what computes.

    A call's size is that of its record only if it has just one.

    Args:
        records: The device records.
        calls: The runtime calls.
        call: (records,) int64, the call that launched each; -1 unlinked.
        kernel_class: (records,) int8, `KernelClass`; kernels that copy are copies.

    Source: `args.bytes` of Kineto's copies; ROCm 6.2 writes none there, and `size` of its calls.
    """
    told = records.copied_bytes
    copies = np.isin(kernel_class, [int(each) for each in COPY_CLASSES])
    asked = np.flatnonzero((told < 0) & (call >= 0) & copies)
    if not len(asked):
        return told
    alone = np.bincount(call[call >= 0], minlength=len(calls))[call[asked]] == 1
    sizes = told.copy()
    sizes[asked[alone]] = calls.size_bytes[call[asked[alone]]]
    return sizes

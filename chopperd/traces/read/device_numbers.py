"""By what a trace numbers its devices: told from what only one profiler writes, never assumed."""

from collections.abc import Collection
from typing import Final

import numpy as np

from chopperd.model.trace import DeviceNumbers, DeviceRecords, RecordKind

#: Kineto on roctracer records this call; on rocprofiler-sdk it leaves it out.
_ROCTRACER_CALL: Final = "hipGetDevicePropertiesR0600"


def device_numbers(
    runtime: str | None,
    call_names: Collection[str],
    kernel_devices: Collection[int],
    *,
    has_queues: bool,
) -> DeviceNumbers:
    """What a trace's device numbers count.

    Args:
        runtime: "cuda", "rocm" or None.
        call_names: Names of its runtime calls.
        kernel_devices: Numbers of the devices that ran kernels. Copies don't tell: rocprofiler-sdk
            gives one to the host the number of a CPU.
        has_queues: Whether device records name their HSA queue.

    Of ROCm's two profilers roctracer hands on the runtime's driver node id, in which CPUs come
    first: no GPU is 0. rocprofiler-sdk counts GPUs from 0. `roctracer_version` in the header tells
    nothing: builds on rocprofiler-sdk may write it too.

    Source: device_id of CLR's activity records (driverNodeId_); RocprofLogger.cpp of Kineto
        (logical_node_type_id, the calls that it omits) and its "hsa_queue", of June 2026.
        roctracer's part is seen in real traces, that of rocprofiler-sdk read in source only.
    """
    if runtime != "rocm":
        return DeviceNumbers.PROPERTIES
    counts_gpus = has_queues or 0 in kernel_devices
    counts_nodes = _ROCTRACER_CALL in call_names
    if counts_gpus == counts_nodes:
        return DeviceNumbers.UNKNOWN
    return DeviceNumbers.GPU_ORDINALS if counts_gpus else DeviceNumbers.HSA_NODES


def kernel_devices(records: DeviceRecords) -> tuple[int, ...]:
    """Numbers of the devices that ran kernels, rising."""
    ran = records.device[records.kind == RecordKind.KERNEL]
    return tuple(np.unique(ran).tolist())

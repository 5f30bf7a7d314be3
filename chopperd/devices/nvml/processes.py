"""Which processes are on an NVIDIA GPU; asked for seldom, as the call takes the driver's lock."""

from types import ModuleType
from typing import Final, Protocol, TypeAlias

from chopperd.devices.channel import Call, Channel, DeviceFaults
from chopperd.errors import TransientDeviceError
from chopperd.model.devices import GpuProcess

#: `gpuInstanceId` of a process that is on no GPU instance. Source: nvmlProcessInfo_v2_t of nvml.h.
_NO_INSTANCE: Final = 0xFFFFFFFF


class _Listed(Protocol):
    """A row of the binding's answer; its own word for "not available" is None."""

    pid: int
    usedGpuMemory: int | None  # noqa: N815 - the vendor's name
    gpuInstanceId: int  # noqa: N815 - the vendor's name


_Rows: TypeAlias = list[_Listed]


class ProcessList:
    """The compute processes of one GPU or GPU instance; used by one thread.

    On a card whose MIG mode is on, the driver tells of those of its instances only whom it trusts.

    Source: nvmlDeviceGetComputeRunningProcesses_v3, before driver 510 ..._v2; pids are of the
    initial pid namespace. Processes that only draw are not among them.
    """

    def __init__(self, nvml: ModuleType, handle: object, faults: DeviceFaults) -> None:
        self._faults = faults
        self._rows: Channel[_Rows] = Channel(
            faults,
            Call(
                operation="nvmlDeviceGetComputeRunningProcesses_v3",
                read=lambda: nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle),
            ),
            Call(
                operation="nvmlDeviceGetComputeRunningProcesses_v2",
                read=lambda: nvml.nvmlDeviceGetComputeRunningProcesses_v2(handle),
            ),
        )

    def now(self) -> tuple[GpuProcess, ...] | None:
        """The processes; None where the driver does not say.

        Raises:
            TransientDeviceError: The call failed this time.
            DeviceLostError: The GPU is gone.
        """
        self._faults.begin_look()
        rows = self._rows.value()
        failure: TransientDeviceError | None = self._faults.transient
        if rows is None and failure is not None:
            raise failure
        return None if rows is None else tuple(map(_process, rows))


def _process(row: _Listed) -> GpuProcess:
    instance = row.gpuInstanceId
    return GpuProcess(
        pid=row.pid,
        memory_used_bytes=row.usedGpuMemory,
        partition=None if instance == _NO_INSTANCE else instance,
    )

"""Which processes are on an NVIDIA GPU; asked for seldom, as the call takes the driver's lock."""

from types import ModuleType
from typing import Final, Protocol

from chopperd.devices.channel import DeviceFaults
from chopperd.model.devices import GpuProcess

_OPERATIONS: Final = (
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetComputeRunningProcesses_v2",
)
#: `gpuInstanceId` of a process that is on no GPU instance. Source: nvmlProcessInfo_v2_t of nvml.h.
_NO_INSTANCE: Final = 0xFFFFFFFF


class _Listed(Protocol):
    """A row of the binding's answer; its own word for "not available" is None."""

    pid: int
    usedGpuMemory: int | None  # noqa: N815 - the vendor's name
    gpuInstanceId: int  # noqa: N815 - the vendor's name


class ProcessList:
    """The compute processes of one GPU or GPU instance; used by one thread.

    On a card whose MIG mode is on, the driver tells of those of its instances only whom it trusts.

    Source: nvmlDeviceGetComputeRunningProcesses_v3, before driver 510 ..._v2; pids are of the
    initial pid namespace. Processes that only draw are not among them.
    """

    def __init__(self, nvml: ModuleType, handle: object, faults: DeviceFaults) -> None:
        self._nvml = nvml
        self._handle = handle
        self._faults = faults

    def now(self) -> tuple[GpuProcess, ...] | None:
        """The processes; None where the driver does not say.

        Raises:
            TransientDeviceError: The call failed this time.
            DeviceLostError: The GPU is gone.
        """
        self._faults.begin_look()
        for operation in _OPERATIONS:
            try:
                rows: list[_Listed] = getattr(self._nvml, operation)(self._handle)
            except self._nvml.NVMLError as error:
                self._faults.absent(error, operation)
                if self._faults.transient is not None:
                    raise self._faults.transient from error
            else:
                return self._faults.plausible_processes(map(_process, rows))
        return None


def _process(row: _Listed) -> GpuProcess:
    instance = row.gpuInstanceId
    return GpuProcess(
        pid=row.pid,
        memory_used_bytes=row.usedGpuMemory,
        partition=None if instance == _NO_INSTANCE else instance,
    )

"""Reads faults (XIDs, memory errors, a required reset) and processes of a GPU; called rarely.

Faults explain a GPU that is lost or soon will be; to count errors is dcgm-exporter's task.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from ctypes import c_void_p, cast
from types import ModuleType
from typing import Final, TypeVar

from chopperd.clock import Clock
from chopperd.devices.faults import CallFailedError, DeviceFaults
from chopperd.devices.nvml.calls import Driver, FieldReader
from chopperd.devices.nvml.identity import uuid_of
from chopperd.devices.nvml.table import FieldValue
from chopperd.errors import DeviceError
from chopperd.model.devices import GpuProcess
from chopperd.units import NS_PER_S

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: How long an XID is reported.
_XID_NS: Final = 600 * NS_PER_S
#: Most events taken at a time; the others are taken the next time.
_MOST_EVENTS: Final = 64

#: Source: NVIDIA's XID catalogue (docs.nvidia.com/deploy/xid-errors), shortened.
_XID_MEANINGS: Final[Mapping[int, str]] = {
    13: "graphics engine exception",
    31: "memory page fault",
    43: "stopped processing",
    45: "preemptive clean-up",
    48: "double-bit ECC error",
    61: "internal micro-controller halt",
    62: "internal micro-controller halt",
    63: "row remapping or page retirement recorded",
    64: "row remapping or page retirement failed",
    74: "NVLink error",
    79: "fell off the bus",
    92: "many single-bit ECC errors",
    94: "contained memory error",
    95: "uncontained memory error",
    119: "GSP does not answer",
    120: "GSP error",
    154: "recovery action changed",
}

#: Source: NVML_FI_DEV_GET_GPU_RECOVERY_ACTION and nvmlDeviceGpuRecoveryAction_t of nvml.h 13.5.
_RECOVERY_ACTION: Final = FieldValue(field_id=230, unit="action")
_RECOVERY_ACTIONS: Final[Mapping[int, str]] = {
    1: "the GPU must be reset",
    2: "the node must be rebooted",
    3: "peer-to-peer traffic must be drained",
    4: "peer-to-peer traffic must be drained and the GPU reset",
    5: "the IMEX domain must be recovered",
    6: "the GPU's bus must be reset",
    7: "the system must be rebooted",
}


def xid_text(xid: int) -> str:
    """Return an XID with its meaning, as text."""
    meaning = _XID_MEANINGS.get(xid)
    return f"XID {xid} ({meaning})" if meaning else f"XID {xid}"


class XidEvents:
    """Collects the XIDs that the driver reports from construction on, without waiting.

    For one thread. Collects none where the driver has no events.

    Source: nvmlEventSetCreate, nvmlDeviceRegisterEvents, nvmlEventSetWait_v2 with a time-out of 0.
    """

    def __init__(self, nvml: ModuleType, clock: Clock) -> None:
        self._nvml = nvml
        self._clock = clock
        self._uuids: dict[int | None, str] = {}
        self._seen: dict[str, tuple[int, int]] = {}
        self._set: object | None = None
        try:
            self._set = nvml.nvmlEventSetCreate()
        except nvml.NVMLError as error:
            logger.info("the driver reports no XIDs: %s", error)

    def watch(self, handle: object, uuid: str) -> None:
        """Collect a GPU's XIDs from now on, if the GPU reports XIDs."""
        nvml = self._nvml
        kind = nvml.nvmlEventTypeXidCriticalError
        if self._set is None:
            return
        try:
            if nvml.nvmlDeviceGetSupportedEventTypes(handle) & kind:
                nvml.nvmlDeviceRegisterEvents(handle, kind, self._set)
                self._uuids[_address(handle)] = uuid
        except nvml.NVMLError as error:
            logger.info("GPU %s reports no XIDs: %s", uuid, error)

    def newest(self, uuid: str, *, is_lost: bool) -> int | None:
        """Take new events; return a GPU's newest XID, or None.

        XIDs older than ten minutes count only if the GPU is lost.
        """
        self._take()
        found = self._seen.get(uuid)
        if found is None:
            return None
        xid, seen_mono_ns = found
        return xid if is_lost or self._clock.mono_ns() - seen_mono_ns <= _XID_NS else None

    def close(self) -> None:
        """Release the driver's event set."""
        if self._set is not None:
            try:
                self._nvml.nvmlEventSetFree(self._set)
            except self._nvml.NVMLError as error:
                logger.info("nvmlEventSetFree failed: %s", error)
            self._set = None

    def _take(self) -> None:
        for _ in range(_MOST_EVENTS):
            if self._set is None:
                return
            try:
                event = self._nvml.nvmlEventSetWait_v2(self._set, 0)
            except self._nvml.NVMLError:  # a time-out: there is none
                return
            uuid = self._uuids.get(_address(event.device)) or self._uuid(event.device)
            if uuid is not None:
                self._seen[uuid] = int(event.eventData), self._clock.mono_ns()

    def _uuid(self, handle: object) -> str | None:
        try:
            return uuid_of(self._nvml, handle)
        except self._nvml.NVMLError:
            return None


def _address(handle: object) -> int | None:
    """Return the address in a handle, to compare handles: each answer has a new object."""
    return cast(handle, c_void_p).value  # type: ignore[arg-type]


#: `gpuInstanceId` of a process that is on no GPU instance. Source: nvmlProcessInfo_v2_t of nvml.h.
_NO_INSTANCE: Final = 0xFFFFFFFF


class DeviceHealth:
    """Reads faults and processes of one GPU or GPU instance; for one thread."""

    def __init__(self, nvml: ModuleType, handle: object, faults: DeviceFaults) -> None:
        self._nvml = nvml
        self._handle = handle
        self._faults = faults
        self._fields = FieldReader(Driver(nvml, handle), faults)

    def processes(self) -> tuple[GpuProcess, ...] | None:
        """List the compute processes; None where the driver does not report them.

        On a card in MIG mode, the driver reports those of its instances only to privileged users.

        Source: nvmlDeviceGetComputeRunningProcesses_v3, before driver 510 ..._v2; pids are of the
        initial pid namespace. Processes that only draw are not among them. The calls take the
        driver's lock.
        """
        for version in ("v3", "v2"):
            operation = f"nvmlDeviceGetComputeRunningProcesses_{version}"

            def listed(operation: str = operation) -> list[GpuProcess]:
                rows = getattr(self._nvml, operation)(self._handle)
                return [
                    GpuProcess(
                        pid=row.pid,
                        memory_used_bytes=row.usedGpuMemory,  # None where not available
                        partition=None if row.gpuInstanceId == _NO_INSTANCE else row.gpuInstanceId,
                    )
                    for row in rows
                ]

            found = self._faults.processes(operation, listed)
            if found is not None:
                return found
        return None

    def problems(self) -> Iterator[str]:
        """Yield each known fault as text; a call that is missing or fails gives none.

        Source: nvmlDeviceGetTotalEccErrors (uncorrected, since the driver loaded),
        nvmlDeviceGetRemappedRows, nvmlDeviceGetRetiredPagesPendingStatus, field 230.
        """
        nvml, handle = self._nvml, self._handle
        action = _RECOVERY_ACTIONS.get(self._recovery_action())
        if action is not None:
            yield action
        errors_count = self._answer(
            lambda: nvml.nvmlDeviceGetTotalEccErrors(
                handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
            )
        )
        if errors_count:
            yield f"{errors_count} uncorrected memory errors since the driver loaded"
        rows = self._answer(lambda: nvml.nvmlDeviceGetRemappedRows(handle))
        if rows is not None and rows[2]:
            yield "row remapping waits for a reset"
        if rows is not None and rows[3]:
            yield "row remapping has failed"
        if self._answer(lambda: nvml.nvmlDeviceGetRetiredPagesPendingStatus(handle)):
            yield "page retirement waits for a reset"

    def _recovery_action(self) -> int:
        fields = self._fields
        try:
            fields.fetch(fields.request((_RECOVERY_ACTION,)))
            return int(fields.number(_RECOVERY_ACTION.key))
        except (self._nvml.NVMLError, CallFailedError, DeviceError):
            return 0

    def _answer(self, ask: Callable[[], T]) -> T | None:
        try:
            return ask()
        except self._nvml.NVMLError:
            return None

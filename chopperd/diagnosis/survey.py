"""One look at every GPU of a back end."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from chopperd.devices.base import DeviceBackend, ListsProcesses, ProbesFields
from chopperd.devices.patient_calls import CallsHangError, Patience, PatientCalls
from chopperd.errors import BackendUnavailableError, DeviceError
from chopperd.model.devices import GpuInfo, GpuProcess, ReadScope
from chopperd.model.inventory import Inventory, InventoryEntry

_BUFFERED: Final = ("power_w", "sm_clock_mhz")
#: How long the first GPU that hangs is waited for, and all later ones together: with the start of
#: the back end it has to fit into the time that the process is given (20 s, or 60 s with probes).
_READ_S: Final = 2.0
_LATER_READS_S: Final = 6.0
_PROBE_S: Final = 10.0
_LATER_PROBES_S: Final = 32.0


def survey(
    backend: DeviceBackend, *, calls_count: int = 0, calls: PatientCalls | None = None
) -> Inventory:
    """The GPUs of a back end, each read once; one that fails or hangs does not hide the others.

    Args:
        backend: Reads them.
        calls_count: How often each call is made to learn what it gives and costs; 0: not at all.
        calls: Makes the calls; to be waited for before the back end is closed.

    Raises:
        BackendUnavailableError: There is no GPU.
    """
    infos = backend.devices()
    if not infos:
        raise BackendUnavailableError(f"{backend.name}: the driver sees no GPU")
    look = _Look(backend, calls or PatientCalls("its calls"), calls_count, len(infos))
    entries = tuple(look.entry(info) for info in infos)
    return Inventory(
        backend=backend.name, driver=backend.driver, simulated=backend.simulated, gpus=entries
    )


class _Look:
    """Looks at one GPU after the other."""

    def __init__(
        self, backend: DeviceBackend, calls: PatientCalls, calls_count: int, gpus_count: int
    ) -> None:
        self._backend = backend
        self._calls = calls
        self._calls_count = calls_count
        self._read_patience = Patience(first_s=_READ_S, later_s=_LATER_READS_S / gpus_count)
        self._probe_patience = Patience(first_s=_PROBE_S, later_s=_LATER_PROBES_S / gpus_count)
        self._hung_indices: set[int] = set()

    def entry(self, info: GpuInfo) -> InventoryEntry:
        """What came of one GPU."""
        if info.index in self._hung_indices:  # a part of a card that hangs
            return InventoryEntry(info=info, error="not asked: the calls on its card do not return")
        read = partial(self._backend.read, info, ReadScope.FULL)
        try:
            entry = InventoryEntry(info=info, reading=self._calls.answer(read, self._read_patience))
        except (DeviceError, CallsHangError) as error:
            return InventoryEntry(info=info, error=self._told(info, error))
        entry = replace(entry, processes=self._processes(info))
        if not self._calls_count or not isinstance(self._backend, ProbesFields):
            return entry
        probe = partial(_probed, self._backend, entry, self._calls_count)
        try:
            return self._calls.answer(probe, self._probe_patience)
        except (DeviceError, CallsHangError) as error:  # what was read stays
            return replace(entry, error=self._told(info, error))

    def _processes(self, info: GpuInfo) -> tuple[GpuProcess, ...] | None:
        """The processes on a GPU; None where the driver does not say."""
        if not isinstance(self._backend, ListsProcesses):
            return None
        try:
            return self._calls.answer(partial(self._backend.processes, info), self._read_patience)
        except (DeviceError, CallsHangError):
            return None

    def _told(self, info: GpuInfo, error: Exception) -> str:
        if isinstance(error, CallsHangError):
            self._hung_indices.add(info.index)
        return str(error)


def _probed(backend: ProbesFields, entry: InventoryEntry, calls_count: int) -> InventoryEntry:
    probes = backend.probe(entry.info, calls_count)
    return replace(entry, probes=probes, buffered_period_ns=_buffered(backend, entry.info))


def _buffered(backend: ProbesFields, info: GpuInfo) -> Mapping[str, int]:
    periods_ns = {name: backend.buffered_period_ns(info, name) for name in _BUFFERED}
    return {name: period_ns for name, period_ns in periods_ns.items() if period_ns is not None}

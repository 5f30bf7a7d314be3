"""One look at every GPU of a back end."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from chopperd.devices.base import DeviceBackend, ProbesFields
from chopperd.errors import BackendUnavailableError, DeviceError
from chopperd.model.devices import GpuInfo, ReadScope
from chopperd.model.inventory import Inventory, InventoryEntry

_BUFFERED: Final = ("power_w", "sm_clock_mhz")


def survey(backend: DeviceBackend, *, calls_count: int = 0) -> Inventory:
    """The GPUs of a back end, each read once; one that fails does not hide the others.

    Args:
        backend: Reads them.
        calls_count: How often each call is made to learn what it gives and costs; 0: not at all.

    Raises:
        BackendUnavailableError: There is no GPU.
    """
    entries = tuple(_entry(backend, info, calls_count) for info in backend.devices())
    if not entries:
        raise BackendUnavailableError(f"{backend.name}: the driver sees no GPU")
    return Inventory(
        backend=backend.name, driver=backend.driver, simulated=backend.simulated, gpus=entries
    )


def _entry(backend: DeviceBackend, info: GpuInfo, calls_count: int) -> InventoryEntry:
    try:
        entry = InventoryEntry(info=info, reading=backend.read(info, ReadScope.FULL))
    except DeviceError as error:
        return InventoryEntry(info=info, error=str(error))
    if not calls_count or not isinstance(backend, ProbesFields):
        return entry
    try:
        probes = backend.probe(info, calls_count)
    except DeviceError as error:  # what was read stays
        return replace(entry, error=str(error))
    return replace(entry, probes=probes, buffered_period_ns=_buffered(backend, info))


def _buffered(backend: ProbesFields, info: GpuInfo) -> Mapping[str, int]:
    periods_ns = {name: backend.buffered_period_ns(info, name) for name in _BUFFERED}
    return {name: period_ns for name, period_ns in periods_ns.items() if period_ns is not None}

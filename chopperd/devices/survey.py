"""One look at every GPU of a back end."""

from chopperd.devices.base import DeviceBackend
from chopperd.errors import BackendUnavailableError, DeviceError
from chopperd.model.devices import GpuInfo, ReadScope
from chopperd.model.inventory import Inventory, InventoryEntry


def survey(backend: DeviceBackend) -> Inventory:
    """The GPUs of a back end, each read once; one that fails does not hide the others.

    Raises:
        BackendUnavailableError: There is no GPU.
    """
    entries = tuple(_entry(backend, info) for info in backend.devices())
    if not entries:
        raise BackendUnavailableError(f"{backend.name}: the driver sees no GPU")
    return Inventory(
        backend=backend.name, driver=backend.driver, simulated=backend.simulated, gpus=entries
    )


def _entry(backend: DeviceBackend, info: GpuInfo) -> InventoryEntry:
    try:
        return InventoryEntry(info=info, reading=backend.read(info, ReadScope.FULL))
    except DeviceError as error:
        return InventoryEntry(info=info, error=str(error))

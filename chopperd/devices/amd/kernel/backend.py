"""Back end "amdgpu": AMD GPUs through the files of the kernel's driver.

It needs no library, no device node and no right except to read sysfs, and keeps one open file per
GPU. Not verified on hardware: the files are as the kernel's sources describe them.
"""

import errno
import logging
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from chopperd.clock import Clock, SystemClock
from chopperd.devices.amd.backend import AmdBackend, AmdGpu
from chopperd.devices.amd.block import MetricsSource
from chopperd.devices.amd.identity import KfdNode, number_in
from chopperd.devices.amd.kernel.cards import (
    Card,
    FileSource,
    NoMetricsSource,
    cards,
    driver_version,
    gpu_infos,
    traits,
)
from chopperd.devices.amd.kernel.layouts import UnknownMetricsError
from chopperd.devices.amd.sensors import GpuTraits
from chopperd.devices.base import BackendOptions
from chopperd.devices.faults import VendorErrors, failed_call
from chopperd.errors import (
    BackendUnavailableError,
    DeviceError,
    DeviceLostError,
    TransientDeviceError,
    UnsupportedFieldError,
)
from chopperd.model.devices import GpuInfo, GpuProcess

logger = logging.getLogger(__name__)

SYSFS: Final = Path("/sys")
#: One folder per process, named by its pid in the initial pid namespace.
_PROCESSES: Final = Path("class/kfd/kfd/proc")
_METRICS: Final = "gpu_metrics"
_LOST: Final = frozenset({errno.ENODEV, errno.ENOENT, errno.ENXIO, errno.EBADF, errno.ESHUTDOWN})
_UNSUPPORTED: Final = frozenset(
    {errno.EOPNOTSUPP, errno.EINVAL, errno.EACCES, errno.EPERM, errno.ENOSYS}
)


def open_backend(_options: BackendOptions) -> "AmdgpuBackend":
    """Open the back end for this machine's AMD GPUs; unavailable if the driver has no card."""
    return AmdgpuBackend(SYSFS, SystemClock())


class AmdgpuBackend(AmdBackend[Card]):
    """Reads the cards of the driver `amdgpu`, in the order of their PCI addresses."""

    name = "amdgpu"
    vendor_error = OSError
    metrics_call = _METRICS

    def __init__(self, sysfs: Path, clock: Clock) -> None:
        super().__init__(clock)
        self._sysfs = sysfs
        self.driver = driver_version(sysfs)
        found = cards(sysfs)
        if not found:
            raise BackendUnavailableError("the driver amdgpu runs no card here")
        self._at_start = _uuids(found)
        self._devices = tuple(
            info for index, card in enumerate(found) for info in self._listed(card, index)
        )

    def processes(self, device: GpuInfo) -> tuple[GpuProcess, ...] | None:
        """List the processes with memory on a GPU or its partitions; None if not reported.

        Source: the files vram_<gpu_id> of class/kfd/kfd/proc of the kernel's compute driver.
        """
        gpu = self._gpus.get(device.uuid)
        return None if gpu is None else _processes(self._sysfs, gpu.card.nodes)

    def shortfall(self) -> str | None:
        """Return which GPUs are read without a block of metrics, and why, as text; None if none."""
        lacking = [
            f"GPU {gpu.info.gpu}: {gpu.source.reason}"
            for gpu in self._all()
            if isinstance(gpu.source, NoMetricsSource)
        ]
        return "; ".join(lacking) or None

    def _listed(self, card: Card, index: int) -> tuple[GpuInfo, ...]:
        whole, *partitions = gpu_infos(card, index)
        whole = self._add(whole, card, VendorErrors(base=OSError, classify=_classified))
        return (whole, *partitions)

    def _traits(self, gpu: AmdGpu[Card]) -> GpuTraits:
        return traits(gpu.card, gpu.info)

    def _present(self) -> frozenset[str]:
        return _uuids(cards(self._sysfs))

    def _new_source(self, gpu: AmdGpu[Card]) -> MetricsSource:
        """Open a card's block of metrics; an empty one where it has none of a known version."""
        card, index = gpu.card, gpu.info.index
        try:
            return FileSource(card.metrics)
        except UnknownMetricsError as error:
            logger.warning("GPU %d: %s; read by hwmon alone", index, error)
            return NoMetricsSource(str(error))
        except OSError as error:
            if not card.folder.exists():
                raise gpu.faults.lost(f"{card.pci_bus_id} is gone", _METRICS) from error
            if error.errno in _LOST | _UNSUPPORTED:
                return NoMetricsSource(f"{_METRICS}: {error.strerror}")
            raise _classified(error, _METRICS, index) from error


def _uuids(found: Sequence[Card]) -> frozenset[str]:
    return frozenset(info.uuid for card in found for info in gpu_infos(card, 0))


def _processes(sysfs: Path, nodes: Sequence[KfdNode]) -> tuple[GpuProcess, ...] | None:
    names = {f"vram_{node.gpu_id}" for node in nodes if node.gpu_id is not None}
    if not names:
        return None
    try:
        folders = [each for each in (sysfs / _PROCESSES).iterdir() if each.name.isdecimal()]
    except OSError:
        return None
    used_bytes: dict[int, int] = defaultdict(int)
    for folder in folders:
        for name in names:
            used_bytes[int(folder.name)] += number_in(folder / name) or 0
    return tuple(
        GpuProcess(pid=pid, memory_used_bytes=used_bytes[pid])
        for pid in sorted(used_bytes)
        if used_bytes[pid]
    )


def _classified(error: Exception, operation: str, index: int) -> DeviceError:
    """Return the `DeviceError` for a file that can't be read."""
    code = error.errno if isinstance(error, OSError) else None
    kind: type[DeviceError] = TransientDeviceError
    if code in _LOST:
        # A missing block means that the card is gone, any other missing file that a sensor is.
        kind = DeviceLostError if operation == _METRICS else UnsupportedFieldError
    elif code in _UNSUPPORTED:
        kind = UnsupportedFieldError
    return failed_call(
        kind, str(error), operation=operation, device_index=index, code=code, shown=""
    )

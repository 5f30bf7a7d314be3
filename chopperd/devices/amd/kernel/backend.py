"""AMD GPUs through the files of the kernel's driver: start, enumeration, reads, end.

It needs no library, no device node and no right beyond reading sysfs, and holds one open file a
GPU. Not verified on hardware: the files are as the kernel's sources say.
"""

import errno
import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from chopperd.clock import Clock, SystemClock
from chopperd.devices.amd.identity import KfdNode
from chopperd.devices.amd.kernel.cards import Card, cards, driver_version, gpu_infos, traits
from chopperd.devices.amd.kernel.files import FileSource, NoMetricsSource, number_in
from chopperd.devices.amd.kernel.layouts import UnknownMetricsError
from chopperd.devices.amd.planning import sensor_reads
from chopperd.devices.amd.probe import Asker, beside_probes, block_probes, told_by_card
from chopperd.devices.amd.sensors import AmdSensors
from chopperd.devices.base import BackendOptions, SensorRead
from chopperd.devices.channel import DeviceFaults, VendorErrors
from chopperd.devices.read_plan import ReadPlan
from chopperd.errors import (
    BackendUnavailableError,
    DeviceError,
    DeviceLostError,
    TransientDeviceError,
    UnsupportedFieldError,
)
from chopperd.model.devices import DeviceReading, FieldProbe, GpuInfo, GpuProcess, ReadScope

# Who has memory on an AMD GPU, by the files of the kernel's compute driver.

#: A folder for each process, by its number in the initial pid namespace.
_PROCESSES: Final = Path("class/kfd/kfd/proc")


def processes(sysfs: Path, nodes: Sequence[KfdNode]) -> tuple[GpuProcess, ...] | None:
    """The processes with memory on a GPU, by number; None where the driver does not say.

    Args:
        sysfs: The root of sysfs.
        nodes: The GPU, or all its partitions.
    """
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


logger = logging.getLogger(__name__)

SYSFS: Final = Path("/sys")
_LOST: Final = frozenset({errno.ENODEV, errno.ENOENT, errno.ENXIO, errno.EBADF, errno.ESHUTDOWN})
_UNSUPPORTED: Final = frozenset(
    {errno.EOPNOTSUPP, errno.EINVAL, errno.EACCES, errno.EPERM, errno.ENOSYS}
)


def open_backend(_options: BackendOptions) -> "AmdgpuBackend":
    """The back end for this machine's AMD GPUs.

    Raises:
        BackendUnavailableError: The driver runs no card, or tells nothing of any.
    """
    return AmdgpuBackend(SYSFS, SystemClock())


@dataclass(slots=True)
class _Watched:
    """A card and what is known of reading it."""

    card: Card
    faults: DeviceFaults
    sensors: AmdSensors | None = None
    source: FileSource | NoMetricsSource | None = None


class AmdgpuBackend:
    """Reads the cards that `amdgpu` runs, by PCI address, each before its partitions.

    Args:
        sysfs: The root of sysfs.
        clock: Tells the time.
    """

    name = "amdgpu"
    simulated = False

    def __init__(self, sysfs: Path, clock: Clock) -> None:
        self._sysfs = sysfs
        self._clock = clock
        self._open = True
        self._watched: dict[str, _Watched] = {}
        self.driver = driver_version(sysfs)
        found = cards(sysfs)
        if not found:
            raise BackendUnavailableError("the driver amdgpu runs no card here")
        self._devices = tuple(
            info for index, card in enumerate(found) for info in self._listed(card, index)
        )

    def devices(self) -> tuple[GpuInfo, ...]:
        """The cards at the start, by PCI address, each before its partitions."""
        return self._devices

    def read(self, device: GpuInfo, scope: ReadScope) -> DeviceReading:
        """One look at a GPU; of a partition nothing is told that its card does not tell.

        Raises:
            TransientDeviceError: This look failed; the next may succeed.
            DeviceLostError: The card is gone, or never was one of ours.
        """
        if device.parent is not None and self._open and device in self._devices:
            return DeviceReading()
        watched = self._watched.get(device.uuid) if self._open else None
        if watched is None:
            raise _lost(f"GPU {device.gpu} is not one of this driver's", device.index)
        try:
            return self._sensors(watched, device).read(scope)
        except DeviceLostError:
            self._let_go(watched)
            raise

    def read_plan(self, device: GpuInfo, scope: ReadScope) -> ReadPlan | None:
        """How to read a GPU without this object; None where `read` must.

        By the thread that reads the GPU: plan and reads share buffers.
        """
        watched = self._watched.get(device.uuid)
        if watched is None or watched.sensors is None:
            return None
        return watched.sensors.read_plan(scope)

    def sensor_reads(self, device: GpuInfo) -> Mapping[str, SensorRead]:
        """How to read single sensors of a GPU back to back, for any thread; none where it is gone.

        The file is open for as long as they are held.
        """
        watched = self._watched.get(device.uuid) if device.parent is None else None
        if watched is None:
            return {}
        try:
            source = FileSource(watched.card.metrics)
        except (OSError, UnknownMetricsError):
            return {}
        return sensor_reads(source, device.power_source, OSError)

    def probe(self, device: GpuInfo, calls_count: int = 100) -> tuple[FieldProbe, ...]:
        """What each metric and file for a GPU gives now, read up to `calls_count` times.

        Raises:
            DeviceLostError: The card is gone, or never was one of ours.
        """
        if device.parent is not None and device in self._devices:
            return (told_by_card(device.parent),)
        watched = self._watched.get(device.uuid) if self._open else None
        if watched is None:
            raise _lost(f"GPU {device.gpu} is not one of this driver's", device.index)
        asker = Asker(faults=watched.faults, clock=self._clock, calls_count=calls_count)
        known = traits(watched.card, device)
        source = _source(watched.card, device.index)
        return (
            *block_probes(source, asker),
            *beside_probes((*known.stand_ins, *known.beside), asker),
        )

    def buffered_period_ns(self, device: GpuInfo, field: str) -> int | None:
        """None: the kernel keeps no samples of its own."""
        del device, field
        return None

    def processes(self, device: GpuInfo) -> tuple[GpuProcess, ...] | None:
        """The processes with memory on a GPU, of all its partitions; None where that is not told.

        Source: the files vram_<gpu_id> of class/kfd/kfd/proc of the kernel's compute driver.
        """
        watched = self._watched.get(device.uuid) if device.parent is None else None
        return None if watched is None else processes(self._sysfs, watched.card.nodes)

    def implausible_total(self) -> dict[tuple[str, str], int]:
        """Values dropped as absurd since the start, by GPU label and field."""
        return {
            (device.gpu, what): count
            for device in self._devices
            if device.uuid in self._watched
            for what, count in dict(self._watched[device.uuid].faults.implausible_total).items()
        }

    def shortfall(self) -> str | None:
        """Which GPUs are read without their block of metrics, and why; None if none is."""
        lacking = [
            f"GPU {index}: {watched.source.reason}"
            for index, watched in enumerate(self._watched.values())
            if isinstance(watched.source, NoMetricsSource)
        ]
        return "; ".join(lacking) or None

    def changed(self) -> str | None:
        """What cards or partitions came or went since the start; None if none did. Never raises."""
        now = {info.uuid for card in cards(self._sysfs) for info in gpu_infos(card, 0)}
        before = {info.uuid for info in self._devices}
        gone, come = sorted(before - now), sorted(now - before)
        parts = [f"{uuid} is gone" for uuid in gone] + [f"{uuid} has come" for uuid in come]
        return "; ".join(parts) or None

    def close(self) -> None:
        """Let go of the files; a second call does nothing."""
        self._open = False
        for watched in self._watched.values():
            self._let_go(watched)

    def _listed(self, card: Card, index: int) -> tuple[GpuInfo, ...]:
        infos = gpu_infos(card, index)
        vendor = VendorErrors(base=OSError, classify=_classified)
        faults = DeviceFaults(index, vendor, self._clock)
        watched = self._watched[infos[0].uuid] = _Watched(card=card, faults=faults)
        return (self._described(watched, infos[0]), *infos[1:])

    def _described(self, watched: _Watched, info: GpuInfo) -> GpuInfo:
        """A GPU after its first look, which tells where its power comes from."""
        try:
            self._sensors(watched, info).read(ReadScope.FULL)
        except DeviceError as error:
            logger.warning("first look failed: %s", error)
        source = watched.sensors.power_source if watched.sensors else None
        memory = "kernel" if info.memory_size_bytes else None
        return replace(info, power_source=source, memory_source=memory)

    def _sensors(self, watched: _Watched, device: GpuInfo) -> AmdSensors:
        """What reads a GPU, made anew after it was lost."""
        if watched.sensors is None:
            watched.source = _source(watched.card, device.index)
            known = traits(watched.card, device)
            watched.sensors = AmdSensors(watched.source, known, watched.faults)
        return watched.sensors

    @staticmethod
    def _let_go(watched: _Watched) -> None:
        if watched.source is not None:
            watched.source.close()
        watched.source = watched.sensors = None


def _source(card: Card, index: int) -> FileSource | NoMetricsSource:
    """Where a card's block comes from; none where it has none of a known version."""
    try:
        return FileSource(card.metrics)
    except UnknownMetricsError as error:
        logger.warning("GPU %d: %s; read by hwmon alone", index, error)
        return NoMetricsSource(str(error))
    except OSError as error:
        if not card.folder.exists():
            raise _lost(f"GPU {index}: {card.pci_bus_id} is gone", index) from error
        if error.errno in _LOST | _UNSUPPORTED:
            return NoMetricsSource(f"gpu_metrics: {error.strerror}")
        raise _classified(error, card.metrics.name, index) from error


def _classified(error: Exception, operation: str, index: int) -> DeviceError:
    """What a file that can't be read means."""
    code = error.errno if isinstance(error, OSError) else None
    # A file that is not there is a sensor that is not there: of a card that is gone, the block's.
    is_block = operation == "gpu_metrics"
    kinds: Mapping[bool, type[DeviceError]] = {
        True: DeviceLostError if is_block else UnsupportedFieldError,
        False: UnsupportedFieldError if code in _UNSUPPORTED else TransientDeviceError,
    }
    return kinds[code in _LOST](
        f"GPU {index}: {operation} failed: {error}",
        operation=operation,
        device_index=index,
        vendor_code=code,
    )


def _lost(text: str, index: int) -> DeviceLostError:
    return DeviceLostError(text, operation="gpu_metrics", device_index=index)

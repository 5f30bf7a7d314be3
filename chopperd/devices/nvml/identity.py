"""Reads identity, fixed properties and presence of NVIDIA GPUs and GPU instances (MIG)."""

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Final, TypeVar

from chopperd.devices.nvml import table
from chopperd.devices.nvml.calls import DirectNumber, Driver
from chopperd.devices.nvml.codes import error_class
from chopperd.devices.nvml.table import Direct, Sensor
from chopperd.errors import UnsupportedFieldError
from chopperd.model.devices import GpuInfo, Vendor
from chopperd.units import BYTES_PER_KIB

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: One folder per GPU, named by its PCI address, whether or not the GPU answers.
_KERNEL_FOLDER: Final = Path("/proc/driver/nvidia/gpus")
_MEMINFO: Final = Path("/proc/meminfo")
# NVML has no flag for it, CUDA's `integrated` needs a context, and the addressing mode does not
# show it: a Grace Hopper shares page tables, not memory. DGX Spark, then the Jetson series.
_SHARES_MEMORY: Final = re.compile(r"\b(GB10|Xavier|Orin|Thor)\b")


def shares_system_memory(name: str) -> bool:
    """Return whether a GPU of this name uses the system's memory and has none of its own.

    Source: nvml.h on nvmlDeviceGetMemoryInfo: NOT_SUPPORTED on SoCs whose GPU shares memory with
    the system. A GPU with its own memory may fail with the same code, so the name decides.
    """
    return _SHARES_MEMORY.search(name) is not None


@dataclass(frozen=True, slots=True)
class SystemMemory:
    """Reads the system's memory from a file with the layout of /proc/meminfo."""

    path: Path = _MEMINFO

    def total_bytes(self) -> int | None:
        """Return the system's whole memory; None if the file does not report it."""
        return self._bytes_by_name().get("MemTotal")

    def used_bytes(self) -> int | None:
        """Return the memory in use: total less available; None if not reported.

        Free memory is no measure: the kernel's caches use all that nothing else needs.
        """
        bytes_by_name = self._bytes_by_name()
        total, available = bytes_by_name.get("MemTotal"), bytes_by_name.get("MemAvailable")
        return None if total is None or available is None else total - available

    def _bytes_by_name(self) -> dict[str, int]:
        try:
            text = self.path.read_text(encoding="ascii", errors="replace")
        except OSError:
            return {}
        entries = re.findall(r"^(\w+):\s*(\d+) kB$", text, re.MULTILINE)
        return {name: int(size) * BYTES_PER_KIB for name, size in entries}


def text_of(read: Callable[[], str]) -> str:
    """Call `read` and return the driver's string; bytes that are not UTF-8 are replaced."""
    try:
        return read()
    except UnicodeDecodeError as error:
        return error.object.decode("utf-8", errors="replace")


def uuid_of(nvml: ModuleType, handle: object) -> str:
    """Read the UUID of a GPU or instance; raises the vendor's error. Source: nvmlDeviceGetUUID."""
    return text_of(lambda: nvml.nvmlDeviceGetUUID(handle))


class FixedProperties:
    """Reads a GPU's properties that do not change; None for one that the driver does not report."""

    def __init__(self, nvml: ModuleType, handle: object) -> None:
        self._nvml = nvml
        self._handle = handle
        self._driver = Driver(nvml, handle)

    def gpu_info(self, index: int, uuid: str) -> GpuInfo:
        """Read the GPU's identity, without the sources of power and memory (known after a read)."""
        numbers = {sensor.name: self._number(sensor) for sensor in table.FIXED}
        default_mhz = self._number(table.DEFAULT_CLOCK)
        numbers["sm_clock_limit_mhz"] = _clock_limit_mhz(
            numbers["sm_clock_limit_mhz"], default_mhz, numbers["sm_clock_max_mhz"]
        )
        return GpuInfo(
            gpu=str(index),
            index=index,
            uuid=uuid,
            name=self._name(),
            vendor=Vendor.NVIDIA,
            pci_bus_id=self._read(
                lambda: text_of(lambda: self._nvml.nvmlDeviceGetPciInfo_v3(self._handle).busId)
            ),
            memory_size_bytes=self._memory_size_bytes(),
            power_limit_w=self._number(table.POWER_LIMIT),
            **numbers,  # type: ignore[arg-type]
        )

    def instance_info(self, card: GpuInfo, instance: int, uuid: str) -> GpuInfo:
        """Read a GPU instance's identity, labelled by its id there; only memory is its own."""
        return GpuInfo(
            gpu=f"{card.gpu}.{instance}",
            index=card.index,
            uuid=uuid,
            name=self._name(),
            vendor=Vendor.NVIDIA,
            memory_size_bytes=self._memory_size_bytes(),
            parent=card.gpu,
        )

    def mig(self) -> bool | None:
        """Read whether MIG mode is on; None if the driver does not report it this time.

        Source: nvmlDeviceGetMigMode, current mode.
        """
        try:
            mode: int = self._nvml.nvmlDeviceGetMigMode(self._handle)[0]
        except self._nvml.NVMLError as error:
            return False if error_class(error.value) is UnsupportedFieldError else None
        enabled: int = self._nvml.NVML_DEVICE_MIG_ENABLE
        return mode == enabled

    def _read(self, read: Callable[[], T]) -> T | None:
        try:
            return read()
        except self._nvml.NVMLError:
            return None

    def _name(self) -> str:
        return self._read(lambda: text_of(lambda: self._nvml.nvmlDeviceGetName(self._handle))) or ""

    def _memory_size_bytes(self) -> int | None:
        size_bytes = self._number(table.MEMORY_SIZE)
        return None if size_bytes is None else int(size_bytes)

    def _number(self, sensor: Sensor) -> float | None:
        """Return the first plausible number that a `Direct` method gives; None if none does."""
        for method in sensor.methods:
            if isinstance(method, Direct):
                value = self._read(DirectNumber(self._driver, method).read)
                if value is not None and value in sensor.bounds:
                    return float(value)
        return None


def _clock_limit_mhz(
    set_mhz: float | None, default_mhz: float | None, max_mhz: float | None
) -> float | None:
    """Return the applications clock, MHz, if somebody set it below the highest clock; else None.

    At its default it is no limit: an A100 or V100 boosts to its highest clock with a default
    applications clock 300 MHz below. So None also if the default is not known.
    """
    if set_mhz is None or default_mhz is None or max_mhz is None:
        return None
    return set_mhz if set_mhz < max_mhz and set_mhz != default_mhz else None


def instances(
    nvml: ModuleType, card_handle: object, card: GpuInfo, *, strict: bool = False
) -> Iterator[tuple[object, GpuInfo]]:
    """Yield handle and identity of each GPU instance of a card, labelled by its id there ("0.1").

    An instance that is divided further is listed once, with the UUID of its first part: the parts
    share its memory. One that this process may not see is left out, as the driver does. With
    `strict`, the vendor's error of a call that may succeed later is raised.

    Source: nvmlDeviceGetMigDeviceHandleByIndex, nvmlDeviceGetGpuInstanceId.
    """
    known: set[int] = set()
    for handle in _handles(nvml, card_handle, strict=strict):
        try:
            instance = nvml.nvmlDeviceGetGpuInstanceId(handle)
            uuid = uuid_of(nvml, handle)
        except nvml.NVMLError as error:
            if strict and not _is_refused(error):
                raise
            logger.warning("GPU %s: a GPU instance can't be identified: %s", card.gpu, error)
            continue
        if instance not in known:
            known.add(instance)
            yield handle, FixedProperties(nvml, handle).instance_info(card, instance, uuid)


def _handles(nvml: ModuleType, card_handle: object, *, strict: bool) -> Iterator[object]:
    """Yield the driver's handles of a card's MIG devices, whose numbers have gaps."""
    try:
        most = nvml.nvmlDeviceGetMaxMigDeviceCount(card_handle)
    except nvml.NVMLError as error:
        if strict and not _is_refused(error):
            raise
        return
    for index in range(most):
        try:
            yield nvml.nvmlDeviceGetMigDeviceHandleByIndex(card_handle, index)
        except nvml.NVMLError as error:  # mostly "not found": there is none of this number
            if strict and not _is_refused(error):
                raise


def _is_refused(error: Exception) -> bool:
    """Return whether an error means that the call would fail again in the same way."""
    return error_class(getattr(error, "value", 0)) is UnsupportedFieldError


@dataclass(frozen=True, slots=True, kw_only=True)
class Presence:
    """The driver's lists of GPUs and GPU instances at one time."""

    cards: Mapping[str, int] = field(default_factory=dict)  # index by UUID, if the GPU answers
    split: Set[str] = frozenset()  # UUIDs of GPUs in MIG mode
    instances: Mapping[str, str] = field(default_factory=dict)  # the card's UUID by UUID
    unsure: Set[str] = frozenset()  # UUIDs of GPUs whose instances are not known this time
    silent: Set[int] = frozenset()  # indices of GPUs that are counted and do not answer


def present(nvml: ModuleType) -> Presence | None:
    """List the GPUs and instances that are present now; None if the driver lists no GPUs.

    Source: nvmlDeviceGetCount, nvmlDeviceGetHandleByIndex, nvmlDeviceGetUUID.
    """
    try:
        indices = range(nvml.nvmlDeviceGetCount())
    except nvml.NVMLError:
        return None
    cards, split, parts, unsure, silent = {}, set[str](), {}, set[str](), set[int]()
    for index in indices:
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            uuid = uuid_of(nvml, handle)
        except nvml.NVMLError:
            silent.add(index)
            continue
        cards[uuid] = index
        is_split = FixedProperties(nvml, handle).mig()
        found = _instance_uuids(nvml, handle, index, uuid) if is_split else ()
        if is_split is None or found is None:
            unsure.add(uuid)
        elif is_split:
            split.add(uuid)
            parts.update(dict.fromkeys(found, uuid))
    return Presence(cards=cards, split=split, instances=parts, unsure=unsure, silent=silent)


def _instance_uuids(
    nvml: ModuleType, handle: object, index: int, uuid: str
) -> tuple[str, ...] | None:
    """List UUIDs of a card's instances; None if the driver does not report them this time."""
    card = GpuInfo(gpu=str(index), index=index, uuid=uuid, name="", vendor=Vendor.NVIDIA)
    try:
        return tuple(info.uuid for _, info in instances(nvml, handle, card, strict=True))
    except nvml.NVMLError:
        return None


def silent_gpu(index: int, count: int, folder: Path = _KERNEL_FOLDER) -> GpuInfo:
    """Return the identity, without a UUID, of a GPU that the driver counts but that is silent.

    Its PCI address is the one at its index in the kernel driver's list, as NVML orders GPUs by
    address; None if the two do not list the same number.

    Source: nvml.h on nvmlDeviceGetHandleByIndex_v2, for the order; not seen on hardware.
    """
    addresses = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    return GpuInfo(
        gpu=str(index),
        index=index,
        uuid="",
        name="",
        vendor=Vendor.NVIDIA,
        # NVML writes the domain with 8 digits, the kernel with 4.
        pci_bus_id=f"0000{addresses[index]}".upper() if len(addresses) == count else None,
    )


def difference(then: Presence, now: Presence) -> str | None:
    """Return what appeared or disappeared between two lists, as text; None if nothing did.

    A GPU that only does not answer has not disappeared, nor have its instances; the instances of a
    GPU in `unsure` have not changed.
    """
    return "; ".join(_changes(then, now)) or None


def _changes(then: Presence, now: Presence) -> Iterator[str]:
    for uuid, index in now.cards.items():
        if uuid not in then.cards:
            yield f"GPU {index} ({uuid}) is there"
        elif uuid not in now.unsure and (uuid in then.split) != (uuid in now.split):
            yield f"MIG mode of GPU {index} is {'on' if uuid in now.split else 'off'}"
    for uuid, index in then.cards.items():
        if uuid not in now.cards and index not in now.silent:
            yield f"GPU {index} ({uuid}) is gone"
    for uuid in now.instances.keys() - then.instances.keys():
        yield f"GPU instance {uuid} is there"
    for uuid in then.instances.keys() - now.instances.keys():
        if then.instances[uuid] in now.cards.keys() - now.unsure:
            yield f"GPU instance {uuid} is gone"

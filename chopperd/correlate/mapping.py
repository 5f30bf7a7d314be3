"""Which GPU of the node a trace's device is; never guessed by equal numbers.

CUDA orders devices by speed or by the visible list, NVML by bus, HIP and roctracer in ways of
their own, so a number alone says nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from chopperd.model.devices import GpuInfo
from chopperd.model.trace import TraceDevice


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapped:
    """The GPU of a trace's device and the rule that found it; both None where none did."""

    gpu: GpuInfo | None
    rule: str | None


UNMAPPED = Mapped(gpu=None, rule=None)


def map_device(
    device: int,
    traced: Sequence[TraceDevice],
    used_devices: Sequence[int],
    gpus: Sequence[GpuInfo],
    device_map: Mapping[int, str],
) -> Mapped:
    """The GPU that a trace's device is, by the first rule that tells.

    In order: the trace's own `chopperd_devices`; the user's map; a product name that occurs once
    on either side; one device traced and one GPU sampled, whose names do not disagree.

    Args:
        device: The trace's device number.
        traced: What the trace says of its devices.
        used_devices: Numbers of the devices with records.
        gpus: The node's GPUs.
        device_map: From device numbers to a GPU's UUID, PCI bus id or label.

    Source: DESIGN.md section 4, "GPU identity".
    """
    said = next((each for each in traced if each.device == device), None)
    if said is None and len(traced) == 1 and len(used_devices) == 1:
        said = traced[0]
    found = (
        ("chopperd_devices", _by_identity(said, gpus)),
        ("device_map", _by_name(device_map.get(device), gpus)),
        ("unique_name", _by_unique_name(said, traced, gpus)),
        ("only_one", _by_elimination(said, used_devices, gpus)),
    )
    return next((Mapped(gpu=gpu, rule=rule) for rule, gpu in found if gpu is not None), UNMAPPED)


def _by_identity(said: TraceDevice | None, gpus: Sequence[GpuInfo]) -> GpuInfo | None:
    if said is None:
        return None
    for wanted, attribute in ((said.uuid, "uuid"), (said.pci_bus_id, "pci_bus_id")):
        for gpu in gpus:
            if wanted and _same(wanted, getattr(gpu, attribute)):
                return gpu
    return None


def _by_name(wanted: str | None, gpus: Sequence[GpuInfo]) -> GpuInfo | None:
    if wanted is None:
        return None
    matches = (
        gpu
        for gpu in gpus
        if wanted == gpu.gpu or _same(wanted, gpu.uuid) or _same(wanted, gpu.pci_bus_id)
    )
    return next(matches, None)


def _by_unique_name(
    said: TraceDevice | None, traced: Sequence[TraceDevice], gpus: Sequence[GpuInfo]
) -> GpuInfo | None:
    if said is None or not said.name:
        return None
    of_trace = [each for each in traced if each.name == said.name]
    of_node = [gpu for gpu in gpus if gpu.name == said.name]
    return of_node[0] if len(of_trace) == 1 and len(of_node) == 1 else None


def _by_elimination(
    said: TraceDevice | None, used_devices: Sequence[int], gpus: Sequence[GpuInfo]
) -> GpuInfo | None:
    if len(used_devices) != 1 or len(gpus) != 1:
        return None
    gpu = gpus[0]
    disagree = said is not None and said.name and gpu.name and said.name != gpu.name
    return None if disagree else gpu


def _same(a: str, b: str | None) -> bool:
    return b is not None and a.casefold() == b.casefold()

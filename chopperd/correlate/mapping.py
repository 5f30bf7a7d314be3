"""Which GPU of the node a trace's device is; never guessed by equal numbers.

CUDA orders devices by speed or by the visible list, NVML by bus, HIP in a way of its own, so a
number alone says nothing. ROCm's profilers number devices by the kernel's nodes (`hsa_nodes`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from chopperd.correlate.hsa_nodes import NodeMatch, gpu_of_number
from chopperd.model.devices import GpuInfo
from chopperd.model.trace import DeviceNumbers, TraceDevice


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapped:
    """The GPU of a trace's device and the rule that found it; both None where none did.

    `why_not` says in words what kept a rule from telling, where that can be said.
    """

    gpu: GpuInfo | None
    rule: str | None
    why_not: str | None = None


UNMAPPED = Mapped(gpu=None, rule=None)


def map_device(
    device: int,
    traced: Sequence[TraceDevice],
    used_devices: Sequence[int],
    gpus: Sequence[GpuInfo],
    device_map: Mapping[int, str],
    *,
    numbers: DeviceNumbers = DeviceNumbers.PROPERTIES,
    guess: bool = True,
) -> Mapped:
    """The GPU that a trace's device is, by the first rule that tells.

    In order: the trace's own `chopperd_devices`; the user's map; and where neither says anything
    else of it, the HSA node that its number means; a product name that occurs once on either side,
    or one device traced and one GPU sampled.

    Args:
        device: The trace's device number.
        traced: What the trace says of its devices.
        used_devices: Numbers of the devices with records.
        gpus: The node's GPUs.
        device_map: From device numbers to a GPU's UUID, PCI bus id or label.
        numbers: What the trace's device numbers count.
        guess: Whether the last two rules may tell.

    Source: DESIGN.md section 4, "GPU identity".
    """
    said = said_of(device, traced, used_devices, numbers)
    wanted = device_map.get(device)
    # What runs on a card that is split runs on one of its parts.
    split = {gpu.parent for gpu in gpus}
    usable = [gpu for gpu in gpus if gpu.gpu not in split]
    possible = [gpu for gpu in usable if not _contradict(said, gpu)] if wanted is None else []
    node = (
        gpu_of_number(device, numbers, used_devices, len(traced), usable)
        if possible
        else NodeMatch()
    )
    candidates = possible if guess else []
    found = (
        ("chopperd_devices", _by_identity(said, gpus)),
        ("device_map", _by_name(wanted, gpus)),
        ("kfd_node", node.gpu if node.gpu in possible else None),
        ("unique_name", _by_unique_name(said, traced, usable, candidates)),
        (
            "only_one",
            candidates[0] if candidates and len(used_devices) == len(usable) == 1 else None,
        ),
    )
    unmapped = Mapped(gpu=None, rule=None, why_not=node.why_not)
    return next((Mapped(gpu=gpu, rule=rule) for rule, gpu in found if gpu is not None), unmapped)


def said_of(
    device: int,
    traced: Sequence[TraceDevice],
    used_devices: Sequence[int],
    numbers: DeviceNumbers = DeviceNumbers.PROPERTIES,
) -> TraceDevice | None:
    """What a trace says of a device; the only entry is of the only device, whatever its number.

    Where records number devices otherwise than `deviceProperties`, an entry of these says of a
    device only what all of them say.

    Args:
        device: The trace's device number.
        traced: What the trace says of its devices.
        used_devices: Numbers of the devices with records.
        numbers: What the trace's device numbers count.
    """
    said = next((each for each in traced if each.device == device), None)
    identified = said is not None and bool(said.uuid or said.pci_bus_id)
    if numbers is not DeviceNumbers.PROPERTIES and not identified:
        names = {each.name for each in traced}
        units = {each.units for each in traced}
        unit = units.pop() if len(units) == 1 else None
        unique = len(names) == 1
        said = TraceDevice(device=device, name=names.pop(), units=unit) if unique else None
    if said is None and len(traced) == 1 and len(used_devices) == 1:
        return traced[0]
    return said


def _by_identity(said: TraceDevice | None, gpus: Sequence[GpuInfo]) -> GpuInfo | None:
    if said is None:
        return None
    same_uuid = (gpu for gpu in gpus if _same(_bare_uuid(said.uuid), _bare_uuid(gpu.uuid)))
    same_bus = (gpu for gpu in gpus if _same(_bare_bus(said.pci_bus_id), _bare_bus(gpu.pci_bus_id)))
    return next(same_uuid, None) or next(same_bus, None)


def _by_name(wanted: str | None, gpus: Sequence[GpuInfo]) -> GpuInfo | None:
    """The GPU that a user names; a label before anything that only looks like it."""
    if wanted is None:
        return None
    labelled = next((gpu for gpu in gpus if wanted == gpu.gpu), None)
    named = TraceDevice(device=-1, uuid=wanted, pci_bus_id=wanted)
    return labelled or _by_identity(named, gpus)


def _by_unique_name(
    said: TraceDevice | None,
    traced: Sequence[TraceDevice],
    gpus: Sequence[GpuInfo],
    candidates: Sequence[GpuInfo],
) -> GpuInfo | None:
    if said is None or not said.name:
        return None
    of_trace = [each for each in traced if each.name == said.name]
    of_node = [gpu for gpu in gpus if gpu.name == said.name]
    unique = len(of_trace) == 1 and len(of_node) == 1 and of_node[0] in candidates
    return of_node[0] if unique else None


def _contradict(said: TraceDevice | None, gpu: GpuInfo) -> bool:
    """Whether trace and samples both tell something of the device, and not the same."""
    if said is None:
        return False
    pairs = (
        (_bare_uuid(said.uuid), _bare_uuid(gpu.uuid)),
        (_bare_bus(said.pci_bus_id), _bare_bus(gpu.pci_bus_id)),
        (said.name, gpu.name),
    )
    return any(a and b and not _same(a, b) for a, b in pairs)


def _bare_uuid(uuid: str | None) -> str | None:
    """Without its prefix, which torch leaves out."""
    return uuid.casefold().removeprefix("gpu-").removeprefix("mig-") if uuid else None


def _bare_bus(pci_bus_id: str | None) -> str | None:
    """With a domain of four digits, as CUDA writes it (NVML: eight), and with its function."""
    if not pci_bus_id:
        return None
    address, _, function = pci_bus_id.casefold().partition(".")
    parts = address.split(":")
    domain = parts[0][-4:] if len(parts) > 2 else ""
    return ":".join((domain.zfill(4), *parts[-2:])) + f".{function or '0'}"


def _same(a: str | None, b: str | None) -> bool:
    return bool(a) and bool(b) and a == b

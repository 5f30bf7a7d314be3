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
    *,
    guess: bool = True,
) -> Mapped:
    """The GPU that a trace's device is, by the first rule that tells.

    In order: the trace's own `chopperd_devices`; the user's map; and where neither says anything
    else of it, a product name that occurs once on either side, or one device traced and one GPU
    sampled.

    Args:
        device: The trace's device number.
        traced: What the trace says of its devices.
        used_devices: Numbers of the devices with records.
        gpus: The node's GPUs.
        device_map: From device numbers to a GPU's UUID, PCI bus id or label.
        guess: Whether the last two rules may tell.

    Source: DESIGN.md section 4, "GPU identity".
    """
    said = said_of(device, traced, used_devices)
    wanted = device_map.get(device)
    open_to_guess = guess and wanted is None
    # What runs on a card that is split runs on one of its parts.
    split = {gpu.parent for gpu in gpus}
    usable = [gpu for gpu in gpus if gpu.gpu not in split]
    candidates = [gpu for gpu in usable if not _contradict(said, gpu)] if open_to_guess else []
    found = (
        ("chopperd_devices", _by_identity(said, gpus)),
        ("device_map", _by_name(wanted, gpus)),
        ("unique_name", _by_unique_name(said, traced, usable, candidates)),
        (
            "only_one",
            candidates[0] if candidates and len(used_devices) == len(usable) == 1 else None,
        ),
    )
    return next((Mapped(gpu=gpu, rule=rule) for rule, gpu in found if gpu is not None), UNMAPPED)


def said_of(
    device: int, traced: Sequence[TraceDevice], used_devices: Sequence[int]
) -> TraceDevice | None:
    """What a trace says of a device; the only entry is of the only device, whatever its number.

    Args:
        device: The trace's device number (an HSA node id in traces of roctracer).
        traced: What the trace says of its devices.
        used_devices: Numbers of the devices with records.
    """
    said = next((each for each in traced if each.device == device), None)
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

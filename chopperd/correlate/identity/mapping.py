"""Which GPU of the node a trace's device is; never guessed by equal numbers.

CUDA orders devices by speed or by the visible list, NVML by bus, HIP in a way of its own, so a
number alone says nothing. ROCm's profilers number devices by the kernel's nodes (`hsa_nodes`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from chopperd.correlate.identity.hsa_nodes import NodeMatch, gpu_of_number
from chopperd.correlate.identity.process_gpu import ProcessMatch, TracedProcess, gpu_of_process
from chopperd.correlate.identity.same_gpu import (
    bare_bus,
    bare_uuid,
    gpu_identified,
    gpu_named,
    in_pci_order,
    same,
)
from chopperd.model.device_map import DeviceMap
from chopperd.model.devices import GpuInfo
from chopperd.model.samples import ProcessRow
from chopperd.model.trace import DeviceNumbers, TraceDevice

_TAKEN: Final = "another trace of the same time was given the same GPU, so neither stands"

#: Rules that may be wrong where another trace of the same time is given the same GPU by any rule.
UNCERTAIN_RULES: Final = frozenset({"device_map", "process", "unique_name", "only_one"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapped:
    """The GPU of a trace's device and the rule that found it; both None where none did.

    `why_not` says in words what kept a rule from telling, where that can be said.
    """

    gpu: GpuInfo | None
    rule: str | None
    why_not: str | None = None


UNMAPPED = Mapped(gpu=None, rule=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """What a trace says that tells which GPUs its devices are.

    Attributes:
        devices: What it says of its devices.
        used: Numbers of the devices with records.
        numbers: What its device numbers count.
        rank: Its rank; None if unknown.
        process: Who wrote it.
    """

    devices: Sequence[TraceDevice] = ()
    used: Sequence[int] = ()
    numbers: DeviceNumbers = DeviceNumbers.PROPERTIES
    rank: int | None = None
    process: TracedProcess = field(default_factory=TracedProcess)


def map_device(
    device: int,
    traced: Traced,
    gpus: Sequence[GpuInfo],
    device_map: DeviceMap,
    *,
    processes: Sequence[ProcessRow] = (),
    guess: bool = True,
) -> Mapped:
    """The GPU that a trace's device is, by the first rule that tells.

    In order: the UUID or PCI bus id in the trace; the user's map; and where neither says anything
    else of it, the trace's process; the HSA node that its number means; a product name that occurs
    once on either side; one device traced and one GPU sampled; the user's word that numbers are in
    PCI order.

    Args:
        device: The trace's device number.
        traced: What the trace says.
        gpus: The node's GPUs.
        device_map: What the user says.
        processes: Who held which GPU.
        guess: Whether rules may tell that are wrong where two traces are given one GPU
            (`UNCERTAIN_RULES`).

    Source: DESIGN.md section 4, "GPU identity".
    """
    said = said_of(device, traced.devices, traced.used, traced.numbers)
    wanted = device_map.named(traced.rank, device, any_rank=guess)
    # What runs on a card that is split runs on one of its parts.
    split = {gpu.parent for gpu in gpus}
    usable = [gpu for gpu in gpus if gpu.gpu not in split]
    possible = [gpu for gpu in usable if not _contradict(said, gpu)] if wanted is None else []
    candidates = possible if guess else []
    node = _node(device, traced, usable, possible)
    process = _process(device, traced.process, processes, usable, candidates)
    found = (
        (said.identity_source if said else "", _by_identity(said, gpus)),
        ("device_map", None if wanted is None else gpu_named(wanted, gpus)),
        ("process", process.gpu),
        ("kfd_node", node.gpu if node.gpu in possible else None),
        ("unique_name", _by_unique_name(said, traced.devices, usable, candidates)),
        ("only_one", _only_one(traced.used, usable, candidates)),
        ("device_map", _by_pci_order(device, traced, usable, candidates, device_map)),
    )
    told = ((rule, gpu) for rule, gpu in found if gpu is not None)
    unmapped = Mapped(gpu=None, rule=None, why_not=_why_not(wanted, process, node, guess=guess))
    return next((Mapped(gpu=gpu, rule=rule) for rule, gpu in told), unmapped)


def _why_not(
    wanted: str | None, process: ProcessMatch, node: NodeMatch, *, guess: bool
) -> str | None:
    if wanted is not None:
        return f"no sampled GPU is called {wanted}"
    return (node.why_not or process.why_not) if guess else _TAKEN


def _node(
    device: int, traced: Traced, usable: Sequence[GpuInfo], possible: Sequence[GpuInfo]
) -> NodeMatch:
    if not possible:
        return NodeMatch()
    seen_count = len(traced.devices)
    return gpu_of_number(device, traced.numbers, traced.used, seen_count, usable)


def _process(
    device: int,
    process: TracedProcess,
    rows: Sequence[ProcessRow],
    usable: Sequence[GpuInfo],
    candidates: Sequence[GpuInfo],
) -> ProcessMatch:
    if not candidates:
        return ProcessMatch()
    match = gpu_of_process(device, process, rows, usable)
    if match.gpu is None or match.gpu in candidates:
        return match
    label = match.gpu.gpu
    return ProcessMatch(
        why_not=f"its process held GPU {label}, which the trace describes otherwise"
    )


def _only_one(
    used: Sequence[int], usable: Sequence[GpuInfo], candidates: Sequence[GpuInfo]
) -> GpuInfo | None:
    return candidates[0] if candidates and len(used) == len(usable) == 1 else None


def _by_pci_order(
    device: int,
    traced: Traced,
    usable: Sequence[GpuInfo],
    candidates: Sequence[GpuInfo],
    device_map: DeviceMap,
) -> GpuInfo | None:
    """The GPU of this place in PCI order, where the user says that numbers mean that."""
    if not device_map.pci_order or traced.numbers is DeviceNumbers.HSA_NODES:
        return None
    order = in_pci_order(usable) or []
    gpu = order[device] if 0 <= device < len(order) else None
    return gpu if gpu in candidates else None


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
    return None if said is None else gpu_identified(said.uuid, said.pci_bus_id, gpus)


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
        (bare_uuid(said.uuid), bare_uuid(gpu.uuid)),
        (bare_bus(said.pci_bus_id), bare_bus(gpu.pci_bus_id)),
        (said.name, gpu.name),
    )
    return any(a and b and not same(a, b) for a, b in pairs)

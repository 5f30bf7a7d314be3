"""Which GPU of the node a trace's device is; never guessed by equal numbers.

CUDA orders devices by speed or by the visible list, NVML by bus, HIP in a way of its own, so a
number alone says nothing. ROCm's profilers number devices by the kernel's nodes (`hsa_nodes`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from chopperd.correlate.identity.by_process import (
    ProcessMatch,
    TracedProcess,
    bare_bus,
    bare_uuid,
    gpu_identified,
    gpu_named,
    gpu_of_process,
    in_pci_order,
    same,
)
from chopperd.model.devices import GpuInfo
from chopperd.model.run import DeviceMap
from chopperd.model.samples import ProcessRow
from chopperd.model.trace import DeviceNumbers, TraceDevice

# Which sampled AMD GPU a trace's device number means, by the nodes of the compute driver (KFD).
#
# A number is believed where only one GPU can bear it, and is no guess then. Two things can make
# one number mean two GPUs. Which of ROCm's profilers wrote it: one counts nodes, the other GPUs.
# And what the process may open: a container that is given some GPUs has their nodes renumbered,
# CPUs first and then its own GPUs, by the same runtime library that numbers all nodes elsewhere.
# What ROCR_VISIBLE_DEVICES and HIP_VISIBLE_DEVICES choose renumbers nothing here.
#
# Source: hsakmt's topology (user node ids leave out nodes whose files can't be opened);
# rocprofiler-     sdk's agents, which are counted likewise. That both are so was read in source,
# not seen.


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeMatch:
    """The GPU of a device number, or in words why there is none; both None for other makers."""

    gpu: GpuInfo | None = None
    why_not: str | None = None


def gpu_of_number(
    number: int,
    numbers: DeviceNumbers,
    used_numbers: Sequence[int],
    seen_count: int,
    gpus: Sequence[GpuInfo],
) -> NodeMatch:
    """The GPU that a trace's device number means.

    A process that sees as many GPUs as are sampled may open all of them. So may one that has a
    device with the highest number there is, as hidden nodes only lower numbers. Else the number
    may be one of fewer, and nothing is told.

    Args:
        number: The trace's device number.
        numbers: What it counts; where that is not known, it is what can count all of the trace's.
        used_numbers: The numbers of the trace's devices.
        seen_count: How many GPUs HIP gave the process; 0 if the trace does not say.
        gpus: The sampled GPUs, without cards of which the parts are sampled.
    """
    if numbers is DeviceNumbers.PROPERTIES:
        return NodeMatch()
    by_node = {gpu.kfd_node: gpu for gpu in gpus if gpu.kfd_node is not None}
    nodes = sorted(by_node)
    places = [_place(number, counts, nodes) for counts in _countings(numbers, used_numbers, nodes)]
    why_not = _doubt(places, nodes, seen_count)
    return NodeMatch(why_not=why_not) if why_not else NodeMatch(gpu=by_node[nodes[places[0]]])


def _countings(
    numbers: DeviceNumbers, used_numbers: Sequence[int], nodes: Sequence[int]
) -> list[DeviceNumbers]:
    """What the numbers may count, such that each of them is that of a sampled GPU."""
    either = (DeviceNumbers.HSA_NODES, DeviceNumbers.GPU_ORDINALS)
    return [
        counts
        for counts in (either if numbers is DeviceNumbers.UNKNOWN else (numbers,))
        if all(0 <= _place(used, counts, nodes) < len(nodes) for used in used_numbers)
    ]


def _place(number: int, counts: DeviceNumbers, nodes: Sequence[int]) -> int:
    """The place of a number's GPU among the sampled ones, in order of their nodes."""
    return number - nodes[0] if nodes and counts is DeviceNumbers.HSA_NODES else number


def _doubt(places: Sequence[int], nodes: Sequence[int], seen_count: int) -> str | None:
    """In words, why the number means no GPU, or may mean another; None if it means one."""
    count = len(nodes)
    reasons = (
        (not nodes, "the samples do not say which HSA nodes their GPUs are"),
        (
            len(places) > 1,
            "the trace does not tell whether its device numbers count HSA nodes or GPUs",
        ),
        (not places, "its device numbers are those of HSA nodes or GPUs that are not sampled"),
        (
            bool(nodes) and nodes[-1] - nodes[0] >= count,
            "between the HSA nodes of the sampled GPUs others are missing",
        ),
        (
            seen_count > count or (seen_count < count and bool(places) and places[0] < count - 1),
            f"its process saw {seen_count or 'an unknown number of'} GPUs where {count} are "
            "sampled, and may number only those that it could open",
        ),
    )
    return next((words for holds, words in reasons if holds), None)


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

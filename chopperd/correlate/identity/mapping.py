"""Find which GPU of the node a trace's device is; never guessed by equal numbers.

CUDA orders devices by speed or by the visible list, NVML by bus, HIP in another order, so equal
numbers need not be one GPU. ROCm's profilers number devices by the kernel's nodes (`hsa_nodes`).
"""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct, field

from chopperd.correlate.identity.by_process import (
    Match,
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
# rocprofiler-sdk's agents, which are counted likewise. That both are so was read in source,
# not seen.


def gpu_of_number(
    number: int,
    numbers: DeviceNumbers,
    used_numbers: Sequence[int],
    seen_count: int,
    gpus: Sequence[GpuInfo],
) -> Match:
    """Find the GPU that a trace's device number means.

    A process that sees as many GPUs as are sampled may open all of them. So may one that has a
    device with the highest number there is, as hidden nodes only lower numbers. Else the number
    may be one of fewer, and no GPU is given.

    `numbers`: what it counts; if unknown, that by which all the trace's numbers have a GPU.
    `seen_count`: how many GPUs HIP gave the process; 0 if not known. `gpus`: the sampled GPUs,
    without cards of which the parts are sampled.
    """
    if numbers is DeviceNumbers.PROPERTIES:
        return Match()
    by_node = {gpu.kfd_node: gpu for gpu in gpus if gpu.kfd_node is not None}
    nodes = sorted(by_node)
    places = [_place(number, counts, nodes) for counts in _countings(numbers, used_numbers, nodes)]
    why_not = _doubt(places, nodes, seen_count)
    return Match(why_not=why_not) if why_not else Match(gpu=by_node[nodes[places[0]]])


def _countings(
    numbers: DeviceNumbers, used_numbers: Sequence[int], nodes: Sequence[int]
) -> list[DeviceNumbers]:
    either = (DeviceNumbers.HSA_NODES, DeviceNumbers.GPU_ORDINALS)
    return [
        counts
        for counts in (either if numbers is DeviceNumbers.UNKNOWN else (numbers,))
        if all(0 <= _place(used, counts, nodes) < len(nodes) for used in used_numbers)
    ]


def _place(number: int, counts: DeviceNumbers, nodes: Sequence[int]) -> int:
    """Return the index of a number's GPU among the sampled ones in order of their nodes."""
    return number - nodes[0] if nodes and counts is DeviceNumbers.HSA_NODES else number


def _doubt(places: Sequence[int], nodes: Sequence[int], seen_count: int) -> str | None:
    """Explain in words why the number means no GPU, or several; None if it means exactly one."""
    count = len(nodes)
    reasons = (
        (not nodes, "the samples do not say which HSA nodes their GPUs are"),
        (
            len(places) > 1,
            "the trace does not say whether its device numbers count HSA nodes or GPUs",
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


_TAKEN: Final = "another trace of the same time was given the same GPU, so neither is used"

#: Rules that may be wrong where another trace of the same time is given the same GPU by any rule.
UNCERTAIN_RULES: Final = frozenset({"device_map", "process", "unique_name", "only_one"})


class Mapped(Struct, frozen=True, kw_only=True):
    """The GPU of a trace's device and the rule that found it; both None where none did.

    `why_not` explains in words why no rule found one, where that is known.
    """

    gpu: GpuInfo | None
    rule: str | None
    why_not: str | None = None


UNMAPPED = Mapped(gpu=None, rule=None)


class Traced(Struct, frozen=True, kw_only=True):
    """What a trace contains about the identity of its devices."""

    devices: Sequence[TraceDevice] = ()  # its descriptions of devices
    used: Sequence[int] = ()  # numbers of the devices with records
    numbers: DeviceNumbers = DeviceNumbers.PROPERTIES  # what its device numbers count
    rank: int | None = None  # its rank; None if unknown
    process: TracedProcess = field(default_factory=TracedProcess)  # who wrote it


def map_device(
    device: int,
    traced: Traced,
    gpus: Sequence[GpuInfo],
    device_map: DeviceMap,
    *,
    processes: Sequence[ProcessRow] = (),
    guess: bool = True,
) -> Mapped:
    """Find the GPU that a trace's device is, by the first rule that finds one.

    In order: the UUID or PCI bus id in the trace; the user's map; and where neither contradicts,
    the trace's process; the HSA node that its number means; a product name that occurs once on
    either side; one device traced and one GPU sampled; the user's word that numbers are in PCI
    order.

    `guess`: whether rules may be used that are wrong where two traces are given one GPU
    (`UNCERTAIN_RULES`).

    Source: DESIGN.md section 4, "GPU identity".
    """
    described = description_of(device, traced.devices, traced.used, traced.numbers)
    wanted = device_map.named(traced.rank, device, any_rank=guess)
    # What runs on a card that is split runs on one of its parts.
    split = {gpu.parent for gpu in gpus}
    usable = [gpu for gpu in gpus if gpu.gpu not in split]
    possible = [gpu for gpu in usable if not _contradict(described, gpu)] if wanted is None else []
    candidates = possible if guess else []
    node, process = Match(), Match()
    if possible:
        node = gpu_of_number(device, traced.numbers, traced.used, len(traced.devices), usable)
    if candidates:
        process = gpu_of_process(device, traced.process, processes, usable)
        if process.gpu is not None and process.gpu not in candidates:
            why_not = f"its process held GPU {process.gpu.gpu}, which the trace describes otherwise"
            process = Match(why_not=why_not)
    single = candidates[0] if candidates and len(traced.used) == len(usable) == 1 else None
    identified = None
    if described is not None:
        identified = gpu_identified(described.uuid, described.pci_bus_id, gpus)
    found = (
        (described.identity_source if described else "", identified),
        ("device_map", None if wanted is None else gpu_named(wanted, gpus)),
        ("process", process.gpu),
        ("kfd_node", node.gpu if node.gpu in possible else None),
        ("unique_name", _by_unique_name(described, traced.devices, usable, candidates)),
        ("only_one", single),
        ("device_map", _by_pci_order(device, traced, usable, candidates, device_map)),
    )
    matches = (Mapped(gpu=gpu, rule=rule) for rule, gpu in found if gpu is not None)
    reason = node.why_not or process.why_not if guess else _TAKEN
    if wanted is not None:
        reason = f"no sampled GPU is called {wanted}"
    return next(matches, Mapped(gpu=None, rule=None, why_not=reason))


def _by_pci_order(
    device: int,
    traced: Traced,
    usable: Sequence[GpuInfo],
    candidates: Sequence[GpuInfo],
    device_map: DeviceMap,
) -> GpuInfo | None:
    if not device_map.pci_order or traced.numbers is DeviceNumbers.HSA_NODES:
        return None
    order = in_pci_order(usable) or []
    gpu = order[device] if 0 <= device < len(order) else None
    return gpu if gpu in candidates else None


def description_of(
    device: int,
    traced: Sequence[TraceDevice],
    used_devices: Sequence[int],
    numbers: DeviceNumbers = DeviceNumbers.PROPERTIES,
) -> TraceDevice | None:
    """Return a trace's description of a device; None if unknown.

    The only description is that of the only device with records.
    Where records number devices otherwise than `deviceProperties`, only what all descriptions have
    in common is known of a device.
    """
    described = next((each for each in traced if each.device == device), None)
    identified = described is not None and bool(described.uuid or described.pci_bus_id)
    if numbers is not DeviceNumbers.PROPERTIES and not identified:
        names = {each.name for each in traced}
        units = {each.units for each in traced}
        unit = units.pop() if len(units) == 1 else None
        unique = len(names) == 1
        described = TraceDevice(device=device, name=names.pop(), units=unit) if unique else None
    if described is None and len(traced) == 1 and len(used_devices) == 1:
        return traced[0]
    return described


def _by_unique_name(
    described: TraceDevice | None,
    traced: Sequence[TraceDevice],
    gpus: Sequence[GpuInfo],
    candidates: Sequence[GpuInfo],
) -> GpuInfo | None:
    if described is None or not described.name:
        return None
    of_trace = [each for each in traced if each.name == described.name]
    of_node = [gpu for gpu in gpus if gpu.name == described.name]
    unique = len(of_trace) == 1 and len(of_node) == 1 and of_node[0] in candidates
    return of_node[0] if unique else None


def _contradict(described: TraceDevice | None, gpu: GpuInfo) -> bool:
    """Whether the trace's description has another UUID, bus id or product name than the GPU."""
    if described is None:
        return False
    pairs = (
        (bare_uuid(described.uuid), bare_uuid(gpu.uuid)),
        (bare_bus(described.pci_bus_id), bare_bus(gpu.pci_bus_id)),
        (described.name, gpu.name),
    )
    return any(a and b and not same(a, b) for a, b in pairs)

"""Which sampled AMD GPU a trace's device number means, by the nodes of the compute driver (KFD).

A number is believed where only one GPU can bear it, and is no guess then. Two things can make one
number mean two GPUs. Which of ROCm's profilers wrote it: one counts nodes, the other GPUs. And what
the process may open: a container that is given some GPUs has their nodes renumbered, CPUs first and
then its own GPUs, by the same runtime library that numbers all nodes elsewhere. What
ROCR_VISIBLE_DEVICES and HIP_VISIBLE_DEVICES choose renumbers nothing here.

Source: hsakmt's topology (user node ids leave out nodes whose files can't be opened); rocprofiler-
    sdk's agents, which are counted likewise. That both are so was read in source, not seen.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from chopperd.model.devices import GpuInfo
from chopperd.model.trace import DeviceNumbers


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

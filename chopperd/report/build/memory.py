"""Device memory in a report: the figures of each traced device, beside the clock of its steps."""

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from chopperd.correlate.join import JoinedDevice
from chopperd.correlate.memory.beside import StepClock, beside_clock, traced_offload
from chopperd.model.memory import Offload, RankMemory
from chopperd.model.report_rows import Row
from chopperd.model.timeline import Step, Timeline
from chopperd.model.trace import Trace
from chopperd.report.build.clocked_device import ClockedDevice


class DeviceFacts(Struct, frozen=True, kw_only=True):
    """What a trace's kernels and copies tell of one device, next to its memory."""

    gpu: str | None
    contention: Mapping[int, float]  # by the step's number, where known
    offload: Offload | None


def device_facts(
    clocked: Iterable[ClockedDevice], timeline: Timeline, trace: Trace
) -> dict[int, DeviceFacts]:
    """Return the facts of each device by its number in the trace."""
    return {
        each.summary.device: DeviceFacts(
            gpu=each.summary.gpu,
            contention=_contention(each.joined, timeline.steps),
            offload=traced_offload(each.joined.timeline, trace),
        )
        for each in clocked
    }


def _contention(joined: JoinedDevice, steps: Sequence[Step]) -> dict[int, float]:
    found = joined.traffic.contention
    factors = () if found is None else enumerate(found.by_step.tolist())
    return {steps[index].step: factor for index, factor in factors if isfinite(factor)}


def memory_beside_clock(
    memory: Iterable[RankMemory], devices: Mapping[int, DeviceFacts], rows: Iterable[Row]
) -> tuple[RankMemory, ...]:
    """Return a trace's memory with its GPU and offload, and what each step's row tells.

    `devices`: by number in the trace. `rows`: those of steps. Devices without device work in the
    trace have no row. Memory of devices that can't be told apart has torch's device numbers and no
    GPU.
    """
    every = tuple(memory)
    by_step = {(row.device, row.step): row for row in rows if row.step is not None}
    traced = _traced_devices({each.device for each in every}, set(devices))
    found = []
    for each in every:
        device = traced.get(each.device, -1)
        facts = devices.get(device, _NO_FACTS)
        clocks = [
            _clock(by_step.get((device, step.step)), facts.contention.get(step.step))
            for step in each.steps
        ]
        shown = device if device in devices else each.device
        found.append(
            replace(beside_clock(each, clocks), device=shown, gpu=facts.gpu, offload=facts.offload)
        )
    return tuple(found)


_NO_FACTS: Final = DeviceFacts(gpu=None, contention={}, offload=None)


def _traced_devices(of_memory: set[int], of_records: set[int]) -> dict[int, int]:
    """Return the records' number of each device of memory; of unknown ones none.

    ROCm's records number the devices of the node, CPUs first; memory has those of the process.
    """
    if of_memory <= of_records:
        return {each: each for each in of_memory}
    is_one = len(of_memory) == len(of_records) == 1
    return dict(zip(of_memory, of_records, strict=True)) if is_one else {}


def _clock(row: Row | None, contention: float | None) -> StepClock | None:
    if row is None:
        return None
    busy = row.clock.busy if row.clock is not None else None
    return StepClock(
        busy_mean_mhz=None if busy is None else busy.mean_mhz,
        busy_p05_mhz=None if busy is None else busy.p05_mhz,
        busy_std_mhz=None if busy is None else busy.std_mhz,
        power_w=row.power_w,
        idle_allocator_ns=None if row.waterfall_ns is None else row.waterfall_ns.idle_allocator,
        contention_factor=contention,
    )

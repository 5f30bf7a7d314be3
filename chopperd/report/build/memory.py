"""Device memory in a report: the figures of each traced device, beside the clock of its steps."""

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from chopperd.correlate.memory.beside import StepClock, beside_clock
from chopperd.model.memory import RankMemory
from chopperd.model.report import DeviceSummary
from chopperd.model.report_rows import Row


def memory_beside_clock(
    memory: Iterable[RankMemory], devices: Sequence[DeviceSummary], rows: Iterable[Row]
) -> tuple[RankMemory, ...]:
    """Return a trace's memory with its GPU, and each step's clock, power and idle time.

    `rows`: those of steps. Devices without device work in the trace have no row. Memory of devices
    that can't be told apart has torch's device numbers and no GPU.
    """
    every = tuple(memory)
    by_step = {(row.device, row.step): row for row in rows if row.step is not None}
    gpus = {each.device: each.gpu for each in devices}
    traced = _traced_devices({each.device for each in every}, set(gpus))
    return tuple(
        replace(
            beside_clock(
                each,
                [_clock(by_step.get((traced.get(each.device), step.step))) for step in each.steps],
            ),
            device=traced.get(each.device, each.device),
            gpu=gpus.get(traced.get(each.device, -1)),
        )
        for each in every
    )


def _traced_devices(of_memory: set[int], of_records: set[int]) -> dict[int, int]:
    """Return the records' number of each device of memory; of unknown ones none.

    ROCm's records number the devices of the node, CPUs first; memory has those of the process.
    """
    if of_memory <= of_records:
        return {each: each for each in of_memory}
    is_one = len(of_memory) == len(of_records) == 1
    return dict(zip(of_memory, of_records, strict=True)) if is_one else {}


def _clock(row: Row | None) -> StepClock | None:
    if row is None:
        return None
    busy = row.clock.busy if row.clock is not None else None
    return StepClock(
        busy_mean_mhz=None if busy is None else busy.mean_mhz,
        busy_p05_mhz=None if busy is None else busy.p05_mhz,
        busy_std_mhz=None if busy is None else busy.std_mhz,
        power_w=row.power_w,
        idle_allocator_ns=None if row.waterfall_ns is None else row.waterfall_ns.idle_allocator,
    )

"""The memory of a trace's devices: its rows and calls, and a snapshot if one is given."""

import logging
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from chopperd.config.paths import own_command
from chopperd.correlate.memory.verdict import trace_memory
from chopperd.model.memory import MOST_SHIFT_NS, MemorySnapshot, RankMemory
from chopperd.model.timeline import Step, Timeline
from chopperd.model.trace import Trace
from chopperd.traces.read.snapshot import aligned, read_snapshot
from chopperd.units import NS_PER_MS

logger: Final = logging.getLogger(__name__)


def memory_of(
    path: Path, trace: Trace, timeline: Timeline, files: Mapping[int | str, str]
) -> tuple[RankMemory, ...]:
    """Return the memory of each process with steps, by device.

    `files`: snapshots, by the rank or the path of their trace.

    Raises:
        TraceError: A snapshot can't be read.
    """
    snapshots = snapshots_of(path, trace, files)
    of_process: defaultdict[int | str | None, list[Step]] = defaultdict(list)
    for step in timeline.steps:
        of_process[step.process].append(step)
    found = (
        trace_memory(trace, steps, snapshots, process=process)
        for process, steps in of_process.items()
    )
    return tuple(each for memory in found for each in memory)


def snapshots_of(
    path: Path, trace: Trace, files: Mapping[int | str, str]
) -> tuple[MemorySnapshot, ...]:
    """Return the snapshot of each device of a trace, in its time; none where none was given."""
    rank = trace.meta.rank
    file = files.get(str(path)) or (None if rank is None else files.get(rank))
    if file is None:
        return ()
    anchored = trace.meta.anchored
    found = read_snapshot(Path(file), own_command("_snapshot"))
    found = tuple(aligned(each, trace.memory, anchored=anchored) for each in found)
    if far := [each for each in found if abs(each.shift_ns or 0) > MOST_SHIFT_NS]:
        shifts = " and ".join(f"{(each.shift_ns or 0) / NS_PER_MS:.1f} ms" for each in far)
        logger.warning("%s: its clock differs from the trace's by %s: taken off", file, shifts)
    return found

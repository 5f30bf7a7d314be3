"""Small columns of device memory, written by hand; times in us."""

from collections.abc import Sequence

import numpy as np

from chopperd.correlate.memory.calls import HostCalls, host_calls
from chopperd.model.arrays import joined, rows_of
from chopperd.model.memory import MemoryRows, MemorySnapshot, SnapshotAction, StepMemory
from chopperd.model.timeline import Marker, Step
from chopperd.model.trace import SpanKind
from tests.trace_building import MAIN, Thread, TraceBuilder

MIB = 1 << 20
GIB = 1 << 30

#: When, signed bytes, address, allocated and reserved after it.
Row = tuple[float, int, int, int, int]


def rows(*table: Row, device: int = 0, thread: int = 0, ooms: Sequence[int] = ()) -> MemoryRows:
    """Rows of one device and thread; `ooms`: indices of those that are out of memory."""
    columns = np.array([(each[0] * 1000, *each[1:]) for each in table], np.int64).reshape(-1, 5).T
    return MemoryRows(
        at_ns=columns[0],
        thread=np.full(len(table), thread, np.int32),
        device=np.full(len(table), device, np.int32),
        bytes=columns[1],
        address=columns[2],
        allocated_bytes=columns[3],
        reserved_bytes=columns[4],
        is_oom=np.isin(np.arange(len(table)), list(ooms)),
    )


def joined_rows(*tables: MemoryRows) -> MemoryRows:
    """Several tables as one, by time."""
    every = joined(tables)
    return rows_of(every, np.argsort(every.at_ns, kind="stable"))


def snapshot(
    *entries: tuple[float, SnapshotAction, int, int],
    reserved_bytes: int = 0,
    is_cut: bool = False,
    expandable: bool | None = None,
    has_times: bool = True,
) -> MemorySnapshot:
    """A snapshot of entries (when, what, address, bytes) of device 0."""
    columns = np.array([(each[0] * 1000, *each[1:]) for each in entries], np.int64)
    columns = columns.reshape(-1, 4).T
    return MemorySnapshot(
        device=0,
        at_ns=columns[0] if has_times else None,
        action=columns[1].astype(np.int8),
        address=columns[2],
        bytes=columns[3],
        stream=np.zeros(len(entries), np.int64),
        reserved_bytes=reserved_bytes,
        allocated_bytes=0,
        expandable=expandable,
        skipped=0,
        is_cut=is_cut,
    )


def steps(*edges: tuple[float, float]) -> list[Step]:
    """Steps of one marker each, from their starts and ends."""
    found = []
    for number, (start, end) in enumerate(edges):
        marker = Marker(step=number, start_ns=round(start * 1000), end_ns=round(end * 1000))
        found.append(
            Step(step=number, start_ns=marker.start_ns, end_ns=marker.end_ns, markers=(marker,))
        )
    return found


def step_memory(step: int = 0, **figures: int | None) -> StepMemory:
    """One step's figures, of which all others are unknown."""
    unknown = dict.fromkeys(StepMemory.__struct_fields__)
    every = {**unknown, "step": step, "at_least": False, **figures}
    return StepMemory(**every)  # type: ignore[arg-type]


def calls(
    *made: tuple[float, str] | tuple[float, str, Thread],
    operators: Sequence[tuple[str, float, float]] = (),
    annotations: Sequence[tuple[str, float, float]] = (),
) -> HostCalls:
    """Calls of 1 us (when, name, thread), and spans (name, when, for how long) on the main one."""
    builder = TraceBuilder()
    for call in made:
        thread = call[2] if len(call) > 2 else MAIN
        builder.call(call[1], round(call[0] * 1000), 1000, thread=thread)
    for kind, spans in ((SpanKind.OP, operators), (SpanKind.ANNOTATION, annotations)):
        for name, start, length in spans:
            builder.span(name, round(start * 1000), round(length * 1000), kind=kind)
    trace = builder.build()
    return host_calls(trace.names, trace.calls, trace.spans)

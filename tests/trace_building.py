"""A hand-built `Trace`: rows in any order, times in ns, as the reader would give them."""

from dataclasses import dataclass, field

import numpy as np

from chopperd.model.arrays import Int8s, Int32s, Int64s
from chopperd.model.memory import MemoryRows
from chopperd.model.trace import (
    Collective,
    Damage,
    DeviceRecords,
    DeviceSpans,
    FlowEnds,
    GraphMark,
    HostSpans,
    PythonFrames,
    RecordKind,
    RuntimeCalls,
    Shapes,
    SpanKind,
    Trace,
    TraceMeta,
)

Thread = tuple[int | str, int | str]
MAIN: Thread = (100, 100)


@dataclass(slots=True)
class TraceBuilder:
    """Collects rows as tuples (start_ns, end_ns, ...) and turns them into columns."""

    names: dict[str, int] = field(default_factory=dict)
    threads: dict[Thread, int] = field(default_factory=dict)
    records: list[tuple[int, ...]] = field(default_factory=list)
    calls: list[tuple[int, ...]] = field(default_factory=list)
    spans: list[tuple[int, ...]] = field(default_factory=list)
    rows: list[tuple[int, ...]] = field(default_factory=list)
    flows: list[tuple[int, ...]] = field(default_factory=list)
    frames: list[tuple[int, ...]] = field(default_factory=list)
    functions: dict[str, int] = field(default_factory=dict)
    collectives: dict[Collective, int] = field(default_factory=dict)
    shapes: dict[Shapes, int] = field(default_factory=dict)
    marks: dict[GraphMark, int] = field(default_factory=dict)
    memory: list[tuple[int, ...]] = field(default_factory=list)

    def record(
        self,
        name: str,
        start_ns: int,
        duration_ns: int,
        *,
        correlation: int = -1,
        device: int = 0,
        stream: int = 7,
        kind: RecordKind = RecordKind.KERNEL,
        collective: Collective | str | None = None,
        copied_bytes: int = -1,
        external_id: int = -1,
        seq: int = -1,
        comms_id: int = -1,
        mark: GraphMark | None = None,
    ) -> None:
        end_ns = start_ns + duration_ns
        named, told = self._name(name), self._collective(collective)
        marked = -1 if mark is None else self.marks.setdefault(mark, len(self.marks))
        ids = (correlation, external_id, copied_bytes, told, seq, comms_id, marked)
        self.records.append((start_ns, end_ns, device, stream, kind, named, *ids))

    def call(
        self,
        name: str,
        start_ns: int,
        duration_ns: int = 5,
        *,
        correlation: int = -1,
        thread: Thread = MAIN,
        external_id: int = -1,
        size_bytes: int = -1,
    ) -> None:
        on, named = self._thread(thread), self._name(name)
        ids = (correlation, external_id, size_bytes)
        self.calls.append((start_ns, start_ns + duration_ns, on, named, *ids))

    def kernel(
        self,
        name: str,
        call_ns: int,
        start_ns: int,
        duration_ns: int,
        *,
        thread: Thread = MAIN,
        device: int = 0,
        stream: int = 7,
    ) -> None:
        """A launch and its record, with a correlation id of their own."""
        correlation = 1 + len(self.calls)
        self.call("cudaLaunchKernel", call_ns, correlation=correlation, thread=thread)
        self.record(
            name, start_ns, duration_ns, correlation=correlation, device=device, stream=stream
        )

    def span(
        self,
        name: str,
        start_ns: int,
        duration_ns: int,
        *,
        kind: SpanKind = SpanKind.ANNOTATION,
        thread: Thread = MAIN,
        external_id: int = -1,
        sequence: int = -1,
        forward_thread: int = -1,
        shapes: Shapes | None = None,
        collective: Collective | str | None = None,
    ) -> None:
        on, named, told = self._thread(thread), self._name(name), self._collective(collective)
        shaped = -1 if shapes is None else self.shapes.setdefault(shapes, len(self.shapes))
        ids = (external_id, sequence, forward_thread, shaped, told)
        self.spans.append((start_ns, start_ns + duration_ns, on, named, kind, *ids))

    def frame(self, name: str, start_ns: int, duration_ns: int, *, thread: Thread = MAIN) -> None:
        """A call of a Python function."""
        number = self.functions.setdefault(name, len(self.functions))
        self.frames.append((start_ns, start_ns + duration_ns, self._thread(thread), number))

    def allocate(
        self,
        at_ns: int,
        size: int,
        *,
        address: int = -1,
        totals: tuple[int, int] = (-1, -1),
        device: int = 0,
        thread: Thread = MAIN,
        is_oom: bool = False,
    ) -> None:
        """A row of a GPU's memory: an allocation, or below 0 a free; totals after it."""
        self.memory.append((at_ns, self._thread(thread), device, size, address, *totals, is_oom))

    def arrow(self, flow: int, start_ns: int, end_ns: int, to: Thread, of: Thread = MAIN) -> None:
        """A `fwdbwd` arrow from an operator that starts at `start_ns` to one at `end_ns`."""
        self.flows.append((start_ns, 0, flow, self._thread(of)))
        self.flows.append((end_ns, 1, flow, self._thread(to)))

    def device_span(
        self, name: str, start_ns: int, duration_ns: int, *, device: int = 0, stream: int = 7
    ) -> None:
        self.rows.append((start_ns, start_ns + duration_ns, device, stream, self._name(name)))

    def build(self, damage: Damage | None = None) -> Trace:
        every = [*self.records, *self.calls, *self.spans, *self.rows]
        return Trace(
            meta=TraceMeta(path="built by hand", sha256=""),
            names=tuple(self.names),
            threads=tuple(self.threads),
            records=self._records(),
            calls=self._calls(),
            spans=self._spans(),
            device_spans=self._rows(),
            flows=self._flows(),
            frames=self._frames(),
            functions=tuple(self.functions),
            memory=self._memory(),
            collectives=tuple(self.collectives),
            shapes=tuple(self.shapes),
            marks=tuple(self.marks),
            damage=damage or Damage(),
            span_ns=(min((r[0] for r in every), default=0), max((r[1] for r in every), default=0)),
        )

    def _records(self) -> DeviceRecords:
        table = _columns(sorted(self.records, key=lambda row: row[:2]), 13)
        return DeviceRecords(
            start_ns=table[0],
            end_ns=table[1],
            device=_int32(table[2]),
            stream=table[3],
            kind=_int8(table[4]),
            name=_int32(table[5]),
            correlation=table[6],
            external_id=table[7],
            copied_bytes=table[8],
            collective=_int32(table[9]),
            seq=table[10],
            comms_id=table[11],
            mark=_int32(table[12]),
        )

    def _calls(self) -> RuntimeCalls:
        table = _columns(sorted(self.calls, key=lambda row: row[0]), 7)
        return RuntimeCalls(
            start_ns=table[0],
            end_ns=table[1],
            thread=_int32(table[2]),
            name=_int32(table[3]),
            correlation=table[4],
            external_id=table[5],
            size_bytes=table[6],
        )

    def _spans(self) -> HostSpans:
        table = _columns(sorted(self.spans, key=lambda row: (row[0], -row[1])), 10)
        return HostSpans(
            start_ns=table[0],
            end_ns=table[1],
            thread=_int32(table[2]),
            name=_int32(table[3]),
            kind=_int8(table[4]),
            external_id=table[5],
            sequence=table[6],
            forward_thread=table[7],
            shapes=_int32(table[8]),
            collective=_int32(table[9]),
        )

    def _frames(self) -> PythonFrames:
        table = _columns(sorted(self.frames, key=lambda row: (row[0], -row[1])), 4)
        return PythonFrames(
            start_ns=table[0], end_ns=table[1], thread=_int32(table[2]), function=_int32(table[3])
        )

    def _memory(self) -> MemoryRows:
        table = _columns(sorted(self.memory, key=lambda row: row[0]), 8)
        return MemoryRows(
            at_ns=table[0],
            thread=_int32(table[1]),
            device=_int32(table[2]),
            bytes=table[3],
            address=table[4],
            allocated_bytes=table[5],
            reserved_bytes=table[6],
            is_oom=table[7].astype(np.bool_),
        )

    def _flows(self) -> FlowEnds:
        table = _columns(sorted(self.flows, key=lambda row: row[0]), 4)
        return FlowEnds(
            t_ns=table[0], is_end=_int8(table[1]), flow=table[2], thread=_int32(table[3])
        )

    def _rows(self) -> DeviceSpans:
        table = _columns(sorted(self.rows, key=lambda row: row[0]), 5)
        return DeviceSpans(
            start_ns=table[0],
            end_ns=table[1],
            device=_int32(table[2]),
            stream=table[3],
            name=_int32(table[4]),
        )

    def _name(self, name: str) -> int:
        return self.names.setdefault(name, len(self.names))

    def _collective(self, told: Collective | str | None) -> int:
        if told is None:
            return -1
        whole = Collective(name=told) if isinstance(told, str) else told
        return self.collectives.setdefault(whole, len(self.collectives))

    def _thread(self, thread: Thread) -> int:
        return self.threads.setdefault(thread, len(self.threads))


def column(values: list[int]) -> Int64s:
    return np.array(values, np.int64)


def _columns(rows: list[tuple[int, ...]], width: int) -> Int64s:
    return np.array(rows, np.int64).reshape(-1, width).T.copy()


def _int32(column: Int64s) -> Int32s:
    return column.astype(np.int32)


def _int8(column: Int64s) -> Int8s:
    return column.astype(np.int8)

"""Build the sorted tables of a `Trace` from its rows: valid ones only, on the final time axis."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from chopperd.model.arrays import Bools, Int32s, Int64s, Ints, rows_of
from chopperd.model.memory import MemoryRows
from chopperd.model.trace import (
    Damage,
    DeviceRecords,
    DeviceSpans,
    FlowEnds,
    HostSpans,
    PythonFrames,
    RuntimeCalls,
    SpanKind,
    Trace,
    TraceMeta,
)
from chopperd.traces.native.scanner import COLUMN_TYPES
from chopperd.traces.read import cleaning
from chopperd.traces.read.cleaning import (
    overrun_count,
    with_next,
    without_copies,
    without_far_overruns,
)
from chopperd.traces.read.numbering import collectives_of, marks_of, names_of, shapes_of, threads_of
from chopperd.traces.read.rows import ABSENT, BEYOND, ColumnParts, TraceRows, annotation_names

_EPOCH_NS: Final = 10**18
"""Times from here on (September 2001) count from 1970: no capture is that long after its base."""

_MOST_BYTES: Final = 1 << 44
"""16 TiB: more than a machine's memory; half a million of them still fit int64."""
_SIZES: Final = ("copied_bytes", "size_bytes")

_FEW_MOVED_RATIO: Final = 0.25
"""Up to this share of a table, moving single rows costs less than copying all."""

IntT = TypeVar("IntT", bound=np.signedinteger)
TableT = TypeVar("TableT", DeviceRecords, RuntimeCalls, HostSpans, DeviceSpans, PythonFrames)
Numbers: TypeAlias = Mapping[str, Callable[[Int32s], Int32s]]
"""By name of a numbered column, what makes indices into the trace's values of it."""


def assemble(rows: TraceRows, meta: TraceMeta) -> Trace:
    """Build a trace; its tables are sorted, and order in the file decides between equal rows.

    The columns of `rows` are removed. The damage is that of its rows only, of which
    `undecodable_events` are rows other than device records whose times can't be right.
    """
    tables = [
        _Table(rows.records, "kind"),
        _Table(rows.calls, "correlation"),
        _Table(rows.spans, "kind", outer_first=True),
        _Table(rows.device_spans, "stream"),
    ]
    without_detail = _without_detail(rows)
    outliers = _leave_out_outliers(tables)
    within = cleaning.capture([table.times for table in tables])
    epoch = within is not None and within.start_ns >= _EPOCH_NS
    offset_ns = 0 if epoch else meta.base_time_unix_ns or 0
    for table in tables:
        table.settle(within, offset_ns)
    names, threads = names_of(rows.names), threads_of(rows.threads)
    memory, memory_outliers, memory_copies = _memory(rows.memory, within, offset_ns, threads.column)
    collectives, shapes = collectives_of(rows.collectives), shapes_of(rows.shapes)
    marks = marks_of(rows.marks)
    numbers = {
        "name": names.column,
        "thread": threads.column,
        "collective": collectives.column,
        "shapes": shapes.column,
        "mark": marks.column,
    }
    spans = _model_table(HostSpans, tables[2], numbers)
    spans.kind[annotation_names(names.values)[spans.name]] = SpanKind.ANNOTATION
    spans, span_copies = without_copies(spans)
    flows, flow_copies = without_copies(_flows(rows.flows, threads.column, offset_ns))
    records, record_copies = without_copies(_model_table(DeviceRecords, tables[0], numbers))
    calls, call_copies = without_copies(_model_table(RuntimeCalls, tables[1], numbers))
    device_spans, device_copies = without_copies(_model_table(DeviceSpans, tables[3], numbers))
    records = _with_comms(records, rows.comms)
    frames, functions = _frames(rows, within, offset_ns, threads.column, calls)
    records, cut_count = without_far_overruns(records)
    doubtful = [table.doubtful_count for table in tables]
    return Trace(
        meta=replace(meta, anchored=epoch or meta.base_time_unix_ns is not None),
        names=names.values,
        threads=threads.values,
        records=records,
        calls=calls,
        spans=spans,
        device_spans=device_spans,
        flows=flows,
        frames=frames,
        functions=functions,
        memory=memory,
        collectives=collectives.values,
        shapes=shapes.values,
        marks=marks.values,
        span_ns=_span_ns([records, *tables[1:]]),
        damage=Damage(
            undecodable_events=sum(doubtful[1:]) + sum(outliers[1:]) + memory_outliers,
            invalid_records=doubtful[0] + outliers[0],
            zeroed_records=doubtful[0],
            outlying_records=outliers[0],
            duplicate_records=record_copies,
            duplicate_rows=sum(
                (call_copies, span_copies, device_copies, flow_copies, memory_copies)
            ),
            overrun_records=overrun_count(records),
            cut_records=cut_count,
            rows_without_detail=without_detail,
            frames_left_out=rows.frames.left_out,
            shortest_frame_ns=rows.frames.shortest_ns,
        ),
    )


def _without_detail(rows: TraceRows) -> int:
    """Count the rows whose collective, shapes or mark are beyond the limit of distinct ones."""
    if not (rows.collectives.is_full or rows.shapes.is_full or rows.marks.is_full):
        return 0
    records, spans = (
        table.whole("collective", np.int32) == BEYOND for table in (rows.records, rows.spans)
    )
    shapes = rows.spans.whole("shapes", np.int32) == BEYOND
    records |= rows.records.whole("mark", np.int32) == BEYOND
    return int(np.count_nonzero(records) + np.count_nonzero(spans | shapes))


def _leave_out_outliers(tables: Sequence["_Table"]) -> list[int]:
    """Leave out rows that lie or last far beyond all others; return how many of each table."""
    records, calls, spans, device_spans = tables
    times = records.times, calls.times, spans.times, device_spans.times
    if cleaning.close_together(times):
        return [0] * len(tables)

    def answered(rows: Int64s) -> Bools:
        device, stream = records.peek("device", np.int32), records.peek("stream", np.int64)
        correlation = records.peek("correlation", np.int64)[rows]
        launched = (correlation > 0) & np.isin(correlation, calls.peek("correlation", np.int64))
        return launched & cleaning.last_of_stream(device, stream, records.start_ns)[rows]

    masks = cleaning.outlying(times, answered)
    return [table.leave_out(mask) for table, mask in zip(tables, masks, strict=True)]


class _Table:
    """One table's times, and its other columns in the order that the times decide.

    Profilers write nearly in order: a table that is in order is not copied, and of one with few
    rows out of order only those are moved. `then`: the column that decides between rows of equal
    times (None: their order in the file). `outer_first`: whether the longer of two rows that start
    together comes first, and the greater of what decides then. `doubtful_count`: how many rows
    `settle` left out because they can't be right.
    """

    def __init__(self, parts: ColumnParts, then: str | None, *, outer_first: bool = False) -> None:
        self.start_ns = parts.take("start_ns", np.int64)
        self.end_ns = parts.take("end_ns", np.int64)
        self.doubtful_count = 0
        self._then = then
        self._sign = -1 if outer_first else 1
        self._parts = parts
        self._moves: list[tuple[Int64s, Int64s | None]] = []

    @property
    def times(self) -> tuple[Int64s, Int64s]:
        return self.start_ns, self.end_ns

    def leave_out(self, rows: Bools) -> int:
        """Leave out the marked rows of those not yet left out; return how many."""
        count = int(np.count_nonzero(rows))
        if count:
            self._move(np.flatnonzero(~rows))
        return count

    def settle(self, within: cleaning.Stretch | None, offset_ns: int) -> None:
        """Leave out rows that can't be right, sort the others, move them to the final axis."""
        self.doubtful_count = self.leave_out(
            ~cleaning.believable(self.start_ns, self.end_ns, within)
        )
        if np.any(self.start_ns[1:] < self.start_ns[:-1]):
            order = np.argsort(self.start_ns, kind="stable")
            moved = np.flatnonzero(order != np.arange(len(order)))
            few = len(moved) <= _FEW_MOVED_RATIO * len(order)
            self._move(*((order[moved], moved) if few else (order,)))
        self._sort_tied()
        self.start_ns += offset_ns
        self.end_ns += offset_ns

    def _sort_tied(self) -> None:
        same = np.flatnonzero(self.start_ns[1:] == self.start_ns[:-1])
        if not len(same):
            return
        slots = with_next(same, len(self.start_ns))
        keys = [self._sign * self.end_ns[slots], self.start_ns[slots]]
        if self._then is not None:
            keys.insert(0, self._sign * self.peek(self._then, np.int64)[slots])
        self._move(slots[np.lexsort(keys)], slots)

    def peek(self, name: str, dtype: type[IntT]) -> npt.NDArray[IntT]:
        """Return a copy of another column, without rows left out, in the table's order."""
        return self._ordered(self._parts.whole(name, dtype).copy())

    def column(self, name: str, dtype: type[IntT]) -> npt.NDArray[IntT]:
        """Return another column as `peek` does, removed from the rows instead of copied."""
        return self._ordered(self._parts.take(name, dtype))

    def _move(self, rows: Int64s, slots: Int64s | None = None) -> None:
        """Move rows to slots, all others staying; without slots only these rows remain."""
        self.start_ns = _moved(self.start_ns, rows, slots)
        self.end_ns = _moved(self.end_ns, rows, slots)
        self._moves.append((rows, slots))

    def _ordered(self, column: npt.NDArray[IntT]) -> npt.NDArray[IntT]:
        """Return a column with rows left out and moved as in the table; may change it in place."""
        for rows, slots in self._moves:
            column = _moved(column, rows, slots)
        return column


def _moved(column: npt.NDArray[IntT], rows: Int64s, slots: Int64s | None) -> npt.NDArray[IntT]:
    if slots is None:
        return column.take(rows)
    column[slots] = column[rows]
    return column


def _model_table(model: type[TableT], table: _Table, numbers: Numbers) -> TableT:
    columns: dict[str, Ints] = {"start_ns": table.start_ns, "end_ns": table.end_ns}
    for name in [name for name in model.__struct_fields__ if name not in columns]:
        if name in numbers:
            columns[name] = numbers[name](table.column(name, np.int32))
        else:
            columns[name] = table.column(name, COLUMN_TYPES[name])
        if name in _SIZES:  # No machine has room for them.
            columns[name][columns[name] > _MOST_BYTES] = ABSENT
    build: Callable[..., TableT] = model
    return build(**columns)


def _frames(
    rows: TraceRows,
    within: cleaning.Stretch | None,
    offset_ns: int,
    thread_numbers: Callable[[Int32s], Int32s],
    calls: RuntimeCalls,
) -> tuple[PythonFrames, tuple[str, ...]]:
    """Return the frames of threads with calls, and the functions that they index.

    Those far outside the capture are left out; copies stay: they say no more than one.
    """
    table = _Table(rows.frames, None, outer_first=True)
    table.leave_out(~cleaning.inside(table.start_ns, table.end_ns, within))
    table.settle(within, offset_ns)
    functions = names_of(rows.functions)
    numbers = {"thread": thread_numbers, "function": functions.column}
    frames = _model_table(PythonFrames, table, numbers)
    launching = np.isin(frames.thread, np.unique(calls.thread))
    frames = rows_of(frames, launching)
    used, function = np.unique(frames.function, return_inverse=True)
    named = tuple(functions.values[number] for number in used.tolist())
    return replace(frames, function=function.astype(np.int32)), named


def _memory(
    parts: ColumnParts,
    within: cleaning.Stretch | None,
    offset_ns: int,
    thread_numbers: Callable[[Int32s], Int32s],
) -> tuple[MemoryRows, int, int]:
    """Return the rows of memory, and how many are left out: that can't be right, and copies.

    A row equal to the one before it is a copy if it has a total, which each row changes.
    """
    at_ns, size = parts.take("at_ns", np.int64), parts.take("bytes", np.int64)
    keep = (size <= _MOST_BYTES) & (size >= -_MOST_BYTES)
    if within is not None:
        keep &= cleaning.inside(at_ns, at_ns, within)
    order = np.flatnonzero(keep)
    order = order[np.argsort(at_ns[order], kind="stable")]
    columns: dict[str, Ints] = {"at_ns": at_ns[order], "bytes": size[order]}
    del at_ns, size
    for name in [name for name in MemoryRows.__struct_fields__ if name not in columns]:
        columns[name] = parts.take(name, COLUMN_TYPES[name])[order]
        if name.endswith("_bytes"):
            columns[name][columns[name] > _MOST_BYTES] = ABSENT
    tied = np.flatnonzero(columns["at_ns"][1:] == columns["at_ns"][:-1])
    tied = tied[columns["allocated_bytes"][tied] >= 0]
    for column in columns.values():
        tied = tied[column[tied] == column[tied + 1]]
    if len(tied):
        columns = {name: np.delete(column, tied + 1) for name, column in columns.items()}
    columns["at_ns"] += offset_ns
    columns["thread"] = thread_numbers(columns["thread"])
    build: Callable[..., MemoryRows] = MemoryRows
    memory = build(**{**columns, "is_oom": columns["is_oom"].astype(np.bool_)})
    return memory, len(keep) - len(order), len(tied)


def _with_comms(records: DeviceRecords, comms: ColumnParts) -> DeviceRecords:
    """Give the numbers of operators' collectives to the records of their External ids without."""
    columns = [comms.take(name, np.int64) for name in ("comms_id", "seq", "external_id")]
    order = np.lexsort(columns)
    comms_id, seq, external_id = (column[order] for column in columns)
    bare = np.flatnonzero((records.seq == ABSENT) & (records.comms_id == ABSENT))
    if not len(order) or not len(bare):
        return records
    at = np.searchsorted(external_id, records.external_id[bare])
    at = np.minimum(at, len(order) - 1)
    found = external_id[at] == records.external_id[bare]
    records.seq[bare[found]], records.comms_id[bare[found]] = seq[at[found]], comms_id[at[found]]
    return records


def _flows(
    parts: ColumnParts, thread_numbers: Callable[[Int32s], Int32s], offset_ns: int
) -> FlowEnds:
    t_ns = parts.take("t_ns", np.int64)
    order = np.argsort(t_ns, kind="stable")
    return FlowEnds(
        flow=parts.take("flow", np.int64)[order],
        is_end=parts.take("is_end", np.int8)[order],
        thread=thread_numbers(parts.take("thread", np.int32)[order]),
        t_ns=t_ns[order] + offset_ns,
    )


def _span_ns(tables: Sequence[_Table | DeviceRecords]) -> tuple[int, int]:
    """Return the first start and last end over all rows, in ns; (0, 0) without any."""
    filled = [table for table in tables if len(table.start_ns)]
    if not filled:
        return 0, 0
    start_ns = min(int(table.start_ns[0]) for table in filled)
    return start_ns, max(int(table.end_ns.max()) for table in filled)

"""Sorted tables of a `Trace` from its rows: valid rows only, on the final time axis."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self, TypeVar

import numpy as np
import numpy.typing as npt

from chopperd.model.arrays import Bools, Int64s
from chopperd.model.trace import (
    Collective,
    Damage,
    DeviceRecords,
    DeviceSpans,
    FlowEnds,
    HostSpans,
    RuntimeCalls,
    Shapes,
    SpanKind,
)
from chopperd.traces.read.cleaning import (
    Stretch,
    TimesOfTrace,
    believable,
    capture,
    close_together,
    last_of_stream,
    outlying,
)
from chopperd.traces.read.duplicates import (
    overrun_count,
    with_next,
    without_copies,
    without_far_overruns,
)
from chopperd.traces.read.numbering import (
    Numbering,
    Thread,
    collectives_of,
    names_of,
    shapes_of,
    threads_of,
)
from chopperd.traces.read.rows import ABSENT, BEYOND, ColumnParts, TraceRows, annotation_names

_EPOCH_NS: Final = 10**18
"""Times from here on (September 2001) count from 1970: no capture is that long after its base."""

_MOST_BYTES: Final = 1 << 44
"""16 TiB: more than a machine's memory; half a million of them still fit int64."""

_FEW_MOVED_RATIO: Final = 0.25
"""Up to this share of a table, moving single rows costs less than copying all."""

IntT = TypeVar("IntT", np.int8, np.int32, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembled:
    """The tables of a trace, and what was left out.

    Attributes:
        names, threads, records, calls, spans, device_spans, flows, collectives, shapes, span_ns: As
            in `Trace`.
        anchored: Whether the times are Unix time.
        damage: What of the rows was left out or is odd; `undecodable_events` are rows other than
            device records that can't be right by their times.
    """

    names: tuple[str, ...]
    threads: tuple[Thread, ...]
    records: DeviceRecords
    calls: RuntimeCalls
    spans: HostSpans
    device_spans: DeviceSpans
    flows: FlowEnds
    collectives: tuple[Collective, ...]
    shapes: tuple[Shapes, ...]
    span_ns: tuple[int, int]
    anchored: bool
    damage: Damage


@dataclass(frozen=True, slots=True, kw_only=True)
class _Numbered:
    """What columns of several tables number."""

    names: Numbering[str]
    threads: Numbering[Thread]
    collectives: Numbering[Collective]
    shapes: Numbering[Shapes]


def assemble(rows: TraceRows, base_ns: int | None) -> Assembled:
    """The tables of a trace; each is sorted, and its order in the file decides between equals.

    Args:
        rows: As read; their columns are given up.
        base_ns: Unix time that the file's times count from; None if it names none.
    """
    tables = [
        _Table(rows.records, "kind"),
        _Table(rows.calls, "correlation"),
        _Table(rows.spans, "kind", outer_first=True),
        _Table(rows.device_spans, "stream"),
    ]
    without_detail = _without_detail(rows)
    outliers = _leave_out_outliers(tables)
    within = capture([one.times for one in tables])
    epoch = within is not None and within.start_ns >= _EPOCH_NS
    offset_ns = 0 if epoch or base_ns is None else base_ns
    records, calls, spans, device_spans = tables
    numbered = _Numbered(
        names=names_of(rows.names),
        threads=threads_of(rows.threads),
        collectives=collectives_of(rows.collectives),
        shapes=shapes_of(rows.shapes),
    )
    host_spans = without_copies(_spans(spans.settled(within, offset_ns), numbered))
    flows = without_copies(_flows(rows.flows, numbered, offset_ns))
    device_records = without_copies(_records(records.settled(within, offset_ns), numbered))
    runtime_calls = without_copies(_calls(calls.settled(within, offset_ns), numbered))
    device_rows = without_copies(_device_spans(device_spans.settled(within, offset_ns), numbered))
    doubtful = [one.doubtful_count for one in tables]
    kept_records, cut_count = without_far_overruns(device_records[0])
    return Assembled(
        names=numbered.names.values,
        threads=numbered.threads.values,
        records=kept_records,
        calls=runtime_calls[0],
        spans=host_spans[0],
        device_spans=device_rows[0],
        flows=flows[0],
        collectives=numbered.collectives.values,
        shapes=numbered.shapes.values,
        span_ns=_span_ns([kept_records, *tables[1:]]),
        anchored=epoch or base_ns is not None,
        damage=Damage(
            undecodable_events=sum(doubtful[1:]) + sum(outliers[1:]),
            invalid_records=doubtful[0] + outliers[0],
            zeroed_records=doubtful[0],
            outlying_records=outliers[0],
            duplicate_records=device_records[1],
            duplicate_rows=runtime_calls[1] + host_spans[1] + device_rows[1] + flows[1],
            overrun_records=overrun_count(kept_records),
            cut_records=cut_count,
            rows_without_detail=without_detail,
        ),
    )


def _without_detail(rows: TraceRows) -> int:
    """Number of rows whose collective or shapes are beyond the limit of distinct ones."""
    if not (rows.collectives.is_full or rows.shapes.is_full):
        return 0
    records, spans = (
        table.whole("collective", np.int32) == BEYOND for table in (rows.records, rows.spans)
    )
    shapes = rows.spans.whole("shapes", np.int32) == BEYOND
    return int(np.count_nonzero(records) + np.count_nonzero(spans | shapes))


def _leave_out_outliers(tables: Sequence["_Table"]) -> list[int]:
    """Leave out rows that lie or last far beyond all others; how many of each table."""
    if close_together([one.times for one in tables]):
        return [0] * len(tables)
    records, calls, spans, device_spans = tables

    def answered(rows: Int64s) -> Bools:
        device, stream = records.peek("device", np.int32), records.peek("stream", np.int64)
        correlation = records.peek("correlation", np.int64)[rows]
        launched = (correlation > 0) & np.isin(correlation, calls.peek("correlation", np.int64))
        return launched & last_of_stream(device, stream, records.start_ns)[rows]

    masks = outlying(
        TimesOfTrace(
            records=records.times,
            calls=calls.times,
            spans=spans.times,
            device_spans=device_spans.times,
            answered=answered,
        )
    )
    return [table.leave_out(mask) for table, mask in zip(tables, masks, strict=True)]


class _Table:
    """One table's times, and the other columns in the order that the times decide.

    Profilers write nearly in order: a table that is in order is not copied, and of one with few
    rows elsewhere only those are moved.

    Attributes:
        start_ns, end_ns: (n,) int64, of the rows not left out.
        doubtful_count: How many rows were left out that can't be right.

    Args:
        parts: The columns.
        then: What decides between rows of equal times; what is left, their order in the file.
        outer_first: Whether the longer of two rows that start together comes first, and the
            greater of what decides then.
    """

    def __init__(self, parts: ColumnParts, then: str, *, outer_first: bool = False) -> None:
        self.start_ns = parts.take("start_ns", np.int64)
        self.end_ns = parts.take("end_ns", np.int64)
        self._then = then
        self._sign = -1 if outer_first else 1
        self._parts = parts
        self._moves: list[_Move] = []
        self.doubtful_count = 0

    @property
    def times(self) -> tuple[Int64s, Int64s]:
        """Starts and ends."""
        return self.start_ns, self.end_ns

    def leave_out(self, rows: Bools) -> int:
        """Leave out some rows of those not yet left out; how many."""
        count = int(np.count_nonzero(rows))
        if count:
            self._move(_Move(rows=np.flatnonzero(~rows)))
        return count

    def settled(self, within: Stretch | None, offset_ns: int) -> Self:
        """The table without what can't be right, sorted, moved to the final axis.

        Args:
            within: The stretch of time that the trace covers.
            offset_ns: What to add to the file's times.
        """
        self.doubtful_count = self.leave_out(~believable(self.start_ns, self.end_ns, within))
        if np.any(self.start_ns[1:] < self.start_ns[:-1]):
            self._move(_sparing(np.argsort(self.start_ns, kind="stable")))
        self._sort_tied()
        self.start_ns += offset_ns
        self.end_ns += offset_ns
        return self

    def _sort_tied(self) -> None:
        """Put rows of equal starts in order too: they are few."""
        same = np.flatnonzero(self.start_ns[1:] == self.start_ns[:-1])
        if not len(same):
            return
        places = with_next(same, len(self.start_ns))
        then = self._ordered(self._parts.whole(self._then, np.int64).copy())
        start_ns, end_ns, then = self.start_ns[places], self.end_ns[places], then[places]
        rows = places[np.lexsort((self._sign * then, self._sign * end_ns, start_ns))]
        self._move(_Move(rows=rows, places=places))

    def peek(self, name: str, dtype: type[IntT]) -> npt.NDArray[IntT]:
        """Another column, in order, which stays to be asked for again."""
        return self._ordered(self._parts.whole(name, dtype).copy())

    def column(self, name: str, dtype: type[IntT]) -> npt.NDArray[IntT]:
        """Another column, in order."""
        return self._ordered(self._parts.take(name, dtype))

    def _move(self, move: "_Move") -> None:
        self.start_ns, self.end_ns = move.of(self.start_ns), move.of(self.end_ns)
        self._moves.append(move)

    def _ordered(self, column: npt.NDArray[IntT]) -> npt.NDArray[IntT]:
        """A column that nobody else has, with what was left out and moved."""
        for move in self._moves:
            column = move.of(column)
        return column


@dataclass(frozen=True, slots=True, kw_only=True)
class _Move:
    """Rows of a table that take others' places.

    Attributes:
        rows: (m,) indices of rows.
        places: (m,) where they go, all others staying; None for a table of just these rows.
    """

    rows: Int64s
    places: Int64s | None = None

    def of(self, column: npt.NDArray[IntT]) -> npt.NDArray[IntT]:
        """The column after it; it may be the same one, changed."""
        if self.places is None:
            return column.take(self.rows)
        column[self.places] = column[self.rows]
        return column


def _sparing(order: Int64s) -> _Move:
    """An order of all rows, as a move of those alone that it moves if they are few."""
    places = np.flatnonzero(order != np.arange(len(order)))
    if len(places) > _FEW_MOVED_RATIO * len(order):
        return _Move(rows=order)
    return _Move(rows=order[places], places=places)


def _records(table: _Table, numbered: _Numbered) -> DeviceRecords:
    return DeviceRecords(
        device=table.column("device", np.int32),
        stream=table.column("stream", np.int64),
        start_ns=table.start_ns,
        end_ns=table.end_ns,
        kind=table.column("kind", np.int8),
        name=numbered.names.column(table.column("name", np.int32)),
        correlation=table.column("correlation", np.int64),
        external_id=table.column("external_id", np.int64),
        copied_bytes=_sizes(table.column("copied_bytes", np.int64)),
        collective=numbered.collectives.column(table.column("collective", np.int32)),
    )


def _calls(table: _Table, numbered: _Numbered) -> RuntimeCalls:
    return RuntimeCalls(
        thread=numbered.threads.column(table.column("thread", np.int32)),
        start_ns=table.start_ns,
        end_ns=table.end_ns,
        name=numbered.names.column(table.column("name", np.int32)),
        correlation=table.column("correlation", np.int64),
        external_id=table.column("external_id", np.int64),
        size_bytes=_sizes(table.column("size_bytes", np.int64)),
    )


def _spans(table: _Table, numbered: _Numbered) -> HostSpans:
    name = numbered.names.column(table.column("name", np.int32))
    kind = table.column("kind", np.int8)
    kind[annotation_names(numbered.names.values)[name]] = SpanKind.ANNOTATION
    return HostSpans(
        thread=numbered.threads.column(table.column("thread", np.int32)),
        start_ns=table.start_ns,
        end_ns=table.end_ns,
        name=name,
        kind=kind,
        external_id=table.column("external_id", np.int64),
        sequence=table.column("sequence", np.int64),
        forward_thread=table.column("forward_thread", np.int64),
        shapes=numbered.shapes.column(table.column("shapes", np.int32)),
        collective=numbered.collectives.column(table.column("collective", np.int32)),
    )


def _device_spans(table: _Table, numbered: _Numbered) -> DeviceSpans:
    return DeviceSpans(
        device=table.column("device", np.int32),
        stream=table.column("stream", np.int64),
        start_ns=table.start_ns,
        end_ns=table.end_ns,
        name=numbered.names.column(table.column("name", np.int32)),
    )


def _flows(parts: ColumnParts, numbered: _Numbered, offset_ns: int) -> FlowEnds:
    t_ns = parts.take("t_ns", np.int64)
    order = np.argsort(t_ns, kind="stable")
    return FlowEnds(
        flow=parts.take("flow", np.int64)[order],
        is_end=parts.take("is_end", np.int8)[order],
        thread=numbered.threads.column(parts.take("thread", np.int32)[order]),
        t_ns=t_ns[order] + offset_ns,
    )


def _sizes(column_bytes: Int64s) -> Int64s:
    """Sizes of copies and allocations; `ABSENT` for those that no machine has room for."""
    column_bytes[column_bytes > _MOST_BYTES] = ABSENT
    return column_bytes


def _span_ns(tables: Sequence[_Table | DeviceRecords]) -> tuple[int, int]:
    """First start and last end over all rows; (0, 0) without any."""
    filled = [one for one in tables if len(one.start_ns)]
    if not filled:
        return 0, 0
    start_ns = min(int(one.start_ns[0]) for one in filled)
    return start_ns, max(int(one.end_ns.max()) for one in filled)

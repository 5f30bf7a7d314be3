"""Rows as read to the sorted tables of a `Trace`: valid rows only, on the final time axis."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

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
from chopperd.traces.bearing_out import last_of_stream
from chopperd.traces.columns import ABSENT, ColumnParts
from chopperd.traces.duplicates import overrun_count, without_copies
from chopperd.traces.numbering import (
    Numbering,
    Thread,
    collectives_of,
    names_of,
    shapes_of,
    threads_of,
)
from chopperd.traces.rows import TraceRows, annotation_names
from chopperd.traces.validity import Stretch, TimesOfTrace, believable, capture, outlying

_EPOCH_NS: Final = 10**18
"""Times from here on (September 2001) count from 1970: no capture is that long after its base."""

_MOST_BYTES: Final = 1 << 44
"""16 TiB: more than a machine's memory; half a million of them still fit int64."""

IntT = TypeVar("IntT", np.int8, np.int32, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembled:
    """The tables of a trace, and what making them told.

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


def assemble(rows: TraceRows, base_ns: int | None) -> Assembled:
    """The tables of a trace; each is sorted, and its order in the file decides between equals.

    Args:
        rows: As read; their columns are given up.
        base_ns: Unix time that the file's times count from; None if it names none.
    """
    tables = [
        _Table(rows.records, np.int8, "kind"),
        _Table(rows.calls, np.int64, "correlation"),
        _Table(rows.spans, np.int8, "kind", outer_first=True),
        _Table(rows.device_spans, np.int64, "stream"),
    ]
    outliers = _leave_out_outliers(tables)
    within = capture([one.times for one in tables])
    epoch = within is not None and within.start_ns >= _EPOCH_NS
    offset_ns = 0 if epoch or base_ns is None else base_ns
    doubtful = [one.settle(within, offset_ns) for one in tables]
    records, calls, spans, device_spans = tables
    names, threads = names_of(rows.names), threads_of(rows.threads)
    collectives, shapes = collectives_of(rows.collectives), shapes_of(rows.shapes)
    device_records, copied_records = without_copies(_records(records, names, collectives))
    runtime_calls, copied_calls = without_copies(_calls(calls, names, threads))
    host_spans, copied_spans = without_copies(_spans(spans, names, threads, (shapes, collectives)))
    device_rows, copied_rows = without_copies(_device_spans(device_spans, names))
    flows, copied_flows = without_copies(_flows(rows.flows, threads, offset_ns))
    return Assembled(
        names=names.values,
        threads=threads.values,
        records=device_records,
        calls=runtime_calls,
        spans=host_spans,
        device_spans=device_rows,
        flows=flows,
        collectives=collectives.values,
        shapes=shapes.values,
        span_ns=_span_ns(tables),
        anchored=epoch or base_ns is not None,
        damage=Damage(
            undecodable_events=sum(doubtful[1:]) + sum(outliers[1:]),
            invalid_records=doubtful[0] + outliers[0],
            zeroed_records=doubtful[0],
            outlying_records=outliers[0],
            duplicate_records=copied_records,
            duplicate_rows=copied_calls + copied_spans + copied_rows + copied_flows,
            overrun_records=overrun_count(device_records),
        ),
    )


def _leave_out_outliers(tables: Sequence["_Table"]) -> list[int]:
    """Leave out rows that lie or last far beyond all others; how many of each table."""
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

    Args:
        parts: The columns.
        dtype, then: What decides between rows of equal times; what is left, their order in the
            file.
        outer_first: Whether the longer of two rows that start together comes first, and the
            greater of what decides then.
    """

    def __init__(
        self, parts: ColumnParts, dtype: type[IntT], then: str, *, outer_first: bool = False
    ) -> None:
        self.start_ns = parts.take("start_ns", np.int64)
        self.end_ns = parts.take("end_ns", np.int64)
        self._then: Int64s = parts.whole(then, dtype).astype(np.int64, copy=False)
        self._sign = -1 if outer_first else 1
        self._parts = parts
        self._order: npt.NDArray[np.intp] = np.arange(len(self.start_ns))

    @property
    def times(self) -> tuple[Int64s, Int64s]:
        """Starts and ends."""
        return self.start_ns, self.end_ns

    def leave_out(self, rows: Bools) -> int:
        """Leave out some rows of those not yet left out; how many."""
        count = int(np.count_nonzero(rows))
        if count:
            self._take(np.flatnonzero(~rows))
        return count

    def settle(self, within: Stretch | None, offset_ns: int) -> int:
        """Leave out what can't be right, sort, move to the final axis.

        Gives the number of rows left out.

        Args:
            within: The stretch of time that the trace covers.
            offset_ns: What to add to the file's times.
        """
        keep = np.flatnonzero(believable(self.start_ns, self.end_ns, within))
        left_out = len(self.start_ns) - len(keep)
        self._take(self._sorted(keep[np.argsort(self.start_ns[keep], kind="stable")]))
        self.start_ns += offset_ns
        self.end_ns += offset_ns
        return left_out

    def _sorted(self, order: Int64s) -> Int64s:
        """Rows in order of their starts, those of equal starts put in order too: they are few."""
        start_ns = self.start_ns[order]
        same = start_ns[1:] == start_ns[:-1]
        tied = np.zeros(len(order), np.bool_)
        tied[1:] |= same
        tied[:-1] |= same
        rows = order[tied]
        keys = (self._sign * self._then[rows], self._sign * self.end_ns[rows], self.start_ns[rows])
        order[tied] = rows[np.lexsort(keys)]
        return order

    def peek(self, name: str, dtype: type[IntT]) -> npt.NDArray[IntT]:
        """Another column, in order, which stays to be asked for again."""
        return self._parts.whole(name, dtype)[self._order]

    def column(self, name: str, dtype: type[IntT]) -> npt.NDArray[IntT]:
        """Another column, in order."""
        return self._parts.take(name, dtype)[self._order]

    def _take(self, rows: npt.NDArray[np.intp]) -> None:
        """Keep these rows of those not yet left out, in this order."""
        self._order, self._then = self._order[rows], self._then[rows]
        self.start_ns, self.end_ns = self.start_ns[rows], self.end_ns[rows]


def _records(
    table: _Table, names: Numbering[str], collectives: Numbering[Collective]
) -> DeviceRecords:
    return DeviceRecords(
        device=table.column("device", np.int32),
        stream=table.column("stream", np.int64),
        start_ns=table.start_ns,
        end_ns=table.end_ns,
        kind=table.column("kind", np.int8),
        name=names.column(table.column("name", np.int32)),
        correlation=table.column("correlation", np.int64),
        external_id=table.column("external_id", np.int64),
        copied_bytes=_sizes(table.column("copied_bytes", np.int64)),
        collective=collectives.column(table.column("collective", np.int32)),
    )


def _calls(table: _Table, names: Numbering[str], threads: Numbering[Thread]) -> RuntimeCalls:
    return RuntimeCalls(
        thread=threads.column(table.column("thread", np.int32)),
        start_ns=table.start_ns,
        end_ns=table.end_ns,
        name=names.column(table.column("name", np.int32)),
        correlation=table.column("correlation", np.int64),
        external_id=table.column("external_id", np.int64),
        size_bytes=_sizes(table.column("size_bytes", np.int64)),
    )


def _spans(
    table: _Table,
    names: Numbering[str],
    threads: Numbering[Thread],
    details: tuple[Numbering[Shapes], Numbering[Collective]],
) -> HostSpans:
    shapes, collectives = details
    name = names.column(table.column("name", np.int32))
    kind = table.column("kind", np.int8)
    kind[annotation_names(names.values)[name]] = SpanKind.ANNOTATION
    return HostSpans(
        thread=threads.column(table.column("thread", np.int32)),
        start_ns=table.start_ns,
        end_ns=table.end_ns,
        name=name,
        kind=kind,
        external_id=table.column("external_id", np.int64),
        sequence=table.column("sequence", np.int64),
        forward_thread=table.column("forward_thread", np.int64),
        shapes=shapes.column(table.column("shapes", np.int32)),
        collective=collectives.column(table.column("collective", np.int32)),
    )


def _device_spans(table: _Table, names: Numbering[str]) -> DeviceSpans:
    return DeviceSpans(
        device=table.column("device", np.int32),
        stream=table.column("stream", np.int64),
        start_ns=table.start_ns,
        end_ns=table.end_ns,
        name=names.column(table.column("name", np.int32)),
    )


def _flows(parts: ColumnParts, threads: Numbering[Thread], offset_ns: int) -> FlowEnds:
    t_ns = parts.take("t_ns", np.int64)
    order = np.argsort(t_ns, kind="stable")
    return FlowEnds(
        flow=parts.take("flow", np.int64)[order],
        is_end=parts.take("is_end", np.int8)[order],
        thread=threads.column(parts.take("thread", np.int32)[order]),
        t_ns=t_ns[order] + offset_ns,
    )


def _sizes(column_bytes: Int64s) -> Int64s:
    """Sizes of copies and allocations; `ABSENT` for those that no machine has room for."""
    return np.where(column_bytes > _MOST_BYTES, ABSENT, column_bytes)


def _span_ns(tables: Sequence[_Table]) -> tuple[int, int]:
    """First start and last end over all rows; (0, 0) without any."""
    filled = [one for one in tables if len(one.start_ns)]
    if not filled:
        return 0, 0
    start_ns = min(int(one.start_ns[0]) for one in filled)
    return start_ns, max(int(one.end_ns.max()) for one in filled)

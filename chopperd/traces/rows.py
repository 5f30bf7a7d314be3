"""Sorts decoded events into the tables of a trace; what belongs to none is only counted."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from enum import Enum, auto
from typing import Final, TypeAlias, cast

import numpy as np

from chopperd.model.arrays import Bools, Int32s, Int64s
from chopperd.model.trace import RecordKind, SpanKind
from chopperd.traces.blocks import Batch
from chopperd.traces.columns import ABSENT, ColumnParts, Interner, counts_of, integers
from chopperd.traces.decode import Complete, EventArgs, ExactTime, QuickTime, Scalar
from chopperd.traces.times import NO_TIME, ns_from_decimal_us, ns_from_us

Row: TypeAlias = Complete[QuickTime] | Complete[ExactTime]
Thread: TypeAlias = tuple[int | str, int | str]

_INT32: Final = np.iinfo(np.int32)
_NO_ARGS: Final = EventArgs()
_ANNOTATION: Final = re.compile(r"ProfilerStep#|Iteration<\d+>|Optimizer\.")


class Table(Enum):
    """The tables of a `Trace`."""

    RECORDS = auto()
    CALLS = auto()
    SPANS = auto()
    DEVICE_SPANS = auto()


_RECORD_KINDS: Final = {
    "kernel": RecordKind.KERNEL,
    "gpu_memcpy": RecordKind.MEMCPY,
    "gpu_memset": RecordKind.MEMSET,
    "Kernel": RecordKind.KERNEL,
    "Memcpy": RecordKind.MEMCPY,
    "Memset": RecordKind.MEMSET,
}
_SPAN_KINDS: Final = {
    "cpu_op": SpanKind.OP,
    "Operator": SpanKind.OP,
    "user_annotation": SpanKind.ANNOTATION,
}
_TABLES: Final = {
    **dict.fromkeys(_RECORD_KINDS, Table.RECORDS),
    **dict.fromkeys(("cuda_runtime", "cuda_driver", "Runtime"), Table.CALLS),
    **dict.fromkeys(_SPAN_KINDS, Table.SPANS),
    "gpu_user_annotation": Table.DEVICE_SPANS,
}
"""The table of each category that is kept. Capitals are of 2021; HIP calls are cuda_runtime."""


class TraceRows:
    """The rows of a trace as they are read.

    Attributes:
        names, threads: Interned.
        records, calls, spans, device_spans: Columns as in the model's tables, unsorted, on the
            file's own time axis.
        counts: Events by category, "" for none.
        undecodable: Rows left out because a time or the device is missing or absurd.
        invalid_records: Device records left out because their duration is negative or missing.
    """

    def __init__(self) -> None:
        self.names: Interner[str] = Interner()
        self.threads: Interner[Thread] = Interner()
        self.records = ColumnParts()
        self.calls = ColumnParts()
        self.spans = ColumnParts()
        self.device_spans = ColumnParts()
        self.counts: Counter[str] = Counter()
        self.undecodable = 0
        self.invalid_records = 0

    def add(self, batch: Batch) -> None:
        """Take a batch of events."""
        self.counts.update([event.cat or "" for event in batch.events])
        tables = _by_table(batch.events)
        for table, take in (
            (Table.RECORDS, self._take_records),
            (Table.CALLS, self._take_calls),
            (Table.SPANS, self._take_spans),
            (Table.DEVICE_SPANS, self._take_device_spans),
        ):
            if rows := tables[table]:
                take(rows, *_times(rows, exact=batch.exact))

    def _take_records(self, rows: list[Row], start_ns: Int64s, dur_ns: Int64s) -> None:
        args = [row.args or _NO_ARGS for row in rows]
        device, stream = _places(rows, args)
        known = (device != ABSENT) & (start_ns != NO_TIME)
        keep = known & (dur_ns >= 0)
        self.undecodable += _unset(known)
        self.invalid_records += _unset(keep) - _unset(known)
        kind = np.array([_RECORD_KINDS[row.cat or ""] for row in rows], dtype=np.int8)
        size = counts_of([one.bytes for one in args])
        self.records.append(
            keep,
            device=device,
            stream=stream,
            start_ns=start_ns,
            end_ns=start_ns + dur_ns,
            kind=kind,
            name=self._names(rows),
            correlation=counts_of([one.correlation for one in args]),
            copied_bytes=np.where(kind == RecordKind.KERNEL, ABSENT, size),
            comm=np.array([one.collective is not None for one in args], dtype=np.int8),
        )

    def _take_calls(self, rows: list[Row], start_ns: Int64s, dur_ns: Int64s) -> None:
        self.calls.append(
            self._whole(start_ns, dur_ns),
            thread=self._threads(rows),
            start_ns=start_ns,
            end_ns=start_ns + dur_ns,
            name=self._names(rows),
            correlation=counts_of([(row.args or _NO_ARGS).correlation for row in rows]),
        )

    def _take_spans(self, rows: list[Row], start_ns: Int64s, dur_ns: Int64s) -> None:
        self.spans.append(
            self._whole(start_ns, dur_ns),
            thread=self._threads(rows),
            start_ns=start_ns,
            end_ns=start_ns + dur_ns,
            name=self._names(rows),
            kind=np.array([_SPAN_KINDS[row.cat or ""] for row in rows], dtype=np.int8),
        )

    def _take_device_spans(self, rows: list[Row], start_ns: Int64s, dur_ns: Int64s) -> None:
        device, stream = _places(rows, [row.args or _NO_ARGS for row in rows])
        self.device_spans.append(
            self._whole(start_ns, dur_ns, device != ABSENT),
            device=device,
            stream=stream,
            start_ns=start_ns,
            end_ns=start_ns + dur_ns,
            name=self._names(rows),
        )

    def _whole(self, start_ns: Int64s, dur_ns: Int64s, placed: Bools | bool = True) -> Bools:
        """Which rows have both times and a place; the others are counted."""
        keep: Bools = (start_ns != NO_TIME) & (dur_ns >= 0) & placed
        self.undecodable += _unset(keep)
        return keep

    def _names(self, rows: Sequence[Row]) -> Int32s:
        names = self.names
        return np.array([names[row.name] for row in rows], dtype=np.int32)

    def _threads(self, rows: Sequence[Row]) -> Int32s:
        threads = self.threads
        return np.array([threads[_part(row.pid), _part(row.tid)] for row in rows], dtype=np.int32)


def annotation_names(names: Sequence[str]) -> Bools:
    """Which names are annotations of torch's profiler and optimizers, (n,) bool.

    In 2021 these were operators by category.
    """
    return np.array([_ANNOTATION.match(name) is not None for name in names], dtype=np.bool_)


def _by_table(events: Iterable[object]) -> dict[Table, list[Row]]:
    """The complete events of each table, in file order."""
    tables: dict[Table, list[Row]] = {table: [] for table in Table}
    append = {category: tables[table].append for category, table in _TABLES.items()}
    for event in events:
        if isinstance(event, Complete) and event.cat in append:
            append[event.cat](event)
    return tables


def _times(rows: Sequence[Row], *, exact: bool) -> tuple[Int64s, Int64s]:
    """Starts and durations in ns."""
    starts, durations = [row.ts for row in rows], [row.dur for row in rows]
    if exact:
        return (
            ns_from_decimal_us(cast("list[ExactTime]", starts)),
            ns_from_decimal_us(cast("list[ExactTime]", durations)),
        )
    return (
        ns_from_us(cast("list[QuickTime]", starts)),
        ns_from_us(cast("list[QuickTime]", durations)),
    )


def _places(rows: Sequence[Row], args: Sequence[EventArgs]) -> tuple[Int32s, Int64s]:
    """Device and stream of device rows: from `args`, else from pid and tid, which mean the same.

    Source: Kineto writes pid = device and tid = stream ("stream 7" in 2021) for device rows.
    """
    pairs = list(zip(rows, args, strict=True))
    device = integers([row.pid if one.device is None else one.device for row, one in pairs])
    stream = integers([row.tid if one.stream is None else one.stream for row, one in pairs])
    device[(device < 0) | (device > _INT32.max)] = ABSENT
    return device.astype(np.int32), stream


def _part(value: Scalar) -> int | str:
    """A process or thread id; a missing one is the empty text, as Kineto itself writes."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else str(value)
    return "" if value is None else value


def _unset(mask: Bools) -> int:
    return len(mask) - int(np.count_nonzero(mask))

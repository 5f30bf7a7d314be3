"""Sorts decoded events into the tables of a trace; what belongs to none is only counted."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Final, TypeAlias, TypeVar, cast

import numpy as np

from chopperd.model.arrays import Bools, Int32s, Int64s
from chopperd.model.trace import RecordKind, SpanKind
from chopperd.traces.blocks import Batch
from chopperd.traces.columns import ABSENT, ColumnParts, Interner, counts_of, integers
from chopperd.traces.decode import (
    Complete,
    EventArgs,
    ExactEvent,
    ExactTime,
    QuickEvent,
    QuickTime,
    Scalar,
)
from chopperd.traces.times import NO_TIME, ns_from_decimal_us, ns_from_us

Rows: TypeAlias = Sequence[Complete[QuickTime] | Complete[ExactTime]]
Taker: TypeAlias = Callable[[str, Rows, Int64s, Int64s], None]
KeyT = TypeVar("KeyT")

_INT32: Final = np.iinfo(np.int32)
_NO_ARGS: Final = EventArgs()
_NAME: Final = attrgetter("name")
_THREAD: Final = attrgetter("pid", "tid")
_ANNOTATION: Final = re.compile(r"ProfilerStep#|Iteration<\d+>|Optimizer\.")


_RECORD_KINDS: Final = {
    "kernel": RecordKind.KERNEL,
    "Kernel": RecordKind.KERNEL,
    "gpu_memcpy": RecordKind.MEMCPY,
    "Memcpy": RecordKind.MEMCPY,
    "gpu_memset": RecordKind.MEMSET,
    "Memset": RecordKind.MEMSET,
}
_SPAN_KINDS: Final = {
    "user_annotation": SpanKind.ANNOTATION,
    "cpu_op": SpanKind.OP,
    "Operator": SpanKind.OP,
}
_CALLS: Final = ("cuda_runtime", "cuda_driver", "Runtime")
_DEVICE_SPANS: Final = ("gpu_user_annotation",)
"""Categories that are kept. Those with a capital are of 2021; HIP calls are cuda_runtime too."""


class TraceRows:
    """The rows of a trace as they are read, unsorted, on the file's own time axis.

    Attributes:
        names, threads: Interned.
        counts: Events by category, "" for none.
        undecodable: Rows left out because a time or the device is missing or absurd.
        invalid_records: Device records left out because their duration is negative or missing.
        has_queues: Whether a device record names its HSA queue.
    """

    def __init__(self) -> None:
        self.names: Interner[str] = Interner()
        self.threads: Interner[tuple[Scalar, Scalar]] = Interner()
        self.counts: Counter[str] = Counter()
        self.undecodable = 0
        self.invalid_records = 0
        self.has_queues = False
        self._parts: defaultdict[str, ColumnParts] = defaultdict(ColumnParts)

    def add(self, batch: Batch) -> None:
        """Take a batch of events."""
        by_category: defaultdict[str | None, list[QuickEvent | ExactEvent]] = defaultdict(list)
        for event in batch.events:
            by_category[event.cat].append(event)
        for category, events in by_category.items():
            self.counts[category or ""] += len(events)
            take = self._taker(category or "")
            if take and (rows := [event for event in events if isinstance(event, Complete)]):
                take(category or "", rows, *_times(rows, exact=batch.exact))

    def records(self) -> ColumnParts:
        """The columns of `DeviceRecords`, category after category, each in file order."""
        return self._joined(_RECORD_KINDS)

    def calls(self) -> ColumnParts:
        """The columns of `RuntimeCalls`, likewise."""
        return self._joined(_CALLS)

    def spans(self) -> ColumnParts:
        """The columns of `HostSpans`, likewise."""
        return self._joined(_SPAN_KINDS)

    def device_spans(self) -> ColumnParts:
        """The columns of `DeviceSpans`, likewise."""
        return self._joined(_DEVICE_SPANS)

    def _joined(self, categories: Iterable[str]) -> ColumnParts:
        table = ColumnParts()
        for category in categories:
            table.extend(self._parts.pop(category, ColumnParts()))
        return table

    def _taker(self, category: str) -> Taker | None:
        """What takes rows of a category; None for categories that are not kept."""
        if category in _RECORD_KINDS:
            return self._take_records
        if category in _SPAN_KINDS:
            return self._take_spans
        if category in _CALLS:
            return self._take_calls
        return self._take_device_spans if category in _DEVICE_SPANS else None

    def _take_records(self, category: str, rows: Rows, start_ns: Int64s, dur_ns: Int64s) -> None:
        args = [row.args or _NO_ARGS for row in rows]
        device, stream = _places(rows, args)
        known = (device != ABSENT) & (start_ns != NO_TIME)
        keep = known & (dur_ns >= 0)
        self.undecodable += _unset(known)
        self.invalid_records += _unset(keep) - _unset(known)
        self.has_queues = self.has_queues or any(one.hsa_queue is not None for one in args)
        kind = _RECORD_KINDS[category]
        sizes = [ABSENT if kind is RecordKind.KERNEL else one.bytes for one in args]
        self._parts[category].append(
            keep,
            device=device,
            stream=stream,
            start_ns=start_ns,
            end_ns=start_ns + dur_ns,
            kind=np.full(len(rows), kind, dtype=np.int8),
            name=self._names(rows),
            correlation=counts_of([one.correlation for one in args]),
            copied_bytes=counts_of(sizes),
            comm=np.array([one.collective is not None for one in args], dtype=np.int8),
            collective=self._collectives(args),
        )

    def _take_calls(self, category: str, rows: Rows, start_ns: Int64s, dur_ns: Int64s) -> None:
        self._parts[category].append(
            self._whole(start_ns, dur_ns),
            thread=self._threads(rows),
            start_ns=start_ns,
            end_ns=start_ns + dur_ns,
            name=self._names(rows),
            correlation=counts_of([(row.args or _NO_ARGS).correlation for row in rows]),
        )

    def _take_spans(self, category: str, rows: Rows, start_ns: Int64s, dur_ns: Int64s) -> None:
        self._parts[category].append(
            self._whole(start_ns, dur_ns),
            thread=self._threads(rows),
            start_ns=start_ns,
            end_ns=start_ns + dur_ns,
            name=self._names(rows),
            kind=np.full(len(rows), _SPAN_KINDS[category], dtype=np.int8),
        )

    def _take_device_spans(
        self, category: str, rows: Rows, start_ns: Int64s, dur_ns: Int64s
    ) -> None:
        device, stream = _places(rows, [row.args or _NO_ARGS for row in rows])
        self._parts[category].append(
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

    def _names(self, rows: Rows) -> Int32s:
        return _looked_up(self.names, map(_NAME, rows), len(rows))

    def _collectives(self, args: Sequence[EventArgs]) -> Int32s:
        column = np.full(len(args), ABSENT, np.int32)
        for row, one in enumerate(args):
            if one.collective is not None:
                column[row] = self.names[str(one.collective)]
        return column

    def _threads(self, rows: Rows) -> Int32s:
        return _looked_up(self.threads, map(_THREAD, rows), len(rows))


def annotation_names(names: Sequence[str]) -> Bools:
    """Which names are annotations of torch's profiler and optimizers, (n,) bool.

    In 2021 these were operators by category.
    """
    return np.array([_ANNOTATION.match(name) is not None for name in names], dtype=np.bool_)


def _looked_up(interner: Interner[KeyT], keys: Iterable[KeyT], count: int) -> Int32s:
    return np.fromiter(map(interner.__getitem__, keys), np.int32, count)


def _times(rows: Rows, *, exact: bool) -> tuple[Int64s, Int64s]:
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


def _places(rows: Rows, args: Sequence[EventArgs]) -> tuple[Int32s, Int64s]:
    """Device and stream of device rows: from `args`, else from pid and tid, which mean the same.

    Source: Kineto writes pid = device and tid = stream ("stream 7" in 2021) for device rows.
    """
    pairs = list(zip(rows, args, strict=True))
    device = integers([row.pid if one.device is None else one.device for row, one in pairs])
    stream = integers([row.tid if one.stream is None else one.stream for row, one in pairs])
    device[(device < 0) | (device > _INT32.max)] = ABSENT
    return device.astype(np.int32), stream


def _unset(mask: Bools) -> int:
    return len(mask) - int(np.count_nonzero(mask))

"""Sorts decoded events into the rows of a trace; what belongs to no table is only counted."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import attrgetter
from typing import Final, TypeAlias, TypeVar, cast

import numpy as np

from chopperd.model.arrays import Bools, Int32s, Int64s
from chopperd.model.trace import RecordKind, SpanKind
from chopperd.traces.blocks import Batch
from chopperd.traces.columns import ABSENT, Interner, counts_of, integers
from chopperd.traces.decode import (
    NO_TEXT,
    Complete,
    EventArgs,
    ExactEvent,
    ExactTime,
    FlowEnd,
    FlowStart,
    QuickEvent,
    QuickTime,
    Scalar,
)
from chopperd.traces.rows import MODULE_PREFIX, SHAPED, TraceRows
from chopperd.traces.times import NO_TIME, ns_from_texts_us, ns_from_us

Rows: TypeAlias = Sequence[Complete[QuickTime] | Complete[ExactTime]]
Flows: TypeAlias = Sequence[FlowEnd[QuickTime] | FlowEnd[ExactTime]]
Taker: TypeAlias = Callable[[Rows, Int64s, Int64s], None]
KeyT = TypeVar("KeyT")

_INT32: Final = np.iinfo(np.int32)
_NO_ARGS: Final = EventArgs()
_NAME: Final = attrgetter("name")
_THREAD: Final = attrgetter("pid", "tid")
_COLLECTIVE: Final = attrgetter(
    *("collective", "dtype", "in_elements", "out_elements"),
    *("group", "group_description", "group_size", "ranks"),
)


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
_CALLS: Final = (
    *("cuda_runtime", "cuda_driver", "Runtime", "xpu_runtime", "xpu_driver", "mtia_runtime"),
    *("privateuse1_runtime", "privateuse1_driver", "musa_runtime", "musa_driver"),
)
_DEVICE_SPANS: Final = ("gpu_user_annotation",)
_PYTHON: Final = "python_function"
_FLOWS: Final = "fwdbwd"
"""Categories that are kept. Those with a capital are of 2021; HIP calls are cuda_runtime too."""


class DecodedRows:
    """Takes decoded events into the rows of a trace.

    Args:
        rows: Where to.
    """

    def __init__(self, rows: TraceRows) -> None:
        self._rows = rows

    def add(self, batch: Batch) -> None:
        """Take a batch of events."""
        by_category: defaultdict[str | None, list[QuickEvent | ExactEvent]] = defaultdict(list)
        for event in batch.events:
            by_category[event.cat].append(event)
        for category, events in by_category.items():
            self._rows.counts[category or ""] += len(events)
            take = self._taker(category or "")
            if take and (rows := [event for event in events if isinstance(event, Complete)]):
                take(rows, *_times(rows, exact=batch.exact))
            if category == _FLOWS:
                flows = [event for event in events if isinstance(event, FlowEnd)]
                self._take_flows(flows, exact=batch.exact)

    def _taker(self, category: str) -> Taker | None:
        """What takes rows of a category; None for categories that are not kept."""
        if category in _RECORD_KINDS:
            return partial(self._take_records, _RECORD_KINDS[category])
        if category in _SPAN_KINDS:
            return partial(self._take_spans, _SPAN_KINDS[category])
        if category in _CALLS:
            return self._take_calls
        if category in _DEVICE_SPANS:
            return self._take_device_spans
        return self._take_modules if category == _PYTHON else None

    def _take_records(self, kind: RecordKind, rows: Rows, start_ns: Int64s, dur_ns: Int64s) -> None:
        args = [row.args or _NO_ARGS for row in rows]
        device, stream = _places(rows, args)
        known = (device != ABSENT) & (start_ns != NO_TIME)
        keep = known & (dur_ns >= 0)
        self._rows.undecodable += _unset(known)
        self._rows.invalid_records += _unset(keep) - _unset(known)
        self._rows.has_queues = self._rows.has_queues or any(
            one.hsa_queue is not None for one in args
        )
        sizes = [ABSENT if kind is RecordKind.KERNEL else one.bytes for one in args]
        self._rows.records.append(
            keep,
            device=device,
            stream=stream,
            start_ns=start_ns,
            end_ns=start_ns + dur_ns,
            kind=np.full(len(rows), kind, dtype=np.int8),
            name=self._names(rows),
            correlation=counts_of([one.correlation for one in args]),
            external_id=_external_ids(args),
            copied_bytes=counts_of(sizes),
            collective=self._collectives(args),
            place=self._places(rows, args, device),
        )

    def _take_calls(self, rows: Rows, start_ns: Int64s, dur_ns: Int64s) -> None:
        args = [row.args or _NO_ARGS for row in rows]
        self._rows.calls.append(
            self._whole(start_ns, dur_ns),
            thread=self._threads(rows),
            start_ns=start_ns,
            end_ns=start_ns + dur_ns,
            name=self._names(rows),
            correlation=counts_of([one.correlation for one in args]),
            external_id=_external_ids(args),
            size_bytes=counts_of([one.size if one.bytes is None else one.bytes for one in args]),
        )

    def _take_spans(self, kind: SpanKind, rows: Rows, start_ns: Int64s, dur_ns: Int64s) -> None:
        args = [row.args or _NO_ARGS for row in rows]
        is_op = kind is SpanKind.OP
        self._rows.spans.append(
            self._whole(start_ns, dur_ns),
            thread=self._threads(rows),
            start_ns=start_ns,
            end_ns=start_ns + dur_ns,
            name=self._names(rows),
            kind=np.full(len(rows), kind, dtype=np.int8),
            external_id=_external_ids(args),
            sequence=_numbers([one.sequence for one in args]),
            forward_thread=_numbers([one.forward_thread for one in args]),
            shapes=self._shapes(rows, args) if is_op else np.full(len(rows), ABSENT, np.int32),
            collective=self._collectives(args),
        )

    def _take_modules(self, rows: Rows, start_ns: Int64s, dur_ns: Int64s) -> None:
        at = [number for number, row in enumerate(rows) if row.name.startswith(MODULE_PREFIX)]
        if at:
            modules = [rows[number] for number in at]
            self._take_spans(SpanKind.MODULE, modules, start_ns[at], dur_ns[at])

    def _take_flows(self, flows: Flows, *, exact: bool) -> None:
        t_ns = _ns([flow.ts for flow in flows], exact=exact)
        known: Bools = t_ns != NO_TIME
        self._rows.undecodable += _unset(known)
        self._rows.flows.append(
            known,
            flow=_numbers([flow.id for flow in flows]),
            is_end=np.array([not isinstance(flow, FlowStart) for flow in flows], np.int8),
            thread=_looked_up(self._rows.threads, map(_THREAD, flows), len(flows)),
            t_ns=t_ns,
        )

    def _take_device_spans(self, rows: Rows, start_ns: Int64s, dur_ns: Int64s) -> None:
        device, stream = _places(rows, [row.args or _NO_ARGS for row in rows])
        self._rows.device_spans.append(
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
        self._rows.undecodable += _unset(keep)
        return keep

    def _names(self, rows: Rows) -> Int32s:
        return _looked_up(self._rows.names, map(_NAME, rows), len(rows))

    def _collectives(self, args: Sequence[EventArgs]) -> Int32s:
        column = np.full(len(args), ABSENT, np.int32)
        for row, one in enumerate(args):
            if one.collective is not None:
                column[row] = self._rows.collectives[_COLLECTIVE(one)]
        return column

    def _places(self, rows: Rows, args: Sequence[EventArgs], device: Int32s) -> Int32s:
        """Of records whose process is not their device's number, that of the process."""
        column = np.full(len(rows), ABSENT, np.int32)
        pids = integers([row.pid for row in rows])
        for at in np.flatnonzero(pids != device).tolist():
            pid = rows[at].pid
            if pid is not None and args[at].device is not None:
                column[at] = self._rows.places[pid]
        return column

    def _shapes(self, rows: Rows, args: Sequence[EventArgs]) -> Int32s:
        column = np.full(len(args), ABSENT, np.int32)
        for number, (row, one) in enumerate(zip(rows, args, strict=True)):
            if one.dims is not NO_TEXT and any(part in row.name for part in SHAPED):
                texts = (bytes(one.dims), bytes(one.types), bytes(one.values))
                column[number] = self._rows.shapes[texts]
        return column

    def _threads(self, rows: Rows) -> Int32s:
        return _looked_up(self._rows.threads, map(_THREAD, rows), len(rows))


def _looked_up(interner: Interner[KeyT], keys: Iterable[KeyT], count: int) -> Int32s:
    return np.fromiter(map(interner.__getitem__, keys), np.int32, count)


def _times(rows: Rows, *, exact: bool) -> tuple[Int64s, Int64s]:
    """Starts and durations in ns."""
    starts, durations = [row.ts for row in rows], [row.dur for row in rows]
    return _ns(starts, exact=exact), _ns(durations, exact=exact)


def _ns(times: Sequence[QuickTime | ExactTime], *, exact: bool) -> Int64s:
    if exact:
        return ns_from_texts_us(cast("Sequence[ExactTime]", times))
    return ns_from_us(cast("Sequence[QuickTime]", times))


def _external_ids(args: Sequence[EventArgs]) -> Int64s:
    given = (one.external_id for one in args)
    return counts_of(
        [
            one.external_id_of_2021 if value is None else value
            for one, value in zip(args, given, strict=True)
        ]
    )


def _numbers(values: Sequence[Scalar]) -> Int64s:
    """As `integers`, `ABSENT` also for what is below 0."""
    found = integers(values)
    found[found < 0] = ABSENT
    return found


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

"""Turn decoded events into rows of a trace, where there is no C scanner."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import ROUND_HALF_EVEN, Decimal
from functools import partial
from typing import Final, TypeAlias, TypeVar

import msgspec
import numpy as np

from chopperd.model.arrays import Bools, Int32s, Int64s
from chopperd.model.trace import MODULE_PREFIX, RecordKind, SpanKind
from chopperd.traces.native.scanner import SHAPED
from chopperd.traces.read.json_text import Scalar, decimal_of, scalars
from chopperd.traces.read.rows import ABSENT, Interner, TraceRows, counts_of, exact_ids, integers
from chopperd.units import NS_PER_US

Event: TypeAlias = Mapping[str, object]
Taker: TypeAlias = Callable[[Sequence[Event], Int64s, Int64s], None]
KeyT = TypeVar("KeyT")

NO_TIME: Final = -(2**63)
"""Marks a time that is absent, not a number, or too far away."""
_FARTHEST_US: Final = 4_000_000_000_000_000
"""The year 2096; two such times and a base still fit int64 ns."""
_MOST_US: Final = _FARTHEST_US + 1
_NS: Final = Decimal("0.001")
_LONGEST_TIME: Final = 64
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?", re.ASCII)
"""A number as JSON writes it."""

_INT32: Final = np.iinfo(np.int32)
_COLLECTIVE: Final = (
    *("Collective name", "dtype", "In msg nelems", "Out msg nelems"),
    *("Process Group Name", "Process Group Description", "Group size", "Process Group Ranks"),
)
_MARK: Final = ("module_fqn", "name", "phase")
_SHAPES: Final = ("Input Dims", "Input type", "Concrete Inputs")
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
_INSTANTS: Final = ("cpu_instant_event", "")
"""Categories that become rows. Capitalised ones are of 2021; HIP calls are cuda_runtime too."""
_OUT_OF_MEMORY: Final = "[OutOfMemory]"
_MEMORY: Final = ("[memory]", _OUT_OF_MEMORY)
"""Names of instant events of allocations, which had no category in 2021."""


class EventRows:
    """Adds decoded events to the rows of a trace; those of no table are only counted."""

    def __init__(self, rows: TraceRows) -> None:
        self._rows = rows

    def add(self, elements: Iterable[object]) -> int:
        """Add elements of the event array; return how many are no events."""
        undecodable = 0
        by_category: defaultdict[str, list[Event]] = defaultdict(list)
        memory: list[Event] = []
        for element in elements:
            if isinstance(element, dict) and isinstance(element.get("ph"), str):
                category = element.get("cat")
                category = category if isinstance(category, str) else ""
                by_category[category].append(element)
                is_instant = element["ph"] == "i" and category in _INSTANTS
                if is_instant and element.get("name") in _MEMORY:
                    memory.append(element)
            else:
                undecodable += 1
        for category, events in by_category.items():
            self._rows.counts[category] += len(events)
            take = self._taker(category)
            if take and (rows := [event for event in events if event["ph"] == "X"]):
                take(rows, _times_ns(rows, "ts"), _times_ns(rows, "dur"))
            if category == _FLOWS:
                self._take_flows([event for event in events if event["ph"] in ("s", "f")])
        if memory:
            self._take_memory(memory)
        return undecodable

    def _taker(self, category: str) -> Taker | None:
        """Return the method that adds a category's rows; None if it is only counted."""
        if category in _RECORD_KINDS:
            return partial(self._take_records, _RECORD_KINDS[category])
        if category in _SPAN_KINDS:
            return partial(self._take_spans, _SPAN_KINDS[category])
        if category in _CALLS:
            return self._take_calls
        if category in _DEVICE_SPANS:
            return self._take_device_spans
        return self._take_functions if category == _PYTHON else None

    def _take_records(
        self, kind: RecordKind, rows: Sequence[Event], start_ns: Int64s, dur_ns: Int64s
    ) -> None:
        args = _args(rows)
        device, stream = _device_and_stream(rows, args)
        known = (device != ABSENT) & (start_ns != NO_TIME)
        keep = known & (dur_ns >= 0)
        self._rows.undecodable += _unset(known)
        self._rows.invalid_records += _unset(keep) - _unset(known)
        queues = _fields(args, "hsa_queue")
        self._rows.has_queues = self._rows.has_queues or any(one is not None for one in queues)
        is_copy = kind is not RecordKind.KERNEL
        self._rows.records.append(
            keep,
            device=device,
            stream=stream,
            start_ns=start_ns,
            end_ns=start_ns + dur_ns,
            kind=np.full(len(rows), kind, dtype=np.int8),
            name=self._names(rows),
            correlation=counts_of(_fields(args, "correlation")),
            external_id=_external_ids(args),
            copied_bytes=counts_of(_fields(args, "bytes") if is_copy else [None] * len(rows)),
            collective=self._collectives(args),
            place=self._places(rows, args, device),
            mark=self._marks(args),
            seq=_not_negative(_fields(args, "Seq")),
            comms_id=exact_ids(_fields(args, "Comms Id")),
        )

    def _take_calls(self, rows: Sequence[Event], start_ns: Int64s, dur_ns: Int64s) -> None:
        args = _args(rows)
        self._rows.calls.append(
            self._whole(start_ns, dur_ns),
            thread=self._threads(rows),
            start_ns=start_ns,
            end_ns=start_ns + dur_ns,
            name=self._names(rows),
            correlation=counts_of(_fields(args, "correlation")),
            external_id=_external_ids(args),
            size_bytes=counts_of(_first(_fields(args, "bytes"), _fields(args, "size"))),
        )

    def _take_spans(
        self, kind: SpanKind, rows: Sequence[Event], start_ns: Int64s, dur_ns: Int64s
    ) -> None:
        args = _args(rows)
        is_op = kind is SpanKind.OP
        keep = self._whole(start_ns, dur_ns)
        if is_op:
            self._take_comms([one for one, kept in zip(args, keep, strict=True) if kept])
        self._rows.spans.append(
            keep,
            thread=self._threads(rows),
            start_ns=start_ns,
            end_ns=start_ns + dur_ns,
            name=self._names(rows),
            kind=np.full(len(rows), kind, dtype=np.int8),
            external_id=_external_ids(args),
            sequence=_not_negative(_fields(args, "Sequence number")),
            forward_thread=_not_negative(_fields(args, "Fwd thread id")),
            shapes=self._shapes(rows, args) if is_op else np.full(len(rows), ABSENT, np.int32),
            collective=self._collectives(args),
        )

    def _take_comms(self, args: Sequence[Event]) -> None:
        said = [one for one in args if "Seq" in one or "Comms Id" in one]
        external_id, seq = _external_ids(said), _not_negative(_fields(said, "Seq"))
        comms_id = exact_ids(_fields(said, "Comms Id"))
        keep = (external_id != ABSENT) & ((seq != ABSENT) | (comms_id != ABSENT))
        self._rows.comms.append(keep, external_id=external_id, seq=seq, comms_id=comms_id)

    def _take_functions(self, rows: Sequence[Event], start_ns: Int64s, dur_ns: Int64s) -> None:
        is_module = np.array([_name(row).startswith(MODULE_PREFIX) for row in rows])
        at = np.flatnonzero(is_module)
        if len(at):
            modules = [rows[number] for number in at.tolist()]
            self._take_spans(SpanKind.MODULE, modules, start_ns[at], dur_ns[at])
        at = np.flatnonzero(~is_module)
        others = [rows[number] for number in at.tolist()]
        self._rows.frames.append(
            self._whole(start_ns[at], dur_ns[at]),
            thread=self._threads(others),
            start_ns=start_ns[at],
            end_ns=start_ns[at] + dur_ns[at],
            function=_numbered(self._rows.functions, map(_name, others), len(others)),
        )

    def _take_flows(self, flows: Sequence[Event]) -> None:
        t_ns = _times_ns(flows, "ts")
        known: Bools = t_ns != NO_TIME
        self._rows.undecodable += _unset(known)
        self._rows.flows.append(
            known,
            flow=_not_negative(_fields(flows, "id")),
            is_end=np.array([flow["ph"] == "f" for flow in flows], np.int8),
            thread=self._threads(flows),
            t_ns=t_ns,
        )

    def _take_memory(self, rows: Sequence[Event]) -> None:
        """Add rows of a device's memory; those of the host's, of device type 0, are left out."""
        types = _not_negative(_fields(_args(rows), "Device Type"))
        rows = [row for row, of_device in zip(rows, types != 0, strict=True) if of_device]
        args, at_ns = _args(rows), _times_ns(rows, "ts")
        is_oom = np.array([row["name"] == _OUT_OF_MEMORY for row in rows], np.bool_)
        size, device = integers(_fields(args, "Bytes")), _not_negative(_fields(args, "Device Id"))
        keep: Bools = (at_ns != NO_TIME) & (types[types != 0] > 0) & ((size != ABSENT) | is_oom)
        keep &= (device >= 0) & (device <= _INT32.max)
        self._rows.undecodable += _unset(keep)
        rows = [row for row, kept in zip(rows, keep, strict=True) if kept]
        thread = np.full(len(keep), ABSENT, np.int32)
        thread[keep] = self._threads(rows)
        self._rows.memory.append(
            keep,
            at_ns=at_ns,
            bytes=size,
            address=_not_negative(_fields(args, "Addr")),
            allocated_bytes=_not_negative(_fields(args, "Total Allocated")),
            reserved_bytes=_not_negative(_fields(args, "Total Reserved")),
            thread=thread,
            device=device.astype(np.int32),
            is_oom=is_oom.astype(np.int8),
        )

    def _take_device_spans(self, rows: Sequence[Event], start_ns: Int64s, dur_ns: Int64s) -> None:
        device, stream = _device_and_stream(rows, _args(rows))
        self._rows.device_spans.append(
            self._whole(start_ns, dur_ns, device != ABSENT),
            device=device,
            stream=stream,
            start_ns=start_ns,
            end_ns=start_ns + dur_ns,
            name=self._names(rows),
        )

    def _whole(self, start_ns: Int64s, dur_ns: Int64s, placed: Bools | bool = True) -> Bools:
        """Return which rows have both times and a device; count the others as undecodable."""
        keep: Bools = (start_ns != NO_TIME) & (dur_ns >= 0) & placed
        self._rows.undecodable += _unset(keep)
        return keep

    def _names(self, rows: Sequence[Event]) -> Int32s:
        return _numbered(self._rows.names, map(_name, rows), len(rows))

    def _threads(self, rows: Sequence[Event]) -> Int32s:
        keys = zip(_fields(rows, "pid"), _fields(rows, "tid"), strict=True)
        return _numbered(self._rows.threads, keys, len(rows))

    def _collectives(self, args: Sequence[Event]) -> Int32s:
        column = np.full(len(args), ABSENT, np.int32)
        for row, one in enumerate(args):
            if "Collective name" in one:
                key = tuple(scalars([one.get(field) for field in _COLLECTIVE]))
                if key[0] is not None:
                    column[row] = self._rows.collectives[key]
        return column

    def _marks(self, args: Sequence[Event]) -> Int32s:
        column = np.full(len(args), ABSENT, np.int32)
        for row, one in enumerate(args):
            key = tuple(scalars([one.get(field) for field in _MARK]))
            if any(part is not None for part in key):
                column[row] = self._rows.marks[key]
        return column

    def _places(self, rows: Sequence[Event], args: Sequence[Event], device: Int32s) -> Int32s:
        """Number each record's process, (n,) int32; `ABSENT` where it is the device's number."""
        column = np.full(len(rows), ABSENT, np.int32)
        pids, devices = _fields(rows, "pid"), _fields(args, "device")
        for at in np.flatnonzero(integers(pids) != device).tolist():
            pid = pids[at]
            if pid is not None and devices[at] is not None:
                column[at] = self._rows.places[pid]
        return column

    def _shapes(self, rows: Sequence[Event], args: Sequence[Event]) -> Int32s:
        column = np.full(len(args), ABSENT, np.int32)
        for number, (row, one) in enumerate(zip(rows, args, strict=True)):
            if "Input Dims" in one and any(part in _name(row) for part in SHAPED):
                dims, types, values = (
                    msgspec.json.encode(one[key]) if key in one else b"" for key in _SHAPES
                )
                column[number] = self._rows.shapes[dims, types, values]
        return column


def _numbered(interner: Interner[KeyT], keys: Iterable[KeyT], count: int) -> Int32s:
    return np.fromiter(map(interner.__getitem__, keys), np.int32, count)


def _name(event: Event) -> str:
    return str(event.get("name", ""))


def _args(rows: Sequence[Event]) -> list[Event]:
    found = (row.get("args") for row in rows)
    return [one if isinstance(one, dict) else {} for one in found]


def _fields(events: Sequence[Event], key: str) -> list[Scalar]:
    """Return a field of mixed type of each event; None for absent ones, lists and objects."""
    return scalars([event.get(key) for event in events])


def _first(values: Sequence[Scalar], otherwise: Sequence[Scalar]) -> list[Scalar]:
    pairs = zip(values, otherwise, strict=True)
    return [other if value is None else value for value, other in pairs]


def _external_ids(args: Sequence[Event]) -> Int64s:
    """Return the External ids, `ABSENT` if none; the second spelling is of 2021."""
    return counts_of(_first(_fields(args, "External id"), _fields(args, "external id")))


def _not_negative(values: Sequence[Scalar]) -> Int64s:
    """Convert values as `integers` does; `ABSENT` also for negative numbers."""
    found = integers(values)
    found[found < 0] = ABSENT
    return found


def _device_and_stream(rows: Sequence[Event], args: Sequence[Event]) -> tuple[Int32s, Int64s]:
    """Return device and stream of device rows, by `args`, else by pid and tid, which mean the same.

    Source: Kineto writes pid = device and tid = stream ("stream 7" in 2021) for device rows.
    """
    device = integers(_first(_fields(args, "device"), _fields(rows, "pid")))
    stream = integers(_first(_fields(args, "stream"), _fields(rows, "tid")))
    device[(device < 0) | (device > _INT32.max)] = ABSENT
    return device.astype(np.int32), stream


def _unset(mask: Bools) -> int:
    return len(mask) - int(np.count_nonzero(mask))


def ns_from_us(values: Iterable[object]) -> Int64s:
    """Convert decoded times in us to the nearest ns, (n,) int64, halves to even; else `NO_TIME`.

    `values`: integers, decimals, or texts that are a number as JSON writes it.
    """
    return np.array([_time_ns(value) for value in values], np.int64)


def _times_ns(events: Sequence[Event], key: str) -> Int64s:
    return ns_from_us(event.get(key) for event in events)


def _time_ns(value: object) -> int:
    if isinstance(value, str) and len(value) <= _LONGEST_TIME and _NUMBER.fullmatch(value):
        value = decimal_of(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value * NS_PER_US if abs(value) <= _FARTHEST_US else NO_TIME
    # Compared first: only of numbers this small does `quantize` hold all digits.
    if not isinstance(value, Decimal) or not -_MOST_US < value < _MOST_US:
        return NO_TIME
    ns = int(value.quantize(_NS, ROUND_HALF_EVEN) * NS_PER_US)
    return ns if abs(ns) <= _FARTHEST_US * NS_PER_US else NO_TIME

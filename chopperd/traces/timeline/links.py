"""Link device records to the runtime calls that launched them; find launches without record."""

import re
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopperd.correlate import intervals
from chopperd.model.arrays import Bools, Int8s, Int32s, Int64s
from chopperd.model.kinds import KernelClass
from chopperd.model.timeline import Intervals
from chopperd.model.trace import Collective, DeviceRecords, RecordKind, RuntimeCalls, Trace
from chopperd.traces.correlation_ids import Threads, calls_by_id, shared_by_processes
from chopperd.traces.kernels.names import bounded, names_matching, used_names
from chopperd.traces.timeline.nesting import Moments, Nesting, beginnings
from chopperd.units import NS_PER_US

#: Kernel and graph launches of the makers' runtimes and drivers; host functions run no kernel.
KERNEL_LAUNCH: Final = re.compile(
    r"^(?:cuda|cu|hip|musa|mu|ur|pi)(?!\w*HostFunc)\w*Launch(?!Attribute)\w*$"
)

#: By how much a record may start before its call: the clocks of host and device are joined no
#: better. Of 9,595 records of 11 real traces none starts before its call.
EARLIEST_NS: Final = 10 * NS_PER_US

#: Copies that always leave a record; an empty fill legitimately leaves none.
COPY_LAUNCH: Final = re.compile(r"^(?:cuda|cu|hip)Memcpy\w*(?:Async|WithStream)\w*$")

CAPTURE_BEGIN: Final = re.compile(r"^(?:cuda|cu|hip)StreamBeginCapture\w*$")
CAPTURE_END: Final = re.compile(r"^(?:cuda|cu|hip)StreamEndCapture\w*$")


class Links(Struct, frozen=True, kw_only=True):
    """Links between the device records and runtime calls of one trace."""

    # (records,), index of the launching call; -1 unlinked. A graph launch is the call of many
    # records.
    call: Int64s
    by_id: Int64s  # (records,), the same, also where the record starts too early for the call
    recorded: Bools  # (calls,), the call has at least one record
    launch: Bools  # (calls,), a kernel, graph or copy launch, which should have a record

    @property
    def missing(self) -> Int64s:
        """Indices of launches without a record, in launch order."""
        return np.flatnonzero(self.launch & ~self.recorded)


def link(
    records: DeviceRecords, calls: RuntimeCalls, names: tuple[str, ...], threads: Threads
) -> Links:
    """Link every record to its launch by correlation id.

    In a file put together from several processes, whose ids repeat, a record whose id is used by
    calls of more than one is unlinked, and no such call counts as a launch without record. A record
    that starts long before its call has an impossible time (or id): it stays in the timeline but is
    unlinked, and its launch counts as one without record.

    Source: Kineto's `correlation`, one number for a call and all that it put on a device;
    impossible starts are pytorch/pytorch#192021.
    """
    launch = _named(calls, names, KERNEL_LAUNCH) | _named(calls, names, COPY_LAUNCH)
    shared = shared_by_processes(calls, threads)
    launch &= ~shared
    by_id = calls_by_id(records.correlation, calls.correlation, launch)
    by_id[np.append(shared, False)[by_id]] = -1
    linked = by_id >= 0
    linked[linked] = records.start_ns[linked] >= calls.start_ns[by_id[linked]] - EARLIEST_NS
    call = np.where(linked, by_id, -1)
    runs_kernel = _marked(len(calls), call[linked & (records.kind == RecordKind.KERNEL)])
    captured = intervals.contains(_captures(calls, names), calls.start_ns)
    return Links(
        call=call,
        by_id=by_id,
        recorded=_marked(len(calls), call[linked]),
        launch=runs_kernel | (launch & ~captured),
    )


def _captures(calls: RuntimeCalls, names: tuple[str, ...]) -> Intervals:
    """Return the time in which a stream was captured into a graph, when launches run nothing."""
    begin_ns = calls.end_ns[_named(calls, names, CAPTURE_BEGIN)]
    end_ns = np.sort(calls.end_ns[_named(calls, names, CAPTURE_END)])
    if len(begin_ns) == 0 or len(end_ns) == 0:
        return intervals.EMPTY
    closing = np.searchsorted(end_ns, begin_ns, side="right")
    closed = closing < len(end_ns)
    return intervals.union(begin_ns[closed], end_ns[closing[closed]])


def _named(calls: RuntimeCalls, names: tuple[str, ...], pattern: re.Pattern[str]) -> Bools:
    return names_matching(names, pattern).take(calls.name)


def _marked(count: int, indices: Int64s) -> Bools:
    marks = np.zeros(count, np.bool_)
    marks[indices] = True
    return marks


def unrecorded(
    records: DeviceRecords, calls: RuntimeCalls, links: Links
) -> Mapping[int, Intervals]:
    """Return, for each device with dropped launches, the time in which their work may have run.

    That is from the end of the last record launched before one on its device (its call's start
    without any) to the start of the first one launched after (the device's last record). Its device
    is that of its neighbour in its own thread's launch order (the one before, else the one after).
    """
    missing = links.missing
    linked = np.flatnonzero(links.call >= 0)
    if len(missing) == 0 or len(linked) == 0:
        return {}
    device = _device_of_missing(records, calls, links)
    return {
        int(which): _gaps(records, calls, links.call, int(which), missing[device == which])
        for which in np.unique(device)
    }


def _gaps(
    records: DeviceRecords, calls: RuntimeCalls, call: Int64s, device: int, missing: Int64s
) -> Intervals:
    on_device = records.device == device
    rows = np.flatnonzero(on_device & (call >= 0))
    rows = rows[np.argsort(call[rows], kind="stable")]
    launched, first = np.unique(call[rows], return_index=True)
    end_ns = np.maximum.reduceat(records.end_ns[rows], first)
    start_ns = records.start_ns[rows][first]
    after = np.searchsorted(launched, missing)
    since_ns = np.where(after > 0, end_ns[after - 1], calls.start_ns[missing])
    last_ns = records.end_ns[on_device].max()
    until_ns = np.where(
        after < len(launched), start_ns[np.minimum(after, len(launched) - 1)], last_ns
    )
    return intervals.union(since_ns, until_ns)


def _device_of_missing(records: DeviceRecords, calls: RuntimeCalls, links: Links) -> Int32s:
    linked = np.flatnonzero(links.call >= 0)
    of_call = np.full(len(calls), -1, np.int32)
    of_call[links.call[linked]] = records.device[linked]
    launches = np.flatnonzero(links.launch | links.recorded)
    device, thread = of_call[launches], calls.thread[launches]
    by_thread = np.argsort(thread, kind="stable")
    device[by_thread] = _filled(device[by_thread], thread[by_thread])
    device = _filled(device, np.zeros(len(device), np.int32))
    return device[np.searchsorted(launches, links.missing)]


def _filled(values: Int32s, group: Int32s) -> Int32s:
    """Replace each -1 by the last known value before it in its group, else by the next."""
    forward = _carried(values, group)
    backward = _carried(forward[::-1], group[::-1])[::-1]
    return backward


def _carried(values: Int32s, group: Int32s) -> Int32s:
    """Replace each -1 by the last known value before it in its group (groups are runs), if any."""
    rows = np.arange(len(values))
    known = np.maximum.accumulate(np.where(values >= 0, rows, 0))
    same_group = group[known] == group
    return np.where(same_group, values[known], -1).astype(np.int32)


#: RCCL's kernel for all collectives; NCCL's names have the collective.
_GENERIC: Final = re.compile(r"^(?:nccl|rccl)\w*_Generic\b")
#: Where a communication kernel's name has the collective: NCCL's, DeepEP's (mangled too), others'.
_IN_NAME: Final = re.compile(
    r"^(?:nccl|rccl)\w*?Kernel_(?!Generic)([A-Za-z]+)"
    r"|\bdeep_ep::\w+::(dispatch|combine)\b|deep_ep\w*?\d(dispatch|combine)I"
    r"|((?:all_?(?:reduce|gather|to_?all))|reduce_?scatter)",
    re.IGNORECASE,
)
#: torch's annotation around the launch of a collective.
_ANNOTATION: Final = re.compile(r"^(?:nccl|rccl):")
_AFFIX: Final = re.compile(
    r"^(?:nccl|rccl):|_base$|_coalesced$|_into_tensor$|_tensor$|_oop$", re.IGNORECASE
)
#: torch's description of a process group to which the program gives none.
_NO_DESCRIPTION: Final = "undefined"
#: What torch records as a collective though it moves nothing.
_IDLE: Final = frozenset({"wait", "init"})


def collective_name(text: str) -> str:
    """Return one name for all spellings of a collective: "allgather" for "nccl:_all_gather_base".

    Source: kernel metadata (_allgather_base, _reduce_scatter_base) and annotations
    (nccl:all_reduce).
    """
    name, before = text.lower(), ""
    while name != before:
        name, before = _AFFIX.sub("", name), name
    return name.replace("_", "")


def collectives_of(
    trace: Trace, call: Int64s, kernel_class: Int8s
) -> tuple[tuple[Collective, ...], Int32s]:
    """Return a trace's distinct collectives, and each record's index: (records,) int32, -1 unknown.

    Sources, best first: the record's metadata; that of the `record_param_comms` operator around its
    launch; the name of torch's annotation around it; the record's name. The latter two give no
    group and no size. Where one operator launched several kernels, how they share its size is not
    known. `call`: (records,), the call that launched each record; -1 unlinked.
    """
    comm = np.flatnonzero(kernel_class == KernelClass.COMM)
    if not len(comm):
        return (), np.full(len(call), -1, np.int32)
    given = trace.records.collective[comm]
    launched = beginnings(trace.calls, call[comm])
    operator = Nesting(trace.spans, _described(trace)).innermost(launched)
    unknown = np.flatnonzero((given < 0) & (operator >= 0))
    given[unknown] = trace.spans.collective[operator[unknown]]
    found = _Numbering(trace.collectives)
    # Operators that launched another kernel too.
    crowded = np.bincount(operator[operator >= 0], minlength=1)[operator] > 1
    numbers = found.described(given, crowded=(operator >= 0) & crowded)
    numbers = found.named(numbers, *_names_around(trace, launched))
    numbers = found.named(numbers, *_own_names(trace, trace.records.name[comm]))
    column = np.full(len(call), -1, np.int32)
    column[comm] = numbers
    return tuple(found), column


def generic_collectives(
    trace: Trace, collectives: Sequence[Collective], column: Int32s
) -> Iterator[tuple[Int64s, int, str]]:
    """Yield the records of kernels that serve all collectives, by kernel name and collective.

    Each is the records' indices, the index of their name in `Trace.names`, and the collective's
    name; without those of no known collective. Takes what `collectives_of` returns.
    """
    generic = names_matching(trace.names, _GENERIC).take(trace.records.name)
    rows = np.flatnonzero(generic & (column >= 0))
    texts = [each.name for each in collectives]
    distinct = tuple(dict.fromkeys(texts))
    slot_of = {text: slot for slot, text in enumerate(distinct)}
    slot = np.array([slot_of[text] for text in texts], np.int64)
    key = slot[column[rows]] * len(trace.names) + trace.records.name[rows]
    order = np.argsort(key, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(key[order])) + 1) if len(order) else []
    for group in sorted(groups, key=itemgetter(0)):
        collective, name = divmod(int(key[group[0]]), len(trace.names))
        yield rows[group], name, distinct[collective]


class _Numbering(dict[Collective, int]):
    """Numbers of distinct collectives, in the order in which they are met."""

    def __init__(self, recorded: tuple[Collective, ...]) -> None:
        super().__init__()
        self._recorded = recorded

    def described(self, given: Int32s, *, crowded: Bools) -> Int32s:
        """Number recorded collectives, (n,) int32, without a size where `crowded`; -1 stays."""
        numbers = np.full(len(given), -1, np.int32)
        for several in (False, True):
            of_recorded = np.full(len(self._recorded) + 1, -1, np.int32)
            mine = (crowded == several) & (given >= 0)
            for index in used_names(given[mine], len(self._recorded)).tolist():
                of_recorded[index] = self._number(self._plain(index, sized=not several))
            numbers[mine] = of_recorded[given[mine]]
        return numbers

    def named(self, numbers: Int32s, column: Int32s, texts: Sequence[str]) -> Int32s:
        """Fill `numbers` that are -1 by name alone; `column` is an index into `texts` or -1."""
        open_ = (numbers < 0) & (column >= 0)
        of_text = np.full(len(texts) + 1, -1, np.int32)
        for index in used_names(column[open_], len(texts)).tolist():
            of_text[index] = self._number(Collective(name=bounded(collective_name(texts[index]))))
        return np.where(open_, of_text[column], numbers)

    def _number(self, collective: Collective) -> int:
        return self.setdefault(collective, len(self))

    def _plain(self, index: int, *, sized: bool) -> Collective:
        given = self._recorded[index]
        called = None if given.group_description == _NO_DESCRIPTION else given.group_description
        plain = replace(
            given,
            name=bounded(collective_name(given.name)),
            group=None if given.group is None else bounded(given.group),
            group_description=None if called is None else bounded(called),
        )
        return plain if sized else replace(plain, in_elements=None, out_elements=None)


def _described(trace: Trace) -> Int64s:
    idle = np.array([collective_name(each.name) in _IDLE for each in trace.collectives], np.bool_)
    spans = np.flatnonzero(trace.spans.collective >= 0)
    return spans[~idle[trace.spans.collective[spans]]] if len(spans) else spans


def _names_around(trace: Trace, launched: Moments) -> tuple[Int32s, Sequence[str]]:
    spans = trace.spans
    annotation = names_matching(trace.names, _ANNOTATION).take(spans.name)
    around = Nesting(spans, np.flatnonzero(annotation)).innermost(launched)
    column = np.full(len(around), -1, np.int32)
    column[around >= 0] = spans.name[around[around >= 0]]
    return column, trace.names


def _own_names(trace: Trace, name: Int32s) -> tuple[Int32s, Sequence[str]]:
    """Return for each kernel the index of the collective in its name, -1 none; and these texts."""
    texts: list[str] = []
    of_name = np.full(len(trace.names), -1, np.int32)
    for index in used_names(name, len(trace.names)).tolist():
        if found := _IN_NAME.search(trace.names[index]):
            of_name[index] = len(texts)
            texts.append(next(filter(None, found.groups())))
    return of_name.take(name), texts

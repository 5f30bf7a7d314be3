"""Link device records to the runtime calls that launched them; find launches without record."""

import re
from collections.abc import Mapping
from typing import Final

import numpy as np
from msgspec import Struct

from chopperd.correlate import intervals
from chopperd.model.arrays import Bools, Int32s, Int64s
from chopperd.model.timeline import Intervals
from chopperd.model.trace import DeviceRecords, RecordKind, RuntimeCalls
from chopperd.traces.correlation_ids import Threads, calls_by_id, shared_by_processes
from chopperd.traces.kernels.names import names_matching
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

"""When a device may have been running work that the profiler dropped."""

from collections.abc import Mapping

import numpy as np

from chopperd.correlate import intervals
from chopperd.model.arrays import Int32s, Int64s
from chopperd.model.timeline import Intervals
from chopperd.model.trace import DeviceRecords, RuntimeCalls
from chopperd.traces.timeline.links import Links


def unrecorded(
    records: DeviceRecords, calls: RuntimeCalls, links: Links
) -> Mapping[int, Intervals]:
    """For each device with dropped launches, the time in which their work may have run.

    A dropped launch is unknown from the end of the last record launched before it to the start of
    the first record launched after it, both on its device. With none before, from its call's
    start; with none after, up to the device's last record. The device of a dropped launch is that
    of its neighbour in its own thread's launch order (the one before, else the one after).
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
    """The unknown time of one device, by the calls in `missing`."""
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
    """The device of each missing launch, by its neighbours; always one that has records."""
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
    """Values with each -1 replaced by the last known before it in its group, else the next."""
    forward = _carried(values, group)
    backward = _carried(forward[::-1], group[::-1])[::-1]
    return backward


def _carried(values: Int32s, group: Int32s) -> Int32s:
    """Values with each -1 replaced by the last known before it in its group (groups are runs)."""
    rows = np.arange(len(values))
    known = np.maximum.accumulate(np.where(values >= 0, rows, 0))
    same_group = group[known] == group
    return np.where(same_group, values[known], -1).astype(np.int32)

"""Rows of the waterfall against a walk over every single ns, and by hand."""

from collections import Counter
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from chopperd.correlate.intervals import lengths_ns
from chopperd.correlate.waterfall import COPY_DIRECTIONS, IDLE_ROWS, busy_masks, idle_split
from chopperd.model.arrays import Int64s
from chopperd.model.kinds import (
    COMM_CLASSES,
    COMPUTE_CLASSES,
    COPY_CLASSES,
    CopyDirection,
    KernelClass,
)
from chopperd.model.timeline import DeviceTimeline, HostActivity, Intervals
from tests.unit.correlate.builders import Rec, device, host, spans

LONGEST_NS = 60
THREADS = 3


def rows_by_masks(
    timeline: DeviceTimeline, activity: tuple[HostActivity, ...], windows: list[tuple[int, int]]
) -> list[Counter[str]]:
    """The product's rows of each window, those of 0 ns left out."""
    masks = busy_masks(timeline)
    parts = {"compute": masks.compute, "exposed_comm": masks.exposed_comm}
    parts |= {f"copy_{way.name}": mask for way, mask in masks.exposed_copy_by.items()}
    parts |= idle_split(timeline, masks.busy, activity).rows
    start_ns = np.array([start for start, _ in windows], np.int64)
    end_ns = np.array([end for _, end in windows], np.int64)
    lengths = {name: lengths_ns(mask, start_ns, end_ns) for name, mask in parts.items()}
    assert all((row >= 0).all() for row in lengths.values())
    return [
        Counter({name: int(row[w]) for name, row in lengths.items() if row[w]})
        for w in range(len(windows))
    ]


def row_at(t: int, timeline: DeviceTimeline, activity: tuple[HostActivity, ...]) -> str:
    """The row of the ns [t, t + 1), read off the table of DESIGN.md section 2 word by word."""
    running = [
        (KernelClass(kind), CopyDirection(way))
        for start, end, kind, way in zip(
            timeline.start_ns,
            timeline.end_ns,
            timeline.kernel_class,
            timeline.copy_direction,
            strict=True,
        )
        if start <= t < end
    ]
    if any(kind in COMPUTE_CLASSES for kind, _ in running):
        return "compute"
    if any(kind in COMM_CLASSES for kind, _ in running):
        return "exposed_comm"
    ways = {way_of(kind, way) for kind, way in running if kind in COPY_CLASSES}
    for way in COPY_DIRECTIONS:
        if way in ways:
            return f"copy_{way.name}"
    return idle_row_at(t, timeline, activity)


def way_of(kind: KernelClass, way: CopyDirection) -> CopyDirection:
    if kind is KernelClass.MEMSET:
        return CopyDirection.MEMSET
    return CopyDirection.D2D if way is CopyDirection.NONE else way


def idle_row_at(t: int, timeline: DeviceTimeline, activity: tuple[HostActivity, ...]) -> str:
    if holds(timeline.unrecorded, t):
        return "unknown"
    later = [i for i in range(len(timeline)) if timeline.start_ns[i] > t]
    first = [i for i in later if timeline.start_ns[i] == timeline.start_ns[later[0]]]
    # Of records that start together a linked one counts.
    following = min(first, key=lambda i: bool(timeline.call_thread[i] < 0))
    thread = int(timeline.call_thread[following])
    if thread < 0:
        return "idle_other"
    if timeline.call_start_ns[following] <= t:
        return "idle_launch_call"
    for name in ("allocator", "data", "sync"):
        if holds(getattr(activity[thread], name), t):
            return f"idle_{name}"
    return "idle_launch_prep"


def holds(mask: Intervals, t: int) -> bool:
    return any(
        start <= t < end
        for start, end in zip(mask.start_ns.tolist(), mask.end_ns.tolist(), strict=True)
    )


@st.composite
def disjoint(draw: st.DrawFn) -> Intervals:
    edges = sorted(draw(st.sets(st.integers(0, LONGEST_NS), max_size=8)))
    return spans(*zip(edges[::2], edges[1::2], strict=False))


@st.composite
def records(draw: st.DrawFn) -> Rec:
    start = draw(st.integers(0, LONGEST_NS))
    kind = draw(st.sampled_from(KernelClass))
    return Rec(
        start=start,
        end=start + draw(st.integers(0, 9)),
        kind=kind,
        direction=draw(st.sampled_from(CopyDirection)),
        stream=draw(st.integers(7, 9)),
        call=draw(st.integers(max(start - 12, 0), start)),
        thread=draw(st.integers(-1, THREADS - 1)),
    )


devices = st.builds(device, st.lists(records(), min_size=1, max_size=9), unrecorded=disjoint())
hosts = st.tuples(*[st.builds(host, disjoint(), disjoint(), disjoint()) for _ in range(THREADS)])


@settings(max_examples=20, deadline=None)
@given(timeline=devices, activity=hosts, data=st.data())
def test_every_row_of_every_window_equals_a_walk_over_its_ns(
    timeline: DeviceTimeline, activity: tuple[HostActivity, ...], data: st.DataObject
) -> None:
    first, last = int(timeline.start_ns.min()), int(timeline.end_ns.max())
    cuts = data.draw(st.sets(st.integers(first, last), max_size=3))
    edges = sorted({first, *cuts, last})
    windows = [*pairwise(edges), (first, last)]
    walked = [
        Counter(row_at(t, timeline, activity) for t in range(start, end)) for start, end in windows
    ]
    found = rows_by_masks(timeline, activity, windows)
    assert found == walked
    assert [row.total() for row in found] == [end - start for start, end in windows]


@settings(max_examples=20, deadline=None)
@given(timeline=devices)
def test_busy_and_overlap_equal_a_walk_over_every_ns(timeline: DeviceTimeline) -> None:
    classes = [
        {
            KernelClass(kind)
            for start, end, kind in zip(
                timeline.start_ns, timeline.end_ns, timeline.kernel_class, strict=True
            )
            if start <= t < end
        }
        for t in range(2 * LONGEST_NS)
    ]
    masks = busy_masks(timeline)
    assert total(masks.busy) == sum(bool(kinds) for kinds in classes)
    assert total(masks.compute) == sum(bool(kinds & COMPUTE_CLASSES) for kinds in classes)
    assert total(masks.comm) == sum(bool(kinds & COMM_CLASSES) for kinds in classes)
    assert total(masks.copy) == sum(bool(kinds & COPY_CLASSES) for kinds in classes)
    assert total(masks.overlap) == sum(
        bool(kinds & COMPUTE_CLASSES and kinds & COMM_CLASSES) for kinds in classes
    )
    assert total(masks.exposed_copy) == sum(map(total, masks.exposed_copy_by.values()))


def total(mask: Intervals) -> int:
    return int((mask.end_ns - mask.start_ns).sum())


def row_sums(timeline: DeviceTimeline, activity: tuple[HostActivity, ...]) -> Counter[str]:
    first, last = int(timeline.start_ns.min()), int(timeline.end_ns.max())
    return rows_by_masks(timeline, activity, [(first, last)])[0]


def test_an_idle_gap_is_split_at_the_call_and_by_what_its_thread_did_before() -> None:
    """By hand: gap 100..200, call at 170; allocator 110-130, data 120-140, sync 135-150."""
    timeline = device([Rec(0, 100), Rec(200, 300, call=170, thread=1)])
    busy_thread = host(spans((110, 130)), spans((120, 140)), spans((135, 150)))
    rows = row_sums(timeline, (host(sync=spans((0, 300))), busy_thread))
    assert rows == {
        "compute": 200,
        "idle_allocator": 20,
        "idle_data": 10,
        "idle_sync": 10,
        "idle_launch_prep": 30,
        "idle_launch_call": 30,
    }


def test_a_dropped_launch_makes_the_idle_time_around_it_unknown() -> None:
    timeline = device([Rec(0, 100), Rec(200, 300, call=150, thread=0)], unrecorded=spans((50, 180)))
    assert row_sums(timeline, (host(),)) == {"compute": 200, "unknown": 80, "idle_launch_call": 20}


def test_idle_time_before_a_record_without_launch_is_other() -> None:
    timeline = device([Rec(0, 100), Rec(150, 160)])
    assert row_sums(timeline, ()) == {"compute": 110, "idle_other": 50}


def test_a_record_of_no_length_owns_the_idle_time_before_it() -> None:
    """By hand: 100..130 waits for the empty record (unlinked), 130..200 for the kernel's call."""
    timeline = device([Rec(0, 100), Rec(130, 130), Rec(200, 300, call=90, thread=0)])
    assert row_sums(timeline, (host(),)) == {
        "compute": 200,
        "idle_other": 30,
        "idle_launch_call": 70,
    }


def test_records_of_no_length_at_both_ends_still_leave_a_sum_equal_to_the_window() -> None:
    """By hand: an empty record at 0 and at 50, a kernel 20..30: 10 busy, 40 idle."""
    timeline = device([Rec(0, 0), Rec(20, 30), Rec(50, 50)])
    assert row_sums(timeline, ()) == {"compute": 10, "idle_other": 40}


def test_a_device_with_only_records_of_no_length_is_idle() -> None:
    timeline = device([Rec(10, 10), Rec(25, 25)])
    assert row_sums(timeline, ()) == {"idle_other": 15}


def test_an_empty_device_has_empty_rows() -> None:
    timeline = device([])
    masks = idle_split(timeline, busy_masks(timeline).busy, ()).rows
    assert tuple(masks) == IDLE_ROWS
    assert all(len(mask) == 0 for mask in masks.values())


def test_windows_in_any_order_get_the_time_inside_them() -> None:
    mask = spans((0, 10), (20, 30))
    ends: Int64s = np.array([30, 25], np.int64)
    assert lengths_ns(mask, np.array([5, 22], np.int64), ends).tolist() == [15, 3]

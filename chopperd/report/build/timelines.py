"""Choose the steps that are drawn in detail, and put down what ran in them and the clock's samples.

Small enough to be stored: intervals are merged at the resolution of a wide screen.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeVar

import msgspec
import numpy as np

from chopperd.correlate.causes import bit_shares
from chopperd.correlate.clock.signal import RunningClass
from chopperd.correlate.intervals import union
from chopperd.correlate.join import RowClocks
from chopperd.model.answers import StepTimeline, TracedDrop
from chopperd.model.arrays import Int64s
from chopperd.model.kinds import CAUSES, KERNEL_CLASSES
from chopperd.model.report_rows import Row
from chopperd.model.samples import GpuSamples
from chopperd.model.timeline import DeviceTimeline, DeviceWindow
from chopperd.report.build.clocked_device import ClockedDevice

#: Steps of a document, and of one device before it is known which are critical.
MOST_TIMELINES: Final = 12
#: Units of a window, the most intervals of a class, and the most samples.
_UNITS: Final = 4000
_MOST_INTERVALS: Final = 240
_MOST_SAMPLES: Final = 400

T = TypeVar("T")


def chosen(
    steps: Sequence[T],
    work_ns: Callable[[T], int],
    is_near_drop: Callable[[T], bool],
    is_wanted: Callable[[T], bool] = lambda _: False,
) -> list[T]:
    """Return at most 12 of some steps in their order: the longest, the median, those near drops.

    Those that are wanted come before all, and what room is left has the next longest ones.
    """
    places = range(len(steps))
    longest = sorted(places, key=lambda nth: -work_ns(steps[nth]))
    wanted = [nth for nth in places if is_wanted(steps[nth])]
    near = [nth for nth in places if is_near_drop(steps[nth])]
    first = [longest[0], longest[len(longest) // 2]] if longest else []
    found = list(dict.fromkeys((*wanted, *first, *near, *longest)))[:MOST_TIMELINES]
    return [steps[nth] for nth in sorted(found)]


def near_drops(drops: Iterable[TracedDrop], row: Row) -> bool:
    """Whether a device's clock dropped in a step, or in the one before or after."""
    return any(
        drop.steps is not None
        and row.step is not None
        and (drop.rank, drop.device) == (row.rank, row.device)
        and drop.steps[0] - 1 <= row.step <= drop.steps[1] + 1
        for drop in drops
    )


def own_work_ns(row: Row) -> int:
    """Return a step's window less exposed communication, in which it may have waited."""
    comm_ns = row.waterfall_ns.exposed_comm if row.waterfall_ns is not None else 0
    return (row.window_ns or 0) - comm_ns


def device_timelines(
    clocked: ClockedDevice,
    rows: Sequence[Row],
    drops: Sequence[TracedDrop],
    *,
    wanted: int | None,
    with_samples: bool,
) -> tuple[StepTimeline, ...]:
    """Return the steps of a device that may be drawn; `rows` has one for each of its windows."""
    device = clocked.joined.timeline
    pairs = [
        (row, window)
        for row, window in zip(rows, device.windows, strict=True)
        if not row.partial and not row.tail and window.end_ns > window.start_ns
    ]
    found = chosen(
        pairs,
        lambda each: own_work_ns(each[0]),
        lambda each: near_drops(drops, each[0]),
        lambda each: each[0].step == wanted,
    )
    samples = clocked.samples if with_samples else None
    return tuple(
        _timeline(row, window, device, clocked.joined.clocks, samples) for row, window in found
    )


def without_samples(of: StepTimeline) -> StepTimeline:
    """Return the timeline without samples: they may be of other times."""
    return msgspec.structs.replace(of, most_apart_ns=None, every=1, samples=())


def document_timelines(
    found: Iterable[StepTimeline],
    steps: Iterable[Row],
    drops: Sequence[TracedDrop],
    wanted: int | None,
) -> tuple[StepTimeline, ...]:
    """Return those of critical devices, at most 12; `wanted` is a step that is among them."""
    critical = {_key(row): row for row in steps if row.is_critical}
    pairs = [(each, critical[_key(each)]) for each in found if _key(each) in critical]
    shown = chosen(
        pairs,
        lambda each: own_work_ns(each[1]),
        lambda each: near_drops(drops, each[1]),
        lambda each: each[0].step == wanted,
    )
    return tuple(sorted((each for each, _ in shown), key=lambda each: each.step))


def _key(of: Row | StepTimeline) -> tuple[object, ...]:
    return of.job, of.run, of.rank, of.device, of.step, of.start_unix_ns


def _timeline(
    row: Row,
    window: DeviceWindow,
    device: DeviceTimeline,
    clocks: RowClocks | None,
    samples: GpuSamples | None,
) -> StepTimeline:
    length_ns = window.end_ns - window.start_ns
    unit_ns = max(-(-length_ns // _UNITS), 1)
    lanes = {name: each for name, each in _lanes(device, window, unit_ns) if each}
    assert row.step is not None  # a window is of a step
    bare = StepTimeline(
        job=row.job,
        run=row.run,
        rank=row.rank,
        step=row.step,
        device=device.device,
        gpu=row.gpu,
        start_unix_ns=row.start_unix_ns,
        window_ns=length_ns,
        unit_ns=unit_ns,
        lanes=lanes,
    )
    if clocks is None or samples is None:
        return bare
    return _sampled(bare, clocks, samples, window)


def _lanes(
    device: DeviceTimeline, window: DeviceWindow, unit_ns: int
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the intervals of each class in the window, as gaps and lengths in units."""
    before_end = int(np.searchsorted(device.start_ns, window.end_ns))
    inside = np.flatnonzero(device.end_ns[:before_end] > window.start_ns)
    start_ns = np.maximum(device.start_ns[inside], window.start_ns) - window.start_ns
    end_ns = np.minimum(device.end_ns[inside], window.end_ns) - window.start_ns
    kinds = device.kernel_class[inside]
    for kind in KERNEL_CLASSES:
        those = kinds == kind
        ran = union(start_ns[those], end_ns[those])
        if len(ran):
            yield kind.label, _coded(ran.start_ns // unit_ns, -(-ran.end_ns // unit_ns))


def _coded(start: Int64s, end: Int64s) -> tuple[int, ...]:
    """Return gaps and lengths of rising intervals; the closest are merged where there are many."""
    apart = start[1:] - end[:-1]
    least = 1
    if len(start) > _MOST_INTERVALS:
        least = max(int(np.partition(apart, -_MOST_INTERVALS)[-_MOST_INTERVALS]) + 1, 1)
    cuts = np.flatnonzero(apart >= least)
    first, last = np.append(0, cuts + 1), np.append(cuts, len(start) - 1)
    start, end = start[first], end[last]
    gaps = start - np.append(0, end[:-1])
    return tuple(np.column_stack((gaps, end - start)).ravel().tolist())


def _sampled(
    bare: StepTimeline, clocks: RowClocks, samples: GpuSamples, window: DeviceWindow
) -> StepTimeline:
    """Return the timeline with the samples of its window, and those in compute next to it."""
    t_ns, most_apart_ns = clocks.samples.t_ns, clocks.samples.max_in_class_gap_ns
    first, end = np.searchsorted(t_ns, (window.start_ns, window.end_ns)).tolist()
    every = max(-(-(end - first) // _MOST_SAMPLES), 1)
    computing = np.flatnonzero(clocks.samples.label == RunningClass.COMPUTE)
    before, after = computing[computing < first][-1:], computing[computing >= end][:1]
    before = before[t_ns[before] >= window.start_ns - most_apart_ns]
    after = after[t_ns[after] <= window.end_ns + most_apart_ns]
    rows = np.concatenate((before, np.arange(first, end, every), after))
    at = (t_ns[rows] - window.start_ns) // bare.unit_ns
    own = clocks.sample_rows[rows]
    shares = bit_shares(samples.causes[own])
    cause = [CAUSES[nth].label for nth in shares.argmax(axis=1)] if len(rows) else []
    values = zip(
        np.diff(at, prepend=0).tolist(),
        (round(each) for each in clocks.samples.clock_mhz[rows].tolist()),
        (None if np.isnan(each) else round(each) for each in samples.power_w[own].tolist()),
        (RunningClass(each).name.lower() for each in clocks.samples.label[rows].tolist()),
        cause,
        strict=True,
    )
    return msgspec.structs.replace(
        bare,
        most_apart_ns=most_apart_ns,
        every=every,
        samples=tuple(value for sample in values for value in sample),
    )

"""Chopper's own launch, prep and call overheads and its overlap ratio, to stand beside ours.

Its compute kernels are those that are neither communication nor FSDP's copies for it, and have a
launch in the file. Its copies and fills are in neither.

Source: UnaryLab/chopper at 7957a6e: `common/trace_metrics.py` (`derive_prep_overhead`,
`derive_call_overhead`, `compute_overlap_cdf`), `plots/launch_overhead.py` (first kernels),
`profile/merge.py` (kernels). The text of its paper was not at hand.
"""

from dataclasses import dataclass

import numpy as np

from chopperd.correlate.row_sums import RowSums
from chopperd.correlate.waterfall import is_class
from chopperd.model.arrays import Bools, Float64s, Int64s
from chopperd.model.classes import COMM_CLASSES, COMPUTE_CLASSES, COPY_CLASSES, KernelClass
from chopperd.model.timeline import DeviceTimeline

_PACKS = frozenset({KernelClass.COMM_PACK})


@dataclass(frozen=True, slots=True, kw_only=True)
class ChopperTotals:
    """Sums over each row's compute kernels, (r,) int64; `overlap_ratio` float64, NaN unknown.

    The whole file is the sum of its steps, as gaps between steps are none of Chopper's; a file
    without steps is taken as one.

    Attributes:
        kernel_count, kernel_ns: The kernels and their durations.
        launch_ns, prep_ns, call_ns: Of all but the first kernels of steps.
        first_launch_ns, first_call_ns: Of the first kernels of steps.
        overlap_ratio: Of the kernels' time, what communication covers, added up kernel by kernel
            and cut at each compute kernel's length.
    """

    kernel_count: Int64s
    kernel_ns: Int64s
    launch_ns: Int64s
    prep_ns: Int64s
    call_ns: Int64s
    first_launch_ns: Int64s
    first_call_ns: Int64s
    overlap_ratio: Float64s


def chopper_totals(timeline: DeviceTimeline) -> ChopperTotals:
    """Chopper's figures for each row.

    Launch overhead is the gap since the compute kernel that started before, in the same step;
    prep the part of it before the launch call began, call the part from there on. Of a step's
    first compute kernel: launch since the step's first kernel of any kind, call since its launch
    call began, uncut. Chopper sums by operation and takes medians; here all are summed.
    """
    group = np.zeros(len(timeline), np.int64)
    if timeline.windows:
        group = timeline.step.astype(np.int64)
    counts = (timeline.call_thread >= 0) & (group >= 0)
    counts &= is_class(timeline.kernel_class, COMPUTE_CLASSES - _PACKS)
    kernels = np.flatnonzero(counts)
    kernels = kernels[np.argsort(group[kernels], kind="stable")]
    parts = _parts_ns(timeline, group, kernels)
    shared_ns = _beside_comm_ns(timeline, kernels)
    rows = RowSums(timeline, kernels)
    sums = {name: rows.whole(each) for name, each in parts.items()}
    beside = rows.of(shared_ns)
    unknown = np.full(len(beside), np.nan)
    time_ns = sums["kernel_ns"]
    ratio = np.divide(beside, time_ns, out=unknown, where=time_ns > 0)
    return ChopperTotals(overlap_ratio=ratio, **sums)


def _parts_ns(timeline: DeviceTimeline, group: Int64s, kernels: Int64s) -> dict[str, Int64s]:
    """The figures of each kernel, (n,) int64; kernels by group, then by start."""
    start, end = timeline.start_ns[kernels], timeline.end_ns[kernels]
    call = np.minimum(timeline.call_start_ns[kernels], start)  # by the device's clock a us early
    first = _opens(group[kernels])
    before = np.concatenate((end[:1], end[:-1]))
    launch = np.where(first, 0, np.maximum(start - before, 0))
    return {
        "kernel_count": np.ones(len(kernels), np.int64),
        "kernel_ns": end - start,
        "launch_ns": launch,
        "prep_ns": np.where(first, 0, np.maximum(call - before, 0)),
        "call_ns": np.where(first, 0, np.minimum(start - call, launch)),
        "first_launch_ns": np.where(first, start - _begins(timeline, group)[group[kernels]], 0),
        "first_call_ns": np.where(first, start - call, 0),
    }


def _opens(group: Int64s) -> Bools:
    """(n,) bool: which are the first of their group, of groups in a row."""
    opens: Bools = np.diff(group, prepend=-1) != 0
    return opens


def _begins(timeline: DeviceTimeline, group: Int64s) -> Int64s:
    """(g,) int64: when each group's first kernel of any kind starts."""
    own = np.flatnonzero((group >= 0) & ~is_class(timeline.kernel_class, COPY_CLASSES))
    begins = np.zeros(int(group.max(initial=-1)) + 1, np.int64)
    begins[group[own[::-1]]] = timeline.start_ns[own[::-1]]
    return begins


def _beside_comm_ns(timeline: DeviceTimeline, kernels: Int64s) -> Int64s:
    """(n,) int64: of each kernel, the sum of what communication kernels overlap, cut at its length.

    Two of these at once count twice, as Chopper adds them up one by one.
    """
    comm = np.flatnonzero(is_class(timeline.kernel_class, COMM_CLASSES | _PACKS))
    start, end = timeline.start_ns[kernels], timeline.end_ns[kernels]
    if not len(comm) or not len(kernels):
        return np.zeros(len(kernels), np.int64)
    began, ended = timeline.start_ns[comm], np.sort(timeline.end_ns[comm])
    base = int(timeline.start_ns[0])

    def run_by(t_ns: Int64s) -> Int64s:
        """Time that communication kernels have run for up to each instant, summed over them."""
        return _since(began - base, t_ns - base) - _since(ended - base, t_ns - base)

    beside_ns: Int64s = np.minimum(run_by(end) - run_by(start), end - start)
    return beside_ns


def _since(events_ns: Int64s, t_ns: Int64s) -> Int64s:
    """(n,) int64: the sum over all events before each instant of the time since then."""
    before = np.searchsorted(events_ns, t_ns, "left")
    sums_ns = np.concatenate((np.zeros(1, np.int64), np.cumsum(events_ns)))
    since_ns: Int64s = before * t_ns - sums_ns.take(before)
    return since_ns

"""Kernels of one normalised name taken together: count, time, clock and loss."""

from dataclasses import dataclass

from chopperd.correlate.groups import RecordFigures, group_totals
from chopperd.model.arrays import Float64s, Int8s, Int64s
from chopperd.model.timeline import DeviceTimeline


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyTotals:
    """Figures of each family that occurs on a device, (f,) each, longest first.

    Attributes:
        family: (f,) int64, index into `Timeline.families`; `OTHER` for several of one class.
        merged: (f,) int64, how many families `OTHER` holds; 0 for others.
        kernel_class: (f,) int8.
        count, time_ns, samples, mean_mhz, lost_ns, half_ns: As of `GroupTotals`.
    """

    family: Int64s
    merged: Int64s
    kernel_class: Int8s
    count: Int64s
    time_ns: Int64s
    samples: Int64s
    mean_mhz: Float64s
    lost_ns: Float64s
    half_ns: Float64s


def family_totals(timeline: DeviceTimeline, figures: RecordFigures) -> FamilyTotals:
    """The figures of each family of the device."""
    totals = group_totals(timeline.family, figures, timeline.kernel_class)
    return FamilyTotals(
        family=totals.group,
        merged=totals.merged,
        kernel_class=timeline.kernel_class[totals.first],
        count=totals.count,
        time_ns=totals.time_ns,
        samples=totals.samples,
        mean_mhz=totals.mean_mhz,
        lost_ns=totals.lost_ns,
        half_ns=totals.half_ns,
    )

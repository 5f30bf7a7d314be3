"""How long each row's device was busy with records that a phase of the step launched."""

from collections.abc import Mapping
from typing import Final

from chopperd.correlate import intervals
from chopperd.correlate.losses import Windows
from chopperd.correlate.waterfall import lengths_ns
from chopperd.model.arrays import Int64s
from chopperd.model.timeline import DeviceTimeline, Phase

_TOLD: Final = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)


def phase_busy_ns(timeline: DeviceTimeline, windows: Windows) -> Mapping[Phase, Int64s]:
    """Busy time of each phase that occurs on the device, in each window: (r,) int64 ns.

    A phase's time is a union over streams, like busy time. Phases may run at once (communication of
    the backward beside the optimizer), so that they may sum to more than busy time; records whose
    phase is unknown make them sum to less.

    Args:
        timeline: The device.
        windows: The rows.
    """
    found = {}
    for phase in _TOLD:
        mine = timeline.phase == phase
        if mine.any():
            mask = intervals.union(timeline.start_ns[mine], timeline.end_ns[mine])
            found[phase] = lengths_ns(mask, windows.start_ns, windows.end_ns)
    return found

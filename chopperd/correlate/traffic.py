"""What a device's records moved and how communication met compute, put together for its rows."""

from dataclasses import dataclass

from chopperd.correlate.chopper import ChopperTotals, chopper_totals
from chopperd.correlate.collectives import CollectiveTotals, collective_totals
from chopperd.correlate.contention import ContentionTotals, contention
from chopperd.correlate.copies import CopyTotals, copy_totals
from chopperd.model.timeline import DeviceTimeline, Intervals
from chopperd.model.trace import Collective


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Figures beside the waterfall: of each row, and of families over the whole file.

    `contention` is None where nothing communicates.
    """

    copies: CopyTotals
    collectives: CollectiveTotals
    chopper: ChopperTotals
    contention: ContentionTotals | None


def traffic_of(
    timeline: DeviceTimeline, comm: Intervals, collectives: tuple[Collective, ...]
) -> Traffic:
    """The traffic of one device.

    Args:
        timeline: The device.
        comm: When communication runs on it.
        collectives: What its `collective` column indexes.
    """
    return Traffic(
        copies=copy_totals(timeline),
        collectives=collective_totals(timeline, collectives),
        chopper=chopper_totals(timeline),
        contention=contention(timeline, comm),
    )

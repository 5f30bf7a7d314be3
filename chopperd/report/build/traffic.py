"""Copies, collectives, contention and Chopper's times of a row, from the columns of a device."""

from dataclasses import replace
from typing import Final

import msgspec
import numpy as np

from chopperd.correlate.collectives import CollectiveTotals, bus_factor
from chopperd.correlate.contention import ContentionReason, ContentionTotals
from chopperd.correlate.copies import CopyTotals
from chopperd.correlate.families import FamilyTotals
from chopperd.correlate.traffic import Traffic
from chopperd.correlate.waterfall import COPY_DIRECTIONS
from chopperd.model.report import Family, Row
from chopperd.model.row_work import ChopperTimes, CollectiveTraffic, Contention, CopyTraffic
from chopperd.report.build.clocks import known_or_none
from chopperd.report.build.ranks import ranks_in_short
from chopperd.units import NS_PER_S

_REASONS: Final = {
    ContentionReason.NONE: None,
    ContentionReason.FEW_KERNELS: "fewer than 5 kernels",
    ContentionReason.SAME_OVERLAP: "half the kernels overlap no more than those that do least",
    ContentionReason.FEW_TO_COMPARE: "no interval: fewer than 5 kernels with the least overlap",
    ContentionReason.SEVERAL_SIZES: "the kernels seem to be of several sizes",
}


def with_traffic(row: Row, traffic: Traffic, index: int) -> Row:
    """The row with what its records moved; the last is the whole file."""
    return replace(
        row,
        copies=_copies(traffic.copies, index),
        collectives=_collectives(traffic.collectives, index),
        chopper=_chopper(traffic, index),
    )


def with_contention(
    families: tuple[Family, ...], totals: FamilyTotals, found: ContentionTotals | None
) -> tuple[Family, ...]:
    """The families with what communication beside them costs.

    Args:
        families: In the order of `totals`.
        totals: Whose families they are.
        found: None where nothing communicates.
    """
    if found is None:
        return families
    place = {family: at for at, family in enumerate(found.family.tolist())}
    return tuple(
        msgspec.structs.replace(family, contention=_contention(found, place[number]))
        if number in place
        else family
        for family, number in zip(families, totals.family.tolist(), strict=True)
    )


def _copies(totals: CopyTotals, index: int) -> tuple[CopyTraffic, ...]:
    """One entry a direction that occurs."""
    return tuple(
        CopyTraffic(
            direction=direction.label,
            count=int(totals.count[index, at]),
            time_ns=int(totals.time_ns[index, at]),
            sized_count=int(totals.sized_count[index, at]),
            bytes=int(totals.copied_bytes[index, at]) if totals.sized_count[index, at] else None,
            rate_bytes_per_s=_rate(
                int(totals.copied_bytes[index, at]), int(totals.sized_time_ns[index, at])
            ),
        )
        for at, direction in enumerate(COPY_DIRECTIONS)
        if totals.count[index, at]
    )


def _rate(size_bytes: int, time_ns: int) -> float | None:
    return size_bytes * NS_PER_S / time_ns if time_ns else None


def _collectives(totals: CollectiveTotals, index: int) -> tuple[CollectiveTraffic, ...]:
    """One entry a collective and group that occurs, longest first."""
    occurring = np.flatnonzero(totals.count[index]).tolist()
    found = [_collective(totals, index, at) for at in occurring]
    return tuple(sorted(found, key=lambda each: (-each.time_ns, each.name, each.group or "")))


def _collective(totals: CollectiveTotals, index: int, at: int) -> CollectiveTraffic:
    kind = totals.kinds[at]
    sized_count = int(totals.sized_count[index, at])
    rate = _rate(int(totals.moved_bytes[index, at]), int(totals.sized_time_ns[index, at]))
    factor = bus_factor(kind.name, kind.group_size)
    return CollectiveTraffic(
        name=kind.name,
        group=kind.group,
        group_description=kind.group_description,
        group_size=kind.group_size,
        group_ranks=None if kind.ranks is None else ranks_in_short(kind.ranks),
        count=int(totals.count[index, at]),
        time_ns=int(totals.time_ns[index, at]),
        sized_count=sized_count,
        bytes=int(totals.moved_bytes[index, at]) if sized_count else None,
        algorithm_bytes_per_s=rate,
        bus_bytes_per_s=None if rate is None or factor is None else rate * factor,
    )


def _chopper(traffic: Traffic, index: int) -> ChopperTimes | None:
    """None where no compute kernel with a launch is the row's."""
    totals = traffic.chopper
    if not totals.kernel_count[index]:
        return None
    return ChopperTimes(
        kernel_count=int(totals.kernel_count[index]),
        kernel_ns=int(totals.kernel_ns[index]),
        launch_ns=int(totals.launch_ns[index]),
        prep_ns=int(totals.prep_ns[index]),
        call_ns=int(totals.call_ns[index]),
        first_launch_ns=int(totals.first_launch_ns[index]),
        first_call_ns=int(totals.first_call_ns[index]),
        overlap_ratio=known_or_none(float(totals.overlap_ratio[index])),
    )


def _contention(found: ContentionTotals, at: int) -> Contention:
    return Contention(
        factor=known_or_none(float(found.factor[at])),
        low=known_or_none(float(found.low[at])),
        high=known_or_none(float(found.high[at])),
        chopper_e50_e0=known_or_none(float(found.e50_e0[at])),
        count=int(found.count[at]),
        reason=_REASONS[ContentionReason(int(found.reason[at]))],
    )

"""Copies, collectives, contention and Chopper's times of a row, from the columns of a device."""

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import msgspec
import numpy as np

from chopperd.correlate.contention import ContentionReason, ContentionTotals
from chopperd.correlate.efficiency import EfficiencyTotals
from chopperd.correlate.groups import FamilyTotals, GroupTotals, RecordFigures, group_totals
from chopperd.correlate.traffic import CollectiveTotals, CopyTotals, Traffic, bus_factor
from chopperd.correlate.waterfall import COPY_DIRECTIONS
from chopperd.model.arrays import Int8s, Int32s
from chopperd.model.report import HostPart, HostTime
from chopperd.model.report_rows import (
    ChopperTimes,
    CollectiveTraffic,
    Contention,
    CopyTraffic,
    Efficiency,
    Family,
    Row,
)
from chopperd.model.spec import DType, GpuSpec, Peak, peak_of
from chopperd.model.timeline import PHASE_LABELS, HostWork
from chopperd.report.build.clocks import group_name, known_or_none
from chopperd.units import NS_PER_S

# The efficiency of a row, from the columns of a device; what is missing has a reason.

_METHOD: Final = (
    "frequency: sampled clocks; overlap: cycles of like kernels without communication beside them; "
    "utilization: the rest"
)
_NO_CLOCKS: Final = (
    "overlap: times of like kernels without communication beside them, whatever their clocks"
)
_NO_OVERLAP: Final = (
    "frequency: sampled clocks; overlap: 1, as no communication runs beside kernels; "
    "utilization: the rest"
)


def efficiency_of(
    totals: EfficiencyTotals, index: int, spec: GpuSpec | None, no_spec: str
) -> Efficiency | None:
    """The figures of a row; None where no matrix kernel is its.

    Args:
        totals: Of the device.
        index: The row; the last is the whole file.
        spec: What the GPU's vendor states; None if unknown.
        no_spec: Why there is none.
    """
    matrix_ns, shaped_ns = int(totals.matrix_ns[index]), int(totals.shaped_ns[index])
    if not matrix_ns:
        return None
    dtype = DType(int(totals.dtype[index]))
    if not shaped_ns or dtype is DType.NONE:
        return Efficiency(
            matrix_time_ns=matrix_ns,
            shaped_time_ns=0,
            shaped_share=0.0,
            reason="no matrix kernel's operator is recorded with shapes that tell its work",
        )
    flops = float(totals.flops[index])
    shaped = Efficiency(
        flops=flops,
        matrix_time_ns=matrix_ns,
        shaped_time_ns=shaped_ns,
        shaped_share=shaped_ns / matrix_ns,
        achieved_flops_per_s=flops * NS_PER_S / shaped_ns,
        dtype=dtype.label,
        reason=no_spec or None,
    )
    return shaped if spec is None else _rated(shaped, totals, index, spec, dtype)


def _rated(
    shaped: Efficiency, totals: EfficiencyTotals, index: int, spec: GpuSpec, dtype: DType
) -> Efficiency:
    """The figures with those against the stated peak, if that of most of the work is known."""
    peak = peak_of(spec, dtype)
    if peak is None:
        reason = f"{spec.product} has no stated peak of {dtype.label}"
        if dtype is DType.FLOAT:
            reason = "whether 32-bit inputs are multiplied as FP32 or as TF32 is not recorded"
        return replace(shaped, reason=reason)
    rated_ns, theoretical_ns = int(totals.rated_ns[index]), float(totals.theoretical_ns[index])
    overlap_share = known_or_none(float(totals.overlap_share[index]))
    return replace(
        shaped,
        spec_flops_per_s=peak.flops_per_s,
        spec_mhz=peak.sm_clock_mhz,
        spec_source=spec.source,
        rated_time_ns=rated_ns,
        theoretical_ns=theoretical_ns,
        utilization=theoretical_ns / rated_ns if rated_ns else None,
        overhead_utilization=known_or_none(float(totals.utilization[index])),
        overhead_overlap=known_or_none(float(totals.overlap[index])),
        overhead_frequency=known_or_none(float(totals.frequency[index])),
        clock_share=known_or_none(float(totals.clock_share[index])),
        overlap_share=overlap_share,
        method=_method(overlap_share, known_or_none(float(totals.clock_share[index]))),
        reason=_missing(totals, index, peak),
    )


def _method(overlap_share: float | None, clock_share: float | None) -> str:
    if overlap_share is None:
        return _NO_OVERLAP
    return _METHOD if clock_share else _NO_CLOCKS


def _missing(totals: EfficiencyTotals, index: int, peak: Peak) -> str | None:
    """Why factors are missing; None where all are there."""
    reasons = []
    if math.isnan(totals.frequency[index]):
        if peak.sm_clock_mhz is None:
            reasons.append("frequency: no document states the clock of the peak")
        else:
            covered = float(totals.clock_share[index])
            part = f"only {covered:.0%} of" if covered > 0 else "none of"
            reasons.append(f"frequency: clock samples cover {part} the kernels' time")
    if math.isnan(totals.overlap[index]):
        share = float(totals.overlap_share[index])
        reasons.append(
            f"overlap: of the kernels beside communication only {share:.0%} by time can be set"
            " against like ones without"
        )
    return "; ".join(reasons) or None


# The members of a process group in a few characters, from the list that a trace has.

_RANK: Final = re.compile(r"\b\d{1,9}\b")
_CUT_OFF: Final = re.compile(r"\.\.\.\s*\]?\s*$")
#: Of a list of ranks, how many are read, and how many stretches of them are named.
_READ: Final = 1 << 16
_STRETCHES: Final = 8


def ranks_in_short(text: str) -> str | None:
    """Ranks as a trace lists them, "[0, 8, 16, 24, 3]", in short: "0-24 by 8, 3"; None without any.

    What is left out, by the trace or for length, is "...".

    Source: "Process Group Ranks" of communication kernels, of which torch leaves out what goes
        beyond its 30th entry.
    """
    ranks = [int(found[0]) for found, _ in zip(_RANK.finditer(text), range(_READ), strict=False)]
    stretches: list[str] = []
    at = 0
    while at < len(ranks) and len(stretches) < _STRETCHES:
        last = _last_of_stretch(ranks, at)
        stretches.append(_stretch(ranks[at], ranks[last], ranks[min(at + 1, last)]))
        at = last + 1
    if at < len(ranks) or (ranks and _CUT_OFF.search(text)):
        stretches.append("...")
    return ", ".join(stretches) or None


def _last_of_stretch(ranks: list[int], at: int) -> int:
    """Where the ranks that rise evenly from one on end; at it, where they are fewer than three."""
    end = at + 1
    while end < len(ranks) and ranks[end] - ranks[end - 1] == ranks[at + 1] - ranks[at] > 0:
        end += 1
    return end - 1 if end - at > 2 else at


def _stretch(first: int, last: int, second: int) -> str:
    if first == last:
        return f"{first}"
    return f"{first}-{last}" if second == first + 1 else f"{first}-{last} by {second - first}"


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


# Host time by operation, layer or phase, of traces without device work: sums.


def host_time(work: HostWork, job: str | None, run: str | None, rank: int | None) -> HostTime:
    """The operators' time, taken together by operation, layer and phase."""
    own = RecordFigures(
        duration_ns=work.own_ns,
        samples=np.zeros(len(work.own_ns), np.int64),
        compute=np.empty(0, np.int64),
        cycles=np.empty(0),
        covered_ns=np.empty(0),
        lost=None,
        shared_ns=np.empty(0),
        own=None,
        reference_mhz=None,
    )

    def parts(column: Int32s | Int8s, names: Sequence[str]) -> tuple[HostPart, ...]:
        return _parts(group_totals(column, own), names)

    return HostTime(
        job=job,
        run=run,
        rank=rank,
        by_operation=parts(work.operation, work.operations),
        by_layer=parts(work.layer, work.layers),
        by_phase=parts(work.phase, PHASE_LABELS),
    )


def _parts(totals: GroupTotals, names: Sequence[str]) -> tuple[HostPart, ...]:
    return tuple(
        HostPart(
            name=group_name(int(totals.group[g]), names),
            count=int(totals.count[g]),
            host_ns=int(totals.time_ns[g]),
            merged=int(totals.merged[g]),
        )
        for g in range(len(totals))
    )

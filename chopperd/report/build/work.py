"""Fill a row's work: families, parts, copies, collectives, efficiency, and the host's time.

All come from the columns of a joined device, at the row's index.
"""

import math
import re
from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopperd.correlate.contention import ContentionReason, ContentionTotals
from chopperd.correlate.efficiency import EfficiencyTotals
from chopperd.correlate.groups import OTHER, GroupTotals, RecordFigures, group_totals
from chopperd.correlate.join import GroupWork
from chopperd.correlate.traffic import Traffic, TransferTotals, bus_factor
from chopperd.correlate.waterfall import COPY_DIRECTIONS
from chopperd.model.answers import ChopperTimes, PartChopper, PartEfficiency
from chopperd.model.arrays import Int8s, Int32s, Int64s
from chopperd.model.devices import GpuSpec, Peak, peak_of
from chopperd.model.kinds import KERNEL_CLASSES, DType
from chopperd.model.report import HostPart, HostTime
from chopperd.model.report_rows import (
    OTHER_PARTS,
    UNKNOWN_PART,
    ClassTotal,
    CollectiveTraffic,
    Contention,
    CopyTraffic,
    Efficiency,
    Family,
    Part,
)
from chopperd.model.timeline import PHASE_LABELS, HostWork
from chopperd.report.build.clocks import filled, known_or_none
from chopperd.units import NS_PER_S

# Work by family, class, operation, layer or phase, of a whole file; the longest is first.


def families_of(
    totals: GroupTotals,
    names: Sequence[str],
    contention: ContentionTotals | None,
    work: GroupWork | None = None,
) -> tuple[Family, ...]:
    """Return the kernel families, with what overlapping communication costs them."""
    rows = {} if contention is None else {each: n for n, each in enumerate(contention.family)}
    return tuple(
        filled(
            Family,
            totals,
            index,
            name=group_name(family, names),
            class_=KERNEL_CLASSES[totals.kind[index]].label,
            beta_reason="not measured in this version",
            contention=_contention(contention, rows.get(family)),
            **_lost(totals, index),
            **_work(work, index),
        )
        for index, family in enumerate(totals.group)
    )


def classes_of(totals: GroupTotals, exposed_ns: Int64s) -> tuple[ClassTotal, ...]:
    """Return the totals of the kernel classes; `exposed_ns` is (classes,) int64."""
    return tuple(
        filled(
            ClassTotal,
            totals,
            index,
            class_=KERNEL_CLASSES[kernel_class].label,
            total_ns=int(totals.time_ns[index]),
            exposed_ns=int(exposed_ns[kernel_class]),
            **_lost(totals, index),
        )
        for index, kernel_class in enumerate(totals.group)
    )


def parts_of(
    totals: GroupTotals, names: Sequence[str], work: GroupWork | None = None
) -> tuple[Part, ...]:
    """Return the parts of one kind; `names` are indexed by the groups' numbers."""
    return tuple(
        filled(
            Part,
            totals,
            index,
            name=group_name(group, names),
            **_lost(totals, index),
            **_work(work, index),
        )
        for index, group in enumerate(totals.group)
    )


def _work(work: GroupWork | None, index: int) -> dict[str, object]:
    if work is None:
        return {}
    has_kernels = work.chopper.kernel_count[index]
    return {
        "chopper": filled(PartChopper, work.chopper, index) if has_kernels else None,
        "efficiency": part_efficiency_of(work.efficiency, index),
    }


def group_name(group: int, names: Sequence[str]) -> str:
    """Return the name of a group of `GroupTotals`: below 0, small ones merged or none."""
    if group < 0:
        return OTHER_PARTS if group == OTHER else UNKNOWN_PART
    return names[group]


def _lost(totals: GroupTotals, index: int) -> dict[str, int | None]:
    """Return the loss of one group in whole ns with its interval, which starts at 0 at least."""
    lost_ns, half_ns = float(totals.lost_ns[index]), float(totals.half_ns[index])
    low_ns = lost_ns - half_ns
    # Not max(): it would turn an unknown bound into 0.
    values = (lost_ns, 0.0 if low_ns < 0 else low_ns, lost_ns + half_ns)
    whole_ns = (None if math.isnan(each) else round(each) for each in values)
    return dict(zip(("lost_ns", "lost_low_ns", "lost_high_ns"), whole_ns, strict=True))


_CONTENTION_REASONS: Final = {
    ContentionReason.NONE: None,
    ContentionReason.FEW_KERNELS: "fewer than 5 kernels",
    ContentionReason.SAME_OVERLAP: "half the kernels overlap no more than those that do least",
    ContentionReason.FEW_TO_COMPARE: "no interval: fewer than 5 kernels with the least overlap",
    ContentionReason.SEVERAL_SIZES: "the kernels seem to be of several sizes",
}


def _contention(found: ContentionTotals | None, index: int | None) -> Contention | None:
    if found is None or index is None:
        return None
    return filled(
        Contention,
        found,
        index,
        chopper_e50_e0=known_or_none(found.e50_e0[index]),
        reason=_CONTENTION_REASONS[ContentionReason(found.reason[index])],
    )


def host_time(work: HostWork, job: str | None, run: str | None, rank: int | None) -> HostTime:
    """Sum the operators' time on the host by operation, layer, phase and annotation."""
    no_samples = np.zeros(len(work.own_ns), np.int64)
    own = RecordFigures(duration_ns=work.own_ns, samples=no_samples)

    def parts(column: Int32s | Int8s, names: Sequence[str]) -> tuple[HostPart, ...]:
        totals = group_totals(column, own)
        times_ns = totals.time_ns.tolist()
        return tuple(
            filled(HostPart, totals, i, name=group_name(group, names), host_ns=times_ns[i])
            for i, group in enumerate(totals.group)
        )

    return HostTime(
        job=job,
        run=run,
        rank=rank,
        by_operation=parts(work.operation, work.operations),
        by_layer=parts(work.layer, work.layers),
        by_phase=parts(work.phase, PHASE_LABELS),
        by_annotation=parts(work.annotation, work.annotations),
    )


# Copies and collectives of a row, and Chopper's times.


def copies_of(totals: TransferTotals, row: int) -> tuple[CopyTraffic, ...]:
    """Return the row's copies, one entry for each direction that occurs."""
    return tuple(
        filled(
            CopyTraffic,
            totals,
            (row, way),
            direction=direction.label,
            bytes=int(totals.moved_bytes[row, way]) if totals.sized_count[row, way] else None,
            rate_bytes_per_s=_rate(totals.moved_bytes[row, way], totals.sized_time_ns[row, way]),
        )
        for way, direction in enumerate(COPY_DIRECTIONS)
        if totals.count[row, way]
    )


def _rate(size_bytes: int, time_ns: int) -> float | None:
    return int(size_bytes) * NS_PER_S / int(time_ns) if time_ns else None


def collectives_of(totals: TransferTotals, row: int) -> tuple[CollectiveTraffic, ...]:
    """Return the row's collectives, one entry for each with its process group, longest first."""
    found = [_collective(totals, row, kind) for kind in np.flatnonzero(totals.count[row]).tolist()]
    return tuple(sorted(found, key=lambda each: (-each.time_ns, each.name, each.group or "")))


def _collective(totals: TransferTotals, row: int, at: int) -> CollectiveTraffic:
    kind, moved_bytes = totals.kinds[at], int(totals.moved_bytes[row, at])
    rate = _rate(moved_bytes, totals.sized_time_ns[row, at])
    factor = bus_factor(kind.name, kind.group_size)
    return filled(
        CollectiveTraffic,
        totals,
        (row, at),
        name=kind.name,
        group=kind.group,
        group_description=kind.group_description,
        group_size=kind.group_size,
        group_ranks=None if kind.ranks is None else ranks_in_short(kind.ranks),
        bytes=moved_bytes if totals.sized_count[row, at] else None,
        algorithm_bytes_per_s=rate,
        bus_bytes_per_s=None if rate is None or factor is None else rate * factor,
    )


def chopper_of(traffic: Traffic, row: int) -> ChopperTimes | None:
    """Return Chopper's times of the row; None where it has no compute kernel with a launch."""
    has_kernels = traffic.chopper.kernel_count[row]
    return filled(ChopperTimes, traffic.chopper, row) if has_kernels else None


_RANK: Final = re.compile(r"\b\d{1,9}\b")
_CUT_OFF: Final = re.compile(r"\.\.\.\s*\]?\s*$")
#: How many ranks of a list are read, and how many stretches of them are named.
_MOST_RANKS: Final = 1 << 16
_MOST_STRETCHES: Final = 8


def ranks_in_short(text: str) -> str | None:
    """Shorten a trace's list of ranks, "[0, 8, 16, 24, 3]", to "0-24 by 8, 3"; None without any.

    What is left out, by the trace or for length, is "...".

    Source: "Process Group Ranks" of communication kernels, of which torch leaves out what goes
        beyond its 30th entry.
    """
    found = zip(_RANK.finditer(text), range(_MOST_RANKS), strict=False)
    ranks = [int(match[0]) for match, _ in found]
    stretches: list[str] = []
    first = 0
    while first < len(ranks) and len(stretches) < _MOST_STRETCHES:
        last = _end_of_stretch(ranks, first)
        stretches.append(f"{ranks[first]}" if last == first else f"{ranks[first]}-{ranks[last]}")
        if last > first and (stride := ranks[first + 1] - ranks[first]) > 1:
            stretches[-1] += f" by {stride}"
        first = last + 1
    if first < len(ranks) or (ranks and _CUT_OFF.search(text)):
        stretches.append("...")
    return ", ".join(stretches) or None


def _end_of_stretch(ranks: list[int], first: int) -> int:
    """Return the index of the last rank in even steps from `first`; `first`, for fewer than 3."""
    end = first + 1
    while end < len(ranks) and ranks[end] - ranks[end - 1] == ranks[first + 1] - ranks[first] > 0:
        end += 1
    return end - 1 if end - first > 2 else first


_METHOD: Final = (
    "frequency: sampled clocks; overlap: cycles of like kernels without communication at the same "
    "time; utilization: the rest"
)
_NO_CLOCKS: Final = (
    "overlap: times of like kernels without communication at the same time, at any clock"
)
_NO_OVERLAP: Final = (
    "frequency: sampled clocks; overlap: 1, as no communication overlaps kernels; "
    "utilization: the rest"
)


def efficiency_of(
    totals: EfficiencyTotals, row: int, spec: GpuSpec | None, no_spec: str
) -> Efficiency | None:
    """Return the efficiency of the row's matrix kernels; None without any."""
    matrix_ns, shaped_ns = int(totals.matrix_ns[row]), int(totals.shaped_ns[row])
    if not matrix_ns:
        return None
    dtype = DType(int(totals.dtype[row]))
    if not shaped_ns or dtype is DType.NONE:
        return Efficiency(
            matrix_time_ns=matrix_ns,
            shaped_time_ns=0,
            shaped_share=0.0,
            reason="no matrix kernel's operator is recorded with shapes that give its work",
        )
    peak, why_none = (None, no_spec) if spec is None else _peak(spec, dtype)
    flops, rated_ns = float(totals.flops[row]), int(totals.rated_ns[row])
    shaped = Efficiency(
        flops=flops,
        matrix_time_ns=matrix_ns,
        shaped_time_ns=shaped_ns,
        shaped_share=shaped_ns / matrix_ns,
        achieved_flops_per_s=flops * NS_PER_S / shaped_ns,
        dtype=dtype.label,
        reason=why_none or None,
    )
    if spec is None or peak is None:
        return shaped
    theoretical_ns, overlap_share = float(totals.theoretical_ns[row]), totals.overlap_share[row]
    has_clocks = totals.clock_share[row] > 0
    method = _NO_OVERLAP if math.isnan(overlap_share) else _METHOD if has_clocks else _NO_CLOCKS
    return replace(
        shaped,
        spec_flops_per_s=peak.flops_per_s,
        spec_mhz=peak.sm_clock_mhz,
        spec_source=spec.source,
        rated_time_ns=rated_ns,
        theoretical_ns=theoretical_ns,
        utilization=theoretical_ns / rated_ns if rated_ns else None,
        overhead_utilization=known_or_none(totals.utilization[row]),
        overhead_overlap=known_or_none(totals.overlap[row]),
        overhead_frequency=known_or_none(totals.frequency[row]),
        clock_share=known_or_none(totals.clock_share[row]),
        overlap_share=known_or_none(overlap_share),
        method=method,
        reason=_missing(totals, row, peak),
    )


def _peak(spec: GpuSpec, dtype: DType) -> tuple[Peak | None, str]:
    """Return the stated peak and "", or None and why there is none."""
    peak = peak_of(spec, dtype)
    if peak is None and dtype is DType.FLOAT:
        return None, "whether 32-bit inputs are multiplied as FP32 or as TF32 is not recorded"
    return peak, "" if peak else f"{spec.product} has no stated peak of {dtype.label}"


def _missing(totals: EfficiencyTotals, row: int, peak: Peak) -> str | None:
    reasons = []
    if math.isnan(totals.frequency[row]):
        if peak.sm_clock_mhz is None:
            reasons.append("frequency: no document states the clock of the peak")
        else:
            covered = float(totals.clock_share[row])
            part = f"only {covered:.0%} of" if covered > 0 else "none of"
            reasons.append(f"frequency: clock samples cover {part} the kernels' time")
    if math.isnan(totals.overlap[row]):
        share = float(totals.overlap_share[row])
        reasons.append(
            f"overlap: of the kernels that overlap communication only {share:.0%} by time can be"
            " set against like ones without"
        )
    return "; ".join(reasons) or None


def part_efficiency_of(totals: EfficiencyTotals, index: int) -> PartEfficiency | None:
    """Return the efficiency of one group; None where none of its kernels has known work."""
    dtype, shaped_ns = DType(int(totals.dtype[index])), int(totals.shaped_ns[index])
    if not shaped_ns or dtype is DType.NONE:
        return None
    flops, rated_ns = float(totals.flops[index]), int(totals.rated_ns[index])
    return PartEfficiency(
        flops=flops,
        shaped_time_ns=shaped_ns,
        achieved_flops_per_s=flops * NS_PER_S / shaped_ns,
        dtype=dtype.label,
        utilization=float(totals.theoretical_ns[index]) / rated_ns if rated_ns else None,
        overhead_utilization=known_or_none(totals.utilization[index]),
        overhead_overlap=known_or_none(totals.overlap[index]),
        overhead_frequency=known_or_none(totals.frequency[index]),
    )


def types_of(type_ns: Int64s, kernel_ns: int) -> dict[str, float] | None:
    """Return the share of each type that matrix kernels multiply, largest first; None without any.

    `type_ns` is (types,) int64, by `DType`; `kernel_ns` the time of all compute kernels.
    """
    order = np.argsort(-type_ns, kind="stable")
    order = order[type_ns[order] > 0]
    return {DType(each).label: int(type_ns[each]) / kernel_ns for each in order.tolist()} or None

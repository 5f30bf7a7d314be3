"""Fill a row's efficiency: of all its matrix kernels, of a part of the work, and types of numbers.

All come from the columns of a joined device.
"""

import math
from dataclasses import replace
from typing import Final

import numpy as np

from chopperd.correlate.efficiency import EfficiencyTotals
from chopperd.model.answers import PartEfficiency
from chopperd.model.arrays import Int64s
from chopperd.model.devices import GpuSpec, Peak, peak_of
from chopperd.model.kinds import DType
from chopperd.model.report_rows import Efficiency
from chopperd.report.build.clocks import known_or_none
from chopperd.units import NS_PER_S

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

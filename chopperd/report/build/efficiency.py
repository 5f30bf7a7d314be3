"""The efficiency of a row, from the columns of a device; what is missing has a reason."""

import math
from dataclasses import replace
from typing import Final

from chopperd.correlate.efficiency import EfficiencyTotals
from chopperd.model.row_work import Efficiency
from chopperd.model.spec import DType, GpuSpec, Peak, peak_of
from chopperd.report.build.clocks import known_or_none
from chopperd.units import NS_PER_S

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

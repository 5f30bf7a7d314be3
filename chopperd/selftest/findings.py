"""Computes a self-test's findings from the load's messages and the samples; formats them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from chopperd.correlate.clock.lag import LagEstimate, measure_lag
from chopperd.model.arrays import Float64s, Int64s
from chopperd.model.devices import GpuInfo
from chopperd.model.kinds import REPORTED_CAUSES
from chopperd.model.safe_text import visible
from chopperd.model.samples import GpuSamples, SampleSet
from chopperd.model.timeline import Intervals
from chopperd.selftest.protocol import LoadLog, Phase, Ready
from chopperd.selftest.verdict import Ratio, Verdict, verdict
from chopperd.units import NS_PER_MS, TimeTriple

#: Sensors whose changes are timed, as columns of a `GpuSamples`.
SENSORS: Final = ("sm_clock_mhz", "power_w", "energy_j")
_MIN_CHANGES: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class OperandFigures:
    """Means over one operand's phases; None where nothing was sampled."""

    products_count: int  # number of products timed
    product_ns: float | None  # mean time of a product
    #: Means over the timed part of the phases.
    clock_mhz: float | None
    power_w: float | None
    samples_count: int  # number of samples of the clock
    #: By label, the share of samples in which the driver reported this limit; "unknown" where it
    #: could not be read.
    cause_ratio: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """The findings of a self-test."""

    gpu: GpuInfo  # which GPU was sampled
    ready: Ready  # the load's device, torch, data type and matrix size
    #: Back end that sampled, its driver, whether it is simulated.
    backend: str
    driver: str | None
    simulated: bool
    #: Requested and achieved sampling rate; None where not known.
    asked_hz: float | None
    kept_hz: float | None
    verdict: Verdict  # whether the clock explains the time
    operands: Mapping[str, OperandFigures]  # figures of "zeros" and "random"
    #: How much later than the load's on/off the sensors show it.
    clock_lag: LagEstimate
    power_lag: LagEstimate
    #: By sensor, the median time between two changes of its value as sampled, which can't be less
    #: than the sampling period; None where it changed seldom.
    change_ns: Mapping[str, int | None]


def findings(log: LoadLog, samples: SampleSet, gpu: str) -> Findings:
    """Compute all findings about the GPU of this label."""
    own = next(each for each in samples.gpus if each.gpu.gpu == gpu)
    t_ns = mono_from_unix(own.t_unix_ns, samples.triples)
    return Findings(
        gpu=own.gpu,
        ready=log.ready,
        backend=samples.backend,
        driver=samples.driver,
        simulated=samples.simulated,
        asked_hz=samples.asked_hz,
        kept_hz=1e9 / float(np.median(np.diff(t_ns))) if len(t_ns) > 1 else None,
        verdict=verdict(log.phases, t_ns, own.sm_clock_mhz),
        operands={
            operand: _figures([p for p in log.phases if p.operand == operand], t_ns, own)
            for operand in ("zeros", "random")
        },
        clock_lag=_lag(log, t_ns, own.sm_clock_mhz, "clock"),
        power_lag=_lag(log, t_ns, own.power_w, "power"),
        change_ns={name: _change_ns(t_ns, getattr(own, name)) for name in SENSORS},
    )


def mono_from_unix(t_unix_ns: Int64s, triples: Sequence[TimeTriple]) -> Int64s:
    """Convert Unix times to CLOCK_MONOTONIC, ns, by the triples they were made with."""
    if not len(t_unix_ns):
        return np.zeros(0, np.int64)
    unix_ns = np.array([each.unix_ns for each in triples], np.int64)
    apart_ns = np.array([each.mono_ns - each.unix_ns for each in triples], np.int64)
    base_ns = int(apart_ns[0])
    shift_ns = np.interp(t_unix_ns - unix_ns[0], unix_ns - unix_ns[0], apart_ns - base_ns)
    mono_ns: Int64s = t_unix_ns + base_ns + np.rint(shift_ns).astype(np.int64)
    return mono_ns


def _figures(phases: Sequence[Phase], t_ns: Int64s, own: GpuSamples) -> OperandFigures:
    inside = np.zeros(len(t_ns), bool)
    for phase in phases:
        inside |= (t_ns >= phase.edge_mono_ns[0]) & (t_ns < phase.edge_mono_ns[-1])
    count = sum((len(p.edge_mono_ns) - 1) * p.products_a_batch for p in phases)
    took_ns = sum(p.edge_mono_ns[-1] - p.edge_mono_ns[0] for p in phases)
    return OperandFigures(
        products_count=count,
        product_ns=took_ns / count if count else None,
        clock_mhz=_known_mean(own.sm_clock_mhz[inside]),
        power_w=_known_mean(own.power_w[inside]),
        samples_count=int((~np.isnan(own.sm_clock_mhz[inside])).sum()),
        cause_ratio=_cause_ratios(own.causes[inside]),
    )


def _known_mean(values: Float64s) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None


def _cause_ratios(causes: Int64s) -> dict[str, float]:
    shares = {cause.label: np.mean((causes & cause.bit) != 0) for cause in REPORTED_CAUSES}
    return {label: float(share) for label, share in shares.items() if len(causes) and share > 0}


def _lag(log: LoadLog, t_ns: Int64s, values: Float64s, what: str) -> LagEstimate:
    """Estimate how late a sensor shows load on and off, from the pulses alone."""
    on = Intervals(
        start_ns=np.array(log.pulses.start_mono_ns, np.int64),
        end_ns=np.array(log.pulses.end_mono_ns, np.int64),
    )
    known = ~np.isnan(values)
    if not len(on) or known.sum() < 2:
        return LagEstimate(reason="there are no samples of it while the load went on and off")
    t_known_ns = t_ns[known]
    max_gap_ns = 3 * int(np.median(np.diff(t_known_ns)))
    lag = measure_lag(t_known_ns, values[known], on, max_gap_ns)
    reason = (lag.reason or "").replace("clock", what).replace("in the trace", "in the pulses")
    return replace(lag, reason=reason or None)


def _change_ns(t_ns: Int64s, values: Float64s) -> int | None:
    known = ~np.isnan(values)
    t_known_ns, read = t_ns[known], values[known]
    changed_ns = t_known_ns[1:][np.diff(read) != 0]
    return int(np.median(np.diff(changed_ns))) if len(changed_ns) > _MIN_CHANGES else None


_UNKNOWN: Final = "-"


def encode_findings(found: Findings) -> bytes:
    """Encode the findings as indented JSON; values not known are null."""
    return msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n"


def render_findings(found: Findings) -> Group:
    """Format the findings for a rich console."""
    verdict, ready = found.verdict, found.ready
    mark = ["SIMULATED: the clocks come from a simulation, not from hardware"]
    lines = [
        *(mark if found.simulated else []),
        f"SELF-TEST  {verdict.outcome.upper()}: {verdict.meaning}",
        f"{found.gpu.name} (GPU {found.gpu.gpu}, {found.gpu.uuid}), {found.backend} "
        f"{found.driver or _UNKNOWN}; products {ready.size} x {ready.size} {ready.dtype} on "
        f"{ready.device}, torch {ready.torch}; {_number(found.kept_hz)} of "
        f"{_number(found.asked_hz)} Hz kept",
        "",
        f"time, random over zeros    {_ratio(verdict.time)}",
        f"clock, zeros over random   {_ratio(verdict.clock)}",
        f"cycles, random over zeros  {_ratio(verdict.cycles)}  (1: the clock explains the time)",
        "",
    ]
    gpu = found.gpu
    periods_ns = {
        "clock": gpu.sm_clock_period_ns,
        "power": gpu.power_period_ns,
        "energy": gpu.energy_period_ns,
    }
    after = [
        "",
        f"lag behind the load: clock {_behind(found.clock_lag)}; power {_behind(found.power_lag)}",
        "sensor periods found by the sampler: "
        + ", ".join(f"{name} {_ms(ns, 1, 'not found')}" for name, ns in periods_ns.items()),
        "changes seen every: "
        + ", ".join(
            f"{name} {_ms(ns, 0, 'too seldom to say')}" for name, ns in found.change_ns.items()
        ),
    ]
    return Group(Text("\n".join(map(visible, lines))), _operands(found), Text("\n".join(after)))


def _operands(found: Findings) -> RenderableType:
    table = Table(box=None, pad_edge=False)
    for column in ("operand", "products", "ms each", "MHz", "W", "samples", "limits seen"):
        table.add_column(
            column, justify="left" if column in {"operand", "limits seen"} else "right"
        )
    for name, figures in found.operands.items():
        product_ms = None if figures.product_ns is None else figures.product_ns / NS_PER_MS
        causes = [f"{label} {100 * share:.0f} %" for label, share in figures.cause_ratio.items()]
        table.add_row(
            name,
            str(figures.products_count),
            *map(_number, (product_ms, figures.clock_mhz, figures.power_w)),
            str(figures.samples_count),
            ", ".join(causes) or "none",
        )
    return table


def _number(value: float | None) -> str:
    return _UNKNOWN if value is None else f"{value:.4g}"


def _ratio(ratio: Ratio | None) -> str:
    if ratio is None:
        return _UNKNOWN
    return f"{ratio.value_ratio:.4f} [{ratio.low_ratio:.4f}, {ratio.high_ratio:.4f}]"


def _ms(value_ns: int | None, digits: int, missing: str) -> str:
    return missing if value_ns is None else f"{value_ns / NS_PER_MS:.{digits}f} ms"


def _behind(lag: LagEstimate) -> str:
    if lag.lag_ns is None or lag.low_ns is None or lag.high_ns is None:
        return f"not measurable ({lag.reason})"
    low, middle, high = (each / NS_PER_MS for each in (lag.low_ns, lag.lag_ns, lag.high_ns))
    return f"{middle:.1f} ms [{low:.1f}, {high:.1f}]"


def phase_words(operand: str, round_number: int) -> str:
    """Describe the phase that begins now, for a progress line."""
    if operand == "pulses":
        return "load on and off"
    return f"{operand}, round {round_number + 1}"

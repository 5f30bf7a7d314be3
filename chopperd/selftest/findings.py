"""All that a self-test found, from what the load said and what was sampled meanwhile."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from chopperd.correlate.lag import LagEstimate, measure_lag
from chopperd.model.arrays import Float64s, Int64s
from chopperd.model.causes import REPORTED_CAUSES
from chopperd.model.devices import GpuInfo
from chopperd.model.samples import GpuSamples, SampleSet
from chopperd.model.timebase import TimeTriple
from chopperd.model.timeline import Intervals
from chopperd.selftest.protocol import LoadLog, Phase, Ready
from chopperd.selftest.verdict import Verdict, verdict

#: Sensors whose changes are looked at, as columns of a `GpuSamples`.
SENSORS: Final = ("sm_clock_mhz", "power_w", "energy_j")
_MIN_CHANGES: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class OperandFigures:
    """What one operand's phases show; None where nothing was sampled.

    Attributes:
        products_count: How many were timed.
        product_ns: Mean time of one.
        clock_mhz, power_w: Means over the timed part of the phases.
        samples_count: Samples of the clock that these rest on.
        cause_ratio: By label, the share of samples in which the driver reported this limit;
            "unknown" where it could not be read.
    """

    products_count: int
    product_ns: float | None
    clock_mhz: float | None
    power_w: float | None
    samples_count: int
    cause_ratio: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """A whole self-test.

    Attributes:
        gpu: Which GPU was sampled.
        ready: What computed, and with what.
        backend, driver, simulated: What sampled.
        asked_hz, kept_hz: Rates of sampling; None where there are no samples.
        verdict: Whether the clock explains the time.
        operands: Of "zeros" and "random".
        clock_lag, power_lag: How much later than load on/off they show it.
        change_ns: By sensor, the median time between two changes of its value as sampled, which
            can't be less than the sampling period; None where it changed seldom.
    """

    gpu: GpuInfo
    ready: Ready
    backend: str
    driver: str | None
    simulated: bool
    asked_hz: float | None
    kept_hz: float | None
    verdict: Verdict
    operands: Mapping[str, OperandFigures]
    clock_lag: LagEstimate
    power_lag: LagEstimate
    change_ns: Mapping[str, int | None]


def findings(log: LoadLog, samples: SampleSet, gpu: str) -> Findings:
    """Everything about the GPU of this label."""
    own = next(each for each in samples.gpus if each.gpu.gpu == gpu)
    t_ns = mono_from_unix(own.t_unix_ns, samples.triples)
    return Findings(
        gpu=own.gpu,
        ready=log.ready,
        backend=samples.backend,
        driver=samples.driver,
        simulated=samples.simulated,
        asked_hz=samples.asked_hz,
        kept_hz=_kept_hz(t_ns),
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
    """CLOCK_MONOTONIC of Unix times, by the triples that they were made with."""
    if not len(t_unix_ns):
        return np.zeros(0, np.int64)
    unix_ns = np.array([each.unix_ns for each in triples], np.int64)
    apart_ns = np.array([each.mono_ns - each.unix_ns for each in triples], np.int64)
    base_ns = int(apart_ns[0])
    shift_ns = np.interp(t_unix_ns - unix_ns[0], unix_ns - unix_ns[0], apart_ns - base_ns)
    mono_ns: Int64s = t_unix_ns + base_ns + np.rint(shift_ns).astype(np.int64)
    return mono_ns


def _kept_hz(t_ns: Int64s) -> float | None:
    return 1e9 / float(np.median(np.diff(t_ns))) if len(t_ns) > 1 else None


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
    """How late a sensor shows load on and off, from the pulses alone."""
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

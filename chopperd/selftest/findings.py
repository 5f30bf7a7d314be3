"""Computes a self-test's findings from the load's messages and the samples; formats them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
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
from chopperd.model.samples import GpuSamples, SampleSet
from chopperd.model.timeline import Intervals
from chopperd.safe_text import visible
from chopperd.selftest.protocol import LoadLog, Phase, Ready
from chopperd.units import NS_PER_MS, TimeTriple

BLOCKS_A_PHASE: Final = 5
#: A block with fewer samples has too few for a mean clock: NaN.
MIN_SAMPLES_A_BLOCK: Final = 5
#: A clock is reported in steps of at most this (NVIDIA: 15 MHz): its mean may be off by half.
CLOCK_STEP_MHZ: Final = 15.0
#: Student's t, 97.5 %, by degrees of freedom; the last holds for more.
_T_975: Final = {4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}


class Outcome(StrEnum):
    """Result of the comparison."""

    AGREES = "agrees"
    TRIVIAL = "agrees, but nothing changed"
    DISAGREES = "disagrees"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """A ratio with its 95 % interval."""

    value_ratio: float
    low_ratio: float
    high_ratio: float

    @property
    def holds_one(self) -> bool:
        """Whether the interval contains 1, that is, no difference."""
        return self.low_ratio <= 1 <= self.high_ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The comparison of random data with zeros."""

    outcome: Outcome  # the result
    meaning: str  # the result in words
    time: Ratio | None = None  # time of a product, random data over zeros
    clock: Ratio | None = None  # clock, zeros over random data
    cycles: Ratio | None = None  # time over clock ratio: 1 where the clock explains the time


def verdict(phases: list[Phase], t_mono_ns: Int64s, clock_mhz: Float64s) -> Verdict:
    """Compare the times and clocks of random data with those of zeros.

    Each phase is cut into 5 blocks. Time, clock and their product of a block are taken as
    logarithms, whose means over an operand's blocks are compared by Student's t; the clock's step
    widens what rests on it. The clock, (n,) and NaN where it was not reported, was sampled at
    `t_mono_ns`, (n,) rising.
    """
    (zeros_ns, zeros_mhz), (random_ns, random_mhz) = (
        _blocks(phases, each, t_mono_ns, clock_mhz) for each in ("zeros", "random")
    )
    if min(len(zeros_ns), len(random_ns)) < BLOCKS_A_PHASE:
        return Verdict(outcome=Outcome.UNKNOWN, meaning="the load timed too few products")
    time = _ratio(random_ns, zeros_ns)
    if np.isnan(zeros_mhz).any() or np.isnan(random_mhz).any():
        meaning = "the clock was not sampled in all of the load"
        return Verdict(outcome=Outcome.UNKNOWN, meaning=meaning, time=time)
    step = sum(CLOCK_STEP_MHZ / 2 / each.mean() for each in (zeros_mhz, random_mhz))
    clock = _ratio(zeros_mhz, random_mhz, step)
    cycles = _ratio(random_ns * random_mhz, zeros_ns * zeros_mhz, step)
    outcome = _outcome(time, clock, cycles)
    return Verdict(
        outcome=outcome, meaning=_meaning(outcome, cycles), time=time, clock=clock, cycles=cycles
    )


def _blocks(
    phases: list[Phase], operand: str, t_mono_ns: Int64s, clock_mhz: Float64s
) -> tuple[Float64s, Float64s]:
    """Return time of a product and mean clock (NaN: too few samples) of parts of the phases."""
    product_ns, mean_mhz = [], []
    for phase in phases:
        edges_ns = np.array(phase.edge_mono_ns, np.int64)
        if phase.operand != operand or len(edges_ns) <= BLOCKS_A_PHASE:
            continue
        cuts = np.linspace(0, len(edges_ns) - 1, BLOCKS_A_PHASE + 1).astype(int)
        for first, last in pairwise(cuts.tolist()):
            took_ns = int(edges_ns[last] - edges_ns[first])
            product_ns.append(took_ns / ((last - first) * phase.products_a_batch))
            mean_mhz.append(_mean(t_mono_ns, clock_mhz, int(edges_ns[first]), int(edges_ns[last])))
    return np.array(product_ns), np.array(mean_mhz)


def _mean(t_ns: Int64s, values: Float64s, start_ns: int, end_ns: int) -> float:
    """Mean of the known values in `[start_ns, end_ns)`; NaN if there are too few."""
    inside = values[(t_ns >= start_ns) & (t_ns < end_ns)]
    known = inside[~np.isnan(inside)]
    return float(known.mean()) if len(known) >= MIN_SAMPLES_A_BLOCK else float("nan")


def _ratio(over: Float64s, under: Float64s, step_ratio: float = 0.0) -> Ratio:
    """Compute the ratio of geometric means; `step_ratio` widens its interval on both sides."""
    logs = np.log(over), np.log(under)
    middle = float(logs[0].mean() - logs[1].mean())
    variance = sum(float(each.var(ddof=1)) / len(each) for each in logs)
    freedom = min(min(map(len, logs)) - 1, max(_T_975))
    half = _T_975[freedom] * float(np.sqrt(variance)) + step_ratio
    low, value, high = np.exp([middle - half, middle, middle + half]).tolist()
    return Ratio(value_ratio=value, low_ratio=low, high_ratio=high)


def _outcome(time: Ratio, clock: Ratio, cycles: Ratio) -> Outcome:
    if not cycles.holds_one:
        return Outcome.DISAGREES
    return Outcome.TRIVIAL if time.holds_one and clock.holds_one else Outcome.AGREES


def _meaning(outcome: Outcome, cycles: Ratio) -> str:
    if outcome is Outcome.AGREES:
        return "the sampled clock explains how long the products took"
    if outcome is Outcome.TRIVIAL:
        return (
            "neither clock nor time differ: this GPU does not slow down by this load, "
            "which shows nothing about the clock"
        )
    if cycles.value_ratio > 1:
        return (
            "random data took longer than the sampled clock explains: something else slowed them, "
            "or the clock fell between the samples, or another GPU was sampled"
        )
    return (
        "the sampled clock fell by more than the time rose: the products do not wait for this "
        "clock alone, or it is not the one that they ran at"
    )


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
        f"time, random over zeros    {_shown(verdict.time)}",
        f"clock, zeros over random   {_shown(verdict.clock)}",
        f"cycles, random over zeros  {_shown(verdict.cycles)}  (1: the clock explains the time)",
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


def _shown(ratio: Ratio | None) -> str:
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

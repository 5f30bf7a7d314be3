"""Device memory next to the clock, step by step and over steps; and offload to host memory.

No cause is claimed: figures that move together may both follow something else.

Source: DESIGN.md section 2, "FSDP and memory"; effective counts of correlated series after
Bartlett (1946), blocks after Kuensch (1989).
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopperd.correlate.intervals import difference, intersection, length_ns, lengths_ns, union
from chopperd.correlate.waterfall import busy_masks, step_windows
from chopperd.model.arrays import Float64s
from chopperd.model.kinds import CopyDirection
from chopperd.model.memory import MemoryCorrelation, Offload, RankMemory, StepMemory
from chopperd.model.timeline import DeviceTimeline, Intervals, Phase
from chopperd.model.trace import Trace

#: Fewer independent steps say nothing.
LEAST_STEPS: Final = 50
_RESAMPLES: Final = 500
_CHANCE: Final = 2.0  # standard errors
_FIGURES: Final = ("retries", "segment_ns", "allocator_change", "peak_reserved_bytes")

#: Bytes a step each way under which copies are inputs and losses, not parameters or gradients.
_LEAST_OFFLOADED: Final = 64 << 20
#: Parameters come for each forward pass, about as many bytes as gradients go.
_LEAST_FORWARD: Final = 0.25
_OPTIMIZER: Final = "Optimizer.step#"
_CPU_OPTIMIZER: Final = re.compile(r"cpu_?adam|cpu_?offload|offload_?policy", re.IGNORECASE)


class StepClock(Struct, frozen=True, kw_only=True):
    """Clock, power, idle time and contention of one step's row; None unknown."""

    busy_mean_mhz: float | None = None
    busy_p05_mhz: float | None = None
    busy_std_mhz: float | None = None
    power_w: float | None = None
    idle_allocator_ns: int | None = None
    contention_factor: float | None = None


def beside_clock(memory: RankMemory, clocks: Sequence[StepClock | None]) -> RankMemory:
    """Return the memory with each step's clock, and how the two go together after warm-up.

    `clocks`: one a step of the memory; None for steps without samples.
    """
    steps = tuple(
        step
        if clock is None
        else replace(step, **{name: getattr(clock, name) for name in StepClock.__struct_fields__})
        for step, clock in zip(memory.steps, clocks, strict=True)
    )
    kept = steps[memory.warm_up_steps :]
    return replace(memory, steps=steps, correlations=correlations(kept))


def correlations(steps: Sequence[StepMemory]) -> tuple[MemoryCorrelation, ...]:
    """Return Spearman's correlation of each figure with the steps' mean busy clock.

    Figures that no two steps have are left out. A clock's deviation from its mean has the ranks of
    the clock: a negative correlation says that it is lower where the figure is higher.
    """
    clock = np.array([_number(step.busy_mean_mhz) for step in steps])
    found = []
    for name in _FIGURES:
        figure = np.array([_figure(step, name) for step in steps])
        known = np.isfinite(clock) & np.isfinite(figure)
        if known.sum() > 1:
            found.append(_correlation(name, figure[known], clock[known]))
    return tuple(found)


def _number(value: float | None) -> float:
    return np.nan if value is None else float(value)


def _figure(step: StepMemory, name: str) -> float:
    if name == "allocator_change":
        return 1 - _number(step.determinism_ratio)
    return _number(getattr(step, name))


def _correlation(name: str, figure: Float64s, clock: Float64s) -> MemoryCorrelation:
    ranks = np.stack((_ranks(figure), _ranks(clock)))
    spread = ranks.std(axis=1)
    if not spread.all():
        return MemoryCorrelation(figure=name, rho=None, low=None, high=None, effective_steps=None)  # type: ignore[arg-type]
    count, tau = len(clock), _correlated_steps(ranks)
    rho = low = high = None
    if count / tau >= LEAST_STEPS:
        rho = _pearson(ranks)
        low, high = _interval(ranks, max(round(4 * tau), round(count ** (1 / 3))))
    return MemoryCorrelation(
        figure=name,  # type: ignore[arg-type]
        rho=rho,
        low=low,
        high=high,
        effective_steps=count / tau,
    )


def _ranks(values: Float64s) -> Float64s:
    """Return ranks from 1, the mean of those of equal values: (n,) float64."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    ranks: Float64s = np.cumsum(count) - (count - 1) / 2
    return ranks[place]


def _pearson(values: Float64s) -> float:
    apart = values - values.mean(axis=1, keepdims=True)
    return float(apart[0] @ apart[1] / np.sqrt(np.prod((apart**2).sum(axis=1))))


def _correlated_steps(ranks: Float64s) -> float:
    """Return how many steps weigh as one: 1 + 2 x the sum of products of both autocorrelations.

    Summed up to the first lag at which either is within what independent steps show by chance.

    `ranks`: (2, n), none constant.
    """
    apart = ranks - ranks.mean(axis=1, keepdims=True)
    count = ranks.shape[1]
    power = np.abs(np.fft.rfft(apart, 2 * count, axis=1)) ** 2
    lagged = np.fft.irfft(power, axis=1)[:, :count]
    alike = lagged[:, 1:] / lagged[:, :1]
    ends = np.flatnonzero(alike.min(axis=0) < _CHANCE / np.sqrt(count))
    return 1 + 2 * float(np.prod(alike[:, : ends[0] if len(ends) else None], axis=0).sum())


def _interval(ranks: Float64s, block: int) -> tuple[float, float]:
    """Return the 95 % interval of Spearman's correlation over blocks drawn with replacement.

    Blocks go round the end. `ranks`: (2, n). `block`: steps in each, not all steps.
    """
    count, rng = ranks.shape[1], np.random.default_rng(0)
    found = []
    for _ in range(_RESAMPLES):
        starts = rng.integers(count, size=-(-count // block))
        drawn = (starts[:, None] + np.arange(block)).ravel()[:count] % count
        if (np.ptp(ranks[:, drawn], axis=1) > 0).all():
            found.append(_pearson(ranks[:, drawn]))
    low, high = np.quantile(found, [0.025, 0.975])
    return float(low), float(high)


def traced_offload(device: DeviceTimeline, trace: Trace) -> Offload | None:
    """Return the offload of a device of a trace; None if its copies look like none."""
    sized = (device.step >= 0) & (device.copied_bytes > 0)
    ways = device.copy_direction[sized]
    if not all((ways == way).any() for way in (CopyDirection.H2D, CopyDirection.D2H)):
        return None
    masks = busy_masks(device)
    runs = [masks.compute, masks.comm]
    work = union(
        np.concatenate([each.start_ns for each in runs]),
        np.concatenate([each.end_ns for each in runs]),
    )
    windows = step_windows(device)
    steps = [n for n, name in enumerate(trace.names) if name.startswith(_OPTIMIZER)]
    mine = np.isin(trace.spans.name, steps)
    return offload(
        device,
        work,
        difference(union(windows.start_ns, windows.end_ns), masks.busy),
        union(trace.spans.start_ns[mine], trace.spans.end_ns[mine]),
        trace.names,
    )


def offload(
    device: DeviceTimeline,
    work: Intervals,
    idle: Intervals,
    optimizer: Intervals,
    names: Iterable[str],
) -> Offload | None:
    """Return a device's offload to host memory; None if its copies look like none.

    Gradients go to the host in each step, by the same amount as parameters come. Where these come
    in the forward pass they are kept on the host, else only the optimizer's state is. A copy's
    bytes are hidden by the share of its time in which `work` runs.

    `work`: when compute or communication runs. `idle`: when nothing does. `optimizer`: the host's
    time in `Optimizer.step`. `names`: of the host's spans.
    """
    sized = (device.step >= 0) & (device.copied_bytes > 0)
    steps = len(device.windows)
    moved = {
        way: np.flatnonzero(sized & (device.copy_direction == way))
        for way in (CopyDirection.H2D, CopyDirection.D2H)
    }
    total = {way: int(device.copied_bytes[rows].sum()) for way, rows in moved.items()}
    is_named = any(_CPU_OPTIMIZER.search(name) for name in names)
    least = 0 if is_named else _LEAST_OFFLOADED * steps
    if not steps or min(total.values()) <= least:
        return None
    coming = moved[CopyDirection.H2D]
    forward = coming[device.phase[coming] == Phase.FORWARD]
    is_streamed = device.copied_bytes[forward].sum() >= _LEAST_FORWARD * total[CopyDirection.D2H]
    hidden = {}
    for way, rows in moved.items():
        start_ns, end_ns = device.start_ns[rows], device.end_ns[rows]
        share = lengths_ns(work, start_ns, end_ns) / np.maximum(end_ns - start_ns, 1)
        hidden[way] = round(float((device.copied_bytes[rows] * share).sum()))
    return Offload(
        stage="parameters" if is_streamed else "optimizer",
        hidden_h2d_bytes=hidden[CopyDirection.H2D],
        exposed_h2d_bytes=total[CopyDirection.H2D] - hidden[CopyDirection.H2D],
        hidden_d2h_bytes=hidden[CopyDirection.D2H],
        exposed_d2h_bytes=total[CopyDirection.D2H] - hidden[CopyDirection.D2H],
        cpu_optimizer_ns=length_ns(intersection(idle, optimizer)) // steps
        if len(optimizer)
        else None,
    )

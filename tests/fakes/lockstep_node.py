"""A node of equal GPUs under one job whose ranks meet in collectives, drawn for the assignment.

It shares nothing with `chopperd.simulation`: a step is some pieces of compute, each followed by a
collective that ends for all at once; ranks may pause for data, and one may be slow.
"""

from typing import Final

import numpy as np
from msgspec import Struct

from chopperd.correlate.identity.by_signal import TracedDevice
from chopperd.model.arrays import Float64s, Int64s
from chopperd.model.devices import GpuInfo, Vendor
from chopperd.model.samples import GpuSamples
from chopperd.model.timeline import Intervals

T0_NS: Final = 1_790_000_000_000_000_000
NS: Final = 1_000_000_000
_CELL_S: Final = 0.001
_LEAD_S: Final = 3.0


class Node(Struct, frozen=True, kw_only=True):
    """What is drawn.

    Attributes:
        seed: Of everything.
        ranks: GPUs, each with a rank.
        seconds: Length of the capture.
        step_s: Length of a step without pauses.
        hz: Reads a second, of clock, power and activity alike.
        pause_share: How many of a rank's steps begin with a pause of 20-200 ms for data.
        straggler: Whether one rank computes 3-8 % longer than the others.
        power_window_s: What a power reading averages over; 0 is an instant.
        activity: Whether activity is reported, over a sixth of a second or a second.
        lag_s: How much later sensors show what was.
        slow_hz: Reads a second of power and activity where they are read less often.
    """

    seed: int
    ranks: int = 8
    seconds: float = 20.0
    step_s: float = 1.0
    hz: float = 10.0
    pause_share: float = 0.7
    straggler: bool = True
    power_window_s: float = 1.0
    activity: bool = True
    lag_s: float = 0.0
    slow_hz: float | None = None


class _Rank(Struct):
    """What one rank ran: times in s of compute and of collectives, in turn."""

    compute: list[tuple[float, float]]
    comm: list[tuple[float, float]]
    steps: list[float]


def drawn(node: Node) -> tuple[list[TracedDevice], list[GpuSamples], list[int]]:
    """The traced devices by rank, the samples by GPU, and the GPU of each rank."""
    rng = np.random.default_rng((node.seed, 4711))
    ranks = _played(node, rng)
    order = rng.permutation(node.ranks)
    samples = {
        int(gpu): _sampled(node, ranks[rank], int(gpu), rng) for rank, gpu in enumerate(order)
    }
    traced = [_traced(each) for each in ranks]
    return traced, [samples[gpu] for gpu in range(node.ranks)], order.tolist()


def _played(node: Node, rng: np.random.Generator) -> list[_Rank]:
    pieces = int(rng.integers(3, 12))
    share = rng.uniform(0.6, 0.95)
    compute_s = rng.dirichlet(np.full(pieces, 8.0)) * node.step_s * share
    transfer_s = rng.dirichlet(np.full(pieces, 8.0)) * node.step_s * (1 - share)
    slow = np.ones(node.ranks) * rng.normal(1.0, 0.002, node.ranks)
    if node.straggler:
        slow[rng.integers(node.ranks)] *= rng.uniform(1.03, 1.08)
    ranks = [_Rank([], [], []) for _ in range(node.ranks)]
    free_s = np.full(node.ranks, -_LEAD_S) + rng.normal(0, 0.0005, node.ranks)
    while free_s.min() < node.seconds + 1.0:
        for index, rank in enumerate(ranks):
            rank.steps.append(float(free_s[index]))
            if rng.random() < node.pause_share:
                free_s[index] += rng.uniform(0.02, 0.2)
        for nth in range(pieces):
            begin_s = free_s + rng.exponential(0.0003, node.ranks)
            end_s = begin_s + compute_s[nth] * slow * rng.normal(1.0, 0.003, node.ranks)
            met_s = end_s.max() + transfer_s[nth]
            for index, rank in enumerate(ranks):
                rank.compute.append((float(begin_s[index]), float(end_s[index])))
                rank.comm.append((float(end_s[index]) + 1e-5, met_s))
            free_s = met_s + np.abs(rng.normal(0, 0.0003, node.ranks))
    return ranks


def _traced(rank: _Rank) -> TracedDevice:
    return TracedDevice(
        busy=_intervals([*rank.compute, *rank.comm]),
        compute=_intervals(rank.compute),
        step_start_ns=T0_NS + np.array([round(s * NS) for s in rank.steps if s >= 0], np.int64),
    )


def _intervals(pieces: list[tuple[float, float]]) -> Intervals:
    times = np.array(sorted(each for each in pieces if each[0] >= 0)) * NS
    times_ns: Int64s = T0_NS + np.round(times).astype(np.int64)
    return Intervals(start_ns=times_ns[:, 0], end_ns=times_ns[:, 1])


def _sampled(node: Node, rank: _Rank, gpu: int, rng: np.random.Generator) -> GpuSamples:
    edges_s = np.arange(-_LEAD_S, node.seconds + 1.0, _CELL_S)
    compute, comm = (_covered(each, edges_s) for each in (rank.compute, rank.comm))
    power = rng.uniform(80, 120) + compute * rng.normal(560, 20) + comm * rng.normal(230, 15)
    power = _settled(power, 0.02) * (1 + 0.01 * _wander(rng, len(power), 0.3))
    level = 1980.0 - compute * rng.normal(480, 30) - comm * rng.normal(90, 10)
    clock = _settled(level, 0.008) + 25 * _wander(rng, len(level), 0.3) * compute
    count = round((node.seconds + 2.0) * node.hz)
    t_s = -1.0 + (np.arange(count) + rng.random(count)) / node.hz
    seen_s = t_s - node.lag_s - rng.uniform(0, 0.005)
    power_w = _read(edges_s, power, _updated(seen_s, 0.1, rng), node.power_window_s)
    window_s = float(rng.choice([1 / 6, 1.0]))
    active = _read(
        edges_s, np.clip(compute + comm, 0, 1), _updated(seen_s, window_s, rng), window_s
    )
    clock_mhz = np.round(_read(edges_s, clock, seen_s, 0.0) / 15) * 15
    absent = np.full(count, np.nan)
    slow = np.ones(count, bool)
    if node.slow_hz is not None:
        slow = np.diff(np.floor(t_s * node.slow_hz), prepend=-np.inf) > 0
    power_w = np.where(slow, power_w * (1 + rng.normal(0, 0.01, count)), np.nan)
    activity = np.where(slow, np.clip(np.round(active, 2), 0, 1), np.nan)
    return GpuSamples(
        gpu=GpuInfo(
            gpu=str(gpu),
            index=gpu,
            uuid=f"GPU-{gpu}",
            name="NVIDIA H100 80GB HBM3",
            vendor=Vendor.NVIDIA,
            sm_clock_max_mhz=1980.0,
        ),
        t_unix_ns=T0_NS + np.round(t_s * NS).astype(np.int64),
        sm_clock_mhz=clock_mhz,
        read_span_ns=np.full(count, 300_000, np.int64),
        causes=np.zeros(count, np.int64),
        mem_clock_mhz=absent,
        power_w=power_w,
        energy_j=absent,
        temperature_c=absent,
        memory_used_bytes=absent,
        activity_ratio=activity if node.activity else absent,
    )


def _covered(pieces: list[tuple[float, float]], edges_s: Float64s) -> Float64s:
    """The share of each cell that lies in the pieces."""
    starts, ends = np.array(pieces).T
    whole = np.concatenate(([0.0], np.cumsum(ends - starts)))
    at = np.searchsorted(starts, edges_s, side="right")
    last = np.maximum(at - 1, 0)
    part = np.where(at > 0, np.minimum(edges_s, ends[last]) - starts[last], 0.0)
    before: Float64s = np.where(at > 0, whole[last] + part, 0.0)
    return np.diff(before, append=before[-1:]) / _CELL_S


def _settled(level: Float64s, constant_s: float) -> Float64s:
    """First-order settling towards a level, by the impulse response of ten time constants."""
    response = np.exp(-np.arange(0, 10 * constant_s, _CELL_S) / constant_s)
    padded = np.concatenate((np.full(len(response), level[0]), level))
    settled: Float64s = np.convolve(padded, response / response.sum())
    return settled[len(response) : len(padded)]


def _wander(rng: np.random.Generator, count: int, constant_s: float) -> Float64s:
    """A slow noise of deviation 1."""
    every = max(1, round(constant_s / 4 / _CELL_S))
    knots = rng.normal(0, 1, count // every + 3)
    smooth = np.convolve(knots, [0.25, 0.5, 0.25], mode="same")
    noise: Float64s = np.interp(np.arange(count), np.arange(len(knots)) * every, smooth) / 0.6
    return noise


def _updated(t_s: Float64s, period_s: float, rng: np.random.Generator) -> Float64s:
    phase_s = rng.uniform(0, period_s)
    updated: Float64s = np.floor((t_s - phase_s) / period_s) * period_s + phase_s
    return updated


def _read(edges_s: Float64s, value: Float64s, t_s: Float64s, window_s: float) -> Float64s:
    """The mean over a window that ends at each time, or the value at it."""
    if not window_s:
        return value[np.clip(np.searchsorted(edges_s, t_s, side="right") - 1, 0, len(value) - 1)]
    whole = np.concatenate(([0.0], np.cumsum(value))) * _CELL_S
    edges = np.append(edges_s, edges_s[-1] + _CELL_S)
    return (np.interp(t_s, edges, whole) - np.interp(t_s - window_s, edges, whole)) / window_s

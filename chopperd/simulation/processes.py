"""Seeded random processes in time: what clocks, phases and sampling ticks are drawn from."""

import math

import numpy as np

from chopperd.model.arrays import Float64s, Int64s

_MAX_GROWTH = 8.0


def generator(*key: int) -> np.random.Generator:
    """A random stream of its own for each key; equal keys give equal streams."""
    return np.random.Generator(np.random.PCG64(list(key)))


def exponential_filter(drive: Float64s, decay: float, initial: float) -> Float64s:
    """y[i] = decay·y[i-1] + drive[i] with y[-1] = `initial`, (n,).

    Done in blocks short enough that dividing by powers of `decay` keeps its precision.
    """
    length = max(1, int(_MAX_GROWTH / -math.log(decay)))
    blocks = -(-len(drive) // length)
    padded = np.zeros(blocks * length)
    padded[: len(drive)] = drive
    powers = decay ** np.arange(length)
    partial = np.cumsum(padded.reshape(blocks, length) / powers, axis=1) * powers
    carry = np.empty(blocks)
    previous = initial
    for block, last in enumerate(partial[:, -1].tolist()):
        carry[block] = previous
        previous = last + previous * decay**length
    filtered: Float64s = partial + carry[:, None] * powers * decay
    return filtered.reshape(-1)[: len(drive)]


def wander(
    rng: np.random.Generator, *, count: int, cell_ns: int, deviation: float, correlation_ns: float
) -> Float64s:
    """A stationary Gaussian process of mean 0 with exponential correlation, (count,)."""
    decay = math.exp(-cell_ns / correlation_ns)
    noise = rng.normal(0.0, deviation * math.sqrt(1 - decay * decay), count)
    return exponential_filter(noise, decay, rng.normal(0.0, deviation))


def relaxation(target: Float64s, *, cell_ns: int, constant_ns: float) -> Float64s:
    """A value that follows `target` with a first-order time constant, from target[0] on, (n,)."""
    decay = math.exp(-cell_ns / constant_ns)
    return exponential_filter((1 - decay) * target, decay, float(target[0]))


def dwell_edges(rng: np.random.Generator, span_ns: int, low_ns: int, high_ns: int) -> Int64s:
    """Edges of consecutive dwells, uniform in `[low_ns, high_ns)`, from 0 to past `span_ns`."""
    dwells = rng.integers(low_ns, high_ns, size=span_ns // low_ns + 1)
    edges = np.concatenate(([0], np.cumsum(dwells)))
    return edges[: int(np.searchsorted(edges, span_ns)) + 1].astype(np.int64)


def stratified_ticks(rng: np.random.Generator, span_ns: int, hz: float) -> Int64s:
    """Sampling instants from 0 on: one in each period, at random in the whole of it, (n,) ns."""
    period_ns = 1e9 / hz
    count = int(span_ns / period_ns)
    return ((np.arange(count) + rng.random(count)) * period_ns).astype(np.int64)

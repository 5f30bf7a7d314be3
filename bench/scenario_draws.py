"""What scenarios of known truth are drawn from: steps of a GPU's work, and random processes."""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from chopperd.model.arrays import Float64s, Int8s, Int32s, Int64s
from chopperd.model.kinds import KernelClass
from chopperd.model.timeline import Intervals
from chopperd.units import NS_PER_S

_MAX_GROWTH: Final = 8.0
COMPUTE_STREAM: Final = 7
COPY_STREAM: Final = 11
COMM_STREAM: Final = 20

_STEP_JITTER: Final = 0.01
_CHUNK_S: Final = 0.25
_MIN_CHUNKS: Final = 4
_KERNEL_NS: Final = 3_000_000
_COPY_NS: Final = 300_000
_PATTERN: Final = np.array(
    [KernelClass.GEMM, KernelClass.ATTENTION, KernelClass.GEMM, KernelClass.ELEMENTWISE], np.int8
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """Device records, sorted by (start_ns, end_ns), one row each.

    Attributes:
        start_ns, end_ns: (n,) int64.
        kernel_class: (n,) int8, `KernelClass`.
        stream: (n,) int64.
        step: (n,) int32, the step that launched the record, from 0.
    """

    start_ns: Int64s
    end_ns: Int64s
    kernel_class: Int8s
    stream: Int64s
    step: Int32s

    def __len__(self) -> int:
        """The number of records."""
        return len(self.start_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunks:
    """Stretches of one kind of work each: kernels, then communication alone, then nothing.

    Attributes:
        start_ns, compute_end_ns, comm_end_ns, end_ns: (n,) int64, in this order in each chunk;
            consecutive chunks abut.
        step: (n,) int32.
    """

    start_ns: Int64s
    compute_end_ns: Int64s
    comm_end_ns: Int64s
    end_ns: Int64s
    step: Int32s

    def __len__(self) -> int:
        """The number of chunks."""
        return len(self.start_ns)

    @property
    def compute(self) -> Intervals:
        """When kernels of computation run, but for microseconds between them."""
        return Intervals(start_ns=self.start_ns, end_ns=self.compute_end_ns)


def draw_chunks(rng: np.random.Generator, *, start_ns: int, step_s: float, steps: int) -> Chunks:
    """The chunks of `steps` steps, each `step_s` long within about 1 %."""
    per_step = max(_MIN_CHUNKS, round(step_s / _CHUNK_S))
    step_ns = step_s * NS_PER_S * rng.normal(1.0, _STEP_JITTER, steps)
    weight = rng.uniform(0.9, 1.1, (steps, per_step))
    length = (weight / weight.sum(axis=1, keepdims=True) * step_ns[:, None]).reshape(-1)
    edges = start_ns + np.concatenate(([0], np.cumsum(length))).astype(np.int64)
    length = np.diff(edges).astype(np.float64)
    compute_end = edges[:-1] + (length * rng.uniform(0.76, 0.84, len(length))).astype(np.int64)
    return Chunks(
        start_ns=edges[:-1],
        compute_end_ns=compute_end,
        comm_end_ns=edges[1:] - (length * rng.uniform(0.02, 0.04, len(length))).astype(np.int64),
        end_ns=edges[1:],
        step=np.repeat(np.arange(steps, dtype=np.int32), per_step),
    )


def draw_records(rng: np.random.Generator, chunks: Chunks) -> Records:
    """Kernels of a few ms with gaps of microseconds, collectives under and after them, copies."""
    parts = [
        _compute(rng, chunks),
        _overlapped(rng, chunks),
        _exposed(rng, chunks),
        _copies(chunks),
    ]
    start = np.concatenate([part.start_ns for part in parts])
    end = np.concatenate([part.end_ns for part in parts])
    order = np.lexsort((end, start))
    return Records(
        start_ns=start[order],
        end_ns=end[order],
        kernel_class=np.concatenate([part.kernel_class for part in parts])[order],
        stream=np.concatenate([part.stream for part in parts])[order],
        step=np.concatenate([part.step for part in parts])[order],
    )


def _compute(rng: np.random.Generator, chunks: Chunks) -> Records:
    """Each chunk's kernels; the first starts with the chunk."""
    span = (chunks.compute_end_ns - chunks.start_ns).astype(np.float64)
    count = max(1, round(float(span.mean()) / _KERNEL_NS))
    weight = rng.uniform(0.4, 1.6, (len(chunks), count))
    offset = np.cumsum(weight, axis=1) / weight.sum(axis=1, keepdims=True) * span[:, None]
    end = chunks.start_ns[:, None] + offset.astype(np.int64)
    start = np.concatenate((chunks.start_ns[:, None], end[:, :-1]), axis=1)
    gap = rng.integers(2_000, 20_000, end.shape)
    return Records(
        start_ns=start.reshape(-1),
        end_ns=(end - gap).reshape(-1),
        kernel_class=np.tile(np.resize(_PATTERN, count), len(chunks)),
        stream=np.full(end.size, COMPUTE_STREAM, np.int64),
        step=np.repeat(chunks.step, count),
    )


def _overlapped(rng: np.random.Generator, chunks: Chunks) -> Records:
    """One collective a chunk that computation hides."""
    span = chunks.compute_end_ns - chunks.start_ns
    start = chunks.start_ns + (span * rng.uniform(0.1, 0.3, len(chunks))).astype(np.int64)
    end = chunks.start_ns + (span * rng.uniform(0.5, 0.8, len(chunks))).astype(np.int64)
    return _uniform(start, end, chunks.step, KernelClass.COMM, COMM_STREAM)


def _exposed(rng: np.random.Generator, chunks: Chunks) -> Records:
    """One collective a chunk that begins under computation and outlasts it."""
    span = chunks.compute_end_ns - chunks.start_ns
    lead = (span * rng.uniform(0.02, 0.08, len(chunks))).astype(np.int64)
    start = chunks.compute_end_ns - lead
    return _uniform(start, chunks.comm_end_ns, chunks.step, KernelClass.COMM, COMM_STREAM)


def _copies(chunks: Chunks) -> Records:
    """The copy of each step's batch, early in its first chunk."""
    first = np.flatnonzero(np.diff(chunks.step, prepend=np.int32(-1)))
    start = chunks.start_ns[first] + _COPY_NS
    return _uniform(start, start + _COPY_NS, chunks.step[first], KernelClass.MEMCPY, COPY_STREAM)


def _uniform(
    start: Int64s, end: Int64s, step: Int32s, kernel_class: KernelClass, stream: int
) -> Records:
    return Records(
        start_ns=start,
        end_ns=end,
        kernel_class=np.full(len(start), kernel_class, np.int8),
        stream=np.full(len(start), stream, np.int64),
        step=step,
    )


# Random processes.


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

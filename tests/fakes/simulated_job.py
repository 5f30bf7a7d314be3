"""A simulated job taken down without real time: traces, samples by a scripted clock, the truth."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from bench.truth import RankTruth, rank_truth
from chopperd.cli.demo import simulated_traces
from chopperd.model.arrays import Float64s
from chopperd.model.devices import DeviceReading
from chopperd.model.kinds import CAUSES, Cause
from chopperd.model.samples import GpuSamples, SampleSet
from chopperd.sampling.memory.layout import SCOPES
from chopperd.sampling.schedule import period_ns_of, staggered_schedule
from chopperd.simulation.node import SimulatedNode
from chopperd.simulation.presets import SimulationSpec
from chopperd.units import NS_PER_S

START_UNIX_NS: Final = 1_790_000_000 * NS_PER_S
#: Each scripted driver call takes so long; the node is read in its middle.
READ_SPAN_NS: Final = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedJob:
    """What a node's job left behind, and what is true of it.

    Attributes:
        node: The node.
        paths: Its traces, one a rank.
        samples: Of all GPUs.
        first_step, last_step: The steps in the traces.
    """

    node: SimulatedNode
    paths: tuple[Path, ...]
    samples: SampleSet
    first_step: int
    last_step: int

    def truth(self, rank: int) -> RankTruth:
        """The exact figures of a rank's steps."""
        return rank_truth(self.node, rank, self.first_step, self.last_step)


def play(
    preset: str,
    folder: Path,
    *,
    seconds: float,
    warm_s: float = 0.0,
    hz: float = 100.0,
    seed: int = 0,
    ranks: Sequence[int] | None = None,
) -> SimulatedJob:
    """A job from `warm_s` after the node's start on, sampled as the sampler would.

    Args:
        preset: Which node.
        folder: Where to write the traces.
        seconds: How long it is traced.
        warm_s: How long the node has been running before.
        hz: Rate of the samples.
        seed: Seed of the node.
        ranks: The ranks that are traced, on whose GPUs samples are taken; None: all.
    """
    spec = SimulationSpec(seed=seed, preset=preset, start_unix_ns=START_UNIX_NS)
    node = SimulatedNode(spec)
    begin_ns = START_UNIX_NS + round(warm_s * NS_PER_S)
    end_ns = begin_ns + round(seconds * NS_PER_S)
    paths, taken = [], range(len(node.gpus)) if ranks is None else ranks
    for rank, (name, content) in enumerate(simulated_traces(node, begin_ns, end_ns)):
        if rank not in taken:
            continue
        paths.append(folder / name)
        paths[-1].write_bytes(b"".join(content))
    first, last = node.step_at(begin_ns) + 1, node.step_at(end_ns) - 1
    return SimulatedJob(
        node=node,
        paths=tuple(paths),
        samples=_samples(node, taken, begin_ns, end_ns, hz),
        first_step=first,
        last_step=last,
    )


def _samples(
    node: SimulatedNode, indices: Sequence[int], begin_ns: int, end_ns: int, hz: float
) -> SampleSet:
    """One second before to one second after, so that every window is covered."""
    taken = tuple(
        sampled(node, index, max(begin_ns - NS_PER_S, START_UNIX_NS), end_ns + NS_PER_S, hz)
        for index in indices
    )
    return SampleSet(gpus=taken, asked_hz=hz, simulated=True, backend="simulated", source="test")


def sampled(node: SimulatedNode, index: int, start_ns: int, end_ns: int, hz: float) -> GpuSamples:
    """One GPU as the sampler would have read it."""
    schedule = staggered_schedule(
        start_mono_ns=start_ns,
        period_ns=period_ns_of(hz),
        slow_period_ns=NS_PER_S,
        seed=1,
        position=index,
        device_count=len(node.gpus),
    )
    periods = np.arange((end_ns - start_ns) // schedule.period_ns)
    t_ns = schedule.deadlines_mono_ns(periods)
    readings = [
        node.reading(index, t, SCOPES[full])
        for t, full in zip(t_ns.tolist(), schedule.are_full(periods).tolist(), strict=True)
    ]
    return GpuSamples(
        gpu=node.gpus[index],
        t_unix_ns=t_ns,
        read_span_ns=np.full(len(t_ns), READ_SPAN_NS, np.int64),
        causes=np.array([_bits(reading) for reading in readings], np.int64),
        limited_ns={
            cause: np.array([float(reading.limited_ns[cause]) for reading in readings])
            for cause in CAUSES
            if cause in readings[0].limited_ns
        },
        sm_clock_mhz=_column(readings, "sm_clock_mhz"),
        mem_clock_mhz=_column(readings, "mem_clock_mhz"),
        power_w=_column(readings, "power_w"),
        energy_j=_column(readings, "energy_j"),
        temperature_c=_column(readings, "temperature_c"),
        memory_used_bytes=_column(readings, "memory_used_bytes"),
        activity_ratio=_column(readings, "activity_ratio"),
        die_clocks_mhz=_dies(readings),
    )


def _bits(reading: DeviceReading) -> int:
    if reading.causes is None:
        return Cause.UNKNOWN.bit
    return sum(cause.bit for cause in reading.causes)


def _column(readings: Sequence[DeviceReading], name: str) -> Float64s:
    return np.array([getattr(reading, name) for reading in readings], np.float64)


def _dies(readings: Sequence[DeviceReading]) -> Float64s | None:
    """The clocks of the dies, NaN for None; None without dies."""
    dies = np.array([reading.die_clocks_mhz for reading in readings], np.float64)
    return dies if dies.size else None

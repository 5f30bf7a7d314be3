"""What the API answers: the published shapes beside those of `model`, and how they are filled.

Names of jobs, kernels and files stand in none of those about the node and its GPUs.
"""

import math
from collections.abc import Mapping

import msgspec

from chopperd.model.captures import DeviceKernels, JobEntry, TraceEntry, TraceState
from chopperd.model.causes import Cause
from chopperd.model.devices import DeviceReading, GpuInfo, GpuProcess, SensorTiming
from chopperd.model.drops import GpuDrop
from chopperd.model.live import (
    AnalysisLive,
    ArchiveLive,
    DiesLive,
    GpuLive,
    HungCall,
    LiveTotals,
    NodeSnapshot,
    Pause,
    ProcessLive,
    SamplerLive,
    SelfTestLive,
    StoreLive,
)
from chopperd.model.report import Row
from chopperd.units import NS_PER_S


class Backend(msgspec.Struct, frozen=True, kw_only=True):
    """What the GPUs are read through; `chosen` is why, where it was not named."""

    name: str | None
    up: bool
    driver: str | None
    simulated: bool
    chosen: str | None = None


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The agent and its node now.

    `snapshot_age_s` is how old all of it is; `trouble` is why the agent itself is not well.
    `invalid_readings` counts values that no GPU can have, which were left out.
    """

    version: str
    node: str
    started_unix_ns: int
    snapshot_unix_ns: int
    snapshot_age_s: float
    trouble: str | None
    backend: Backend
    gpus: int
    gpus_up: int
    invalid_readings: int = 0
    sampler: SamplerLive
    pause: Pause | None
    archive: ArchiveLive
    store: StoreLive
    analysis: AnalysisLive
    processes: Mapping[str, ProcessLive]
    self_test: SelfTestLive = SelfTestLive()


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """The newest values; null is "not reported, or not fresh".

    `causes` are the limits in force: empty where there is none, null where they can't be read.
    `power_limit_w` is that of the start where the driver does not tell it again.
    """

    sm_clock_mhz: float | None
    mem_clock_mhz: float | None
    power_w: float | None
    energy_j: float | None
    temperature_c: float | None
    memory_used_bytes: int | None
    activity_ratio: float | None
    causes: tuple[str, ...] | None
    power_average_w: float | None = None
    temperature_memory_c: float | None = None
    memory_reserved_bytes: int | None = None
    power_limit_w: float | None = None


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """Integrals that only grow; mean clock over any window is the ratio of two differences."""

    sm_cycles: float | None
    sampled_s: float | None
    busy_s: float | None
    busy_sm_cycles: float | None
    busy_sampled_s: float | None
    energy_j: float | None
    limited_s: Mapping[str, float]
    lost_live_s: Mapping[str, float]


class ResidencyBucket(msgspec.Struct, frozen=True, kw_only=True):
    """Sampled time at clocks up to an edge and above the one before; null: no upper edge."""

    up_to_mhz: float | None
    time_s: float


class GpuSampling(msgspec.Struct, frozen=True, kw_only=True):
    """How the sampling of a GPU goes; `kept_hz` is null while it does not answer.

    `invalid` counts values that no GPU can have, which were left out.
    """

    asked_hz: float | None
    kept_hz: float | None
    pace: str = "asked"
    ticks: int
    missed: int
    failed: int
    lost: int
    invalid: int = 0
    driver_s: float
    hung: HungCall | None


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU now; `excess_live_ratio` is of the last whole window of 10 s, an upper figure.

    `timing` is what was found of its sensors, by the name of their values in `reading`.
    `processes` is null where it is not known who is on it; `trouble` is what the driver knows to be
    wrong with it. `dies` is null where the GPU does not tell the clocks of several dies.
    """

    gpu: str
    up: bool
    last_sample_unix_ns: int | None
    info: GpuInfo
    reading: Reading
    totals: Totals | None
    excess_live_s: float | None
    excess_live_ratio: float | None = None
    residency: tuple[ResidencyBucket, ...]
    sampling: GpuSampling
    timing: Mapping[str, SensorTiming] = {}
    processes: tuple[GpuProcess, ...] | None = None
    trouble: str | None = None
    dies: DiesLive | None = None


class Gpus(msgspec.Struct, frozen=True, kw_only=True):
    """All GPUs of the node, at one instant."""

    snapshot_unix_ns: int
    simulated: bool
    gpus: tuple[Gpu, ...]


class Band(msgspec.Struct, frozen=True, kw_only=True):
    """A value over each bin: its time-weighted mean, and its extremes; null where unknown."""

    mean: list[float | None]
    min: list[float | None]
    max: list[float | None]


class GpuHistory(msgspec.Struct, frozen=True, kw_only=True):
    """Samples of one GPU over a time, by bin or each for itself.

    Attributes:
        bin_ns: Length of a bin; null where each point is a sample.
        samples: Samples that lie in the time.
        t_unix_ns: Start of each bin, or time of each sample.
        values: By name; values that were never reported are missing.
        energy_j: The driver's counter after the last sample in each bin.
        causes: Share of a bin's samples with each limit in force.
    """

    gpu: str
    simulated: bool
    from_unix_ns: int
    to_unix_ns: int
    bin_ns: float | None
    samples: int
    t_unix_ns: list[int]
    values: dict[str, Band]
    energy_j: list[float | None]
    causes: dict[str, list[float | None]]


class Drops(msgspec.Struct, frozen=True, kw_only=True):
    """Drops of GPUs' busy clocks, newest first."""

    drops: tuple[GpuDrop, ...]


class Jobs(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs that traces came from, newest first."""

    jobs: tuple[JobEntry, ...]


class Steps(msgspec.Struct, frozen=True, kw_only=True):
    """Step rows, newest first; `cursor` leads to more."""

    steps: tuple[Row, ...]
    cursor: str | None


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One step on all devices that took part."""

    step: int
    job: str | None
    run: str | None
    rows: tuple[Row, ...]


class StepKernels(msgspec.Struct, frozen=True, kw_only=True):
    """Kernels of the capture that a step lies in, by device."""

    step: int
    by: str
    devices: tuple[DeviceKernels, ...]


class Traces(msgspec.Struct, frozen=True, kw_only=True):
    """Traces that were taken in, newest first."""

    traces: tuple[TraceEntry, ...]


class TraceTaken(msgspec.Struct, frozen=True, kw_only=True):
    """A trace that was handed in."""

    id: str
    state: TraceState


class PauseState(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the agent is paused, why, and until when."""

    paused: bool
    reason: str | None = None
    until_unix_ns: int | None = None


class Well(msgspec.Struct, frozen=True, kw_only=True):
    """All is well."""

    status: str = "ok"


class GpuBrief(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU in an event of the stream."""

    gpu: str
    up: bool
    last_sample_unix_ns: int | None
    reading: Reading


class SnapshotEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The node in an event of the stream."""

    snapshot_unix_ns: int
    backend_up: bool
    simulated: bool
    sampler: SamplerLive
    paused: bool
    gpus: tuple[GpuBrief, ...]


def status_of(snapshot: NodeSnapshot, *, age_ns: int, trouble: str | None) -> Status:
    """The agent and its node, from a snapshot of a certain age."""
    return Status(
        version=snapshot.version,
        node=snapshot.node,
        started_unix_ns=snapshot.started_unix_ns,
        snapshot_unix_ns=snapshot.taken_unix_ns,
        snapshot_age_s=age_ns / NS_PER_S,
        trouble=trouble,
        backend=Backend(
            name=snapshot.backend,
            up=snapshot.backend_up,
            driver=snapshot.driver,
            simulated=snapshot.simulated,
            chosen=snapshot.chosen,
        ),
        gpus=len(snapshot.gpus),
        gpus_up=sum(each.up for each in snapshot.gpus),
        invalid_readings=sum(each.invalid_count for each in snapshot.gpus),
        sampler=snapshot.sampler,
        pause=snapshot.pause,
        archive=snapshot.archive,
        store=snapshot.store,
        analysis=snapshot.analysis,
        processes=snapshot.processes,
        self_test=snapshot.self_test,
    )


def gpu_of(live: GpuLive) -> Gpu:
    """One GPU, from a snapshot."""
    return Gpu(
        gpu=live.info.gpu,
        up=live.up,
        last_sample_unix_ns=live.last_sample_unix_ns,
        info=live.info,
        reading=reading_of(live.reading),
        totals=_totals_of(live.totals) if live.totals is not None else None,
        excess_live_s=live.excess_s,
        excess_live_ratio=live.excess_ratio,
        residency=tuple(
            ResidencyBucket(up_to_mhz=edge if math.isfinite(edge) else None, time_s=time_s)
            for edge, time_s in sorted(live.residency_s.items())
        ),
        sampling=GpuSampling(
            asked_hz=live.asked_hz,
            kept_hz=live.kept_hz,
            pace=live.pace,
            ticks=live.ticks_count,
            missed=live.missed_count,
            failed=live.failed_count,
            lost=live.lost_count,
            invalid=live.invalid_count,
            driver_s=live.driver_s,
            hung=live.hung,
        ),
        timing=live.timing,
        processes=live.processes,
        trouble=live.trouble,
        dies=live.dies,
    )


def reading_of(reading: DeviceReading) -> Reading:
    """The newest values of a GPU."""
    causes = reading.causes
    return Reading(
        sm_clock_mhz=reading.sm_clock_mhz,
        mem_clock_mhz=reading.mem_clock_mhz,
        power_w=reading.power_w,
        energy_j=reading.energy_j,
        temperature_c=reading.temperature_c,
        memory_used_bytes=reading.memory_used_bytes,
        activity_ratio=reading.activity_ratio,
        causes=tuple(each.label for each in sorted(causes)) if causes is not None else None,
        power_average_w=reading.power_average_w,
        temperature_memory_c=reading.temperature_memory_c,
        memory_reserved_bytes=reading.memory_reserved_bytes,
        power_limit_w=reading.power_limit_w,
    )


def event_of(snapshot: NodeSnapshot) -> SnapshotEvent:
    """A snapshot in brief."""
    return SnapshotEvent(
        snapshot_unix_ns=snapshot.taken_unix_ns,
        backend_up=snapshot.backend_up,
        simulated=snapshot.simulated,
        sampler=snapshot.sampler,
        paused=snapshot.pause is not None,
        gpus=tuple(
            GpuBrief(
                gpu=each.info.gpu,
                up=each.up,
                last_sample_unix_ns=each.last_sample_unix_ns,
                reading=reading_of(each.reading),
            )
            for each in snapshot.gpus
        ),
    )


def _totals_of(totals: LiveTotals) -> Totals:
    return Totals(
        sm_cycles=totals.sm_cycles,
        sampled_s=totals.sampled_s,
        busy_s=totals.busy_s,
        busy_sm_cycles=totals.busy_sm_cycles,
        busy_sampled_s=totals.busy_sampled_s,
        energy_j=totals.energy_j,
        limited_s=_by_label(totals.limited_s),
        lost_live_s=_by_label(totals.lost_s),
    )


def _by_label(values: Mapping[Cause, float]) -> dict[str, float]:
    return {cause.label: value for cause, value in values.items()}

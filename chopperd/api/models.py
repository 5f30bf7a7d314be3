"""The published types of the API's answers, made from those of `model` and converted back.

Fields have their names in `model`; `field(name=...)` is the published one where it differs. Types
about the node and its GPUs contain no names of jobs, kernels and files.
"""

import math
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, TypeVar

import msgspec
from msgspec import field

from chopperd.model import live
from chopperd.model.answers import Finding
from chopperd.model.captures import DeviceKernels, GpuDrop, JobEntry, TraceEntry, TraceState
from chopperd.model.devices import DeviceReading, GpuInfo, GpuProcess, SensorTiming
from chopperd.model.kinds import CAUSE_BY_LABEL, Cause
from chopperd.model.memory import RankMemory
from chopperd.model.report_rows import Row
from chopperd.units import NS_PER_S

T = TypeVar("T")


class Backend(msgspec.Struct, frozen=True, kw_only=True):
    """The back end that reads the GPUs; `chosen` is why, if it was selected automatically."""

    backend: str | None = field(name="name")
    backend_up: bool = field(name="up")
    driver: str | None
    simulated: bool
    chosen: str | None = None


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The agent and its node now.

    `snapshot_age_s` is the age of all values; `trouble` is why the agent itself is not healthy.
    `invalid_readings` counts impossible values, which were discarded.
    """

    version: str
    node: str
    started_unix_ns: int
    taken_unix_ns: int = field(name="snapshot_unix_ns")
    snapshot_age_s: float
    trouble: str | None
    backend: Backend
    gpus: int
    gpus_up: int
    invalid_readings: int = 0
    sampler: live.SamplerLive
    pause: live.Pause | None
    archive: live.ArchiveLive
    store: live.StoreLive
    analysis: live.AnalysisLive
    processes: Mapping[str, live.ProcessLive]
    self_test: live.SelfTestLive = live.SelfTestLive()


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """The newest values; null is "not reported, or not fresh".

    `causes` are the limits in force: empty without any, null if they can't be read.
    `power_limit_w` is the value at the start if the driver reports it only once.
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
    """Integrals that never fall; the mean clock over a window is the ratio of two differences."""

    sm_cycles: float | None
    sampled_s: float | None
    busy_s: float | None
    busy_sm_cycles: float | None
    busy_sampled_s: float | None
    energy_j: float | None
    limited_s: Mapping[str, float]
    lost_s: Mapping[str, float] = field(name="lost_live_s")


class ResidencyBucket(msgspec.Struct, frozen=True, kw_only=True):
    """Sampled time at clocks up to this edge and above the previous one; null: no upper edge."""

    up_to_mhz: float | None
    time_s: float


class GpuSampling(msgspec.Struct, frozen=True, kw_only=True):
    """State of the sampling of a GPU; `kept_hz` is null while it does not answer.

    `invalid` counts impossible values, which were discarded.
    """

    asked_hz: float | None
    kept_hz: float | None
    pace: str = "asked"
    ticks_count: int = field(name="ticks")
    missed_count: int = field(name="missed")
    failed_count: int = field(name="failed")
    lost_count: int = field(name="lost")
    invalid_count: int = field(name="invalid", default=0)
    driver_s: float
    hung: live.HungCall | None


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU now; `excess_live_ratio` is of the last complete window of 10 s, an upper bound.

    `timing` is the measured timing of its sensors, by the name of their values in `reading`.
    `processes` is null if unknown; `trouble` is a fault that the driver reports. `dies` is null if
    the GPU does not report the clocks of several dies.
    """

    gpu: str
    up: bool
    last_sample_unix_ns: int | None
    info: GpuInfo
    reading: Reading
    totals: Totals | None
    excess_s: float | None = field(name="excess_live_s")
    excess_ratio: float | None = field(name="excess_live_ratio", default=None)
    residency: tuple[ResidencyBucket, ...]
    sampling: GpuSampling
    timing: Mapping[str, SensorTiming] = {}
    processes: tuple[GpuProcess, ...] | None = None
    trouble: str | None = None
    dies: live.DiesLive | None = None


class Gpus(msgspec.Struct, frozen=True, kw_only=True):
    """All GPUs of the node, at one instant."""

    taken_unix_ns: int = field(name="snapshot_unix_ns")
    simulated: bool
    gpus: tuple[Gpu, ...]


class Band(msgspec.Struct, frozen=True, kw_only=True):
    """A value over each bin: its time-weighted mean, and its extremes; null where unknown."""

    mean: list[float | None]
    min: list[float | None]
    max: list[float | None]


class GpuHistory(msgspec.Struct, frozen=True, kw_only=True):
    """Samples of one GPU over a time, in bins or one by one.

    Attributes:
        bin_ns: Length of a bin; null if each point is a sample.
        samples: Number of samples in the time.
        t_unix_ns: Start of each bin, or time of each sample.
        values: By name, without values that were never reported.
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


class JobFindings(msgspec.Struct, frozen=True, kw_only=True):
    """Findings of the report on a job's newest capture; `time` is when that was made, RFC 3339."""

    job: str | None
    run: str | None
    time: str
    findings: tuple[Finding, ...]


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """Findings by job, newest job first; jobs without any are there with an empty list."""

    jobs: tuple[JobFindings, ...]


class JobMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Device memory in a job's newest capture, by rank; `framework` is by evidence in the trace."""

    job: str | None
    run: str | None
    time: str
    framework: str
    memory: tuple[RankMemory, ...]


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Device memory by job, newest job first; jobs without any are there with an empty list."""

    jobs: tuple[JobMemory, ...]


class Jobs(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs that traces came from, newest first."""

    jobs: tuple[JobEntry, ...]


class Steps(msgspec.Struct, frozen=True, kw_only=True):
    """Step rows, newest first; `cursor` is that of the next page."""

    steps: tuple[Row, ...]
    cursor: str | None


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One step on all its devices."""

    step: int
    job: str | None
    run: str | None
    rows: tuple[Row, ...]


class StepKernels(msgspec.Struct, frozen=True, kw_only=True):
    """Kernels of the capture that a step is in, by device."""

    step: int
    by: str
    devices: tuple[DeviceKernels, ...]


class Traces(msgspec.Struct, frozen=True, kw_only=True):
    """Traces that the agent received, newest first."""

    traces: tuple[TraceEntry, ...]


class TraceTaken(msgspec.Struct, frozen=True, kw_only=True):
    """An uploaded trace."""

    id: str
    state: TraceState


class PauseState(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the agent is paused, why, and until when."""

    paused: bool
    reason: str | None = None
    until_unix_ns: int | None = None


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """Who asks, as far as the agent knows: whether jobs are shown, and all of them.

    `uid` is null for the bearer of a token, and over TCP without one; then `known` is false.
    """

    known: bool
    uid: int | None
    is_admin: bool


class Well(msgspec.Struct, frozen=True, kw_only=True):
    """The agent is healthy."""

    status: str = "ok"


class GpuBrief(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU in a stream event."""

    gpu: str
    up: bool
    last_sample_unix_ns: int | None
    reading: Reading


class SnapshotEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The node in a stream event."""

    taken_unix_ns: int = field(name="snapshot_unix_ns")
    backend_up: bool
    simulated: bool
    sampler: live.SamplerLive
    paused: bool
    gpus: tuple[GpuBrief, ...]


def status_of(snapshot: live.NodeSnapshot, *, age_ns: int, trouble: str | None) -> Status:
    """The agent and its node, from a snapshot of this age."""
    return _copied(
        snapshot,
        Status,
        snapshot_age_s=age_ns / NS_PER_S,
        trouble=trouble,
        backend=_copied(snapshot, Backend),
        gpus=len(snapshot.gpus),
        gpus_up=sum(each.up for each in snapshot.gpus),
        invalid_readings=sum(each.invalid_count for each in snapshot.gpus),
    )


def gpus_of(snapshot: live.NodeSnapshot) -> Gpus:
    """All GPUs, from a snapshot."""
    return _copied(snapshot, Gpus, gpus=tuple(map(gpu_of, snapshot.gpus)))


def gpu_of(now: live.GpuLive) -> Gpu:
    """One GPU, from a snapshot."""
    return _copied(
        now,
        Gpu,
        gpu=now.info.gpu,
        reading=_reading_of(now.reading),
        totals=now.totals and _totals(now.totals, Totals, attrgetter("label")),
        residency=tuple(
            ResidencyBucket(up_to_mhz=edge if math.isfinite(edge) else None, time_s=time_s)
            for edge, time_s in sorted(now.residency_s.items())
        ),
        sampling=_copied(now, GpuSampling),
    )


def event_of(snapshot: live.NodeSnapshot) -> SnapshotEvent:
    """A snapshot in brief."""
    return _copied(
        snapshot,
        SnapshotEvent,
        paused=snapshot.pause is not None,
        gpus=tuple(
            _copied(each, GpuBrief, gpu=each.info.gpu, reading=_reading_of(each.reading))
            for each in snapshot.gpus
        ),
    )


def snapshot_of(status: Status, gpus: Gpus) -> live.NodeSnapshot:
    """A snapshot, from both answers; they have Unix times only, used for its monotonic time too."""
    return _copied(
        status,
        live.NodeSnapshot,
        taken_unix_ns=gpus.taken_unix_ns,
        taken_mono_ns=gpus.taken_unix_ns,
        backend=status.backend.backend,
        backend_up=status.backend.backend_up,
        chosen=status.backend.chosen,
        driver=status.backend.driver,
        simulated=status.backend.simulated or gpus.simulated,
        gpus=tuple(map(_live_of, gpus.gpus)),
    )


def _live_of(gpu: Gpu) -> live.GpuLive:
    given = gpu.reading.causes
    causes = None if given is None else frozenset(map(_cause, given))
    return _copied(
        gpu,
        live.GpuLive,
        reading=_copied(gpu.reading, DeviceReading, causes=causes),
        totals=gpu.totals and _totals(gpu.totals, live.LiveTotals, _cause),
        residency_s={
            math.inf if bucket.up_to_mhz is None else bucket.up_to_mhz: bucket.time_s
            for bucket in gpu.residency
        },
        **msgspec.structs.asdict(gpu.sampling),
    )


def _reading_of(reading: DeviceReading) -> Reading:
    causes = reading.causes
    labels = None if causes is None else tuple(each.label for each in sorted(causes))
    return _copied(reading, Reading, causes=labels)


def _totals(totals: live.LiveTotals | Totals, target: type[T], key: Callable[[Any], object]) -> T:
    """Totals as the other type, whose causes are made by `key`."""
    limited_s = {key(cause): value_s for cause, value_s in totals.limited_s.items()}
    lost_s = {key(cause): value_s for cause, value_s in totals.lost_s.items()}
    return _copied(totals, target, limited_s=limited_s, lost_s=lost_s)


def _cause(label: str) -> Cause:
    """The cause with this name; unknown for one of a later version."""
    return CAUSE_BY_LABEL.get(label, Cause.UNKNOWN)


def _copied(source: object, target: type[T], **other: object) -> T:
    """A struct or dataclass with `source`'s values of the same names, and `other` values."""
    fields = target.__annotations__
    same = {name: getattr(source, name) for name in fields if hasattr(source, name)}
    return target(**(same | other))

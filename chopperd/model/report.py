"""The report document (`chopperd.report/1`): what `report --format json` and the REST API give.

Field names are the published ones; every number's name ends in its unit. `None` is "unknown", and
`notes` says why. The JSON Schema beside the report package is generated from these classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from chopperd.model.report_rows import (
    ChopperTimes,
    CollectiveTraffic,
    Contention,
    CopyTraffic,
    Efficiency,
    HostTime,
    Part,
    RowClock,
    TraceSummary,
)

SCHEMA: Final = "chopperd.report/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Why something is missing or to be read with care: a stable code and a line for people."""

    code: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """Who made the document, from what."""

    version: str
    node: str | None
    backend: str | None
    driver: str | None
    simulated: bool
    time: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the clocks were sampled, over the traced windows; per-GPU figures are the worst."""

    asked_hz: float | None
    kept_hz: float | None
    samples_in_compute: int
    sensor_period_ms: float | None
    power_source: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """How well trace and samples lie on one time axis; `check` is the outcome in words.

    `check`: "measured" (lag found, interval given), "not measurable", or "no samples".
    `realtime_step`: whether the wall clock stepped inside the trace; None where not watched.
    """

    offset_uncertainty_ns: int | None
    lag_ns: int | None
    lag_low_ns: int | None
    lag_high_ns: int | None
    realtime_step: bool | None
    check: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiler:
    """What profiling itself cost; None where no untraced steps were marked."""

    profiled_step_ratio: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkSummary:
    """Data-parallel framework by evidence."""

    name: str
    evidence: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """The reference clock and where it comes from: `device_max`, `configured` or `spec`."""

    sm_clock_mhz: float | None
    source: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSummary:
    """A traced device and the GPU it was mapped to; `mapping` says by what rule.

    `pid` is the traced process, as its own pid namespace numbers it; `trace` the index in `traces`
    of the file that it is in.
    """

    device: int
    rank: int | None
    gpu: str | None
    uuid: str | None
    name: str | None
    vendor: str | None
    mapping: str | None
    reference: Reference
    pid: int | None = None
    trace: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Dvfs:
    """What the clock cost a row; everything None where no compute was covered or no reference.

    `resolved` says whether lost / window is shown as a figure: whether its 95 % interval, by the
    sampling error of the whole recording, is no wider than two points to either side.
    """

    method: str | None = None
    gap_ratio: float | None = None
    gap_low: float | None = None
    gap_high: float | None = None
    lost_ns: int | None = None
    excess_ns: int | None = None
    excess_low_ns: int | None = None
    excess_high_ns: int | None = None
    lost_measured_low_ns: int | None = None
    lost_measured_high_ns: int | None = None
    measured_share: float | None = None
    overhead_factor: float | None = None
    by_cause_ns: Mapping[str, int] | None = None
    resolution: str | None = None
    resolved: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Peers:
    """The same model's GPUs in the same job and step, this one included.

    Where they `disagree` (two groups more than 5 % apart) `median_mhz` is the upper group's.
    """

    n: int
    median_mhz: float | None
    disagree: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Waterfall:
    """Where a row's time went; the rows sum to the window (None counts as 0)."""

    compute_at_ref: int | None
    dvfs_loss: int | None
    compute_unsampled: int
    exposed_comm: int
    exposed_copy: int
    unknown: int
    idle_launch_call: int
    idle_allocator: int
    idle_data: int
    idle_sync: int
    idle_launch_prep: int
    idle_other: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExposedComm:
    """Split of exposed communication; None until all ranks are known."""

    wait: int | None = None
    transfer: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExposedCopy:
    """Exposed copies by direction."""

    h2d: int
    d2h: int
    d2d: int
    memset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Temperature:
    """GPU temperature over a row's samples."""

    mean: float
    max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroStep:
    """One marker of an accumulated step."""

    step: int
    marker_start_unix_ns: int | None
    marker_ns: int
    busy_ns: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """Busy time of what each phase launched, in a row's window; None where no record tells of it.

    A union over streams. Phases may overlap, and work of unknown phase is in none of them: beside
    such work in the window a phase is None where else it would be 0.
    """

    forward: int | None
    backward: int | None
    optimizer: int | None


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """All kernels of one normalised name; `time_ns` is their sum, not a union.

    `mean_mhz` and `lost_ns`, with its 95 % interval, are by the clock samples that fell into it;
    unknown with fewer than 30. `merged` is how many families "(other)" holds, of its class those
    with the least time of very many; 0 for all others.

    A `msgspec.Struct`, as the published name `class` is a keyword of Python.
    """

    name: str
    class_: str = msgspec.field(name="class")
    count: int
    time_ns: int
    mean_mhz: float | None
    samples: int
    lost_ns: int | None
    beta: float | None = None
    beta_low: float | None = None
    beta_high: float | None = None
    beta_reason: str | None = None
    contention: Contention | None = None
    merged: int = 0
    lost_low_ns: int | None = None
    lost_high_ns: int | None = None


class ClassTotal(msgspec.Struct, frozen=True, kw_only=True):
    """All records of one class, of a whole file; `total_ns` is their sum, not a union.

    Clock and loss are as of `Family`.
    """

    class_: str = msgspec.field(name="class")
    count: int
    total_ns: int
    mean_mhz: float | None
    samples: int
    lost_ns: int | None
    lost_low_ns: int | None
    lost_high_ns: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One step of one device, or (in `totals`, with `step` None) the whole file of one device.

    `run` is `chopperd_run` of the trace; else None, unless several runs of one job have one time:
    then a number in a report on files, and in the agent the time at which the run became known.
    `power_w` is the mean over the window; `power_source` is what it was taken from:
    "energy_counter", or the kind of its readings as in `GpuInfo`.
    """

    job: str | None
    run: str | None
    rank: int | None
    step: int | None
    step_source: str
    device: int | None
    gpu: str | None
    partial: bool
    partial_reasons: tuple[str, ...]
    host_only: bool
    tail: bool = False
    accumulation: int | None = None
    micro_steps: tuple[MicroStep, ...] = ()
    marker_start_unix_ns: int | None = None
    marker_ns: int | None = None
    start_unix_ns: int | None = None
    start: str | None = None
    window_ns: int | None = None
    busy_ns: int | None = None
    compute_ns: int | None = None
    comm_ns: int | None = None
    copy_ns: int | None = None
    overlap_ns: int | None = None
    overlap_ratio: float | None = None
    launched_ns: int | None = None
    foreign_ns: int | None = None
    clock: RowClock | None = None
    mem_clock_mhz: float | None = None
    dvfs: Dvfs = field(default_factory=Dvfs)
    peers: Peers | None = None
    waterfall_ns: Waterfall | None = None
    exposed_comm_ns: ExposedComm | None = None
    exposed_copy_ns: ExposedCopy | None = None
    energy_j: float | None = None
    energy_error_j: float | None = None
    power_w: float | None = None
    power_source: str | None = None
    power_limit_w: float | None = None
    temperature_c: Temperature | None = None
    tokens: int | None = None
    is_critical: bool | None = None
    memory: None = None
    phases: Phases | None = None
    copies: tuple[CopyTraffic, ...] = ()
    collectives: tuple[CollectiveTraffic, ...] = ()
    chopper: ChopperTimes | None = None
    efficiency: Efficiency | None = None
    families: tuple[Family, ...] = ()
    classes: tuple[ClassTotal, ...] = ()
    by_operation: tuple[Part, ...] = ()
    by_layer: tuple[Part, ...] = ()
    by_phase: tuple[Part, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLine:
    """One GPU of the run, over its complete, non-tail steps (all of the file if it has none).

    The excess is by the run's mean clocks; `stands_out`: its low end passes 1.5 % of compute
    (more where clocks wander from step to step) and three median absolute deviations of the peers.
    """

    gpu: str | None
    device: int
    rank: int | None
    mean_mhz: float | None
    peers_median_mhz: float | None
    gap_ratio: float | None
    excess_ns_per_step: float | None
    temperature_mean_c: float | None
    slowest_steps: int | None
    excess_low_ns_per_step: float | None = None
    excess_high_ns_per_step: float | None = None
    stands_out: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseShare:
    """A cause's share of the run's ceiling loss.

    `power_w` and `power_limit_w`, of a power cap alone, are what its GPUs draw under it, and may.
    """

    cause: str
    lost_ns: int
    share: float
    power_w: float | None = None
    power_limit_w: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The run in one look: means over the critical device of each complete, non-tail step.

    Attributes:
        basis: "critical_steps", or "totals" where the file has no complete step.
        steps: Steps that the means are over (0 for totals).
        step_ns: Mean window.
        lost_ns: Mean ceiling loss in a step; None if unknown.
        gap_low, gap_high, gap_ratio: Interval of lost / window (gap interval x covered share).
        excess_ns: Excess over peers a step, by the run's mean clocks; None without four traced
            peers. excess_low_ns, excess_high_ns: Its interval.
        coverage_ratio: Share of compute covered by samples.
        causes: Shares of the loss, largest first.
        gpus: One line a GPU.
        waterfall_ns: Mean waterfall.
    """

    basis: str
    steps: int
    step_ns: float | None
    lost_ns: float | None
    gap_ratio: float | None
    gap_low: float | None
    gap_high: float | None
    lost_measured_low_ns: float | None
    lost_measured_high_ns: float | None
    excess_ns: float | None
    reference_mhz: float | None
    reference_source: str | None
    coverage_ratio: float | None
    causes: tuple[CauseShare, ...]
    gpus: tuple[GpuLine, ...]
    waterfall_ns: Mapping[str, float]
    excess_low_ns: float | None = None
    excess_high_ns: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One entry of the closed catalogue of findings."""

    code: str
    text: str
    bound_ns: int | None
    action: str
    verify: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportDocument:
    """The whole document; `trace` is the first of `traces`, which rows refer to by rank.

    `host` has the host's time of each trace without device work.
    """

    schema: str
    generated: Generated
    summary: Summary | None
    findings: tuple[Finding, ...]
    trace: TraceSummary
    traces: tuple[TraceSummary, ...]
    sampling: Sampling
    alignment: Alignment
    profiler: Profiler
    framework: FrameworkSummary
    devices: tuple[DeviceSummary, ...]
    totals: tuple[Row, ...]
    steps: tuple[Row, ...]
    drops: tuple[None, ...]
    notes: tuple[Note, ...]
    host: tuple[HostTime, ...] = ()

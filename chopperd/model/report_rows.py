"""The rows of a report: a step of one device, or a device's whole file, and the lists in a row.

As of `model.report`: names are the published ones, units at their end, `None` is unknown.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

import msgspec

#: `Part.name` of the records of which the operation, layer or phase is not known.
UNKNOWN_PART: Final = "(unknown)"
#: `Part.name` and `Family.name` of those with the least time, where there are very many.
OTHER_PARTS: Final = "(other)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Device records that share an operation, a layer or a phase.

    `time_ns` sums durations (it is no union); `mean_mhz` and `lost_ns`, with its 95 % interval, are
    over its compute, of which kernels that run at once share the loss, by the clock samples that
    fell into it: unknown with fewer than 30. `samples` counts those inside. What is
    not known to be of any is "(unknown)", so that parts sum to all records of the device.
    `merged` is how many operations or layers "(other)" holds, those with the least time of very
    many; 0 for all others.
    """

    name: str
    count: int
    time_ns: int
    mean_mhz: float | None
    samples: int
    lost_ns: int | None
    merged: int = 0
    lost_low_ns: int | None = None
    lost_high_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Contention:
    """How much longer a family's kernels take beside communication.

    `factor` is the median duration of those with at least the median overlap over that of the
    tenth with the least, with its 95 % interval; `chopper_e50_e0` is Chopper's ratio. `count` is
    the number of kernels that they are of; `reason` says why the factor or its interval is missing.
    """

    factor: float | None
    low: float | None
    high: float | None
    chopper_e50_e0: float | None
    count: int
    reason: str | None = None


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
class CopyTraffic:
    """Copies or fills of one direction ("h2d", "d2h", "d2d", "memset").

    `time_ns` sums durations. `bytes` and the rate are over the `sized_count` copies whose size is
    known; None without any. Copies from one device to another are "d2d".
    """

    direction: str
    count: int
    time_ns: int
    sized_count: int
    bytes: int | None
    rate_bytes_per_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTraffic:
    """Communication kernels of one collective in one process group.

    `group_ranks` are the group's members in short, "0-7" or "0-56 by 8", as far as the trace tells
    them. A collective called "other" is several, those with the least time of very many.
    `time_ns` sums durations and counts from this rank's kernel start: it holds the wait for other
    ranks, so that bandwidths are lower bounds of what the links do. They are over the `sized_count`
    kernels whose size is known, None without any: `algorithm` is the collective's bytes over time,
    `bus` what one rank's links carry. `name` is "unknown" where nothing tells it.
    """

    name: str
    group: str | None
    group_description: str | None
    group_size: int | None
    group_ranks: str | None = None
    count: int
    time_ns: int
    sized_count: int
    bytes: int | None
    algorithm_bytes_per_s: float | None
    bus_bytes_per_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChopperTimes:
    """Chopper's own figures of a row, beside ours; sums over its compute kernels.

    Attributes:
        kernel_count: Its compute kernels: without communication and its packing, with a launch.
        kernel_ns: Their durations; with `launch_ns`, Chopper's time of an iteration.
        launch_ns: Gaps between a compute kernel's end and the next one's start.
        prep_ns, call_ns: Their parts before and from the launch call's begin.
        first_launch_ns: From the first kernel of all to the first that computes.
        first_call_ns: From its launch call's begin to its start. Chopper calls the difference its
            prep, which is below 0 where the call came first.
        overlap_ratio: Share of the kernels' time beside communication.
    """

    kernel_count: int
    kernel_ns: int
    launch_ns: int
    prep_ns: int
    call_ns: int
    first_launch_ns: int
    first_call_ns: int
    overlap_ratio: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """Floating point work of a row against the stated dense peak of its GPU.

    Shaped are gemm and attention kernels of operators whose work is known by the recorded shapes;
    rated those of them whose type's peak is known. Times sum durations. `rated_time_ns` =
    `theoretical_ns` x the three overheads, which are Chopper's, at the clock of the peak.

    Attributes:
        flops: Of the operators of shaped kernels; causal attention counts half.
        matrix_time_ns: Of all gemm and attention kernels.
        shaped_time_ns: Of the shaped ones. shaped_share: Of `matrix_time_ns`.
        achieved_flops_per_s: Over `shaped_time_ns`.
        dtype: What most of the operations are of.
        spec_flops_per_s: The vendor's peak for it. spec_mhz: The clock of that peak.
        spec_source: The document that states them.
        rated_time_ns: Of rated kernels. theoretical_ns: Their work at the peak.
        utilization: `theoretical_ns` over `rated_time_ns`.
        overhead_frequency: Of the clock below that of the peak, as sampled.
        overhead_overlap: Of communication beside kernels, by like kernels without it.
        overhead_utilization: What is left over.
        clock_share: Of `rated_time_ns` with a sampled clock.
        overlap_share: Of the time of rated kernels beside communication, that of kernels with like
            ones without; None where nothing overlaps.
        method: How the overheads were found.
        reason: Why figures are missing.
    """

    flops: float | None = None
    matrix_time_ns: int | None = None
    shaped_time_ns: int | None = None
    shaped_share: float | None = None
    achieved_flops_per_s: float | None = None
    dtype: str | None = None
    spec_flops_per_s: float | None = None
    spec_mhz: float | None = None
    spec_source: str | None = None
    rated_time_ns: int | None = None
    theoretical_ns: float | None = None
    utilization: float | None = None
    overhead_utilization: float | None = None
    overhead_overlap: float | None = None
    overhead_frequency: float | None = None
    clock_share: float | None = None
    overlap_share: float | None = None
    method: str | None = None
    reason: str | None = None


ClockBasis = Literal["in_class", "mixed", "all"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockStats:
    """Time-weighted mean clock with its 95 % interval; percentiles of the samples themselves."""

    mean_mhz: float | None
    low_mhz: float | None
    high_mhz: float | None
    p05_mhz: float | None
    p95_mhz: float | None
    std_mhz: float | None
    samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockDies:
    """The compute dies (AMD: XCDs) of a GPU with several, over a row's samples in compute.

    The row's clocks are those of the governing die, moment by moment; these figures tell how the
    others ran beside it.

    Attributes:
        running: How many dies ran, at some of the samples at least.
        gated: How many were off at some while others ran.
        mean_mhz: Mean clock over the running dies, in the measure of `compute.mean_mhz`.
        spread_mhz: Highest less lowest of the running dies' own means; None of fewer than two.
        governing: The die with the lowest mean, as the driver counts them from 0.
    """

    running: int
    gated: int
    mean_mhz: float
    spread_mhz: float | None
    governing: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RowClock:
    """Clocks of a row: over compute, over busy time, and the share of compute that was covered.

    `dies` is None where the GPU does not tell clocks of several dies.
    """

    basis: ClockBasis | None
    compute: ClockStats | None
    busy: ClockStats | None
    coverage_ratio: float | None
    dies: ClockDies | None = None


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

"""The rows of a report and the lists in them, under their published names; None is unknown."""

from collections.abc import Mapping
from typing import Final, Literal

import msgspec
from msgspec import Struct, field

from chopperd.model.answers import ChopperTimes, Held, PartChopper, PartEfficiency

UNKNOWN_PART: Final = "(unknown)"  # records of no known operation, layer, phase or annotation
OTHER_PARTS: Final = "(other)"  # parts or families with the least time, where there are very many


class Part(Struct, frozen=True, kw_only=True):
    """Device records that share an operation, layer, phase or annotation; "(unknown)" has the rest.

    `time_ns` sums durations (it is no union); `mean_mhz` and `lost_ns`, with its 95 % interval, are
    over its compute, of which concurrent kernels share the loss, by the clock samples inside, which
    `samples` counts: unknown with fewer than 30. `merged` is how many operations or layers
    "(other)" holds, those with the least time of very many; 0 for all others.
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
    chopper: PartChopper | None = None
    efficiency: PartEfficiency | None = None


class Contention(Struct, frozen=True, kw_only=True):
    """How much longer a family's kernels take while communication runs.

    `factor` is the median duration of those with at least the median overlap over that of the tenth
    with the least, with its 95 % interval; `reason` says why one is missing.
    """

    factor: float | None
    low: float | None
    high: float | None
    chopper_e50_e0: float | None
    count: int
    reason: str | None = None


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """All kernels of one normalised name; `time_ns` is their sum, not a union.

    `mean_mhz` and `lost_ns`, with its 95 % interval, are by the clock samples inside; unknown with
    fewer than 30. `merged` is how many families "(other)" holds, of its class those with the least
    time of very many; 0 for all others. `beta`, the sensitivity to the clock, is not measured yet:
    None, with the reason.
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
    chopper: PartChopper | None = None
    efficiency: PartEfficiency | None = None


class ClassTotal(msgspec.Struct, frozen=True, kw_only=True):
    """All records of one class, of a whole file; `total_ns` is their sum, not a union.

    `exposed_ns` is time, no sum: of a class of compute, while no other class of compute ran; of
    communication, while no compute ran; of copies, while neither did; of fills, while no copy did
    either. Clock and loss are as of `Family`; excess is against peers.
    """

    class_: str = msgspec.field(name="class")
    count: int
    total_ns: int
    mean_mhz: float | None
    samples: int
    lost_ns: int | None
    lost_low_ns: int | None
    lost_high_ns: int | None
    exposed_ns: int | None = None
    excess_ns: int | None = None
    excess_low_ns: int | None = None
    excess_high_ns: int | None = None


class CopyTraffic(Struct, frozen=True, kw_only=True):
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


class CollectiveTraffic(Struct, frozen=True, kw_only=True):
    """Communication kernels of one collective in one process group.

    `group_ranks` are the group's members in short, "0-7" or "0-56 by 8", as far as the trace has
    them. A collective called "other" is several, those with the least time of very many; "unknown"
    one without a name. `time_ns` sums durations and counts from this rank's kernel start: it holds
    the wait for other ranks, so that bandwidths are lower bounds of the links' own. They are over
    the `sized_count` kernels whose size is known, None without any: `algorithm` is the collective's
    bytes over time, `bus` what one rank's links carry.
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


class Efficiency(Struct, frozen=True, kw_only=True):
    """Floating point work of a row against the stated dense peak of its GPU.

    Shaped are gemm and attention kernels of operators whose work is known by the recorded shapes;
    rated those of them whose type's peak is known. Times sum durations. `rated_time_ns` =
    `theoretical_ns` x the three overheads, which are Chopper's, at the clock of the peak.

    `flops` are of the operators of shaped kernels, where causal attention counts half, achieved
    ones over `shaped_time_ns`; `dtype` is the element type of most, `spec_flops_per_s` the vendor's
    peak for it at `spec_mhz`, by `spec_source`. `theoretical_ns` is the work of rated kernels at
    the peak, `utilization` that over their time. The overheads are of the sampled clock below that
    of the peak, of concurrent communication (by like kernels without it), and the remainder.
    `clock_share` of `rated_time_ns` has a sampled clock; `overlap_share` is the share of the rated
    kernels during communication that have like ones without it, None where nothing overlaps.
    `method` is that of the overheads; `reason` says why figures are missing.
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


class ClockStats(Struct, frozen=True, kw_only=True):
    """Time-weighted mean clock with its 95 % interval; percentiles of the samples themselves."""

    mean_mhz: float | None
    low_mhz: float | None
    high_mhz: float | None
    p05_mhz: float | None
    p95_mhz: float | None
    std_mhz: float | None
    samples: int


class ClockDies(Struct, frozen=True, kw_only=True):
    """The compute dies (AMD: XCDs) of a GPU with several, over a row's samples in compute.

    The row's clocks are those of the governing die at each moment, `governing` the die with the
    lowest mean, as the driver counts them from 0. `running` dies ran at some of the samples,
    `gated` ones were off at some while others ran. `mean_mhz` is over the running dies, in the
    measure of `compute.mean_mhz`, `spread_mhz` over their own means, None for fewer than two.
    """

    running: int
    gated: int
    mean_mhz: float
    spread_mhz: float | None
    governing: int


class RowClock(Struct, frozen=True, kw_only=True):
    """Clocks of a row: over compute, over busy time, and the share of compute that was covered.

    `dies` is None where the GPU does not report clocks of several dies.
    """

    basis: Literal["in_class", "mixed", "all"] | None
    compute: ClockStats | None
    busy: ClockStats | None
    coverage_ratio: float | None
    dies: ClockDies | None = None


class Dvfs(Struct, frozen=True, kw_only=True):
    """The clock's cost in a row; everything None where no compute was covered or no reference.

    `resolved`: whether lost / window is shown as a figure, as its 95 % interval, by the sampling
    error of the whole recording, is no wider than two points to either side. The measured loss and
    its share need the families' sensitivities, which are not measured yet: None.
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


class Peers(Struct, frozen=True, kw_only=True):
    """The same model's GPUs in the same job and step; `disagree`: two groups over 5 % apart.

    `median_mhz` is then the upper group's.
    """

    n: int
    median_mhz: float | None
    disagree: bool = False


class Waterfall(Struct, frozen=True, kw_only=True):
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


class ExposedComm(Struct, frozen=True, kw_only=True):
    """Split of exposed communication; None until all ranks are known."""

    wait: int | None = None
    transfer: int | None = None


class ExposedCopy(Struct, frozen=True, kw_only=True):
    """Exposed copies by direction."""

    h2d: int
    d2h: int
    d2d: int
    memset: int


class Temperature(Struct, frozen=True, kw_only=True):
    """GPU temperature over a row's samples."""

    mean: float
    max: float


class MicroStep(Struct, frozen=True, kw_only=True):
    """One marker of an accumulated step."""

    step: int
    marker_start_unix_ns: int | None
    marker_ns: int
    busy_ns: int | None


class Phases(Struct, frozen=True, kw_only=True):
    """Busy time, a union over streams, of the work of each phase; None where there is no record.

    Phases may overlap. While work of unknown phase is in the window, a phase is None, not 0.
    """

    forward: int | None
    backward: int | None
    optimizer: int | None


class Row(Struct, frozen=True, kw_only=True):
    """One step of one device, or (in `totals`, with `step` None) its whole file.

    `run` is `chopperd_run` of the trace; else None, unless several runs of one job have one time:
    then a number in a report on files, and in the agent the time at which the run became known.
    `step_name` is the annotation that marks the step, of a source "step_marker".
    `power_w` is the mean over the window by "energy_counter", or readings as in `GpuInfo`.
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
    step_name: str | None = None
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
    #: Shares of the summed compute time by what matrix kernels multiply; None where none is known.
    dtype_ratio: Mapping[str, float] | None = None
    families: tuple[Family, ...] = ()
    classes: tuple[ClassTotal, ...] = ()
    by_operation: tuple[Part, ...] = ()
    by_layer: tuple[Part, ...] = ()
    by_phase: tuple[Part, ...] = ()
    by_annotation: tuple[Part, ...] = ()
    held: tuple[Held, ...] = ()

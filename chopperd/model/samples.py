"""Samples of GPUs as columns, and what they alone, without a trace, say of the GPUs."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Literal

from msgspec import Struct, field

from chopperd.model.arrays import Float64s, Int64s
from chopperd.model.captures import GpuDrop
from chopperd.model.devices import GpuInfo
from chopperd.model.kinds import CAUSES, Cause
from chopperd.units import TimeTriple

if TYPE_CHECKING:
    from chopperd.model.report import Generated, Note


#: The columns of a `GpuSamples` that hold a reading's numbers, by their name there and in files.
VALUE_COLUMNS: Final = (
    *("sm_clock_mhz", "mem_clock_mhz", "power_w", "energy_j"),
    *("temperature_c", "memory_used_bytes", "activity_ratio"),
)

#: In files, the column of each cause's cumulative counter.
LIMITED_COLUMNS: Final = {cause: f"limited_{cause.label}_ns" for cause in CAUSES}

#: Variables of a process's environment that say which GPUs it sees, and in which order.
VISIBLE_NAMES: Final = (
    *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES"),
    *("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
    *("SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "LOCAL_RANK"),
)


class GpuSamples(Struct, frozen=True, kw_only=True):
    """All samples of one GPU, one row a sample, sorted by strictly rising time."""

    gpu: GpuInfo
    t_unix_ns: Int64s  # middle of the driver call
    sm_clock_mhz: Float64s  # NaN where the clock was not reported
    read_span_ns: Int64s  # length of the driver call (0 where a file does not say)
    # (n,) int64 bit set of `Cause`; 0: read and none set; `UNKNOWN.bit`: not readable
    causes: Int64s
    # The rest is NaN where not reported or not read at this tick.
    mem_clock_mhz: Float64s
    power_w: Float64s
    energy_j: Float64s
    temperature_c: Float64s
    memory_used_bytes: Float64s
    activity_ratio: Float64s
    # For each cause with a cumulative driver counter, (n,) float64; NaN where absent
    limited_ns: Mapping[Cause, Float64s] = field(default_factory=dict)
    # (n, d) float64, the clock of each compute die of a GPU that has several, NaN where absent;
    # None where none was ever reported
    die_clocks_mhz: Float64s | None = None

    def __len__(self) -> int:
        return len(self.t_unix_ns)


class ProcessRow(Struct, frozen=True, kw_only=True):
    """A process that held a GPU or that `record` started, as it was seen while it lived."""

    pid: int  # its pid as the driver or a parent knows it
    # Its pid in each pid namespace, from that of who read it to its own, which is what it writes
    # into its traces; empty where /proc did not show the process
    ns_pids: tuple[int, ...] = ()
    # Its start, which distinguishes it from another process of its pid; None where /proc did not
    # show it
    started_unix_ns: int | None = None
    gone_unix_ns: int | None = None  # when it was first found gone; None while it was there
    listed_unix_ns: int | None = None  # when a driver last listed it on a GPU; None if none did
    # The GPUs that it held at any time, by UUID or label, each with the most memory seen in bytes;
    # None where the driver does not say how much
    gpus: Mapping[str, int | None] = field(default_factory=dict)
    # Those variables of its environment that choose or order GPUs (`VISIBLE_NAMES`); None if it
    # could not be read
    visible: Mapping[str, str] | None = None
    # Names of the machine as the process sees it; empty if not known
    hosts: tuple[str, ...] = ()
    container: bool | None = None  # whether it has a file system of its own; None if not known

    @property
    def own_pid(self) -> int:
        """Return the process's pid in its own namespace; `pid` where that is unknown."""
        return self.ns_pids[-1] if self.ns_pids else self.pid

    @property
    def in_container(self) -> bool:
        """Whether the process may see the machine differently than its reader did.

        `container` decides; where that is None, a pid namespace of its own does.
        """
        return len(self.ns_pids) > 1 if self.container is None else self.container


class SampleSet(Struct, frozen=True, kw_only=True):
    """Samples of all GPUs of a node over one recording."""

    gpus: tuple[GpuSamples, ...]  # one entry a GPU, in label order
    asked_hz: float | None = None  # rate that was asked for; None if the file does not say
    started_unix_ns: int | None = None  # start of the recording; None if the file does not say
    simulated: bool = False  # whether any value came from a simulation
    # Name of the back end that read the values ("nvml", "simulated", "file", ...)
    backend: str = "file"
    driver: str | None = None  # driver version, where known
    node: str | None = None  # host name, where known
    # Clock triples taken while sampling, rising; empty for foreign files
    triples: tuple[TimeTriple, ...] = ()
    processes: tuple[ProcessRow, ...] = ()  # who held the GPUs, and when
    source: str = ""  # where the samples come from, for people (a path, "live")
    notes: "tuple[Note, ...]" = ()  # what to read with care


class BusyPeers(Struct, frozen=True, kw_only=True):
    """How a GPU's busy clock compares with the GPUs of its model that were busy with it.

    `n` GPUs, itself included, over `windows` windows in which all of them were busy; `median_mhz`
    is theirs (of the upper group where they fall into two). `below_mhz` is how far its mean is
    below that, 0 where it is not, with its 95 % interval. `stands_out`: whether it is to blame, by
    rules that equal GPUs do not meet.
    """

    n: int
    windows: int
    median_mhz: float
    own_mhz: float
    below_mhz: float
    below_low_mhz: float | None
    below_high_mhz: float | None
    stands_out: bool


class SampledGpu(Struct, frozen=True, kw_only=True):
    """One GPU over a recording, by its samples alone; None is not known.

    `sampled_s` is the time between samples close enough to integrate over, `busy_s` the part in
    which the GPU reported itself busy, which includes communication and waiting on the GPU, and
    `clocked_s` the part of that with a known clock. `busy_mhz` is the mean clock over it, `lost_s`
    what it lost at most against `reference_mhz`, the highest clock, `lost_ratio` its share. Power
    and temperature are means over busy samples, `hottest_c` their highest. `energy_j` is the
    driver's counter's, else the integral of the power (`energy_source`).
    """

    gpu: str
    uuid: str
    name: str
    samples: int
    kept_hz: float | None
    reference_mhz: float | None
    sampled_s: float | None
    busy_s: float | None
    busy_ratio: float | None
    clocked_s: float | None
    busy_mhz: float | None
    lost_s: float | None
    lost_ratio: float | None
    lost_by_cause_s: Mapping[str, float]
    power_w: float | None
    temperature_c: float | None
    hottest_c: float | None
    energy_j: float | None
    energy_source: Literal["counter", "power"] | None
    peers: BusyPeers | None = None


class SamplesReport(Struct, frozen=True, kw_only=True):
    """What the samples of a recording say without a trace: no steps, no kernels, no compute.

    `look_at` is the label of the GPU that stands out from its peers most; None if none does, or
    nobody knows: `notes` say why.
    """

    schema: Literal["chopperd.samples-report/1"] = "chopperd.samples-report/1"
    generated: "Generated"
    start_unix_ns: int | None
    length_s: float | None
    asked_hz: float | None
    gpus: tuple[SampledGpu, ...]
    drops: tuple[GpuDrop, ...] = ()
    look_at: str | None = None
    notes: "tuple[Note, ...]" = ()

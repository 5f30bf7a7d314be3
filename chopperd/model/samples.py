"""Samples of GPUs as columns: what the sampler records and the join consumes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from chopperd.model.arrays import Float64s, Int64s
from chopperd.model.devices import GpuInfo
from chopperd.model.kinds import CAUSES, Cause
from chopperd.units import TimeTriple

if TYPE_CHECKING:
    from chopperd.model.report import Note


#: The columns of a `GpuSamples` that hold a reading's numbers, by their name there and in files.
VALUE_COLUMNS: Final = (
    "sm_clock_mhz",
    "mem_clock_mhz",
    "power_w",
    "energy_j",
    "temperature_c",
    "memory_used_bytes",
    "activity_ratio",
)

#: In files, the column of each cause's cumulative counter.
LIMITED_COLUMNS: Final = {cause: f"limited_{cause.label}_ns" for cause in CAUSES}

#: Variables of a process's environment that say which GPUs it sees, and in which order.
VISIBLE_NAMES: Final = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "NVIDIA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "SLURM_JOB_GPUS",
    "SLURM_STEP_GPUS",
    "LOCAL_RANK",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSamples:
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
        """Return the number of samples."""
        return len(self.t_unix_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRow:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSet:
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

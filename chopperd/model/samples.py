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
    """All samples of one GPU, one row a sample, sorted by strictly rising time.

    Attributes:
        gpu: Whose samples these are.
        t_unix_ns: (n,) int64, middle of the driver call.
        sm_clock_mhz: (n,) float64; NaN where the clock was not reported.
        read_span_ns: (n,) int64, length of the driver call (0 where a file does not say).
        causes: (n,) int64 bit set of `Cause`; 0: read and none set; `UNKNOWN.bit`: not readable.
        mem_clock_mhz, power_w, energy_j, temperature_c, memory_used_bytes, activity_ratio:
            (n,) float64, NaN where not reported or not read at this tick.
        limited_ns: For each cause with a cumulative driver counter, (n,) float64; NaN where absent.
        die_clocks_mhz: (n, d) float64, the clock of each compute die of a GPU that has several, NaN
            where absent; None where none was ever reported.
    """

    gpu: GpuInfo
    t_unix_ns: Int64s
    sm_clock_mhz: Float64s
    read_span_ns: Int64s
    causes: Int64s
    mem_clock_mhz: Float64s
    power_w: Float64s
    energy_j: Float64s
    temperature_c: Float64s
    memory_used_bytes: Float64s
    activity_ratio: Float64s
    limited_ns: Mapping[Cause, Float64s] = field(default_factory=dict)
    die_clocks_mhz: Float64s | None = None

    def __len__(self) -> int:
        """The number of samples."""
        return len(self.t_unix_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRow:
    """A process that held a GPU or that `record` started, as it was seen while it lived.

    Attributes:
        pid: Its pid as the driver or a parent knows it.
        ns_pids: Its pid in each pid namespace, from that of who read it to its own, which is what
            it writes into its traces; empty where /proc did not show the process.
        started_unix_ns: Its start, which tells it from another of its pid; None where /proc did
            not show it.
        gone_unix_ns: When it was first found gone; None while it was there.
        listed_unix_ns: When a driver last listed it on a GPU; None if none did.
        gpus: The GPUs that it held at any time, by UUID or label, each with the most memory seen
            in bytes; None where the driver does not say how much.
        visible: Those variables of its environment that choose or order GPUs (`VISIBLE_NAMES`);
            None if it could not be read.
        hosts: What the machine is called as the process sees it; empty if not known.
        container: Whether it has a file system of its own; None if not known.
    """

    pid: int
    ns_pids: tuple[int, ...] = ()
    started_unix_ns: int | None = None
    gone_unix_ns: int | None = None
    listed_unix_ns: int | None = None
    gpus: Mapping[str, int | None] = field(default_factory=dict)
    visible: Mapping[str, str] | None = None
    hosts: tuple[str, ...] = ()
    container: bool | None = None

    @property
    def own_pid(self) -> int:
        """Its pid as it knows it itself."""
        return self.ns_pids[-1] if self.ns_pids else self.pid

    @property
    def in_container(self) -> bool:
        """Whether what it sees of the machine may differ from what its reader saw."""
        return len(self.ns_pids) > 1 if self.container is None else self.container


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSet:
    """Samples of all GPUs of a node over one recording.

    Attributes:
        gpus: One entry a GPU, in label order.
        asked_hz: Rate that was asked for; None if the file does not say.
        started_unix_ns: Start of the recording; None if the file does not say.
        simulated: Whether any value came from a simulation.
        backend: Name of the back end that read the values ("nvml", "simulated", "file", ...).
        driver: Driver version, where known.
        node: Host name, where known.
        triples: Clock triples taken while sampling, rising; empty for foreign files.
        processes: Who held the GPUs, and when.
        source: Where the samples come from, for people (a path, "live").
        notes: What is to be read with care about them.
    """

    gpus: tuple[GpuSamples, ...]
    asked_hz: float | None = None
    started_unix_ns: int | None = None
    simulated: bool = False
    backend: str = "file"
    driver: str | None = None
    node: str | None = None
    triples: tuple[TimeTriple, ...] = ()
    processes: tuple[ProcessRow, ...] = ()
    source: str = ""
    notes: "tuple[Note, ...]" = ()

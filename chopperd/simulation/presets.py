"""The GPU models and jobs of the simulation: constants, and the dies of a GPU.

The figures are chosen to resemble the product they are named after under a training job; they are
not measurements.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

import msgspec
import numpy as np

from chopperd.errors import ConfigError
from chopperd.model.arrays import Float64s, Int64s
from chopperd.model.devices import Vendor
from chopperd.units import NS_PER_MS, NS_PER_S


def generator(*key: int) -> np.random.Generator:
    """Make a random generator from a key; equal keys give equal streams."""
    return np.random.Generator(np.random.PCG64(list(key)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Brake:
    """A time in which the power supply of one GPU makes it slow down, in whole steps of the job."""

    gpu: int  # its index
    start_unix_ns: int  # it holds for steps that begin in between
    end_unix_ns: int
    clock_ratio: float = 0.5  # the clock it allows, as a share of the highest


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationSpec:
    """The choice of a simulated node: the first four fields determine all its values."""

    seed: int = 0  # of all random draws
    preset: str = "fsdp2-h100"  # name of the node's preset
    start_unix_ns: int = 0
    brake: Brake | None = None  # a GPU that is made to slow down for a while; None for none
    host: str = "simulated-node"  # host name that the job's processes report
    #: Real processes that act as the job's ranks, by rank: the back end lists them and the traces
    #: have their pids, so that a rank's GPU is found as for any job. If empty, the traces name the
    #: GPU themselves, as the job hook writes it.
    pids: tuple[int, ...] = ()

    def to_json(self) -> str:
        """Encode the spec as JSON for a command line."""
        return msgspec.json.encode(self).decode()

    @staticmethod
    def from_json(text: str) -> "SimulationSpec":
        """Decode a spec from the JSON of `to_json`.

        Raises:
            ConfigError: The text is not a spec.
        """
        try:
            return msgspec.json.decode(text, type=SimulationSpec)
        except msgspec.MsgspecError as error:
            raise ConfigError([f"--simulation: {error}"]) from error


_WAVES: Final = 3
_SHORTEST_WAVE_NS: Final = 17 * NS_PER_MS
_LONGEST_WAVE_NS: Final = 300 * NS_PER_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class DieModel:
    """The compute dies of a GPU: one governs and has the true clock, the others run higher.

    The figures are not measurements: dies some tenths of a percent apart, each varying about its
    mean.
    """

    count: int  # number of dies in the driver's table
    spread_ratio: float = 0.012  # the running dies' clocks are up to this above the governing one's
    tremble_ratio: float = 0.004  # standard deviation of the higher clocks within a second
    gated: tuple[int, ...] = ()  # numbers of the dies that are switched off
    absent: tuple[int, ...] = ()  # numbers without a die
    turn_ns: int = 0  # time after which the next running die governs; 0: always the same

    @property
    def running(self) -> tuple[int, ...]:
        """Numbers of the dies that are neither gated nor absent, rising."""
        return tuple(sorted(set(range(self.count)) - {*self.gated, *self.absent}))


class Dies:
    """The clocks of one GPU's dies, as a function of time and of the true clock."""

    def __init__(self, model: DieModel, rng: np.random.Generator) -> None:
        running = len(model.running)
        spread = rng.uniform(0.0, model.spread_ratio, running)
        shape = running, _WAVES
        self._model = model
        self._above: Float64s = spread - spread.min()
        self._period_ns: Int64s = rng.integers(_SHORTEST_WAVE_NS, _LONGEST_WAVE_NS, shape)
        self._phase: Float64s = rng.uniform(0.0, 2 * np.pi, shape)

    def governing(self, t_ns: Int64s) -> Int64s:
        """Return the number of the die that governs at each time."""
        turned = (int(self._above.argmin()) + self._turns(t_ns)) % len(self._above)
        return np.array(self._model.running, np.int64)[turned]

    def clocks_mhz(self, clock_mhz: Float64s, t_ns: Int64s) -> Float64s:
        """Compute the dies' clocks, (n, count), for true clocks `clock_mhz`, (n,), at `t_ns`, (n,).

        0 for dies that are off, NaN for numbers without a die.
        """
        running = len(self._above)
        place = (np.arange(running) - self._turns(t_ns)[:, None]) % running
        above = self._above[place]
        trembling = np.where(above > 0, self._tremble(t_ns), 0.0)
        clocks = np.zeros((len(t_ns), self._model.count))
        clocks[:, self._model.absent] = np.nan
        clocks[:, self._model.running] = clock_mhz[:, None] * (1 + above + trembling)
        return clocks

    def _turns(self, t_ns: Int64s) -> Int64s:
        turn_ns = self._model.turn_ns
        return t_ns // turn_ns if turn_ns else np.zeros_like(t_ns)

    def _tremble(self, t_ns: Int64s) -> Float64s:
        """Compute each die's relative deviation, (n, running): some waves of no common period."""
        within = t_ns[:, None, None] % self._period_ns / self._period_ns
        waves = np.sin(2 * np.pi * within + self._phase)
        height = self._model.tremble_ratio * np.sqrt(2 / _WAVES)
        trembling: Float64s = height * waves.sum(axis=2)
        return trembling


Runtime = Literal["cuda", "rocm"]
DataParallel = Literal["fsdp1", "fsdp2"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SensorModel:
    """How a driver's sensors sample the device, each once a period."""

    clock_period_ns: int  # of the clock, and the limits with it
    clock_lag_ns: int  # the clock shows the value of this much earlier
    power_period_ns: int
    power_window_ns: int  # power is the mean of this window
    energy_period_ns: int
    energy_step_j: float  # the energy counter moves in whole steps
    activity_window_ns: int  # the busy share is taken over this window, once a window


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuModel:
    """A GPU product: its driver's facts, and the constants of clock, power and heat."""

    name: str
    vendor: Vendor
    sm_clock_max_mhz: float
    mem_clock_mhz: float
    power_limit_w: float
    memory_size_bytes: int
    static_w: float  # power at 30 C with nothing running
    leakage_w_per_c: float  # comes on top of it
    dynamic_w: float  # switching power at the highest clock and activity 1
    inlet_c: float = 28.0  # first-order heat model above this temperature
    thermal_resistance_c_per_w: float
    thermal_constant_ns: float
    slowdown_c: float  # above this temperature the highest clock falls
    slowdown_mhz_per_c: float
    governor_constant_ns: float  # time constant with which the clock follows its target
    clock_step_mhz: float  # the clock moves in steps of this
    idle_mhz: float  # clock with nothing to do
    dies: DieModel | None = None  # compute dies with clocks of their own; None: it has one clock
    sensors: SensorModel


@dataclass(frozen=True, slots=True, kw_only=True)
class JobModel:
    """A training job: one rank a GPU."""

    framework: DataParallel
    runtime: Runtime  # whose kernel and call names the traces show
    layer_count: int = 12  # transformer layers, one FSDP unit each
    work_scale: float = 1.0  # factor on all kernel times
    slow_rank: int | None = None  # the rank whose host is slow; None for none
    slow_loader_ns: float = 0.0  # how much longer it waits for its data loader in each step
    slow_host_ns: float = 0.0  # how long it does something else before it launches


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePreset:
    """A node: equal GPUs, one of them perhaps badly cooled, and perhaps a job."""

    gpu: GpuModel
    gpu_count: int = 8
    badly_cooled: int | None = 5  # index of the GPU with the cooling fault; None for none
    fault_resistance: float = 1.75  # factor on that GPU's thermal resistance
    job: JobModel | None = None  # None for an idle node


H100: Final = GpuModel(
    name="NVIDIA H100 80GB HBM3",
    vendor=Vendor.NVIDIA,
    sm_clock_max_mhz=1980.0,
    mem_clock_mhz=2619.0,
    power_limit_w=700.0,
    memory_size_bytes=85_520_809_984,
    static_w=92.0,
    leakage_w_per_c=0.5,
    dynamic_w=860.0,
    thermal_resistance_c_per_w=0.0585,
    thermal_constant_ns=20.0 * NS_PER_S,
    slowdown_c=84.0,
    slowdown_mhz_per_c=120.0,
    governor_constant_ns=8.0 * NS_PER_MS,
    clock_step_mhz=15.0,
    idle_mhz=345.0,
    sensors=SensorModel(
        clock_period_ns=2 * NS_PER_MS,
        clock_lag_ns=4 * NS_PER_MS,
        power_period_ns=100 * NS_PER_MS,
        power_window_ns=25 * NS_PER_MS,
        energy_period_ns=100 * NS_PER_MS,
        energy_step_j=0.001,
        activity_window_ns=NS_PER_S // 6,
    ),
)

MI300X: Final = GpuModel(
    name="AMD Instinct MI300X",
    vendor=Vendor.AMD,
    sm_clock_max_mhz=2100.0,
    mem_clock_mhz=1300.0,
    power_limit_w=750.0,
    memory_size_bytes=206_141_652_992,
    static_w=122.0,
    leakage_w_per_c=0.5,
    dynamic_w=1365.0,
    thermal_resistance_c_per_w=0.062,
    thermal_constant_ns=18.0 * NS_PER_S,
    slowdown_c=95.0,
    slowdown_mhz_per_c=150.0,
    governor_constant_ns=6.0 * NS_PER_MS,
    clock_step_mhz=1.0,
    idle_mhz=132.0,
    dies=DieModel(count=8),
    sensors=SensorModel(
        clock_period_ns=1 * NS_PER_MS,
        clock_lag_ns=1 * NS_PER_MS,
        power_period_ns=1 * NS_PER_MS,
        power_window_ns=20 * NS_PER_MS,
        energy_period_ns=1 * NS_PER_MS,
        energy_step_j=2.0**-16,
        activity_window_ns=100 * NS_PER_MS,
    ),
)

_SMALL: Final = JobModel(framework="fsdp2", runtime="cuda", layer_count=4)

PRESETS: Final[Mapping[str, NodePreset]] = {
    "fsdp2-h100": NodePreset(
        gpu=H100, job=JobModel(framework="fsdp2", runtime="cuda", work_scale=1.15)
    ),
    "fsdp1-h100": NodePreset(
        gpu=H100, job=JobModel(framework="fsdp1", runtime="cuda", work_scale=1.15)
    ),
    "fsdp2-mi300x": NodePreset(
        gpu=MI300X, job=JobModel(framework="fsdp2", runtime="rocm", work_scale=0.95)
    ),
    "fsdp1-mi300x": NodePreset(
        gpu=MI300X, job=JobModel(framework="fsdp1", runtime="rocm", work_scale=0.95)
    ),
    "even": NodePreset(gpu=H100, badly_cooled=None, job=_SMALL),
    # One rank that takes 5 % of a step longer than the others: by heat, its loader, or its host.
    "slow-heat": NodePreset(gpu=H100, fault_resistance=1.68, job=_SMALL),
    "slow-data": NodePreset(
        gpu=H100, badly_cooled=None, job=replace(_SMALL, slow_rank=5, slow_loader_ns=9e6)
    ),
    "slow-launch": NodePreset(
        gpu=H100, badly_cooled=None, job=replace(_SMALL, slow_rank=5, slow_host_ns=9e6)
    ),
    "idle": NodePreset(gpu=H100),
}


def node_preset(name: str) -> NodePreset:
    """Return the preset of this name.

    Raises:
        ConfigError: There is no preset of this name.
    """
    if name not in PRESETS:
        raise ConfigError([f"simulation preset {name!r} is unknown: one of {', '.join(PRESETS)}"])
    return PRESETS[name]

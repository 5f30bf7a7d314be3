"""Simulates one training step on all GPUs at once: when each block ran, and at what clock."""

import math
from collections import defaultdict
from dataclasses import dataclass
from itertools import chain
from typing import Final, TypeAlias

import numpy as np

from chopperd.model.arrays import Bools, Float64s, Int64s
from chopperd.model.devices import Vendor
from chopperd.model.kinds import Cause
from chopperd.simulation.physics import Silicon
from chopperd.simulation.presets import GpuModel, generator
from chopperd.simulation.program import Block, Program, Stream

Floats: TypeAlias = list[float]

#: Fixed times of a kernel grow by this share while a collective runs at the same time.
CONTENTION: Final = 0.25
#: From a launch call to the earliest start on the device.
LAUNCH_LATENCY_NS: Final = 7_000.0
#: A clock above this share of the highest is set to the highest.
TOP_RATIO: Final = 0.996

#: From the end of a step on the device to the start of the host's next one.
SYNC_NS: Final = 90_000.0
#: Time that a refused allocation costs the host before it waits for the device.
REFUSED_NS: Final = 100_000.0
_STEP_KEY: Final = 12
_STALL_PROBABILITY: Final = 0.7


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDraws:
    """Random draws of one step, (gpus,) each unless noted."""

    loader_ns: Float64s  # time of the data loader
    pause_ns: Float64s  # time of something else that the host does after it
    host_scale: Float64s  # factor on host times
    activity: Float64s  # (blocks, gpus) factor on activity
    transfer: Float64s  # (blocks,) factor on collective transfers
    stall_block: Int64s  # the block at which the allocator stalls the host; -1 for none
    stall_ns: Float64s  # length of the stall once the device is idle


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTiming:
    """Times of one step's blocks, (blocks, gpus), and of its host, (gpus,), in Unix ns."""

    launch_ns: Int64s  # last launch call of each block
    waited_from_ns: Int64s  # when the host reached the block, before the rate limiter
    released_ns: Int64s  # when the rate limiter released the host, before an allocator stall
    start_ns: Int64s  # start and end on the device
    end_ns: Int64s
    clock_mhz: Float64s  # (blocks, gpus) in the clock's steps; NaN for collectives
    stretch: Float64s  # (blocks, gpus) factor on fixed times; 1 for collectives
    before_mhz: Float64s  # (blocks, gpus) the clock at the end of the compute block before
    after_mhz: Float64s  # (gpus,) the clock at the end of the step
    comm_until_ns: Int64s  # (blocks,) until when collectives launched before each block run
    host_start_ns: Int64s  # the host's step, from the data loader to the loss
    host_end_ns: Int64s
    loader_ns: Int64s  # length of the data loader's part
    host_scale: Float64s  # as drawn
    stall_block: Int64s  # as drawn
    stall_synced_ns: Int64s  # when the device was found idle; 0 without a stall
    stall_end_ns: Int64s  # when the allocator had its memory


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockTargets:
    """The clocks that the governor aims at during one step."""

    block_mhz: Float64s  # (blocks, gpus) target in each block
    ceiling_mhz: Float64s  # (gpus,) between blocks: the highest, or what heat or brake allow
    ceiling_bits: Int64s  # (gpus,) the limit that sets a ceiling below the highest clock
    power_bound: Bools  # (blocks, gpus) whether the power limit sets a block's target


def draw_step(program: Program, gpu_count: int, seed: int, step: int) -> StepDraws:
    """Draw the random values of one step; they depend on the seed and the step's number only."""
    rng = generator(_STEP_KEY, seed, step)
    stalling = [index for index, block in enumerate(program.blocks) if block.may_stall]
    chosen = np.full(gpu_count, -1)
    if stalling:
        stalls = rng.random(gpu_count) < _STALL_PROBABILITY
        chosen = np.where(stalls, rng.choice(stalling, gpu_count), -1)
    loader_ns = rng.uniform(0.6e6, 1.6e6, gpu_count)
    host_scale = rng.normal(1.0, 0.03, gpu_count).clip(0.9, 1.1)
    slow = host_scale * (np.arange(gpu_count) == program.job.slow_rank)
    return StepDraws(
        loader_ns=loader_ns + slow * program.job.slow_loader_ns,
        pause_ns=slow * program.job.slow_host_ns,
        host_scale=host_scale,
        activity=rng.normal(1.0, 0.012, (len(program.blocks), gpu_count)).clip(0.94, 1.06),
        transfer=rng.gamma(40.0, 1 / 40.0, len(program.blocks)).clip(0.7, 1.6),
        stall_block=chosen.astype(np.int64),
        stall_ns=rng.uniform(2.0e6, 6.0e6, gpu_count),
    )


def clock_targets(
    silicon: Silicon, activity: Float64s, temperature_c: Float64s, braked_mhz: Float64s
) -> ClockTargets:
    """Compute the governor's targets for blocks' activities, (blocks, gpus), and temperatures.

    `braked_mhz`: (gpus,) what a brake allows; infinite without one.
    """
    capped = silicon.capped_clock_mhz(activity, silicon.resting_w(temperature_c))
    cooled = silicon.cooled_clock_mhz(temperature_c)
    ceiling = np.minimum(cooled, braked_mhz)
    is_nvidia = silicon.model.vendor is Vendor.NVIDIA
    brake = Cause.POWER_BRAKE if is_nvidia else Cause.POWER_CAP  # AMD's drivers name no brake
    return ClockTargets(
        block_mhz=np.minimum(capped, ceiling),
        ceiling_mhz=ceiling,
        ceiling_bits=np.where(braked_mhz < cooled, brake.bit, Cause.THERMAL.bit),
        power_bound=capped <= ceiling,
    )


class StepPlay:
    """Simulates one step; times inside are float ns since `base_ns`, a list over the GPUs.

    Plain floats: with eight GPUs they are several times faster here than arrays of eight.
    """

    def __init__(
        self,
        program: Program,
        model: GpuModel,
        draws: StepDraws,
        targets: ClockTargets,
        *,
        free_ns: Int64s,
        clock_mhz: Float64s,
    ) -> None:
        self.base_ns = int(free_ns.min())
        self._program, self._model, self._draws = program, model, draws
        free: Floats = (free_ns - self.base_ns).astype(float).tolist()
        self._begin = [each + SYNC_NS for each in free]
        self._free = dict.fromkeys(Stream, free)
        self._host: Floats = (self._begin + draws.loader_ns + draws.pause_ns).tolist()
        self._host_scale: Floats = draws.host_scale.tolist()
        self._target: list[Floats] = targets.block_mhz.tolist()
        self._ceiling: Floats = targets.ceiling_mhz.tolist()
        self._now_mhz: Floats = clock_mhz.tolist()
        self._comm_until = 0.0
        self._left = [
            _left_after(block.nominal_ns / model.governor_constant_ns) for block in program.blocks
        ]
        self._stall_synced = [0.0] * len(free)
        self._stall_end = [0.0] * len(free)
        #: One entry a block, each over the GPUs, by what it is.
        self._rows: defaultdict[str, list[Floats]] = defaultdict(list)
        self._comm_untils: Floats = []

    def play(self) -> StepTiming:
        """Run the blocks in launch order; call it only once, as it uses up the state."""
        rows = self._rows
        for index, block in enumerate(self._program.blocks):
            launch = self._launch(index, block)
            self._comm_untils.append(self._comm_until)
            ready = self._ready(block, launch)
            rows["start"].append(ready)
            run = self._transfer if block.collective else self._compute
            self._free[block.stream] = ended = run(index, block, ready)
            rows["end"].append(ended)
        return self._timing()

    def _launch(self, index: int, block: Block) -> Floats:
        """Advance the host past the launch of a block; return when that was, for each GPU."""
        self._rows["waited_from"].append(self._host)
        if block.waits_for_end is not None:
            self._host = list(map(max, self._host, self._rows["end"][block.waits_for_end]))
        self._rows["released"].append(self._host)
        if block.may_stall:
            self._maybe_stall(index)
        cost = block.host_ns
        self._host = [
            at + cost * scale for at, scale in zip(self._host, self._host_scale, strict=True)
        ]
        self._rows["launch"].append(self._host)
        return self._host

    def _maybe_stall(self, index: int) -> None:
        """Let the host wait in the allocator: for an idle device, then to free and allocate again.

        Only on GPUs for which this block was drawn.
        """
        for gpu in np.flatnonzero(self._draws.stall_block == index).tolist():
            refused = self._host[gpu] + REFUSED_NS
            idle = max(refused, *(free[gpu] for free in self._free.values()))
            self._stall_synced[gpu] = idle
            self._stall_end[gpu] = idle + float(self._draws.stall_ns[gpu])
            self._host = [*self._host[:gpu], self._stall_end[gpu], *self._host[gpu + 1 :]]

    def _ready(self, block: Block, launch: Floats) -> Floats:
        """Compute when the block starts on each GPU."""
        ready = self._free[block.stream]
        if max(launch) + LAUNCH_LATENCY_NS > min(ready):
            ready = list(map(max, ready, [at + LAUNCH_LATENCY_NS for at in launch]))
        for other in block.after:
            ready = list(map(max, ready, self._rows["end"][other]))
        return ready

    def _transfer(self, index: int, block: Block, ready: Floats) -> Floats:
        """Run a collective, which ends on all ranks at once after the last came; return when."""
        last = max(ready) + block.fixed_ns * float(self._draws.transfer[index])
        self._comm_until = max(self._comm_until, last)
        self._rows["clock"].append([math.nan] * len(ready))
        self._rows["stretch"].append([1.0] * len(ready))
        self._rows["clock_before"].append(self._now_mhz)
        return [last] * len(ready)

    def _compute(self, index: int, block: Block, ready: Floats) -> Floats:
        nominal_ns, target = block.nominal_ns, self._target[index]
        rested, (left, mean_left) = self._rested(ready), self._left[index]
        self._rows["clock_before"].append(self._now_mhz)
        self._now_mhz = self._towards(target, rested, left)
        step_mhz = self._model.clock_step_mhz
        clocks = [
            step_mhz * round(mean / step_mhz) for mean in self._towards(target, rested, mean_left)
        ]
        stretches = self._stretches(ready, nominal_ns)
        self._rows["clock"].append(clocks)
        self._rows["stretch"].append(stretches)
        clocked_ns = block.clocked_ns * self._model.sm_clock_max_mhz
        fixed_ns, rest_ns = block.fixed_ns, block.rest_ns
        return [
            start + clocked_ns / clock + fixed_ns * stretch + rest_ns
            for start, clock, stretch in zip(ready, clocks, stretches, strict=True)
        ]

    def _towards(self, target: Floats, before: Floats, left: float) -> Floats:
        """Move clocks from `before` to `target` except for a share that is left."""
        highest = self._model.sm_clock_max_mhz
        top = TOP_RATIO * highest
        return [
            highest if (clock := goal + (since - goal) * left) > top else clock
            for goal, since in zip(target, before, strict=True)
        ]

    def _stretches(self, ready: Floats, nominal_ns: float) -> Floats:
        """Compute the factor by which collectives in flight lengthen fixed times."""
        until = self._comm_until
        if until <= min(ready):
            return [1.0] * len(ready)
        return [1 + CONTENTION * min(max(until - start, 0.0) / nominal_ns, 1.0) for start in ready]

    def _rested(self, ready: Floats) -> Floats:
        """Compute the clock after it drifted to its ceiling while the compute stream was idle."""
        free = self._free[Stream.COMPUTE]
        if ready == free:
            return self._now_mhz
        constant_ns = self._model.governor_constant_ns
        return [
            self._top(ceiling + (clock - ceiling) * math.exp((since - start) / constant_ns))
            for start, since, clock, ceiling in zip(
                ready, free, self._now_mhz, self._ceiling, strict=True
            )
        ]

    def _top(self, clock_mhz: float) -> float:
        highest = self._model.sm_clock_max_mhz
        return highest if clock_mhz > TOP_RATIO * highest else clock_mhz

    def _timing(self) -> StepTiming:
        rows = self._rows
        host_end = [max(pair) + SYNC_NS for pair in zip(self._host, rows["end"][-1], strict=True)]
        stalled = np.array(self._stall_end) > 0
        return StepTiming(
            launch_ns=self._absolute(_columns(rows["launch"])),
            waited_from_ns=self._absolute(_columns(rows["waited_from"])),
            released_ns=self._absolute(_columns(rows["released"])),
            start_ns=self._absolute(_columns(rows["start"])),
            end_ns=self._absolute(_columns(rows["end"])),
            clock_mhz=_columns(rows["clock"]),
            stretch=_columns(rows["stretch"]),
            before_mhz=_columns(rows["clock_before"]),
            after_mhz=np.array(self._now_mhz),
            comm_until_ns=self._absolute(np.array(self._comm_untils)),
            host_start_ns=self._absolute(np.array(self._begin)),
            host_end_ns=self._absolute(np.array(host_end)),
            loader_ns=np.rint(self._draws.loader_ns).astype(np.int64),
            host_scale=self._draws.host_scale,
            stall_block=self._draws.stall_block,
            stall_synced_ns=np.where(stalled, self._absolute(np.array(self._stall_synced)), 0),
            stall_end_ns=np.where(stalled, self._absolute(np.array(self._stall_end)), 0),
        )

    def _absolute(self, relative_ns: Float64s) -> Int64s:
        absolute: Int64s = self.base_ns + np.rint(relative_ns).astype(np.int64)
        return absolute


def _left_after(constants: float) -> tuple[float, float]:
    """Return the share of a deviation left after some time constants, and its mean until then."""
    return math.exp(-constants), -math.expm1(-constants) / constants


def _columns(rows: list[Floats]) -> Float64s:
    """Convert rows to one array, (blocks, gpus)."""
    count = len(rows) * len(rows[0])
    flat = np.fromiter(chain.from_iterable(rows), np.float64, count)
    return flat.reshape(len(rows), -1)


def at_top(clock_mhz: Float64s, max_mhz: float) -> Float64s:
    """Return the clock, set to the highest where it is within 0.4 % of it."""
    return np.where(clock_mhz > TOP_RATIO * max_mhz, max_mhz, clock_mhz)

"""Simulates a node: GPUs under a job, evolved lazily step by step, with bounded memory.

All values follow from the seed, the preset and the start, in whichever order they are read.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from math import isnan
from typing import Final, NamedTuple
from uuid import UUID

import numpy as np
from msgspec.structs import replace

from chopperd.model.devices import DeviceReading, GpuInfo, ReadScope, Vendor, lowest_running_mhz
from chopperd.model.kinds import CAUSES
from chopperd.simulation.evolution import COUNTED, NodeState, StepRun, initial_state, run_step
from chopperd.simulation.physics import Silicon, draw_silicon
from chopperd.simulation.presets import (
    Dies,
    GpuModel,
    NodePreset,
    SimulationSpec,
    generator,
    node_preset,
)
from chopperd.simulation.program import Program, build_program
from chopperd.simulation.track import ClockTruth, Track, build_tracks, joined_truth
from chopperd.units import NS_PER_S

# The driver of a simulated GPU: its readings are the truth, seen by sensors with period and lag.

_SENSOR_KEY: Final = 15
_MEMORY_KEY: Final = 16
_USED_MEMORY_SHARE: Final = 0.82
_SEGMENT_BYTES: Final = 20 * 1024 * 1024
_CHURN_PERIOD_NS: Final = NS_PER_S // 2


class Sensors:
    """The sensors of one GPU, which read the tracks that `track_at` gives for a time.

    Each sensor takes its value at its own update times, a period apart with a phase of its own.
    Before the start all values are those at the start.
    """

    def __init__(
        self,
        preset: NodePreset,
        track_at: Callable[[int], Track],
        key: tuple[int, int],
        start_ns: int,
    ) -> None:
        rng = generator(_SENSOR_KEY, *key)
        self._model: GpuModel = preset.gpu
        self._track_at, self._key, self._start_ns = track_at, key, start_ns
        self._phase: list[float] = rng.random(4).tolist()
        used_share = rng.normal(_USED_MEMORY_SHARE, 0.002) if preset.job else 0.005
        self._used_bytes = int(self._model.memory_size_bytes * used_share)
        self._churns = preset.job is not None and preset.job.framework == "fsdp1"
        self._dies = Dies(self._model.dies, rng) if self._model.dies else None

    def reading(self, t_ns: int, scope: ReadScope) -> DeviceReading:
        """Return the driver's reading at a time: all fields, or clock and limits only."""
        sensors = self._model.sensors
        seen_ns = self._update_ns(t_ns, sensors.clock_period_ns, 0) - sensors.clock_lag_ns
        seen_ns = max(seen_ns, self._start_ns)
        track = self._track_at(seen_ns)
        dies_mhz = self._die_clocks_mhz(seen_ns)
        fast = DeviceReading(
            sm_clock_mhz=lowest_running_mhz(dies_mhz) if dies_mhz else self._stepped_mhz(seen_ns),
            die_clocks_mhz=dies_mhz,
            causes=frozenset(c for c in CAUSES if track.causes_at(seen_ns) & c.bit),
            limited_ns={cause: track.limited_until_ns(cause, seen_ns) for cause in COUNTED},
        )
        if scope is ReadScope.FAST:
            return fast
        return replace(
            fast,
            mem_clock_mhz=self._model.mem_clock_mhz,
            power_w=self._power_w(t_ns),
            energy_j=self._energy_j(t_ns),
            temperature_c=float(int(self._track_at(t_ns).temperature_at_c(t_ns))),
            memory_used_bytes=self._memory_used_bytes(t_ns),
            activity_ratio=self._activity_ratio(t_ns),
        )

    def _stepped_mhz(self, t_ns: int) -> float:
        step_mhz = self._model.clock_step_mhz
        return round(self._track_at(t_ns).clock_mhz_at(t_ns) / step_mhz) * step_mhz

    def _die_clocks_mhz(self, t_ns: int) -> tuple[float | None, ...]:
        """Return each compute die's clock at a time, in the clock's steps; empty without dies."""
        if self._dies is None:
            return ()
        clock_mhz = np.array([self._track_at(t_ns).clock_mhz_at(t_ns)])
        (clocks_mhz,) = self._dies.clocks_mhz(clock_mhz, np.array([t_ns], np.int64))
        step_mhz = self._model.clock_step_mhz
        stepped = (np.round(clocks_mhz / step_mhz) * step_mhz).tolist()
        return tuple(None if isnan(each) else each for each in stepped)

    def _update_ns(self, t_ns: int, period_ns: int, sensor: int) -> int:
        """Return the time of a sensor's last update at or before a time."""
        phase_ns = int(self._phase[sensor] * period_ns)
        return (t_ns - phase_ns) // period_ns * period_ns + phase_ns

    def _power_w(self, t_ns: int) -> float:
        window_ns = self._model.sensors.power_window_ns
        end_ns = self._update_ns(t_ns, self._model.sensors.power_period_ns, 1)
        spent_j = self._energy_until_j(end_ns) - self._energy_until_j(end_ns - window_ns)
        return round(spent_j * NS_PER_S / window_ns, 3)

    def _energy_j(self, t_ns: int) -> float:
        at_ns = self._update_ns(t_ns, self._model.sensors.energy_period_ns, 2)
        step_j = self._model.sensors.energy_step_j
        return float(self._energy_until_j(at_ns) // step_j) * step_j

    def _energy_until_j(self, t_ns: int) -> float:
        track = self._track_at(max(t_ns, self._start_ns))
        if t_ns < self._start_ns:
            before_s = (self._start_ns - t_ns) / NS_PER_S
            return track.energy_j - float(track.power.value[0]) * before_s
        return track.energy_until_j(t_ns)

    def _activity_ratio(self, t_ns: int) -> float:
        window_ns = self._model.sensors.activity_window_ns
        end_ns = max(self._update_ns(t_ns, window_ns, 3), self._start_ns)
        begin_ns = max(end_ns - window_ns, self._start_ns)
        busy_ns = self._track_at(end_ns).busy_until_ns(end_ns)
        busy_ns -= self._track_at(begin_ns).busy_until_ns(begin_ns)
        return round(busy_ns / (end_ns - begin_ns), 2) if end_ns > begin_ns else 0.0

    def _memory_used_bytes(self, t_ns: int) -> int:
        """Return the memory in use; FSDPv1's varies in segments, otherwise it is constant."""
        if not self._churns:
            return self._used_bytes
        period = (t_ns - self._start_ns) // _CHURN_PERIOD_NS
        segments = generator(_MEMORY_KEY, *self._key, period).integers(0, 60)
        return self._used_bytes + int(segments) * _SEGMENT_BYTES


_IDENTITY_KEY = 14


def gpu_identities(preset: NodePreset, seed: int) -> tuple[GpuInfo, ...]:
    """Make the preset's GPUs in the driver's order; their UUIDs depend on the seed."""
    rng, model = generator(_IDENTITY_KEY, seed), preset.gpu
    sensors, prefix = model.sensors, "GPU-" if model.vendor is Vendor.NVIDIA else ""
    return tuple(
        GpuInfo(
            gpu=str(index),
            index=index,
            uuid=prefix + str(UUID(bytes=rng.bytes(16))),
            name=model.name,
            vendor=model.vendor,
            pci_bus_id=f"00000000:{0x1B + 0x1D * index:02X}:00.0",
            sm_clock_max_mhz=model.sm_clock_max_mhz,
            mem_clock_max_mhz=model.mem_clock_mhz,
            power_limit_w=model.power_limit_w,
            power_limit_default_w=model.power_limit_w,
            memory_size_bytes=model.memory_size_bytes,
            sensor_lag_ns=sensors.clock_lag_ns + sensors.clock_period_ns // 2,
            sm_clock_period_ns=sensors.clock_period_ns,
            sm_clock_average_ns=0,
            power_period_ns=sensors.power_period_ns,
            energy_period_ns=sensors.energy_period_ns,
        )
        for index in range(preset.gpu_count)
    )


_STORED_STEPS: Final = 32
_STEPS_PER_CHECKPOINT: Final = 256


class Played(NamedTuple):
    """A simulated step of all GPUs: its run, each GPU's track, and the state after it."""

    run: StepRun
    tracks: tuple[Track, ...]
    after: NodeState


class SimulatedNode:
    """The simulated node of a spec. Not safe for calls from several threads at once."""

    def __init__(self, spec: SimulationSpec) -> None:
        preset = node_preset(spec.preset)
        self.spec, self.preset = spec, preset
        self.gpus: tuple[GpuInfo, ...] = gpu_identities(preset, spec.seed)
        self.program: Program | None = None if preset.job is None else build_program(preset.job)
        self.silicon: Silicon = draw_silicon(preset, spec.seed)
        self._sensors = tuple(
            Sensors(preset, partial(self.track, index), (spec.seed, index), spec.start_unix_ns)
            for index in range(preset.gpu_count)
        )
        self._checkpoints = [
            initial_state(self.silicon, self.program, spec.seed, spec.start_unix_ns)
        ]
        #: The last steps; older ones are simulated again when needed.
        self._stored: OrderedDict[int, Played] = OrderedDict()

    def reading(
        self, index: int, t_unix_ns: int, scope: ReadScope = ReadScope.FULL
    ) -> DeviceReading:
        """Return the driver's reading of a GPU at a time; before the start, that at the start."""
        return self._sensors[index].reading(max(t_unix_ns, self.spec.start_unix_ns), scope)

    def truth(self, index: int, start_unix_ns: int, end_unix_ns: int) -> ClockTruth:
        """Return a GPU's true clock over (at least) a time that does not begin before the start."""
        tracks = [self.track(index, start_unix_ns)]
        while tracks[-1].end_ns < end_unix_ns:
            tracks.append(self.track(index, tracks[-1].end_ns))
        return joined_truth(tracks)

    def track(self, index: int, t_unix_ns: int) -> Track:
        """Return the GPU's track that contains a time, which must not be before the start."""
        return self._played_at(index, t_unix_ns).tracks[index]

    def steps(self, first: int, last: int) -> Iterator[StepRun]:
        """Yield the steps `first` to `last`, both included."""
        for step in range(first, last + 1):
            yield self._played(step).run

    def step_at(self, t_unix_ns: int) -> int:
        """Return the number of GPU 0's step at a time; before the start, the first."""
        return self._played_at(0, max(t_unix_ns, self.spec.start_unix_ns)).run.before.step

    def _played_at(self, index: int, t_ns: int) -> Played:
        """Return the step that a GPU is in at a time, simulating it if it is not in memory."""
        for played in reversed(self._stored.values()):
            if played.tracks[index].start_ns <= t_ns < played.tracks[index].end_ns:
                return played
        return self._evolved(
            lambda state: int(state.free_ns[index]) <= t_ns,
            lambda played: t_ns < played.tracks[index].end_ns,
        )

    def _played(self, step: int) -> Played:
        return self._stored.get(step) or self._evolved(
            lambda state: state.step <= step, lambda played: step < played.after.step
        )

    def _evolved(
        self, is_before: Callable[[NodeState], bool], reaches: Callable[[Played], bool]
    ) -> Played:
        """Simulate steps from the latest known state before the goal until one reaches it."""
        known = [*self._checkpoints, *(played.after for played in self._stored.values())]
        state = max(filter(is_before, known), key=lambda each: each.step)
        while True:
            run, after = run_step(
                self.silicon, self.program, self.spec.seed, state, self.spec.brake
            )
            played = Played(run, build_tracks(run, after), after)
            self._stored[state.step] = played
            if len(self._stored) > _STORED_STEPS:
                self._stored.popitem(last=False)
            last = self._checkpoints[-1].step
            if after.step % _STEPS_PER_CHECKPOINT == 0 and after.step > last:
                self._checkpoints.append(after)
            if reaches(played):
                return played
            state = after

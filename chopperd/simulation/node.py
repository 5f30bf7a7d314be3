"""A simulated node: GPUs under a job, evolved lazily step by step, with bounded memory.

Everything follows from the seed, the preset and the start; reading in another order, or again,
gives the same values.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, NamedTuple

from chopperd.model.devices import DeviceReading, GpuInfo, ReadScope
from chopperd.simulation.evolution import NodeState, StepRun, initial_state, run_step
from chopperd.simulation.physics import Silicon, draw_silicon
from chopperd.simulation.presets import SimulationSpec, node_preset
from chopperd.simulation.program import Program, build_program
from chopperd.simulation.sensors import Sensors, gpu_identities
from chopperd.simulation.track import ClockTruth, Track, build_tracks, joined_truth

_STORED_STEPS: Final = 32
_STEPS_PER_CHECKPOINT: Final = 256


class Played(NamedTuple):
    """One step of all GPUs: what happened, each GPU's track, and the state after it."""

    run: StepRun
    tracks: tuple[Track, ...]
    after: NodeState


class SimulatedNode:
    """The node that a spec names. Not safe for calls from several threads at once.

    Raises:
        ConfigError: The preset is unknown.
    """

    def __init__(self, spec: SimulationSpec) -> None:
        preset = node_preset(spec.preset)
        self.spec, self.preset = spec, preset
        self.gpus: tuple[GpuInfo, ...] = gpu_identities(preset, spec.seed)
        self.program: Program | None = None if preset.job is None else build_program(preset.job)
        self.silicon: Silicon = draw_silicon(preset, spec.seed)
        self._sensors = tuple(
            Sensors(
                preset,
                partial(self.track, index),
                key=(spec.seed, index),
                start_ns=spec.start_unix_ns,
            )
            for index in range(preset.gpu_count)
        )
        start = initial_state(
            self.silicon, self.program, seed=spec.seed, start_unix_ns=spec.start_unix_ns
        )
        self._checkpoints = [start]
        self._stored: OrderedDict[int, Played] = OrderedDict()

    @property
    def stored_step_count(self) -> int:
        """How many steps are in memory; older ones are played again when asked for."""
        return len(self._stored)

    def reading(
        self, index: int, t_unix_ns: int, scope: ReadScope = ReadScope.FULL
    ) -> DeviceReading:
        """What the driver would answer for a GPU at a time; before the start, as at the start."""
        return self._sensors[index].reading(max(t_unix_ns, self.spec.start_unix_ns), scope)

    def truth(self, index: int, start_unix_ns: int, end_unix_ns: int) -> ClockTruth:
        """The true clock of a GPU over (at least) a time that does not begin before the start."""
        tracks = [self.track(index, start_unix_ns)]
        while tracks[-1].end_ns < end_unix_ns:
            tracks.append(self.track(index, tracks[-1].end_ns))
        return joined_truth(tracks)

    def track(self, index: int, t_unix_ns: int) -> Track:
        """All that is true of a GPU around a time that is not before the start."""
        return self._played_at(index, t_unix_ns).tracks[index]

    def steps(self, first: int, last: int) -> Iterator[StepRun]:
        """The steps `first` to `last`, both included, one by one."""
        for step in range(first, last + 1):
            yield self._played(step).run

    def step_at(self, t_unix_ns: int) -> int:
        """The number of the step that GPU 0 is in at a time; before the start, the first."""
        return self._played_at(0, max(t_unix_ns, self.spec.start_unix_ns)).run.before.step

    def _played_at(self, index: int, t_ns: int) -> Played:
        """The step that a GPU is in at a time."""
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
        """Play on from the latest known state before the goal until a step reaches it."""
        known = [*self._checkpoints, *(played.after for played in self._stored.values())]
        state = max(filter(is_before, known), key=lambda each: each.step)
        while True:
            run, after = run_step(self.silicon, self.program, self.spec.seed, state)
            played = Played(run, build_tracks([run], after), after)
            self._stored[state.step] = played
            if len(self._stored) > _STORED_STEPS:
                self._stored.popitem(last=False)
            last = self._checkpoints[-1].step
            if after.step % _STEPS_PER_CHECKPOINT == 0 and after.step > last:
                self._checkpoints.append(after)
            if reaches(played):
                return played
            state = after

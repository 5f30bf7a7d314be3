"""A simulated node: GPUs under a job, evolved lazily in chunks of steps, with bounded memory.

Everything follows from the seed, the preset and the start; reading in another order, or again,
gives the same values.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from chopperd.model.devices import DeviceReading, GpuInfo, ReadScope
from chopperd.simulation.evolution import NodeState, StepRun, initial_state, run_step
from chopperd.simulation.physics import Silicon, draw_silicon
from chopperd.simulation.presets import SimulationSpec, node_preset
from chopperd.simulation.program import Program, build_program
from chopperd.simulation.sensors import Sensors, gpu_identities
from chopperd.simulation.track import ClockTruth, Track, build_tracks, joined_truth

_STEPS_PER_CHUNK: Final = 1
_KEPT_CHUNKS: Final = 32
_STEPS_PER_CHECKPOINT: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """One or a few consecutive steps of all GPUs."""

    runs: tuple[StepRun, ...]
    tracks: tuple[Track, ...]
    after: NodeState

    @property
    def first_step(self) -> int:
        """Number of its first step."""
        return self.runs[0].before.step


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
        self._kept: OrderedDict[int, Chunk] = OrderedDict()

    @property
    def kept_chunk_count(self) -> int:
        """How many chunks are in memory; older ones are played again when asked for."""
        return len(self._kept)

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
        return self._chunk_at(index, t_unix_ns).tracks[index]

    def steps(self, first: int, last: int) -> Iterator[StepRun]:
        """The steps `first` to `last`, both included, one by one."""
        for step in range(first, last + 1):
            chunk = self._chunk_of(step)
            yield chunk.runs[step - chunk.first_step]

    def step_at(self, t_unix_ns: int) -> int:
        """The number of the step that GPU 0 is in at a time; before the start, the first."""
        t_ns = max(t_unix_ns, self.spec.start_unix_ns)
        before = [run.before for run in self._chunk_at(0, t_ns).runs]
        return max(state.step for state in before if state.free_ns[0] <= t_ns)

    def _chunk_at(self, index: int, t_ns: int) -> Chunk:
        for chunk in reversed(self._kept.values()):
            if chunk.tracks[index].start_ns <= t_ns < chunk.tracks[index].end_ns:
                return chunk
        return self._evolved(
            lambda state: int(state.free_ns[index]) <= t_ns,
            lambda chunk: t_ns < chunk.tracks[index].end_ns,
        )

    def _chunk_of(self, step: int) -> Chunk:
        kept = self._kept.get(step // _STEPS_PER_CHUNK)
        return kept or self._evolved(
            lambda state: state.step <= step, lambda chunk: step < chunk.after.step
        )

    def _evolved(
        self, is_before: Callable[[NodeState], bool], reaches: Callable[[Chunk], bool]
    ) -> Chunk:
        """Evolves from the latest known state that lies before, until a chunk reaches the goal."""
        known = [*self._checkpoints, *(chunk.after for chunk in self._kept.values())]
        state = max(filter(is_before, known), key=lambda each: each.step)
        while True:
            chunk = self._play(state)
            self._keep(chunk)
            if reaches(chunk):
                return chunk
            state = chunk.after

    def _play(self, state: NodeState) -> Chunk:
        runs: list[StepRun] = []
        for _ in range(_STEPS_PER_CHUNK):
            run, state = run_step(self.silicon, self.program, self.spec.seed, state)
            runs.append(run)
        return Chunk(runs=tuple(runs), tracks=build_tracks(runs, state), after=state)

    def _keep(self, chunk: Chunk) -> None:
        self._kept[chunk.first_step // _STEPS_PER_CHUNK] = chunk
        if len(self._kept) > _KEPT_CHUNKS:
            self._kept.popitem(last=False)
        step = chunk.after.step
        if step % _STEPS_PER_CHECKPOINT == 0 and step > self._checkpoints[-1].step:
            self._checkpoints.append(chunk.after)

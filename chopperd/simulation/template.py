"""Renders a step's trace events from one text with holes, filled for each step.

The layout is what torch 2.13 writes: one key a line, times in microseconds with three decimals.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np

from chopperd.model.arrays import Int64s
from chopperd.simulation.presets import Runtime
from chopperd.simulation.program import Stream, Thread
from chopperd.units import NS_PER_US


class Moment(NamedTuple):
    """A time: an index into the step's time column, and an offset in ns."""

    source: int
    offset_ns: int


class Id(NamedTuple):
    """A number that is unique in the file: this far above the step's first id."""

    number: int


class Count(NamedTuple):
    """A number that counts on over steps: this far above the first of the step, of so many."""

    number: int
    per_step: int


Argument: TypeAlias = int | float | str | Id | Count | list[int]


class Row(NamedTuple):
    """The process and thread (or device and stream) whose row in a viewer shows an event."""

    pid: int
    tid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTemplate:
    """The text of a step's events."""

    text: str  # the events as JSON, with a hole (`%d`, `%03d`) for each number
    holes: Int64s  # which number goes into each hole: an index into the pool that `fill` makes
    moments: Int64s  # (events, 2, 2): source and offset of the begin and of the end
    id_count: int  # number of ids that a step uses
    counted: int = 0  # number of `Count` that a step counts on by

    def fill(self, times_ns: Int64s, *, base_ns: int, first_id: int, step: int) -> str:
        """Render the events of one step, with times since `base_ns`, joined by commas."""
        at_ns = times_ns[self.moments[..., 0]] + self.moments[..., 1] - base_ns
        begin, length = at_ns[:, 0], at_ns[:, 1] - at_ns[:, 0]
        pool = np.concatenate(
            (
                begin // NS_PER_US,
                begin % NS_PER_US,
                length // NS_PER_US,
                length % NS_PER_US,
                [step],
                first_id + np.arange(self.id_count),
                step * self.counted + np.arange(self.counted),
            )
        )
        return self.text % tuple(pool[self.holes].tolist())


@dataclass(slots=True)
class TemplateBuilder:
    """Collects events into a template."""

    parts: list[str] = field(default_factory=list)
    events: list[tuple[Moment, Moment]] = field(default_factory=list)
    holes: list[tuple[int, int]] = field(default_factory=list)
    id_count: int = 0
    counted: int = 0

    def new_id(self) -> Id:
        """Return an id that no other event has."""
        self.id_count += 1
        return Id(self.id_count - 1)

    def complete(
        self,
        category: str,
        name: str,
        row: Row,
        span: tuple[Moment, Moment],
        arguments: dict[str, Argument],
        *,
        numbered: bool = False,
    ) -> None:
        """Add an event with a duration; `numbered` puts the step's number after the name."""
        event = len(self.events)
        self.events.append(span)
        label = _json(name)
        if numbered:
            label = label[:-1] + '%d"'
            self.holes.append((4, 0))
        self.holes.extend((kind, event) for kind in range(4))
        texts = [f"{_json(key)}: {self._argument(value)}" for key, value in arguments.items()]
        self.parts.append(
            f'\n  {{\n    "ph": "X",\n    "cat": "{category}",\n    "name": {label},\n'
            f'    "pid": {row.pid},\n    "tid": {row.tid},\n'
            '    "ts": %d.%03d,\n    "dur": %d.%03d\n    ,\n    "args": {\n      '
            + ", ".join(texts)
            + "\n    }\n  }"
        )

    def instant(self, name: str, row: Row, at: Moment, arguments: dict[str, Argument]) -> None:
        """Add an event without a duration, of the host."""
        event = len(self.events)
        self.events.append((at, at))
        self.holes.extend(((0, event), (1, event)))
        texts = [f"{_json(key)}: {self._argument(value)}" for key, value in arguments.items()]
        self.parts.append(
            '\n  {\n    "ph": "i",\n    \n    "cat": "cpu_instant_event",\n    "s": "t",\n'
            f'    "name": {_json(name)},\n    "pid": {row.pid},\n    "tid": {row.tid},\n'
            '    "ts": %d.%03d\n    ,\n    "args": {\n      ' + ", ".join(texts) + "\n    }\n  }"
        )

    def flow(self, phase: str, row: Row, at: Moment, number: Id) -> None:
        """Add one end of an arrow: at a launch ("s"), or at the kernel it launched ("f")."""
        event = len(self.events)
        self.events.append((at, at))
        self.holes.extend(((5, number.number), (0, event), (1, event)))
        binding = ', "bp": "e"' if phase == "f" else ""
        self.parts.append(
            f'\n  {{\n    "ph": "{phase}",\n    "id": %d,\n    "pid": {row.pid},\n'
            f'    "tid": {row.tid},\n    "ts": %d.%03d,\n    "cat": "ac2g",\n'
            f'    "name": "ac2g"\n    {binding}\n  }}'
        )

    def build(self) -> StepTemplate:
        """Build the template of all events added."""
        count = len(self.events)
        numbers = [0, count, 2 * count, 3 * count, 4 * count, 4 * count + 1]
        starts = np.array([*numbers, 4 * count + 1 + self.id_count])
        holes = np.array(self.holes, np.int64).reshape(-1, 2)
        return StepTemplate(
            text=",".join(self.parts),
            holes=starts[holes[:, 0]] + holes[:, 1],
            moments=np.array(self.events, np.int64).reshape(-1, 2, 2),
            id_count=self.id_count,
            counted=self.counted,
        )

    def _argument(self, value: Argument) -> str:
        if isinstance(value, Id):
            self.holes.append((5, value.number))
            return "%d"
        if isinstance(value, Count):
            self.counted = value.per_step
            self.holes.append((6, value.number))
            return "%d"
        return _json(value)


def _json(value: Argument) -> str:
    return msgspec.json.encode(value).decode().replace("%", "%%")


_FIRST_PID = 41_216
_PIDS_APART = 137
_AUTOGRAD_TID_ABOVE = 411
#: Under ROCm the device number is that of the driver's node list, which has the CPUs first.
_CPU_NODES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RankProcess:
    """One rank's process, which sees one GPU."""

    rank: int
    runtime: Runtime
    pid: int
    device: int  # the trace's number of that GPU
    streams: dict[Stream, int]  # the trace's number of each stream

    def host(self, thread: Thread) -> Row:
        """Return the row of a host thread."""
        above = _AUTOGRAD_TID_ABOVE if thread is Thread.AUTOGRAD else 0
        return Row(pid=self.pid, tid=self.pid + above)

    def on_device(self, stream: Stream) -> Row:
        """Return the row of a stream."""
        return Row(pid=self.device, tid=self.streams[stream])


def rank_process(rank: int, runtime: Runtime, pids: Sequence[int] = ()) -> RankProcess:
    """Make the process of a rank; `pids`: pids of real processes, by rank."""
    cuda = runtime == "cuda"
    numbers = (7, 24, 28) if cuda else (0, 3, 4)
    return RankProcess(
        rank=rank,
        runtime=runtime,
        pid=pids[rank] if pids else _FIRST_PID + _PIDS_APART * rank,
        device=0 if cuda else _CPU_NODES + rank,
        streams=dict(zip(Stream, numbers, strict=True)),
    )

"""Device memory of a simulated rank: what each step asks for, as its trace and a snapshot show it.

FSDPv1 gives a unit's parameters back with `record_stream`: they can be had again once the device
is done with them, which the allocator finds out at a later request. FSDPv2 gives everything back
at fixed places. Where a stall of the host was drawn, the allocator is refused memory and flushes
its cache. All else follows from the requests and the times of the step.
"""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from chopperd.model.arrays import Int64s
from chopperd.simulation.allocator import KIB, MIB, CachingAllocator
from chopperd.simulation.presets import GpuModel
from chopperd.simulation.program import Program, Section, Stream, Thread
from chopperd.simulation.step_events import STALL_END, STALL_SYNCED, UNIT_ELEMENTS, StepEvents
from chopperd.simulation.template import (
    Argument,
    Moment,
    RankProcess,
    Row,
    StepTemplate,
    TemplateBuilder,
)
from chopperd.units import NS_PER_US

_SHARDS: Final = 8
_UNIT_BYTES: Final = 2 * UNIT_ELEMENTS
#: 8,192 tokens of 8,192 numbers; larger devices are given longer batches.
_HIDDEN_BYTES: Final = 128 * MIB
_BATCH_MEMORY_BYTES: Final = 60 << 30
#: What the blocks of a layer's forward pass keep for its backward pass, in such activations, and
#: which of its blocks needs that last.
_KEPT: Final = ((3.0, 5), (2.0, 4), (7.0, 2), (3.5, 1))
_FORWARD_SCRATCH: Final = {3: 3.5}
_BACKWARD_SCRATCH: Final = {1: 3.5, 4: 3.0}
_LOGITS: Final = 16.0
_WARM_UP_STEPS: Final = 2

#: Streams by their number in the allocator.
_STREAMS: Final = tuple(Stream)
_FREE_NS: Final = 180 * NS_PER_US
#: Numbers of the runtime calls.
_NUMBERS: Final = {
    **{"cudaMalloc": 20, "cudaFree": 22, "cudaDeviceSynchronize": 165},
    **{"hipMalloc": 118, "hipFree": 79, "hipDeviceSynchronize": 48},
}
#: Device types of c10 that rows of memory have: CUDA and HIP.
_DEVICE_TYPE: Final = {"cuda": 1, "rocm": 6}
#: Length of a call for memory inside an operator, and inside a hook of FSDP.
_CALL_US: Final = 7
_HOOK_CALL_US: Final = 40


class Request(NamedTuple):
    """An allocation, or (`size` 0) the free of an earlier one with the same key."""

    key: str
    size: int
    stream: Stream
    thread: Thread
    at: Moment
    call_us: int = _CALL_US  # length of a call for memory before it
    until: Moment | None = None  # when another stream is done with what is freed
    block: int = -1  # at which the host may stall here


@dataclass(slots=True)
class _Requests:
    """Collects what a step asks for, block by block."""

    program: Program
    events: StepEvents
    activation_bytes: int
    found: list[Request] = field(default_factory=list)
    #: Freed with the next of its kind: FSDPv2's communication buffers.
    held: dict[Stream, list[str]] = field(default_factory=dict)

    @property
    def is_v1(self) -> bool:
        return self.program.job.framework == "fsdp1"

    def get(
        self, key: str, size: float, kernel: int, offset_us: int = -1, **more: int | Stream
    ) -> None:
        """Ask for memory about the launch of a kernel, before which a call for it may lie."""
        fields = {"stream": Stream.COMPUTE, **more}
        at = self.events.launch(kernel, offset_us)
        self.found.append(Request(key, int(size), thread=self._thread(kernel), at=at, **fields))  # type: ignore[arg-type]

    def give(self, key: str, kernel: int, offset_us: int, until: Moment | None = None) -> None:
        """Give memory back about the launch of a kernel."""
        at = self.events.launch(kernel, offset_us)
        thread = self._thread(kernel)
        self.found.append(Request(key, 0, Stream.COMPUTE, thread, at, until=until))

    def _thread(self, kernel: int) -> Thread:
        return self.program.blocks[self.program.kernels[kernel].block].thread

    def hold(self, key: str, stream: Stream, kernel: int, offset_us: int) -> None:
        """Give back what was held on a stream, and hold this."""
        for each in self.held.get(stream, []):
            self.give(each, kernel, offset_us)
        self.held[stream] = [key]


def step_requests(program: Program, process: RankProcess, model: GpuModel) -> tuple[Request, ...]:
    """Return what a rank asks for in each step, in the order of its launches."""
    batch = max(1, model.memory_size_bytes // _BATCH_MEMORY_BYTES)
    made = _Requests(program, StepEvents(program, process), batch * _HIDDEN_BYTES)
    named = {section.first: section for section in program.sections}
    section: Section | None = None
    for index, block in enumerate(program.blocks):
        section = named.get(index, section)  # the last one may have ended before
        op = program.kernels[block.first].recipe.op
        if op == "c10d::_allgather_base_":
            _gather(made, index)
        elif op == "c10d::_reduce_scatter_base_":
            _reduce(made, index)
        elif section is not None and "layers." in section.name:
            _layer_block(made, section, index)
        if op == "fsdp::split_with_sizes_copy":
            _copied_out(made, index)
        if section is not None and index == section.last:
            _section_end(made, section)
    _around(made)
    return tuple(made.found)


def _gathered(program: Program, unit: str | None, block: int) -> str:
    return f"gathered {unit} {program.blocks[block].thread.value}"


def _gather(made: _Requests, index: int) -> None:
    """Ask for the parameters of a unit: FSDPv1 for the whole, FSDPv2 for a buffer to copy from."""
    block = made.program.blocks[index]
    unit = made.program.kernels[block.first].unit
    made.get(
        _gathered(made.program, unit, index),
        _unit_bytes(unit),
        block.first,
        -98 if made.is_v1 else -78,
        stream=Stream.ALL_GATHER,
        call_us=_HOOK_CALL_US,
        block=index,
    )


def _copied_out(made: _Requests, index: int) -> None:
    """Ask for FSDPv2's parameters of a unit; the buffer of the unit before goes."""
    kernel = made.program.blocks[index].first
    unit = made.program.kernels[kernel].unit
    made.get(f"parameters {unit}", _unit_bytes(unit), kernel)
    made.hold(_gathered(made.program, unit, index), Stream.ALL_GATHER, kernel, 8)


def _reduce(made: _Requests, index: int) -> None:
    """Ask for a unit's part of the gradients; what is reduced and the parameters go."""
    program, events = made.program, made.events
    block, before = program.blocks[index], program.blocks[index - 1]
    kernel, last = block.first, before.first + before.count - 1
    unit = program.kernels[kernel].unit
    if made.is_v1:
        gathered = _gathered(program, unit, index if unit else 0)
        made.give(gathered, kernel, -147, until=events.end(last))
        made.give(f"gradients {unit}", kernel, 20, until=events.end(kernel))
    else:
        made.get(f"packed {unit}", _unit_bytes(unit), last, stream=Stream.REDUCE_SCATTER)
        made.give(f"parameters {unit}", kernel, -180)
        made.give(f"gradients {unit}", kernel, -166)
        made.hold(f"packed {unit}", Stream.REDUCE_SCATTER, kernel, -164)
    made.get(
        f"reduced {unit}",
        _unit_bytes(unit) // _SHARDS,
        kernel,
        -98 if made.is_v1 else -78,
        stream=Stream.REDUCE_SCATTER,
        call_us=_HOOK_CALL_US,
    )


def _unit_bytes(unit: str | None) -> int:
    return _UNIT_BYTES if unit else _UNIT_BYTES // 2


def _layer_block(made: _Requests, section: Section, index: int) -> None:
    """Ask for what a compute block of a layer keeps, and give back what it needs last."""
    program, block = made.program, made.program.blocks[index]
    compute = [
        i for i in range(section.first, section.last + 1) if not program.blocks[i].collective
    ]
    nth, unit = compute.index(index), section.name.split()[1]
    first, last = block.first, block.first + block.count - 1
    is_forward = section.name.startswith("forward")
    scratch = (_FORWARD_SCRATCH if is_forward else _BACKWARD_SCRATCH).get(nth)
    if not is_forward and nth == 0:
        made.get(f"gradients {unit}", _UNIT_BYTES, first + 1)
    if scratch is not None:
        made.get(f"scratch {section.name} {nth}", scratch * made.activation_bytes, first + 1)
    if is_forward:
        made.get(f"kept {unit} {nth}", _KEPT[nth][0] * made.activation_bytes, last)
    if scratch is not None:
        made.give(f"scratch {section.name} {nth}", last, 8)
    if not is_forward:
        for kept, (_, needed_by) in enumerate(_KEPT):
            if needed_by == nth:
                made.give(f"kept {unit} {kept}", last, 9)


def _section_end(made: _Requests, section: Section) -> None:
    program, events = made.program, made.events
    block = program.blocks[section.last]
    last = block.first + block.count - 1
    if section.name.startswith("forward"):
        unit = section.name.split()[1]
        if made.is_v1:
            gathered = _gathered(program, unit, section.last)
            made.give(gathered, last, 16, until=events.end(last))
        else:
            made.give(f"parameters {unit}", last, 16)
    elif section.name == "head":
        made.get("logits", _LOGITS * made.activation_bytes, block.first + 1)
    elif section.name == "backward head":
        made.get("gradients of logits", _LOGITS * made.activation_bytes, block.first + 1)
        made.get("gradients ", _UNIT_BYTES // 2, last)
        made.give("logits", last, 8)
        made.give("gradients of logits", last, 9)


def _around(made: _Requests) -> None:
    """Ask for the batch and the optimizer's needs; gradients go with `zero_grad`."""
    program = made.program
    sections = {each.name: each for each in program.sections}
    for name in ("clip", "optimizer"):
        for index in range(sections[name].first, sections[name].last + 1):
            block = program.blocks[index]
            if not block.collective:
                size = _UNIT_BYTES // _SHARDS if name == "optimizer" else 4 * KIB
                made.get(f"scratch {index}", size, block.first + 1)
                made.give(f"scratch {index}", block.first + block.count - 1, 8)
    loss = len(program.kernels) - 1
    end = made.events.end(loss)
    made.get("batch", 64 * KIB, 0)
    every = ["batch", *(each.key for each in made.found if each.key.startswith("reduced"))]
    every += [key for keys in made.held.values() for key in keys]
    made.found += [
        Request(key, 0, Stream.COMPUTE, Thread.MAIN, end._replace(offset_ns=(30 + nth) * NS_PER_US))
        for nth, key in enumerate(every)
    ]


class _Played(NamedTuple):
    """A request that was played: when, what the driver was called for, and the row it left."""

    request: Request
    at_ns: int
    calls: list[str]
    row: tuple[int, int, int, int, int, bool]


class RankAllocator:
    """The allocator of one rank, step by step, and what of it a trace shows.

    Before the first step it has played that step some times: profiles are taken of jobs whose
    cache has grown.
    """

    def __init__(self, program: Program, process: RankProcess, model: GpuModel) -> None:
        vendor = "cuda" if process.runtime == "cuda" else "hip"
        self.allocator = CachingAllocator(vendor=vendor, is_timed=False)
        self._events = StepEvents(program, process)
        self._requests = step_requests(program, process, model)
        self._live: dict[str, int] = {}
        self._is_warm = False
        self._played: list[_Played] = []  # the newest step's requests

    def step(self, times_ns: Int64s, stall_block: int) -> tuple[StepTemplate, Int64s]:
        """Play a step; return its rows of memory and calls for it, and the times for them.

        `times_ns`: the rank's column of times. `stall_block`: where the host stalls; -1 nowhere.
        """
        self.play(times_ns, stall_block)
        builder, shown_ns = TemplateBuilder(), list[int]()
        for request, at_ns, names, written in self._played:
            spans = [(at_ns - (request.call_us + 2) * NS_PER_US, at_ns - 2 * NS_PER_US)]
            if len(names) > 1:
                spans = self._stalled(times_ns, stall_block, len(names))
            row = self._events.process.host(request.thread)
            for name, span in zip(names, spans, strict=bool(names)):
                moments = Moment(len(shown_ns), 0), Moment(len(shown_ns) + 1, 0)
                self._call(builder, name, row, moments)
                shown_ns += span
            self._row(builder, row, Moment(len(shown_ns), 0), written)
            shown_ns.append(at_ns)
        return builder.build(), np.array(shown_ns)

    def play(self, times_ns: Int64s, stall_block: int) -> None:
        """Play a step, as `step`."""
        if not self._is_warm:
            self._is_warm = True
            length_ns = int(times_ns.max() - times_ns.min())
            self.allocator.now_ns = int(times_ns.min()) - (_WARM_UP_STEPS + 1) * length_ns
            for _ in range(3 * self._events.program.job.layer_count):
                self.allocator.malloc(2 * _UNIT_BYTES // _SHARDS)  # parameters and two moments
            for before in range(_WARM_UP_STEPS, 0, -1):
                self.play(times_ns - before * length_ns, -1)
        stall_end_ns = _at_ns(times_ns, self._events.named(STALL_END, -3))
        refused = [request.block == stall_block >= 0 for request in self._requests]
        timed = sorted(
            (stall_end_ns if is_refused else _at_ns(times_ns, request.at), n)
            for n, (request, is_refused) in enumerate(zip(self._requests, refused, strict=True))
        )
        self._played = []
        for at_ns, n in timed:
            request, log = self._requests[n], self.allocator.log
            calls = len(log.calls)
            self._ask(request, at_ns, times_ns, is_refused=refused[n])
            names = [name for name, *_ in log.calls[calls:] if not name.endswith("Synchronize")]
            if refused[n]:
                names.insert(1, f"{names[0].removesuffix('Malloc')}DeviceSynchronize")
            self._played.append(_Played(request, at_ns, names, log.rows[-1]))

    def _ask(self, request: Request, at_ns: int, times_ns: Int64s, *, is_refused: bool) -> None:
        self.allocator.now_ns = at_ns
        if request.size:
            self._live[request.key] = self.allocator.malloc(
                request.size, _STREAMS.index(request.stream), is_refused=is_refused
            )
            return
        until_ns = None if request.until is None else _at_ns(times_ns, request.until)
        self.allocator.free(self._live.pop(request.key), until_ns=until_ns)

    def _stalled(self, times_ns: Int64s, block: int, count: int) -> list[tuple[int, int]]:
        """Return when the calls of a flush are: malloc, synchronise, frees, malloc."""
        events, frees = self._events, count - 3
        moments = events.released(block), events.named(STALL_SYNCED), events.named(STALL_END)
        released_ns, synced_ns, end_ns = (_at_ns(times_ns, each) for each in moments)
        each_ns = min(_FREE_NS, (end_ns - synced_ns) // 2 // max(frees, 1))
        first_ns = synced_ns + 2 * NS_PER_US
        edges_ns = [first_ns + nth * each_ns for nth in range(frees + 1)]
        return [
            (released_ns + 50 * NS_PER_US, released_ns + 80 * NS_PER_US),
            (released_ns + 84 * NS_PER_US, synced_ns),
            *((since, until - NS_PER_US) for since, until in pairwise(edges_ns)),
            (edges_ns[-1], end_ns - 4 * NS_PER_US),
        ]

    def _call(
        self, builder: TemplateBuilder, name: str, row: Row, span: tuple[Moment, Moment]
    ) -> None:
        is_cuda = self._events.process.runtime == "cuda"
        arguments: dict[str, Argument] = {
            "cbid" if is_cuda else "cid": _NUMBERS[name],
            "correlation": builder.new_id(),
        }
        builder.complete("cuda_runtime", name, row, span, arguments)

    def _row(
        self, builder: TemplateBuilder, row: Row, at: Moment, written: tuple[int, ...]
    ) -> None:
        """Add a row of memory as torch 2.13 writes it."""
        _, size, address, allocated, reserved, _ = written
        arguments: dict[str, Argument] = {
            "Total Reserved": reserved,
            "Total Allocated": allocated,
            "Bytes": size,
            "Device Id": 0,  # as the process sees it
            "Device Type": _DEVICE_TYPE[self._events.process.runtime],
            "Addr": address,
            "Ev Idx": builder.new_id(),
        }
        builder.instant("[memory]", row, at, arguments)


def _at_ns(times_ns: Int64s, moment: Moment) -> int:
    return int(times_ns[moment.source]) + moment.offset_ns

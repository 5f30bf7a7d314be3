"""Adds the events around a step's kernels: profiler and FSDP annotations, allocator calls.

Each offset is chosen so that the event fits into the host's free time: a hook's work comes before
its collective's launch, and launches are at least 37 microseconds apart.
"""

from typing import Final

from chopperd.simulation.program import Program, Section, Stream, Thread
from chopperd.simulation.step_events import (
    HOST_END,
    HOST_START,
    LOADED,
    STALL_END,
    STALL_SYNCED,
    StepEvents,
)
from chopperd.simulation.template import RankProcess, StepTemplate, TemplateBuilder

_US: Final = 1_000
_FREED_SEGMENTS: Final = 5
_V1: Final = "FullyShardedDataParallel."

#: Names and numbers of the runtime calls of allocator and waits.
_CALLS: Final = {
    "cuda": {
        "malloc": ("cudaMalloc", 20),
        "free": ("cudaFree", 22),
        "device_sync": ("cudaDeviceSynchronize", 165),
        "stream_sync": ("cudaStreamSynchronize", 131),
        "event_sync": ("cudaEventSynchronize", 137),
    },
    "rocm": {
        "malloc": ("hipMalloc", 118),
        "free": ("hipFree", 79),
        "device_sync": ("hipDeviceSynchronize", 48),
        "stream_sync": ("hipStreamSynchronize", 287),
        "event_sync": ("hipEventSynchronize", 67),
    },
}


def step_template(program: Program, process: RankProcess) -> StepTemplate:
    """Build the template of the events that every step of a rank has."""
    events = StepEvents(program, process)
    _step(events)
    events.launches()
    if program.job.framework == "fsdp1":
        _fsdp1(events)
    else:
        _fsdp2(events)
    return events.build()


def stall_template(program: Program, process: RankProcess, block: int) -> StepTemplate:
    """Build the events of an allocation that fails, waits, frees and is tried again at a block."""
    events = StepEvents(program, process, TemplateBuilder())
    times, calls = events.times, _CALLS[process.runtime]
    thread = program.blocks[block].thread
    begin, done = times.released(block, 48 * _US), times.named(STALL_END, -2 * _US)
    events.operator("aten::empty", begin, done, thread)
    refused = times.released(block, 50 * _US), times.released(block, 80 * _US)
    events.runtime_call(*calls["malloc"], refused, thread)
    waited = times.released(block, 84 * _US), times.named(STALL_SYNCED)
    events.runtime_call(*calls["device_sync"], waited, thread)
    for freed in range(_FREED_SEGMENTS):
        since = (2 + 180 * freed) * _US
        span = times.named(STALL_SYNCED, since), times.named(STALL_SYNCED, since + 175 * _US)
        events.runtime_call(*calls["free"], span, thread)
    since = (4 + 180 * _FREED_SEGMENTS) * _US
    again = times.named(STALL_SYNCED, since), times.named(STALL_END, -4 * _US)
    events.runtime_call(*calls["malloc"], again, thread)
    return events.build()


def _step(events: StepEvents) -> None:
    """Add the profiler's step, the data loader, the optimizer and the wait for the loss."""
    times, program = events.times, events.program
    kernels = range(len(program.kernels))
    main = Thread.MAIN
    begin, end = times.named(HOST_START), times.named(HOST_END)
    step = events.annotate("ProfilerStep#", begin, end, main, numbered=True)
    of_compute = [k for k in kernels if _stream(program, k) is Stream.COMPUTE]
    rows = of_compute[0], of_compute[-1]
    events.on_device("ProfilerStep#", Stream.COMPUTE, step, rows, numbered=True)
    loader = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    events.annotate(loader, times.named(HOST_START, 9 * _US), times.named(LOADED, -2 * _US), main)
    optimizer = _kernels_of(program, _section(program, "optimizer"))
    name = "Optimizer.step#AdamW.step"
    span = times.launch(optimizer[0], -20 * _US), times.launch(optimizer[-1], 14 * _US)
    external = events.annotate(name, *span, main)
    rows = optimizer[0], optimizer[-1]
    events.on_device(name, Stream.COMPUTE, external, rows, numbered=False)
    loss = kernels[-1]
    events.operator("aten::item", times.launch(loss, -18 * _US), times.end(loss, 16 * _US), main)
    wait = times.launch(loss, 12 * _US), times.end(loss, 12 * _US)
    call = _CALLS[events.process.runtime]["stream_sync"]
    events.runtime_call(*call, wait, main)
    zero = "Optimizer.zero_grad#AdamW.zero_grad"
    events.annotate(zero, times.end(loss, 24 * _US), times.end(loss, 80 * _US), main)


def _fsdp2(events: StepEvents) -> None:
    program, times = events.program, events.times
    root = next(k for k, kernel in enumerate(program.kernels) if kernel.unit == "")
    span = times.launch(root, -204 * _US), times.launch(root, -190 * _US)
    events.annotate("FSDP::root_pre_forward", *span, Thread.MAIN)
    for index, kernel in enumerate(program.kernels):
        thread = program.blocks[kernel.block].thread
        suffix = f" ({kernel.unit})" if kernel.unit else ""
        if kernel.recipe.op == "c10d::_allgather_base_":
            span = times.launch(index, -150 * _US), times.launch(index, 22 * _US)
            events.annotate(f"FSDP::all_gather{suffix}", *span, thread)
            span = times.launch(index, -120 * _US), times.launch(index, -60 * _US)
            events.operator("fsdp::all_gather_copy_in", *span, thread)
        elif kernel.recipe.op == "c10d::_reduce_scatter_base_":
            _fsdp2_reduce(events, index, suffix)
        elif kernel.recipe.op == "fsdp::split_with_sizes_copy":
            span = times.launch(index, -14 * _US), times.launch(index, 12 * _US)
            events.annotate(f"FSDP::all_gather_copy_out{suffix}", *span, thread)
    for section in program.sections:
        if "layers." in section.name:
            _fsdp2_layer(events, section)


def _fsdp2_reduce(events: StepEvents, kernel: int, suffix: str) -> None:
    times, thread = events.times, Thread.AUTOGRAD
    for name, begin_us, end_us in (
        ("post_backward_accumulate", -204, -194),
        ("post_backward_reshard", -192, -172),
        ("post_backward_rs_wait", -170, -164),
        ("post_backward_reduce", -160, 22),
    ):
        shown = f" {suffix.strip() or '()'}" if name == "post_backward_rs_wait" else suffix
        span = times.launch(kernel, begin_us * _US), times.launch(kernel, end_us * _US)
        events.annotate(f"FSDP::{name}{shown}", *span, thread)


def _fsdp2_layer(events: StepEvents, section: Section) -> None:
    """Add a layer's hooks; the gather of the next layer lies inside them."""
    program, times = events.program, events.times
    direction, unit = section.name.split()
    kernels = _kernels_of(program, section)
    thread = program.blocks[section.first].thread
    first = kernels[0]
    prefetches = program.blocks[section.first].collective
    copy_out = kernels[1] if prefetches else first
    before_us = -200 if prefetches else -15
    hook = times.launch(first, before_us * _US), times.launch(copy_out, 14 * _US)
    events.annotate(f"FSDP::pre_{direction} ({unit})", *hook, thread)
    if prefetches:
        span = times.launch(first, -180 * _US), times.launch(first, 24 * _US)
        kind, after = ("forward", 1) if direction == "forward" else ("backward", -1)
        following = f"layers.{int(unit.removeprefix('layers.')) + after}"
        events.annotate(f"FSDP::{kind}_prefetch for {following}", *span, thread)
    if direction == "forward":
        span = times.launch(kernels[-1], 14 * _US), times.launch(kernels[-1], 22 * _US)
        events.annotate(f"FSDP::post_forward ({unit})", *span, thread)


def _fsdp1(events: StepEvents) -> None:
    program, times = events.program, events.times
    root = next(k for k, kernel in enumerate(program.kernels) if kernel.unit == "")
    head = _kernels_of(program, _section(program, "head"))
    span = times.launch(root, -208 * _US), times.launch(head[-1], 24 * _US)
    events.annotate(f"{_V1}forward", *span, Thread.MAIN)
    span = times.launch(root, -204 * _US), times.launch(root, -170 * _US)
    events.annotate(f"{_V1}_root_pre_forward", *span, Thread.MAIN)
    for index, block in enumerate(program.blocks):
        if block.waits_for_end is not None:
            _fsdp1_limiter(events, index)
    for section in program.sections:
        if section.name.startswith("forward"):
            _fsdp1_forward(events, section)
        elif section.name.startswith("backward layers"):
            _fsdp1_backward(events, section)


def _fsdp1_limiter(events: StepEvents, block: int) -> None:
    """Add the host's wait until an earlier unit was freed, so that few are in flight."""
    times, thread = events.times, events.program.blocks[block].thread
    span = times.came(block, 27 * _US), times.released(block, 44 * _US)
    events.annotate(f"{_V1}rate_limiter", *span, thread)
    wait = times.came(block, 29 * _US), times.released(block, 40 * _US)
    events.runtime_call(*_CALLS[events.process.runtime]["event_sync"], wait, thread)


def _fsdp1_forward(events: StepEvents, section: Section) -> None:
    program, times, thread = events.program, events.times, Thread.MAIN
    kernels = _kernels_of(program, section)
    first, last = kernels[0], kernels[-1]
    prefetches = program.blocks[section.first].collective
    before_us = -200 if prefetches else -13
    events.annotate(
        f"{_V1}forward", times.launch(first, before_us * _US), times.launch(last, 24 * _US), thread
    )
    span = times.launch(first, (before_us + 2) * _US), times.launch(first, -40 * _US)
    if prefetches:
        events.annotate(f"{_V1}_pre_forward", *span, thread)
        prefetch = times.launch(first, -34 * _US), times.launch(first, 20 * _US)
        events.annotate(f"{_V1}_pre_forward_prefetch", *prefetch, thread)
    span = times.launch(last, 12 * _US), times.launch(last, 22 * _US)
    events.annotate(f"{_V1}_post_forward", *span, thread)
    span = times.launch(last, 14 * _US), times.launch(last, 18 * _US)
    events.operator("aten::record_stream", *span, thread)


def _fsdp1_backward(events: StepEvents, section: Section) -> None:
    program, times, thread = events.program, events.times, Thread.AUTOGRAD
    kernels = _kernels_of(program, section)
    first, scatter = kernels[0], kernels[-1]
    if program.blocks[section.first].collective:
        span = times.launch(first, -200 * _US), times.launch(first, 24 * _US)
        events.annotate(f"{_V1}_pre_backward_hook", *span, thread)
        span = times.launch(first, -190 * _US), times.launch(first, 22 * _US)
        events.annotate(f"{_V1}_pre_backward_prefetch", *span, thread)
    span = times.launch(scatter, -200 * _US), times.launch(scatter, 24 * _US)
    events.annotate(f"{_V1}_post_backward_hook", *span, thread)
    for at_us in (-150, -90):
        span = times.launch(scatter, at_us * _US), times.launch(scatter, (at_us + 6) * _US)
        events.operator("aten::record_stream", *span, thread)


def _section(program: Program, name: str) -> Section:
    return next(section for section in program.sections if section.name == name)


def _kernels_of(program: Program, section: Section) -> range:
    first, last = program.blocks[section.first], program.blocks[section.last]
    return range(first.first, last.first + last.count)


def _stream(program: Program, kernel: int) -> Stream:
    return program.blocks[program.kernels[kernel].block].stream

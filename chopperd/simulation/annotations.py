"""Adds the events around a step's kernels: profiler and FSDP annotations.

Each offset is chosen so that the event fits into the host's free time: a hook's work comes before
its collective's launch, and launches are at least 37 microseconds apart.
"""

from typing import Final

from chopperd.simulation.program import Program, Section, Stream, Thread
from chopperd.simulation.step_events import HOST_END, HOST_START, LOADED, STALL_END, StepEvents
from chopperd.simulation.template import RankProcess, StepTemplate
from chopperd.units import NS_PER_US

_V1: Final = "FullyShardedDataParallel."

#: Names and numbers of the runtime calls of waits.
_CALLS: Final = {
    "cuda": {
        "stream_sync": ("cudaStreamSynchronize", 131),
        "event_sync": ("cudaEventSynchronize", 137),
    },
    "rocm": {
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
    return events.builder.build()


def stall_template(program: Program, process: RankProcess, block: int) -> StepTemplate:
    """Build the operator of an allocation that fails, flushes the cache and is tried again."""
    events = StepEvents(program, process)
    span = events.released(block, 48), events.named(STALL_END, -2)
    events.operator("aten::empty", span, program.blocks[block].thread)
    return events.builder.build()


def _step(events: StepEvents) -> None:
    """Add the profiler's step, the data loader, the optimizer and the wait for the loss."""
    program, named, launch, end = events.program, events.named, events.launch, events.end
    main = Thread.MAIN
    span = named(HOST_START), named(HOST_END)
    step = events.annotate("ProfilerStep#", span, main, numbered=True)
    kernels = enumerate(program.kernels)
    of_compute = [k for k, each in kernels if not program.blocks[each.block].collective]
    rows = of_compute[0], of_compute[-1]
    events.on_device("ProfilerStep#", Stream.COMPUTE, step, rows, numbered=True)
    loader = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    events.annotate(loader, (named(HOST_START, 9), named(LOADED, -2)), main)
    optimizer = _kernels_of(program, _section(program, "optimizer"))
    name = "Optimizer.step#AdamW.step"
    external = events.annotate(name, (launch(optimizer[0], -20), launch(optimizer[-1], 14)), main)
    rows = optimizer[0], optimizer[-1]
    events.on_device(name, Stream.COMPUTE, external, rows, numbered=False)
    loss = len(program.kernels) - 1
    events.operator("aten::item", (launch(loss, -18), end(loss, 16 * NS_PER_US)), main)
    call = _CALLS[events.process.runtime]["stream_sync"]
    events.runtime_call(*call, (launch(loss, 12), end(loss, 12 * NS_PER_US)), main)
    span = end(loss, 24 * NS_PER_US), end(loss, 80 * NS_PER_US)
    events.annotate("Optimizer.zero_grad#AdamW.zero_grad", span, main)


def _fsdp2(events: StepEvents) -> None:
    program, around = events.program, events.around
    root = next(k for k, kernel in enumerate(program.kernels) if kernel.unit == "")
    events.annotate("FSDP::root_pre_forward", around(root, -204, -190), Thread.MAIN)
    for index, kernel in enumerate(program.kernels):
        thread = program.blocks[kernel.block].thread
        suffix = f" ({kernel.unit})" if kernel.unit else ""
        if kernel.recipe.op == "c10d::_allgather_base_":
            events.annotate(f"FSDP::all_gather{suffix}", around(index, -150, 22), thread)
            events.operator("fsdp::all_gather_copy_in", around(index, -120, -60), thread)
        elif kernel.recipe.op == "c10d::_reduce_scatter_base_":
            _fsdp2_reduce(events, index, suffix)
        elif kernel.recipe.op == "fsdp::split_with_sizes_copy":
            events.annotate(f"FSDP::all_gather_copy_out{suffix}", around(index, -14, 12), thread)
    for section in program.sections:
        if "layers." in section.name:
            _fsdp2_layer(events, section)


def _fsdp2_reduce(events: StepEvents, kernel: int, suffix: str) -> None:
    for name, begin_us, end_us in (
        ("post_backward_accumulate", -204, -194),
        ("post_backward_reshard", -192, -172),
        ("post_backward_rs_wait", -170, -164),
        ("post_backward_reduce", -160, 22),
    ):
        shown = f" {suffix.strip() or '()'}" if name == "post_backward_rs_wait" else suffix
        span = events.around(kernel, begin_us, end_us)
        events.annotate(f"FSDP::{name}{shown}", span, Thread.AUTOGRAD)


def _fsdp2_layer(events: StepEvents, section: Section) -> None:
    """Add a layer's hooks; the gather of the next layer lies inside them."""
    program, around = events.program, events.around
    direction, unit = section.name.split()
    kernels = _kernels_of(program, section)
    thread = program.blocks[section.first].thread
    first = kernels[0]
    prefetches = program.blocks[section.first].collective
    hook = events.launch(first, -15), events.launch(first, 14)
    if prefetches:
        hook = events.launch(first, -200), events.launch(kernels[1], 14)
    events.annotate(f"FSDP::pre_{direction} ({unit})", hook, thread)
    if prefetches:
        following = int(unit.removeprefix("layers.")) + (1 if direction == "forward" else -1)
        name = f"FSDP::{direction}_prefetch for layers.{following}"
        events.annotate(name, around(first, -180, 24), thread)
    if direction == "forward":
        events.annotate(f"FSDP::post_forward ({unit})", around(kernels[-1], 14, 22), thread)


def _fsdp1(events: StepEvents) -> None:
    program = events.program
    root = next(k for k, kernel in enumerate(program.kernels) if kernel.unit == "")
    head = _kernels_of(program, _section(program, "head"))
    span = events.launch(root, -208), events.launch(head[-1], 24)
    events.annotate(f"{_V1}forward", span, Thread.MAIN)
    events.annotate(f"{_V1}_root_pre_forward", events.around(root, -204, -170), Thread.MAIN)
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
    came, released, thread = events.came, events.released, events.program.blocks[block].thread
    events.annotate(f"{_V1}rate_limiter", (came(block, 27), released(block, 44)), thread)
    call = _CALLS[events.process.runtime]["event_sync"]
    events.runtime_call(*call, (came(block, 29), released(block, 40)), thread)


def _fsdp1_forward(events: StepEvents, section: Section) -> None:
    program, around, thread = events.program, events.around, Thread.MAIN
    kernels = _kernels_of(program, section)
    first, last = kernels[0], kernels[-1]
    prefetches = program.blocks[section.first].collective
    span = events.launch(first, -200 if prefetches else -13), events.launch(last, 24)
    events.annotate(f"{_V1}forward", span, thread)
    if prefetches:
        events.annotate(f"{_V1}_pre_forward", around(first, -198, -40), thread)
        events.annotate(f"{_V1}_pre_forward_prefetch", around(first, -34, 20), thread)
    events.annotate(f"{_V1}_post_forward", around(last, 12, 22), thread)
    events.operator("aten::record_stream", around(last, 14, 18), thread)


def _fsdp1_backward(events: StepEvents, section: Section) -> None:
    program, around, thread = events.program, events.around, Thread.AUTOGRAD
    kernels = _kernels_of(program, section)
    first, scatter = kernels[0], kernels[-1]
    if program.blocks[section.first].collective:
        events.annotate(f"{_V1}_pre_backward_hook", around(first, -200, 24), thread)
        events.annotate(f"{_V1}_pre_backward_prefetch", around(first, -190, 22), thread)
    events.annotate(f"{_V1}_post_backward_hook", around(scatter, -200, 24), thread)
    for at_us in (-150, -90):
        events.operator("aten::record_stream", around(scatter, at_us, at_us + 6), thread)


def _section(program: Program, name: str) -> Section:
    return next(section for section in program.sections if section.name == name)


def _kernels_of(program: Program, section: Section) -> range:
    first, last = program.blocks[section.first], program.blocks[section.last]
    return range(first.first, last.first + last.count)

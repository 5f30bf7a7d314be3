"""Host time: calls that explain an idle device, and the own time of operators of CPU jobs."""

import re
from itertools import pairwise
from typing import Final

import numpy as np

from chopperd.correlate import intervals
from chopperd.model.arrays import Bools, Int64s
from chopperd.model.timeline import HostActivity, HostWork, Intervals, Step
from chopperd.model.trace import HostSpans, RuntimeCalls, SpanKind, Trace
from chopperd.traces.kernels.names import any_of, bounded, names_matching, used_names
from chopperd.traces.timeline.annotations import annotations
from chopperd.traces.timeline.layers import layers
from chopperd.traces.timeline.nesting import Moments, Nesting
from chopperd.traces.timeline.phases import phases

#: Where a thread waits for data: PyTorch's DataLoader and data pipes, Lightning's fetchers, NVIDIA
#: DALI, WebDataset, TorchRec's train pipelines. Found anywhere in an operator's or annotation's
#: name, in any case.
DATA_WAIT_PATTERNS: Final = (
    r"^enumerate\((?:DataLoader|DataPipe)\)#",
    r"dataloader\w*_next|DataLoaderIter\w*\.__next__|DataFetcher\.__next__",
    r"\bDALI\w*Iterator|^DALI",
    r"webdataset",
    r"^## (?:load|next)_batch\b",
)

#: Device memory from and back to the driver; pinned host memory is not meant.
ALLOCATOR_CALL: Final = re.compile(
    r"^(?:cuda|hip)(?:Ext)?(?:Malloc|Free)(?!Host)\w*$"
    r"|^cuMem(?:Alloc|Free)(?!Host)\w*$"
    r"|^(?:cu|hip)Mem(?:Create|Map|Unmap|Release|SetAccess|AddressReserve|AddressFree)\w*$"
    r"|^(?:cuda|cu|hip)MemPool(?:TrimTo|Destroy)\w*$"
)

#: The host waits for the device; `StreamWaitEvent` makes only the device wait. Copies that return
#: when they are done count too: where PyTorch copies and synchronises on CUDA, it calls
#: `hipMemcpyWithStream` alone on ROCm.
SYNC_CALL: Final = re.compile(
    r"^(?:cuda|cu|hip)(?:Device|Stream|Event|Ctx|Thread)Synchronize\w*$"
    r"|^(?:cuda|cu|hip)Memcpy(?!\w*(?:Async|Batch|Peer|DtoD))\w*$"
)


def host_work(trace: Trace, steps: tuple[Step, ...], marks: Bools) -> HostWork:
    """Return a trace's operators, each with its own time, layer, phase and annotation.

    `marks`: (names,), which of its names mark steps.
    """
    spans = trace.spans
    operators = np.flatnonzero(spans.kind == SpanKind.OP)
    began = Moments(thread=spans.thread[operators], at_ns=spans.start_ns[operators])
    phase = phases(trace, began, steps)
    names, layer = layers(trace, began, phase)
    annotation_names, annotation = annotations(trace, began, phase, marks)
    used = used_names(spans.name[operators], len(trace.names))
    return HostWork(
        operation=np.searchsorted(used, spans.name[operators]).astype(np.int32),
        layer=layer,
        annotation=annotation,
        phase=phase,
        own_ns=own_times(spans, operators),
        operations=tuple(bounded(trace.names[index]) for index in used.tolist()),
        layers=names,
        annotations=annotation_names,
    )


def own_times(spans: HostSpans, chosen: Int64s) -> Int64s:
    """Compute for how many ns each span at `chosen` (ascending) was the innermost: (m,) int64."""
    thread = np.tile(spans.thread[chosen], 2)
    at_ns = np.concatenate((spans.start_ns[chosen], spans.end_ns[chosen]))
    order = np.lexsort((at_ns, thread))
    thread, at_ns = thread[order], at_ns[order]
    innermost = Nesting(spans, chosen).innermost(Moments(thread=thread, at_ns=at_ns))[:-1]
    inside = np.flatnonzero(innermost >= 0)
    own_ns = np.zeros(len(chosen), np.int64)
    row = np.searchsorted(chosen, innermost[inside])
    np.add.at(own_ns, row, np.diff(at_ns)[inside])
    return own_ns


def host_activity(trace: Trace, data_wait_patterns: tuple[str, ...]) -> tuple[HostActivity, ...]:
    """Return each thread's time in allocator calls, data waits, sync calls, as `Trace.threads`."""
    threads = len(trace.threads)
    calls, spans, names = trace.calls, trace.spans, trace.names
    allocator = _by_thread(calls, names_matching(names, ALLOCATOR_CALL).take(calls.name), threads)
    sync = _by_thread(calls, names_matching(names, SYNC_CALL).take(calls.name), threads)
    waits = names_matching(names, any_of(data_wait_patterns))
    data = _by_thread(spans, waits.take(spans.name), threads)
    return tuple(
        HostActivity(allocator=allocator[thread], data=data[thread], sync=sync[thread])
        for thread in range(threads)
    )


def _by_thread(rows: RuntimeCalls | HostSpans, chosen: Bools, threads: int) -> list[Intervals]:
    """Return the union of the chosen rows' intervals for each thread."""
    at = np.flatnonzero(chosen)
    at = at[np.argsort(rows.thread[at], kind="stable")]
    edges = np.searchsorted(rows.thread[at], np.arange(threads + 1))
    return [
        intervals.union(rows.start_ns[at[a:b]], rows.end_ns[at[a:b]])
        for a, b in pairwise(edges.tolist())
    ]

"""When each host thread was in a call that explains an idle device."""

import re
from itertools import pairwise
from typing import Final

import numpy as np

from chopperd.correlate import intervals
from chopperd.model.arrays import Bools
from chopperd.model.timeline import HostActivity, Intervals
from chopperd.model.trace import HostSpans, RuntimeCalls, Trace
from chopperd.traces.kernels.names import any_of, names_matching

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


def host_activity(trace: Trace, data_wait_patterns: tuple[str, ...]) -> tuple[HostActivity, ...]:
    """One entry a thread, as `Trace.threads`: time in allocator calls, data waits, sync calls.

    Args:
        trace: The trace.
        data_wait_patterns: Regular expressions for names of host spans that wait for data.
    """
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
    """The union of the chosen rows' time, for each thread."""
    at = np.flatnonzero(chosen)
    at = at[np.argsort(rows.thread[at], kind="stable")]
    edges = np.searchsorted(rows.thread[at], np.arange(threads + 1))
    return [
        intervals.union(rows.start_ns[at[a:b]], rows.end_ns[at[a:b]])
        for a, b in pairwise(edges.tolist())
    ]

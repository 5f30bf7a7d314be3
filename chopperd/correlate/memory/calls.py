"""What a process called that tells of its allocator: segments, retries, streams and limits.

A runtime call names no device. It is of the device whose row its thread writes next: torch's
allocator writes one after each request, and all its calls are inside.

Source: DESIGN.md section 2, "FSDP and memory"; names of CUDA, HIP and their drivers.
"""

import re
from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopperd.model.arrays import Bools, Int8s, Int32s, Int64s
from chopperd.model.memory import MemoryRows
from chopperd.model.trace import HostSpans, RuntimeCalls, SpanKind

#: Letters of calls. M and C get memory (C: physical, to be mapped), F gives it back, O is other
#: work on segments, S waits, L launches, Q asks for an event, A allocates past torch's allocator.
_LETTERS: Final = (
    ("M", re.compile(r"^(?:(?:cuda|hip)Malloc|(?:cu|hip)MemMap)(?:_v\d+)?$")),
    ("F", re.compile(r"^(?:(?:cuda|hip)Free|(?:cu|hip)MemUnmap)(?:_v\d+)?$")),
    ("C", re.compile(r"^(?:cu|hip)MemCreate(?:_v\d+)?$")),
    ("O", re.compile(r"^(?:cu|hip)Mem(?:SetAccess|Release|Address(?:Reserve|Free))(?:_v\d+)?$")),
    ("S", re.compile(r"^(?:cuda|cu|hip)(?:Device|Stream|Event|Ctx)Synchronize")),
    ("L", re.compile(r"^(?:cuda|cu|hip).*(?:Launch|Memcpy|Memset)")),
    ("Q", re.compile(r"^(?:cuda|cu|hip)EventQuery")),
    ("A", re.compile(r"^(?:cuda|hip)MallocAsync|^cuMemAllocAsync")),
)
_RUNTIME: Final = re.compile(r"^(?:cuda|cu|hip)[A-Z]")
_VMM: Final = re.compile(r"^(?:cu|hip)MemMap")
#: A retry on one thread with no launch between. The second form counts inside one operator only;
#: with expandable segments the host also waits between the pages that it gives back.
_RETRY: Final = re.compile(rb"M(?=S*F[SF]*(M))|(?<![MSF])(S+)F[SF]*(?=(M))")
RECORD_STREAM: Final = "aten::record_stream"
RATE_LIMITER: Final = "FullyShardedDataParallel.rate_limiter"


class HostCalls(Struct, frozen=True, kw_only=True):
    """Calls of one process by what they do, in order of their starts, and its spans.

    Times in ns. `letter`: one byte a call, as in `_LETTERS`; others are left out.
    """

    is_recorded: bool  # whether runtime calls are: without any, all that needs them is unknown
    has_spans: bool
    thread: Int32s
    start_ns: Int64s
    length_ns: Int64s
    letter: Int8s
    is_retry: Bools  # whether it is an allocation that worked after all
    record_stream_ns: Int64s
    limiter_ns: Int64s  # starts of the rate limiter's waits
    limiter_length_ns: Int64s
    is_expandable: bool  # whether segments are mapped page by page

    def is_any(self, letters: str) -> Bools:
        """Whether each call has one of some letters, (n,) bool."""
        return np.isin(self.letter, [ord(letter) for letter in letters])

    def of_device(self, rows: MemoryRows, device: int) -> "HostCalls":
        """Return the calls for one device of several; of spans nobody knows whose they are.

        `rows`: of all devices of the process.
        """
        mine = np.zeros(len(self.thread), np.bool_)
        for thread in np.unique(self.thread).tolist():
            called, written = (np.flatnonzero(each.thread == thread) for each in (self, rows))
            ends_ns = self.start_ns[called] + self.length_ns[called]
            following = np.searchsorted(rows.at_ns[written], ends_ns)
            mine[called] = np.append(rows.device[written], -1)[following] == device
        columns = ("thread", "start_ns", "length_ns", "letter", "is_retry")
        kept = {name: getattr(self, name)[mine] for name in columns}
        return replace(self, has_spans=False, **kept)


def host_calls(
    names: Sequence[str], calls: RuntimeCalls, spans: HostSpans, threads: Bools | None = None
) -> HostCalls:
    """Return what the threads of a process called.

    `names`: what `name` columns index. `threads`: (threads,), which are the process's; None all.
    """
    mine, own = _of(calls.thread, threads), _of(spans.thread, threads)
    used, name = np.unique(calls.name[mine], return_inverse=True)
    called = [names[each] for each in used.tolist()]
    letter = np.zeros(len(calls), np.int8)
    letter[mine] = np.array([_letter(each) for each in called], np.int8)[name]
    kept = np.flatnonzero(letter)
    start_ns, thread, letter = calls.start_ns[kept], calls.thread[kept], letter[kept]
    operators = own & (spans.kind == SpanKind.OP)
    limiter = own & _named(names, spans.name, RATE_LIMITER)
    return HostCalls(
        is_recorded=any(map(_RUNTIME.match, called)),
        has_spans=bool(own.any()),
        thread=thread,
        start_ns=start_ns,
        length_ns=calls.end_ns[kept] - start_ns,
        letter=letter,
        is_retry=_retries(start_ns, thread, letter, spans, operators),
        record_stream_ns=spans.start_ns[operators & _named(names, spans.name, RECORD_STREAM)],
        limiter_ns=spans.start_ns[limiter],
        limiter_length_ns=(spans.end_ns - spans.start_ns)[limiter],
        is_expandable=any(map(_VMM.match, called)),
    )


def _letter(name: str) -> int:
    return next((ord(letter) for letter, names in _LETTERS if names.search(name)), 0)


def _of(thread: Int32s, threads: Bools | None) -> Bools:
    return np.ones(len(thread), np.bool_) if threads is None else threads[thread]


def _named(names: Sequence[str], column: Int32s, name: str) -> Bools:
    found: Bools = column == (names.index(name) if name in names else -1)
    return found


def _retries(
    start_ns: Int64s, thread: Int32s, letter: Int8s, spans: HostSpans, operators: Bools
) -> Bools:
    """Whether each call is the last of a retry, (n,) bool; `operators` among `spans`."""
    found = np.zeros(len(letter), np.bool_)
    for one in np.unique(thread[letter == ord("F")]).tolist():
        mine = np.flatnonzero((thread == one) & ~np.isin(letter, [ord(x) for x in "OQA"]))
        text = letter[mine].tobytes().replace(b"C", b"M")
        ops = np.flatnonzero(operators & (spans.thread == one))
        opened_ns, closed_ns = spans.start_ns[ops], np.maximum.accumulate(spans.end_ns[ops])
        for match in _RETRY.finditer(text):
            is_sure = match.group(1) is not None
            last = mine[match.start(1 if is_sure else 3)]
            around = np.searchsorted(opened_ns, start_ns[mine[match.start()]], "right")
            inside = around and closed_ns[around - 1] > start_ns[last]
            found[last] |= is_sure or bool(inside)
    return found

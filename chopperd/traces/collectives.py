"""Which collective a kernel carries out where its name does not say: RCCL has one for all."""

import re
from collections.abc import Iterator
from typing import Final

import numpy as np

from chopperd.model.arrays import Bools, Int64s
from chopperd.model.trace import Trace
from chopperd.traces.names import names_matching

#: RCCL's kernel; NCCL's names say the collective.
_GENERIC: Final = re.compile(r"^(?:nccl|rccl)\w*_Generic\b")
#: torch's annotation around the launch of a collective.
_ANNOTATION: Final = re.compile(r"^(?:nccl|rccl):")
_AFFIX: Final = re.compile(r"^(?:nccl|rccl):|_base$|_coalesced$|_into_tensor$|_tensor$")


def collective_name(text: str) -> str:
    """One name for a collective, however torch spells it: "allgather" of "nccl:_all_gather_base".

    Source: kernel metadata ("Collective name": allreduce, _allgather_base, _reduce_scatter_base)
        and annotations (nccl:all_reduce) of real traces.
    """
    name, before = text.lower(), ""
    while name != before:
        name, before = _AFFIX.sub("", name), name
    return name.replace("_", "")


def generic_collectives(trace: Trace, call: Int64s) -> Iterator[tuple[int, str]]:
    """The records of kernels that serve all collectives, each with the name of its own.

    By the record's own metadata, else by the annotation around its launch. Those of which neither
    is there (launched before the recording) are left out.

    Args:
        trace: The trace.
        call: (records,) int64, the call that launched each; -1 unlinked.
    """
    records, names = trace.records, trace.names
    around = names_matching(names, _ANNOTATION)[trace.spans.name]
    for row in np.flatnonzero(names_matching(names, _GENERIC)[records.name]).tolist():
        if records.collective[row] >= 0:
            yield row, collective_name(trace.collectives[records.collective[row]].name)
        elif call[row] >= 0 and (told := _annotation_at(trace, around, int(call[row]))) >= 0:
            yield row, collective_name(names[told])


def _annotation_at(trace: Trace, around: Bools, call: int) -> int:
    """The name of the innermost annotation that holds a call on its thread; -1 without."""
    spans, at_ns = trace.spans, trace.calls.start_ns[call]
    holds = around & (spans.thread == trace.calls.thread[call])
    holds &= (spans.start_ns <= at_ns) & (at_ns < spans.end_ns)
    inside = np.flatnonzero(holds)
    return int(spans.name[inside[-1]]) if len(inside) else -1

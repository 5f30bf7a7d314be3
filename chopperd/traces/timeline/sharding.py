"""The layers that FSDP2 names: of its own work, and of what runs between its hooks."""

import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from chopperd.model.arrays import Bools, Int32s, Int64s
from chopperd.model.trace import SpanKind, Trace
from chopperd.traces.kernels.names import bounded, used_names

#: The group of parameters that is in no group of its own: embedding, last norm, head.
ROOT: Final = "(root)"

#: Source: annotations of FSDP2 as torch 2.13 records them; only the root's have no module.
_OF_GROUP: Final = re.compile(
    r"^FSDP::(?P<hook>pre_forward|post_forward|pre_backward|post_backward_\w+|all_gather\w*"
    r"|reduce_scatter\w*|all_reduce\w*)(?: \((?P<module>.*)\))?$"
)
_PREFETCH: Final = re.compile(r"^FSDP::(?P<hook>\w+_prefetch) for (?P<module>.+)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """FSDP2's annotations.

    Attributes:
        modules: Names of the modules whose parameters are grouped; `ROOT` for the root's.
        module: (spans,) int32, index into `modules` of the group an annotation is about; -1 none.
        before_forward: (spans,) bool, `FSDP::pre_forward` annotations.
        forward, backward: From the hook before a module's forward, or backward, to that after.
    """

    modules: tuple[str, ...]
    module: Int32s
    before_forward: Bools
    forward: "Stretches"
    backward: "Stretches"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretches:
    """Time of threads that belongs to modules, sorted by (start_ns, -end_ns).

    Attributes:
        thread: (n,) int32. start_ns, end_ns: (n,) int64. module: (n,) int32.
    """

    thread: Int32s
    start_ns: Int64s
    end_ns: Int64s
    module: Int32s


def sharding(trace: Trace) -> Sharding:
    """What FSDP2's annotations say of modules; empty without any."""
    spans = trace.spans
    annotations = spans.name[spans.kind == SpanKind.ANNOTATION]
    numbers: dict[str, int] = {}
    module_of = np.full(len(trace.names), -1, np.int32)
    hook_of = np.full(len(trace.names), "", object)
    for index in used_names(annotations, len(trace.names)).tolist():
        name = trace.names[index]
        if found := _OF_GROUP.match(name) or _PREFETCH.match(name):
            hook_of[index] = found["hook"]
            module = bounded(found["module"] or ROOT)
            module_of[index] = numbers.setdefault(module, len(numbers))
    about = np.where(spans.kind == SpanKind.ANNOTATION, module_of[spans.name], -1)
    starts = {hook: hook_of == hook for hook in ("pre_forward", "post_forward", "pre_backward")}
    ends = np.array([hook.startswith("post_backward_") for hook in hook_of], np.bool_)
    told = about >= 0
    masks = {hook: told & mask[spans.name] for hook, mask in starts.items()}
    return Sharding(
        modules=tuple(numbers),
        module=about.astype(np.int32),
        before_forward=masks["pre_forward"],
        forward=_stretches(trace, about, masks["pre_forward"], masks["post_forward"]),
        backward=_stretches(trace, about, masks["pre_backward"], told & ends[spans.name]),
    )


def _stretches(trace: Trace, module: Int32s, opens: Bools, closes: Bools) -> Stretches:
    """From each opening annotation to the end of the last closing one before it opens again.

    Both are of one module, on one thread. What is not closed is left out.
    """
    spans = trace.spans
    rows = np.flatnonzero(opens | closes)
    rows = rows[np.lexsort((rows, module[rows], spans.thread[rows]))]
    changes = (np.diff(module[rows]) != 0) | (np.diff(spans.thread[rows]) != 0)
    group = np.concatenate(([0], np.cumsum(changes)))[: len(rows)]
    at = np.flatnonzero(opens[rows])
    until = np.minimum(
        np.append(at[1:], len(rows))[: len(at)] - 1, np.searchsorted(group, group[at], "right") - 1
    )
    closed = closes[rows[until]]
    first, last = rows[at[closed]], rows[until[closed]]
    order = np.lexsort((-spans.end_ns[last], spans.start_ns[first]))
    first, last = first[order], last[order]
    return Stretches(
        thread=spans.thread[first],
        start_ns=spans.start_ns[first],
        end_ns=spans.end_ns[last],
        module=module[first].astype(np.int32),
    )

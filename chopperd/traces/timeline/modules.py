"""Layers by name: of calls of modules (nn.Module spans), and of FSDP2's annotations."""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from chopperd.model.arrays import Bools, Int32s, Int64s
from chopperd.model.trace import MODULE_PREFIX, SpanKind, Trace
from chopperd.traces.kernels.names import bounded, used_names
from chopperd.traces.timeline.nesting import Nesting

#: The group of parameters that belong to no module's group: embedding, last norm, head.
ROOT: Final = "(root)"

#: Source: annotations of FSDP2 as torch 2.13 records them; only the root's have no module.
_OF_GROUP: Final = re.compile(
    r"^FSDP::(?P<hook>pre_forward|post_forward|pre_backward|post_backward_\w+|all_gather\w*"
    r"|reduce_scatter\w*|all_reduce\w*)(?: \((?P<module>.*)\))?$"
)
_PREFETCH: Final = re.compile(r"^FSDP::(?P<hook>\w+_prefetch) for (?P<module>.+)$")
#: Modules that only contain or wrap others: several of them in one parent are no layers.
#: Source: PyTorch's containers, its parallel and checkpoint wrappers, and torch.compile's.
_CONTAINERS: Final = frozenset(
    {
        *("Sequential", "ModuleList", "ModuleDict", "CheckpointWrapper", "OptimizedModule"),
        *("DataParallel", "DistributedDataParallel", "FullyShardedDataParallel"),
    }
)
_INSTANCE: Final = re.compile(r"_\d+$")

#: Calls deeper than this have no layer: no sound model nests so deep, a broken file may.
_MAX_DEPTH: Final = 32

_Path: TypeAlias = tuple[str, ...]
"""Names of modules, "Linear_3", from the outermost inwards."""


def module_layers(trace: Trace) -> tuple[tuple[str, ...], Int64s]:
    """Names of layers, and the layer of each call of a module: (spans,) int64, -1 for other spans.

    A layer is named by the path of modules down to it, "Qwen2Model_0/Qwen2DecoderLayer_3". It is
    the outermost module of a class of which one parent has several: a decoder layer, a block.
    Containers and wrappers are no such class, so that blocks are found inside stages. A module in
    no layer is named by its whole path, "Qwen2Model_0/Embedding_0".

    A module called with none around it (checkpointing computes it again in backward) has the path
    that it has elsewhere in the file, if that is unique.
    """
    paths, path = _paths(trace)
    rooted = _rooted(paths)
    layered = _layer_classes(rooted)
    names = [_layer(each, layered) for each in rooted]
    number = {name: index for index, name in enumerate(dict.fromkeys(names))}
    layer = np.array([*(number[name] for name in names), -1], np.int64)
    return tuple(number), layer[path]


def _paths(trace: Trace) -> tuple[list[_Path], Int64s]:
    """Distinct paths of modules, and the path of each call: (spans,) int64, -1 for other spans.

    Calls are taken level by level, outermost first.
    """
    spans = trace.spans
    chosen = np.flatnonzero(spans.kind == SpanKind.MODULE)
    parent = Nesting(spans, chosen).parents()
    paths: list[_Path] = []
    path = np.full(len(spans), -1, np.int64)
    level = chosen[parent < 0]
    for _ in range(_MAX_DEPTH):
        if not len(level):
            break
        around = parent[np.searchsorted(chosen, level)]
        outer = np.where(around < 0, -1, path[around])
        key = (outer + 1) * len(trace.names) + spans.name[level]
        distinct, which = np.unique(key, return_inverse=True)
        path[level] = len(paths) + which
        for one in distinct.tolist():
            of, name = divmod(one, len(trace.names))
            own = bounded(trace.names[name].removeprefix(MODULE_PREFIX))
            paths.append((*paths[of - 1], own) if of else (own,))
        inside = (parent >= 0) & (path[chosen] < 0)
        inside[inside] = path[parent[inside]] >= 0
        level = chosen[inside]
    return paths, path


def _rooted(paths: Iterable[_Path]) -> list[_Path]:
    """The paths, those of modules called on their own extended by that of other calls."""
    elsewhere: dict[str, set[_Path]] = defaultdict(set)
    paths = list(paths)
    for path in paths:
        elsewhere[path[-1]].add(path[:-1])
    above = {
        name: next(iter(outer - {()}))
        for name, outer in elsewhere.items()
        if len(outer - {()}) == 1
    }
    return [(*above.get(path[0], ()), *path) for path in paths]


def _layer_classes(paths: Iterable[_Path]) -> set[str]:
    """Classes of which several instances are called in one parent, without containers."""
    siblings: dict[tuple[_Path, str], set[str]] = defaultdict(set)
    for path in paths:
        siblings[path[:-1], _class(path[-1])].add(path[-1])
    several = {name for (_, name), instances in siblings.items() if len(instances) > 1}
    return several - _CONTAINERS


def _layer(path: _Path, layered: Collection[str]) -> str:
    depth = next((at for at, name in enumerate(path) if _class(name) in layered), len(path) - 1)
    return bounded("/".join(path[: depth + 1]))


def _class(instance: str) -> str:
    return _INSTANCE.sub("", instance)


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
    """Stretches of time of threads that belong to modules, sorted by (start_ns, -end_ns)."""

    thread: Int32s
    start_ns: Int64s
    end_ns: Int64s
    module: Int32s


def sharding(trace: Trace) -> Sharding:
    """FSDP2's annotations of modules; empty without any."""
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
    known = about >= 0
    masks = {hook: known & mask[spans.name] for hook, mask in starts.items()}
    return Sharding(
        modules=tuple(numbers),
        module=about.astype(np.int32),
        before_forward=masks["pre_forward"],
        forward=_stretches(trace, about, masks["pre_forward"], masks["post_forward"]),
        backward=_stretches(trace, about, masks["pre_backward"], known & ends[spans.name]),
    )


def _stretches(trace: Trace, module: Int32s, opens: Bools, closes: Bools) -> Stretches:
    """From each opening annotation to the end of the last closing one before it opens again.

    Both are of one module, on one thread. A stretch that is not closed is left out.
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

"""Find the model's layer that each moment of a thread works for; unknown rather than guessed.

Evidence, best first:

1. An annotation of FSDP2 that names a module: its gathering, reducing and copying of parameters.
2. The program's own annotation of a layer around it, "Layer3"; in backward likewise.
3. The innermost call of a module around it; in backward only one that began inside the backward
   operator (recomputation).
4. In backward, the layer of the forward operator whose node runs: by the profiler's arrow
   (`fwdbwd`), else by sequence number if a single forward operator uses it.
5. The time between FSDP2's hooks before and after a module.

If a file has several names for a layer, that in which the module's hook ran replaces FSDP2's.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import Final, TypeAlias

import numpy as np
from msgspec import Struct

from chopperd.model.arrays import Bools, Int8s, Int32s, Int64s, Timed
from chopperd.model.timeline import Phase
from chopperd.model.trace import MODULE_PREFIX, SpanKind, Trace
from chopperd.traces.kernels.names import bounded, names_matching, used_names
from chopperd.traces.timeline.annotations import LAYER_MARK, Origins
from chopperd.traces.timeline.nesting import Moments, Nesting
from chopperd.traces.timeline.phases import backward_spans

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
    """Return the names of layers, and each module call's layer: (spans,) int64, -1 for other spans.

    A layer is the outermost module of a class of which one parent has several (a block), containers
    aside, named by the path down to it, "Qwen2Model_0/Qwen2DecoderLayer_3". A module in no layer is
    named by its whole path; one called with none around it (recomputation) has the path that it has
    elsewhere in the file, if unique.
    """
    paths, path = _paths(trace)
    rooted = _rooted(paths)
    layered = _layer_classes(rooted)
    names = [_layer(each, layered) for each in rooted]
    number = {name: index for index, name in enumerate(dict.fromkeys(names))}
    layer = np.array([*(number[name] for name in names), -1], np.int64)
    return tuple(number), layer[path]


def _paths(trace: Trace) -> tuple[list[_Path], Int64s]:
    """Return distinct module paths, and each call's path: (spans,) int64, -1 for other spans."""
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
    """Return the classes of which one parent calls several instances, without containers."""
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


class Sharding(Struct, frozen=True, kw_only=True):
    """FSDP2's annotations of a trace, by module."""

    # Names of the modules whose parameters are grouped; `ROOT` for the root's
    modules: tuple[str, ...]
    module: Int32s  # (spans,), index into `modules` of the group an annotation is about; -1 none
    before_forward: Bools  # (spans,), `FSDP::pre_forward` annotations
    # Time from the hook before a module's forward, or backward, to that after
    forward: "Stretches"
    backward: "Stretches"


class Stretches(Timed, frozen=True, kw_only=True):
    """Stretches of time of threads that belong to modules, sorted by (start_ns, -end_ns)."""

    thread: Int32s
    module: Int32s


def sharding(trace: Trace) -> Sharding:
    """Find FSDP2's annotations of modules; the result is empty without any."""
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
    """Return the time from each opening annotation to the last closing one before the next opening.

    Both are of one module and thread, and included. A stretch that is not closed is left out.
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


def layers(trace: Trace, moments: Moments, phase: Int8s) -> tuple[tuple[str, ...], Int32s]:
    """Return names of layers, and each moment's layer by its `Phase`: (n,) int32, -1 unknown."""
    evidence = _Evidence(trace)
    if not evidence.names:
        return (), np.full(len(moments), -1, np.int32)
    found = evidence.direct(moments)
    backward = np.flatnonzero(phase == Phase.BACKWARD)
    found[backward] = evidence.of_backward(trace, moments.of(backward))
    used = np.unique(found[found >= 0])
    number = np.full(len(evidence.names) + 1, -1, np.int32)
    number[used] = np.arange(len(used))
    return tuple(evidence.names[index] for index in used.tolist()), number[found]


class _Evidence:
    """Evidence of layers in a trace; `names` are those of layers, which columns here index."""

    def __init__(self, trace: Trace) -> None:
        spans = trace.spans
        paths, self._module_layer = module_layers(trace)
        sharded = sharding(trace)
        marks, self._marked = _marks(trace)
        self.names = tuple(dict.fromkeys((*paths, *marks, *sharded.modules)))
        self._marked = _spread(self._numbers(marks), self._marked)
        self._marks = Nesting(spans, np.flatnonzero(self._marked >= 0))
        self._modules = Nesting(spans, np.flatnonzero(spans.kind == SpanKind.MODULE))
        of_module = self._of_sharded(trace, sharded)
        self._annotated = np.append(of_module, -1)[sharded.module]
        self._annotations = Nesting(spans, np.flatnonzero(self._annotated >= 0))
        self._forward = _Timed(sharded.forward, of_module)
        self._backward = _Timed(sharded.backward, of_module)

    def direct(self, moments: Moments) -> Int64s:
        """Return each moment's layer by the spans around it, in forward: (n,) int64; -1 unknown."""
        called = _spread(self._module_layer, self._modules.innermost(moments))
        marked = _spread(self._marked, self._marks.innermost(moments))
        annotated = _spread(self._annotated, self._annotations.innermost(moments))
        return _first(annotated, marked, called, self._forward.at(moments))

    def of_backward(self, trace: Trace, moments: Moments) -> Int64s:
        """Return the layer of each moment of a backward pass: (n,) int64; -1 unknown."""
        call, mark = self._modules.innermost(moments), self._marks.innermost(moments)
        node = Nesting(trace.spans, np.flatnonzero(backward_spans(trace))).innermost(moments)
        annotated = _spread(self._annotated, self._annotations.innermost(moments))
        called = np.where(call > node, _spread(self._module_layer, call), -1)
        marked = np.where(mark > node, _spread(self._marked, mark), -1)
        inherited = self.direct(Origins(trace).of(moments))
        return _first(annotated, marked, called, inherited, self._backward.at(moments))

    def _of_sharded(self, trace: Trace, sharded: Sharding) -> Int64s:
        """Return for each FSDP2 module the layer in which its hook ran, if one; else its own."""
        of_module = self._numbers(sharded.modules)
        hooks = np.flatnonzero(sharded.before_forward)
        when = Moments(thread=trace.spans.thread[hooks], at_ns=trace.spans.start_ns[hooks])
        called = _first(
            _spread(self._marked, self._marks.innermost(when)),
            _spread(self._module_layer, self._modules.innermost(when)),
        )
        least = np.full(len(of_module), len(self.names))
        most = np.full(len(of_module), -1)
        np.minimum.at(least, sharded.module[hooks], called)
        np.maximum.at(most, sharded.module[hooks], called)
        agreed = (least == most) & (most >= 0)
        of_module[agreed] = most[agreed]
        return of_module

    def _numbers(self, names: Iterable[str]) -> Int64s:
        own = {name: index for index, name in enumerate(self.names)}
        return np.array([own[name] for name in names], np.int64)


def _marks(trace: Trace) -> tuple[tuple[str, ...], Int64s]:
    """Return the names of annotated layers, and each span's index into them: (spans,), -1 none."""
    spans = trace.spans
    mark = names_matching(trace.names, LAYER_MARK).take(spans.name)
    mark &= spans.kind == SpanKind.ANNOTATION
    used, which = np.unique(spans.name[mark], return_inverse=True)
    column = np.full(len(spans), -1, np.int64)
    column[mark] = which
    return tuple(trace.names[index] for index in used.tolist()), column


class _Timed:
    """Stretches of time between hooks, with the layer of each."""

    def __init__(self, stretches: Stretches, of_module: Int64s) -> None:
        self._layer = of_module[stretches.module]
        self._nesting = Nesting(stretches, np.arange(len(self._layer)))

    def at(self, moments: Moments) -> Int64s:
        return _spread(self._layer, self._nesting.innermost(moments))


def _spread(column: Int64s, row: Int64s) -> Int64s:
    return np.append(column, -1)[row]


def _first(*columns: Int64s) -> Int64s:
    """Return for each row the first known value of several columns; -1 if none is known."""
    found = columns[0].copy()
    for column in columns[1:]:
        found = np.where(found < 0, column, found)
    return found

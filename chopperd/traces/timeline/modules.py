"""The layer of a model that a call of a module belongs to, by the modules around the call."""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import Final, TypeAlias

import numpy as np

from chopperd.model.arrays import Int64s
from chopperd.model.trace import SpanKind, Trace
from chopperd.traces.kernels.names import bounded
from chopperd.traces.read.rows import MODULE_PREFIX
from chopperd.traces.timeline.nesting import Nesting

#: Modules that only hold or wrap others: several of them side by side are not yet layers.
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

    A layer goes by the path of modules down to it, "Qwen2Model_0/Qwen2DecoderLayer_3". It is the
    outermost module of a class that the model has several of side by side, in one parent: a decoder
    layer, a block. Containers and wrappers are no such class, so that blocks come out where they
    are held in stages. What lies in no such module goes by its whole path,
    "Qwen2Model_0/Embedding_0".

    A module called with none around it (checkpointing computes it again in backward) has the path
    that it has elsewhere in the file, if that is one.
    """
    paths, place = _places(trace)
    rooted = _rooted(paths)
    layered = _layer_classes(rooted)
    names = [_layer(path, layered) for path in rooted]
    number = {name: index for index, name in enumerate(dict.fromkeys(names))}
    of_place = np.array([*(number[name] for name in names), -1], np.int64)
    return tuple(number), of_place[place]


def _places(trace: Trace) -> tuple[list[_Path], Int64s]:
    """Distinct paths of modules, and the path of each call: (spans,) int64, -1 for other spans.

    Calls are taken level by level, outermost first.
    """
    spans = trace.spans
    chosen = np.flatnonzero(spans.kind == SpanKind.MODULE)
    parent = Nesting(spans, chosen).parents()
    paths: list[_Path] = []
    place = np.full(len(spans), -1, np.int64)
    level = chosen[parent < 0]
    for _ in range(_MAX_DEPTH):
        if not len(level):
            break
        around = parent[np.searchsorted(chosen, level)]
        outer = np.where(around < 0, -1, place[around])
        key = (outer + 1) * len(trace.names) + spans.name[level]
        distinct, which = np.unique(key, return_inverse=True)
        place[level] = len(paths) + which
        for one in distinct.tolist():
            of, name = divmod(one, len(trace.names))
            own = bounded(trace.names[name].removeprefix(MODULE_PREFIX))
            paths.append((*paths[of - 1], own) if of else (own,))
        inside = (parent >= 0) & (place[chosen] < 0)
        inside[inside] = place[parent[inside]] >= 0
        level = chosen[inside]
    return paths, place


def _rooted(paths: Iterable[_Path]) -> list[_Path]:
    """The paths, those of modules called on their own put where they are called elsewhere."""
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
    """Classes of which several instances are called side by side, containers aside."""
    beside: dict[tuple[_Path, str], set[str]] = defaultdict(set)
    for path in paths:
        beside[path[:-1], _class(path[-1])].add(path[-1])
    several = {name for (_, name), instances in beside.items() if len(instances) > 1}
    return several - _CONTAINERS


def _layer(path: _Path, layered: Collection[str]) -> str:
    depth = next((at for at, name in enumerate(path) if _class(name) in layered), len(path) - 1)
    return bounded("/".join(path[: depth + 1]))


def _class(instance: str) -> str:
    return _INSTANCE.sub("", instance)

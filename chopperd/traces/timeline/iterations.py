"""Steps by annotations of another name: iterations of serving engines, and a job's own markers."""

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np
from msgspec import Struct

from chopperd.model.arrays import Int64s
from chopperd.model.timeline import Marker, Step
from chopperd.model.trace import SpanKind, Trace
from chopperd.traces.kernels.names import bounded, names_matching

#: Iterations of serving engines; a group has their number.
#: Source: vLLM, `execute_context_1(512)_generation_0(0)` and before that `execute_new_1_cached_0`;
#: SGLang, `step[DECODE bs=8]` and `step[14]`; TensorRT-LLM, `[Executor] _forward_step 12: ...`.
ENGINE_ITERATION: Final = re.compile(
    r"^execute_(?:context|new)_\d+\S*$|^step\[(?:(\d{1,15})\]$|[A-Z]\w*[ \]])"
    r"|^\[Executor\] _forward_step (\d{1,15})\b"
)

_NUMBER: Final = re.compile(r"\d+")
_OFTEN: Final = 3
#: A suggested expression is within the bounds of those in the configuration.
_MOST_NUMBERS: Final = 3
_LONGEST_TEXT: Final = 120


def marked_rows(trace: Trace, pattern: re.Pattern[str]) -> Int64s:
    """Return the rows of operators and annotations that the pattern is found in, (m,) int64."""
    found = names_matching(trace.names, pattern).take(trace.spans.name)
    found &= trace.spans.kind != SpanKind.MODULE
    return np.flatnonzero(found)


def iterations(trace: Trace, rows: Int64s, pattern: re.Pattern[str]) -> tuple[Step, ...]:
    """Return the steps that some rows of one process mark, in order.

    A row that starts before the end of the one before is part of that step. Steps have the numbers
    in the pattern's groups if these rise throughout, else they count from 0.
    """
    spans = trace.spans
    apart: list[int] = []
    for row in rows.tolist():
        if not apart or spans.start_ns[row] >= spans.end_ns[apart[-1]]:
            apart.append(row)
    names = [trace.names[spans.name[row]] for row in apart]
    steps = []
    for row, name, number in zip(apart, names, _numbers(names, pattern), strict=True):
        start_ns, end_ns = int(spans.start_ns[row]), int(spans.end_ns[row])
        marker = Marker(step=number, start_ns=start_ns, end_ns=end_ns)
        steps.append(
            Step(
                step=number, start_ns=start_ns, end_ns=end_ns, markers=(marker,), name=bounded(name)
            )
        )
    return tuple(steps)


def _numbers(names: Sequence[str], pattern: re.Pattern[str]) -> Sequence[int]:
    found = [_number(name, pattern) for name in names]
    known = [each for each in found if each is not None]
    rise = all(before < after for before, after in pairwise(known))
    return known if rise and len(known) == len(names) else range(len(names))


def _number(name: str, pattern: re.Pattern[str]) -> int | None:
    match = pattern.search(name)
    text = next(filter(None, match.groups()), "") if match else ""
    return int(text) if re.fullmatch(r"\d{1,15}", text) else None


class Repeating(Struct, frozen=True, kw_only=True):
    """An annotation that comes again and again, perhaps once a step."""

    name: str  # its name, with `#` for numbers: engines write one each iteration, with what it did
    times: int  # how often it comes
    marker: str  # a regular expression that finds it, for `--step-marker`


def repeating_annotation(trace: Trace) -> Repeating | None:
    """Return the annotation with most time of those that occur 3 times or more; None without."""
    spans = trace.spans
    rows = np.flatnonzero(spans.kind == SpanKind.ANNOTATION)
    count = np.bincount(spans.name[rows])
    length_ns = np.bincount(spans.name[rows], spans.end_ns[rows] - spans.start_ns[rows])
    found: dict[str, tuple[float, int, str]] = {}
    for name in np.flatnonzero(count).tolist():
        text = _NUMBER.sub("#", bounded(trace.names[name]))
        before_ns, before, first = found.get(text, (0.0, 0, trace.names[name]))
        found[text] = (before_ns + float(length_ns[name]), before + int(count[name]), first)
    often = [
        (time, text, many, first) for text, (time, many, first) in found.items() if many >= _OFTEN
    ]
    if not often:
        return None
    _, text, many, first = max(often)
    return Repeating(name=text, times=many, marker=_marker(first))


def _marker(name: str) -> str:
    """Return an expression that finds names like this one, up to its first few numbers."""
    texts = _NUMBER.split(name[:_LONGEST_TEXT])
    kept = [
        re.escape(text).replace("\\ ", " ").replace("\\#", "#")
        for text in texts[: _MOST_NUMBERS + 1]
    ]
    is_whole = len(kept) == len(texts) and len(name) <= _LONGEST_TEXT
    numbers = [r"(\d+)", *[r"\d+"] * _MOST_NUMBERS]
    found = "".join(text + number for text, number in zip(kept[:-1], numbers, strict=False))
    return f"^{found}{kept[-1]}{'$' if is_whole else ''}"

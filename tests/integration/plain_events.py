"""Single events of Kineto files, as a reader with a text editor would follow them."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import numpy as np

from chopperd.model.arrays import Int64s
from chopperd.model.timeline import DeviceTimeline
from tests.integration.reference_reader import CALLS, RECORD_KINDS, Event, read_json

Span = tuple[Decimal, Decimal]


@dataclass(frozen=True, slots=True)
class Plain:
    """A file's events as they stand."""

    base_ns: int
    by_category: dict[str, list[Event]]
    called: dict[int, Decimal]

    def of(self, *categories: str) -> list[Event]:
        return [e for each in categories for e in self.by_category.get(each, ())]

    def record(self, correlation: int) -> Event:
        return only(e for e in self.of(*RECORD_KINDS) if e["args"]["correlation"] == correlation)

    def call(self, correlation: int) -> Event:
        return only(e for e in self.of(*CALLS) if e["args"]["correlation"] == correlation)

    def around(self, event: Event, category: str) -> list[Event]:
        """Events of a category around an event's start on its thread, outermost first."""
        found = [
            e
            for e in self.of(category)
            if e["tid"] == event["tid"] and e["ts"] <= event["ts"] < end(e)
        ]
        return sorted(found, key=lambda e: (e["ts"], -e["dur"]))

    def start_ns(self, event: Event) -> int:
        return self.base_ns + ns(event["ts"])


def plain_events(path: Path) -> Plain:
    """A file read by the standard library."""
    document = read_json(path)
    events: defaultdict[str, list[Event]] = defaultdict(list)
    for event in document["traceEvents"]:
        if event["ph"] in ("X", "s", "f"):
            events[str(event.get("cat")).lower()].append(event)
    calls = [e for category in CALLS for e in events[category]]
    called = {e["args"]["correlation"]: e["ts"] for e in calls}
    return Plain(document["baseTimeNanoseconds"], dict(events), called)


def only(found: Iterable[Event]) -> Event:
    (one,) = found
    return one


def end(event: Event) -> Decimal:
    return Decimal(event["ts"] + event["dur"])


def ns(time_us: Decimal | int) -> int:
    return round(Decimal(time_us) * 1000)


def is_comm(record: Event) -> bool:
    return bool(record["cat"] == "kernel") and record["name"].lower().startswith("nccl")


def is_compute(record: Event) -> bool:
    return bool(record["cat"] == "kernel") and not is_comm(record)


def step_of(plain: Plain, record: Event) -> int | None:
    """The number of the marker that a record's launch call began in."""
    at = plain.called.get(record["args"]["correlation"], Decimal(-1))
    found = [
        int(each["name"].removeprefix("ProfilerStep#"))
        for each in plain.of("user_annotation")
        if each["name"].startswith("ProfilerStep#") and each["ts"] <= at < end(each)
    ]
    return found[0] if found else None


def clipped(plain: Plain, within: Event, wanted: Callable[[Event], bool]) -> list[Span]:
    """The spans of records inside one event's, cut at its ends."""
    spans = [
        (max(each["ts"], within["ts"]), min(end(each), end(within)))
        for each in plain.of(*RECORD_KINDS)
        if wanted(each)
    ]
    return [(start, stop) for start, stop in spans if start < stop]


def length_ns(spans: list[Span]) -> int:
    """The length of their union, by sweeping."""
    total, until = Decimal(0), Decimal(0)
    for start, stop in sorted(spans):
        total += max(stop - max(start, until), Decimal(0))
        until = max(until, stop)
    return ns(total)


def fsdp_operators(plain: Plain) -> Iterable[tuple[str | None, str, int]]:
    """Layer, phase and own ns of each operator on the training thread between FSDP2's hooks."""
    hooks = [e for e in plain.of("user_annotation") if e["name"].startswith("FSDP::")]
    thread = hooks[0]["tid"]
    operators = sorted(
        (e for e in plain.of("cpu_op") if e["tid"] == thread), key=lambda e: (e["ts"], -e["dur"])
    )
    arrows: defaultdict[int, dict[str, Decimal]] = defaultdict(dict)
    for each in plain.of("fwdbwd"):
        arrows[each["id"]][each["ph"]] = each["ts"]
    origin = {each["f"]: each["s"] for each in arrows.values()}
    forward = stretches(hooks, "pre_forward", "post_forward")
    backward = stretches(hooks, "pre_backward", "post_backward_reduce")
    passes = stretches(hooks, "pre_backward", "root_post_backward_callback", only_root=True)
    annotated = [(e["ts"], end(e), module(e)) for e in hooks if module(e)]
    for operator, stack, own_ns in nested(operators):
        at = operator["ts"]
        in_backward = any(start <= at < stop for start, stop, _ in passes)
        layer = innermost(annotated, at)
        if layer is None and in_backward:
            begins = next((origin[e["ts"]] for e in reversed(stack) if e["ts"] in origin), None)
            layer = None if begins is None else innermost((*annotated, *forward), begins)
        if layer is None:
            layer = innermost(backward if in_backward else forward, at)
        yield layer, "backward" if in_backward else "forward", own_ns


def module(event: Event) -> str | None:
    """The module in the name of an annotation of FSDP2."""
    found = re.search(r"\((layers\.\d+)\)$| for (layers\.\d+)$", event["name"])
    return (found[1] or found[2]) if found else None


def stretches(
    hooks: list[Event], opens: str, closes: str, *, only_root: bool = False
) -> list[tuple[Decimal, Decimal, str | None]]:
    """From each opening hook of a module to the end of the next closing one of it."""
    found, open_at = [], {}
    for each in sorted(hooks, key=lambda e: e["ts"]):
        hook = each["name"].removeprefix("FSDP::").split()[0]
        if only_root and module(each):
            continue
        if hook == opens:
            open_at[module(each)] = each["ts"]
        elif hook == closes and module(each) in open_at:
            found.append((open_at.pop(module(each)), end(each), module(each)))
    return found


def innermost(spans: Iterable[tuple[Decimal, Decimal, str | None]], at: Decimal) -> str | None:
    """The name of the shortest span around a moment."""
    return min(
        ((stop - start, name) for start, stop, name in spans if start <= at < stop and name),
        default=(0, None),
    )[1]


def nested(operators: list[Event]) -> Iterable[tuple[Event, list[Event], int]]:
    """Each operator with the stack that it is on top of, and its time less that of those in it."""
    own = {id(each): ns(each["dur"]) for each in operators}
    stacks: list[list[Event]] = []
    stack: list[Event] = []
    for each in operators:
        while stack and end(stack[-1]) <= each["ts"]:
            stack.pop()
        if stack:
            own[id(stack[-1])] -= ns(each["dur"])
        stack.append(each)
        stacks.append([*stack])
    return [(each, above, own[id(each)]) for each, above in zip(operators, stacks, strict=True)]


def tell(page: str, *figures: object) -> None:
    """Asserts that the page has all figures, with commas between thousands if they are whole."""
    for each in figures:
        text = f"{each:,}" if isinstance(each, int) else str(each)
        assert re.search(rf"(?<![\d.,]){re.escape(text)}(?![\d]|[.,]\d)", page), text


def row_of(device: DeviceTimeline, plain: Plain, event: Event) -> int:
    """The product's row of a record, by its start and stream."""
    same = (device.start_ns == plain.start_ns(event)) & (
        device.stream == int(event["args"]["stream"])
    )
    (row,) = np.flatnonzero(same).tolist()
    assert device.end_ns[row] - device.start_ns[row] == ns(event["dur"])
    return int(row)


def span_ns(plain: Plain, start: Decimal, stop: Decimal) -> tuple[Int64s, Int64s]:
    """One window as `lengths_ns` takes it."""
    begin, until = (np.array([plain.base_ns + ns(each)]) for each in (start, stop))
    return begin, until


def named(names: tuple[str, ...], index: int) -> str | None:
    """A name by its index; None for -1."""
    return names[index] if index >= 0 else None

"""What each launch of a Kineto file lay in, by plain stacks over the file's own JSON.

Independent of the product: one event after another, a list of open spans for each thread.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from tests.integration import reference_reader as plain

MODULE, ANNOTATION, OP = "module", "annotation", "op"
_DEPTH = {MODULE: 0, ANNOTATION: 1, OP: 2, "call": 3}  # of those that begin and end together
_BY_CATEGORY = {"cpu_op": OP, "operator": OP, "user_annotation": ANNOTATION}
_ANNOTATIONS = ("ProfilerStep#", "Optimizer.", "Iteration<")

Thread = tuple[Any, Any]


@dataclass(slots=True, eq=False)
class Span:
    """A host span or a call; `around` are the spans it began in, outermost first."""

    kind: str
    name: str
    thread: Thread
    start_ns: int
    end_ns: int
    args: dict[str, Any]
    around: list["Span"] = field(default_factory=list)

    def inner(self, kind: str) -> "Span | None":
        return next((one for one in reversed(self.around) if one.kind == kind), None)

    @property
    def modules(self) -> list[str]:
        """Names of modules it began in, outermost first."""
        own = [self] if self.kind == MODULE else []
        spans = [*self.around, *own]
        return [one.name.removeprefix("nn.Module: ") for one in spans if one.kind == MODULE]


@dataclass(frozen=True, slots=True)
class Launch:
    """A device record with its call."""

    start_ns: int
    end_ns: int
    call: Span | None


@dataclass(frozen=True, slots=True)
class Stacks:
    """A file: its host spans in order of start, its device records, and `fwdbwd` arrows.

    Arrows lead from thread and time of the backward end to those of the forward one.
    """

    spans: list[Span]
    launches: list[Launch]
    arrows: dict[tuple[Thread, int], tuple[Thread, int]]


def read_stacks(path: Path) -> Stacks:
    document = plain.read_json(path)
    base_ns: int = document.get("baseTimeNanoseconds", 0)
    events = [event for event in document["traceEvents"] if event.get("ph") == "X"]
    spans = [span for event in events if (span := _span(event, base_ns)) is not None]
    _nest(spans)
    calls = {one.args["correlation"]: one for one in spans if one.kind == "call"}
    launches = [
        Launch(
            start_ns=(start_ns := base_ns + ns(event["ts"])),
            end_ns=start_ns + ns(event["dur"]),
            call=calls.get(event["args"]["correlation"]),
        )
        for event in events
        if str(event.get("cat", "")).lower() in plain.RECORD_KINDS
    ]
    kept = sorted((one for one in spans if one.kind != "call"), key=lambda one: one.start_ns)
    return Stacks(kept, launches, _arrows(document["traceEvents"], base_ns))


def ns(time_us: Decimal | int) -> int:
    return round(Decimal(time_us) * 1000)


def _span(event: plain.Event, base_ns: int) -> Span | None:
    category, name = str(event.get("cat", "")).lower(), event.get("name", "")
    kind = _BY_CATEGORY.get(category)
    if kind == OP and name.startswith(_ANNOTATIONS):
        kind = ANNOTATION
    elif category == "python_function" and name.startswith("nn.Module: "):
        kind = MODULE
    elif category in plain.CALLS:
        kind = "call"
    if kind is None:
        return None
    start_ns = base_ns + ns(event["ts"])
    end_ns = start_ns + ns(event["dur"])
    thread = (event["pid"], event["tid"])
    return Span(kind, name, thread, start_ns, end_ns, event.get("args", {}))


def _nest(spans: Iterable[Span]) -> None:
    by_thread: dict[Thread, list[Span]] = defaultdict(list)
    for span in spans:
        by_thread[span.thread].append(span)
    for mine in by_thread.values():
        stack: list[Span] = []
        mine.sort(key=lambda one: (one.start_ns, one.kind == "call", -one.end_ns, _DEPTH[one.kind]))
        for span in mine:
            while stack and stack[-1].end_ns <= span.start_ns:
                stack.pop()
            span.around = [*stack]
            if span.kind != "call":
                stack.append(span)


def _arrows(
    events: Iterable[plain.Event], base_ns: int
) -> dict[tuple[Thread, int], tuple[Thread, int]]:
    starts, ends = {}, []
    for event in events:
        if event.get("cat") == "fwdbwd":
            place = ((event["pid"], event["tid"]), base_ns + ns(event["ts"]))
            if event["ph"] == "s":
                starts[event["id"]] = place
            else:
                ends.append((event["id"], place))
    return {place: starts[number] for number, place in ends if number in starts}

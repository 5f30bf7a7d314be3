"""Who held a device, by plain Python over plain JSON: an independent, slow reading of the rules.

Time is cut at everything that begins or ends; each piece is then answered for by itself, by walking
the stack of its thread. Whether launches without record made time unknown is not worked out here:
only files without such are compared.
"""

import hashlib
import json
import re
import sys
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

from chopperd.traces.timeline.host import ALLOCATOR_CALL, DATA_WAIT_PATTERNS, SYNC_CALL
from chopperd.traces.timeline.links import COPY_LAUNCH, EARLIEST_NS, KERNEL_LAUNCH
from tests.integration.reference_reader import is_symmetric_memory, read_json

Event = dict[str, Any]
Thread = tuple[object, object]
Answer = tuple[str, str, str | None, str | None, str | None]
"""Row of the waterfall, name, innermost thing, outermost quiet thing, region."""

_RECORDS = {"kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"}
_CALLS = {"cuda_runtime", "cuda_driver", "runtime", "mtia_runtime"}
_DATA = [re.compile(pattern, re.IGNORECASE) for pattern in DATA_WAIT_PATTERNS]
#: The steps of training, and those of the one serving engine in the corpus.
_MARKER = re.compile(r"^(ProfilerStep#|Iteration[ #<]*)\d+>?$|^execute_context_")
_LATENCY_NS = 50_000


@dataclass(eq=False, slots=True)
class Thing:
    """An operator, annotation, module or frame on a thread."""

    kind: str
    name: str
    start: int
    end: int
    launches: bool = False


@dataclass(eq=False, slots=True)
class Call:
    """A runtime call; `number` is its correlation id."""

    thread: Thread
    name: str
    start: int
    end: int
    number: int


@dataclass(eq=False, slots=True)
class Record:
    """A device record; `call` launched it."""

    name: str
    is_kernel: bool
    start: int
    end: int
    call: Call | None

    @property
    def is_comm(self) -> bool:
        named = self.name.lower().startswith(("nccl", "rccl", "msccl"))
        return self.is_kernel and (named or is_symmetric_memory(self.name))

    @property
    def is_compute(self) -> bool:
        return self.is_kernel and not self.is_comm


@dataclass(slots=True)
class Host:
    """What a file says of its host."""

    things: dict[Thread, list[Thing]] = field(default_factory=lambda: defaultdict(list))
    calls: dict[Thread, list[Call]] = field(default_factory=lambda: defaultdict(list))
    launches: list[Call] = field(default_factory=list)


def holders_of(path: Path) -> dict[int, Counter[Answer]]:
    """The ns of each answer on each device of a file."""
    document = read_json(path) if path.suffix == ".gz" else _plain_json(path)
    base: int = document.get("baseTimeNanoseconds", 0)
    return answers_of(document["traceEvents"], base)


def answers_of(events: Sequence[Event], base: int = 0) -> dict[int, Counter[Answer]]:
    """The same of events."""
    return _Walk(*_read([each for each in events if each.get("ph") == "X"], base)).answers()


def _plain_json(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(), parse_float=Decimal)
    return found


def _read(events: Sequence[Event], base: int) -> tuple[Host, dict[int, list[Record]]]:
    host = Host()
    by_id: dict[int, Call] = {}
    devices: dict[int, list[Record]] = defaultdict(list)
    later: list[Event] = []
    for event in events:
        category = str(event.get("cat", "")).lower()
        start = base + round(Decimal(event["ts"]) * 1000)
        end = start + round(Decimal(event["dur"]) * 1000)
        thread = event["pid"], event["tid"]
        if category in _RECORDS:
            later.append(event)
        elif category in _CALLS:
            number = int(event.get("args", {}).get("correlation", 0))
            call = Call(thread, event["name"], start, end, number)
            host.calls[thread].append(call)
            old = by_id.get(number)
            if old is None or _launches(call.name) or not _launches(old.name):
                by_id[number] = call
        elif category in ("cpu_op", "operator", "user_annotation", "python_function"):
            host.things[thread].append(
                Thing(_kind(category, event["name"]), event["name"], start, end)
            )
    recorded = set()
    for event in later:
        args = event.get("args", {})
        start = base + round(Decimal(event["ts"]) * 1000)
        launch = by_id.get(int(args.get("correlation", 0) or -1))
        if launch is not None and start < launch.start - EARLIEST_NS:
            launch = None
        if launch is not None:
            recorded.add(id(launch))
        is_kernel = str(event["cat"]).lower() == "kernel"
        end = start + round(Decimal(event["dur"]) * 1000)
        devices[int(args["device"])].append(Record(event["name"], is_kernel, start, end, launch))
    host.launches = sorted(
        (
            call
            for calls in host.calls.values()
            for call in calls
            if id(call) in recorded or _launches(call.name)
        ),
        key=lambda call: (call.start, call.end, call.number),
    )
    return host, devices


def _launches(name: str) -> bool:
    return bool(KERNEL_LAUNCH.match(name) or COPY_LAUNCH.match(name))


def _kind(category: str, name: str) -> str:
    if re.match(r"ProfilerStep#|Iteration<\d+>|Optimizer\.", name):
        return "annotation"
    if category == "python_function":
        return "module" if name.startswith("nn.Module: ") else "frame"
    return "annotation" if category == "user_annotation" else "operator"


class _Walk:
    """Answers piece by piece."""

    def __init__(self, host: Host, devices: dict[int, list[Record]]) -> None:
        self.host, self.devices = host, devices
        self.collectives: dict[int, str] = {}
        self.stacks: dict[Thread, tuple[list[int], list[tuple[Thing, ...]]]] = {}
        self.has_things = any(
            self._real(thing) for things in host.things.values() for thing in things
        )
        self.telling = {
            thread: [one for one in calls if _is_allocator(one) or _is_sync(one)]
            for thread, calls in host.calls.items()
        }
        for thread in host.calls:
            things = [thing for thing in host.things.get(thread, []) if self._real(thing)]
            order = {"frame": 0, "module": 1, "annotation": 2, "operator": 3}
            things.sort(key=lambda one: (one.start, -one.end, order[one.kind]))
            self._mark_launching(thread, things)
            self._name_collectives(things)
            host.things[thread] = things
            self.stacks[thread] = _snapshots(things)
        self.launch_starts: dict[object, tuple[list[int], list[Call]]] = {}
        for process in {thread[0] for thread in host.calls}:
            own = [call for call in host.launches if call.thread[0] == process]
            self.launch_starts[process] = [call.start for call in own], own

    @staticmethod
    def _real(thing: Thing) -> bool:
        return thing.end > thing.start and not _MARKER.match(thing.name)

    def _name_collectives(self, things: list[Thing]) -> None:
        named = [one for one in things if one.kind == "annotation" and one.name.startswith("nccl:")]
        starts = [one.start for one in named]
        for thing in things:
            at = bisect_left(starts, thing.start)
            is_one = thing.kind == "operator" and thing.name == "record_param_comms"
            if is_one and at < len(named) and starts[at] < thing.end:
                self.collectives[id(thing)] = named[at].name

    def _mark_launching(self, thread: Thread, things: list[Thing]) -> None:
        starts = sorted(call.start for call in self.host.launches if call.thread == thread)
        for thing in things:
            thing.launches = bisect_left(starts, thing.end) > bisect_left(starts, thing.start)

    def answers(self) -> dict[int, Counter[Answer]]:
        return {device: self._device(records) for device, records in self.devices.items()}

    def _device(self, records: list[Record]) -> Counter[Answer]:
        # Kernels come first, then copies, then fills.
        records.sort(key=lambda one: (one.start, one.end, not one.is_kernel, "set" in one.name))
        found: Counter[Answer] = Counter()
        for start, end, row, following in _free_time(records):
            for answer, ns in self._gap(start, end, row, following):
                found[answer] += ns
        return found

    def _gap(
        self, start: int, end: int, row: str, following: Record | None
    ) -> Iterator[tuple[Answer, int]]:
        is_comm = row == "exposed_comm"
        call = following.call if following else None
        if following is None or call is None:
            name = "(the collective)" if is_comm and following is None else "(no launch)"
            yield (row if is_comm else "idle_other", name, None, None, None), end - start
            return
        begin, back = min(max(call.start, start), end), min(max(call.end, start), end)
        back = max(back, begin)
        cuts = sorted({start, begin, *self._edges(call.thread, start, begin)})
        for a, b in zip(cuts, [*cuts[1:], begin], strict=False):
            if b > a:
                where = row if is_comm else self._reason(call.thread, a)
                yield (where, *self._stack(call.thread, a)), b - a
        where = row if is_comm else "idle_launch_call"
        if back > begin:
            yield (where, *self._stack(call.thread, call.start)), back - begin
        if end > back:
            late = following.start - back > _LATENCY_NS
            after = "(device waits)" if late else "(launch latency)"
            name = "(the collective)" if is_comm else after
            yield (where, name, None, None, None), end - back

    def _edges(self, thread: Thread, start: int, end: int) -> Iterator[int]:
        """Whatever begins or ends on any thread of the process inside a stretch."""
        for other, (times, _) in self.stacks.items():
            if other[0] == thread[0]:
                yield from times[bisect_right(times, start) : bisect_left(times, end)]
        starts, _ = self.launch_starts[thread[0]]
        yield from starts[bisect_right(starts, start) : bisect_left(starts, end)]
        for call in self.telling[thread]:
            yield from (each for each in (call.start, call.end) if start < each < end)

    def _reason(self, thread: Thread, at: int) -> str:
        open_calls = [one for one in self.telling[thread] if one.start <= at < one.end]
        if any(_is_allocator(one) for one in open_calls):
            return "idle_allocator"
        if any(each.search(one.name) for one in self._open(thread, at) for each in _DATA):
            return "idle_data"
        return "idle_sync" if any(_is_sync(one) for one in open_calls) else "idle_launch_prep"

    def _open(self, thread: Thread, at: int) -> tuple[Thing, ...]:
        times, stacks = self.stacks[thread]
        number = bisect_right(times, at) - 1
        return stacks[number] if number >= 0 else ()

    def _stack(self, thread: Thread, at: int) -> tuple[str, str | None, str | None, str | None]:
        if not self.has_things:
            return "(no host spans)", None, None, None
        stack = self._open(thread, at)
        if not stack:
            starts, launches = self.launch_starts[thread[0]]
            number = bisect_right(starts, at) - 1
            if number >= 0:
                other = self._open(launches[number].thread, at)
                stack = other if self._name(other) else ()
        name = self._name(stack) or self._nothing(thread, at)
        return name, _inner(stack, self), _whole(stack, self), _region(stack, self)

    def _name(self, stack: tuple[Thing, ...]) -> str | None:
        numbers = [n for n, one in enumerate(stack) if one.kind == "annotation"]
        inside = stack[numbers[-1] + 1 :] if numbers else stack
        for one in inside:
            if one.kind == "operator":
                return self.said(one)
        for one in reversed(inside):
            if one.kind == "frame" and _of_user(one.name):
                return fold(one.name)
        return self.said(stack[numbers[-1]]) if numbers else None

    def said(self, thing: Thing) -> str:
        """Its name; that of `record_param_comms` is the annotation's in it."""
        return self.collectives.get(id(thing)) or fold(thing.name)

    def _nothing(self, thread: Thread, at: int) -> str:
        things = self.host.things[thread]
        first = bisect_right(things, at, key=lambda one: one.start)
        coming = things[first:]
        operators = (one for one in coming if one.kind == "operator")
        one = next(operators, coming[0] if coming else None)
        return f"(nothing open) before {self.said(one)}" if one else "(nothing open)"


def _inner(stack: tuple[Thing, ...], walk: _Walk) -> str | None:
    return walk.said(stack[-1]) if stack else None


def _whole(stack: tuple[Thing, ...], walk: _Walk) -> str | None:
    return next((walk.said(one) for one in stack if not one.launches), None)


def _region(stack: tuple[Thing, ...], walk: _Walk) -> str | None:
    for one in stack:
        if one.kind == "annotation":
            return walk.said(one)
    if any(one.name.startswith("autograd::engine::evaluate_function") for one in stack):
        return "backward"
    return next((fold(one.name) for one in stack if one.kind == "module"), None)


def fold(name: str) -> str:
    """A name without addresses; none of the corpus has a request's number or is very long."""
    name = re.sub(r"( object)? at 0x[0-9a-fA-F]+", "", name)
    return re.sub(r"\b0x[0-9a-fA-F]{4,}", "", name)


def _of_user(name: str) -> bool:
    if name.startswith("<"):
        return False
    top = re.split(r"[(/]", name)[0].removesuffix(".py")
    return top != "torch" and top not in sys.stdlib_module_names


def _is_allocator(call: Call) -> bool:
    return ALLOCATOR_CALL.match(call.name) is not None


def _is_sync(call: Call) -> bool:
    return SYNC_CALL.match(call.name) is not None


def _snapshots(things: list[Thing]) -> tuple[list[int], list[tuple[Thing, ...]]]:
    """What is open on a thread from each instant on at which that changes."""
    times = sorted({each for one in things for each in (one.start, one.end)})
    stacks: list[tuple[Thing, ...]] = []
    open_now: list[Thing] = []
    at = 0
    for time in times:
        if any(one.end <= time for one in open_now):
            open_now = [one for one in open_now if one.end > time]
        while at < len(things) and things[at].start <= time:
            open_now.append(things[at])
            at += 1
        stacks.append(tuple(open_now))
    return times, stacks


def _free_time(records: list[Record]) -> Iterator[tuple[int, int, str, Record | None]]:
    """Yield idle time and exposed communication, with the record that comes next."""
    times = sorted({each for one in records for each in (one.start, one.end)})
    compute = [one for one in records if one.is_compute]
    following, computes = _Following(records), _Following(compute)
    active: list[Record] = []
    at = 0
    pending: tuple[int, int, str, Record | None] | None = None
    for a, b in pairwise(times):
        active = [one for one in active if one.end > a]
        while at < len(records) and records[at].start <= a:
            active += [records[at]] if records[at].end > a else []
            at += 1
        if any(one.is_compute for one in active):
            found = None
        elif any(one.is_comm for one in active):
            found = a, b, "exposed_comm", computes.after(a)
        else:
            found = None if active else (a, b, "idle", following.after(a))
        if pending and found and pending[1] == a and pending[2:] == found[2:]:
            pending = pending[0], b, *found[2:]
            continue
        if pending:
            yield pending
        pending = found
    if pending:
        yield pending


class _Following:
    """The record that starts first after an instant; of several a linked one."""

    def __init__(self, records: list[Record]) -> None:
        self.records, self.starts = records, [one.start for one in records]

    def after(self, at: int) -> Record | None:
        number = bisect_right(self.starts, at)
        if number == len(self.records):
            return None
        start = self.starts[number]
        same = self.records[number : bisect_right(self.starts, start)]
        return next((one for one in same if one.call is not None), same[0])


ANSWERS = Path(__file__).with_name("holders.json")
"""What this reading gives for the public traces, by file and device: see `in_short`."""
NAMES = (
    *("hta_a100_cuda_sync_multistream", "hta_a100_nccl_ddp", "hta_mi250_rocm62_minitoy"),
    *("hta_v100_ddp_memory", "hta_v100_ns_absolute_ts", "kineto2021_v100_resnet50.pt.trace"),
    *("tracelens_b200_vllm_eager", "tracelens_h100_qwen15_05b", "tracelens_mi300x_compile_triton"),
    *("tracelens_mi300x_qwen15_05b", "tracelens_mi300x_resnet_act_checkpoint"),
)
"""The public traces with device records."""
_SHOWN = 5


def in_short(answers: Counter[Answer]) -> dict[str, object]:
    """Answers as they are stored: the largest names of each row, and a hash of all."""
    rows: dict[str, Counter[str]] = defaultdict(Counter)
    for (row, name, *_), ns in answers.items():
        rows[row][name] += ns
    every = sorted((*map(str, answer), ns) for answer, ns in answers.items() if ns)
    return {
        "rows": {
            row: dict(sorted(names.items(), key=lambda each: (-each[1], each[0]))[:_SHOWN])
            for row, names in sorted(rows.items())
            if names.total()
        },
        "sha256": hashlib.sha256(json.dumps(every).encode()).hexdigest(),
    }


def read_anew(folder: Path, name: str) -> dict[str, object]:
    """The answers for one public trace, as they are stored."""
    found = holders_of(folder / f"{name}.json.gz")
    return {str(device): in_short(answers) for device, answers in sorted(found.items())}


def main() -> int:
    """Work out the answers for all public traces; 1 where they are not those stored."""
    folder = Path(sys.argv[1])
    found = {name: read_anew(folder, name) for name in NAMES}
    text = json.dumps(found, indent=1) + "\n"
    if "--record" in sys.argv:
        ANSWERS.write_text(text)
    return int(ANSWERS.read_text() != text)


if __name__ == "__main__":
    sys.exit(main())

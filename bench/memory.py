"""Known truth for the figures of device memory: a model of torch's allocator replays FSDP steps.

Each job is a few FSDP units, transformer blocks of drawn sizes. FSDPv1 gathers a unit's flat
parameter before its forward and backward, one unit ahead, and gives it back after; FSDPv2 gathers
into a buffer of another stream, copies out tensor by tensor, and lets the buffer go when the next
one is gathered. Both want the same in each step, so that all but the varying job have a program
ratio of 1, and pairs of requests by position. Six kinds:

* `immediate`: blocks come back at once;
* `delayed`: FSDPv1's units come back some allocations later, as another stream reads them;
* `near_limit`: at once, on a device so small that each step flushes the cache, with equal peaks;
* `varying`: each step also asks for blocks of sizes that no other step has;
* `expandable`: as `delayed`, with expandable segments;
* `one_step`: a single step.

    python -m bench.memory [SEEDS]
"""

import random
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, Literal, NamedTuple

import numpy as np

from chopperd.correlate.memory.calls import RECORD_STREAM, host_calls
from chopperd.correlate.memory.verdict import device_memory
from chopperd.model.memory import MemoryReason, RankMemory
from chopperd.model.timeline import Marker, Step
from chopperd.model.trace import HostSpans, RuntimeCalls, SpanKind
from chopperd.simulation.allocator import MIB, CachingAllocator

Kind = Literal["immediate", "delayed", "near_limit", "varying", "expandable", "one_step"]
KINDS: Final[tuple[Kind, ...]] = (
    *("immediate", "delayed", "near_limit", "varying", "expandable", "one_step"),
)
STEPS: Final = 8
_WORLD: Final = 8
_MEAN_DELAY: Final = 8
_FINEST: Final = 512


class Request(NamedTuple):
    """An allocation (`size` > 0), or the free of an earlier one of the step."""

    key: int  # which allocation of the step
    size: int = 0
    stream: int = 0
    waits: bool = False  # whether another stream may still read what is freed
    is_own: bool = False  # whether only this step asks for it


@dataclass(slots=True)
class Program:
    """The requests of a step, as FSDP makes them."""

    requests: list[Request] = field(default_factory=list)
    count: int = 0

    def get(self, size: int, stream: int = 0, *, is_own: bool = False) -> int:
        self.requests.append(Request(self.count, size, stream, is_own=is_own))
        self.count += 1
        return self.count - 1

    def give(self, key: int, *, waits: bool = False, is_own: bool = False) -> None:
        self.requests.append(Request(key, waits=waits, is_own=is_own))


def fsdp1(rng: random.Random) -> Program:
    """FSDPv1: forward and backward over units, the next unit gathered before this one is freed."""
    job, unit, saved, scratch = Program(), *_sizes(rng)
    units, kept, gathered = rng.randint(3, 6), [], []
    for one in range(units):
        gathered.append(job.get(unit))
        kept.append([job.get(size) for size in saved])
        for size in scratch:
            job.give(job.get(size))
        if one:
            job.give(gathered[one - 1], waits=True)
    job.give(gathered[-1], waits=True)
    for one in reversed(range(units)):
        full, gradient = job.get(unit), job.get(unit)
        for size, key in zip(scratch, kept[one], strict=False):
            job.give(job.get(size))
            job.give(key)
        for key in kept[one][len(scratch) :]:
            job.give(key)
        shard = job.get(unit // _WORLD)
        job.give(gradient, waits=True)
        job.give(full, waits=True)
        job.give(shard)
    return job


def fsdp2(rng: random.Random) -> Program:
    """FSDPv2: gathered into a side stream's buffer, which goes when the next one is gathered."""
    job, unit, saved, scratch = Program(), *_sizes(rng)
    parts = [unit // 4, unit // 4, unit // 2]
    kept: list[list[int]] = []
    buffers = [job.get(unit, stream=1)]
    units = rng.randint(3, 6)
    for one in (*range(units), *reversed(range(units))):
        full = [job.get(part) for part in parts]
        buffers.append(job.get(unit, stream=1))
        job.give(buffers[-2])
        for size in scratch:
            job.give(job.get(size))
        if len(buffers) <= units + 1:
            kept.append([job.get(size) for size in saved])
        else:
            gradient = job.get(unit)
            for key in kept[one]:
                job.give(key)
            job.give(gradient)
        for key in full:
            job.give(key)
    job.give(buffers[-1])
    return job


def _sizes(rng: random.Random) -> tuple[int, list[int], list[int]]:
    """Draw the sizes of a unit, of what a block saves for backward, and of what it needs."""
    unit = rng.randint(30, 200) * MIB + rng.randint(0, 2000) * _FINEST
    saved = [rng.randint(2, 40) * MIB + rng.randint(0, 2000) * _FINEST for _ in range(6)]
    return unit, [*saved, rng.randint(1, 900) * 1024], [rng.randint(1, 60) * MIB for _ in range(4)]


def _with_own(base: Program, step: int, rng: random.Random) -> Program:
    """Insert blocks of sizes that only this step has, at least a twentieth of its requests."""
    job = Program(list(base.requests), base.count)
    taken = {request.size for request in base.requests}
    free = [size for size in range(step + 1, MIB // _FINEST, STEPS) if size * _FINEST not in taken]
    for size in rng.sample(free, k=max(4, len(base.requests) // 20)):
        key = job.count
        job.get(size * _FINEST, is_own=True)
        job.give(key, is_own=True)
        last = job.requests[-2:]
        del job.requests[-2:]
        at = rng.randrange(len(job.requests))
        job.requests[at:at] = last
    return job


@dataclass(slots=True)
class Truth:
    """What is so of a job, over its steps from `warm_up` on."""

    warm_up: int = 0
    program: float | None = None
    worst_program: float | None = None
    determinism: float | None = None
    worst_determinism: float | None = None
    retries: int = 0
    cv_reserved: float | None = None
    verdict: str = ""
    reasons: tuple[MemoryReason, ...] = ()


@dataclass(slots=True)
class Played:
    """A job that was replayed: what a trace and a snapshot show, and each step's own facts."""

    allocator: CachingAllocator
    steps: list[Step] = field(default_factory=list)
    calls: list[tuple[str, int, int]] = field(default_factory=list)
    spans: list[tuple[str, int, int]] = field(default_factory=list)
    asked: list[list[tuple[int, bool]]] = field(default_factory=list)  # (address, is_own)
    grown: list[int] = field(default_factory=list)  # segment calls of each step
    retries: list[int] = field(default_factory=list)
    delayed: list[int] = field(default_factory=list)  # frees that waited
    peaks: list[int] = field(default_factory=list)

    def memory(self, *, with_snapshot: bool) -> RankMemory:
        """Analyse what it left."""
        calls = sorted([*self.calls, *self.allocator.log.calls], key=lambda call: call[1])
        names = sorted({name for name, *_ in (*calls, *self.spans)})
        host = host_calls(names, _runtime_calls(names, calls), _host_spans(names, self.spans))
        snapshot = self.allocator.snapshot() if with_snapshot else None
        return device_memory(
            self.steps, host, self.allocator.log.memory_rows(), snapshot, device=0, rank=0
        )


def play(
    programs: Sequence[Program], allocator: CachingAllocator, rng: random.Random | None
) -> Played:
    """Run one step after another; `rng` draws how long blocks that wait do so, None: not at all."""
    played = Played(allocator)
    for number, program in enumerate(programs):
        start_ns, before = allocator.now_ns, (allocator.segment_calls, allocator.retries)
        rows, delayed = len(allocator.log.rows), 0
        asked: list[tuple[int, bool]] = []
        at: dict[int, int] = {}
        for request in program.requests:
            if request.size:
                at[request.key] = allocator.malloc(request.size, request.stream)
                played.calls.append(("cudaLaunchKernel", allocator.now_ns, 500))
                allocator.now_ns += 1000
            else:
                delay = None
                if request.waits:
                    played.spans.append((RECORD_STREAM, allocator.now_ns, 400))
                    delay = None if rng is None else int(rng.expovariate(1 / _MEAN_DELAY))
                allocator.free(at[request.key], delay)
                delayed += bool(delay)
            asked.append((at[request.key], request.is_own))
        allocator.synchronize()
        played.steps.append(_step(number, start_ns, allocator.now_ns))
        allocator.now_ns += 5000
        played.asked.append(asked)
        played.delayed.append(delayed)
        played.grown.append(allocator.segment_calls - before[0])
        played.retries.append(allocator.retries - before[1])
        entry = allocator.log.rows[max(rows - 1, 0)][4] if rows else 0
        played.peaks.append(max(entry, *(row[4] for row in allocator.log.rows[rows:])))
    return played


def _step(number: int, start_ns: int, end_ns: int) -> Step:
    marker = Marker(step=number, start_ns=start_ns, end_ns=end_ns)
    return Step(step=number, start_ns=start_ns, end_ns=end_ns, markers=(marker,))


def trial(kind: Kind, seed: int, *, with_snapshot: bool) -> tuple[Truth, RankMemory]:
    """Play one job of a kind: what is so, and what the analysis says."""
    rng = random.Random(f"{kind} {seed}")
    waits = kind in {"delayed", "expandable"}
    make = fsdp1 if waits or rng.random() < 0.5 else fsdp2
    base = make(rng)
    programs = [base] * (1 if kind == "one_step" else STEPS)
    if kind == "varying":
        programs = [_with_own(base, step, rng) for step in range(STEPS)]
    room = None
    if kind == "near_limit":
        base, room = _near_limit(base)
        programs = [base] * STEPS
    allocator = CachingAllocator(room, is_expandable=kind == "expandable")
    played = play(programs, allocator, random.Random(seed) if waits else None)
    truth = _truth(played, with_snapshot=with_snapshot, is_expandable=kind == "expandable")
    return truth, played.memory(with_snapshot=with_snapshot)


def _near_limit(base: Program) -> tuple[Program, int]:
    """Add a large block on each of two streams, and return a device on which only one fits.

    What one stream has cached is of no use to the other, so that each step flushes the cache.
    """
    job = Program(count=base.count)
    size = 2 * max(play([base], CachingAllocator(), None).peaks)
    for stream in (0, 1):
        job.give(job.get(size, stream))
    job.requests += base.requests
    return job, size * 19 // 10


def _truth(played: Played, *, with_snapshot: bool, is_expandable: bool) -> Truth:
    """Work out from the model's own counters and addresses what the figures must be."""
    truth = Truth(warm_up=_warm_up(played))
    kept = slice(truth.warm_up, None)
    truth.retries = sum(played.retries[kept])
    pairs = list(pairwise(played.asked[kept]))
    if pairs:
        common = [[[at for at, is_own in step if not is_own] for step in pair] for pair in pairs]
        same = [sum(x == y for x, y in zip(*each, strict=True)) for each in common]
        counts = [len(each[0]) for each in common]
        lengths = [len(a) + len(b) for a, b in pairs]
        truth.program = 2 * sum(counts) / sum(lengths)
        truth.worst_program = min(2 * c / n for c, n in zip(counts, lengths, strict=True))
        truth.determinism = sum(same) / sum(counts)
        truth.worst_determinism = min(s / c for s, c in zip(same, counts, strict=True))
        peaks = played.peaks[kept]
        truth.cv_reserved = float(np.std(peaks) / np.mean(peaks))
    truth.verdict = _verdict(truth, sum(played.grown[kept]))
    found: dict[MemoryReason, bool] = {
        "near_limit": truth.retries > 0,
        "delayed_frees": with_snapshot and sum(played.delayed[kept]) > 0,
        "record_stream": any(name == RECORD_STREAM for name, *_ in played.spans),
        "expandable_segments": is_expandable,
    }
    if truth.verdict in {"churns", "varies"}:
        truth.reasons = tuple(name for name, holds in found.items() if holds) or ("unknown",)
    return truth


def _warm_up(played: Played) -> int:
    """Count leading steps that grow and flush nothing, if a later one does not grow."""
    counts = list(zip(played.grown, played.retries, strict=True))[:2]
    leads = [grown > 0 and not retries for grown, retries in counts]
    count = leads.index(False) if False in leads else len(leads)
    return count if 0 in played.grown[count:] else 0


def _verdict(truth: Truth, grown: int) -> str:
    if truth.retries:
        return "churns"
    if truth.program is None or truth.determinism is None:
        return "not_measured"
    if truth.program < 0.98:
        return "program_varies"
    if grown:
        return "churns"
    return "varies" if truth.determinism < 0.99 else "deterministic"


def _runtime_calls(names: Sequence[str], calls: Sequence[tuple[str, int, int]]) -> RuntimeCalls:
    start_ns, length_ns = (np.array([call[i] for call in calls], np.int64) for i in (1, 2))
    none = np.full(len(calls), -1)
    return RuntimeCalls(
        thread=np.zeros(len(calls), np.int32),
        start_ns=start_ns,
        end_ns=start_ns + length_ns,
        name=np.array([names.index(call[0]) for call in calls], np.int32),
        correlation=none,
        external_id=none,
        size_bytes=none,
    )


def _host_spans(names: Sequence[str], spans: Sequence[tuple[str, int, int]]) -> HostSpans:
    start_ns, length_ns = (np.array([span[i] for span in spans], np.int64) for i in (1, 2))
    none = np.full(len(spans), -1)
    return HostSpans(
        thread=np.zeros(len(spans), np.int32),
        start_ns=start_ns,
        end_ns=start_ns + length_ns,
        name=np.array([names.index(span[0]) for span in spans], np.int32),
        kind=np.full(len(spans), SpanKind.OP, np.int8),
        external_id=none,
        sequence=none,
        forward_thread=none,
        shapes=none.astype(np.int32),
        collective=none.astype(np.int32),
    )


#: Figures of an analysis as they are named there and in `Truth`.
FIGURES: Final = (
    *(("program_ratio", "program"), ("worst_program_ratio", "worst_program")),
    *(("determinism_ratio", "determinism"), ("worst_determinism_ratio", "worst_determinism")),
    *(("warm_up_steps", "warm_up"), ("retries", "retries"), ("cv_reserved", "cv_reserved")),
    *(("verdict", "verdict"), ("reasons", "reasons")),
)


def wrong(truth: Truth, found: RankMemory) -> list[str]:
    """Name the figures that are not what they must be; ratios to rounding."""
    return [
        theirs
        for theirs, ours in FIGURES
        if not _equal(getattr(found, theirs), getattr(truth, ours))
    ]


def _equal(found: object, expected: object) -> bool:
    if isinstance(found, float) and isinstance(expected, float):
        return abs(found - expected) < 1e-9
    return found == expected


def main(seeds: int = 200) -> None:
    """Print for each kind how many jobs have every figure right, from rows and a snapshot."""
    print("kind        source    right  allocator (worst)   CV 0  retries  verdicts")
    for kind in KINDS:
        for with_snapshot in (False, True):
            _line(kind, seeds, with_snapshot=with_snapshot)


def _line(kind: Kind, seeds: int, *, with_snapshot: bool) -> None:
    found = [trial(kind, seed, with_snapshot=with_snapshot) for seed in range(seeds)]
    right = sum(not wrong(*each) for each in found)
    shares = [truth.determinism for truth, _ in found if truth.determinism is not None]
    worst = [truth.worst_determinism for truth, _ in found if truth.worst_determinism is not None]
    flat = sum(memory.cv_reserved == 0 for _, memory in found)
    retries = sum(memory.retries or 0 for _, memory in found)
    verdicts = Counter(memory.verdict for _, memory in found)
    mean = f"{np.mean(shares):.3f} ({min(worst):.3f})" if shares else "-"
    source = "snapshot" if with_snapshot else "rows"
    said = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common())
    print(f"{kind:10s}  {source:8s}  {right:5d}  {mean:18s}  {flat:4d}  {retries:7d}  {said}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))

"""A device's memory over its steps: what is warm-up, how alike steps are, and the verdict.

Source: DESIGN.md section 2, "FSDP and memory".
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final, TypeVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chopperd.correlate.memory.alignment import Requests, align
from chopperd.correlate.memory.calls import HostCalls, host_calls
from chopperd.correlate.memory.steps import StepCuts, StepEvidence, breaks, step_evidence
from chopperd.model.arrays import rows_of
from chopperd.model.kinds import MemoryVerdict
from chopperd.model.memory import (
    MemoryReason,
    MemoryRows,
    MemorySnapshot,
    MemorySource,
    RankMemory,
    StepMemory,
)
from chopperd.model.timeline import Step
from chopperd.model.trace import Trace

_Number = TypeVar("_Number", int, float)

_MOST_WARM_UP: Final = 2
_RETRIES: Final = ("retry", "retries")
_OOMS: Final = ("time out of memory", "times out of memory")
_LEAST_PROGRAM: Final = 0.98
_LEAST_ALLOCATOR: Final = 0.99
#: Work of aligning one device's steps, a few seconds.
MOST_CELLS: Final = 300_000_000


class _Alike(Struct, frozen=True, kw_only=True):
    """Aligned pairs of neighbouring steps, and of those at the same address; None unknown.

    `steps`: (program, determinism) of each step against the one before it.
    """

    steps: tuple[tuple[float | None, float | None], ...]
    program: float | None = None
    worst_program: float | None = None
    determinism: float | None = None
    worst_determinism: float | None = None
    is_too_long: bool = False


def trace_memory(
    trace: Trace,
    steps: Sequence[Step],
    snapshots: Iterable[MemorySnapshot] = (),
    *,
    process: int | str | None = None,
) -> tuple[RankMemory, ...]:
    """Return the memory of each device of one process, by device number; () without evidence.

    Without rows and snapshots, the calls are those of the process's only device.

    `steps`: of the process. `snapshots`: in the trace's time, one a device at most. `process`: its
    pid; None for a trace of one process.
    """
    threads, rows = None, trace.memory
    if process is not None:
        threads = np.array([pid == process for pid, _ in trace.threads], np.bool_)
        rows = rows_of(rows, threads[rows.thread])
    calls = host_calls(trace.names, trace.calls, trace.spans, threads)
    by_device = {each.device: each for each in snapshots}
    devices = {*np.unique(rows.device).tolist(), *by_device}
    if not devices and calls.is_recorded:
        devices = set(np.unique(trace.records.device).tolist())
        devices = devices if len(devices) == 1 else set()
    return tuple(
        device_memory(
            steps,
            calls if len(devices) == 1 else calls.of_device(rows, device),
            rows_of(rows, rows.device == device),
            by_device.get(device),
            device=device,
            rank=trace.meta.rank,
        )
        for device in sorted(devices)
    )


def device_memory(
    steps: Sequence[Step],
    calls: HostCalls,
    rows: MemoryRows,
    snapshot: MemorySnapshot | None,
    *,
    device: int,
    rank: int | None = None,
    most_cells: int = MOST_CELLS,
) -> RankMemory:
    """Return a device's memory over steps, from the rows and the snapshot of that device alone."""
    evidence = step_evidence(steps, calls, rows if len(rows) else None, snapshot)
    memory = [each.memory for each in evidence]
    warm_up = warm_up_steps(memory)
    kept, measured = memory[warm_up:], evidence[warm_up:]
    alike = _alike(measured, most_cells)
    memory[warm_up:] = kept = [
        replace(each, program_ratio=program, determinism_ratio=same)
        for each, (program, same) in zip(kept, alike.steps, strict=True)
    ]
    is_expandable = calls.is_expandable or bool(snapshot is not None and snapshot.expandable)
    verdict, text = _verdict(kept, alike, is_async=_is_async(steps[warm_up:], calls, kept))
    allocated = [each.peak_allocated_bytes for each in kept]
    reserved = [each.peak_reserved_bytes for each in kept]
    return RankMemory(
        rank=rank,
        device=device,
        gpu=None,
        source=_source(measured, rows),
        steps=tuple(memory),
        warm_up_steps=warm_up,
        breaks=breaks(rows),
        program_ratio=alike.program,
        worst_program_ratio=alike.worst_program,
        determinism_ratio=alike.determinism,
        worst_determinism_ratio=alike.worst_determinism,
        peak_allocated_bytes=max(_known(allocated), default=None),
        peak_reserved_bytes=max(_known(reserved), default=None),
        held_bytes=max(_known([each.held_bytes for each in kept]), default=None),
        cv_allocated=_cv(allocated),
        cv_reserved=_cv(reserved),
        segment_calls=_sum([_segment_calls(each) for each in kept]),
        segment_ns=_sum([each.segment_ns for each in kept]),
        retries=_sum([each.retries for each in kept]),
        ooms=_sum([each.ooms for each in kept]),
        verdict=verdict,
        verdict_text=text,
        reasons=_reasons(kept, is_expandable) if verdict in {"churns", "varies"} else (),
    )


def warm_up_steps(steps: Sequence[StepMemory]) -> int:
    """Count the leading steps that only fill the allocator's cache: 2 at most.

    They ask for segments, give none back and retry nothing, and a later step asks for none.
    """
    count = 0
    for each in steps[:_MOST_WARM_UP]:
        if not each.segment_allocs or each.segment_frees or each.retries or each.ooms:
            break
        count += 1
    return count if any(each.segment_allocs == 0 for each in steps[count:]) else 0


def _alike(steps: Sequence[StepEvidence], most_cells: int) -> _Alike:
    """Align neighbouring steps, by what was asked for where both have that, else by blocks."""
    by_step: list[tuple[float | None, float | None]] = [(None, None)] * len(steps)
    requests = paired = placed = same = 0
    for index, (before, after) in enumerate(pairwise(steps), 1):
        a, b = (
            _both(before.exact, after.exact) or _both(before.blocks, after.blocks) or (None, None)
        )
        if a is None or b is None or not len(a) + len(b):
            continue
        aligned = align(a, b, most_cells)
        if aligned is None:
            return _Alike(steps=((None, None),) * len(steps), is_too_long=True)
        most_cells -= aligned.cells
        requests, paired = requests + len(a) + len(b), paired + aligned.pairs
        program, share = 2 * aligned.pairs / (len(a) + len(b)), None
        if aligned.pairs and a.has_addresses and b.has_addresses:
            placed, same = placed + aligned.pairs, same + aligned.same
            share = aligned.same / aligned.pairs
        by_step[index] = program, share
    programs = _known(program for program, _ in by_step)
    shares = _known(share for _, share in by_step)
    return _Alike(
        steps=tuple(by_step),
        program=2 * paired / requests if requests else None,
        worst_program=min(programs, default=None),
        determinism=same / placed if placed else None,
        worst_determinism=min(shares, default=None),
    )


def _both(a: Requests | None, b: Requests | None) -> tuple[Requests, Requests] | None:
    return None if a is None or b is None else (a, b)


def _verdict(
    steps: Sequence[StepMemory], alike: _Alike, *, is_async: bool
) -> tuple[MemoryVerdict, str]:
    """Return the first verdict that holds of steps after warm-up, and why in words."""
    retries, ooms = (
        sum(getattr(each, name) or 0 for each in steps) for name in ("retries", "ooms")
    )
    calls = _sum([_segment_calls(each) for each in steps])
    least = "at least " if any(each.at_least for each in steps) else ""
    program, same = alike.program, alike.determinism
    verdicts: tuple[tuple[bool, MemoryVerdict, str], ...] = (
        (is_async, "not_measured", "not measured: CUDA's own asynchronous allocator is used"),
        (
            bool(retries or ooms),
            "churns",
            " and ".join(
                _many(count, *words)
                for count, words in ((retries, _RETRIES), (ooms, _OOMS))
                if count
            ),
        ),
        (len(steps) < 2, "not_measured", f"not measured: {'one' if steps else 'no'} step"),
        (
            program is not None and program < _LEAST_PROGRAM,
            "program_varies",
            "the job's own requests differ from step to step",
        ),
        (
            bool(calls),
            "churns",
            f"{least}{_many(calls or 0, 'segment call', 'segment calls')} after warm-up",
        ),
        (alike.is_too_long, "not_measured", "not measured: too many requests to align"),
        (calls is None, "not_measured", "not measured: neither runtime calls nor totals"),
        (same is None, "segments_steady", "no segment call after warm-up; no addresses to compare"),
        (
            same is not None and same < _LEAST_ALLOCATOR,
            "varies",
            "equal requests get other addresses from step to step",
        ),
    )
    last: tuple[MemoryVerdict, str] = "deterministic", "each step gets the addresses of the last"
    return next(((verdict, text) for holds, verdict, text in verdicts if holds), last)


def _reasons(steps: Sequence[StepMemory], is_expandable: bool) -> tuple[MemoryReason, ...]:
    found: dict[MemoryReason, bool] = {
        "near_limit": any(each.retries or each.ooms for each in steps),
        "delayed_frees": any(each.waited_ratio for each in steps),
        "record_stream": any(each.record_streams for each in steps),
        "rate_limiter": any(each.rate_limiter_ns for each in steps),
        "expandable_segments": is_expandable,
    }
    return tuple(name for name, holds in found.items() if holds) or ("unknown",)


def _source(steps: Sequence[StepEvidence], rows: MemoryRows) -> MemorySource:
    if any(each.exact is not None for each in steps):
        return "snapshot"
    return "rows" if len(rows) else "runtime"


def _is_async(steps: Sequence[Step], calls: HostCalls, memory: Sequence[StepMemory]) -> bool:
    """Whether most allocations go past torch's own allocator, to that of CUDA."""
    count = sum(StepCuts(steps).count(calls.start_ns[calls.is_any("A")]))
    return 2 * count > sum(each.allocations or 0 for each in memory) and count > 0


def _segment_calls(step: StepMemory) -> int | None:
    if step.segment_allocs is None or step.segment_frees is None:
        return None
    return step.segment_allocs + step.segment_frees


def _known(values: Iterable[_Number | None]) -> list[_Number]:
    return [each for each in values if each is not None]


def _sum(values: Iterable[int | None]) -> int | None:
    """Return the sum of what is known; None if nothing is."""
    known = _known(values)
    return sum(known) if known else None


def _cv(peaks: Iterable[int | None]) -> float | None:
    """Return the population CV of the steps' peaks; None under two or without any memory."""
    known = _known(peaks)
    return float(np.std(known) / np.mean(known)) if len(known) > 1 and any(known) else None


def _many(count: int, one: str, several: str) -> str:
    return f"{count} {one if count == 1 else several}"

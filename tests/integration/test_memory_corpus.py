"""Device memory of public and hand-made traces against figures that others worked out."""

import gzip
import json
import random
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from bench.memory import Played, Program, play
from chopperd.config.paths import own_command
from chopperd.correlate.memory.verdict import trace_memory
from chopperd.model.memory import RankMemory
from chopperd.simulation.allocator import CachingAllocator
from chopperd.traces.read.reader import read_trace
from chopperd.traces.read.snapshot import aligned, read_snapshot
from chopperd.traces.timeline.steps import mark_steps

pytestmark = pytest.mark.corpus

V100: Final = "hta_v100_ddp_memory.json.gz"


def memory(path: Path, snapshot: Path | None = None) -> tuple[RankMemory, ...]:
    trace = read_trace(path)
    found = [] if snapshot is None else read_snapshot(snapshot, own_command("_snapshot"))
    snapshots = [aligned(each, trace.memory, anchored=True) for each in found]
    return trace_memory(trace, mark_steps(trace).steps, snapshots)


#: Figures of `answers.json` that are named otherwise here.
STEP_NAMES: Final = {
    **{"peak_allocated": "peak_allocated_bytes", "peak_reserved": "peak_reserved_bytes"},
    **{"held": "held_bytes", "record_stream_ops": "record_streams"},
    "frees_that_waited": "waited_ratio",
}
STEP_SAME: Final = (
    *("step", "allocations", "allocated_bytes", "segment_allocs", "segment_frees", "segment_ns"),
    *("retries", "event_queries", "rate_limiter_ns", "ooms"),
)
RUN_NAMES: Final = {
    **{"program": "program_ratio", "program_worst": "worst_program_ratio"},
    **{"allocator": "determinism_ratio", "allocator_worst": "worst_determinism_ratio"},
    **{name: name for name in ("cv_reserved", "cv_allocated", "segment_calls", "retries")},
}


def check(found: RankMemory, expected: dict[str, Any]) -> None:
    assert found.breaks == expected["continuity_breaks"]
    for step, answer in zip(found.steps, expected["steps"], strict=True):
        for theirs in (*STEP_NAMES, *STEP_SAME):
            if theirs in answer:
                assert getattr(step, STEP_NAMES.get(theirs, theirs)) == answer[theirs], theirs
        for name in ("median", "p95"):
            if f"waited_{name}_us" in answer:
                waited_ns = getattr(step, f"waited_{name}_ns")
                assert waited_ns == 1000 * answer[f"waited_{name}_us"]
    assert list(range(found.warm_up_steps)) == expected["warm_up"]
    for theirs, ours in RUN_NAMES.items():
        assert getattr(found, ours) == pytest.approx(expected["run"][theirs], abs=1e-12), theirs
    assert found.verdict == expected["verdict"]
    assert list(found.reasons) == [each.replace(" ", "_") for each in expected["reasons"]]


@pytest.mark.parametrize("name", ["81-memory-v1-delayed", "82-memory-v2-immediate-hip"])
def test_cases_have_the_figures_that_were_worked_out(shared: Path, name: str) -> None:
    case = shared / "cases" / name
    answers = json.loads((case / "answers.json").read_text())
    (found,) = memory(case / "trace.json.gz")
    check(found, answers["devices"]["0"])
    if "with_snapshot" in answers:
        (found,) = memory(case / "trace.json.gz", case / "snapshot.pickle")
        check(found, answers["with_snapshot"]["0"])
        assert found.source == "snapshot"


def test_a_flush_and_its_retry_are_found_and_first_growth_is_not_one(shared: Path) -> None:
    (found,) = memory(shared / "cases" / "48-fsdp1-allocation-retries" / "trace.json")
    first, second, third = found.steps
    assert (first.segment_allocs, first.retries, found.warm_up_steps) == (6, 0, 1)
    assert (second.segment_allocs, second.segment_frees, second.retries) == (3, 2, 1)
    assert (second.segment_ns, third.segment_allocs) == (3_600_000, 0)
    assert (found.peak_reserved_bytes, found.peak_allocated_bytes) == (72 << 30, 61 << 30)
    assert (found.verdict, found.reasons) == ("churns", ("near_limit",))


def test_a_ddp_job_repeats_every_address(shared: Path) -> None:
    (found,) = memory(shared / "traces" / V100)
    assert (found.device, found.breaks, len(found.steps)) == (1, 0, 5)
    assert (found.program_ratio, found.determinism_ratio, found.cv_reserved) == (1, 1, 0)
    peaks = found.peak_allocated_bytes, found.peak_reserved_bytes, found.held_bytes
    assert peaks == (6_629_508_096, 12_782_141_440, 6_152_633_344)
    assert sum(step.event_queries or 0 for step in found.steps) == 3977
    assert found.verdict == "deterministic"


def test_a_trace_of_2021_has_neither_addresses_nor_totals(shared: Path) -> None:
    (found,) = memory(shared / "traces" / "kineto2021_v100_resnet50.pt.trace.json.gz")
    assert (len(found.steps), found.program_ratio, found.determinism_ratio) == (6, 1, None)
    assert (found.peak_allocated_bytes, found.peak_reserved_bytes) == (None, None)
    assert found.verdict == "segments_steady"


@pytest.mark.parametrize(
    ("name", "allocated", "reserved"),
    [
        ("tracelens_h100_qwen15_05b.json.gz", 2_088_508_416, 2_629_828_608),
        ("tracelens_mi300x_qwen15_05b.json.gz", 2_219_047_936, 2_533_359_616),
    ],
)
def test_one_step_has_peaks_and_no_verdict(
    shared: Path, name: str, allocated: int, reserved: int
) -> None:
    (found,) = memory(shared / "traces" / name)
    assert (found.peak_allocated_bytes, found.peak_reserved_bytes) == (allocated, reserved)
    assert (found.verdict, found.verdict_text) == ("not_measured", "not measured: one step")


@pytest.mark.parametrize(
    ("name", "steps", "queries"),
    [
        ("hta_a100_nccl_ddp.json.gz", 3, 44),
        ("hta_v100_ns_absolute_ts.json.gz", 5, 2396),
        ("hta_mi250_rocm62_minitoy.json.gz", 2, 0),
        ("tracelens_mi300x_resnet_act_checkpoint.json.gz", 3, 0),
    ],
)
def test_without_rows_the_calls_tell_that_segments_are_steady(
    shared: Path, name: str, steps: int, queries: int
) -> None:
    (found,) = memory(shared / "traces" / name)
    assert (found.source, found.verdict, len(found.steps)) == ("runtime", "segments_steady", steps)
    assert sum(step.event_queries or 0 for step in found.steps) == queries
    assert found.peak_allocated_bytes is None


@pytest.mark.parametrize(
    "name",
    [
        *("cpu_fsdp1_rank0.pt.trace.json.gz", "cpu_fsdp2_rank0.pt.trace.json.gz"),
        *("cpu_ondemand_5_iterations.json.gz", "hta_mtia_inference.json.gz"),
    ],
)
def test_a_trace_without_a_gpu_has_no_device_memory(shared: Path, name: str) -> None:
    assert memory(shared / "traces" / name) == ()


#: Of the same replays in a model of others: mean and worst share of equal addresses in ten pairs of
#: steps, mean peak in MiB, its CV in percent, retries, segment calls (`reference/memory.md`, 7).
REPLAYS: Final = [
    ("fsdp2", False, None, (1.000, 1.000, 2220, 0.0, 0, 0)),
    ("fsdp1", False, None, (1.000, 1.000, 2036, 0.0, 0, 0)),
    ("fsdp2", True, None, (0.935, 0.879, 2606, 0.0, 0, 0)),
    ("fsdp1", True, None, (0.743, 0.617, 2650, 3.35, 0, 1)),
    ("fsdp1", True, 1.15, (0.681, 0.522, 2308, 1.88, 13, 94)),
    ("fsdp2", True, 1.15, (0.924, 0.852, 2412, 0.0, 3, 26)),
]


def replayed(requests: dict[str, Any], *, delayed: bool, room: float | None) -> Played:
    """Replay a recorded step twelve times, sizes times 256, delays of frees of units drawn."""
    capacity = None
    if room is not None:
        capacity = int(room * max(replayed(requests, delayed=False, room=None).peaks))
    sizes = [op * 256 for op in requests["ops"] if op > 0]
    program, unit = Program(), 793_088 * 256 * 0.9
    for at, op in enumerate(requests["ops"]):
        if op > 0:
            program.get(op * 256)
        else:
            program.give(-op - 1, waits=sizes[-op - 1] >= unit and at not in requests["inferred"])
    allocator = CachingAllocator(capacity)
    return play([program] * 12, allocator, random.Random(0) if delayed else None)


@pytest.mark.parametrize(("name", "delayed", "room", "expected"), REPLAYS)
def test_recorded_steps_of_fsdp_replay_as_in_another_model(
    shared: Path, name: str, delayed: bool, room: float | None, expected: tuple[float, ...]
) -> None:
    path = shared / "tools" / "studies" / "data" / f"{name}_requests.json.gz"
    played = replayed(json.loads(gzip.decompress(path.read_bytes())), delayed=delayed, room=room)
    found = played.memory(with_snapshot=False)
    assert (found.program_ratio, found.worst_program_ratio) == (1, 1)
    assert found.warm_up_steps == (room is None)  # a step that retries is no warm-up
    later = found.steps[2:]  # the other model leaves out the first step, and of sums the second
    shares = np.array([step.determinism_ratio for step in later], np.float64)
    assert shares.mean() == pytest.approx(expected[0], abs=5e-4)
    assert shares.min() == pytest.approx(expected[1], abs=5e-4)
    peaks = np.array([step.peak_reserved_bytes for step in later], np.float64)
    assert peaks.mean() / (1 << 20) == pytest.approx(expected[2], abs=0.5)
    assert 100 * peaks.std() / peaks.mean() == pytest.approx(expected[3], abs=5e-3)
    calls = sum((each.segment_allocs or 0) + (each.segment_frees or 0) for each in later)
    retries = sum(each.retries or 0 for each in later)
    # The other model counts no attempts that failed, one each retry.
    assert (retries, calls - retries) == expected[4:]

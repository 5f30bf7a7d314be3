"""Warm-up, ratios and verdicts of a device's steps, by hand."""

import numpy as np
import pytest
from msgspec.structs import replace

from chopperd.correlate.memory.calls import HostCalls
from chopperd.correlate.memory.verdict import device_memory, trace_memory, warm_up_steps
from chopperd.model.arrays import rows_of
from chopperd.model.memory import MemoryRows, RankMemory, SnapshotAction
from chopperd.model.trace import TraceMeta
from tests.trace_building import MAIN, TraceBuilder
from tests.unit.correlate.memory.building import (
    MIB,
    Row,
    calls,
    joined_rows,
    rows,
    snapshot,
    step_memory,
    steps,
)

QUIET = calls((0.5, "cudaLaunchKernel"))


def repeated(*requests: tuple[int, int], count: int = 3) -> MemoryRows:
    """The same (bytes, address) in each step of 100 us, one a us; 4 MiB are reserved."""
    table: list[Row] = []
    for number in range(count):
        total = 0
        for nth, (size, address) in enumerate(requests):
            total += size
            table.append((100 * number + nth + 1, size, address, total, 4 * MIB))
    return rows(*table)


def steady(count: int = 3) -> MemoryRows:
    return repeated((512, 1), (1024, 2), (-512, 1), (-1024, 2), count=count)


def analysed(
    table: MemoryRows, host: HostCalls = QUIET, count: int = 3, **known: object
) -> RankMemory:
    edges = steps(*((100 * number, 100 * number + 100) for number in range(count)))
    dump = known.pop("dump", None)
    return device_memory(edges, host, table, dump, device=0, **known)  # type: ignore[arg-type]


GROWS = {"segment_allocs": 3, "segment_frees": 0, "retries": 0}
STEADY = {"segment_allocs": 0, "segment_frees": 0, "retries": 0}


@pytest.mark.parametrize(
    ("figures", "expected"),
    [
        ([GROWS, STEADY, STEADY], 1),
        ([GROWS, GROWS, STEADY], 2),
        ([GROWS, GROWS, GROWS, STEADY], 2),  # two at most
        ([GROWS, GROWS, GROWS], 0),  # every step grows: that is no warm-up
        ([STEADY, GROWS, STEADY], 0),
        ([{**GROWS, "segment_frees": 1}, STEADY], 0),
        ([{**GROWS, "retries": 1}, STEADY], 0),
        ([{**GROWS, "ooms": 1}, STEADY], 0),
        ([GROWS], 0),
        ([{}, STEADY], 0),  # unknown
        ([], 0),
    ],
)
def test_warm_up_is_what_only_fills_the_cache(figures: list[dict[str, int]], expected: int) -> None:
    assert warm_up_steps([step_memory(**each) for each in figures]) == expected


def test_equal_steps_are_deterministic() -> None:
    found = analysed(steady())
    assert (found.verdict, found.reasons, found.source) == ("deterministic", (), "rows")
    assert (found.program_ratio, found.determinism_ratio) == (1.0, 1.0)
    assert (found.cv_allocated, found.cv_reserved, found.segment_calls) == (0.0, 0.0, 0)
    assert [each.program_ratio for each in found.steps] == [None, 1.0, 1.0]


def test_ratios_are_pooled_and_the_worst_pair_is_named() -> None:
    table = rows(
        *((1, 512, 1, 512, MIB), (2, 1024, 2, 1536, MIB)),
        *((101, 512, 1, 2048, MIB), (102, 1024, 9, 3072, MIB), (103, 2048, 3, 5120, MIB)),
        *((201, 512, 8, 5632, MIB), (202, 1024, 7, 6656, MIB), (203, 2048, 6, 8704, MIB)),
    )
    found = analysed(table)
    # Pairs 2 of 2 + 3 and 3 of 3 + 3; of these 1 and 0 at the same address.
    assert found.program_ratio == pytest.approx(2 * (2 + 3) / (5 + 6))
    assert found.worst_program_ratio == pytest.approx(4 / 5)
    assert found.determinism_ratio == pytest.approx(1 / 5)
    assert (found.worst_determinism_ratio, found.verdict) == (0, "program_varies")
    assert found.reasons == ()
    assert [each.determinism_ratio for each in found.steps] == [None, 0.5, 0.0]


def test_warm_up_is_left_out_of_every_figure_of_the_run() -> None:
    first = rows((1, 4096, 1, 4096, 8 * MIB), (2, -4096, 1, 0, 8 * MIB))
    later = steady(4)
    table = joined_rows(first, rows_of(later, slice(4, None)))
    found = analysed(table, calls((0.5, "cudaMalloc")), count=4)
    assert (found.warm_up_steps, found.verdict, found.program_ratio) == (1, "deterministic", 1.0)
    assert (found.peak_reserved_bytes, found.peak_allocated_bytes) == (8 * MIB, 1536)
    assert (found.segment_calls, found.steps[0].segment_allocs) == (0, 1)
    assert found.cv_reserved == pytest.approx(np.std([8, 4, 4]) / np.mean([8, 4, 4]))


def test_a_retry_is_said_first_and_by_its_reason() -> None:
    names = ((150, "cudaMalloc"), (151, "cudaFree"), (152, "cudaMalloc"))
    for count in (2, 3):
        found = analysed(steady(count), calls(*names), count=count)
        assert (found.verdict, found.retries, found.reasons) == ("churns", 1, ("near_limit",))
        assert (found.verdict_text, found.cv_reserved) == ("1 retry", 0)


def test_out_of_memory_churns() -> None:
    table = rows((1, 512, 1, 512, MIB), (150, 1 << 40, 0, 512, MIB), ooms=[1])
    found = analysed(table)
    assert (found.verdict, found.ooms, found.reasons) == ("churns", 1, ("near_limit",))


def test_segment_calls_after_warm_up_churn_with_every_reason_that_holds() -> None:
    host = calls(
        *((150, "cuMemMap"), (160, "cudaLaunchKernel")),
        operators=[("aten::record_stream", 20, 1)],
        annotations=[("FullyShardedDataParallel.rate_limiter", 30, 5)],
    )
    entries = ((11, SnapshotAction.ALLOC, 1, 5), (12, SnapshotAction.FREE_REQUESTED, 1, 5))
    found = analysed(steady(), host, dump=snapshot(*entries))
    assert (found.verdict, found.verdict_text) == ("churns", "1 segment call after warm-up")
    assert found.reasons == (
        *("delayed_frees", "record_stream", "rate_limiter"),
        "expandable_segments",
    )
    unknown = analysed(steady(), calls((150, "cudaMalloc"), (170, "cudaMalloc")))
    assert (unknown.verdict_text, unknown.reasons) == (
        "2 segment calls after warm-up",
        ("unknown",),
    )


def test_without_calls_a_change_of_the_total_is_the_least_there_was() -> None:
    table = rows(*((50 + 100 * n, 512, 1, 512 * n, (1 + (n > 1)) * MIB) for n in range(3)))
    found = analysed(table, calls())
    assert (found.verdict, found.segment_calls, found.segment_ns) == ("churns", 1, None)
    assert found.verdict_text == "at least 1 segment call after warm-up"


def test_equal_requests_elsewhere_vary() -> None:
    table = rows(*((50 + 100 * n, 512, n, 512 * n, MIB) for n in range(3)))
    found = analysed(table)
    assert (found.verdict, found.determinism_ratio, found.reasons) == ("varies", 0, ("unknown",))
    expandable = analysed(table, dump=snapshot(expandable=True, has_times=False))
    assert expandable.reasons == ("expandable_segments",)


def test_without_addresses_segments_are_steady_or_nothing_is_known() -> None:
    table = rows(*((50 + 100 * n, 512, -1, -1, -1) for n in range(3)))
    found = analysed(table)
    assert (found.verdict, found.program_ratio, found.determinism_ratio) == (
        *("segments_steady", 1.0),
        None,
    )
    assert (found.cv_reserved, found.peak_reserved_bytes) == (None, None)
    nothing = analysed(table, calls())
    assert (nothing.verdict, nothing.segment_calls) == ("not_measured", None)
    assert nothing.verdict_text == "not measured: neither runtime calls nor totals"


def test_one_step_is_not_measured() -> None:
    for count, text in ((1, "not measured: one step"), (0, "not measured: no step")):
        found = analysed(steady(count), count=count)
        assert (found.verdict, found.verdict_text) == ("not_measured", text)
        assert (found.cv_reserved, found.program_ratio) == (None, None)
    grows = analysed(steady(2), calls((1, "cudaMalloc"), (20, "cudaMalloc")), count=2)
    assert (grows.warm_up_steps, grows.verdict_text) == (1, "not measured: one step")


def test_steps_that_are_too_long_to_align_are_not_measured() -> None:
    table = rows(
        *((1, 512, 1, 512, MIB), (2, 1024, 2, 1536, MIB)),
        *((101, 1024, 1, 2560, MIB), (102, 512, 9, 3072, MIB)),
    )
    found = analysed(table, count=2, most_cells=10)
    assert (found.verdict, found.program_ratio) == ("not_measured", None)
    assert found.verdict_text == "not measured: too many requests to align"


def test_memory_that_another_allocator_gives_is_not_measured() -> None:
    host = calls(*((20 * n, "cudaMallocAsync") for n in range(10)))
    assert analysed(steady(), host).verdict == "not_measured"
    few = calls((20, "cudaMallocAsync"))  # of some library
    assert analysed(steady(), few).verdict == "deterministic"


def test_a_snapshot_compares_what_was_asked_for() -> None:
    big = 5 * MIB
    table = rows(*((50 + 100 * n, big + n * 512, 1, big, 20 * MIB) for n in range(3)))
    same = snapshot(*((50 + 100 * n, SnapshotAction.ALLOC, 1, big) for n in range(3)))
    other = snapshot(*((50 + 100 * n, SnapshotAction.ALLOC, 1, big + n) for n in range(3)))
    assert analysed(table).program_ratio == 1.0  # of blocks
    found = analysed(table, dump=same)
    assert (found.program_ratio, found.source) == (1.0, "snapshot")
    assert analysed(table, dump=other).program_ratio == 0.0
    cut = replace(other, is_cut=True)  # the first step is not whole: it is compared by rows
    assert analysed(table, dump=cut).program_ratio == 0.5


def builder() -> TraceBuilder:
    """A kernel of device 2, and a call of its allocator."""
    made = TraceBuilder()
    made.kernel("gemm", 10_000, 20_000, 5_000, device=2)
    made.call("hipMalloc", 120_000)
    return made


EDGES = steps((0, 100), (100, 200), (200, 300))


def test_each_device_of_a_trace_is_apart() -> None:
    one, other = steady(), replace(steady(), device=np.full(12, 1, np.int32))
    trace = replace(builder().build(), memory=joined_rows(one, other))
    found = trace_memory(trace, EDGES, [snapshot()])
    assert [each.device for each in found] == [0, 1]
    # The call's thread writes a row of device 0 next; spans are nobody's.
    assert [(each.segment_calls, each.verdict) for each in found] == [
        *((1, "churns"), (0, "deterministic"))
    ]
    assert found[0].steps[0].record_streams is None
    meta = TraceMeta(path="", sha256="", rank=3)
    (alone,) = trace_memory(replace(trace, meta=meta, memory=one), EDGES)
    assert (alone.rank, alone.segment_calls, alone.verdict) == (3, 1, "churns")


def test_without_rows_the_calls_are_those_of_the_only_device() -> None:
    (found,) = trace_memory(builder().build(), EDGES)
    assert (found.device, found.source, found.segment_calls) == (2, "runtime", 1)
    assert (found.peak_reserved_bytes, found.ooms, found.breaks) == (None, None, 0)
    two = builder()
    two.kernel("gemm", 11_000, 21_000, 5_000, device=3)
    assert trace_memory(two.build(), EDGES) == ()
    assert trace_memory(TraceBuilder().build(), EDGES) == ()


def test_only_rows_and_calls_of_the_process_count() -> None:
    made, other = builder(), (7, 7)
    made.call("hipMalloc", 150_000, thread=other)
    table = steady()
    table.thread[:2] = 1  # the first rows are the other process's
    (found,) = trace_memory(replace(made.build(), memory=table), EDGES, process=MAIN[0])
    assert [each.allocations for each in found.steps] == [0, 2, 2]
    assert found.segment_calls == 1

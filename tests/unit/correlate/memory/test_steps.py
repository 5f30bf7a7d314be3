"""Figures of single steps, worked out by hand from a few rows."""

import pytest

from chopperd.correlate.memory.steps import Figures, StepCuts, breaks, step_evidence
from chopperd.model.memory import MemoryRows, MemorySnapshot, SnapshotAction, StepMemory
from chopperd.model.timeline import Marker, Step
from tests.unit.correlate.memory.building import GIB, MIB, calls, rows, snapshot, steps

ALLOC, REQUESTED, COMPLETED = (
    SnapshotAction.ALLOC,
    SnapshotAction.FREE_REQUESTED,
    SnapshotAction.FREE_COMPLETED,
)
TWO = steps((10, 20), (20, 30))


def figures(
    edges: list[Step], table: MemoryRows | None, dump: MemorySnapshot | None = None, **known: object
) -> list[StepMemory]:
    host = known.get("host", calls())
    return [each.memory for each in step_evidence(edges, host, table, dump)]  # type: ignore[arg-type]


def test_peaks_count_the_state_on_entry() -> None:
    table = rows(
        (5, 6 * GIB, 1, 6 * GIB, 8 * GIB),
        (12, -4 * GIB, 1, 2 * GIB, 8 * GIB),
        (22, GIB, 2, 3 * GIB, 10 * GIB),
        (24, 2 * GIB, 3, 5 * GIB, 10 * GIB),
        (26, -GIB, 2, 4 * GIB, 9 * GIB),
    )
    first, second = figures(TWO, table)
    assert (first.peak_allocated_bytes, first.peak_reserved_bytes) == (6 * GIB, 8 * GIB)
    assert (first.held_bytes, first.allocations, first.allocated_bytes) == (2 * GIB, 0, 0)
    assert (second.peak_allocated_bytes, second.peak_reserved_bytes) == (5 * GIB, 10 * GIB)
    # 5 GiB is the most that was allocated while 10 were reserved.
    assert (second.held_bytes, second.allocations, second.allocated_bytes) == (5 * GIB, 2, 3 * GIB)
    # No calls: changes of the total are the least there was.
    assert (second.segment_allocs, second.segment_frees, second.segment_ns) == (1, 1, None)
    assert (first.segment_allocs, first.at_least, second.at_least) == (0, True, True)
    assert (second.retries, second.event_queries, second.record_streams) == (None, None, None)


def test_before_the_first_row_only_the_allocated_size_is_known() -> None:
    # 3 GiB were allocated before it, and it is not known how much was reserved.
    table = rows((25, -GIB, 1, 2 * GIB, 4 * GIB))
    before, first = figures(TWO, table)
    assert (before.allocations, before.peak_allocated_bytes, before.segment_allocs) == (None,) * 3
    assert (first.peak_allocated_bytes, first.peak_reserved_bytes) == (3 * GIB, 4 * GIB)
    assert (first.held_bytes, first.segment_allocs, first.segment_frees) == (2 * GIB, 0, 0)


def test_rows_without_totals_give_counts_alone() -> None:
    table = rows((12, 512, -1, -1, -1), (13, -512, -1, -1, -1))
    first, second = figures(TWO, table)
    assert (first.allocations, first.allocated_bytes, second.allocations) == (1, 512, 0)
    assert (first.peak_allocated_bytes, first.peak_reserved_bytes, first.held_bytes) == (None,) * 3
    assert (first.segment_allocs, first.at_least) == (None, False)
    only_reserved = figures(TWO, rows((12, 512, -1, -1, GIB)))[0]
    assert (only_reserved.peak_reserved_bytes, only_reserved.held_bytes) == (GIB, None)


def test_out_of_memory_is_no_allocation() -> None:
    table = rows((12, 512, 1, 512, MIB), (13, GIB, 0, 512, MIB), (14, -512, 1, 0, MIB), ooms=[1])
    first, second = figures(TWO, table)
    assert (first.ooms, second.ooms, first.allocations, breaks(table)) == (1, 0, 1, 1)
    assert figures(TWO, rows((12, GIB, 0, 0, 0), ooms=[0]))[0].allocations is None


def test_a_break_is_a_total_that_does_not_go_on() -> None:
    assert breaks(rows((1, 512, 1, 512, 0), (2, 512, 2, 1024, 0), (3, -512, 1, 2048, 0))) == 1
    assert breaks(rows((1, 512, 1, -1, 0), (2, 512, 2, 1024, 0), (3, -512, 1, -1, 0))) == 0
    assert breaks(rows()) == 0


def test_calls_are_cut_by_their_starts() -> None:
    host = calls(
        *((9.5, "cudaMalloc"), (19.5, "hipMalloc"), (20, "cuMemUnmap"), (21, "cuMemSetAccess")),
        *((22, "cudaEventQuery"), (30, "cudaMalloc")),
        operators=[("aten::record_stream", 11, 1), ("aten::record_stream", 29, 5)],
        annotations=[("FullyShardedDataParallel.rate_limiter", 25, 7)],
    )
    first, second = figures(TWO, rows((12, 512, 1, 512, 512), (13, 512, 2, 1024, 1024)), host=host)
    assert (first.segment_allocs, first.segment_frees, first.segment_ns) == (1, 0, 1000)
    assert (second.segment_allocs, second.segment_frees, second.segment_ns) == (0, 1, 2000)
    assert (first.at_least, first.event_queries, second.event_queries) == (False, 0, 1)
    assert (first.record_streams, second.record_streams) == (1, 1)
    assert (first.rate_limiter_ns, second.rate_limiter_ns) == (0, 7000)


def test_steps_of_several_markers_have_the_time_of_all() -> None:
    markers = tuple(Marker(step=s, start_ns=a, end_ns=b) for s, a, b in ((0, 0, 10), (1, 12, 20)))
    cuts = StepCuts([Step(step=1, start_ns=0, end_ns=20, markers=markers)])
    at_ns = rows(*((each / 1000, 1, 1, 1, 1) for each in (0, 9, 10, 11, 12, 20, 21))).at_ns
    assert cuts.of(at_ns).tolist() == [0, 0, -1, -1, 0, -1, -1]
    assert cuts.count(at_ns) == [3]
    assert StepCuts([]).of(at_ns).tolist() == [-1] * 7


def test_a_snapshot_tells_which_frees_waited() -> None:
    dump = snapshot(
        *((11, ALLOC, 1, 700), (12, REQUESTED, 1, 700), (14, COMPLETED, 1, 700)),  # 2 us: at once
        *((14, ALLOC, 1, 700), (15, REQUESTED, 1, 700), (18, ALLOC, 2, 900)),
        *((19, REQUESTED, 2, 900), (25, COMPLETED, 1, 700), (26, ALLOC, 1, 700)),
        *((27, REQUESTED, 1, 700),),  # still waits at the dump
    )
    first, second = step_evidence(TWO, calls(), None, dump)
    assert first.memory.waited_ratio == pytest.approx(2 / 3)
    # 10 us for one; the other never came.
    assert (first.memory.waited_median_ns, first.memory.waited_p95_ns) == (10_000, 10_000)
    assert (second.memory.waited_ratio, second.memory.waited_median_ns) == (1.0, None)
    assert first.exact is not None
    assert first.exact.size.tolist() == [700, -700, 700, -700, 900, -900]
    assert first.exact.address.tolist() == [1, 1, 1, 1, 2, 2]
    assert (first.blocks, first.memory.allocations, first.memory.allocated_bytes) == (None, 3, None)


def test_a_snapshot_counts_segments_back_from_its_total() -> None:
    dump = snapshot(
        (12, SnapshotAction.SEGMENT_ALLOC, 1, 4 * MIB),
        (13, SnapshotAction.SEGMENT_FREE, 9, 6 * MIB),
        (24, SnapshotAction.SEGMENT_MAP, 5, 2 * MIB),
        (25, SnapshotAction.OOM, -1, GIB),
        reserved_bytes=10 * MIB,
    )
    first, second = figures(TWO, None, dump)
    # 10 MiB on entry, 14, 8; then 10 again.
    assert (first.peak_reserved_bytes, second.peak_reserved_bytes) == (14 * MIB, 10 * MIB)
    assert (first.segment_allocs, first.segment_frees, second.segment_allocs) == (1, 1, 1)
    assert (first.at_least, first.ooms, second.ooms) == (True, 0, 1)
    assert first.waited_ratio is None


def test_a_snapshot_has_only_steps_between_its_first_entry_and_its_dump() -> None:
    edges = steps((10, 20), (20, 30), (30, 40))
    entries = ((15, ALLOC, 1, 512), (25, ALLOC, 2, 512), (35, SnapshotAction.SNAPSHOT, 0, 0))
    cut = step_evidence(edges, calls(), None, snapshot(*entries, is_cut=True))
    whole = step_evidence(edges, calls(), None, snapshot(*entries))
    assert [each.exact is not None for each in cut] == [False, True, False]
    assert [each.exact is not None for each in whole] == [True, True, False]
    undated = step_evidence(edges, calls(), None, snapshot(*entries[:2]))
    assert [each.exact is not None for each in undated] == [True, True, False]
    for nothing in (snapshot(), snapshot(*entries, has_times=False)):
        found = step_evidence(edges, calls(), None, nothing)
        assert [each.exact for each in found] == [None] * 3


def test_rows_are_better_than_a_snapshot_for_totals_and_calls_for_segments() -> None:
    table = rows((12, 2 * MIB, 1, 2 * MIB, 20 * MIB), (13, -2 * MIB, 1, 0, 20 * MIB))
    dump = snapshot(
        *((12, SnapshotAction.SEGMENT_ALLOC, 1, 20 * MIB), (12, ALLOC, 1, MIB + 512)),
        reserved_bytes=20 * MIB,
    )
    found = figures(TWO, table, dump)[0]
    # The total rose before the first row; the snapshot knows.
    assert (found.allocated_bytes, found.segment_allocs, found.at_least) == (2 * MIB, 1, True)
    host = calls((11, "cudaMalloc"), (11.5, "cudaMalloc"))
    assert figures(TWO, table, dump, host=host)[0].segment_allocs == 2


def test_no_figures_are_known_of_a_step_without_evidence() -> None:
    found = figures(TWO, None)[0]
    unknown: Figures = {name: getattr(found, name) for name in StepMemory.__struct_fields__}
    assert {name for name, value in unknown.items() if value is not None} == {"step", "at_least"}

"""Sums over captures: they never fall, count a device once, and go when captures are old."""

import pytest
from msgspec.structs import replace

from chopperd.live.traced import RECENT_NS, TracedLedger
from chopperd.model.devices import GpuProcess
from chopperd.model.kinds import Cause
from chopperd.model.live import MEMORY_SUMS
from chopperd.model.memory import RankMemory
from chopperd.model.report import ReportDocument
from chopperd.model.report_rows import Dvfs, Family, Row
from chopperd.units import NS_PER_S
from tests.fakes.clock import ScriptedClock
from tests.unit.correlate.memory.building import step_memory
from tests.unit.report.documents import (
    classes_of,
    clocked_waterfall,
    clockless_waterfall,
    eight_gpus,
)

MS = 1_000_000
NOW_NS = 1_800_000_000 * NS_PER_S


def family(name: str, kind: str, time_ms: int, lost_ms: int | None) -> Family:
    return Family(
        name=name,
        class_=kind,
        count=1,
        time_ns=time_ms * MS,
        mean_mhz=None,
        samples=0,
        lost_ns=None if lost_ms is None else lost_ms * MS,
    )


FAMILIES = (
    family("a", "gemm", 500, 80),
    family("b", "gemm", 300, 40),
    family("c", "norm", 20, None),
    family("d", "comm", 200, None),
)
ROW = Row(
    job="llama",
    run=None,
    rank=0,
    step=None,
    step_source="profiler_step",
    device=0,
    gpu="0",
    partial=False,
    partial_reasons=(),
    host_only=False,
    start_unix_ns=NOW_NS - 2 * NS_PER_S,
    window_ns=1412 * MS,
    waterfall_ns=clocked_waterfall(),
    dvfs=Dvfs(by_cause_ns={"power_cap": 100 * MS, "thermal": 31 * MS}),
    families=FAMILIES,
    classes=classes_of(FAMILIES),
)


def document(*totals: Row) -> ReportDocument:
    return replace(eight_gpus(), totals=totals)


def ledger() -> tuple[TracedLedger, ScriptedClock]:
    clock = ScriptedClock(unix_ns=NOW_NS)
    return TracedLedger(clock), clock


def test_a_capture_is_summed_by_row_cause_and_class() -> None:
    traced, _ = ledger()
    traced.add(document(ROW))
    found = traced.recent()["0"]
    assert found.window_s["dvfs_loss"] == 0.131
    assert sum(found.window_s.values()) == pytest.approx(1.412)
    assert found.lost_s == {Cause.POWER_CAP: 0.1, Cause.THERMAL: 0.031}
    assert found.kernel_s == {"gemm": 0.8, "norm": 0.02, "comm": 0.2}
    assert found.kernel_lost_s == {"gemm": 0.12}  # the loss of the others is not known
    assert found.last_capture_unix_ns == NOW_NS - 588 * MS


def test_what_a_capture_does_not_know_is_absent() -> None:
    traced, _ = ledger()
    traced.add(document(replace(ROW, waterfall_ns=clockless_waterfall(), dvfs=Dvfs())))
    found = traced.recent()["0"]
    assert "dvfs_loss" not in found.window_s
    assert found.lost_s == {}


def test_another_capture_adds_and_the_same_one_again_adds_nothing() -> None:
    traced, clock = ledger()
    traced.add(document(ROW))
    once = traced.recent()["0"]
    traced.add(document(ROW))
    assert traced.recent()["0"] == once
    clock.advance(60 * NS_PER_S)
    traced.add(document(replace(ROW, start_unix_ns=NOW_NS + 50 * NS_PER_S)))
    twice = traced.recent()["0"]
    assert twice.kernel_s["gemm"] == 1.6
    assert twice.last_capture_unix_ns == NOW_NS + 51_412 * MS


def test_a_report_made_anew_adds_what_is_more_and_takes_nothing_away() -> None:
    traced, _ = ledger()
    traced.add(document(ROW))
    again = replace(ROW, dvfs=Dvfs(by_cause_ns={"power_cap": 120 * MS, "thermal": 11 * MS}))
    traced.add(document(again))
    assert traced.recent()["0"].lost_s == {Cause.POWER_CAP: 0.12, Cause.THERMAL: 0.031}
    traced.add(document(ROW))
    assert traced.recent()["0"].lost_s[Cause.POWER_CAP] == 0.12


def test_sums_go_a_quarter_of_an_hour_after_the_last_capture_and_come_back_without_a_fall() -> None:
    traced, clock = ledger()
    traced.add(document(ROW))
    before = traced.recent()["0"].kernel_s["gemm"]
    clock.advance(RECENT_NS - 589 * MS)
    assert "0" in traced.recent()
    clock.advance(MS)
    assert traced.recent() == {}
    traced.add(document(replace(ROW, start_unix_ns=clock.unix_ns() - 2 * NS_PER_S)))
    assert traced.recent()["0"].kernel_s["gemm"] == before + 0.8


def test_old_traces_unanchored_ones_and_devices_of_no_known_gpu_are_not_counted() -> None:
    traced, _ = ledger()
    old = replace(ROW, start_unix_ns=NOW_NS - RECENT_NS - 2 * NS_PER_S)
    traced.add(document(old, replace(ROW, gpu=None), replace(ROW, start_unix_ns=None)))
    assert traced.recent() == {}


def test_sums_go_on_past_the_devices_that_are_kept_in_mind() -> None:
    """By hand: 1,100 ranks of 1.412 s each; the last of them again adds nothing."""
    traced, _ = ledger()
    traced.add(document(*(replace(ROW, rank=rank) for rank in range(1100))))
    traced.add(document(replace(ROW, rank=1099)))
    assert sum(traced.recent()["0"].window_s.values()) == pytest.approx(1100 * 1.412)


def with_pid(pid: int | None) -> ReportDocument:
    made = document(ROW)
    summary = replace(made.devices[0], rank=ROW.rank, device=0, gpu="0", pid=pid)
    return replace(made, devices=(summary,))


def on(*pids: int) -> dict[str, tuple[GpuProcess, ...]]:
    return {"0": tuple(GpuProcess(pid=pid) for pid in pids)}


def test_the_sums_go_when_the_traced_process_has_left_the_gpu() -> None:
    traced, clock = ledger()
    assert traced.recent(on(7)) == {}  # seen there before its capture is reported
    traced.add(with_pid(7))
    assert traced.recent(on(7, 8)).keys() == {"0"}
    assert traced.recent(on(8)) == {}
    assert traced.recent(on()) == {}
    clock.advance(NS_PER_S)
    assert traced.recent(on(7)).keys() == {"0"}


def test_where_nobody_knows_who_is_on_the_gpu_a_capture_stands_for_its_time() -> None:
    traced, clock = ledger()
    traced.add(with_pid(7))
    assert traced.recent(on(7)).keys() == {"0"}
    assert traced.recent({"0": None}).keys() == {"0"}
    assert traced.recent().keys() == {"0"}
    clock.advance(RECENT_NS)
    assert traced.recent(on(7)) == {}


def test_a_process_that_was_never_seen_may_be_of_another_namespace() -> None:
    traced, _ = ledger()
    traced.add(with_pid(7))
    assert traced.recent(on(4711)).keys() == {"0"}
    traced.add(with_pid(None))
    assert traced.recent(on()).keys() == {"0"}


def test_an_older_capture_that_is_reported_late_does_not_change_whose_the_sums_are() -> None:
    traced, _ = ledger()
    traced.add(with_pid(7))
    late = with_pid(8)
    traced.add(replace(late, totals=(replace(ROW, start_unix_ns=NOW_NS - 60 * NS_PER_S),)))
    assert traced.recent(on(7, 8)).keys() == {"0"}
    assert traced.recent(on(7)).keys() == {"0"}
    assert traced.recent(on(8)) == {}


def test_a_process_that_was_seen_long_ago_is_one_that_was_never_seen() -> None:
    """Its number may be another's by now."""
    traced, clock = ledger()
    assert traced.recent(on(7)) == {}
    clock.advance(RECENT_NS)
    assert traced.recent(on()) == {}
    report = with_pid(7)
    traced.add(
        replace(report, totals=(replace(ROW, start_unix_ns=clock.unix_ns() - 2 * NS_PER_S),))
    )
    assert traced.recent(on()).keys() == {"0"}


def test_the_share_of_compute_is_the_newest_captures() -> None:
    traced, _ = ledger()
    first = replace(ROW, compute_ns=60 * MS, busy_ns=80 * MS)
    later = replace(first, start_unix_ns=NOW_NS - NS_PER_S, compute_ns=40 * MS)
    traced.add(document(first))
    assert traced.recent()["0"].compute_ratio == 0.75
    traced.add(document(later))
    assert traced.recent()["0"].compute_ratio == 0.5
    traced.add(document(replace(first, rank=1)))  # an older one that comes late
    assert traced.recent()["0"].compute_ratio == 0.5
    traced.add(document(replace(later, compute_ns=20 * MS)))  # reported on again
    assert traced.recent()["0"].compute_ratio == 0.25
    traced.add(document(replace(ROW, start_unix_ns=NOW_NS, compute_ns=None, busy_ns=None)))
    assert traced.recent()["0"].compute_ratio is None


#: Of a job that keeps its memory.
MEMORY = RankMemory(
    rank=0,
    device=0,
    gpu="0",
    source="rows",
    steps=(),
    warm_up_steps=1,
    breaks=0,
    program_ratio=1.0,
    worst_program_ratio=1.0,
    determinism_ratio=1.0,
    worst_determinism_ratio=1.0,
    peak_allocated_bytes=30 << 30,
    peak_reserved_bytes=40 << 30,
    held_bytes=10 << 30,
    cv_allocated=0.0,
    cv_reserved=0.0,
    segment_calls=0,
    segment_ns=0,
    retries=0,
    ooms=0,
    verdict="deterministic",
    verdict_text="each step gets the addresses of the last",
    reasons=(),
)


def with_memory(*memory: RankMemory, start_unix_ns: int = NOW_NS - 2 * NS_PER_S) -> ReportDocument:
    return replace(document(replace(ROW, start_unix_ns=start_unix_ns)), memory=memory)


#: Of three steps after the first: 4 and 2 calls, 3 ms, 1 retry, and one of unknown retries.
CHURNED = replace(
    MEMORY,
    peak_reserved_bytes=50,
    verdict="churns",
    steps=(
        step_memory(0, segment_allocs=90, segment_frees=0, segment_ns=90 * MS, retries=0),
        step_memory(1, segment_allocs=3, segment_frees=1, segment_ns=2 * MS, retries=1),
        step_memory(2, segment_allocs=1, segment_frees=1, segment_ns=1 * MS, retries=0),
        step_memory(3, segment_allocs=5, segment_frees=0, segment_ns=7 * MS, retries=None),
    ),
)


def test_segment_calls_are_summed_over_steps_after_warm_up_where_all_is_known() -> None:
    """By hand, twice: 2 steps, 6 calls, 3 ms, 1 retry."""
    traced, _ = ledger()
    traced.add(with_memory(CHURNED))
    first = traced.recent()["0"]
    assert first.memory == dict(zip(MEMORY_SUMS, (2, 6, 0.003, 1), strict=True))
    traced.add(with_memory(CHURNED))
    assert traced.recent()["0"].memory == first.memory
    traced.add(with_memory(CHURNED, start_unix_ns=NOW_NS))
    assert traced.recent()["0"].memory == dict(zip(MEMORY_SUMS, (4, 12, 0.006, 2), strict=True))


def test_peaks_and_verdict_are_the_newest_captures_and_go_with_it() -> None:
    traced, _ = ledger()
    traced.add(with_memory(CHURNED))
    newest = traced.recent()["0"].last_memory
    assert newest is not None
    assert (newest.peak_reserved_bytes, newest.verdict) == (50, "churns")
    traced.add(with_memory(MEMORY, start_unix_ns=NOW_NS - 60 * NS_PER_S))  # an older one, late
    assert traced.recent()["0"].last_memory == newest
    traced.add(with_memory(start_unix_ns=NOW_NS))  # that knows nothing of memory
    assert traced.recent()["0"].last_memory is None
    assert traced.recent()["0"].memory["retries"] == 1


def test_memory_of_other_devices_and_of_two_processes_on_one_is_not_counted() -> None:
    traced, _ = ledger()
    traced.add(with_memory(replace(CHURNED, rank=1), replace(CHURNED, gpu="3")))
    assert traced.recent()["0"].last_memory is None
    traced.add(with_memory(CHURNED, CHURNED, start_unix_ns=NOW_NS))
    assert traced.recent()["0"].last_memory is None
    assert traced.recent()["0"].memory == {}

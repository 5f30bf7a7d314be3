"""The run in one look: pooling of rows and their intervals, by hand."""

from collections.abc import Sequence
from math import hypot, nan, pi, sqrt

import pytest
from msgspec.structs import replace

from chopperd.model.report import Reference
from chopperd.model.report_rows import (
    ClockStats,
    Dvfs,
    Peers,
    Row,
    RowClock,
    Temperature,
    Waterfall,
)
from chopperd.report.build.rows import DraftRow, without_intervals
from chopperd.report.build.summary import across_devices, summarise

MS = 1_000_000
REFERENCE = Reference(sm_clock_mhz=2000.0, source="device_max")


def draft(
    step: int | None,
    *,
    rank: int = 0,
    window_ms: int = 100,
    covered_ms: int = 80,
    lost_ms: int | None = 20,
    mean_mhz: float = 1500.0,
    critical: bool = True,
    tail: bool = False,
    partial: bool = False,
    random_ms: float = 1.0,
    bias_ms: float = 0.5,
    process: int = 0,
    excess_ms: int | None = None,
    by_cause: dict[str, int] | None = None,
) -> DraftRow:
    """A row of 80 ms of compute in a window of 100 ms, the rest idle."""
    known = lost_ms is not None
    row = Row(
        job=None,
        run=None,
        rank=rank,
        step=step,
        step_source="profiler_step",
        device=0,
        gpu=str(rank),
        partial=partial,
        partial_reasons=("trace_ends",) if partial else (),
        host_only=False,
        tail=tail,
        window_ns=window_ms * MS,
        compute_ns=80 * MS,
        clock=clock(mean_mhz, covered_ms) if known else None,
        dvfs=dvfs(lost_ms, covered_ms, excess_ms, by_cause) if lost_ms is not None else Dvfs(),
        peers=Peers(n=4, median_mhz=1600.0) if excess_ms is not None else None,
        temperature_c=Temperature(mean=70.0, max=80.0),
        waterfall_ns=waterfall(window_ms, covered_ms, lost_ms),
        is_critical=critical,
    )
    return DraftRow(
        row=row,
        process=process,
        covered_ns=covered_ms * MS if known else 0,
        random_ns=random_ms * MS if known else nan,
        bias_ns=bias_ms * MS if known else nan,
    )


def clock(mean_mhz: float, covered_ms: int) -> RowClock:
    stats = ClockStats(
        mean_mhz=mean_mhz,
        low_mhz=None,
        high_mhz=None,
        p05_mhz=None,
        p95_mhz=None,
        std_mhz=None,
        samples=8,
    )
    return RowClock(basis="in_class", compute=stats, busy=None, coverage_ratio=covered_ms / 80)


def dvfs(
    lost_ms: int, covered_ms: int, excess_ms: int | None, by_cause: dict[str, int] | None
) -> Dvfs:
    return Dvfs(
        lost_ns=lost_ms * MS,
        gap_ratio=lost_ms / covered_ms,
        excess_ns=None if excess_ms is None else excess_ms * MS,
        by_cause_ns=by_cause or {"power_cap": lost_ms * MS},
    )


def waterfall(window_ms: int, covered_ms: int, lost_ms: int | None) -> Waterfall:
    known = lost_ms is not None
    return Waterfall(
        compute_at_ref=(covered_ms - (lost_ms or 0)) * MS if known else None,
        dvfs_loss=(lost_ms or 0) * MS if known else None,
        compute_unsampled=(80 - covered_ms if known else 80) * MS,
        exposed_comm=0,
        exposed_copy=0,
        unknown=0,
        idle_launch_call=0,
        idle_allocator=0,
        idle_data=0,
        idle_sync=0,
        idle_launch_prep=0,
        idle_other=(window_ms - 80) * MS,
    )


def test_means_are_over_complete_steps_only() -> None:
    steps = [
        draft(1, lost_ms=10),
        draft(2, lost_ms=30),
        draft(3, lost_ms=70, partial=True),
        draft(4, lost_ms=70, tail=True),
    ]
    summary = summarise(steps, [draft(None)], REFERENCE)
    assert summary is not None
    assert (summary.basis, summary.steps) == ("critical_steps", 2)
    assert (summary.step_ns, summary.lost_ns) == (100 * MS, 20 * MS)
    assert summary.gap_ratio == pytest.approx(0.20)
    assert sum(summary.waterfall_ns.values()) == summary.step_ns


def test_random_errors_average_out_over_steps_and_bias_does_not() -> None:
    steps = [draft(1, random_ms=3, bias_ms=1), draft(2, random_ms=4, bias_ms=2)]
    summary = summarise(steps, [], REFERENCE)
    assert summary is not None
    # sqrt(3² + 4²)/2 = 2.5 ms and (1 + 2)/2 = 1.5 ms of a step of 100 ms.
    assert summary.gap_ratio == pytest.approx(0.20)
    assert summary.gap_low == pytest.approx(0.20 - 0.04)
    assert summary.gap_high == pytest.approx(0.20 + 0.04)


def test_the_interval_of_many_equal_steps_shrinks_with_their_root() -> None:
    summary = summarise([draft(n, bias_ms=0) for n in range(25)], [], REFERENCE)
    assert summary is not None
    assert summary.gap_high == pytest.approx(0.20 + 0.01 / sqrt(25))


def test_an_unknown_error_in_one_step_leaves_the_interval_unknown() -> None:
    summary = summarise([draft(1), draft(2, random_ms=nan)], [], REFERENCE)
    assert summary is not None
    assert summary.gap_ratio == pytest.approx(0.20)
    assert (summary.gap_low, summary.gap_high) == (None, None)


def test_only_the_critical_device_of_a_step_counts() -> None:
    steps = [draft(1, lost_ms=20), draft(1, rank=1, process=1, lost_ms=60, critical=False)]
    summary = summarise(steps, [], REFERENCE)
    assert summary is not None
    assert summary.lost_ns == 20 * MS
    assert [(line.rank, line.gap_ratio, line.slowest_steps) for line in summary.gpus] == [
        (0, 0.25, 1),
        (1, 0.75, 0),
    ]


def test_without_complete_steps_the_whole_file_counts() -> None:
    summary = summarise([draft(1, tail=True)], [draft(None, window_ms=200)], REFERENCE)
    assert summary is not None
    assert (summary.basis, summary.steps, summary.step_ns) == ("totals", 0, 200 * MS)
    assert summary.gpus[0].slowest_steps is None


def test_steps_whose_loss_is_unknown_are_left_out_where_others_are_known() -> None:
    summary = summarise([draft(1, lost_ms=None), draft(2)], [], REFERENCE)
    assert summary is not None
    assert (summary.steps, summary.lost_ns) == (1, 20 * MS)
    none_known = summarise([draft(1, lost_ms=None), draft(2, lost_ms=None)], [], REFERENCE)
    assert none_known is not None
    assert (none_known.steps, none_known.lost_ns, none_known.gap_ratio) == (2, None, None)
    assert none_known.coverage_ratio is None
    assert sum(none_known.waterfall_ns.values()) == 100 * MS


def test_no_device_no_summary() -> None:
    assert summarise([], [], REFERENCE) is None


def test_a_gpus_line_weighs_its_steps_by_covered_compute() -> None:
    steps = [
        draft(1, covered_ms=60, lost_ms=15, mean_mhz=1500, excess_ms=3),
        draft(2, covered_ms=20, lost_ms=10, mean_mhz=1100, excess_ms=5),
    ]
    summary = summarise(steps, [], REFERENCE)
    assert summary is not None
    (line,) = summary.gpus
    assert line.mean_mhz == pytest.approx((60 * 1500 + 20 * 1100) / 80)
    assert line.gap_ratio == pytest.approx(25 / 80)
    assert line.peers_median_mhz == 1600.0
    assert line.temperature_mean_c == 70.0
    assert summary.coverage_ratio == pytest.approx(80 / 160)


def beside_peers(clocks_mhz: Sequence[Sequence[float]], random_mhz: float = 0.0) -> list[DraftRow]:
    """Steps of as many ranks as there are lists, each with its clocks; the first is critical."""
    return [
        replace(
            draft(step, rank=rank, process=rank, mean_mhz=mhz, excess_ms=1, critical=rank == 0),
            model="H100",
            random_mhz=random_mhz,
            bias_mhz=2.0,
        )
        for rank, clocks in enumerate(clocks_mhz)
        for step, mhz in enumerate(clocks, 1)
    ]


def test_the_runs_excess_is_by_the_runs_means_not_a_mean_of_the_steps() -> None:
    """Rank 0 is 100 MHz below its peers in one step, 80 above in the next: 10 of 1500 on average.

    The steps' own would be 80 x (100 / 1500 + 0) / 2 = 2.67 ms a step; it is 80 x 10 / 1500.
    """
    summary = summarise(beside_peers([[1400, 1580], *[[1500, 1500]] * 4]), [], REFERENCE)
    assert summary is not None
    assert summary.gpus[0].excess_ns_per_step == pytest.approx(80 * MS * 10 / 1500)
    assert summary.excess_ns == summary.gpus[0].excess_ns_per_step
    assert summary.gpus[0].peers_median_mhz == pytest.approx(1500)
    assert [line.stands_out for line in summary.gpus] == [False] * 5


def test_sampling_errors_of_the_excess_average_out_over_steps_and_bias_does_not() -> None:
    """Random 6 MHz in each of 4 steps: 3 MHz; bias 2 MHz; that of the median of five beside it."""
    summary = summarise(beside_peers([[1410] * 4, *[[1500] * 4] * 4], 6.0), [], REFERENCE)
    assert summary is not None
    line = summary.gpus[0]
    half_mhz = 6 / sqrt(4) + 2
    half = hypot(half_mhz, 1410 / 1500 * half_mhz * sqrt(pi / 2) / sqrt(5)) / 1500
    assert line.excess_ns_per_step == pytest.approx(80 * MS * 0.06)
    assert line.excess_low_ns_per_step == pytest.approx(80 * MS * (0.06 - half))
    assert line.excess_high_ns_per_step == pytest.approx(80 * MS * (0.06 + half))
    assert (summary.excess_low_ns, summary.excess_high_ns) == (
        line.excess_low_ns_per_step,
        line.excess_high_ns_per_step,
    )
    assert [each.stands_out for each in summary.gpus] == [True, False, False, False, False]


def test_what_wanders_from_step_to_step_is_not_named_for_it() -> None:
    """Five GPUs' clocks go by -1, +2 and -1 % from step to step; one is 4 or 5 % below the others.

    By hand: the squares about each GPU's mean are 6 %^2, the standard error of three independent
    steps 1 %, by Student's t 4.303 %: the margin is hypot(1.5, 4.303) = 4.557 %.
    """
    for below, named in ((0.04, False), (0.05, True)):
        going = [[1600 * (1 + off) for off in (-0.01, 0.02, -0.01)]] * 4
        drafts = beside_peers([[mhz * (1 - below) for mhz in going[0]], *going])
        summary = summarise([replace(each, bias_mhz=0.0) for each in drafts], [], REFERENCE)
        assert summary is not None
        assert summary.gpus[0].excess_low_ns_per_step == pytest.approx(80 * MS * below)
        assert summary.gpus[0].stands_out == named


def test_an_unknown_error_leaves_the_excess_without_interval_and_nobody_named() -> None:
    summary = summarise(beside_peers([[1410] * 4, *[[1500] * 4] * 4], nan), [], REFERENCE)
    assert summary is not None
    assert summary.excess_ns == pytest.approx(80 * MS * 0.06)
    assert (summary.excess_low_ns, summary.excess_high_ns) == (None, None)
    assert summary.gpus[0].excess_low_ns_per_step is None
    assert summary.gpus[0].stands_out is None


def test_nobody_is_compared_with_a_clock_that_may_be_another_gpus() -> None:
    """Rank 0 is 6 % below its peers; ranks 5 to 7 have the samples of GPUs that idle at 1980 MHz.

    Those are a group of their own, above the others, who would all lie 24 % below it.
    """
    drafts = beside_peers([[1410] * 4, *[[1500] * 4] * 4, *[[1980] * 4] * 3], 1.0)
    drafts = across_devices(
        [without_intervals(each) if (each.row.rank or 0) >= 5 else each for each in drafts]
    )
    summary = summarise(drafts, [], REFERENCE)
    assert summary is not None
    assert [line.stands_out for line in summary.gpus] == [True, *[False] * 4, *[None] * 3]
    assert summary.gpus[0].excess_ns_per_step == pytest.approx(80 * MS * 0.06)
    for draft in drafts:
        foreign = (draft.row.rank or 0) >= 5
        assert (draft.row.dvfs.excess_low_ns is None) is foreign
        assert (draft.row.dvfs.excess_high_ns is None) is foreign


def test_a_step_that_one_gpu_did_not_sample_leaves_its_other_steps_known() -> None:
    steps = [
        draft(1),
        draft(2),
        draft(1, rank=1, process=1, critical=False, lost_ms=40),
        draft(2, rank=1, process=1, critical=False, lost_ms=None),
    ]
    summary = summarise(steps, [], REFERENCE)
    assert summary is not None
    assert summary.gpus[1].gap_ratio == pytest.approx(0.5)


def test_causes_are_means_and_shares_of_the_loss_largest_first() -> None:
    steps = [
        draft(1, lost_ms=20, by_cause={"thermal": 5 * MS, "power_cap": 15 * MS}),
        draft(2, lost_ms=20, by_cause={"thermal": 20 * MS}),
    ]
    summary = summarise(steps, [], REFERENCE)
    assert summary is not None
    # by hand: 25 and 15 ms over two steps, which sum to the mean loss of a step
    assert [(c.cause, c.lost_ns, c.share) for c in summary.causes] == [
        ("thermal", 12.5 * MS, 0.625),
        ("power_cap", 7.5 * MS, 0.375),
    ]
    assert summary.lost_ns == sum(c.lost_ns for c in summary.causes)


def test_processes_of_unknown_rank_keep_lines_of_their_own() -> None:
    both = [draft(1), draft(1, process=1, critical=False)]
    nameless = [replace(each, row=replace(each.row, rank=None)) for each in both]
    summary = summarise(nameless, [], REFERENCE)
    assert summary is not None
    assert len(summary.gpus) == 2


def test_a_step_of_another_run_does_not_vouch_for_one_whose_loss_is_unknown() -> None:
    unknown = draft(1, lost_ms=None, window_ms=300)
    other = replace(unknown, row=replace(unknown.row, run="second"))
    summary = summarise([draft(1), other], [], REFERENCE)
    assert summary is not None
    assert (summary.steps, summary.step_ns, summary.lost_ns) == (1, 100 * MS, 20 * MS)

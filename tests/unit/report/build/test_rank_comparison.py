"""Ranks of a job compared: wait, transfer, critical device, and who is late, worked out by hand."""

import pytest
from msgspec.structs import replace

from chopperd.model.answers import RanksSummary
from chopperd.model.report import ReportDocument
from chopperd.model.report_rows import ExposedComm
from chopperd.report.build.document import StepSelection, build_document
from chopperd.report.build.trace_report import TraceReport
from tests.document_checks import check_document
from tests.unit.report.traced import MS, Job, document, node, reported, sample_set, sampled

STEPS = (1, 2, 3, 4, 5)


def compared(reports: list[TraceReport]) -> ReportDocument:
    made = build_document(
        reports, version="0", time="2025-01-01T00:00:00Z", selection=StepSelection()
    )
    check_document(made)
    return made


def ranks_of(made: ReportDocument) -> RanksSummary:
    assert made.ranks is not None
    return made.ranks


def job(*compute_ms: int) -> list[Job]:
    """Ranks that compute so long, then communicate to the end of the step of 100 ms."""
    return [Job(rank=r, steps=STEPS, compute_ms=ms) for r, ms in enumerate(compute_ms)]


def test_communication_is_split_at_the_last_ranks_start() -> None:
    # Ranks 0 and 1 communicate from 80 on, rank 2 from 90: 10 ms of waiting, 10 of transfer.
    made = document(job(80, 80, 90))
    check_document(made)
    split = {row.rank: row.exposed_comm_ns for row in made.steps}
    assert split[0] == split[1] == ExposedComm(wait=10 * MS, transfer=10 * MS)
    assert split[2] == ExposedComm(wait=0, transfer=10 * MS)
    total = {row.rank: row.exposed_comm_ns for row in made.totals}
    assert total[0] == ExposedComm(wait=50 * MS, transfer=50 * MS)
    assert {row.rank for row in made.steps if row.is_critical} == {2}


def test_the_rank_that_computes_longest_is_the_straggler() -> None:
    made = ranks_of(document(job(80, 80, 90)))
    assert [line.verdict for line in made.lines] == ["even", "even", "straggler"]
    first, _, slow = made.lines
    assert (first.steps, first.window_ns) == (4, 100 * MS)  # the fifth is the tail
    assert (first.wait_ns, first.transfer_ns, first.late_ns) == (10 * MS, 10 * MS, 0)
    assert (slow.late_ns, slow.late_steps, slow.pause_ns) == (10 * MS, 4, 40 * MS)
    assert (slow.cause, slow.cause_ns) == ("compute_unsampled", 10 * MS)
    assert (slow.wait_caused_ns, slow.critical_steps) == (20 * MS, 4)
    assert (made.collectives, made.matched, made.matched_by) == (5, 5, "order")
    assert (made.missing_ranks, made.waits_are_bounds, made.why_not) == (0, False, None)


def test_a_slow_clock_is_the_cause_and_its_loss_the_jobs() -> None:
    # 1400 of 2000 MHz: 27 of 90 ms are lost, against 20 of 80 on the others.
    jobs, samples = node([1500, 1500, 1400], compute_ms=90)
    made = ranks_of(document(jobs, samples))
    slow = made.lines[2]
    assert slow.steps == 2
    assert made.job_lost_ns == 27 * MS
    assert slow.verdict is None  # two steps are too few


def test_one_pause_is_no_straggler() -> None:
    usual = [reported(each) for each in job(80, 80, 80)]
    pausing = replace(job(80, 80, 80)[2], steps=(1,), compute_ms=95)
    late = Job(rank=2, steps=(2, 3, 4, 5), at_ms=100)
    made = ranks_of(compared([*usual[:2], reported(pausing), reported(late)]))
    # The first file's only step is a tail of its own: left out.
    assert made.lines[2].steps == 3
    assert made.lines[2].verdict == "even"


def test_a_missing_rank_makes_waits_lower_bounds() -> None:
    reports = [reported(each) for each in job(80, 90)]
    reports = [replace(r, trace=replace(r.trace, world_size=4)) for r in reports]
    made = compared(reports)
    assert ranks_of(made).missing_ranks == 2
    assert ranks_of(made).waits_are_bounds
    assert any("2 of 4 ranks have no trace" in note.text for note in made.notes)


def test_a_single_rank_of_several_is_compared_with_nobody() -> None:
    (report,) = [reported(each) for each in job(80)]
    alone = compared([replace(report, trace=replace(report.trace, world_size=2))])
    assert ranks_of(alone).why_not == "1 of 2 ranks has a trace here"
    assert (ranks_of(alone).collectives, ranks_of(alone).matched) == (None, None)
    assert ranks_of(alone).missing_ranks == 1
    assert {row.exposed_comm_ns for row in alone.steps} == {ExposedComm()}
    assert document(job(80)).ranks is None


def other_host(report: TraceReport) -> TraceReport:
    return replace(report, said=replace(report.said, host_name="b"))


def without_collectives(report: TraceReport) -> TraceReport:
    return replace(report, collectives=())


@pytest.mark.parametrize(
    ("jobs", "change", "why"),
    [
        (job(80, 90), other_host, "several hosts"),
        (job(80, 90), without_collectives, "fewer than two"),
        ([Job(), Job(rank=0, compute_ms=90)], None, "rank 0 is there twice"),
        ([Job(anchored=False), Job(rank=1, anchored=False)], None, "no time base"),
        ([Job(devices=(0, 1)), Job(rank=1)], None, "several devices"),
        ([Job(steps=()), Job(steps=(), rank=1)], None, "no device work"),
        ([Job(), Job(rank=1, steps=(11, 12), at_ms=20)], None, "no collective was found"),
    ],
)
def test_why_ranks_are_not_compared(jobs: list[Job], change: object, why: str) -> None:
    reports = [reported(each) for each in jobs]
    reports[0] = replace(reports[0], said=replace(reports[0].said, host_name="a"))
    if callable(change):
        reports[1] = change(reports[1])
    made = compared(reports)
    assert why in (ranks_of(made).why_not or "")
    assert ranks_of(made).lines == ()
    assert {row.exposed_comm_ns for row in made.steps} <= {ExposedComm(), None}


def test_traces_of_several_runs_are_not_compared() -> None:
    reports = [reported(each) for each in job(80, 90)]
    reports[1] = replace(reports[1], trace=replace(reports[1].trace, run="other"))
    assert ranks_of(compared(reports)).why_not == "the traces are of several runs"


def test_collectives_beyond_the_columns_are_noted() -> None:
    reports = [reported(each) for each in job(80, 90)]
    packed = replace(reports[1].collectives[0], left_out=7)
    reports[1] = replace(reports[1], collectives=(packed,))
    assert any("7 collectives beyond" in note.text for note in compared(reports).notes)


def test_a_step_that_one_rank_lacks_is_not_compared() -> None:
    jobs = job(80, 90)
    made = document([jobs[0], replace(jobs[1], steps=(2, 3, 4, 5), at_ms=100)])
    check_document(made)
    assert [line.steps for line in ranks_of(made).lines] == [3, 3]
    first = next(row for row in made.steps if row.step == 1)
    assert first.exposed_comm_ns == ExposedComm()
    assert any(note.code == "collectives_unmatched" for note in made.notes)


def test_a_number_that_a_rank_has_twice_is_not_compared() -> None:
    # Of two cycles of rank 1's profiler, both have a step 2.
    jobs = [Job(steps=(1, 2, 3, 4)), Job(rank=1, steps=(1, 2, 2, 3, 4))]
    made = ranks_of(document(jobs))
    assert [line.steps for line in made.lines] == [2, 2]


def test_ranks_without_a_step_in_common_have_no_means() -> None:
    made = ranks_of(document([Job(steps=(1,)), Job(rank=1, steps=(1,), compute_ms=90)]))
    assert [(each.steps, each.window_ns, each.verdict) for each in made.lines] == [
        (0, None, None)
    ] * 2


def test_a_waterfall_is_compared_with_samples_on_one_rank_only() -> None:
    jobs = [replace(each, uuid=f"GPU-{each.rank}") for each in job(80, 80, 90)]
    made = ranks_of(document(jobs, sample_set(sampled(end_ms=600))))
    assert made.lines[2].cause == "compute_unsampled"
    assert made.job_lost_ns is None

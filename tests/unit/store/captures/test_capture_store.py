import pytest
from msgspec.structs import replace

from chopperd.model.captures import StepQuery, TraceState
from chopperd.model.services import StepSource
from chopperd.store.captures.capture_store import CaptureStore
from chopperd.store.captures.filing import MAX_TRACES
from chopperd.units import NS_PER_S
from tests.fakes.clock import ScriptedClock
from tests.unit.report.documents import eight_gpus, host_only
from tests.unit.store.captures.examples import (
    ADMIN,
    ALICE,
    BOB,
    EVERYTHING,
    LIMITS,
    NOW_UNIX_NS,
    all_steps,
    analysed,
    document,
    entry,
    file_one,
    opened,
    shown,
    step_row,
    totals_row,
    trace_id,
)

MINUTE_NS = 60 * NS_PER_S


def filed(store: CaptureStore, name: str, *args: object, **kwargs: object) -> int:
    """A trace of Alice's, filed; the capture that it went into."""
    store.put_trace(entry(name))
    capture, _ = file_one(store, analysed(name, *args, **kwargs))  # type: ignore[arg-type]
    return capture.id


def test_it_is_the_source_that_the_api_is_given() -> None:
    source: StepSource = opened()
    assert source.jobs(ADMIN) == ()
    assert source.latest_document(None, ADMIN) is None


def test_a_trace_is_known_from_when_it_is_put_and_its_state_changes() -> None:
    store = opened()
    assert store.known(trace_id("a")) is None
    store.put_trace(entry("a"))
    assert store.known(trace_id("a")) == entry("a")
    done = replace(entry("a"), state=TraceState.REJECTED, reason="no JSON", finished_unix_ns=5)
    store.put_trace(done)
    assert store.known(trace_id("a")) == done
    assert store.live().traces == 1


def test_traces_that_wait_are_given_oldest_first() -> None:
    store = opened()
    store.put_trace(entry("late", received_unix_ns=30))
    store.put_trace(entry("kept", received_unix_ns=20, state=TraceState.SPOOLED))
    store.put_trace(entry("early", received_unix_ns=10))
    store.put_trace(entry("done", received_unix_ns=5, state=TraceState.ANALYSED))
    assert [each.name for each in store.waiting()] == ["early", "kept", "late"]


def test_ranks_that_overlap_in_time_form_one_capture_with_reports_in_order_of_arrival() -> None:
    store = opened()
    store.put_trace(entry("rank1", received_unix_ns=1))
    store.put_trace(entry("rank0", received_unix_ns=2))
    first, reports = file_one(store, analysed("rank0", (-20, -10), rank=0))
    assert reports == (b"rank0",)
    second, reports = file_one(store, analysed("rank1", (-15, -5), rank=1))
    assert second.id == first.id
    assert second.trace_ids == (trace_id("rank1"), trace_id("rank0"))
    assert reports == (b"rank1", b"rank0")
    assert (second.begin_unix_ns, second.end_unix_ns) == (
        NOW_UNIX_NS - 20 * NS_PER_S,
        NOW_UNIX_NS - 5 * NS_PER_S,
    )
    known = store.known(trace_id("rank1"))
    assert known is not None
    assert (known.capture, known.rank, known.run) == (first.id, 1, "r1")


@pytest.mark.parametrize(
    ("name", "changes"),
    [("run", {"run": "r2"}), ("job", {"job": "other"}), ("no run", {"run": None})],
)
def test_traces_of_another_job_or_run_are_another_capture(
    name: str, changes: dict[str, str | None]
) -> None:
    store = opened()
    assert filed(store, "a") != filed(store, name, **changes)


def test_a_trace_that_bridges_two_captures_makes_them_one_and_no_row_vanishes_meanwhile() -> None:
    store = opened()
    left, right = filed(store, "left", (-50, -40)), filed(store, "right", (-20, -10), rank=1)
    assert left != right
    store.put_document(left, document([step_row(1, start_s=-45)], [totals_row()]))
    store.put_document(right, document([step_row(2, rank=1, start_s=-15)], [totals_row(rank=1)]))
    joined = filed(store, "bridge", (-45, -15), rank=2)
    assert joined == left
    assert shown(all_steps(store)) == [(2, 1), (1, 0)]
    assert store.live().steps == 2
    store.put_document(joined, document([step_row(7, start_s=-45)], [totals_row()]))
    assert shown(all_steps(store)) == [(7, 0)]
    assert store.live().steps == 1
    assert store.jobs(ADMIN)[0].captures == 1


def test_traces_without_an_anchor_form_a_capture_of_their_own() -> None:
    store = opened()
    anchored = filed(store, "a", (-20, -10))
    loose = filed(store, "b", None)
    assert loose != anchored
    assert filed(store, "c", None, rank=1) == loose
    assert filed(store, "d", None, run="r2") != loose


def test_a_trace_filed_again_replaces_its_report_and_doubles_nothing() -> None:
    store = opened()
    first = filed(store, "a")
    again, reports = file_one(store, replace(analysed("a"), report=b"better"))
    assert (again.id, again.trace_ids, reports) == (first, (trace_id("a"),), (b"better",))


def test_a_full_capture_is_followed_by_another_that_says_why() -> None:
    store = opened()
    captures = [filed(store, f"rank{rank}", rank=rank) for rank in range(MAX_TRACES)]
    assert len(set(captures)) == 1
    store.put_trace(entry("one more"))
    other, reports = file_one(store, analysed("one more", rank=MAX_TRACES))
    assert other.id != captures[0]
    assert reports == (b"one more",)
    assert other.note == "begun as 1 of the same time had 64 traces, the most that one may have"
    assert filed(store, "and another", rank=65) == other.id


def test_a_document_put_twice_is_there_once() -> None:
    store = opened()
    capture = filed(store, "a")
    made = document([step_row(1), step_row(2)], [totals_row()])
    for _ in range(2):
        store.put_document(capture, made)
    assert shown(all_steps(store)) == [(2, 0), (1, 0)]
    assert store.live().steps == 2
    assert len(store.kernels(1, EVERYTHING, ADMIN)) == 1


def test_documents_come_back_as_they_were_put() -> None:
    for made in (eight_gpus(), host_only()):
        store = opened()
        store.put_document(filed(store, "a"), made)
        assert store.latest_document("llama", ADMIN) == made
        assert sorted(map(str, all_steps(store))) == sorted(map(str, made.steps))


def test_a_document_for_a_capture_that_is_gone_is_said_in_the_log_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = opened()
    store.put_document(1, document([step_row(1)]))
    assert "no longer in the store" in caplog.text
    assert all_steps(store) == []


def test_rows_are_found_under_the_job_that_the_trace_was_taken_in_for() -> None:
    store = opened()
    capture = filed(store, "a", job="from-the-folder")
    store.put_document(capture, document([step_row(1)]))
    (found,) = all_steps(store, StepQuery(job="from-the-folder"))
    assert found.job == "from-the-folder"
    assert all_steps(store, StepQuery(job="llama")) == []


def test_the_newest_capture_with_a_document_is_reported() -> None:
    store = opened()
    old, new = filed(store, "old", (-50, -40)), filed(store, "new", (-20, -10))
    old_one, new_one = document([step_row(1)]), document([step_row(2)])
    store.put_document(old, old_one)
    assert store.latest_document(None, ADMIN) == old_one
    store.put_document(new, new_one)
    assert store.latest_document(None, ADMIN) == new_one
    store.put_document(old, old_one)
    assert store.latest_document("llama", ADMIN) == new_one
    assert store.latest_document("other", ADMIN) is None
    assert store.latest_document(None, ADMIN, old) == old_one
    assert store.latest_document("other", ADMIN, old) is None
    assert store.latest_document(None, BOB, old) is None
    assert store.latest_document(None, ADMIN, old + new) is None


def test_a_step_is_told_from_all_captures_that_its_ranks_came_in() -> None:
    store = opened()
    one, two = filed(store, "a", (-20, -10)), filed(store, "b", None, rank=1)
    store.put_document(one, document([step_row(5), step_row(6)], [totals_row()]))
    store.put_document(two, document([step_row(5, rank=1, start_s=None)], [totals_row(rank=1)]))
    assert shown(store.step(5, EVERYTHING, ADMIN)) == [(5, 0), (5, 1)]
    assert [each.rank for each in store.kernels(5, EVERYTHING, ADMIN)] == [0, 1]
    assert [each.rank for each in store.kernels(6, EVERYTHING, ADMIN)] == [0]


def test_an_earlier_execution_of_a_step_is_not_mixed_with_a_later_one() -> None:
    """Yesterday both ranks ran step 5, today (from a checkpoint) rank 0 was traced alone."""
    store = opened()
    old, new = filed(store, "old", (-50, -40)), filed(store, "new", (-20, -10))
    ranks = [step_row(5, rank=rank, start_s=-45) for rank in (0, 1)]
    store.put_document(old, document(ranks))
    store.put_document(new, document([step_row(5, rank=0, start_s=-15)]))
    (found,) = store.step(5, EVERYTHING, ADMIN)
    assert found.start_unix_ns == NOW_UNIX_NS - 15 * NS_PER_S
    assert shown(store.step(5, StepQuery(rank=1), ADMIN)) == [(5, 1)]
    before = StepQuery(to_unix_ns=NOW_UNIX_NS - 30 * NS_PER_S)
    assert shown(store.step(5, before, ADMIN)) == [(5, 0), (5, 1)]
    assert len(all_steps(store)) == 3


def test_two_traces_that_claim_one_rank_are_both_shown() -> None:
    store = opened()
    store.put_document(filed(store, "a"), document([step_row(5), step_row(5, gpu="1")]))
    assert [each.gpu for each in store.step(5, EVERYTHING, ADMIN)] == ["0", "1"]


def test_a_step_of_several_jobs_and_runs_is_given_for_all_of_them() -> None:
    store = opened()
    for name, job, run in (("a", "j", "r1"), ("b", "j", "r2"), ("c", None, None)):
        store.put_document(filed(store, name, job=job, run=run), document([step_row(5)]))
    found = [(each.job, each.run) for each in store.step(5, EVERYTHING, ADMIN)]
    assert found == [(None, None), ("j", "r1"), ("j", "r2")]


def test_a_step_of_two_owners_with_one_job_and_run_is_given_for_both() -> None:
    """Neither is an earlier execution of the other's, which the newer one would hide."""
    store = opened()
    for name, viewer in (("a", ALICE), ("b", BOB)):
        store.put_trace(entry(name, owner_uid=viewer.uid))
        capture, _ = file_one(store, analysed(name))
        store.put_document(capture.id, document([step_row(5)], [totals_row()]))
    assert shown(store.step(5, EVERYTHING, ADMIN)) == [(5, 0), (5, 0)]
    assert len(store.kernels(5, EVERYTHING, ADMIN)) == 2
    assert shown(store.step(5, EVERYTHING, ALICE)) == [(5, 0)]


def test_times_select_by_the_start_of_rows_and_never_rows_without_one() -> None:
    store = opened()
    store.put_document(filed(store, "a"), document([step_row(n, start_s=-20 + n) for n in (1, 2)]))
    store.put_document(filed(store, "b", None), document([step_row(3, start_s=None)]))
    start = NOW_UNIX_NS - 19 * NS_PER_S
    assert shown(all_steps(store, StepQuery(from_unix_ns=start))) == [(2, 0), (1, 0)]
    assert shown(all_steps(store, StepQuery(to_unix_ns=start + 1))) == [(1, 0)]
    assert len(all_steps(store)) == 3


def test_traces_of_two_owners_are_two_captures_and_each_sees_his_own() -> None:
    """Whoever claims another's job, run and rank neither hides nor changes what that one sees."""
    store = opened()
    captures = {}
    for name, viewer in (("a", ALICE), ("b", BOB)):
        store.put_trace(entry(name, owner_uid=viewer.uid))
        captures[name], _ = file_one(store, analysed(name, rank=0))
    assert [each.trace_ids for each in captures.values()] == [(trace_id("a"),), (trace_id("b"),)]
    for step, capture in enumerate(captures.values()):
        store.put_document(capture.id, document([step_row(step)], [totals_row()]))
    for viewer, step, other in ((ALICE, 0, "b"), (BOB, 1, "a")):
        assert shown(all_steps(store, viewer=viewer)) == [(step, 0)]
        assert store.step(1 - step, EVERYTHING, viewer) == ()
        assert store.kernels(1 - step, EVERYTHING, viewer) == ()
        latest = store.latest_document(None, viewer)
        assert latest is not None
        assert [row.step for row in latest.steps] == [step]
        assert store.trace(trace_id(other), viewer) is None
        assert len(store.traces(viewer, limit=10)) == 1
        (job,) = store.jobs(viewer)
        assert (job.traces, job.captures) == (1, 1)
    assert len(all_steps(store)) == 2
    assert len(store.traces(ADMIN, limit=10)) == 2


def test_an_owner_of_all_ranks_sees_the_document() -> None:
    store = opened()
    filed(store, "a", rank=0)
    store.put_document(filed(store, "b", rank=1), document([step_row(1)]))
    assert store.latest_document(None, ALICE) is not None
    assert store.latest_document(None, BOB) is None


def test_what_has_no_known_owner_is_for_admins() -> None:
    store = opened()
    store.put_trace(entry("a", owner_uid=None))
    capture, _ = file_one(store, analysed("a"))
    store.put_document(capture.id, document([step_row(1)], [totals_row()]))
    nobody = replace(ALICE, uid=None)
    for viewer in (ALICE, nobody):
        assert all_steps(store, viewer=viewer) == []
        assert store.kernels(1, EVERYTHING, viewer) == ()
        assert store.latest_document(None, viewer) is None
        assert store.jobs(viewer) == ()
        assert store.trace(trace_id("a"), viewer) is None
    assert len(all_steps(store)) == 1


def test_jobs_are_summed_over_runs_newest_first() -> None:
    store = opened()
    filed(store, "a", (-100, -90), run="r1")
    filed(store, "b", (-50, -40), run="r2")
    filed(store, "c", (-45, -35), run="r2", rank=1)
    store.put_trace(entry("d", job="newer", received_unix_ns=NOW_UNIX_NS))
    newer, llama = store.jobs(ADMIN)
    assert (newer.job, newer.runs, newer.traces, newer.captures) == ("newer", (None,), 1, 0)
    assert (llama.job, llama.runs, llama.traces, llama.captures) == ("llama", ("r1", "r2"), 3, 2)
    assert llama.first_unix_ns == NOW_UNIX_NS - 100 * NS_PER_S
    assert llama.last_unix_ns == NOW_UNIX_NS - 35 * NS_PER_S


def test_traces_are_given_newest_first() -> None:
    store = opened()
    for age in range(5):
        store.put_trace(entry(f"{age}", received_unix_ns=NOW_UNIX_NS - age))
    assert [each.name for each in store.traces(ADMIN, limit=3)] == ["0", "1", "2"]


def test_what_is_too_old_is_given_up_and_the_rest_stays() -> None:
    clock = ScriptedClock(unix_ns=NOW_UNIX_NS)
    store = opened(clock=clock)
    store.put_document(filed(store, "old"), document([step_row(1)], [totals_row()]))
    store.put_trace(entry("rejected", state=TraceState.REJECTED))
    store.put_trace(replace(entry("old"), state=TraceState.ANALYSED))
    store.put_trace(entry("still queued"))
    clock.advance(13 * 24 * 60 * MINUTE_NS)
    store.put_trace(entry("new", received_unix_ns=clock.unix_ns()))
    capture, _ = file_one(store, analysed("new", (-5, -1)))
    store.put_document(capture.id, document([step_row(2)]))
    store.prune()
    assert shown(all_steps(store)) == [(2, 0), (1, 0)]
    clock.advance(2 * 24 * 60 * MINUTE_NS)
    store.prune()
    assert shown(all_steps(store)) == [(2, 0)]
    assert store.kernels(1, EVERYTHING, ADMIN) == ()
    assert {each.name for each in store.traces(ADMIN, limit=9)} == {"new", "still queued"}
    assert store.live().steps == 1


def test_a_store_in_memory_is_bounded_and_keeps_the_newest() -> None:
    limits = replace(LIMITS, max_bytes=2**20)
    clock = ScriptedClock(unix_ns=NOW_UNIX_NS)
    store = opened(clock=clock, limits=limits)
    for n in range(25):
        clock.advance(MINUTE_NS)
        capture = filed(store, f"{n}", (n * 60, n * 60 + 10))
        rows = [step_row(n * 100 + k, start_s=n * 60 + k / 100) for k in range(100)]
        store.put_document(capture, document(rows))
    kept = [row.step for row in all_steps(store) if row.step is not None]
    assert kept == list(range(2499, 2499 - len(kept), -1))
    assert 100 <= len(kept) < 2000
    assert store.live().steps == len(kept)
    assert store.live().trouble is None

"""Which traces form a capture, against connected components found by hand."""

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from chopperd.model.captures import AnalysedTrace, Filed, StepQuery
from chopperd.store.captures.capture_store import CaptureStore
from chopperd.units import NS_PER_S
from tests.unit.store.captures.examples import (
    ADMIN,
    NOW_UNIX_NS,
    analysed,
    document,
    entry,
    file_one,
    opened,
    step_row,
    trace_id,
)

Span = tuple[int, int] | None


def components(spans: list[Span]) -> set[frozenset[int]]:
    """Traces that touch, directly or by others; those without a time are one group."""
    group = list(range(len(spans)))
    for a, first in enumerate(spans):
        for b, second in enumerate(spans[:a]):
            both_loose = first is None and second is None
            touch = first and second and first[0] <= second[1] and second[0] <= first[1]
            if both_loose or touch:
                old, new = group[a], group[b]
                group = [new if each == old else each for each in group]
    return {frozenset(i for i, g in enumerate(group) if g == each) for each in set(group)}


def filed(store: CaptureStore, spans: list[Span]) -> set[frozenset[int]]:
    for number, span in enumerate(spans):
        store.put_trace(entry(f"{number}"))
        times = None if span is None else (float(span[0]), float(span[1]))
        capture, reports = file_one(store, analysed(f"{number}", times, rank=number))
        assert len(reports) == len(capture.trace_ids)
        store.put_document(capture.id, document([step_row(number)]))
    live = store.live()
    assert live.traces == len(spans)
    store.prune()
    assert store.live() == live, "what was counted by changes is what is there"
    captures: dict[int | None, set[int]] = {}
    for number in range(len(spans)):
        known = store.known(trace_id(f"{number}"))
        assert known is not None
        captures.setdefault(known.capture, set()).add(number)
    return {frozenset(each) for each in captures.values()}


spans = st.none() | st.tuples(st.integers(-50, 0), st.integers(0, 12)).map(
    lambda span: (span[0], span[0] + span[1])
)


@settings(max_examples=50, deadline=None)
@given(st.lists(spans, min_size=1, max_size=8))
def test_captures_are_what_overlaps_whatever_the_order_of_arrival(made: list[Span]) -> None:
    assert filed(opened(), made) == components(made)


def steps_from(begin_s: float) -> tuple[tuple[int, int], ...]:
    """Steps of 2 s from number 10 on."""
    begin_ns = NOW_UNIX_NS + round(begin_s * 1e9)
    return tuple((10 + n, begin_ns + 2 * n * NS_PER_S) for n in range(6))


def of_job(job: str, rank: int, behind_s: float = 0.0) -> AnalysedTrace:
    """A rank of 4, from 20 to 10 s before now, later by a time."""
    begin_s = -20.0 + behind_s + 0.01 * rank
    return analysed(
        f"{job}{rank}",
        (begin_s, begin_s + 10.0),
        rank=rank,
        run=None,
        world_size=4,
        steps=steps_from(begin_s),
    )


def put(store: CaptureStore, trace: AnalysedTrace, owner_uid: int = 1000) -> tuple[Filed, ...]:
    store.put_trace(replace(entry(trace.report.decode(), owner_uid=owner_uid), job=trace.job))
    return store.file_analysed(trace)


def shared(store: CaptureStore, names: list[str]) -> list[set[str]]:
    """Which traces share a capture, in order of their captures."""
    found: dict[int, set[str]] = {}
    for name in names:
        known = store.known(trace_id(name))
        assert known is not None
        assert known.capture is not None
        found.setdefault(known.capture, set()).add(name)
    return [found[each] for each in sorted(found)]


def test_two_equal_jobs_at_one_time_are_two_runs_however_their_ranks_come() -> None:
    """The second rank that comes is the other job's: it leaves when its own rank 0 is there."""
    store = opened()
    order = [("a", 0), ("b", 1), ("a", 1), ("b", 0), ("a", 2), ("b", 3), ("b", 2), ("a", 3)]
    changed = [put(store, of_job(job, n, 0.7 * (job == "b"))) for job, n in order]
    assert [len(each) for each in changed[:2]] == [1, 1]
    assert changed[1][0].reports == (b"a0", b"b1"), "nothing tells them apart yet"
    assert {each.reports for each in changed[2]} == {(b"a0", b"a1"), (b"b1",)}
    names = [f"{job}{n}" for job, n in order]
    assert shared(store, names) == [{"a0", "a1", "a2", "a3"}, {"b0", "b1", "b2", "b3"}]
    runs = {each.entry.run for each in (*changed[2], *changed[-1], *changed[-2])}
    assert len(runs) == 2
    assert None not in runs
    (job,) = store.jobs(ADMIN)
    assert (set(job.runs), job.captures, job.traces) == (runs, 2, 8)
    notes = {each.entry.note for each in changed[-1] + changed[-2]}
    assert len(notes) == 1
    (note,) = notes
    assert note is not None
    assert note.startswith("rank 1 is claimed by a1 and by b1: taken for two runs")


def test_each_run_of_one_time_is_found_by_its_name() -> None:
    store = opened()
    for job in "ab":
        put(store, of_job(job, 0, 0.7 * (job == "b")))
    for name in ("a0", "b0"):
        known = store.known(trace_id(name))
        assert known is not None
        assert known.capture is not None
        store.put_document(known.capture, document([step_row(10)]))
    found = store.step(10, StepQuery(), ADMIN)
    assert len({row.run for row in found}) == len(found) == 2
    for row in found:
        assert store.step(10, StepQuery(run=row.run), ADMIN) == (row,)


def test_runs_of_two_owners_at_one_time_get_names_too() -> None:
    store = opened()
    (first,) = put(store, of_job("a", 0))
    assert first.entry.run is None
    changed = put(store, of_job("b", 1), owner_uid=1001)
    assert len(changed) == 2
    assert len({each.entry.run for each in changed} - {None}) == 2


def test_a_job_of_another_world_size_keeps_its_capture_and_late_ranks_find_theirs() -> None:
    store = opened()
    small = replace(of_job("b", 1), identity=replace(of_job("b", 1).identity, world_size=2))
    for trace in (of_job("a", 0), small, of_job("a", 2)):
        put(store, trace)
    assert shared(store, ["a0", "b1", "a2"]) == [{"a0", "a2"}, {"b1"}]
    known = store.known(trace_id("b1"))
    assert known is not None
    assert known.run is not None
    late = replace(of_job("b", 0), identity=replace(of_job("b", 0).identity, world_size=2))
    (filed, *others) = put(store, late)
    assert filed.reports == (b"b1", b"b0")
    assert others == []
    assert filed.entry.run == known.run
    assert filed.entry.note is None


def test_an_earlier_version_s_traces_are_of_the_run_that_it_knew() -> None:
    store = opened()
    put(store, analysed("old", rank=1, run="id1"))
    store.database.write(lambda db: db.execute("UPDATE traces SET identity = NULL"))
    put(store, analysed("new", rank=0, run=None))
    put(store, analysed("same", rank=2, run="id1"))
    assert shared(store, ["old", "new", "same"]) == [{"old", "same"}, {"new"}]

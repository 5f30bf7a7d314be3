"""Steps that are drawn: which are chosen, what ran in them by hand count, and the samples."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from chopperd.model.answers import StepTimeline
from chopperd.report.build import timelines
from chopperd.report.build.clocked_device import JoinOptions
from chopperd.report.build.document import StepSelection, with_selection
from tests.unit.report.traced import MS, STEP_MS, Job, document, reported, sample_set, sampled

UNIT_NS = 25_000  # 100 ms in 4,000 units


def five(of: StepTimeline) -> list[tuple[object, ...]]:
    return [of.samples[at : at + 5] for at in range(0, len(of.samples), 5)]


def test_a_step_has_its_lanes_and_the_samples_of_its_time() -> None:
    """80 ms of compute, then 20 ms of communication; a sample each 10 ms, the tail left out."""
    report = document([Job()], sample_set(sampled()))
    first, second = report.timeline
    assert (first.step, second.step) == (1, 2)
    assert (first.window_ns, first.unit_ns) == (STEP_MS * MS, UNIT_NS)
    assert first.lanes == {"gemm": (0, 3200), "comm": (3200, 800)}
    assert first.most_apart_ns == 1000 * MS
    found = five(first)
    assert [each[1] for each in found] == [1500] * 11
    assert [each[3] for each in found] == ["compute"] * 8 + ["comm"] * 2 + ["compute"]
    assert [each[3] for each in five(second)] == ["compute"] * 9 + ["comm"] * 2 + ["compute"]
    assert five(second)[0][0] == -801  # 20 ms and the 1 us by which the window begins late
    times = np.cumsum([each[0] for each in found]) * UNIT_NS
    assert np.all(np.diff(times) == 10 * MS)
    assert first.start_unix_ns == report.steps[0].start_unix_ns


def test_without_samples_there_are_lanes_only() -> None:
    (first, _) = document([Job()], None).timeline
    assert (first.lanes["gemm"], first.samples, first.most_apart_ns) == ((0, 3200), (), None)


def test_without_its_samples_a_timeline_keeps_its_lanes() -> None:
    report = reported(Job(), sample_set(sampled()))
    doubted = replace(report, timelines=tuple(map(timelines.without_samples, report.timelines)))
    assert [each.samples for each in doubted.timelines] == [(), ()]
    assert [each.lanes for each in doubted.timelines] == [e.lanes for e in report.timelines]


def test_a_document_of_chosen_steps_has_their_timelines() -> None:
    report = document([Job()], None)
    assert [e.step for e in with_selection(report, StepSelection(step=2)).timeline] == [2]
    assert [e.step for e in with_selection(report, StepSelection(last=1)).timeline] == []


@pytest.mark.parametrize(
    ("work", "near", "expected"),
    [
        ([3, 1, 2], [], [0, 1, 2]),
        ([], [], []),
        (list(range(30)), [4], [4, 14, *range(20, 30)]),  # the longest, the median, a drop's
        ([5] * 20, [], [*range(12)]),
    ],
)
def test_the_longest_the_median_and_those_near_drops_are_chosen(
    work: Sequence[int], near: Sequence[int], expected: Sequence[int]
) -> None:
    found = timelines.chosen(range(len(work)), work.__getitem__, near.__contains__)
    assert list(found) == list(expected)


def test_the_step_that_is_asked_for_is_drawn() -> None:
    """Of 39 equal steps the first 11 and the median are chosen; step 30 where it is asked for."""
    job = Job(steps=range(1, 41))
    for wanted in (None, 30):
        options, selection = JoinOptions(drawn_step=wanted), StepSelection(step=wanted)
        found = document([job], None, options, selection).timeline
        assert [each.step for each in found] == ([*range(1, 12), 20] if wanted is None else [30])


def test_only_critical_devices_are_in_the_document() -> None:
    jobs = [Job(rank=0, compute_ms=80), Job(rank=1, compute_ms=90)]
    report = document(jobs, None)
    assert {(row.rank, row.step) for row in report.steps if row.is_critical} >= {(1, 1), (1, 2)}
    assert [(each.rank, each.step) for each in report.timeline] == [(1, 1), (1, 2)]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), min_size=1, max_size=700))
def test_coded_intervals_hold_all_that_ran(pairs: list[tuple[int, int]]) -> None:
    """Against every unit of time, one by one: nothing that ran is lost, few are merged."""
    ends = np.cumsum([gap + length for gap, length in pairs])
    starts = ends - np.array([length for _, length in pairs])
    coded = timelines._coded(starts, ends)
    assert len(coded) <= 2 * 240
    edges = np.cumsum(coded)
    ran, drawn = set(), set()
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        ran |= set(range(start, end))
    for start, end in zip(edges[0::2].tolist(), edges[1::2].tolist(), strict=True):
        drawn |= set(range(start, end))
    assert ran <= drawn
    assert {min(ran), max(ran)} == {min(drawn), max(drawn)}
    if len(pairs) <= 240:
        assert ran == drawn

"""Which files are of one process, which are rivals, and which GPU is claimed twice."""

from msgspec.structs import replace

from chopperd.model.run import device_map_of
from chopperd.report.build.clocked_device import JoinOptions
from chopperd.report.build.processes import (
    first_step,
    given_twice,
    guessed_twice,
    processes,
    rank_conflicts,
)
from tests.unit.report.traced import Job, reported, sample_set, sampled

FIRST = Job(rank=0, steps=(1, 2))


def test_cycles_of_one_rank_are_one_process() -> None:
    reports = [reported(FIRST), reported(Job(rank=0, steps=(3, 4), at_ms=200))]
    assert processes(reports) == [0, 0]
    assert rank_conflicts(reports) == []
    assert [first_step(report) for report in reports] == [1, 3]


def test_ranks_are_processes_of_their_own() -> None:
    reports = [reported(FIRST), reported(Job(rank=1, steps=(1, 2)))]
    assert processes(reports) == [0, 1]
    assert rank_conflicts(reports) == []


def test_one_rank_with_one_step_twice_is_a_conflict() -> None:
    reports = [reported(FIRST), reported(Job(rank=0, steps=(2, 3), at_ms=900))]
    assert processes(reports) == [0, 1]
    assert rank_conflicts(reports) == [(0, 1)]


def test_one_rank_at_one_time_twice_is_a_conflict() -> None:
    reports = [reported(FIRST), reported(Job(rank=0, steps=(7, 8)))]
    assert rank_conflicts(reports) == [(0, 1)]


def test_files_of_unknown_rank_are_no_conflict() -> None:
    reports = [reported(Job(rank=None, path="a")), reported(Job(rank=None, path="b"))]
    assert processes(reports) == [0, 1]
    assert rank_conflicts(reports) == []


def test_a_gpu_that_two_ranks_had_at_once_was_guessed_wrong() -> None:
    samples = sample_set(sampled())
    reports = [reported(Job(rank=rank), samples) for rank in (0, 1)]
    assert [report.devices[0].mapping for report in reports] == ["unique_name"] * 2
    assert guessed_twice(reports) == [0, 1]


def test_a_gpu_that_one_trace_names_is_not_anothers_by_elimination() -> None:
    samples = sample_set(sampled())
    reports = [reported(Job(rank=0, uuid="GPU-0"), samples), reported(Job(rank=1), samples)]
    assert guessed_twice(reports) == [1]


def test_one_gpu_may_be_traced_again_later() -> None:
    samples = sample_set(sampled(end_ms=900))
    reports = [
        reported(Job(rank=None, steps=(1, 2), path="a"), samples),
        reported(Job(rank=None, steps=(3, 4), path="b", at_ms=400), samples),
    ]
    assert guessed_twice(reports) == []
    assert processes(reports) == [0, 0]


def test_two_traces_of_one_process_may_be_of_one_gpu_at_one_time() -> None:
    samples = sample_set(sampled())
    first, second = (reported(Job(rank=3, path=path), samples) for path in "ab")
    assert guessed_twice([first, second]) == []
    device = replace(second.devices[0], pid=(second.devices[0].pid or 0) + 1)
    assert guessed_twice([first, replace(second, devices=(device,))]) == [0, 1]


def test_a_map_that_gives_one_gpu_to_two_ranks_is_found() -> None:
    samples = sample_set(sampled(0), sampled(1))
    options = JoinOptions(device_map=device_map_of("0=GPU-1", "map"))
    reports = [reported(Job(rank=rank), samples, options) for rank in (0, 1, 2)]
    assert given_twice(reports) == ("1", [0, 1, 2])
    later = reported(Job(rank=1, at_ms=900, steps=(7, 8)), samples, options)
    assert given_twice([reports[0], later]) is None
    again = reported(Job(rank=0, path="again"), samples, options)
    assert given_twice([reports[0], again]) is None

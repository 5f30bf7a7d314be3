"""How soon a sampler process follows one that ended."""

import pytest

from chopperd.sampling.settings import RestartPolicy, Restarts


@pytest.fixture
def restarts() -> Restarts:
    return Restarts(RestartPolicy())


def test_pauses_double_from_none_and_one_second_to_the_longest(restarts: Restarts) -> None:
    assert [restarts.pause_s(0.1) for _ in range(8)] == [0, 1, 2, 4, 8, 16, 30, 30]


def test_a_process_that_lasted_is_followed_at_once(restarts: Restarts) -> None:
    assert [restarts.pause_s(0.1) for _ in range(3)] == [0, 1, 2]
    assert restarts.pause_s(61.0) == 0
    assert [restarts.pause_s(0.1) for _ in range(2)] == [0, 1]


def test_where_no_gpu_was_ever_found_the_next_try_is_a_minute_later(restarts: Restarts) -> None:
    for count in range(1, 4):
        restarts.note_failure("no driver", 3, 0.1)
        assert restarts.pause_s(0.1) == 60
        assert restarts.failure is not None
        assert restarts.failure.count == count


def test_a_driver_that_had_worked_is_tried_again_sooner(restarts: Restarts) -> None:
    restarts.note_running()
    pauses_s = []
    for _ in range(5):
        restarts.note_failure("driver reloads", 3, 0.1)
        pauses_s.append(restarts.pause_s(0.1))
    assert pauses_s == [0, 1, 2, 4, 8]
    assert restarts.failure is not None
    assert (restarts.failure.reason, restarts.failure.count) == ("driver reloads", 5)


def test_failures_are_forgotten_once_a_process_samples(restarts: Restarts) -> None:
    restarts.note_failure("no driver", 3, 0.1)
    restarts.note_running()
    assert restarts.failure is None
    assert restarts.has_run


def test_a_start_that_was_asked_for_begins_with_no_pause(restarts: Restarts) -> None:
    assert [restarts.pause_s(0.1) for _ in range(3)] == [0, 1, 2]
    restarts.reset()
    assert restarts.pause_s(0.1) == 0


def test_failures_between_short_lives_add_up_and_a_long_life_begins_the_count(
    restarts: Restarts,
) -> None:
    """A driver to which a process opens, and that never answers it, is as lost as any."""
    for count in range(1, 4):
        restarts.note_running()
        restarts.note_failure("no GPU answers", 3, 10.0)
        assert restarts.failure is not None
        assert restarts.failure.count == count
    restarts.note_running()
    restarts.note_failure("no GPU answers", 3, 61.0)
    assert restarts.failure is not None
    assert restarts.failure.count == 1

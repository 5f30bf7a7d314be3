"""When the agent calls itself unwell, and what its guard lets through."""

import logging

import pytest

from chopperd.agent.lifecycle import Guard, Health
from chopperd.errors import ConfigError
from chopperd.model.live import GuardedPart
from chopperd.units import NS_PER_S
from tests.fakes.clock import ScriptedClock


def failing() -> None:
    raise KeyError("broken")


def test_an_agent_whose_parts_work_is_well() -> None:
    clock = ScriptedClock()
    health = Health(clock)
    assert health.trouble() is None
    guard = Guard(GuardedPart.SNAPSHOT, "the loop", health)
    for _ in range(20):
        clock.advance(NS_PER_S)
        assert guard.run(lambda: None)
    assert health.trouble() is None


def test_a_part_that_does_not_work_for_more_than_ten_seconds_is_trouble() -> None:
    clock = ScriptedClock()
    health = Health(clock)
    guard = Guard(GuardedPart.SNAPSHOT, "the loop", health)
    clock.advance(10 * NS_PER_S)
    assert health.trouble() is None
    clock.advance(2 * NS_PER_S)
    assert health.trouble() == "the loop has not worked for 12 s"
    guard.run(lambda: None)
    assert health.trouble() is None


def test_a_part_that_always_fails_has_stalled_though_its_loop_turns() -> None:
    clock = ScriptedClock()
    health = Health(clock)
    guard = Guard(GuardedPart.SNAPSHOT, "the loop", health)
    for _ in range(11):
        clock.advance(NS_PER_S)
        assert not guard.run(failing)
    assert health.trouble() == "the loop has not worked for 11 s"


def test_a_repeated_failure_is_logged_at_first_and_then_each_minute_with_its_count(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ScriptedClock()
    guard = Guard(GuardedPart.SNAPSHOT, "the loop", Health(clock))
    with caplog.at_level(logging.ERROR):
        for _ in range(121):
            guard.run(failing)
            clock.advance(NS_PER_S)
    assert [record.getMessage() for record in caplog.records] == [
        "the loop failed (1 times so far)",
        "the loop failed (61 times so far)",
        "the loop failed (121 times so far)",
    ]


def test_faults_are_counted_by_part_from_0_on() -> None:
    clock = ScriptedClock()
    health = Health(clock)
    assert health.faults() == dict.fromkeys(GuardedPart, 0)
    guard = Guard(GuardedPart.SUPERVISION, "the supervision", health)
    for work in (failing, failing, lambda: None):
        guard.run(work)
    health.note_fault(GuardedPart.STORE)
    assert health.faults() == {
        **dict.fromkeys(GuardedPart, 0),
        GuardedPart.SUPERVISION: 2,
        GuardedPart.STORE: 1,
    }


def test_what_only_another_configuration_mends_is_not_guarded() -> None:
    clock = ScriptedClock()

    def refuse() -> None:
        raise ConfigError(["no such back end"])

    with pytest.raises(ConfigError, match="no such back end"):
        Guard(GuardedPart.SNAPSHOT, "the loop", Health(clock)).run(refuse)


def test_a_thread_that_ended_is_trouble() -> None:
    health = Health(ScriptedClock())
    alive = [True]
    health.watch("metrics listener", lambda: alive[0])
    assert health.trouble() is None
    alive[0] = False
    assert health.trouble() == "the metrics listener thread has ended"


def test_a_lost_driver_is_trouble_until_it_is_back() -> None:
    health = Health(ScriptedClock())
    health.lost_driver = "the driver is lost"
    assert health.trouble() == "the driver is lost"
    health.lost_driver = None
    assert health.trouble() is None

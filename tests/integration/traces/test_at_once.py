"""Two pieces of work in two threads give what they give in turn."""

from pathlib import Path
from threading import Barrier, current_thread

import pytest

from chopperd.model.pairs import in_turn
from chopperd.pipeline.reports import ReportOptions, report_files
from chopperd.traces.at_once import at_once, doing_both
from tests.fakes.clock import ScriptedClock


def test_both_are_at_work_at_once_and_each_result_is_in_its_place() -> None:
    meeting = Barrier(2)

    def first() -> int:
        meeting.wait(30)
        return 1

    def second() -> str:
        meeting.wait(30)
        return current_thread().name

    number, name = at_once(first, second)
    assert (number, name) == (1, "chopperd-both_0")


def test_what_either_raises_is_raised_when_both_have_ended() -> None:
    ended = []

    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        at_once(fail, lambda: ended.append("second"))
    with pytest.raises(ValueError, match="no"):
        at_once(lambda: ended.append("first"), fail)
    assert ended == ["second", "first"]


def test_one_thread_does_one_after_the_other() -> None:
    assert doing_both(1) is in_turn
    order: list[int] = []
    in_turn(lambda: order.append(1), lambda: order.append(2))
    assert order == [1, 2]


@pytest.mark.corpus
@pytest.mark.parametrize("name", ["hta_a100_nccl_ddp", "hta_v100_ddp_memory"])
def test_a_report_by_two_threads_is_that_by_one(shared: Path, name: str) -> None:
    path = shared / "traces" / f"{name}.json.gz"
    one, two = (
        report_files(
            [path], samples=None, options=ReportOptions(threads=threads), clock=ScriptedClock()
        )
        for threads in (1, 2)
    )
    assert one == two

import logging

import pytest

from chopperd.store.captures.database import Database, RefusedError, WriteQueue
from tests.fakes.clock import ScriptedClock


class Disk:
    """What was written, unless it refuses."""

    def __init__(self) -> None:
        self.refuses = False
        self.written: list[str] = []

    def write(self, what: str) -> str:
        if self.refuses:
            raise RefusedError("full")
        if what == "broken":
            raise LookupError(what)
        self.written.append(what)
        return what


def queue_of(limit_bytes: int = 2**20) -> WriteQueue:
    return WriteQueue(Database(None, clock=ScriptedClock()), limit_bytes=limit_bytes)


def test_a_write_is_made_at_once_and_its_result_returned() -> None:
    disk, queue = Disk(), queue_of()
    assert queue.put(lambda: disk.write("a")) == "a"
    assert (queue.rows, queue.dropped) == (0, 0)


def test_refused_writes_wait_in_order_and_the_next_one_comes_after_them() -> None:
    disk, queue = Disk(), queue_of()
    disk.refuses = True
    assert queue.put(lambda: disk.write("a"), later=lambda: disk.write("a later"), rows=3) is None
    assert queue.put(lambda: disk.write("b")) is None
    assert queue.rows == 4
    disk.refuses = False
    assert queue.put(lambda: disk.write("c")) == "c"
    assert disk.written == ["a later", "b", "c"]
    assert queue.rows == 0


def test_a_write_that_fails_when_made_at_once_is_the_caller_s() -> None:
    disk, queue = Disk(), queue_of()
    with pytest.raises(LookupError):
        queue.put(lambda: disk.write("broken"))
    assert (queue.rows, queue.dropped) == (0, 0)


def test_a_write_that_fails_after_its_wait_is_dropped_and_holds_up_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk, queue = Disk(), queue_of()
    disk.refuses = True
    for what in ("broken", "b"):
        queue.put(lambda what=what: disk.write(what))  # type: ignore[misc]
    disk.refuses = False
    queue.flush()
    assert (disk.written, queue.dropped, queue.rows) == (["b"], 1, 0)
    assert "a write of the store failed and was dropped" in caplog.text


def test_the_oldest_writes_go_where_more_wait_than_the_bound_allows() -> None:
    """1 KiB each and what they bring: of 5 and 3 and 1 KiB the last two fit into 7 KiB."""
    disk, queue = Disk(), queue_of(7 * 1024)
    disk.refuses = True
    for what, size in (("a", 5), ("b", 3), ("c", 1)):
        queue.put(lambda what=what: disk.write(what), size_bytes=size * 1024)  # type: ignore[misc]
    assert (queue.rows, queue.dropped) == (2, 1)
    disk.refuses = False
    queue.flush()
    assert disk.written == ["b", "c"]


def test_writes_that_can_not_be_made_at_the_end_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk, queue = Disk(), queue_of()
    disk.refuses = True
    queue.put(lambda: disk.write("a"))
    with caplog.at_level(logging.WARNING):
        queue.close()
    assert "1 writes of the store were not made" in caplog.text

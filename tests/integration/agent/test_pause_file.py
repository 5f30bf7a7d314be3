"""Pausing by the file and by request, on a real folder."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from chopperd.agent.pause import PauseFile
from chopperd.units import NS_PER_S
from tests.fakes.clock import ScriptedClock


class Paused:
    """A pause file over a folder, and how often it said that something changed."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "pause"
        self.clock = ScriptedClock()
        self.changes_count = 0
        self.control = PauseFile(folder, self.clock, self._note)

    def _note(self) -> None:
        self.changes_count += 1


@pytest.fixture
def paused(tmp_path: Path) -> Paused:
    return Paused(tmp_path)


def test_the_file_pauses_while_it_is_there(paused: Paused) -> None:
    assert paused.control.current() is None
    paused.path.touch()
    first = paused.control.current()
    assert first is not None
    assert first.until_unix_ns is None
    paused.path.write_text("reason=another")
    second = paused.control.current()
    assert second is not None
    assert second.reason == "another"
    paused.path.unlink()
    assert paused.control.current() is None


def test_a_pause_with_an_end_is_over_then_and_its_file_is_taken_away(paused: Paused) -> None:
    paused.path.write_text(f"until={paused.clock.unix_ns() // NS_PER_S + 10}")
    assert paused.control.current() is not None
    paused.clock.advance(10 * NS_PER_S)
    assert paused.control.current() is None
    assert not paused.path.exists()


def test_a_pause_by_request_is_a_file_that_outlives_the_agent(
    paused: Paused, tmp_path: Path
) -> None:
    asked = paused.control.pause("nccl\ntests", 60.0)
    assert asked.reason == "nccl tests"
    assert asked.until_unix_ns == paused.clock.unix_ns() + 60 * NS_PER_S
    assert paused.control.current() == Paused(tmp_path).control.current() == asked
    assert paused.changes_count == 1
    paused.control.resume()
    assert paused.control.current() is None
    assert not paused.path.exists()
    assert paused.changes_count == 2


def make_folder(path: Path) -> None:
    path.mkdir()


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_link(path: Path) -> None:
    path.symlink_to("/dev/zero")


def make_binary(path: Path) -> None:
    path.write_bytes(os.urandom(100_000))


@pytest.mark.parametrize("make", [make_folder, make_fifo, make_link, make_binary])
def test_whatever_is_called_pause_pauses_and_hangs_nothing(
    paused: Paused, make: Callable[[Path], None]
) -> None:
    make(paused.path)
    assert paused.control.current() is not None
    paused.control.resume()
    assert paused.control.current() is None


def test_where_no_file_can_be_written_a_pause_by_request_holds(tmp_path: Path) -> None:
    paused = Paused(tmp_path / "missing")
    asked = paused.control.pause("no disk", 5.0)
    assert paused.control.current() == asked
    paused.clock.advance(5 * NS_PER_S)
    assert paused.control.current() is None
    paused.control.pause("again", None)
    paused.control.resume()
    assert paused.control.current() is None

"""The inbox against files that move, grow, vanish, or were put there to do harm."""

import os
import socket
from pathlib import Path

import pytest

from chopperd.ingest.inbox import Arrival, ChangedError, Inbox
from chopperd.units import NS_PER_S
from tests.fakes.clock import ScriptedClock


class Box:
    """An inbox that settles in 2 s of a clock that the test moves."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "inbox"
        self.clock = ScriptedClock()
        self.inbox = Inbox(self.folder, 2.0, self.clock)
        self.inbox.open()

    def settled(self) -> list[Arrival]:
        """What stands still from now on for 2 s."""
        self.inbox.scan()
        self.clock.advance(2 * NS_PER_S)
        return self.inbox.scan()

    def names(self) -> list[str]:
        """The same, by name."""
        return sorted(arrival.name for arrival in self.settled())


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return Box(tmp_path)


def read(inbox: Inbox, arrival: Arrival) -> bytes:
    with inbox.opened(arrival) as fd:
        return os.read(fd, 1000)


def test_anyone_may_drop_a_file_but_nobody_may_list_them(box: Box) -> None:
    assert box.folder.stat().st_mode & 0o7777 == 0o1733


def test_a_file_arrives_when_it_has_stood_still(box: Box) -> None:
    (box.folder / "a.json").write_bytes(b"abc")
    assert box.inbox.scan() == []
    box.clock.advance(2 * NS_PER_S - 1)
    assert box.inbox.scan() == []
    box.clock.advance(1)
    (arrival,) = box.inbox.scan()
    assert (arrival.name, arrival.job, arrival.version.size) == ("a.json", None, 3)
    assert arrival.owner_uid == os.getuid()
    assert arrival.version.mtime_ns == (box.folder / "a.json").stat().st_mtime_ns
    assert read(box.inbox, arrival) == b"abc"


def test_a_file_that_grows_is_waited_for(box: Box) -> None:
    path = box.folder / "a.json"
    for size in range(1, 4):
        path.write_bytes(b"x" * size)
        assert box.inbox.scan() == []
        box.clock.advance(3 * NS_PER_S // 2)
    box.inbox.scan()
    box.clock.advance(2 * NS_PER_S)
    assert [arrival.version.size for arrival in box.inbox.scan()] == [3]


def test_the_folder_names_the_job_and_folders_in_it_are_not_looked_into(box: Box) -> None:
    (box.folder / "job 7" / "deeper").mkdir(parents=True)
    (box.folder / "job 7" / "a.json").write_bytes(b"a")
    (box.folder / "job 7" / "deeper" / "b.json").write_bytes(b"b")
    (arrival,) = box.settled()
    assert (arrival.name, arrival.job) == ("a.json", "job 7")
    assert box.inbox.odd_count == 0


def test_files_that_are_being_written_by_their_names_are_left(box: Box) -> None:
    for name in (".hidden", "a.json.part", "b.tmp", "c.json"):
        (box.folder / name).write_bytes(b"x")
    (box.folder / ".job").mkdir()
    (box.folder / ".job" / "d.json").write_bytes(b"x")
    assert box.names() == ["c.json"]


def test_links_pipes_sockets_and_foreign_files_are_counted_once_and_left(
    box: Box, tmp_path: Path
) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text("secret")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "inside.json").write_text("secret")
    (box.folder / "link.json").symlink_to(secret)
    (box.folder / "jobs").symlink_to(tmp_path / "folder")
    (box.folder / "hard.json").hardlink_to(secret)
    os.mkfifo(box.folder / "pipe.json")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(box.folder / "socket"))
        for _ in range(3):
            assert box.settled() == []
    assert box.inbox.odd_count == 5
    assert len(list(box.folder.iterdir())) == 5


def test_a_second_name_that_goes_away_makes_the_file_fit_to_be_taken(box: Box) -> None:
    """Some programs link a file to its last name and remove the first."""
    (box.folder / "first.part").write_bytes(b"x")
    (box.folder / "last.json").hardlink_to(box.folder / "first.part")
    assert box.settled() == []
    (box.folder / "first.part").unlink()
    assert box.names() == ["last.json"]


def test_names_that_are_no_text_arrive_in_printable_form(box: Box) -> None:
    raw = [b"line\nbreak.json", b"bad\xff.json", b"x" * 250 + b".json", "größe.json".encode()]
    for name in raw:
        Path(os.fsdecode(bytes(box.folder) + b"/" + name)).write_bytes(b"content")
    arrivals = box.settled()
    assert sorted(a.name for a in arrivals) == [
        "bad�.json",
        "größe.json",
        "line�break.json",
        "x" * 250 + ".json",
    ]
    assert [read(box.inbox, arrival) for arrival in arrivals] == [b"content"] * 4
    for arrival in arrivals:
        box.inbox.remove(arrival)
    assert list(box.folder.iterdir()) == []


@pytest.mark.parametrize("becomes", ["gone", "link", "pipe", "folder", "longer", "another"])
def test_a_file_that_becomes_something_else_is_not_taken(
    box: Box, tmp_path: Path, becomes: str
) -> None:
    path, secret = box.folder / "a.json", tmp_path / "secret"
    secret.write_bytes(b"abc")
    path.write_bytes(b"abc")
    (arrival,) = box.settled()
    if becomes == "longer":
        path.write_bytes(b"abcd")
    else:
        path.unlink()
    match becomes:
        case "link":
            path.symlink_to(secret)
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "another":
            path.write_bytes(b"xyz")
            os.utime(path, ns=(0, 0))
    with pytest.raises((ChangedError, OSError)):
        read(box.inbox, arrival)


def test_a_file_written_to_while_it_is_read_is_not_taken(box: Box) -> None:
    path = box.folder / "a.json"
    path.write_bytes(b"abc")
    (arrival,) = box.settled()
    with pytest.raises(ChangedError), box.inbox.opened(arrival):
        path.write_bytes(b"abcd")


def test_a_job_folder_that_becomes_a_link_leads_nowhere(box: Box, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "a.json").write_bytes(b"abc")
    (box.folder / "job").mkdir()
    (box.folder / "job" / "a.json").write_bytes(b"abc")
    (arrival,) = box.settled()
    (box.folder / "job").rename(tmp_path / "away")
    (box.folder / "job").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match=r"Not a directory|Too many levels"):
        read(box.inbox, arrival)
    box.inbox.remove(arrival)
    assert (tmp_path / "elsewhere" / "a.json").exists()


def test_a_file_that_was_replaced_is_not_removed(box: Box) -> None:
    path = box.folder / "a.json"
    path.write_bytes(b"abc")
    (arrival,) = box.settled()
    path.unlink()
    path.write_bytes(b"a newer one")
    box.inbox.remove(arrival)
    assert path.read_bytes() == b"a newer one"
    assert box.names() == ["a.json"]


def test_a_file_that_is_passed_over_arrives_again_when_it_is_written_to(box: Box) -> None:
    path = box.folder / "a.json"
    path.write_bytes(b"abc")
    (arrival,) = box.settled()
    box.inbox.note_odd(arrival, "can't be read")
    assert box.names() == []
    assert box.inbox.odd_count == 1
    path.write_bytes(b"abcd")
    assert box.names() == ["a.json"]


def test_many_odd_entries_are_one_line_a_minute_in_the_log(
    box: Box, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(50):
        (box.folder / f"link{number}").symlink_to("nowhere")
    box.settled()
    assert [record.message.endswith("(1 such so far)") for record in caplog.records] == [True]
    box.clock.advance(60 * NS_PER_S)
    (box.folder / "one more").symlink_to("nowhere")
    box.settled()
    assert len(caplog.records) == 2
    assert caplog.records[1].message.endswith("(51 such so far)")
    assert box.inbox.odd_count == 51

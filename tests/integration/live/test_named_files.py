"""Files that somebody names: only below the roots, only plain, only what he could read himself."""

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from chopperd.errors import IngestError, IngestReason
from chopperd.ingest.admission import opened_under

#: A user who owns nothing here and is in no group.
STRANGER = 3_999_999


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that everyone may enter, as are those above it; pytest's own are closed."""
    with TemporaryDirectory(prefix="chopperd-") as folder:
        place = Path(folder)
        place.chmod(0o755)
        if not all(each.stat().st_mode & 0o001 for each in place.parents):
            pytest.skip("others may not enter the folder for temporary files here")
        yield place


@pytest.fixture
def root(place: Path) -> Path:
    folder = place / "root"
    folder.mkdir(mode=0o755)
    return folder


def read(path: Path | str, root: Path, uid: int | None = None) -> bytes:
    with opened_under(str(path), [root], uid) as fd:
        return os.read(fd, 100)


def reason(path: Path | str, root: Path, uid: int | None = None) -> IngestReason:
    with pytest.raises(IngestError) as raised:
        read(path, root, uid)
    return raised.value.reason


def test_a_file_below_a_root_is_read_also_through_links_that_stay_there(root: Path) -> None:
    (root / "folder").mkdir()
    (root / "folder" / "a.json").write_bytes(b"abc")
    (root / "link").symlink_to(root / "folder" / "a.json")
    assert read(root / "folder" / "a.json", root) == b"abc"
    assert read(root / "folder" / ".." / "folder" / "a.json", root) == b"abc"
    assert read(root / "link", root) == b"abc"


def test_what_is_not_below_a_root_is_forbidden_whether_it_is_there_or_not(
    root: Path, place: Path
) -> None:
    (place / "secret").write_bytes(b"secret")
    (place / "root-2").mkdir()
    (place / "root-2" / "a").write_bytes(b"secret")
    (root / "link").symlink_to(place / "secret")
    (root / "up").symlink_to("..")
    for path in (
        place / "secret",
        place / "absent",
        place / "root-2" / "a",
        root / ".." / "secret",
        root / "link",
        root / "up" / "secret",
        root,
        "root/a",
        "",
        f"{root}/a\0b",
        "/proc/self/root/etc/passwd",
    ):
        assert reason(path, root) is IngestReason.FORBIDDEN, path


def test_what_is_no_plain_file_is_forbidden_and_what_is_not_there_is_not_found(root: Path) -> None:
    os.mkfifo(root / "pipe")
    (root / "folder").mkdir()
    assert reason(root / "pipe", root) is IngestReason.FORBIDDEN
    assert reason(root / "folder", root) is IngestReason.FORBIDDEN
    assert reason(root / "absent", root) is IngestReason.NOT_FOUND
    assert reason(root / "absent" / "a", root) is IngestReason.NOT_FOUND


def test_a_user_gets_what_the_modes_let_him_read(root: Path) -> None:
    path = root / "a"
    path.write_bytes(b"abc")
    path.chmod(0o640)
    assert reason(path, root, STRANGER) is IngestReason.FORBIDDEN
    assert read(path, root, os.getuid()) == b"abc"
    path.chmod(0o604)
    assert read(path, root, STRANGER) == b"abc"


@pytest.mark.skipif(os.getuid() == 0, reason="root may read all")
def test_an_owner_without_the_right_does_not_get_it_from_the_others(root: Path) -> None:
    path = root / "a"
    path.write_bytes(b"abc")
    path.chmod(0o044)
    assert reason(path, root, os.getuid()) is IngestReason.FORBIDDEN


@pytest.mark.skipif(os.getuid() != 0, reason="only root may give files away")
def test_owner_and_group_count_before_others(root: Path) -> None:
    path = root / "a"
    path.write_bytes(b"abc")
    os.chown(path, STRANGER, -1)
    path.chmod(0o044)
    assert reason(path, root, STRANGER) is IngestReason.FORBIDDEN
    path.chmod(0o400)
    assert read(path, root, STRANGER) == b"abc"
    assert read(path, root, 0) == b"abc"


def test_a_folder_that_a_user_may_not_enter_hides_what_is_in_it(root: Path) -> None:
    closed = root / "closed"
    closed.mkdir()
    (closed / "a").write_bytes(b"abc")
    (closed / "a").chmod(0o644)
    closed.chmod(0o750)
    assert reason(closed / "a", root, STRANGER) is IngestReason.FORBIDDEN
    assert reason(closed / "absent", root, STRANGER) is IngestReason.FORBIDDEN
    assert read(closed / "a", root, None) == b"abc"

"""Stores that are damaged, foreign, removed, or of another version."""

import logging
import sqlite3
import zlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from chopperd.store.captures import schema
from chopperd.store.captures.database import RETRY_NS, Database
from chopperd.store.captures.schema import (
    MIGRATIONS,
    DamagedError,
    check_sound,
    migrate,
    version_of,
)
from tests.fakes.clock import ScriptedClock
from tests.integration.store.stored import steps_of
from tests.integration.store.storing import ROWS, store_capture, store_late
from tests.unit.store.captures.examples import ADMIN, EVERYTHING, all_steps, opened
from tests.waiting import wait_for


def garbage(path: Path) -> None:
    path.write_bytes(b"this is no database at all " * 400)


def flipped(path: Path) -> None:
    """Every page but the first two loses its header."""
    with path.open("r+b") as file:
        for page in range(2, path.stat().st_size // 4096):
            file.seek(page * 4096)
            file.write(b"\xff" * 16)


def foreign(path: Path) -> None:
    path.unlink()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE recipes (cake TEXT)")


@pytest.mark.parametrize("spoil", [garbage, flipped, foreign])
def test_a_store_of_which_nothing_is_readable_is_quarantined_and_a_new_one_begins(
    tmp_path: Path, spoil: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    """Until the quarantined file is removed, that is said, also after later starts."""
    path = tmp_path / "store.sqlite"
    for n in (1, 2):
        with closing(opened(path)) as store:
            store_capture(store, n)
        spoil(path)
        spoiled = path.read_bytes()
        caplog.clear()
        with closing(opened(path)) as store:
            assert steps_of(store) == {}
            live = store.live()
            assert live.trouble is None
            assert live.set_aside is not None
            assert "store.sqlite.damaged-1" in live.set_aside
            store_capture(store, 9)
        warnings = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
        assert len(warnings) == 2
        assert "is quarantined as store.sqlite.damaged-1: " in warnings[0]
        assert "0 of its rows were recovered, an unknown number lost" in warnings[1]
        quarantined = tmp_path / "store.sqlite.damaged-1"
        assert quarantined.read_bytes() == spoiled
        with closing(opened(path)) as store:
            assert steps_of(store) == {9: ROWS}
            assert quarantined.name in (store.live().set_aside or "")
        quarantined.rename(tmp_path / f"looked-at-{n}")
        with closing(opened(path)) as store:
            assert store.live().set_aside is None


def test_a_store_that_is_damaged_while_open_is_put_aside_then(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    with closing(opened(path)) as store:
        for number in range(30):
            store_capture(store, number)
    with closing(opened(path)) as store:
        with closing(sqlite3.connect(path)) as other:  # so that no page is trusted unread
            other.execute("UPDATE traces SET rank = 9")
            other.commit()
        flipped(path)
        assert all_steps(store) == []
        assert store.latest_document(None, ADMIN) is None
        store_capture(store, 99)
        assert steps_of(store) == {99: ROWS}
        assert store.live().set_aside is not None
    assert (tmp_path / "store.sqlite.damaged-1").exists()


def test_the_check_at_start_ends_in_time_whatever_the_size(tmp_path: Path) -> None:
    """Of 40 MB the page that is looked at last is bad: found with time enough, not in 1 ms."""
    path = tmp_path / "large.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE t (x BLOB)")
        connection.executemany("INSERT INTO t VALUES (zeroblob(1900))", [()] * 20_000)
        connection.commit()
    with path.open("r+b") as file:
        file.seek(3 * 4096)
        file.write(b"\xff" * 16)
    with closing(sqlite3.connect(path, check_same_thread=False)) as connection:

        def ends_early() -> bool:
            try:
                check_sound(connection, 0.001)
            except DamagedError:
                return False
            return True

        wait_for(ends_early, "an end in time")  # on a busy machine the timer may come late
        with pytest.raises(DamagedError, match="btreeInitPage"):
            check_sound(connection, 60)


def test_what_a_later_version_wrote_into_a_body_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    with closing(opened(path)) as store:
        store_capture(store, 1)
        older = store.latest_document(None, ADMIN)
        store_capture(store, 2)
        with closing(sqlite3.connect(path)) as other:
            for table in ("steps", "documents"):
                other.execute(
                    f"UPDATE {table} SET body = ? WHERE capture = (SELECT max(id) FROM captures)",
                    (zlib.compress(b'{"a": 1}'),),
                )
            other.commit()
        assert older is not None
        assert store.latest_document(None, ADMIN) == older
        assert steps_of(store) == {1: ROWS}
        assert store.kernels(2, EVERYTHING, ADMIN) == ()


def test_a_newer_store_is_put_aside_whole(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    with closing(opened(path)) as store:
        store_capture(store, 1)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        migrate(connection, (*MIGRATIONS, ("CREATE TABLE wonders (x)",)))
    with closing(opened(path)) as store:
        assert store.live().trouble is None
        assert "newer than this program's" in (store.live().set_aside or "")
        store_capture(store, 2)
        assert steps_of(store) == {2: ROWS}
    newer = tmp_path / "store.sqlite.newer-1"
    with closing(sqlite3.connect(newer)) as connection:
        assert version_of(connection) == len(MIGRATIONS) + 1
        assert connection.execute("SELECT count(*) FROM steps").fetchone() == (ROWS,)


def test_an_older_store_is_brought_up_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Version 0 is an empty file; a version 2 is made up for the sake of the mechanism."""
    path = tmp_path / "store.sqlite"
    path.touch()
    with closing(opened(path)) as store:
        store_capture(store, 1)
    later = (*MIGRATIONS, ("ALTER TABLE documents ADD COLUMN note TEXT",))

    def marked(db: sqlite3.Connection) -> int:
        return db.execute("UPDATE documents SET note = 'kept'").rowcount

    monkeypatch.setattr(schema, "MIGRATIONS", later)
    with closing(Database(path, clock=ScriptedClock())) as database:
        assert database.file.losses is None
        assert database.write(marked) == 1
    assert [each.name for each in tmp_path.iterdir()] == ["store.sqlite"]


@pytest.mark.parametrize("how", ["file", "folder", "replaced"])
def test_a_store_whose_file_is_removed_begins_a_new_one_and_says_so(
    tmp_path: Path, how: str
) -> None:
    """Else what comes would go to a file without a name, and be gone at the next start."""
    state = tmp_path / "state"
    state.mkdir()
    path, clock = state / "store.sqlite", ScriptedClock()
    with closing(opened(path, clock)) as store:
        store_capture(store, 1)
        if how == "folder":
            state.rename(tmp_path / "elsewhere")
        else:
            path.unlink()
        if how == "replaced":
            opened(path).close()
        store_capture(store, 2)
        assert "removed while it was in use" in (store.live().set_aside or "")
        assert steps_of(store) == ({} if how == "folder" else {2: ROWS})
        assert (store.live().trouble is None) == (how != "folder")
        state.mkdir(exist_ok=True)
        clock.advance(RETRY_NS)
        store.prune()
        store_late(store)
        assert store.live().trouble is None
        assert store.live().steps == ROWS
    with closing(opened(path)) as store:
        assert steps_of(store) == {2: ROWS}

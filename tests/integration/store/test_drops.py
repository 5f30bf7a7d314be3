"""Drops on a real disk: over restarts, and while it refuses."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from chopperd.model.captures import DropQuery, DropState
from chopperd.store.captures.schema import MIGRATIONS, migrate, version_of
from chopperd.units import NS_PER_S
from tests.fakes.clock import ScriptedClock
from tests.fakes.drops import gpu_drop
from tests.fakes.samples import START_UNIX_NS
from tests.unit.store.captures.examples import LIMITS, entry, opened, trace_id

ALL = DropQuery()


def test_drops_outlive_a_restart_and_an_open_one_ends_where_it_was_last_seen(
    tmp_path: Path,
) -> None:
    path = tmp_path / "store.sqlite"
    closed, left_open = gpu_drop(10), gpu_drop(20, None, seen_s=7.5)
    with closing(opened(path)) as store:
        store.put_drops([closed, left_open])
    with closing(opened(path)) as store:
        ended = replace(
            left_open,
            state=DropState.INTERRUPTED,
            end_unix_ns=left_open.begin_unix_ns + round(7.5 * NS_PER_S),
        )
        assert store.drops(ALL, limit=10) == (ended, closed)


def test_a_store_without_drops_is_brought_up_with_what_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    with closing(opened(path)) as store:
        store.put_trace(entry("a"))
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("DROP TABLE drops")
        connection.execute("DROP TABLE quarantine")
        connection.execute("ALTER TABLE traces DROP COLUMN identity")
        connection.execute("PRAGMA user_version = 1")
    with closing(opened(path)) as store:
        store.put_drops([gpu_drop(10)])
        assert store.known(trace_id("a")) == entry("a")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        migrate(connection, MIGRATIONS)
        assert version_of(connection) == len(MIGRATIONS)
        assert connection.execute("SELECT gpu FROM drops").fetchall() == [("0",)]


def test_while_the_disk_lacks_room_drops_wait_in_memory_and_are_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, clock = tmp_path / "store.sqlite", ScriptedClock(unix_ns=START_UNIX_NS)
    limits = replace(LIMITS, min_free_ratio=0.1)
    usage = shutil.disk_usage(tmp_path)
    with closing(opened(path, clock, limits)) as store:
        store.put_drops([gpu_drop(10, None), gpu_drop(20)])
        with monkeypatch.context() as patched:
            patched.setattr(shutil, "disk_usage", lambda _path: usage._replace(free=0))
            store.put_drops([gpu_drop(10, 8.0), gpu_drop(30)])
            assert (store.live().in_memory, store.live().trouble is None) == (2, False)
            assert store.drops(ALL, limit=10) == (gpu_drop(20), gpu_drop(10, None))
        clock.advance(60 * NS_PER_S)
        store.prune()
        assert (store.live().in_memory, store.live().trouble) == (0, None)
        expected = (gpu_drop(30), gpu_drop(20), gpu_drop(10, 8.0))
        assert store.drops(ALL, limit=10) == expected
    with closing(opened(path)) as store:
        assert store.drops(ALL, limit=10) == expected

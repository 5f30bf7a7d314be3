"""The store's file over restarts and kills, within its bounds, and beside other readers."""

import contextlib
import os
import random
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest

from chopperd.model.captures import StepQuery
from chopperd.store.captures.database import RETRY_NS
from chopperd.store.disk import DiskLimits
from tests.fakes.clock import ScriptedClock
from tests.integration.store.stored import check_whole, steps_of
from tests.integration.store.storing import ROWS, store_capture
from tests.tools import ROOT
from tests.unit.store.captures.examples import (
    ADMIN,
    EVERYTHING,
    NOW_UNIX_NS,
    analysed,
    document,
    entry,
    file_one,
    opened,
    step_row,
    totals_row,
    trace_id,
)

MIB = 2**20


def test_what_was_stored_is_there_after_a_restart(tmp_path: Path) -> None:
    clock = ScriptedClock(unix_ns=NOW_UNIX_NS)
    path = tmp_path / "store.sqlite"
    with closing(opened(path, clock)) as store:
        store.put_trace(entry("a"))
        capture, _ = file_one(store, analysed("a"))
        made = document([step_row(1), step_row(2)], [totals_row()])
        store.put_document(capture.id, made)
        store.put_trace(entry("b", received_unix_ns=NOW_UNIX_NS + 1))
    with closing(opened(path, clock)) as store:
        assert (store.live().steps, store.live().traces) == (2, 2)
        assert store.latest_document(None, ADMIN) == made
        assert [each.name for each in store.waiting()] == ["a", "b"]
        again, reports = file_one(store, analysed("b", rank=1))
        assert (again.id, reports) == (capture.id, (b"a", b"b"))


def test_its_files_are_for_its_user_alone_even_with_a_loose_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with closing(opened(tmp_path / "store.sqlite")) as store:
            store_capture(store, 1)
            modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in tmp_path.iterdir()}
    finally:
        os.umask(before)
    names = ["store.sqlite", "store.sqlite-shm", "store.sqlite-wal"]
    assert modes == dict.fromkeys(names, 0o600)


@pytest.mark.parametrize("delay_captures", [1, 2, 4, 7, 11])
def test_whatever_was_acknowledged_outlives_kill_9(tmp_path: Path, delay_captures: int) -> None:
    path = tmp_path / "store.sqlite"
    with subprocess.Popen(
        [sys.executable, "-m", "tests.integration.store.storing", path, "0"],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        text=True,
    ) as writer:
        assert writer.stdout is not None
        for _ in range(delay_captures):
            writer.stdout.readline()
        # Into the middle of one of the next captures, which take some 10 ms each.
        with contextlib.suppress(subprocess.TimeoutExpired):
            writer.wait(random.Random(delay_captures).uniform(0, 0.05))
        writer.send_signal(signal.SIGKILL)
        acknowledged = delay_captures + len(writer.stdout.read().splitlines())
    check_whole(path)
    with closing(opened(path)) as store:
        found = steps_of(store)
        assert set(range(acknowledged)) <= found.keys()
        assert set(found.values()) == {ROWS}
        assert store.live().trouble is None
        store_capture(store, 1000)
        assert steps_of(store)[1000] == ROWS


def test_a_store_stays_within_its_size_and_gives_space_back(tmp_path: Path) -> None:
    clock = ScriptedClock(unix_ns=NOW_UNIX_NS)
    path = tmp_path / "store.sqlite"
    limits = DiskLimits(max_bytes=MIB, max_days=14, min_free_ratio=0)
    with closing(opened(path, clock, limits)) as store:
        largest = 0
        for number in range(16):
            clock.advance(10**9)
            store_capture(store, number, rows=150)
            largest = max(largest, store.live().bytes)
        assert largest <= MIB
        kept = steps_of(store)
        assert set(kept.values()) == {150}
        assert max(kept) == 15
        assert 2 < len(kept) < 16
        clock.advance(15 * 86_400 * 10**9)
        store.prune()
        assert steps_of(store) == {}
        assert store.live().traces == 16, "queued traces are not forgotten"
        assert path.stat().st_size < MIB / 4


def test_other_threads_and_processes_read_while_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    failures: list[Exception] = []
    done = threading.Event()
    with closing(opened(path)) as store:
        store_capture(store, 0)

        def read() -> None:
            try:
                while not done.is_set():
                    found = steps_of(store)
                    assert set(found.values()) == {ROWS}
                    assert len(store.step(0, StepQuery(), ADMIN)) == ROWS
                    store.live()
                    store.latest_document(None, ADMIN)
            except Exception as error:  # noqa: BLE001 - shown below
                failures.append(error)

        readers = [threading.Thread(target=read, name=f"reader-{n}") for n in range(2)]
        for reader in readers:
            reader.start()
        for number in range(1, 15):
            store_capture(store, number)
            with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as outside:
                counts = outside.execute("SELECT count(*) FROM steps GROUP BY capture").fetchall()
                assert counts == [(ROWS,)] * (number + 1)
        done.set()
        for reader in readers:
            reader.join()
    assert failures == []


def test_a_reader_that_stays_does_not_stop_the_writer(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    with closing(opened(path)) as store:
        store_capture(store, 0)
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as outside:
            outside.execute("BEGIN")
            assert outside.execute("SELECT count(*) FROM steps").fetchone() == (ROWS,)
            for number in range(1, 5):
                store_capture(store, number)
            store.prune()
            assert store.live().trouble is None
            assert outside.execute("SELECT count(*) FROM steps").fetchone() == (ROWS,)
        assert len(steps_of(store)) == 5


def test_a_file_that_another_holds_locked_is_written_later(tmp_path: Path) -> None:
    clock = ScriptedClock(unix_ns=NOW_UNIX_NS)
    path = tmp_path / "store.sqlite"
    with closing(opened(path, clock)) as store:
        store_capture(store, 0)
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            store.put_trace(entry("a"))
            assert store.live().trouble == "in memory only: database is locked"
            assert (store.known(trace_id("a")), store.live().in_memory) == (None, 1)
            assert steps_of(store) == {0: ROWS}
            other.execute("COMMIT")
        clock.advance(RETRY_NS)
        store.prune()
        assert (store.live().trouble, store.live().in_memory) == (None, 0)
        assert store.known(trace_id("a")) == entry("a")
        assert store.steps(EVERYTHING, ADMIN, limit=1, cursor=None).cursor is not None

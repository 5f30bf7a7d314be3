"""The store's file under what disks and kernels do to it."""

import contextlib
import logging
import os
import random
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from chopperd.model.captures import StepQuery, TraceState
from chopperd.store.capture_store import CaptureStore
from chopperd.store.database import RETRY_NS, Change, Database
from chopperd.store.disk_trouble import DamagedError
from chopperd.store.migrations import MIGRATIONS, migrate, version_of
from chopperd.store.retention import StoreLimits
from chopperd.store.set_aside import check_sound
from tests.fakes.clock import ScriptedClock
from tests.integration.store.storing import ROWS, store_capture
from tests.unit.store.captures import (
    ADMIN,
    EVERYTHING,
    LIMITS,
    NOW_UNIX_NS,
    all_steps,
    analysed,
    document,
    entry,
    opened,
    step_row,
    totals_row,
    trace_id,
)

ROOT = Path(__file__).parents[3]
MIB = 2**20
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")


def steps_of(store: CaptureStore) -> dict[int, int]:
    """How many rows there are of each step."""
    found: dict[int, int] = {}
    for row in all_steps(store):
        assert row.step is not None
        found[row.step] = found.get(row.step, 0) + 1
    return found


def check_whole(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA quick_check").fetchall() == [("ok",)]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", folder], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("mounting is not allowed here")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def fill_up(folder: Path) -> Path:
    """A file that takes all that is left."""
    path = folder / "filler"
    with path.open("wb", buffering=0) as file:
        for size in (65536, 4096):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
    return path


def test_what_was_stored_is_there_after_a_restart_with_the_metrics_sums(tmp_path: Path) -> None:
    clock = ScriptedClock(unix_ns=NOW_UNIX_NS)
    path = tmp_path / "store.sqlite"
    with closing(opened(path, clock)) as store:
        store.put_trace(entry("a"))
        capture, _ = store.file_analysed(analysed("a"))
        made = document([step_row(1), step_row(2)], [totals_row()])
        store.put_document(capture.id, made)
        store.put_trace(entry("b", received_unix_ns=NOW_UNIX_NS + 1))
        before = (store.live(), store.traced(NOW_UNIX_NS, 900 * 10**9))
    with closing(opened(path, clock)) as store:
        after = (store.live(), store.traced(NOW_UNIX_NS, 900 * 10**9))
        assert after[1] == before[1]
        assert after[1]["0"].window_s["dvfs_loss"] == 0.131
        assert (after[0].steps, after[0].traces) == (2, 2)
        assert store.latest_document(None, ADMIN) == made
        assert [each.name for each in store.waiting()] == ["a", "b"]
        again, reports = store.file_analysed(analysed("b", rank=1))
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


@needs_root
def test_on_a_full_disk_it_goes_on_in_memory_and_writes_that_once_there_is_room(
    small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ScriptedClock(unix_ns=NOW_UNIX_NS)
    path = small_disk / "store.sqlite"
    with closing(opened(path, clock)) as store:
        store_capture(store, 0)
        filler = fill_up(small_disk)
        stored = 1
        while store.live().trouble is None:
            store_capture(store, stored)
            stored += 1
        assert store.live().trouble == "kept in memory only: database or disk is full"
        for number in range(stored, stored + 3):
            store_capture(store, number)
        assert steps_of(store) == dict.fromkeys(range(stored + 3), ROWS)
        assert store.live().in_memory > 3 * ROWS
        clock.advance(RETRY_NS)
        store.prune()
        assert store.live().trouble is not None
        filler.unlink()
        store.prune()
        assert store.live().trouble is not None, "not tried again at once"
        clock.advance(RETRY_NS)
        store.prune()
        assert store.live().trouble is None
        assert store.live().in_memory == 0
        assert steps_of(store) == dict.fromkeys(range(stored + 3), ROWS)
    check_whole(path)
    with closing(opened(path)) as store:
        assert steps_of(store) == dict.fromkeys(range(stored + 3), ROWS)
    warnings = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert [r.getMessage() for r in warnings] == [
        "the store keeps to memory: database or disk is full"
    ]


@needs_root
def test_a_capture_of_the_disk_grows_and_joins_another_while_the_disk_is_full(
    small_disk: Path,
) -> None:
    """What is on disk is changed in memory, read as changed, and written as changed later."""
    clock = ScriptedClock(unix_ns=NOW_UNIX_NS)
    path = small_disk / "store.sqlite"
    with closing(opened(path, clock)) as store:
        for name, span_s, rank in (("left", (-50, -40), 0), ("right", (-20, -10), 1)):
            store.put_trace(entry(name))
            capture, _ = store.file_analysed(analysed(name, span_s, rank=rank))
            store.put_document(capture.id, document([step_row(rank, rank=rank)]))
        other = store_capture(store, 7)
        filler = fill_up(small_disk)
        number = 8
        while store.live().trouble is None:
            store_capture(store, number)
            number += 1
        store.put_trace(entry("bridge", received_unix_ns=NOW_UNIX_NS + 1))
        joined, reports = store.file_analysed(analysed("bridge", (-45, -15), rank=2))
        assert sorted(reports) == [b"bridge", b"left", b"right"]
        assert steps_of(store).keys() == {0, 1, *range(7, number)}
        rows = [step_row(5, rank=rank) for rank in range(3)]
        store.put_document(joined.id, document(rows, [totals_row()]))
        store.put_trace(replace(entry("left"), state=TraceState.ANALYSED))
        expected = dict.fromkeys(range(7, number), ROWS) | {5: 3}
        assert steps_of(store) == expected
        filler.unlink()
        clock.advance(RETRY_NS)
        store.prune()
        assert store.live().trouble is None
        assert steps_of(store) == expected
    with closing(opened(path)) as store:
        assert steps_of(store) == expected
        left, bridge = store.known(trace_id("left")), store.known(trace_id("bridge"))
        assert left is not None
        assert bridge is not None
        assert left.state is TraceState.ANALYSED
        assert left.capture == bridge.capture == joined.id != other
        assert store.live().steps == sum(expected.values())
        assert store.jobs(ADMIN)[0].captures == 1 + number - 7


@needs_root
def test_below_the_floor_of_free_space_the_oldest_captures_make_room(small_disk: Path) -> None:
    clock = ScriptedClock(unix_ns=NOW_UNIX_NS)
    limits = StoreLimits(max_bytes=2 * MIB, max_days=14, min_free_ratio=0.5)
    with closing(opened(small_disk / "store.sqlite", clock, limits)) as store:
        number = 0
        while store.live().trouble is None:
            store_capture(store, number)
            clock.advance(10**9)
            number += 1
        assert store.live().trouble == "kept in memory only: less than 50% of the disk is free"
        clock.advance(RETRY_NS)
        store.prune()
        store.prune()
        usage = shutil.disk_usage(small_disk)
        assert usage.free >= usage.total / 2
        assert store.live().trouble is None
        left = steps_of(store)
        assert number - 1 in left
        assert 0 not in left
        assert 1 <= len(left) < number


def test_a_limit_on_file_size_is_survived(tmp_path: Path) -> None:
    """RLIMIT_FSIZE makes every write past it fail, as some quotas do."""
    path = tmp_path / "store.sqlite"
    with subprocess.Popen(
        [sys.executable, "-m", "tests.integration.store.storing", path, "0", str(600_000)],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        text=True,
    ) as writer:
        assert writer.stdout is not None
        lines: list[str] = []
        while len(lines) < 3 or lines[-3].isdecimal():
            lines.append(writer.stdout.readline().strip())
        writer.kill()
    assert lines[-1].startswith("kept in memory only: ")
    acknowledged = sum(line.isdecimal() for line in lines)
    assert acknowledged > 0
    check_whole(path)
    with closing(opened(path)) as store:
        assert steps_of(store).keys() >= set(range(acknowledged))


def garbage(path: Path) -> None:
    path.write_bytes(b"this is no database at all " * 400)


def truncated(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


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


@pytest.mark.parametrize("spoil", [garbage, truncated, flipped, foreign])
def test_a_damaged_store_is_put_aside_and_a_new_one_begins(
    tmp_path: Path, spoil: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
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
            assert f"store.sqlite.damaged-{n}" in live.set_aside
            store_capture(store, 9)
        (warning,) = [r for r in caplog.records if r.levelno >= logging.WARNING]
        assert f"was put aside as store.sqlite.damaged-{n}" in warning.getMessage()
        assert (tmp_path / f"store.sqlite.damaged-{n}").read_bytes() == spoiled
        with closing(opened(path)) as store:
            assert steps_of(store) == {9: ROWS}
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
        check_sound(connection, "main", 0.001)
        with pytest.raises(DamagedError, match="btreeInitPage"):
            check_sound(connection, "main", 60)


def test_where_the_disk_can_not_be_read_memory_answers_until_it_can(tmp_path: Path) -> None:
    """The disk's EIO is handed in by a query; what is known of the trace is on the disk only."""
    clock = ScriptedClock(unix_ns=NOW_UNIX_NS)
    database = Database(tmp_path / "store.sqlite", clock=clock)
    errors = [sqlite3.OperationalError("disk I/O error")]
    errors[0].sqlite_errorcode = sqlite3.SQLITE_IOERR_READ

    def counted(connection: sqlite3.Connection) -> int:
        if errors:
            raise errors.pop()
        return int(connection.execute("SELECT count(*) FROM steps").fetchone()[0])

    with closing(CaptureStore(database, limits=LIMITS, clock=clock)) as store:
        store_capture(store, 1)
        store.put_trace(entry("a", owner_uid=1234))
        assert database.read(counted) == 0
        clock.advance(10**9)
        capture, _ = store.file_analysed(analysed("a"))
        assert store.live().trouble == "kept in memory only: disk I/O error"
        store.put_document(capture.id, document([step_row(2)]))
        assert steps_of(store) == {2: 1}
        clock.advance(RETRY_NS)
        store.prune()
        assert store.live().trouble is None
        assert steps_of(store) == {1: ROWS, 2: 1}
        expected = replace(entry("a", owner_uid=1234), run="r1", rank=0, capture=capture.id)
        assert store.known(trace_id("a")) == expected


def test_what_a_later_version_wrote_into_a_body_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    with closing(opened(path)) as store:
        store_capture(store, 1)
        older = store.latest_document(None, ADMIN)
        store_capture(store, 2)
        with closing(sqlite3.connect(path)) as other:
            for table in ("steps", "totals", "documents"):
                other.execute(
                    f"UPDATE {table} SET body = ? WHERE capture = (SELECT max(id) FROM captures)",
                    (zlib.compress(b'{"a": 1}'),),
                )
            other.commit()
        assert older is not None
        assert store.latest_document(None, ADMIN) == older
        assert steps_of(store) == {1: ROWS}
        assert store.families(2, EVERYTHING, ADMIN) == ()


def test_a_newer_store_is_put_aside_whole(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    with closing(opened(path)) as store:
        store_capture(store, 1)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        migrate(connection, "main", (*MIGRATIONS, ("CREATE TABLE {at}.wonders (x)",)))
    with closing(opened(path)) as store:
        assert store.live().trouble is None
        assert "newer than this program's" in (store.live().set_aside or "")
        store_capture(store, 2)
        assert steps_of(store) == {2: ROWS}
    newer = tmp_path / "store.sqlite.newer-1"
    with closing(sqlite3.connect(newer)) as connection:
        assert version_of(connection, "main") == len(MIGRATIONS) + 1
        assert connection.execute("SELECT count(*) FROM steps").fetchone() == (ROWS,)


def test_an_older_store_is_brought_up_in_place(tmp_path: Path) -> None:
    """Version 0 is an empty file; a version 2 is made up for the sake of the mechanism."""
    path = tmp_path / "store.sqlite"
    path.touch()
    with closing(opened(path)) as store:
        store_capture(store, 1)
    later = (*MIGRATIONS, ("ALTER TABLE {at}.documents ADD COLUMN note TEXT",))

    def marked(change: Change) -> int:
        return change.execute("UPDATE {at}.documents SET note = 'kept'")

    with closing(Database(path, clock=ScriptedClock(), migrations=later)) as database:
        assert database.set_aside is None
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
        assert steps_of(store) == {2: ROWS}
        assert (store.live().trouble is None) == (how != "folder")
        state.mkdir(exist_ok=True)
        clock.advance(RETRY_NS)
        store.prune()
        assert store.live().trouble is None
        assert store.live().steps == ROWS
    with closing(opened(path)) as store:
        assert steps_of(store) == {2: ROWS}


@pytest.mark.parametrize("in_the_way", ["a file for the folder", "a folder for the file"])
def test_where_no_file_can_be_made_it_works_in_memory_and_says_so(
    tmp_path: Path, in_the_way: str
) -> None:
    clock = ScriptedClock()
    path = tmp_path / "state" / "store.sqlite"
    if in_the_way == "a file for the folder":
        path.parent.touch()
    else:
        path.mkdir(parents=True)
    with closing(opened(path, clock)) as store:
        store_capture(store, 1)
        assert steps_of(store) == {1: ROWS}
        assert (store.live().trouble or "").startswith("kept in memory only: ")
        assert store.live().in_memory == ROWS + 1
        store.prune()
        if path.is_dir():
            path.rmdir()
        else:
            path.parent.unlink()
            path.parent.mkdir()
        clock.advance(RETRY_NS)
        store_capture(store, 2)
        assert store.live().trouble is None
        assert steps_of(store) == {1: ROWS, 2: ROWS}
    with closing(opened(path)) as store:
        assert steps_of(store) == {1: ROWS, 2: ROWS}


@needs_root
def test_on_a_read_only_disk_what_is_there_is_read_and_what_comes_is_kept(small_disk: Path) -> None:
    clock = ScriptedClock(unix_ns=NOW_UNIX_NS)
    path = small_disk / "store.sqlite"
    with closing(opened(path, clock)) as store:
        store_capture(store, 1)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with closing(opened(path, clock)) as store:
        assert steps_of(store) == {1: ROWS}
        assert store.live().trouble == f"kept in memory only: {path} can't be written"
        store_capture(store, 2)
        assert steps_of(store) == {1: ROWS, 2: ROWS}
        subprocess.run(["mount", "-o", "remount,rw", small_disk], check=True)
        clock.advance(RETRY_NS)
        store.prune()
        assert store.live().trouble is None
    with closing(opened(path)) as store:
        assert steps_of(store) == {1: ROWS, 2: ROWS}


def test_memory_is_bounded_too_and_what_was_given_up_is_counted(tmp_path: Path) -> None:
    (tmp_path / "state").touch()
    database = Database(
        tmp_path / "state" / "store.sqlite", clock=ScriptedClock(), memory_limit_bytes=MIB
    )
    with closing(CaptureStore(database, limits=LIMITS, clock=ScriptedClock())) as store:
        for number in range(60):
            store_capture(store, number)
        live = store.live()
        kept = sorted(steps_of(store))
        assert live.dropped == 60 - len(kept) > 0
        assert kept == list(range(60 - len(kept), 60))
        assert live.in_memory == len(kept) * (ROWS + 1)


def test_a_store_stays_within_its_size_and_gives_space_back(tmp_path: Path) -> None:
    clock = ScriptedClock(unix_ns=NOW_UNIX_NS)
    path = tmp_path / "store.sqlite"
    limits = StoreLimits(max_bytes=MIB, max_days=14, min_free_ratio=0)
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
            assert store.live().trouble == "kept in memory only: database is locked"
            assert store.known(trace_id("a")) == entry("a")
            assert steps_of(store) == {0: ROWS}
            other.execute("COMMIT")
        clock.advance(RETRY_NS)
        store.prune()
        assert (store.live().trouble, store.live().in_memory) == (None, 0)
        assert store.known(trace_id("a")) == entry("a")
        assert store.steps(EVERYTHING, ADMIN, limit=1, cursor=None).cursor is not None

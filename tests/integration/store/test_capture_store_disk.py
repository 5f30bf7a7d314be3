"""The store on disks that are full, small, read-only, unreadable, or not there."""

import logging
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from chopperd.model.captures import TraceState
from chopperd.store.captures.capture_store import CaptureStore
from chopperd.store.captures.database import RETRY_NS, WriteQueue
from chopperd.store.disk import DiskLimits
from tests.fakes.clock import ScriptedClock
from tests.integration.store.stored import check_whole, steps_of
from tests.integration.store.storing import ROWS, put_document, store_capture, store_late
from tests.tools import ROOT
from tests.unit.store.captures.examples import (
    ADMIN,
    LIMITS,
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
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")


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


@needs_root
def test_what_a_full_disk_refuses_waits_and_is_written_once_there_is_room(
    small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The last capture tried is refused at its trace, its filing, or its document."""
    clock = ScriptedClock(unix_ns=NOW_UNIX_NS)
    path = small_disk / "store.sqlite"
    with closing(opened(path, clock)) as store:
        store_capture(store, 0)
        filler = fill_up(small_disk)
        tried = 1
        while store.live().trouble is None:
            store_capture(store, tried)
            tried += 1
        assert store.live().trouble == "in memory only: database or disk is full"
        on_disk = dict.fromkeys(range(tried - 1), ROWS)
        assert steps_of(store) == on_disk
        before = store.live().in_memory
        assert before in (1, 2, ROWS)
        for number in range(tried, tried + 3):
            assert store_capture(store, number) is None
        assert store.live().in_memory == before + 3 * 2
        clock.advance(RETRY_NS)
        store.prune()
        assert store.live().trouble is not None
        filler.unlink()
        store.prune()
        assert store.live().trouble is not None, "not tried again at once"
        assert steps_of(store) == on_disk
        clock.advance(RETRY_NS)
        store.prune()
        assert (store.live().trouble, store.live().in_memory) == (None, 0)
        assert store_late(store)[-3:] == [tried, tried + 1, tried + 2]
        assert store_late(store) == [], "given once"
        assert steps_of(store) == dict.fromkeys(range(tried + 3), ROWS)
        assert store.live().dropped == 0
    check_whole(path)
    with closing(opened(path)) as store:
        assert steps_of(store) == dict.fromkeys(range(tried + 3), ROWS)
    warnings = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert [r.getMessage() for r in warnings] == [
        "the store can't write for now, changes wait in memory: database or disk is full"
    ]


@needs_root
def test_a_trace_that_waits_for_a_full_disk_joins_captures_of_the_disk_later(
    small_disk: Path,
) -> None:
    clock = ScriptedClock(unix_ns=NOW_UNIX_NS)
    path = small_disk / "store.sqlite"
    with closing(opened(path, clock)) as store:
        for name, span_s, rank in (("left", (-50, -40), 0), ("right", (-20, -10), 1)):
            store.put_trace(entry(name))
            capture, _ = file_one(store, analysed(name, span_s, rank=rank))
            store.put_document(capture.id, document([step_row(rank, rank=rank)]))
        other = store_capture(store, 7)
        filler = fill_up(small_disk)
        number = 8
        while store.live().trouble is None:
            store_capture(store, number)
            number += 1
        on_disk = steps_of(store)
        store.put_trace(entry("bridge", received_unix_ns=NOW_UNIX_NS + 1))
        assert store.file_analysed(analysed("bridge", (-45, -15), rank=2)) == ()
        store.put_trace(replace(entry("left"), state=TraceState.ANALYSED))
        assert steps_of(store) == on_disk
        filler.unlink()
        clock.advance(RETRY_NS)
        store.prune()
        assert store.live().trouble is None
        traces, filed = store.take_filed()
        assert traces[-1] == replace(analysed("bridge", (-45, -15), rank=2), report=b"")
        (joined,) = (each for each in filed if b"bridge" in each.reports)
        assert sorted(joined.reports) == [b"bridge", b"left", b"right"]
        for each in filed:
            if each is not joined:
                put_document(store, each.entry.id, int(each.reports[0]))
        rows = [step_row(5, rank=rank) for rank in range(3)]
        store.put_document(joined.entry.id, document(rows, [totals_row()]))
        expected = dict.fromkeys(range(7, number), ROWS) | {5: 3}
        assert steps_of(store) == expected
    with closing(opened(path)) as store:
        assert steps_of(store) == expected
        left, bridge = store.known(trace_id("left")), store.known(trace_id("bridge"))
        assert left is not None
        assert bridge is not None
        assert left.state is TraceState.ANALYSED
        assert left.capture == bridge.capture == joined.entry.id != other
        assert store.live().steps == sum(expected.values())
        assert store.jobs(ADMIN)[0].captures == 1 + number - 7


@needs_root
def test_below_the_floor_of_free_space_the_oldest_captures_make_room(small_disk: Path) -> None:
    clock = ScriptedClock(unix_ns=NOW_UNIX_NS)
    limits = DiskLimits(max_bytes=2 * MIB, max_days=14, min_free_ratio=0.5)
    with closing(opened(small_disk / "store.sqlite", clock, limits)) as store:
        number = 0
        while store.live().trouble is None:
            store_capture(store, number)
            clock.advance(10**9)
            number += 1
        assert store.live().trouble == "in memory only: less than 50% of the disk is free"
        clock.advance(RETRY_NS)
        store.prune()
        store.prune()
        usage = shutil.disk_usage(small_disk)
        assert usage.free >= usage.total / 2
        assert store.live().trouble is None
        store_late(store)
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
    assert lines[-1].startswith("in memory only: ")
    acknowledged = sum(line.isdecimal() for line in lines)
    assert acknowledged > 0
    check_whole(path)
    with closing(opened(path)) as store:
        assert steps_of(store).keys() >= set(range(acknowledged))


def test_where_the_disk_can_not_be_read_the_store_is_empty_until_it_can(tmp_path: Path) -> None:
    """The disk's EIO is handed in by a query; what is known of the trace is on the disk only."""
    clock = ScriptedClock(unix_ns=NOW_UNIX_NS)
    errors = [sqlite3.OperationalError("disk I/O error")]
    errors[0].sqlite_errorcode = sqlite3.SQLITE_IOERR_READ

    def counted(connection: sqlite3.Connection) -> int:
        if errors:
            raise errors.pop()
        return int(connection.execute("SELECT count(*) FROM steps").fetchone()[0])

    path = tmp_path / "store.sqlite"
    with closing(CaptureStore(path, limits=LIMITS, clock=clock)) as store:
        store_capture(store, 1)
        store.put_trace(entry("a", owner_uid=1234))
        assert store.database.read(counted) == 0
        clock.advance(10**9)
        assert store.file_analysed(analysed("a")) == ()
        assert store.live().trouble == "in memory only: disk I/O error"
        assert steps_of(store) == {}
        clock.advance(RETRY_NS)
        store.prune()
        assert store.live().trouble is None
        _, (filed,) = store.take_filed()
        store.put_document(filed.entry.id, document([step_row(2)]))
        assert steps_of(store) == {1: ROWS, 2: 1}
        expected = replace(entry("a", owner_uid=1234), run="r1", rank=0, capture=filed.entry.id)
        assert store.known(trace_id("a")) == expected


@pytest.mark.parametrize("in_the_way", ["a file for the folder", "a folder for the file"])
def test_where_no_file_can_be_made_writes_wait_until_one_can(
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
        assert steps_of(store) == {}
        assert (store.live().trouble or "").startswith("in memory only: ")
        assert store.live().in_memory == 2, "its trace and its report"
        store.prune()
        if path.is_dir():
            path.rmdir()
        else:
            path.parent.unlink()
            path.parent.mkdir()
        clock.advance(RETRY_NS)
        store_capture(store, 2)
        assert store.live().trouble is None
        assert store_late(store) == [1]
        assert steps_of(store) == {1: ROWS, 2: ROWS}
    with closing(opened(path)) as store:
        assert steps_of(store) == {1: ROWS, 2: ROWS}


@needs_root
def test_on_a_read_only_disk_what_is_there_is_read_and_what_comes_waits(small_disk: Path) -> None:
    clock = ScriptedClock(unix_ns=NOW_UNIX_NS)
    path = small_disk / "store.sqlite"
    with closing(opened(path, clock)) as store:
        store_capture(store, 1)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with closing(opened(path, clock)) as store:
        assert steps_of(store) == {1: ROWS}
        assert store.live().trouble == f"in memory only: {path} can't be written"
        store_capture(store, 2)
        assert steps_of(store) == {1: ROWS}
        subprocess.run(["mount", "-o", "remount,rw", small_disk], check=True)
        clock.advance(RETRY_NS)
        store.prune()
        assert store.live().trouble is None
        assert store_late(store) == [2]
    with closing(opened(path)) as store:
        assert steps_of(store) == {1: ROWS, 2: ROWS}


def test_beyond_the_bound_the_oldest_writes_are_dropped_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trace takes 1 KiB; of one write at start and 25 traces, 10 fit into 10 KiB."""
    path, clock = tmp_path / "state" / "store.sqlite", ScriptedClock()
    path.parent.touch()
    small = partial(WriteQueue, limit_bytes=10_240)
    monkeypatch.setattr("chopperd.store.captures.capture_store.WriteQueue", small)
    with closing(CaptureStore(path, limits=LIMITS, clock=clock)) as store:
        for number in range(25):
            store.put_trace(entry(f"{number}", received_unix_ns=number))
        assert (store.live().dropped, store.live().in_memory) == (1 + 25 - 10, 10)
        assert [r.getMessage() for r in caplog.records if "no room" in r.getMessage()] == [
            "no room in memory: the oldest unwritten changes are dropped"
        ]
        path.parent.unlink()
        path.parent.mkdir()
        clock.advance(RETRY_NS)
        store.prune()
        assert (store.live().dropped, store.live().in_memory) == (16, 0)
        assert store.live().trouble is None
        assert "16 unwritten changes of the store were dropped" in caplog.text
    with closing(opened(path)) as store:
        assert [each.name for each in store.waiting()] == [f"{n}" for n in range(15, 25)]

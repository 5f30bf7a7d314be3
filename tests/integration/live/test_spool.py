"""What the spool keeps, gives up, and finds again."""

import hashlib
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue

import msgspec
import pytest

from chopperd.errors import IngestError, IngestReason
from chopperd.ingest.incoming import Incoming
from chopperd.ingest.queue import QueuedTrace, QueueLimits, TraceQueue
from chopperd.model.captures import TraceEntry, TraceState
from tests.waiting import wait_for

CONTENT = b"some bytes"
ID = hashlib.sha256(CONTENT).hexdigest()[:16]


def limits(
    *, file_bytes: int = 100, all_bytes: int = 250, failed_count: int = 2, free: float = 0.0
) -> QueueLimits:
    return QueueLimits(
        file_bytes=file_bytes, all_bytes=all_bytes, failed_count=failed_count, min_free_ratio=free
    )


def opened(folder: Path, with_limits: QueueLimits | None = None) -> TraceQueue:
    spool = TraceQueue(folder, with_limits or limits())
    spool.open()
    return spool


def entry(trace_id: str, received_unix_ns: int = 0) -> TraceEntry:
    return TraceEntry(
        id=trace_id,
        name="rank0.json",
        job="job",
        owner_uid=7,
        state=TraceState.QUEUED,
        reason=None,
        stored_bytes=10,
        received_unix_ns=received_unix_ns,
    )


def put(spool: TraceQueue, content: bytes, received_unix_ns: int = 0) -> QueuedTrace:
    with spool.begin(len(content)) as incoming:
        incoming.write(content)
        kept = QueuedTrace(entry=entry(incoming.trace_id, received_unix_ns), written_unix_ns=5)
        spool.put(incoming, kept)
    return kept


def files(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def test_a_trace_is_kept_under_the_hash_of_its_bytes_for_the_agent_alone(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    kept = put(spool, CONTENT)
    assert kept.entry.id == ID
    path = spool.path(ID)
    assert path.read_bytes() == CONTENT
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert spool.get(ID) == kept
    assert spool.bytes == len(CONTENT)


def test_what_does_not_come_whole_leaves_nothing(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    with spool.begin() as incoming:
        incoming.write(CONTENT)
        assert spool.bytes == len(CONTENT)
    assert spool.bytes == 0
    assert files(tmp_path) == []


def test_a_new_agent_finds_all_in_the_order_of_arrival_and_removes_halves(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    late, early = put(spool, b"late", 20), put(spool, b"early", 10)
    spool.note_start(late.entry.id)
    incoming = spool.begin()
    incoming.write(b"half")
    again = opened(tmp_path)
    assert [each.entry for each in again.all()] == [early.entry, late.entry]
    assert again.bytes == 9
    assert not list((tmp_path / "traces").glob(".*"))
    assert again.note_start(late.entry.id) == 2
    again.forgive_start(late.entry.id)
    assert opened(tmp_path).note_start(late.entry.id) == 2
    incoming.abort()


def test_a_trace_whose_entry_is_lost_is_removed(tmp_path: Path) -> None:
    put(opened(tmp_path), CONTENT)
    (tmp_path / "traces" / f"{ID}.entry").write_text("{")
    spool = opened(tmp_path)
    assert (spool.all(), spool.bytes, files(tmp_path)) == ((), 0, [])


def take(spool: TraceQueue, size: int, *, announced: bool) -> None:
    with spool.begin(size if announced else None) as incoming:
        for _ in range(size):
            incoming.write(b"x")


@pytest.mark.parametrize(
    ("size", "key"), [(101, "ingest.max_stored_bytes"), (60, "analysis.spool_max_bytes")]
)
@pytest.mark.parametrize("announced", [True, False])
def test_a_trace_that_is_too_large_is_refused_announced_or_not(
    tmp_path: Path, size: int, key: str, announced: bool
) -> None:
    spool = opened(tmp_path, limits(all_bytes=250 if size > 100 else 50))
    with pytest.raises(IngestError, match=key) as raised:
        take(spool, size, announced=announced)
    assert raised.value.reason is IngestReason.TOO_LARGE
    assert (spool.bytes, files(tmp_path)) == (0, [])


def test_kept_and_refused_traces_make_room_the_largest_first_waiting_ones_do_not(
    tmp_path: Path,
) -> None:
    """100 waiting, 60 kept, 40 and 30 refused of 250; 60 more need 40: the 60 kept go."""
    spool = opened(tmp_path)
    put(spool, b"w" * 100)
    kept = put(spool, b"k" * 60)
    spool.retain(msgspec.structs.replace(kept.entry, state=TraceState.ANALYSED))
    for size in (40, 30):
        refused = put(spool, b"r" * size)
        spool.reject(refused.entry.id, f"{size}.json", "no trace")
    assert spool.bytes == 230
    put(spool, b"n" * 60)
    assert spool.bytes == 230
    assert spool.get(kept.entry.id) is None
    assert len([name for name in files(tmp_path) if name.startswith("rejected")]) == 4
    with pytest.raises(IngestError, match="the traces that wait") as raised:
        put(spool, b"l" * 95)
    assert raised.value.reason is IngestReason.NO_ROOM


def test_the_newest_refused_traces_are_kept_with_their_reasons(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    for number in range(4):
        refused = put(spool, b"%d" % number)
        spool.reject(refused.entry.id, f"no {number}/x.json", f"reason {number}")
        reason = next((tmp_path / "rejected").glob(f"*_{number}_*.reason"))
        os.utime(reason, ns=(number, number))
    spool.explain("large.json", "too large")
    names = {name.rpartition("-")[2] for name in files(tmp_path / "rejected")}
    assert names == {"large.json.reason", "no_3_x.json", "no_3_x.json.reason"}
    assert spool.bytes == 1


def test_a_disk_that_is_nearly_full_takes_nothing_more(tmp_path: Path) -> None:
    spool = opened(tmp_path, limits(free=1.0))
    with pytest.raises(IngestError, match=r"store\.min_free_ratio") as raised:
        spool.begin(1)
    assert raised.value.reason is IngestReason.NO_ROOM
    assert files(tmp_path) == []


class Unbounded:
    """Room for all."""

    claimed_bytes = 0

    def claim(self, size_bytes: int, more_bytes: int, *, check_disk: bool) -> None:
        assert size_bytes >= 0
        assert check_disk or size_bytes
        self.claimed_bytes += more_bytes

    def unclaim(self, size_bytes: int) -> None:
        self.claimed_bytes -= size_bytes


def test_a_disk_that_is_full_in_the_middle_is_no_room(tmp_path: Path) -> None:
    """/dev/full answers every write with ENOSPC."""
    room = Unbounded()
    fd = os.open("/dev/full", os.O_WRONLY)
    with (
        pytest.raises(IngestError, match="No space left on device") as raised,
        Incoming(room, tmp_path / "absent", fd) as incoming,  # type: ignore[arg-type]
    ):
        incoming.write(CONTENT)
    assert raised.value.reason is IngestReason.NO_ROOM
    assert room.claimed_bytes == 0


@pytest.mark.parametrize("stop_after", [0, 1])
def test_a_copy_ends_when_it_is_told_to(tmp_path: Path, stop_after: int) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"x" * (3 << 20))
    stops: Callable[[], bool] = iter([False] * stop_after + [True]).__next__
    fd = os.open(source, os.O_RDONLY)
    with opened(tmp_path, limits(file_bytes=1 << 30, all_bytes=1 << 30)).begin() as incoming:
        assert not incoming.copy(fd, stops)
        assert incoming.size_bytes == stop_after << 20
    os.close(fd)


def test_what_is_kept_can_be_told_while_the_disk_hangs(tmp_path: Path) -> None:
    """A pipe that nobody reads stands for a disk on which a write does not return."""
    spool = opened(tmp_path)
    kept = put(spool, CONTENT)
    pipe = tmp_path / "traces" / f".incoming-{ID}.entry"
    os.mkfifo(pipe)
    writer = threading.Thread(target=spool.note_start, args=(ID,))
    told: SimpleQueue[object] = SimpleQueue()
    teller = threading.Thread(target=lambda: told.put((spool.all(), spool.bytes, spool.get(ID))))
    writer.start()
    try:
        wait_for(lambda: spool.get(ID) != kept, "the start to be noted")
        teller.start()
        started = replace(kept, start_count=1)
        assert told.get(timeout=5.0) == ((started,), len(CONTENT), started)
        assert writer.is_alive()
    finally:
        with pipe.open("rb") as reader:
            reader.read()
        writer.join()
        teller.join()

"""Disks that are full, nearly full, read-only or not there: counted, said, and recovered from."""

import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from chopperd.store.disk import DiskLimits
from chopperd.store.recorder.reader import RecordedSamples
from chopperd.store.recorder.writer import FlightRecorder
from chopperd.units import NS_PER_S
from tests.fakes.clock import ScriptedClock
from tests.fakes.recorded import Feed

MIB = 2**20
ROOMY = DiskLimits(max_bytes=64 * MIB, max_days=7, min_free_ratio=0)
ALL_TIME = (0, 2**62)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    if os.geteuid() != 0 or remounted(place, "size=1m", first=True):
        pytest.skip("only root may mount a small disk")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def remounted(place: Path, options: str, *, first: bool = False) -> int:
    """Mount the disk, or change how it is mounted; 0 where that goes."""
    how = options if first else f"remount,{options}"
    command = ["mount", "-t", "tmpfs", "-o", how, "tmpfs", str(place)]
    return subprocess.run(command, check=False, capture_output=True).returncode


def recorder_on(folder: Path, limits: DiskLimits = ROOMY) -> Feed:
    clock = ScriptedClock()
    return Feed(FlightRecorder(folder, limits, clock), clock)


def rows_read(folder: Path) -> int:
    samples = RecordedSamples(folder).between(*ALL_TIME)
    return 0 if samples is None else sum(map(len, samples.gpus))


def rows_given(feed: Feed) -> int:
    return len(feed.given_mono_ns) * len(feed.source.gpus)


def trouble(feed: Feed) -> str:
    return feed.recorder.live.trouble or ""


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few samples wait in memory before they are given up."""
    monkeypatch.setattr("chopperd.store.recorder.writer._MOST_WAITING_ROWS", 30_000)


@pytest.mark.usefixtures("impatient")
def test_a_full_disk_costs_what_memory_can_not_hold_and_is_recovered_from(disk: Path) -> None:
    feed = recorder_on(disk / "recorder")
    while not trouble(feed):
        feed.seconds(5, hz=1_000)
    assert trouble(feed).endswith("No space left on device")
    assert feed.recorder.live.lost_samples == 0
    feed.seconds(25, hz=1_000)
    lost_count = feed.recorder.live.lost_samples
    assert 0 < lost_count <= rows_given(feed)
    # What is on the disk is whole.
    samples = RecordedSamples(disk / "recorder").between(*ALL_TIME)
    assert samples is not None
    assert samples.notes == ()
    remounted(disk, "size=32m")
    feed.seconds(10, hz=100)
    assert feed.recorder.live.trouble is None
    assert rows_read(disk / "recorder") + feed.recorder.live.lost_samples == rows_given(feed)
    samples = RecordedSamples(disk / "recorder").between(*ALL_TIME)
    assert samples is not None
    assert [note.code for note in samples.notes] == ["samples_lost"]
    assert samples.notes[0].text.startswith(f"{feed.recorder.live.lost_samples} samples")
    feed.recorder.close()


def test_a_file_that_may_not_grow_is_as_a_full_disk(tmp_path: Path) -> None:
    feed = recorder_on(tmp_path)
    feed.seconds(3)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    size_bytes = (tmp_path / "journal.rec").stat().st_size
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes + 100, hard))
        feed.seconds(5)
        assert trouble(feed).endswith("File too large")
        # The frame that did not fit was taken back whole.
        assert (tmp_path / "journal.rec").stat().st_size == size_bytes
        assert rows_read(tmp_path) == 60
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    feed.seconds(1)
    assert feed.recorder.live.trouble is None
    assert feed.recorder.live.lost_samples == 0
    assert rows_read(tmp_path) == rows_given(feed) == 180
    feed.recorder.close()


def test_a_disk_that_turns_read_only_is_gone_on_with_when_it_is_writable_again(disk: Path) -> None:
    feed = recorder_on(disk / "recorder")
    feed.seconds(65)
    feed.recorder.close()
    remounted(disk, "ro")
    feed.recorder = FlightRecorder(disk / "recorder", ROOMY, feed.clock)
    feed.seconds(70)
    assert trouble(feed).endswith("Read-only file system")
    assert rows_read(disk / "recorder") == 65 * 20
    remounted(disk, "rw")
    feed.seconds(1)
    assert feed.recorder.live.trouble is None
    assert feed.recorder.live.lost_samples == 0
    assert rows_read(disk / "recorder") == rows_given(feed)
    feed.recorder.close()


def test_a_folder_that_can_not_be_made_is_trouble_until_it_can(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("in the way")
    feed = recorder_on(tmp_path / "state" / "recorder")
    feed.recorder.tend()
    assert trouble(feed).endswith("Not a directory")
    feed.seconds(2)
    (tmp_path / "state").unlink()
    feed.seconds(1)
    assert feed.recorder.live.trouble is None
    assert rows_read(tmp_path / "state" / "recorder") == rows_given(feed) == 60
    feed.recorder.close()


def fill(disk: Path, *, free_ratio: float) -> Path:
    """Take room with a file until only so much of the disk is free."""
    stats = os.statvfs(disk)
    blocks = stats.f_bavail - round(free_ratio * stats.f_blocks)
    filler = disk / "filler"
    filler.write_bytes(bytes(blocks * stats.f_frsize))
    return filler


def test_below_the_floor_what_is_written_replaces_what_is_deleted(disk: Path) -> None:
    folder = disk / "recorder"
    feed = recorder_on(folder, replace(ROOMY, min_free_ratio=0.2))
    for _ in range(6):
        feed.seconds(61)
        feed.clock.advance(3_600 * NS_PER_S)
    before = feed.recorder.live
    assert before.trouble is None
    filler = fill(disk, free_ratio=0.15)
    for _ in range(4):
        feed.seconds(61)
        feed.clock.advance(3_600 * NS_PER_S)
        assert feed.recorder.live.bytes <= before.bytes + 20_000
        assert "nearly full" in trouble(feed)
    after = feed.recorder.live
    assert after.lost_samples == 0
    assert before.oldest_unix_ns is not None
    assert after.oldest_unix_ns is not None
    assert after.oldest_unix_ns > before.oldest_unix_ns
    filler.unlink()
    feed.seconds(62)
    assert feed.recorder.live.trouble is None
    assert feed.recorder.live.bytes > after.bytes
    feed.recorder.close()


@pytest.mark.usefixtures("impatient")
def test_below_the_floor_with_nothing_to_delete_nothing_is_kept(disk: Path) -> None:
    filler = fill(disk, free_ratio=0.1)
    folder = disk / "recorder"
    feed = recorder_on(folder, replace(ROOMY, min_free_ratio=0.2))
    feed.seconds(20, hz=1_000)
    assert trouble(feed) == "the disk is nearly full: samples are not stored"
    assert feed.recorder.live.lost_samples == 20 * 2_000 - 30_000
    assert rows_read(folder) == 0
    filler.unlink()
    feed.seconds(10, hz=100)
    assert feed.recorder.live.trouble is None
    assert rows_read(folder) == rows_given(feed) - feed.recorder.live.lost_samples
    feed.recorder.close()

"""Damaged files of the flight recorder: what is whole is read, what is not is said."""

import os
from pathlib import Path

import pytest

from chopperd.store.disk import DiskLimits
from chopperd.store.recorder.reader import RecordedSamples
from chopperd.store.recorder.writer import FlightRecorder
from chopperd.units import NS_PER_S
from tests.fakes.clock import ScriptedClock
from tests.fakes.recorded import Feed, origin, second_of_records

ROOMY = DiskLimits(max_bytes=2**26, max_days=7, min_free_ratio=0)
START_UNIX_NS = 1_800_000_000 * NS_PER_S
ALL_TIME = (0, 2**62)
CHUNKS = 3


def seconds_read(folder: Path) -> tuple[list[int], list[str]]:
    """Which of the seconds are there, and the codes of the notes."""
    samples = RecordedSamples(folder).between(*ALL_TIME)
    if samples is None:
        return [], []
    seconds = (samples.gpus[0].t_unix_ns - START_UNIX_NS) // NS_PER_S
    assert seconds.tolist() == sorted(set(seconds.tolist()))
    return seconds.tolist(), [note.code for note in samples.notes]


def small_recorder(folder: Path, monkeypatch: pytest.MonkeyPatch, *, journal: bool) -> Path:
    """A file of three frames, each of one sample in one second, alone in a folder."""
    if not journal:
        monkeypatch.setattr("chopperd.store.recorder.writer._CHUNK_NS", 0)
    clock = ScriptedClock(mono_ns=NS_PER_S, unix_ns=START_UNIX_NS)
    recorder = FlightRecorder(folder, ROOMY, clock)
    for _ in range(CHUNKS):
        row = {0: second_of_records(clock.mono_ns())[0][:1]}
        recorder.append(origin(gpu_count=1), row, [clock.triple()])
        clock.advance(NS_PER_S)
    recorder.close()
    written, other = folder / "samples-00000001.rec", folder / "journal.rec"
    if journal:
        written, other = other, written
    other.unlink(missing_ok=True)
    return written


@pytest.mark.parametrize("journal", [False, True])
def test_a_flip_at_any_byte_costs_its_own_frame_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, journal: bool
) -> None:
    path = small_recorder(tmp_path, monkeypatch, journal=journal)
    whole = path.read_bytes()
    starts = [at for at in range(len(whole)) if whole.startswith(b"\x93chopper", at)]
    assert len(starts) == CHUNKS
    assert seconds_read(tmp_path) == ([0, 1, 2], [])
    # Frames are alike: all bytes of the middle one, which has others on both sides.
    places = {*range(0, len(whole), 7), *(() if journal else range(starts[1], starts[2]))}
    with path.open("r+b", buffering=0) as file:
        for place in sorted(places):
            byte = whole[place]
            os.pwrite(file.fileno(), bytes([byte ^ (1 << place % 8)]), place)
            hit = sum(start <= place for start in starts) - 1
            seconds, notes = seconds_read(tmp_path)
            assert seconds == [nth for nth in range(CHUNKS) if nth != hit], place
            assert notes == ["samples_damaged"], place
            os.pwrite(file.fileno(), bytes([byte]), place)


def test_a_hole_in_the_middle_hides_nothing_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = small_recorder(tmp_path, monkeypatch, journal=False)
    whole = path.read_bytes()
    second = whole.index(b"\x93chopper", 1)
    third = whole.index(b"\x93chopper", second + 1)
    for middle in (b"", bytes(5_000), whole[second : second + 100], b"\x93chopper" * 50):
        path.write_bytes(whole[:second] + middle + whole[third:])
        seconds, notes = seconds_read(tmp_path)
        assert seconds == [0, 2]
        assert notes == (["samples_damaged"] if middle else [])


def test_every_cut_leaves_the_frames_before_it_and_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = small_recorder(tmp_path, monkeypatch, journal=False)
    whole = path.read_bytes()
    second = whole.index(b"\x93chopper", 1)
    third = whole.index(b"\x93chopper", second + 1)
    for size in range(0, len(whole), 7):
        path.write_bytes(whole[:size])
        assert seconds_read(tmp_path) == (list(range((size >= second) + (size >= third))), [])


def test_the_writer_counts_damage_that_it_finds_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = small_recorder(tmp_path, monkeypatch, journal=True)
    whole = bytearray(path.read_bytes())
    whole[len(whole) // 2] ^= 1
    path.write_bytes(whole)
    clock = ScriptedClock(mono_ns=100 * NS_PER_S, unix_ns=START_UNIX_NS + 99 * NS_PER_S)
    feed = Feed(FlightRecorder(tmp_path, ROOMY, clock), clock, origin(gpu_count=1))
    feed.seconds(1, hz=1)
    assert feed.recorder.live.damaged_chunks == 1
    assert feed.recorder.live.trouble is None
    assert seconds_read(tmp_path) == ([0, 2, 99], ["samples_damaged"])
    feed.seconds(70, hz=1)
    feed.recorder.close()
    assert seconds_read(tmp_path)[0] == [0, 2, *range(99, 170)]


def test_files_that_are_none_of_ours_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_recorder(tmp_path, monkeypatch, journal=False)
    (tmp_path / "samples-00000002.rec").write_bytes(b"no such thing" * 100)
    (tmp_path / "samples-00000003.rec").write_bytes(b"")
    (tmp_path / "samples-00000004.rec").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    seconds, notes = seconds_read(tmp_path)
    assert seconds == [0, 1, 2]
    assert notes == ["samples_damaged", "samples_unreadable"]


def test_frames_of_a_later_version_are_passed_over_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as later:
        later.setattr("chopperd.store.recorder.files._VERSION", 2)
        small_recorder(tmp_path, later, journal=False)
    clock = ScriptedClock(mono_ns=100 * NS_PER_S, unix_ns=START_UNIX_NS + 99 * NS_PER_S)
    feed = Feed(FlightRecorder(tmp_path, ROOMY, clock), clock, origin(gpu_count=1))
    feed.seconds(1, hz=1)
    feed.recorder.close()
    assert seconds_read(tmp_path) == ([99], ["samples_damaged"])

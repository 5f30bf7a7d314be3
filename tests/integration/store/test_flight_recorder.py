"""The flight recorder over real files: what is read back, what is deleted, what is said."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from chopperd.model.samples import SampleSet
from chopperd.store.disk import DiskLimits
from chopperd.store.recorder.reader import RecordedSamples
from chopperd.store.recorder.writer import FlightRecorder
from chopperd.units import NS_PER_S, TimeTriple
from tests.fakes.clock import ScriptedClock
from tests.fakes.recorded import Feed, clock_mhz_at, origin, second_of_records

MIB = 2**20
ROOMY = DiskLimits(max_bytes=64 * MIB, max_days=7, min_free_ratio=0)
ALL_TIME = (0, 2**62)
START_UNIX_NS = 1_800_000_000 * NS_PER_S


@pytest.fixture
def clock() -> ScriptedClock:
    return ScriptedClock(mono_ns=NS_PER_S, unix_ns=START_UNIX_NS)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state" / "recorder"


@pytest.fixture
def feed(folder: Path, clock: ScriptedClock) -> Iterator[Feed]:
    feed = Feed(FlightRecorder(folder, ROOMY, clock), clock)
    yield feed
    feed.recorder.close()


def successor(feed: Feed, limits: DiskLimits = ROOMY) -> Feed:
    """The recorder of the next process, over the same folder and clock."""
    feed.recorder.close()
    feed.recorder = FlightRecorder(feed.recorder.folder, limits, feed.clock)
    return feed


def everything(folder: Path) -> SampleSet:
    samples = RecordedSamples(folder).between(*ALL_TIME)
    assert samples is not None
    return samples


def mono_ns(samples: SampleSet, slot: int = 0) -> list[int]:
    """Times of a GPU while the wall clock has not been set."""
    times: list[int] = (samples.gpus[slot].t_unix_ns - START_UNIX_NS + NS_PER_S).tolist()
    return times


def test_what_was_appended_is_read_back(feed: Feed, folder: Path) -> None:
    feed.seconds(150)
    samples = everything(folder)
    assert mono_ns(samples) == feed.given_mono_ns
    assert (samples.asked_hz, samples.backend, samples.driver) == (10.0, "scripted", "1.2")
    assert (samples.node, samples.simulated, samples.notes) == ("node-1", False, ())
    assert samples.source == str(folder)
    assert [gpu.gpu for gpu in samples.gpus] == list(feed.source.gpus)
    for slot, gpu in enumerate(samples.gpus):
        t_ns = np.array(mono_ns(samples, slot))
        np.testing.assert_array_equal(gpu.sm_clock_mhz, clock_mhz_at(t_ns))
        assert int(np.isfinite(gpu.energy_j).sum()) == 150
    assert [triple.mono_ns for triple in samples.triples] == [
        NS_PER_S * second for second in range(1, 151)
    ]


def test_a_time_is_read_from_its_beginning_to_before_its_end(feed: Feed, folder: Path) -> None:
    feed.seconds(200)
    read = RecordedSamples(folder)
    begin_ns = START_UNIX_NS + 70 * NS_PER_S
    samples = read.between(begin_ns, begin_ns + NS_PER_S)
    assert samples is not None
    assert (samples.gpus[0].t_unix_ns - begin_ns).tolist() == [n * 10**8 for n in range(10)]
    assert read.between(begin_ns + 1_001, begin_ns + 10**8) is None
    assert read.between(START_UNIX_NS - 2 * NS_PER_S, START_UNIX_NS) is None
    assert read.between(START_UNIX_NS + 200 * NS_PER_S, ALL_TIME[1]) is None


def test_gpus_are_chosen_by_label(feed: Feed, folder: Path) -> None:
    feed.seconds(2)
    samples = RecordedSamples(folder).between(*ALL_TIME, gpus=["1", "7"])
    assert samples is not None
    assert [gpu.gpu.uuid for gpu in samples.gpus] == ["GPU-1"]
    assert RecordedSamples(folder).between(*ALL_TIME, gpus=["7"]) is None


def test_no_folder_holds_no_samples(tmp_path: Path) -> None:
    assert RecordedSamples(tmp_path / "none").between(*ALL_TIME) is None
    assert RecordedSamples(tmp_path).between(*ALL_TIME) is None


def test_a_successor_goes_on_in_the_same_file(feed: Feed, folder: Path) -> None:
    feed.seconds(70)
    successor(feed).seconds(70)
    assert mono_ns(everything(folder)) == feed.given_mono_ns
    assert len(list(folder.glob("samples-*"))) == 1
    assert feed.recorder.live.damaged_chunks == 0


def test_samples_in_both_journal_and_chunk_count_once(feed: Feed, folder: Path) -> None:
    feed.seconds(59)
    journal = (folder / "journal.rec").read_bytes()
    feed.seconds(2)
    # As a kill leaves it that comes before the journal is begun anew.
    (folder / "journal.rec").write_bytes(journal)
    assert mono_ns(everything(folder)) == feed.given_mono_ns
    successor(feed).seconds(61)
    assert mono_ns(everything(folder)) == feed.given_mono_ns


def test_an_unfinished_end_is_no_damage_and_is_cut_off(feed: Feed, folder: Path) -> None:
    feed.seconds(61)
    feed.recorder.close()
    for path in (folder / "journal.rec", folder / "samples-00000001.rec"):
        whole = path.read_bytes()
        for more in (1, 20, 60):
            path.write_bytes(whole + whole[:more])
            samples = everything(folder)
            assert mono_ns(samples) == feed.given_mono_ns
            assert samples.notes == ()
    successor(feed).seconds(61)
    assert mono_ns(everything(folder)) == feed.given_mono_ns
    assert feed.recorder.live.damaged_chunks == 0


def test_an_hour_fills_a_file(feed: Feed, folder: Path) -> None:
    for _ in range(4):
        feed.seconds(62)
        feed.clock.advance(1_500 * NS_PER_S)
    sizes = [path.stat().st_size for path in sorted(folder.glob("samples-*"))]
    assert len(sizes) == 2
    live = feed.recorder.live
    assert live.bytes == sum(sizes) + (folder / "journal.rec").stat().st_size
    assert live.oldest_unix_ns == START_UNIX_NS
    assert live.lost_samples == 0
    assert mono_ns(everything(folder)) == feed.given_mono_ns


def test_the_oldest_files_go_when_there_are_too_many_bytes(
    folder: Path, clock: ScriptedClock
) -> None:
    limits = replace(ROOMY, max_bytes=MIB // 8)
    feed = Feed(FlightRecorder(folder, limits, clock), clock)
    sizes = []
    for _ in range(40):
        feed.seconds(6, hz=200)
        live = feed.recorder.live
        sizes.append(live.bytes)
        assert live.trouble is None
        assert sum(path.stat().st_size for path in folder.iterdir()) <= limits.max_bytes
    assert max(sizes) <= limits.max_bytes
    assert sizes[-1] > 0.5 * limits.max_bytes
    kept = mono_ns(everything(folder))
    assert kept == feed.given_mono_ns[-len(kept) :]
    assert len(kept) < len(feed.given_mono_ns)
    assert feed.recorder.live.oldest_unix_ns == START_UNIX_NS - NS_PER_S + kept[0]
    assert feed.recorder.live.lost_samples == 0
    feed.recorder.close()


def test_files_that_ended_too_long_ago_go(folder: Path, clock: ScriptedClock) -> None:
    limits = replace(ROOMY, max_days=1)
    feed = Feed(FlightRecorder(folder, limits, clock), clock)
    feed.seconds(61)
    clock.advance(2 * 3600 * NS_PER_S)
    feed.seconds(122)
    before = everything(folder).gpus[0]
    assert before.t_unix_ns[0] == START_UNIX_NS
    clock.advance(23 * 3600 * NS_PER_S)
    feed.recorder.tend()
    kept = everything(folder).gpus[0]
    assert kept.t_unix_ns[0] == START_UNIX_NS + (2 * 3600 + 61) * NS_PER_S
    assert len(kept) == 1_220
    feed.recorder.close()


def test_anyone_may_read_what_is_kept(folder: Path, clock: ScriptedClock) -> None:
    before = os.umask(0o077)
    try:
        feed = Feed(FlightRecorder(folder, ROOMY, clock), clock)
        feed.seconds(125)
        feed.recorder.close()
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.glob("*.rec")}
    assert modes == {"samples-00000001.rec": 0o644, "journal.rec": 0o644}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755


def test_a_second_writer_is_refused_and_takes_over_when_the_first_ends(
    feed: Feed, folder: Path
) -> None:
    feed.seconds(1)
    other = Feed(FlightRecorder(folder, ROOMY, feed.clock), feed.clock)
    other.seconds(1)
    trouble = other.recorder.live.trouble
    assert trouble is not None
    assert "another process" in trouble
    feed.recorder.close()
    other.seconds(1)
    assert other.recorder.live.trouble is None
    assert other.recorder.live.lost_samples == 0
    assert mono_ns(everything(folder)) == feed.given_mono_ns + other.given_mono_ns
    other.recorder.close()


def test_a_step_of_the_wall_clock_is_told_by_the_triples(feed: Feed, folder: Path) -> None:
    feed.seconds(30)
    # Set forward by 100 s between two triples.
    ahead = ScriptedClock(
        mono_ns=feed.clock.mono_ns(), unix_ns=feed.clock.unix_ns() + 100 * NS_PER_S
    )
    feed.clock = ahead
    feed.seconds(31)
    samples = everything(folder)
    t_s = (samples.gpus[0].t_unix_ns - START_UNIX_NS) / NS_PER_S
    # Up to the last triple before the step as before it, from the first after it on as after it.
    assert t_s[: 29 * 10 + 1].tolist() == [pytest.approx(n / 10) for n in range(291)]
    assert t_s[300:].tolist() == [pytest.approx(130 + n / 10) for n in range(310)]
    later = RecordedSamples(folder).between(
        START_UNIX_NS + 140 * NS_PER_S, START_UNIX_NS + 141 * NS_PER_S
    )
    assert later is not None
    assert len(later.gpus[0]) == 10


def test_after_a_wall_clock_set_back_times_still_rise(feed: Feed, folder: Path) -> None:
    feed.seconds(30)
    back = ScriptedClock(mono_ns=feed.clock.mono_ns(), unix_ns=feed.clock.unix_ns() - 10 * NS_PER_S)
    feed.clock = back
    feed.seconds(61)
    t_ns = everything(folder).gpus[0].t_unix_ns
    assert (np.diff(t_ns) > 0).all()
    assert t_ns[-1] == back.unix_ns() - 10**8


def test_two_boots_are_not_mixed_up(feed: Feed, folder: Path) -> None:
    feed.seconds(65)
    # The machine starts anew: MONOTONIC begins again, the wall clock goes on.
    begin_unix_ns = feed.clock.unix_ns() + 40 * NS_PER_S
    clock = ScriptedClock(mono_ns=2 * NS_PER_S, unix_ns=begin_unix_ns)
    second = Feed(successor(feed).recorder, clock, origin(boot_id="boot-2"))
    second.seconds(130)
    samples = everything(folder)
    expected = [START_UNIX_NS - NS_PER_S + t for t in feed.given_mono_ns]
    expected += [begin_unix_ns - 2 * NS_PER_S + t for t in second.given_mono_ns]
    assert samples.gpus[0].t_unix_ns.tolist() == expected
    clocks = clock_mhz_at(np.array(feed.given_mono_ns + second.given_mono_ns))
    np.testing.assert_array_equal(samples.gpus[0].sm_clock_mhz, clocks)
    assert [note.code for note in samples.notes] == ["several_boots"]
    # Triples of two boots can't stand side by side; those of the longer one are given.
    assert [triple.mono_ns for triple in samples.triples] == [
        NS_PER_S * second for second in range(2, 132)
    ]
    inside = RecordedSamples(folder).between(begin_unix_ns, ALL_TIME[1])
    assert inside is not None
    assert inside.notes == ()


def test_a_gpu_is_known_by_its_uuid_and_called_as_it_is_now(feed: Feed, folder: Path) -> None:
    feed.seconds(61)
    first, other = feed.source.gpus
    moved = replace(feed.source, gpus=(replace(other, gpu="0"), replace(first, gpu="1")))
    swapped = Feed(feed.recorder, feed.clock, moved)
    swapped.seconds(61)
    whole = everything(folder)
    assert [(gpu.gpu.gpu, gpu.gpu.uuid, len(gpu)) for gpu in whole.gpus] == [
        ("0", "GPU-1", 1_220),
        ("1", "GPU-0", 1_220),
    ]
    early = RecordedSamples(folder).between(START_UNIX_NS, START_UNIX_NS + NS_PER_S, ["1"])
    assert early is not None
    assert [gpu.gpu.uuid for gpu in early.gpus] == ["GPU-0"]


def test_a_gpu_that_was_replaced_is_called_by_its_uuid(feed: Feed, folder: Path) -> None:
    feed.seconds(61)
    first, other = feed.source.gpus
    fresh = replace(feed.source, gpus=(replace(first, uuid="GPU-new"), other))
    Feed(feed.recorder, feed.clock, fresh).seconds(61)
    labels = [(gpu.gpu.gpu, gpu.gpu.uuid) for gpu in everything(folder).gpus]
    assert labels == [("0", "GPU-new"), ("1", "GPU-1"), ("GPU-0", "GPU-0")]


def test_samples_that_are_missing_are_counted_and_said(feed: Feed, folder: Path) -> None:
    records = second_of_records(feed.clock.mono_ns())
    feed.recorder.append(feed.source, records, [feed.clock.triple()], lost_count=7)
    feed.recorder.append(feed.source, {}, [], lost_count=2)
    feed.clock.advance(NS_PER_S)
    # The same once more: a sample is kept once, and the second is no sample.
    feed.seconds(1)
    assert feed.recorder.live.lost_samples == 9
    samples = everything(folder)
    assert [note.code for note in samples.notes] == ["samples_lost"]
    assert samples.notes[0].text.startswith("9 samples")


def test_without_any_triple_the_recorders_own_clock_ties_the_times(
    feed: Feed, folder: Path
) -> None:
    feed.recorder.append(feed.source, second_of_records(feed.clock.mono_ns()), [])
    assert everything(folder).gpus[0].t_unix_ns[0] == START_UNIX_NS


def test_a_folder_that_is_deleted_is_made_anew(feed: Feed, folder: Path) -> None:
    feed.seconds(65)
    for path in folder.iterdir():
        path.unlink()
    feed.seconds(61)
    folder_again = everything(folder)
    # The chunk of the first 61 s is gone; what was in memory still comes.
    assert mono_ns(folder_again) == feed.given_mono_ns[610:]
    assert feed.recorder.live.trouble is None


def test_what_no_triple_of_the_clock_says_is_left_as_it_was(feed: Feed, folder: Path) -> None:
    triple = TimeTriple(unix_ns=START_UNIX_NS, mono_ns=NS_PER_S, boot_ns=5)
    feed.recorder.append(feed.source, second_of_records(NS_PER_S), [triple])
    assert everything(folder).triples == (triple,)

"""The archive thread over a real ring and real files."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from chopperd.agent.storage import ArchiveThread, boot_id
from chopperd.clock import SystemClock
from chopperd.model.devices import DeviceReading, ReadScope, SensorTiming
from chopperd.model.kinds import Cause
from chopperd.model.samples import SampleSet
from chopperd.sampling.memory.layout import RingDescription
from chopperd.sampling.memory.ring import RingWriter, grown
from chopperd.sampling.memory.ring_reader import RingReader
from chopperd.store.disk import DiskLimits
from chopperd.store.recorder.reader import RecordedSamples
from chopperd.store.recorder.writer import FlightRecorder
from chopperd.units import NS_PER_MS, NS_PER_S
from tests.fakes.samples import gpu_info
from tests.waiting import wait_for

CLOCK = SystemClock()
ROOMY = DiskLimits(max_bytes=2**26, max_days=7, min_free_ratio=0)
CAPACITY = 100


class Ring:
    """A ring of two GPUs that a test writes to."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("ring")
        description = RingDescription(
            gpus=(gpu_info(0), gpu_info(1)), backend="scripted", driver="1", simulated=True
        )
        self.writer = RingWriter(self.fd, description, CAPACITY)
        self.writer.write_triple(CLOCK.triple())
        self.reader = RingReader(self.fd)
        self.gpus = [self.writer.gpu(slot) for slot in range(2)]
        self.written_count = 0

    def write(self, count: int) -> None:
        """Add samples to both GPUs; the clock is their number."""
        for _ in range(count):
            t_ns = CLOCK.mono_ns()
            for gpu in self.gpus:
                reading = DeviceReading(
                    sm_clock_mhz=float(self.written_count), causes=frozenset({Cause.THERMAL})
                )
                gpu.write(reading, t_mono_ns=t_ns, span_ns=20_000, late_ns=0, scope=ReadScope.FAST)
            self.written_count += 1
            # At most 1000 samples a second are taken.
            CLOCK.sleep_until(t_ns + NS_PER_MS)

    def close(self) -> None:
        self.reader.close()
        self.writer.close()
        os.close(self.fd)


@pytest.fixture
def ring() -> Iterator[Ring]:
    ring = Ring()
    yield ring
    ring.close()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chopperd.agent.storage._ARCHIVE_EVERY_S", 0.01)


def archive(
    folder: Path,
    reader: Callable[[], RingReader | None],
    note_fault: Callable[[], None] = lambda: None,
) -> ArchiveThread:
    recorder = FlightRecorder(folder, ROOMY, CLOCK)
    thread = ArchiveThread(
        recorder,
        reader,
        node="n1",
        asked_hz=10.0,
        clock=CLOCK,
        damaged_count=lambda: 3,
        note_fault=note_fault,
    )
    thread.start()
    return thread


def everything(folder: Path) -> SampleSet:
    samples = RecordedSamples(folder).between(0, 2**62)
    assert samples is not None
    return samples


def test_what_is_in_the_ring_at_the_end_is_kept_as_it_was_sampled(
    tmp_path: Path, ring: Ring
) -> None:
    thread = archive(tmp_path, lambda: ring.reader)
    ring.write(50)
    begin_ns = CLOCK.mono_ns()
    assert thread.stop()
    assert CLOCK.mono_ns() - begin_ns < 5 * NS_PER_S
    samples = everything(tmp_path)
    assert (samples.backend, samples.driver, samples.simulated) == ("scripted", "1", True)
    assert (samples.node, samples.asked_hz, samples.notes) == ("n1", 10.0, ())
    direct = ring.reader.drain(0).records
    offset_ns = ring.reader.triples()[0][0].unix_ns - ring.reader.triples()[0][0].mono_ns
    for gpu in samples.gpus:
        assert gpu.sm_clock_mhz.tolist() == [float(n) for n in range(50)]
        assert set(gpu.causes.tolist()) == {Cause.THERMAL.bit}
        error_ns = gpu.t_unix_ns - (direct["t_mono_ns"] + offset_ns)
        assert int(np.abs(error_ns).max()) <= 500


@pytest.mark.usefixtures("quick")
def test_what_is_found_of_a_sensor_later_holds_for_samples_before(
    tmp_path: Path, ring: Ring
) -> None:
    """Samples are kept in two origins then, without and with the period; the newest one counts."""
    thread = archive(tmp_path, lambda: ring.reader)
    ring.write(20)
    wait_for(lambda: RecordedSamples(tmp_path).between(0, 2**62), "the first samples are kept")
    ring.writer.slow_state(1).write_timing(
        {"sm_clock_mhz": SensorTiming(period_ns=100 * NS_PER_MS)}
    )
    ring.write(20)
    assert thread.stop()
    first, second = everything(tmp_path).gpus
    assert (len(first), len(second)) == (40, 40)
    assert first.gpu.sm_clock_period_ns is None
    assert second.gpu.sm_clock_period_ns == 100 * NS_PER_MS


@pytest.mark.usefixtures("quick")
def test_a_power_limit_is_that_of_the_samples_unless_it_changed_meanwhile(
    tmp_path: Path, ring: Ring
) -> None:
    """By the information at start neither limit is known; the full reads tell them."""
    ring.writer.slow_state(0).write_state(DeviceReading(power_limit_w=700.0), CLOCK.mono_ns())
    ring.writer.slow_state(1).write_state(DeviceReading(power_limit_w=700.0), CLOCK.mono_ns())
    thread = archive(tmp_path, lambda: ring.reader)
    ring.write(20)
    wait_for(lambda: RecordedSamples(tmp_path).between(0, 2**62), "the first samples are kept")
    assert [gpu.gpu.power_limit_w for gpu in everything(tmp_path).gpus] == [700.0, 700.0]
    ring.writer.slow_state(1).write_state(DeviceReading(power_limit_w=500.0), CLOCK.mono_ns())
    ring.write(20)
    assert thread.stop()
    assert [gpu.gpu.power_limit_w for gpu in everything(tmp_path).gpus] == [700.0, None]


@pytest.mark.usefixtures("quick")
def test_samples_are_kept_while_they_are_taken(tmp_path: Path, ring: Ring) -> None:
    thread = archive(tmp_path, lambda: ring.reader)
    ring.write(30)
    wait_for(lambda: thread.live().bytes > 0 and len(everything(tmp_path).gpus[0]) == 30)
    live = thread.live()
    assert (live.trouble, live.lost_samples, live.damaged_chunks) == (None, 0, 3)
    assert thread.stop()


def test_samples_overwritten_before_they_were_read_are_counted(tmp_path: Path, ring: Ring) -> None:
    thread = archive(tmp_path, lambda: ring.reader)
    ring.write(CAPACITY + 40)
    assert thread.stop()
    assert thread.live().lost_samples == 80
    samples = everything(tmp_path)
    assert [len(gpu) for gpu in samples.gpus] == [CAPACITY, CAPACITY]
    assert [note.code for note in samples.notes] == ["samples_lost"]


@pytest.mark.usefixtures("quick")
def test_a_ring_may_come_later_and_be_replaced(tmp_path: Path, ring: Ring) -> None:
    rings: list[RingReader | None] = [None]
    thread = archive(tmp_path, lambda: rings[0])
    wait_for(lambda: thread.live().trouble is None and (tmp_path / "journal.rec").exists())
    ring.write(20)
    rings[0] = ring.reader
    wait_for(lambda: list(tmp_path.glob("*.rec")) and thread.live().oldest_unix_ns)
    other = Ring()
    try:
        other.write(30)
        rings[0] = other.reader
        wait_for(lambda: len(everything(tmp_path).gpus[0]) == 50)
        # Back at the first ring, what was read of it is not read again.
        ring.write(10)
        rings[0] = ring.reader
        wait_for(lambda: len(everything(tmp_path).gpus[0]) == 60)
        assert thread.stop()
        assert thread.live().lost_samples == 0
    finally:
        other.close()


@pytest.mark.usefixtures("quick")
def test_a_ring_that_moved_into_a_larger_file_is_not_read_twice(tmp_path: Path, ring: Ring) -> None:
    rings = [ring.reader]
    thread = archive(tmp_path, lambda: rings[0])
    ring.write(20)
    wait_for(lambda: len(everything(tmp_path).gpus[0]) == 20)
    ring.write(10)
    larger_fd = grown(ring.fd)
    rings[0] = RingReader(larger_fd)
    wait_for(lambda: len(everything(tmp_path).gpus[0]) == 30)
    assert thread.stop()
    assert len(everything(tmp_path).gpus[0]) == 30
    rings[0].close()
    os.close(larger_fd)


@pytest.mark.usefixtures("quick")
def test_a_defect_is_said_and_outlived(
    tmp_path: Path, ring: Ring, caplog: pytest.LogCaptureFixture
) -> None:
    failing = [True]

    def reader() -> RingReader:
        if failing[0]:
            raise LookupError("a defect")
        return ring.reader

    faults: list[int] = []
    thread = archive(tmp_path, reader, note_fault=lambda: faults.append(1))
    wait_for(lambda: thread.live().trouble == "LookupError('a defect')")
    failing[0] = False
    assert faults
    ring.write(5)
    wait_for(lambda: thread.live().trouble is None)
    assert thread.stop()
    assert len(everything(tmp_path).gpus[0]) == 5
    assert len([line for line in caplog.records if line.exc_info]) == 1


def test_a_disk_that_hangs_is_said_and_left_alone(
    tmp_path: Path, ring: Ring, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chopperd.agent.storage._ARCHIVE_EVERY_S", 0.01)
    monkeypatch.setattr("chopperd.agent.storage._SLOW_NS", 50 * NS_PER_MS)
    # A named pipe that nobody reads: opening it for writing waits, as a dead disk does.
    hung = [False]

    def reader() -> RingReader:
        hung[0] = True
        (tmp_path / "pipe").write_bytes(b"x")
        return ring.reader

    os.mkfifo(tmp_path / "pipe")
    thread = archive(tmp_path / "recorder", reader)
    wait_for(lambda: hung[0])
    wait_for(lambda: thread.live().trouble == "the disk has not answered for 0 s")
    assert not thread.stop(timeout_s=0.05)
    answering = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    assert thread.stop(timeout_s=10.0)
    os.close(answering)
    assert thread.live().trouble is None


def test_the_boot_is_the_systems() -> None:
    assert boot_id() == Path("/proc/sys/kernel/random/boot_id").read_text().strip()

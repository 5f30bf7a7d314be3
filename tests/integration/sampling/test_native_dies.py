"""Dies, files, locks and stamps in ticks by the C library, against Python and a brute force."""

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from chopperd.model.devices import DeviceReading, ReadScope
from chopperd.model.kinds import Cause
from chopperd.sampling.memory.layout import NO_DIE, GpuState, RingDescription
from chopperd.sampling.memory.ring import RingWriter
from chopperd.sampling.memory.ring_reader import RingReader
from chopperd.sampling.native.library import NativeLibrary
from chopperd.units import NS_PER_S
from tests.fakes.file_gpu import GPU, FileGpu
from tests.integration.sampling.one_gpu import CLOCK, assert_governed, goes_by_plan, one_gpu
from tests.integration.sampling.test_native_ticks import kinds
from tests.waiting import wait_for

MS = 1_000_000
STILL_NS = 200 * MS
LIBRARY = ctypes.CDLL(None)


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[FileGpu]:
    opened = FileGpu(tmp_path / "block")
    yield opened
    opened.close()


def is_free(backend: FileGpu) -> bool:
    """Whether nobody holds the lock."""
    address = ctypes.c_void_p(backend.lock.address)
    if LIBRARY.pthread_mutex_trylock(address):
        return False
    LIBRARY.pthread_mutex_unlock(address)
    return True


def test_clocks_of_dies_are_kept_in_whole_mhz_and_no_more_than_there_is_room_for() -> None:
    fd = os.memfd_create("ring")
    ring = RingWriter(fd, RingDescription(gpus=(GPU,)), 8)
    gpu, reader = ring.gpu(0), RingReader(fd)
    readings = [
        DeviceReading(die_clocks_mhz=(1000.4, 1000.6, None, 0.0, 1e9, -3.0)),
        DeviceReading(die_clocks_mhz=tuple(float(die) for die in range(1000, 1012))),
        DeviceReading(sm_clock_mhz=5.0),
    ]
    for number, reading in enumerate(readings):
        gpu.write(reading, t_mono_ns=number, span_ns=1, late_ns=0, scope=ReadScope.FAST)
    records = reader.drain(0).records
    assert records["die_clocks_mhz"].tolist() == [
        [1000, 1001, NO_DIE, 0, NO_DIE - 1, 0, NO_DIE, NO_DIE],
        list(range(1000, 1008)),
        [NO_DIE] * 8,
    ]
    # By hand: of means (1000 + 1000) / 2 and (1001 + 1001) / 2 the first is lower.
    assert records["sm_clock_mhz"].tolist() == [1000.0, 1000.0, 5.0]
    reader.close()
    ring.close()
    os.close(fd)


def test_a_block_gives_the_same_records_word_for_word(
    backend: FileGpu, native: NativeLibrary
) -> None:
    found = []
    for library in (None, native):
        with one_gpu(backend, library) as sampled:
            sampled.samples_on(60)
            found.append(sampled.records)
    python, c = found
    assert kinds(c) == kinds(python)
    assert len(kinds(c)) == 2  # fast and full: both have all of it
    assert backend.read_count == len(python) + 1
    # By hand: 10 ns for each of 2^20 + 5 + 7 counts.
    assert c["limited_ns"][-1][Cause.THERMAL] == 10 * (2**20 + 12)
    assert c["sm_clock_mhz"][-1] == 1900
    assert c["energy_j"][-1] == 1234.567


def test_each_record_has_the_governing_die_of_its_past_whoever_read_it(
    backend: FileGpu, native: NativeLibrary
) -> None:
    """Blocks that are not as planned are read by the back end, in between."""
    random = np.random.default_rng(1)
    with one_gpu(backend, native, own_read_every_ns=100 * MS) as sampled:
        sampled.samples_on(5)
        for turn in range(80):
            ups = random.integers(0, 400, 4)
            ups[random.random(4) < 0.2] = 0
            backend.block.clocks_mhz = tuple(int(up and 1500 + up) for up in ups)
            backend.block.activity_percent = 40 if turn % 20 else 0xFFFF
            backend.write()
            sampled.samples_on(6)
        records = sampled.records
    reads_count = backend.read_count
    assert 1 < reads_count < len(records) / 2
    assert records["t_mono_ns"][-1] - records["t_mono_ns"][0] > 2 * NS_PER_S
    assert_governed(records)


def test_a_block_that_stands_still_is_left_to_the_back_end(
    tmp_path: Path, native: NativeLibrary
) -> None:
    backend = FileGpu(tmp_path / "block", still_ns=STILL_NS)
    with one_gpu(backend, native) as sampled:
        began_ns = CLOCK.mono_ns()
        sampled.waits_for(lambda _status: backend.read_count > 1)
        assert CLOCK.mono_ns() - began_ns >= STILL_NS
        written, reads_count = sampled.status.written, backend.read_count
        sampled.samples_on()
        assert backend.read_count - reads_count >= sampled.status.written - written - 2
    backend.close()


def test_a_block_that_moves_is_read_without_the_back_end(
    tmp_path: Path, native: NativeLibrary
) -> None:
    backend = FileGpu(tmp_path / "block", still_ns=20 * NS_PER_S)
    with one_gpu(backend, native) as sampled:
        for _ in range(10):
            backend.block.stamp += 1
            backend.write()
            sampled.samples_on(10)
    assert backend.read_count == 1
    backend.close()


def test_a_file_that_got_short_is_left_to_the_back_end(
    backend: FileGpu, native: NativeLibrary
) -> None:
    with one_gpu(backend, native, own_read_every_ns=100 * MS) as sampled:
        sampled.samples_on()
        backend.shorten()
        status = sampled.waits_for(lambda status: status.transient_count > 10)
        assert status.state is GpuState.UP
        backend.write()
        sampled.samples_on()
        wait_for(
            lambda: goes_by_plan(sampled, lambda: backend.read_count), "looks without the back end"
        )


def test_no_call_is_made_while_another_holds_the_lock(
    backend: FileGpu, native: NativeLibrary
) -> None:
    with one_gpu(backend, native) as sampled:
        sampled.samples_on()
        with backend.lock:
            sampled.waits_for(
                lambda status: (
                    status.call_started_mono_ns
                    and CLOCK.mono_ns() - status.call_started_mono_ns > 100 * MS
                )
            )
            written = sampled.status.written
            CLOCK.sleep_until(CLOCK.mono_ns() + 50 * MS)
            assert sampled.status.written == written
        sampled.samples_on()
    assert is_free(backend)


def test_a_writer_that_was_superseded_while_it_waited_leaves_the_lock_free(
    backend: FileGpu, native: NativeLibrary
) -> None:
    with one_gpu(backend, native) as sampled:
        sampled.samples_on()
        with backend.lock:
            sampled.waits_for(
                lambda status: (
                    status.call_started_mono_ns
                    and CLOCK.mono_ns() - status.call_started_mono_ns > 50 * MS
                )
            )
            RingWriter(sampled.fd, RingDescription(gpus=backend.devices()), 256).close()
        wait_for(lambda: not sampled.thread.is_alive())
        assert is_free(backend)

"""The sampler's threads inside this process, over scripted GPUs."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from chopperd.clock import SystemClock
from chopperd.sampling.memory.layout import GpuState, RingDescription, SamplerState
from chopperd.sampling.memory.ring import RingWriter
from chopperd.sampling.memory.ring_reader import RingReader
from chopperd.sampling.process import run_sampler
from chopperd.sampling.settings import SamplerSettings
from chopperd.units import NS_PER_MS, TimeTriple
from tests.integration.sampling.scripted_sampler import ScriptedBackend

CLOCK = SystemClock()


@pytest.fixture
def fd() -> Iterator[int]:
    memory = os.memfd_create("ring")
    yield memory
    os.close(memory)


def start(fd: int, backend: ScriptedBackend, stop: threading.Event) -> threading.Thread:
    settings = SamplerSettings(hz=100.0)
    ring = RingWriter(fd, RingDescription(gpus=backend.devices()), settings.capacity)

    def sample() -> None:
        run_sampler(backend, ring, settings, CLOCK, stop)
        ring.close()

    thread = threading.Thread(target=sample, name="chopperd-sampler")
    thread.start()
    return thread


def wait_for_records(reader: RingReader, slot: int, count: int) -> None:
    limit_ns = CLOCK.mono_ns() + 10_000 * NS_PER_MS
    while reader.status(slot).written < count:
        assert CLOCK.mono_ns() < limit_ns
        CLOCK.sleep_until(CLOCK.mono_ns() + NS_PER_MS)


def test_each_gpu_has_a_thread_of_its_own_and_all_end_at_the_stop(fd: int) -> None:
    stop = threading.Event()
    thread = start(fd, ScriptedBackend(3, None), stop)
    reader = RingReader(fd)
    wait_for_records(reader, 2, 3)
    names = {other.name for other in threading.enumerate()}
    assert {"chopperd-gpu-0", "chopperd-gpu-1", "chopperd-gpu-2"} <= names
    assert reader.state is SamplerState.RUNNING
    assert reader.status(1).state is GpuState.UP
    stop.set()
    thread.join(10)
    assert not thread.is_alive()
    triples, _ = reader.triples()
    records = reader.drain(0).records
    assert triples[0].mono_ns < records["t_mono_ns"][0]
    assert triples[-1].mono_ns > records["t_mono_ns"][-1]  # no sample lies outside the triples
    reader.close()


def test_a_sampler_ends_by_itself_when_another_has_taken_over(fd: int) -> None:
    old_stop, new_stop = threading.Event(), threading.Event()
    old = start(fd, ScriptedBackend(1, None), old_stop)
    reader = RingReader(fd)
    wait_for_records(reader, 0, 3)
    new = start(fd, ScriptedBackend(1, None), new_stop)
    old.join(10)
    assert not old.is_alive()
    wait_for_records(reader, 0, reader.status(0).written + 3)
    new_stop.set()
    new.join(10)
    assert reader.generation == 2
    reader.close()


class FailingClock:
    """The machine's, until clocks can't be compared any more."""

    def __init__(self) -> None:
        self._triples = iter([CLOCK.triple()])
        self.mono_ns = CLOCK.mono_ns
        self.unix_ns = CLOCK.unix_ns
        self.sleep_until = CLOCK.sleep_until

    def triple(self) -> TimeTriple:
        for triple in self._triples:
            return triple
        raise OSError("no clock")


def test_a_fault_of_its_own_waits_for_the_driver_calls_in_progress(fd: int, tmp_path: Path) -> None:
    """What comes after it closes the driver, and unmaps the memory that the threads write to."""
    (tmp_path / "hang-0").touch()
    backend = ScriptedBackend(1, tmp_path)
    ring = RingWriter(fd, RingDescription(gpus=backend.devices()), 16)
    ended = threading.Event()

    def sample() -> None:
        with pytest.raises(OSError, match="no clock"):
            run_sampler(backend, ring, SamplerSettings(), FailingClock(), threading.Event())
        ended.set()

    thread = threading.Thread(target=sample)
    thread.start()
    reader = RingReader(fd)
    ended_early = ended.wait(2.5)  # the second triple is due after 1 s
    in_call = reader.status(0).call_started_mono_ns is not None
    (tmp_path / "hang-0").unlink()
    assert in_call
    assert not ended_early
    assert ended.wait(10)
    assert not [one for one in threading.enumerate() if one.name == "chopperd-gpu-0"]
    thread.join()
    reader.close()
    ring.close()

import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from operator import ge

import numpy as np
import pytest
from msgspec.structs import replace

from chopperd.errors import StoreError
from chopperd.model.devices import DeviceReading, GpuInfo, ReadScope, Vendor
from chopperd.model.kinds import Cause
from chopperd.sampling.memory.gpu_writer import GpuWriter
from chopperd.sampling.memory.layout import (
    RECORD,
    TRIPLE_CAPACITY,
    GpuState,
    RingDescription,
    RingLayout,
    SamplerState,
)
from chopperd.sampling.memory.ring import RingWriter
from chopperd.sampling.memory.ring_reader import RingReader
from chopperd.units import TimeTriple

CAPACITY = 8


def gpu(n: int, *, uuid: str | None = None) -> GpuInfo:
    uuid = f"GPU-{n}" if uuid is None else uuid
    return GpuInfo(gpu=str(n), index=n, uuid=uuid, name="Tested", vendor=Vendor.NVIDIA)


def described(*gpus: GpuInfo) -> RingDescription:
    return RingDescription(gpus=gpus, backend="scripted", driver="1", simulated=True)


@pytest.fixture
def fd() -> Iterator[int]:
    memory = os.memfd_create("ring")
    yield memory
    os.close(memory)


@pytest.fixture
def writer(fd: int) -> Iterator[RingWriter]:
    ring = RingWriter(fd, described(gpu(0), gpu(1)), CAPACITY)
    yield ring
    ring.close()


@pytest.fixture
def reader(fd: int, writer: RingWriter) -> Iterator[RingReader]:
    assert writer.is_current()
    ring = RingReader(fd)
    yield ring
    ring.close()


def write(to: GpuWriter, *numbers: int) -> None:
    for number in numbers:
        reading = DeviceReading(sm_clock_mhz=1000.0 + number)
        to.write(reading, t_mono_ns=number, span_ns=1, late_ns=0, scope=ReadScope.FAST)


def test_a_reading_comes_out_as_it_went_in(writer: RingWriter, reader: RingReader) -> None:
    reading = DeviceReading(
        sm_clock_mhz=1980.0,
        mem_clock_mhz=2619.0,
        power_w=699.5,
        energy_j=1e9 + 0.25,
        temperature_c=61.0,
        memory_used_bytes=80 << 30,
        activity_ratio=0.97,
        causes=frozenset({Cause.POWER_CAP, Cause.HW_THERMAL}),
        limited_ns={Cause.POWER_CAP: 5, Cause.SYNC_BOOST: 2**53},
    )
    writer.gpu(1).write(reading, t_mono_ns=7, span_ns=3, late_ns=2, scope=ReadScope.FULL)
    (record,) = reader.drain(1).records
    assert (record["t_mono_ns"], record["span_ns"], record["late_ns"], record["scope"]) == (
        7,
        3,
        2,
        1,
    )
    assert record["causes"] == Cause.POWER_CAP.bit | Cause.HW_THERMAL.bit
    values = [record[name] for name in ("sm_clock_mhz", "mem_clock_mhz", "power_w", "energy_j")]
    assert values == [1980.0, 2619.0, 699.5, 1e9 + 0.25]
    assert record["memory_used_bytes"] == 80 * 2**30
    limited = record["limited_ns"]
    assert (limited[Cause.POWER_CAP], limited[Cause.SYNC_BOOST]) == (5, 2**53)
    assert np.isnan(limited).sum() == len(Cause) - 2
    assert len(reader.drain(0).records) == 0


def test_what_was_not_reported_is_nan_and_unreadable_causes_are_unknown(
    writer: RingWriter, reader: RingReader
) -> None:
    for number, causes in enumerate((None, frozenset[Cause]())):
        reading = DeviceReading(causes=causes)
        writer.gpu(0).write(reading, t_mono_ns=number, span_ns=0, late_ns=0, scope=ReadScope.FAST)
    unknown, none_set = reader.drain(0).records
    for name in RECORD.names or ():
        if RECORD[name].base == np.float64:
            assert np.isnan(unknown[name]).all()
    assert (unknown["causes"], none_set["causes"]) == (Cause.UNKNOWN.bit, 0)


def test_a_reader_gets_each_record_once_and_in_order(
    writer: RingWriter, reader: RingReader
) -> None:
    to = writer.gpu(0)
    write(to, 1, 2, 3)
    first = reader.drain(0)
    write(to, 4)
    second = reader.drain(0, first.position)
    assert first.records["t_mono_ns"].tolist() == [1, 2, 3]
    assert second.records["t_mono_ns"].tolist() == [4]
    assert len(reader.drain(0, second.position).records) == 0


def test_a_late_reader_is_told_how_many_records_were_overwritten(
    writer: RingWriter, reader: RingReader
) -> None:
    to = writer.gpu(0)
    write(to, *range(3))
    position = reader.drain(0).position
    write(to, *range(3, 3 + CAPACITY + 5))
    drained = reader.drain(0, position)
    assert drained.records["t_mono_ns"].tolist() == list(range(8, 16))
    assert drained.overwritten_count == 5
    assert drained.position == 16


def test_a_record_that_is_being_written_is_not_delivered(
    fd: int, writer: RingWriter, reader: RingReader
) -> None:
    """What a reader sees if the writer is inside slot 2: its sequence is 0, or another turn's."""
    write(writer.gpu(0), *range(5))
    slot_2 = RingLayout(10, CAPACITY).records_offset + 2 * RECORD.itemsize
    with mmap.mmap(fd, 0) as memory:
        for sequence in (0, 3 + CAPACITY):
            memory[slot_2 : slot_2 + 8] = sequence.to_bytes(8, "little")
            drained = reader.drain(0)
            assert drained.records["t_mono_ns"].tolist() == [0, 1, 3, 4]
            assert drained.overwritten_count == 1


def test_triples_wrap_like_records(writer: RingWriter, reader: RingReader) -> None:
    for n in range(TRIPLE_CAPACITY + 2):
        writer.write_triple(TimeTriple(unix_ns=n, mono_ns=n + 1, boot_ns=n + 2))
    triples, position = reader.triples()
    assert (len(triples), position) == (TRIPLE_CAPACITY, TRIPLE_CAPACITY + 2)
    assert triples[0] == TimeTriple(unix_ns=2, mono_ns=3, boot_ns=4)
    assert reader.triples(position) == ((), position)


def test_a_driver_call_in_progress_is_visible(writer: RingWriter, reader: RingReader) -> None:
    to = writer.gpu(1)
    assert reader.status(1).call_started_mono_ns is None
    to.begin_call(1234, ReadScope.FULL)
    status = reader.status(1)
    assert (status.call_started_mono_ns, status.call_scope) == (1234, ReadScope.FULL)
    to.transient_count += 1
    to.missed_count += 3
    to.end_call(50, ReadScope.FULL)
    status = reader.status(1)
    assert status.call_started_mono_ns is None
    assert (status.ticks_count, status.missed_count, status.transient_count) == (1, 3, 1)
    assert (status.driver_ns, status.written, status.last_mono_ns) == (50, 0, None)
    assert status.driver_full_ns == 50
    to.end_call(7, ReadScope.FAST)
    assert (reader.status(1).driver_ns, reader.status(1).driver_full_ns) == (57, 50)


def test_a_successor_goes_on_where_its_predecessor_stopped(
    fd: int, writer: RingWriter, reader: RingReader
) -> None:
    old = writer.gpu(0)
    write(old, 1, 2)
    old.begin_call(3, ReadScope.FAST)
    successor = RingWriter(fd, described(gpu(0), gpu(1)), 99)
    try:
        assert reader.status(0).call_started_mono_ns is None
        assert reader.status(0).state is GpuState.UNSEEN
        new = successor.gpu(0)
        write(new, 3)
        assert reader.drain(0).records["t_mono_ns"].tolist() == [1, 2, 3]
        assert reader.status(0).ticks_count == 3
        assert reader.generation == 2
    finally:
        successor.close()


def test_a_superseded_writer_changes_nothing_any_more(
    fd: int, writer: RingWriter, reader: RingReader
) -> None:
    old = writer.gpu(0)
    successor = RingWriter(fd, described(gpu(0), gpu(1)), CAPACITY)
    try:
        successor.set_state(SamplerState.RUNNING)
        before = os.pread(fd, os.fstat(fd).st_size, 0)
        write(old, 1)
        old.begin_call(5, ReadScope.FAST)
        old.end_call(1, ReadScope.FAST)
        old.set_state(GpuState.LOST)
        writer.set_state(SamplerState.STOPPED)
        writer.write_triple(TimeTriple(unix_ns=1, mono_ns=1, boot_ns=1))
        assert os.pread(fd, os.fstat(fd).st_size, 0) == before
        assert not writer.is_current()
        assert not old.is_current()
        assert reader.state is SamplerState.RUNNING
    finally:
        successor.close()


def test_gpus_keep_slot_and_label_when_the_driver_renumbers_them(
    fd: int, writer: RingWriter, reader: RingReader
) -> None:
    renumbered = replace(gpu(0), uuid="GPU-1"), gpu(7)
    assert writer.gpus[1].gpu == "1"
    successor = RingWriter(fd, described(*renumbered), CAPACITY)
    try:
        slots = successor.slots_of(renumbered)
        assert slots == [1, 2]
        gpus = reader.description().gpus
        assert [info.gpu for info in gpus] == ["0", "1", "7"]
        assert [info.uuid for info in gpus] == ["GPU-0", "GPU-1", "GPU-7"]
    finally:
        successor.close()


def test_gpus_past_the_spare_slots_have_no_slot(fd: int, writer: RingWriter) -> None:
    many = [gpu(n) for n in range(20)]
    assert len(writer.gpus) == 2
    successor = RingWriter(fd, described(*many), CAPACITY)
    try:
        assert successor.slots_of(many) == [*range(10), *[None] * 10]
    finally:
        successor.close()


def test_a_failure_is_told_and_forgotten_by_the_next_writer(
    fd: int, writer: RingWriter, reader: RingReader
) -> None:
    assert writer.is_current()
    failing = RingWriter(fd, RingDescription(failure="no driver"), 0)
    failing.set_state(SamplerState.FAILED)
    failing.close()
    description = reader.description()
    assert (description.failure, len(description.gpus)) == ("no driver", 2)
    assert description.backend == "scripted"
    RingWriter(fd, described(gpu(0)), 1).close()
    assert reader.description().failure is None


def test_memory_laid_out_by_one_who_found_no_gpu_grows_with_the_first_who_does(fd: int) -> None:
    failing = RingWriter(fd, RingDescription(failure="no driver"), 0)
    failing.set_state(SamplerState.FAILED)
    failing.close()
    before = RingReader(fd)
    assert (before.gpu_slots, before.description().failure) == (0, "no driver")
    found = RingWriter(fd, described(gpu(0), gpu(1)), CAPACITY)
    after = RingReader(fd)
    try:
        assert before.is_outgrown
        assert before.generation == after.generation == 2
        assert not after.is_outgrown
        assert (after.gpu_slots, after.capacity) == (2 + 8, CAPACITY)
        assert [info.gpu for info in after.description().gpus] == ["0", "1"]
        assert after.description().failure is None
        assert after.status(1).written == 0
    finally:
        for each in (before, after, found):
            each.close()


def test_memory_whose_writer_died_while_laying_it_out_is_laid_out_anew(fd: int) -> None:
    os.ftruncate(fd, 4096)
    RingWriter(fd, described(gpu(0)), CAPACITY).close()
    reader = RingReader(fd)
    assert reader.capacity == CAPACITY
    reader.close()


def test_memory_of_another_version_is_refused(fd: int) -> None:
    with pytest.raises(StoreError, match="has not laid out"):
        RingReader(fd)
    RingWriter(fd, described(gpu(0)), CAPACITY).close()
    os.pwrite(fd, (99).to_bytes(8, "little"), 8)
    with pytest.raises(StoreError, match="another version"):
        RingReader(fd)
    with pytest.raises(StoreError, match="another version"):
        RingWriter(fd, described(gpu(0)), CAPACITY)


#: Writes records without end over the memory file that it inherits.
_WRITER = """
import sys
from chopperd.model.devices import DeviceReading, GpuInfo, ReadScope, Vendor
from chopperd.sampling.memory.layout import RingDescription
from chopperd.sampling.memory.ring import RingWriter
gpu = GpuInfo(gpu="0", index=0, uuid="GPU-0", name="Tested", vendor=Vendor.NVIDIA)
ring = RingWriter(int(sys.argv[1]), RingDescription(gpus=(gpu,)), 8)
to, reading, number = ring.gpu(0), DeviceReading(sm_clock_mhz=1000.0), ring.gpu(0).written_count
print(flush=True)
while True:
    number += 1
    to.write(reading, t_mono_ns=number, span_ns=1, late_ns=0, scope=ReadScope.FULL)
"""


def test_counts_never_fall_for_a_reader_nor_for_the_successor_of_a_killed_writer(fd: int) -> None:
    """Three writers, each killed at a random moment while it writes some 10^5 records a second."""
    highest = (0, 0, 0)  # each by itself: a reader may meet the head half copied
    for _ in range(3):
        command = [sys.executable, "-c", _WRITER, str(fd)]
        with subprocess.Popen(command, pass_fds=(fd,), stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            reader = RingReader(fd)
            try:
                for _ in range(10_000):
                    status = reader.status(0)
                    counts = (status.ticks_count, status.driver_ns, status.driver_full_ns)
                    assert all(map(ge, counts, highest))
                    highest = counts
            finally:
                writer.kill()
                reader.close()
    assert min(highest) > 0

"""What is written seldom of a GPU, from the writer through the shared memory to a reader."""

import os
from collections.abc import Iterator

import pytest

from chopperd.model.devices import DeviceReading, GpuInfo, GpuProcess, SensorTiming, Vendor
from chopperd.sampling.memory.layout import (
    MOST_PROCESSES,
    TIMED_SENSORS,
    TROUBLE_BYTES,
    RingDescription,
)
from chopperd.sampling.memory.ring import RingWriter
from chopperd.sampling.memory.ring_reader import RingReader
from chopperd.sampling.memory.slow_state import SlowState

GPU = GpuInfo(gpu="0", index=0, uuid="GPU-0", name="H100", vendor=Vendor.NVIDIA)
UNSEEN = {name: SensorTiming() for name in TIMED_SENSORS}


@pytest.fixture
def fd() -> Iterator[int]:
    memory = os.memfd_create("side")
    yield memory
    os.close(memory)


def writer_on(fd: int) -> RingWriter:
    return RingWriter(fd, RingDescription(gpus=(GPU,), backend="nvml"), 256)


def test_before_anything_is_written_all_is_unknown(fd: int) -> None:
    writer_on(fd)
    assert RingReader(fd).slow_state(0) == SlowState(timing=UNSEEN)


def test_what_is_written_is_read_and_what_is_unknown_stays_so(fd: int) -> None:
    side = writer_on(fd).slow_state(0)
    side.write_state(DeviceReading(power_average_w=412.5, power_limit_w=700.0), 7)
    side.write_timing({"energy_j": SensorTiming(period_ns=100_000_000, window_ns=0)})
    processes = (GpuProcess(pid=41, memory_used_bytes=1 << 30), GpuProcess(pid=42, partition=3))
    side.write_processes(processes, 9)
    side.write_trouble("XID 79: fallen off the bus")
    side.add_driver_ns(30)
    side.add_driver_ns(12)
    side.add_invalid(3)
    side.add_invalid(1)
    assert RingReader(fd).slow_state(0) == SlowState(
        state_mono_ns=7,
        state={"power_average_w": 412.5, "power_limit_w": 700.0},
        timing={**UNSEEN, "energy_j": SensorTiming(period_ns=100_000_000, window_ns=0)},
        driver_rare_ns=42,
        invalid_count=4,
        processes_mono_ns=9,
        processes=processes,
        trouble="XID 79: fallen off the bus",
    )


def test_shorter_news_leave_nothing_of_the_longer_ones_before(fd: int) -> None:
    side, reader = writer_on(fd).slow_state(0), RingReader(fd)
    side.write_trouble("a long line")
    side.write_processes([GpuProcess(pid=pid) for pid in range(1, 4)], 1)
    side.write_trouble("short")
    side.write_processes([GpuProcess(pid=9)], 2)
    assert (reader.slow_state(0).trouble, reader.slow_state(0).processes) == (
        "short",
        (GpuProcess(pid=9),),
    )
    side.write_trouble(None)
    side.write_processes([], 3)
    assert (reader.slow_state(0).trouble, reader.slow_state(0).processes) == (None, ())


def test_what_has_no_room_is_cut(fd: int) -> None:
    side, reader = writer_on(fd).slow_state(0), RingReader(fd)
    side.write_processes([GpuProcess(pid=pid) for pid in range(1, 100)], 1)
    side.write_trouble("ä" * 300)
    assert len(reader.slow_state(0).processes) == MOST_PROCESSES
    assert reader.slow_state(0).trouble == "ä" * (TROUBLE_BYTES // 2)


def test_a_successor_begins_anew_but_for_the_time_spent_and_silences_the_one_before(
    fd: int,
) -> None:
    earlier = writer_on(fd).slow_state(0)
    earlier.write_trouble("lost")
    earlier.add_driver_ns(5)
    earlier.add_invalid(2)
    writer_on(fd)
    earlier.write_trouble("late news")
    earlier.add_driver_ns(100)
    assert RingReader(fd).slow_state(0) == SlowState(
        timing=UNSEEN, driver_rare_ns=5, invalid_count=2
    )


def test_the_time_spent_stays_where_a_writer_died_over_the_rest(fd: int) -> None:
    side = writer_on(fd).slow_state(0)
    side.add_driver_ns(5)
    side.write_trouble("lost")
    reader = RingReader(fd)
    with side._writing():  # as it is left by a process that was killed meanwhile
        assert reader.slow_state(0) == SlowState(driver_rare_ns=5, invalid_count=0)


def test_a_successor_ends_what_the_thread_of_a_gpu_died_over(fd: int) -> None:
    """Else nothing of the block could be read until that GPU is read in full again."""
    side = writer_on(fd).slow_state(0)
    with side._writing() as block:
        block["state_sequence"] += 1  # as it is left by a process that was killed meanwhile
    reader = RingReader(fd)
    side.add_driver_ns(5)
    assert reader.slow_state(0) == SlowState(driver_rare_ns=5)
    successor = writer_on(fd).slow_state(0)
    assert reader.slow_state(0) == SlowState(timing=UNSEEN, driver_rare_ns=5)
    successor.write_state(DeviceReading(power_limit_w=700.0), 7)
    assert reader.slow_state(0).state == {"power_limit_w": 700.0}

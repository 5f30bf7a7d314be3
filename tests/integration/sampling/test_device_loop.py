"""The loop of one GPU on a clock that the test moves: no thread, no real waiting."""

import logging
import os
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from chopperd.devices.base import DeviceBackend
from chopperd.errors import DeviceLostError, TransientDeviceError
from chopperd.model.devices import DeviceReading, GpuInfo, ReadScope, Vendor
from chopperd.sampling.device_loop import DeviceLoop
from chopperd.sampling.memory.layout import GpuState, RingDescription
from chopperd.sampling.memory.ring import RingWriter
from chopperd.sampling.memory.ring_reader import RingReader
from chopperd.sampling.settings import SamplerSettings
from chopperd.units import TimeTriple

MS = 1_000_000
SECOND = 1_000_000_000
GPU = GpuInfo(gpu="0", index=0, uuid="u", name="n", vendor=Vendor.NVIDIA, sm_clock_max_mhz=2000.0)


class SteppedClock:
    """Time that passes only while somebody sleeps; sets `stop` when `end_ns` is reached."""

    def __init__(self, stop: threading.Event, end_ns: int) -> None:
        self.now_ns = SECOND
        self._stop = stop
        self._end_ns = SECOND + end_ns

    def mono_ns(self) -> int:
        return self.now_ns

    def unix_ns(self) -> int:
        return self.now_ns

    def triple(self) -> TimeTriple:
        return TimeTriple(unix_ns=self.now_ns, mono_ns=self.now_ns, boot_ns=self.now_ns)

    def sleep_until(self, deadline_mono_ns: int) -> None:
        self.now_ns = max(self.now_ns, deadline_mono_ns)
        if self.now_ns >= self._end_ns:
            self._stop.set()


class Driver:
    """A GPU whose n-th read is done by `answer(n)` and takes `call_ns`."""

    name = "scripted"
    driver = None
    simulated = True

    def __init__(self, clock: SteppedClock, call_ns: int = 0) -> None:
        self._clock = clock
        self.call_ns = call_ns
        self.scopes: list[ReadScope] = []
        self.answer: Callable[[int], DeviceReading] = lambda _: DeviceReading(sm_clock_mhz=1500.0)

    def devices(self) -> tuple[GpuInfo, ...]:
        return (GPU,)

    def read(self, device: GpuInfo, scope: ReadScope) -> DeviceReading:
        assert device is GPU
        self.scopes.append(scope)
        self._clock.now_ns += self.call_ns
        return self.answer(len(self.scopes) - 1)

    def close(self) -> None:
        raise AssertionError("a loop does not close the back end")


class Bench:
    """Everything that one loop needs, over memory of its own."""

    def __init__(self, seconds: float, settings: SamplerSettings) -> None:
        self.stop = threading.Event()
        self.clock = SteppedClock(self.stop, round(seconds * SECOND))
        self.driver = Driver(self.clock)
        self._fd = os.memfd_create("ring")
        self._settings = settings
        self.ring = RingWriter(self._fd, RingDescription(gpus=(GPU,)), settings.capacity)
        self.reader = RingReader(self._fd)

    def run(self) -> None:
        backend: DeviceBackend = self.driver
        gpu = self.ring.gpu(0)
        DeviceLoop(backend, GPU, gpu, self._settings, self.clock, self.stop).run()

    def close(self) -> None:
        self.reader.close()
        self.ring.close()
        os.close(self._fd)


@pytest.fixture
def make() -> Iterator[Callable[..., Bench]]:
    benches: list[Bench] = []

    def made(seconds: float = 10, **settings: float) -> Bench:
        options = {"hz": 10.0, **settings}
        benches.append(Bench(seconds, SamplerSettings(**options)))  # type: ignore[arg-type]
        return benches[-1]

    yield made
    for bench in benches:
        bench.close()


def test_each_period_gives_a_sample_and_each_second_a_full_read(make: Callable[..., Bench]) -> None:
    bench = make(10)
    bench.run()
    records = bench.reader.drain(0).records
    periods = (records["t_mono_ns"] - SECOND) // (100 * MS)
    assert periods.tolist() == list(range(len(records)))
    assert len(records) in {99, 100}  # the stop falls into the last period
    full_seconds = np.flatnonzero(records["scope"]) // 10
    assert full_seconds.tolist() == [0, *range(10)]  # the very first, and one in each second
    assert bench.driver.scopes.count(ReadScope.FULL) == 11
    assert records["late_ns"].max() == 0


def test_a_sample_carries_the_middle_and_the_length_of_its_call(make: Callable[..., Bench]) -> None:
    bench = make(2, budget_ratio=1.0)
    bench.driver.call_ns = 4 * MS
    bench.run()
    record = bench.reader.drain(0).records[3]
    assert record["span_ns"] == 4 * MS
    into_ns = int(record["t_mono_ns"] - 2 * MS - SECOND) - 3 * 100 * MS
    assert 0 <= into_ns < 100 * MS


def test_after_a_stall_periods_are_missed_and_counted_not_made_up_for(
    make: Callable[..., Bench],
) -> None:
    bench = make(10, budget_ratio=1.0)

    def answer(n: int) -> DeviceReading:
        if n == 20:
            bench.clock.now_ns += 3 * SECOND
        return DeviceReading(sm_clock_mhz=1500.0)

    bench.driver.answer = answer
    bench.run()
    starts_ns = bench.reader.drain(0).records
    begun_ns = starts_ns["t_mono_ns"] - starts_ns["span_ns"] // 2 - SECOND
    periods = begun_ns // (100 * MS)
    assert len(set(periods.tolist())) == len(periods)
    status = bench.reader.status(0)
    assert status.missed_count in {29, 30, 31}
    assert periods[-1] + 1 == status.ticks_count + status.missed_count


def test_a_full_read_whose_period_is_missed_is_the_next_one(make: Callable[..., Bench]) -> None:
    """By the schedule 0, 1, 14, 29 and 31 are full; the read of period 26 lasts into period 30."""
    bench = make(3.3, budget_ratio=1.0)

    def answer(n: int) -> DeviceReading:
        if n == 26:
            bench.clock.now_ns = SECOND + 3000 * MS
        return DeviceReading(sm_clock_mhz=1500.0)

    bench.driver.answer = answer
    bench.run()
    records = bench.reader.drain(0).records
    begun_ns = records["t_mono_ns"] - records["span_ns"] // 2 - SECOND
    full = begun_ns[records["scope"] == 1] // (100 * MS)
    assert full.tolist() == [0, 1, 14, 30, 31]


def test_failed_reads_are_counted_by_kind_and_do_not_end_the_loop(
    make: Callable[..., Bench], caplog: pytest.LogCaptureFixture
) -> None:
    bench = make(5)

    def answer(n: int) -> DeviceReading:
        if n in {3, 4}:
            raise TransientDeviceError("timed out", operation="read")
        if n == 7:
            raise KeyError("a fault of the vendor's library")
        return DeviceReading(sm_clock_mhz=1500.0)

    bench.driver.answer = answer
    with caplog.at_level(logging.WARNING):
        bench.run()
    status = bench.reader.status(0)
    assert (status.transient_count, status.unexpected_count) == (2, 1)
    assert status.written == status.ticks_count - 3
    assert status.state is GpuState.UP
    assert len(caplog.records) == 1  # the first; then at most one a minute


def test_a_fault_in_the_loop_itself_rests_it_and_does_not_end_it(
    make: Callable[..., Bench], caplog: pytest.LogCaptureFixture
) -> None:
    """No record has room for the 21st clock."""
    bench = make(10)
    bench.driver.answer = lambda n: DeviceReading(sm_clock_mhz=10**400 if n == 20 else 1500.0)
    with caplog.at_level(logging.ERROR):
        bench.run()
    status = bench.reader.status(0)
    assert status.unexpected_count == 1
    assert 80 <= status.written < 98  # 1 s of rest at 10 Hz
    assert status.call_started_mono_ns is None
    assert len(caplog.records) == 1


def test_a_lost_gpu_is_probed_each_minute_and_sampled_again_when_it_is_back(
    make: Callable[..., Bench],
) -> None:
    bench = make(200, history_s=300)
    seen: list[GpuState] = []

    def answer(n: int) -> DeviceReading:
        seen.append(bench.reader.status(0).state)
        if 10 <= n < 12:
            raise DeviceLostError("fell off the bus", operation="read")
        return DeviceReading(sm_clock_mhz=1500.0)

    bench.driver.answer = answer
    bench.run()
    status = bench.reader.status(0)
    assert (status.losses_count, status.state) == (1, GpuState.UP)
    assert seen[9:14] == [GpuState.UP, GpuState.UP, GpuState.LOST, GpuState.LOST, GpuState.UP]
    t_s = bench.reader.drain(0).records["t_mono_ns"] / SECOND
    gaps = np.diff(t_s)
    assert gaps.max() == pytest.approx(120, abs=0.3)
    assert (gaps > 1).sum() == 1
    assert status.missed_count == 0  # not sampled on purpose


def test_a_stop_is_seen_while_a_gpu_is_lost(make: Callable[..., Bench]) -> None:
    bench = make(5)

    def answer(_: int) -> DeviceReading:
        raise DeviceLostError("fell off the bus", operation="read")

    bench.driver.answer = answer
    bench.run()
    assert bench.reader.status(0).state is GpuState.LOST
    assert bench.clock.now_ns < 7 * SECOND


def test_past_the_budget_the_loop_slows_and_says_so(
    make: Callable[..., Bench], caplog: pytest.LogCaptureFixture
) -> None:
    bench = make(30, hz=100.0)
    bench.driver.call_ns = MS  # 1 ms of 10 ms: five times the budget of 2 %
    with caplog.at_level(logging.WARNING):
        bench.run()
    status = bench.reader.status(0)
    assert (status.asked_period_ns, status.period_ns) == (10 * MS, 50 * MS)
    assert [record.getMessage() for record in caplog.records] == [
        "GPU 0: sampled at 20, not 100 Hz: at that rate driver calls would take 10 % of the time, "
        "2 % are allowed"
    ]
    # 5 s at 10 %, before the first judgement, then 25 s at 2 %: 1 s in all.
    assert status.driver_ns == pytest.approx(SECOND, rel=0.1)


def test_a_rate_that_swings_is_logged_once_a_minute(
    make: Callable[..., Bench], caplog: pytest.LogCaptureFixture
) -> None:
    bench = make(130, hz=100.0)

    def answer(_: int) -> DeviceReading:
        is_slow = bench.clock.now_ns // (5 * SECOND) % 2 == 0  # as on a machine with other work
        bench.driver.call_ns = 2 * MS if is_slow else 0
        return DeviceReading(sm_clock_mhz=1500.0)

    bench.driver.answer = answer
    with caplog.at_level(logging.WARNING):
        bench.run()
    assert len(caplog.records) == 3


def test_a_loop_ends_when_another_process_has_taken_over(make: Callable[..., Bench]) -> None:
    bench = make(1000)

    def answer(n: int) -> DeviceReading:
        if n == 5:
            RingWriter(bench._fd, RingDescription(gpus=(GPU,)), 256).close()
        return DeviceReading(sm_clock_mhz=1500.0)

    bench.driver.answer = answer
    bench.run()
    assert len(bench.driver.scopes) == 6
    assert bench.reader.status(0).written == 5

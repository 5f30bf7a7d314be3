"""Probing of sensors with a scripted clock: when it is made, what it costs, what it leaves."""

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from chopperd.devices.base import SensorRead
from chopperd.model.devices import FieldProbe, GpuInfo, SensorTiming, Vendor
from chopperd.sampling.memory.layout import RingDescription
from chopperd.sampling.memory.ring import RingWriter
from chopperd.sampling.memory.ring_reader import RingReader
from chopperd.sampling.memory.slow_state import SlowState, with_findings
from chopperd.sampling.watch import (
    FIRST_NS,
    MOST_DRIVER_NS,
    PROBE_NS,
    WORK_NS,
    SensorProbe,
    WatchedGpu,
)
from chopperd.units import NS_PER_MS, NS_PER_S, NS_PER_US
from tests.fakes.clock import ScriptedClock

GPU = GpuInfo(
    gpu="0", index=0, uuid="GPU-0", name="H100", vendor=Vendor.NVIDIA, power_source="average_1s"
)


@dataclass
class Driver:
    """Sensors of known periods (0: a value that stands still); a read takes `read_ns`."""

    clock: ScriptedClock
    period_ms: dict[str, int]
    activity: float | None = 1.0
    read_ns: int = 20 * NS_PER_US
    reads_count: int = 0
    read_at_ns: list[int] = field(default_factory=list)

    def sensor_reads(self, device: GpuInfo) -> Mapping[str, SensorRead]:
        assert device == GPU
        reads = {name: self._read(period) for name, period in self.period_ms.items()}
        return {**reads, "activity_ratio": lambda: self.activity}

    def _read(self, period_ms: int) -> Callable[[], float]:
        def read() -> float:
            self.clock.advance(self.read_ns)
            self.reads_count += 1
            self.read_at_ns.append(self.clock.mono_ns())
            return float(self.clock.mono_ns() // (period_ms * NS_PER_MS)) if period_ms else 7.0

        return read


@dataclass
class Bench:
    """A probe of one GPU on a driver, and what it leaves in the shared memory."""

    driver: Driver
    reader: RingReader
    probe: SensorProbe
    stop: threading.Event

    def turn_after(self, ns: int) -> int:
        """Reads of sensors that one more turn makes."""
        before = self.driver.reads_count
        self.driver.clock.advance(ns)
        self.probe.turn()
        return self.driver.reads_count - before

    @property
    def timing(self) -> Mapping[str, SensorTiming]:
        return self.reader.slow_state(0).timing


MakeBench = Callable[..., Bench]


@pytest.fixture
def make_bench() -> Iterator[MakeBench]:
    fd = os.memfd_create("probe")

    def make(
        period_ms: dict[str, int], budget_ratio: float = 0.002, driver: type[Driver] = Driver
    ) -> Bench:
        clock, stop = ScriptedClock(), threading.Event()
        sensors = driver(clock, period_ms)
        ring = RingWriter(fd, RingDescription(gpus=(GPU,)), 256)
        gpu = WatchedGpu(device=GPU, label="0", gpu=ring.gpu(0), slow_state=ring.slow_state(0))
        probe = SensorProbe(
            sensors, gpu, clock, stop, again_s=AGAIN_NS / NS_PER_S, budget_ratio=budget_ratio
        )
        return Bench(sensors, RingReader(fd), probe, stop)

    yield make
    os.close(fd)


AGAIN_NS = 600 * NS_PER_S
ALL = {"sm_clock_mhz": 20, "power_w": 100, "energy_j": 50}


def test_the_period_of_each_sensor_is_found_and_left_for_readers(make_bench: MakeBench) -> None:
    """Known truth: 20, 100 and 50 ms; a power that is a mean of 1 s has that window."""
    bench = make_bench(ALL)
    assert bench.turn_after(FIRST_NS) > 0
    found = {name: each.period_ns for name, each in bench.timing.items()}
    assert found == {
        name: pytest.approx(period * NS_PER_MS, rel=0.01) for name, period in ALL.items()
    }
    windows = {name: each.window_ns for name, each in bench.timing.items()}
    assert windows == {"sm_clock_mhz": None, "power_w": 1000 * NS_PER_MS, "energy_j": None}


def test_what_is_known_is_not_looked_for_again(make_bench: MakeBench) -> None:
    bench = make_bench(ALL)
    bench.turn_after(FIRST_NS)
    assert bench.turn_after(10 * AGAIN_NS) == 0


def test_a_sensor_that_stood_still_is_unknown_and_alone_looked_for_ten_minutes_later(
    make_bench: MakeBench,
) -> None:
    bench = make_bench({**ALL, "sm_clock_mhz": 0})
    first = bench.turn_after(FIRST_NS)
    assert bench.timing["sm_clock_mhz"].period_ns is None
    assert bench.turn_after(AGAIN_NS - 10 * NS_PER_MS - PROBE_NS) == 0
    bench.driver.period_ms["sm_clock_mhz"] = 20
    assert 0 < bench.turn_after(PROBE_NS + NS_PER_MS * 10) < first / 2
    assert bench.timing["sm_clock_mhz"].period_ns == pytest.approx(20 * NS_PER_MS, rel=0.01)
    assert bench.timing["power_w"].period_ns == pytest.approx(100 * NS_PER_MS, rel=0.01)


class KeepingDriver(Driver):
    """A driver that keeps samples of its own, 50 ms apart, of whatever is asked for."""

    def probe(self, device: GpuInfo, calls_count: int = 100) -> tuple[FieldProbe, ...]:
        raise AssertionError(f"asked {device} for fields {calls_count} times")

    def buffered_period_ns(self, device: GpuInfo, field: str) -> int | None:
        assert (device, field) == (GPU, "power_w")
        return 50 * NS_PER_MS


def test_samples_that_the_driver_keeps_tell_of_a_power_that_stood_still_and_of_nothing_else(
    make_bench: MakeBench,
) -> None:
    """A clock is laid beside kernels by its period: one that was not seen to hold stays unknown."""
    bench = make_bench(dict.fromkeys(ALL, 0), driver=KeepingDriver)
    bench.turn_after(FIRST_NS)
    found = {name: each.period_ns for name, each in bench.timing.items()}
    assert found == {"sm_clock_mhz": None, "power_w": 50 * NS_PER_MS, "energy_j": None}


def test_an_idle_gpu_is_left_alone_and_looked_at_again_soon(make_bench: MakeBench) -> None:
    bench = make_bench(ALL)
    bench.driver.activity = 0.1
    assert bench.turn_after(FIRST_NS) == 0
    bench.driver.activity = 0.9
    assert bench.turn_after(NS_PER_MS) == 0
    assert bench.turn_after(WORK_NS) > 0


def test_a_gpu_that_does_not_tell_how_busy_it_is_is_probed(make_bench: MakeBench) -> None:
    bench = make_bench(ALL)
    bench.driver.activity = None
    assert bench.turn_after(FIRST_NS) > 0


def test_a_probe_lasts_a_second_and_a_half_with_a_millisecond_or_two_between_rounds(
    make_bench: MakeBench,
) -> None:
    bench = make_bench({"power_w": 100})
    bench.turn_after(FIRST_NS)
    at_ns = bench.driver.read_at_ns
    assert at_ns[-1] - at_ns[0] <= PROBE_NS
    apart = [later - earlier for earlier, later in pairwise(at_ns)]
    assert min(apart) >= NS_PER_MS
    assert max(apart) <= 2 * NS_PER_MS + bench.driver.read_ns
    assert len(set(apart)) > 100  # drawn, so that no period beats with them


def test_driver_time_is_counted_and_a_slow_driver_ends_the_probe(make_bench: MakeBench) -> None:
    """A quarter of 0.02 % of 600 s is 30 ms: of rounds of three reads of 5 ms, the third."""
    bench = make_bench(ALL, budget_ratio=0.0002)
    bench.driver.read_ns = 5 * NS_PER_MS
    assert bench.turn_after(FIRST_NS) == 9
    assert bench.reader.slow_state(0).driver_rare_ns == 45 * NS_PER_MS


def test_no_budget_allows_more_than_three_tenths_of_a_second(make_bench: MakeBench) -> None:
    """10 ms a round: ended by the round that passes 300 ms, the 31st."""
    bench = make_bench({"power_w": 100}, budget_ratio=1.0)
    bench.driver.read_ns = 10 * NS_PER_MS
    bench.turn_after(FIRST_NS)
    assert bench.reader.slow_state(0).driver_rare_ns == MOST_DRIVER_NS + 10 * NS_PER_MS


def test_a_gpu_that_answers_nothing_is_asked_once(make_bench: MakeBench) -> None:
    bench = make_bench(ALL)
    bench.driver.activity = None

    def silent(period_ms: int) -> Callable[[], float | None]:
        def read() -> None:
            bench.driver.reads_count += 1 if period_ms else 0

        return read

    bench.driver._read = silent  # type: ignore[assignment, method-assign]
    assert bench.turn_after(FIRST_NS) == len(ALL)
    assert all(each.period_ns is None for each in bench.timing.values())


def test_a_stop_ends_the_probe(make_bench: MakeBench) -> None:
    bench = make_bench(ALL)
    bench.stop.set()
    assert bench.turn_after(FIRST_NS) == 0


def test_periods_that_were_found_go_with_the_gpu_but_not_over_what_it_knew() -> None:
    timing = {
        "sm_clock_mhz": SensorTiming(period_ns=20),
        "power_w": SensorTiming(window_ns=5),
        "energy_j": SensorTiming(period_ns=100),
    }
    found = with_findings(GPU, SlowState(timing=timing))
    assert (found.sm_clock_period_ns, found.power_period_ns, found.energy_period_ns) == (
        20,
        None,
        100,
    )
    later = SlowState(timing={"sm_clock_mhz": SensorTiming(period_ns=7)})
    assert with_findings(found, later) == found

"""The node followed through a real ring, by a scripted clock."""

import mmap
import os
from collections.abc import Iterator
from math import nan

import pytest
from msgspec.structs import replace

from chopperd.live.node import LiveNode
from chopperd.model.devices import DeviceReading, GpuInfo, ReadScope
from chopperd.model.kinds import Cause
from chopperd.model.live import (
    DropTotals,
    GpuLive,
    HungCall,
    NodeSnapshot,
    SamplerCondition,
    SamplerLive,
)
from chopperd.sampling.memory.layout import HEADER, GpuState, Pace, RingDescription, SamplerState
from chopperd.sampling.memory.ring import RingWriter
from chopperd.sampling.memory.ring_reader import RingReader
from chopperd.units import NS_PER_MS, NS_PER_S
from tests.fakes.clock import ScriptedClock
from tests.fakes.samples import gpu_info

PERIOD_NS = 100 * NS_PER_MS
RUNNING = SamplerLive(condition=SamplerCondition.RUNNING, pid=1)
STEADY = DeviceReading(
    sm_clock_mhz=1500.0,
    power_w=640.0,
    energy_j=1.0,
    causes=frozenset({Cause.POWER_CAP}),
    limited_ns={Cause.POWER_CAP: 5},
)


class Rig:
    """A ring with its writer and reader, and the node that follows it.

    Attributes:
        reading: What GPUs answer, but for their clocks.
    """

    def __init__(self, *gpus: GpuInfo) -> None:
        self.clock = ScriptedClock(mono_ns=100 * NS_PER_S)
        self.reading = STEADY
        self.node = LiveNode(self.clock, version="1", node="here", backend="auto", slow_hz=1.0)
        self._fds: list[int] = []
        self._opened: list[RingReader | RingWriter] = []
        self.open_ring(*gpus)

    def open_ring(self, *gpus: GpuInfo) -> None:
        """A new memory file, as after a pause, and its first writer."""
        self.fd = os.memfd_create("ring")
        self._fds.append(self.fd)
        self.start_sampler(*gpus)
        self.reader = RingReader(self.fd)
        self._opened.append(self.reader)
        self.node.follow(self.reader)

    def start_sampler(self, *gpus: GpuInfo) -> None:
        """Another sampler process over the same memory."""
        self.gpus = gpus
        self.writer = RingWriter(self.fd, RingDescription(gpus=gpus, backend="scripted"), 300)
        self._opened.append(self.writer)
        self.writer.set_state(SamplerState.RUNNING)
        for gpu in gpus:
            to = self.writer.gpu(self.slot(gpu))
            to.set_state(GpuState.UP)
            to.set_period_ns(PERIOD_NS, PERIOD_NS)

    def slot(self, gpu: GpuInfo) -> int:
        (slot,) = self.writer.slots_of([gpu])
        assert slot is not None
        return slot

    def sample(self, seconds: float, **clocks_mhz: float) -> None:
        """Let time pass with a sample of each GPU each period, at the clock given by its label."""
        writers = {gpu: self.writer.gpu(self.slot(gpu)) for gpu in self.gpus}
        for _ in range(round(seconds * 10)):
            self.clock.advance(PERIOD_NS)
            for gpu, to in writers.items():
                clock_mhz = clocks_mhz.get(f"gpu{gpu.gpu}", 1500.0)
                to.write(
                    replace(self.reading, sm_clock_mhz=clock_mhz),
                    t_mono_ns=self.clock.mono_ns(),
                    span_ns=1000,
                    late_ns=0,
                    scope=ReadScope.FULL,
                )

    def now(self, sampler: SamplerLive = RUNNING) -> NodeSnapshot:
        return self.node.snapshot(sampler)

    def close(self) -> None:
        for opened in self._opened:
            opened.close()
        for fd in self._fds:
            os.close(fd)


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig(gpu_info(0), gpu_info(1))
    yield made
    made.close()


@pytest.fixture
def rig_of_five() -> Iterator[Rig]:
    made = Rig(*(gpu_info(index) for index in range(5)))
    yield made
    made.close()


def sample_slowly(rig: Rig, seconds: int) -> None:
    """Samples of GPU 0 a second apart."""
    to = rig.writer.gpu(0)
    for _ in range(seconds):
        rig.clock.advance(NS_PER_S)
        to.write(
            STEADY, t_mono_ns=rig.clock.mono_ns(), span_ns=1000, late_ns=0, scope=ReadScope.FULL
        )


def cycles(gpu: GpuLive) -> float:
    assert gpu.totals is not None
    return gpu.totals.sm_cycles or nan


def test_without_a_ring_there_are_no_gpus_and_the_back_end_is_down() -> None:
    clock = ScriptedClock()
    node = LiveNode(clock, version="1", node="here", backend="nvml", slow_hz=1.0)
    waiting = SamplerLive(condition=SamplerCondition.UNAVAILABLE, reason="no driver")
    snapshot = node.snapshot(waiting)
    assert (snapshot.gpus, snapshot.backend, snapshot.backend_up) == ((), "nvml", False)
    assert snapshot.sampler is waiting
    assert snapshot.taken_unix_ns == clock.unix_ns()


def test_a_gpu_that_samples_is_up_with_its_values_and_totals(rig: Rig) -> None:
    rig.sample(2.0, gpu1=1400.0)
    snapshot = rig.now()
    assert (snapshot.backend, snapshot.backend_up) == ("scripted", True)
    zero, one = snapshot.gpus
    assert (zero.up, zero.reading.sm_clock_mhz, one.reading.sm_clock_mhz) == (True, 1500.0, 1400.0)
    assert zero.reading.causes == frozenset({Cause.POWER_CAP})
    assert zero.last_sample_unix_ns == rig.clock.unix_ns()
    assert (zero.ticks_count, zero.asked_hz, zero.kept_hz) == (20, 10.0, 10.0)
    assert zero.driver_s == zero.driver_full_s == pytest.approx(20e-6)
    # 19 intervals of 0.1 s at 1500 MHz.
    assert cycles(zero) == pytest.approx(1.9 * 1500e6)
    edges = [edge for edge, seconds in zero.residency_s.items() if seconds]
    assert edges == [pytest.approx(1980 * 0.8)]
    assert sum(zero.residency_s.values()) == pytest.approx(1.9)
    assert zero.excess_s is None  # two GPUs of a model have no peers


def test_residency_sums_to_the_sampled_time(rig: Rig) -> None:
    for seconds, clock_mhz, sampled_s in ((2.0, 990.0, 1.9), (0.8, 1980.0, 2.7)):
        rig.sample(seconds, gpu0=clock_mhz)
        gpu = rig.now().gpus[0]
        assert gpu.totals is not None
        assert gpu.totals.sampled_s == pytest.approx(sampled_s)
        assert sum(gpu.residency_s.values()) == pytest.approx(sampled_s)
    # The last 0.8 s but half an interval were at the top clock.
    assert gpu.residency_s[1980.0] == pytest.approx(0.75)


def test_silence_makes_a_gpu_go_down_after_three_seconds_and_its_totals_stay(rig: Rig) -> None:
    rig.sample(1.0)
    total = cycles(rig.now().gpus[0])
    rig.clock.advance(3 * NS_PER_S)
    assert rig.now().gpus[0].up
    rig.clock.advance(1)
    gpu = rig.now().gpus[0]
    assert (gpu.up, gpu.reading) == (False, DeviceReading())
    assert cycles(gpu) == total
    assert not rig.now().backend_up


def test_a_gpu_that_the_driver_says_is_lost_is_down_at_once_and_comes_back(rig: Rig) -> None:
    rig.sample(1.0)
    before = cycles(rig.now().gpus[1])
    rig.writer.gpu(1).set_state(GpuState.LOST)
    zero, one = rig.now().gpus
    assert (zero.up, one.up, one.reading.power_w) == (True, False, None)
    rig.writer.gpu(1).set_state(GpuState.UP)
    rig.sample(1.0)
    assert rig.now().gpus[1].up
    assert cycles(rig.now().gpus[1]) >= before


@pytest.mark.parametrize("state", [SamplerState.STOPPED, SamplerState.FAILED])
def test_a_sampler_that_let_go_of_the_driver_leaves_no_gpu_up(
    rig: Rig, state: SamplerState
) -> None:
    rig.sample(1.0)
    rig.writer.set_state(state)
    assert not rig.now().backend_up
    assert not any(gpu.up for gpu in rig.now().gpus)


def test_a_call_that_lasts_more_than_five_seconds_is_named(rig: Rig) -> None:
    rig.sample(1.0)
    rig.writer.gpu(1).begin_call(rig.clock.mono_ns(), ReadScope.FULL)
    rig.clock.advance(5 * NS_PER_S)
    assert rig.now().gpus[1].hung is None
    rig.clock.advance(NS_PER_S)
    zero, one = rig.now().gpus
    assert one.hung == HungCall(scope="full", age_s=6.0)
    assert (one.up, zero.hung) == (False, None)
    # A process that was killed inside the call does not hang any more.
    restarting = SamplerLive(condition=SamplerCondition.RESTARTING)
    assert rig.now(restarting).gpus[1].hung is None


def test_a_successor_goes_on_with_all_counts(rig: Rig) -> None:
    rig.sample(2.0)
    before = rig.now().gpus[0]
    rig.start_sampler(*rig.gpus)
    assert rig.now().gpus[0].up  # its newest sample is fresh
    after = rig.now().gpus[0]
    assert (after.ticks_count, cycles(after)) == (before.ticks_count, cycles(before))


def test_a_new_ring_goes_on_with_all_counts(rig: Rig) -> None:
    rig.sample(2.0)
    before = rig.now().gpus
    rig.node.follow(None)
    assert [gpu.up for gpu in rig.now().gpus] == [False, False]
    assert cycles(rig.now().gpus[0]) == cycles(before[0])
    rig.clock.advance(2 * NS_PER_S)
    rig.open_ring(*rig.gpus)
    assert rig.now().gpus[0].ticks_count == before[0].ticks_count
    rig.sample(1.0)
    after = rig.now().gpus
    assert [gpu.up for gpu in after] == [True, True]
    assert after[0].ticks_count == 30
    # 1.9 s in the first ring and 0.9 s in the second one; nothing between them.
    assert cycles(after[0]) == pytest.approx(2.8 * 1500e6)
    assert sum(after[0].residency_s.values()) == pytest.approx(2.8)


def test_gpus_keep_labels_and_counts_when_the_driver_counts_anew_in_a_new_ring(rig: Rig) -> None:
    zero, one = rig.gpus
    rig.sample(2.0, gpu1=1200.0)
    before = cycles(rig.now().gpus[1])
    rig.node.follow(None)
    rig.open_ring(replace(one, index=0, gpu="0"), replace(gpu_info(7), index=1, gpu="1"))
    rig.sample(1.0)
    gone, kept, new = rig.now().gpus
    assert [(gpu.info.gpu, gpu.info.uuid) for gpu in (gone, kept, new)] == [
        ("0", zero.uuid),
        ("1", one.uuid),
        ("2", "GPU-7"),
    ]
    assert [gpu.up for gpu in (gone, kept, new)] == [False, True, True]
    assert cycles(kept) > before
    assert cycles(new) == pytest.approx(0.9 * 1500e6)


def test_following_the_same_ring_again_changes_nothing(rig: Rig) -> None:
    rig.sample(1.0)
    before = rig.now().gpus
    rig.node.follow(rig.reader)
    assert rig.now().gpus == before


def test_a_description_left_unfinished_by_a_killed_sampler_is_passed_over(rig: Rig) -> None:
    rig.sample(1.0)
    before = rig.now()
    sequence = HEADER.fields["description_sequence"][1] if HEADER.fields else 0
    with mmap.mmap(rig.fd, 0) as memory:
        memory[sequence] |= 1  # odd: being written
    rig.sample(0.1)
    after = rig.now()
    assert [gpu.info for gpu in after.gpus] == [gpu.info for gpu in before.gpus]
    assert after.backend == "scripted"
    assert after.gpus[0].ticks_count == 11


def test_excess_is_counted_against_the_median_once_a_window_is_over(rig_of_five: Rig) -> None:
    rig = rig_of_five
    rig.sample(10.0, gpu4=1350.0)
    assert [gpu.excess_s for gpu in rig.now().gpus] == [None] * 5  # its last records may be late
    rig.sample(1.0, gpu4=1350.0)
    excess_s = [gpu.excess_s for gpu in rig.now().gpus]
    # Samples at 100.1, 100.2, ... 109.9 s lie in the window: 9.8 s, at 1350 of 1500 MHz.
    assert excess_s == [0, 0, 0, 0, pytest.approx(0.98)]
    rig.sample(30.0, gpu4=1350.0)
    last = rig.now().gpus[4].excess_s
    assert last is not None
    assert last == pytest.approx(0.98 + 3 * 1.0)
    rig.sample(20.0)  # all alike from 141.0 s on: 1.15 s of the window from 140 s were not
    assert rig.now().gpus[4].excess_s == pytest.approx(last + 0.115)


def test_excess_is_absent_while_fewer_than_four_are_there_and_goes_on_afterwards(
    rig_of_five: Rig,
) -> None:
    rig, all_gpus = rig_of_five, rig_of_five.gpus
    rig.sample(12.0, gpu4=1350.0)
    before = [gpu.excess_s for gpu in rig.now().gpus]
    rig.start_sampler(*all_gpus[2:])
    rig.sample(9.5, gpu4=1350.0)
    still_there = [gpu.excess_s for gpu in rig.now().gpus]
    rig.sample(20.5, gpu4=1350.0)
    too_few = rig.now().gpus
    rig.start_sampler(*all_gpus)
    rig.sample(20.0, gpu4=1350.0)  # until 162 s: one window of all five is over
    after = [gpu.excess_s for gpu in rig.now().gpus]
    # Two went 2 s into the second window, which still has the mean of all; no later one has.
    assert before == [0, 0, 0, 0, pytest.approx(0.98)]
    assert still_there == [0, 0, 0, 0, pytest.approx(1.98)]
    assert [gpu.up for gpu in too_few] == [False, False, True, True, True]
    # A sum that stood still would read as no loss. Those that are down were not busy since.
    assert [gpu.excess_s for gpu in too_few] == [0, 0, None, None, None]
    # 142 to 150 s have the means of all again, and 150 to 160 s.
    assert after == [0, 0, 0, 0, pytest.approx(3.98)]


def test_the_excess_of_the_last_window_is_a_share_of_sampled_time(rig_of_five: Rig) -> None:
    """1350 instead of 1500 MHz: a tenth of each second, however long ago the window ended."""
    rig = rig_of_five
    rig.sample(10.5, gpu4=1350.0)
    assert [gpu.excess_ratio for gpu in rig.now().gpus] == [None] * 5
    rig.sample(1.0, gpu4=1350.0)
    for _ in range(9):
        assert [gpu.excess_ratio for gpu in rig.now().gpus] == [0, 0, 0, 0, pytest.approx(0.1)]
        rig.sample(1.0, gpu4=1350.0)
    rig.clock.advance(4 * NS_PER_S)
    assert [gpu.excess_ratio for gpu in rig.now().gpus] == [None] * 5  # none of them is up


def test_a_drop_of_the_clock_waits_to_be_kept_and_is_counted_over_rings(rig: Rig) -> None:
    for second in range(80):
        rig.sample(1.0, gpu1=1350.0 if 60 <= second < 65 else 1500.0)
        rig.now()
    zero, one = rig.now().gpus
    assert zero.drops == DropTotals()
    assert one.drops is not None
    assert one.drops.count == 1
    assert one.drops.length_s == pytest.approx(5.0, abs=0.21)  # its ends are told to a slot
    assert one.drops.lost_s == pytest.approx(0.5, abs=0.01)
    (drop,) = rig.node.drops.take()
    assert (drop.gpu, drop.state, drop.cause) == ("1", "recovered", "power_cap")
    # The first sample is 0.1 s after the start, at 100 s.
    begin_ns = rig.clock.unix_ns() - 20 * NS_PER_S + PERIOD_NS
    assert drop.begin_unix_ns == pytest.approx(begin_ns, abs=200 * NS_PER_MS)
    rig.node.follow(None)
    rig.open_ring(*rig.gpus)
    rig.sample(1.0)
    assert rig.now().gpus[1].drops == one.drops


def test_when_a_slow_gpu_is_read_fast_again_the_slow_time_stays_covered(rig: Rig) -> None:
    """The period is 0.1 s again when the agent looks; residency must match the integrals."""
    rig.sample(5.0)
    rig.now()
    to = rig.writer.gpu(0)
    to.set_period_ns(PERIOD_NS, NS_PER_S, Pace.IDLE)
    sample_slowly(rig, 4)
    rig.now()
    sample_slowly(rig, 1)
    to = rig.writer.gpu(0)
    to.set_period_ns(PERIOD_NS, PERIOD_NS)
    rig.sample(6.0)
    gpu = rig.now().gpus[0]
    assert gpu.pace == "asked"
    assert gpu.totals is not None
    assert gpu.totals.sampled_s == pytest.approx(15.9)
    assert sum(gpu.residency_s.values()) == pytest.approx(gpu.totals.sampled_s)


def test_the_dies_of_a_gpu_are_followed_and_the_lowest_in_the_mean_is_its_clock(rig: Rig) -> None:
    rig.sample(1.0)
    assert [gpu.dies for gpu in rig.now().gpus] == [None, None]
    rig.reading = replace(STEADY, die_clocks_mhz=(2100.0, 2096.0, None, 0.0))
    rig.sample(1.0)
    rig.reading = replace(STEADY, die_clocks_mhz=(2090.0, 2098.0, None, 0.0))
    rig.sample(0.1)
    gpu = rig.now().gpus[0]
    # Ten records of 2096 and one of 2098, beside ten of 2100 and one of 2090.
    assert gpu.reading.sm_clock_mhz == 2098
    assert gpu.dies is not None
    assert gpu.dies.clocks_mhz == (2090, 2098, None, 0, *[None] * 4)
    assert (gpu.dies.running, gpu.dies.gated, gpu.dies.governing) == (2, 1, 1)
    assert gpu.dies.spread_mhz == pytest.approx(23_090 / 11 - 23_058 / 11)
    rig.clock.advance(4 * NS_PER_S)
    assert rig.now().gpus[0].dies is None  # it is down


LIMITED = replace(gpu_info(0), power_limit_w=700.0)


def power_limit_w(rig: Rig, reading: DeviceReading | None = None) -> float | None:
    """The limit of GPU 0 a second later, in which a full read may tell more than its sample."""
    rig.sample(1.0)
    if reading is not None:
        rig.writer.slow_state(rig.slot(rig.gpus[0])).write_state(reading, rig.clock.mono_ns())
    return rig.now().gpus[0].reading.power_limit_w


def test_the_power_limit_is_that_of_the_start_until_the_driver_tells_it_again(rig: Rig) -> None:
    rig.open_ring(LIMITED)
    assert power_limit_w(rig) == 700.0
    assert power_limit_w(rig, DeviceReading(power_limit_w=500.0)) == 500.0
    # It can't be read any more: what it was at the start says nothing about now.
    assert power_limit_w(rig, DeviceReading(power_average_w=300.0)) is None
    assert power_limit_w(rig, DeviceReading(power_limit_w=500.0)) == 500.0
    rig.sample(10.0)
    assert power_limit_w(rig) is None
    rig.start_sampler(replace(LIMITED, power_limit_w=450.0))  # which asks at its start
    assert power_limit_w(rig) == 450.0


def test_a_gpu_that_does_not_answer_has_no_power_limit(rig: Rig) -> None:
    rig.open_ring(LIMITED)
    assert power_limit_w(rig) == 700.0
    rig.writer.gpu(0).set_state(GpuState.LOST)
    assert rig.now().gpus[0].reading.power_limit_w is None


def test_a_gpu_that_does_not_answer_is_read_at_no_known_rate(rig: Rig) -> None:
    assert [(gpu.asked_hz, gpu.kept_hz) for gpu in rig.now().gpus] == [(10.0, None)] * 2
    rig.sample(1.0)
    rig.writer.gpu(0).set_state(GpuState.LOST)
    assert [gpu.kept_hz for gpu in rig.now().gpus] == [None, 10.0]
    rig.open_ring(gpu_info(0))  # GPU 1 is in no ring any more
    rig.now()
    assert [(gpu.asked_hz, gpu.kept_hz) for gpu in rig.now().gpus][1] == (None, None)

"""Ticks by the C library against ticks in Python, over one frozen fake driver."""

import os
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from msgspec.structs import replace

from chopperd.sampling.memory.layout import GpuState, Pace, Records, RingDescription
from chopperd.sampling.memory.ring import RingWriter
from chopperd.sampling.native.library import NativeLibrary
from chopperd.sampling.supervisor import SamplerSupervisor, SupervisorState
from chopperd.units import NS_PER_S, TimeTriple
from tests.fakes.nvml.fixtures import FakeNvml
from tests.fakes.nvml.scenario import (
    GPU_IS_LOST,
    HANGS,
    NOT_SUPPORTED,
    SUCCESS,
    TIMEOUT,
    GpuLayout,
    Segment,
)
from tests.integration.sampling.one_gpu import CLOCK, QUICK, CountedNvml, one_gpu
from tests.integration.sampling.supervised import wait_until_gone, written
from tests.waiting import wait_for

FROZEN_NS = 1_700_000_000 * 10**9
TIMES = ("sequence", "t_mono_ns", "span_ns", "late_ns")


class AheadClock:
    """The machine's time, and more."""

    def __init__(self) -> None:
        self.ahead_ns = 0

    def mono_ns(self) -> int:
        return CLOCK.mono_ns() + self.ahead_ns

    def unix_ns(self) -> int:
        return CLOCK.unix_ns()

    def triple(self) -> TimeTriple:
        return CLOCK.triple()

    def sleep_until(self, deadline_mono_ns: int) -> None:
        CLOCK.sleep_until(deadline_mono_ns - self.ahead_ns)


@pytest.fixture
def backend(fake_nvml: FakeNvml) -> CountedNvml:
    opened = CountedNvml()
    fake_nvml.opened.append(opened)
    return opened


def kinds(records: Records) -> set[bytes]:
    """The different records, word for word but for their times."""
    blank = records.copy()
    for name in TIMES:
        blank[name] = 0
    return {record.tobytes() for record in blank}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Something that a driver does; how many kinds of records a loop makes of it."""

    trouble: Callable[[GpuLayout], object]
    kinds_count: int = 2
    is_planned: bool = True


CASES = {
    "nothing": Case(trouble=GpuLayout.calls_total),
    "a clock limited for many reasons": Case(
        trouble=lambda gpu: gpu.plays(Segment(sm_clock_mhz=1234, reasons=0x1E7, power_mw=123_457))
    ),
    "reasons that nobody knows": Case(trouble=lambda gpu: gpu.plays(Segment(reasons=1 << 63))),
    "frost": Case(trouble=lambda gpu: gpu.plays(Segment(temperature_c=-7))),
    "counters past what a double holds": Case(
        trouble=lambda gpu: gpu.limited_start_ns.__setitem__(0, 2**53 + 1)
    ),
    "a field that is absent": Case(
        trouble=lambda gpu: gpu.fails_field(NOT_SUPPORTED, "thermal", "power_instant"),
        is_planned=False,
    ),
    "an absurd temperature": Case(
        trouble=lambda gpu: gpu.plays(Segment(temperature_c=9999)), is_planned=False
    ),
    "no clock": Case(trouble=lambda gpu: gpu.plays(Segment(sm_clock_mhz=0)), is_planned=False),
    "a counter of all ones": Case(
        trouble=lambda gpu: gpu.limited_start_ns.__setitem__(2, -1), is_planned=False
    ),
    "reasons that can't be read": Case(
        trouble=lambda gpu: gpu.fails(TIMEOUT, "nvmlDeviceGetCurrentClocksEventReasons"),
        is_planned=False,
    ),
    "nothing that can be read": Case(
        trouble=lambda gpu: gpu.fails(TIMEOUT), kinds_count=0, is_planned=False
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_records_are_the_same_word_for_word(
    fake_nvml: FakeNvml, native: NativeLibrary, name: str
) -> None:
    fake_nvml.scenario.freeze(FROZEN_NS)
    gpu, case = fake_nvml.scenario.gpus[0], CASES[name]
    gpu.plays(Segment(), origin_unix_ns=FROZEN_NS - 10**9)
    found = []
    for library in (None, native):
        gpu.fails(SUCCESS)
        backend = CountedNvml()  # which has seen nothing wrong yet
        fake_nvml.opened.append(backend)
        with one_gpu(backend, library) as sampled:
            sampled.samples_on(30)
            case.trouble(gpu)
            status = sampled.ticks_on()
            after = sampled.records[-40:] if case.kinds_count else sampled.records[:0]
            if library is not None and case.is_planned:
                assert backend.read_count == 1  # none of this was read by the back end
            found.append((kinds(after), status.transient_count > 0, status.losses_count))
        gpu.plays(Segment(), origin_unix_ns=FROZEN_NS - 10**9)
        gpu.limited_start_ns[0] = gpu.limited_start_ns[2] = 0
        gpu.fails_field(SUCCESS, "thermal", "power_instant")
    python, c = found
    assert c == python
    assert len(python[0]) == case.kinds_count  # fast and full


def test_what_goes_as_planned_is_read_without_the_back_end(
    backend: CountedNvml, native: NativeLibrary
) -> None:
    with one_gpu(backend, native) as sampled:
        sampled.samples_on(200)
        records, status = sampled.records, sampled.status
    assert backend.read_count == 1  # the first, from which the plan is made
    assert records["scope"].sum() > 5
    assert (np.diff(records["sequence"]) == 1).all()
    assert (np.diff(records["t_mono_ns"]) > 0).all()
    assert status.driver_full_ns > 0
    assert status.ticks_count == status.written


def test_absurd_values_are_dropped_and_counted_by_the_back_end(
    fake_nvml: FakeNvml, backend: CountedNvml, native: NativeLibrary
) -> None:
    """Looks that were not as planned are the back end's; after three in a row no more are made."""
    gpu = fake_nvml.scenario.gpus[0]
    with one_gpu(backend, native) as sampled:
        sampled.samples_on()
        gpu.plays(Segment(sm_clock_mhz=0))
        sampled.samples_on()
        called, written = gpu.calls_of("nvmlDeviceGetClockInfo"), sampled.status.written
        sampled.samples_on(100)
        looks = sampled.status.written - written
        full_looks = int(sampled.records[-looks:]["scope"].sum())
        calls = gpu.calls_of("nvmlDeviceGetClockInfo") - called
        assert np.isnan(sampled.records[-1]["sm_clock_mhz"])
    assert calls <= looks + full_looks + 2  # memory clocks; no clock was asked for twice


def test_a_failure_is_counted_once_for_each_tick(
    fake_nvml: FakeNvml, backend: CountedNvml, native: NativeLibrary
) -> None:
    gpu = fake_nvml.scenario.gpus[0]
    with one_gpu(backend, native) as sampled:
        sampled.samples_on()
        gpu.fails(TIMEOUT)
        sampled.waits_for(lambda status: status.transient_count > 20)
        gpu.fails(SUCCESS)
        sampled.samples_on()
        status = sampled.status
        assert status.state is GpuState.UP
        assert status.ticks_count == status.written + status.transient_count


def test_a_lost_gpu_is_found_again_and_read_by_a_new_plan(
    fake_nvml: FakeNvml, backend: CountedNvml, native: NativeLibrary
) -> None:
    gpu = fake_nvml.scenario.gpus[0]
    with one_gpu(backend, native) as sampled:
        sampled.samples_on()
        gpu.fails(GPU_IS_LOST)
        status = sampled.waits_for(lambda status: status.state is GpuState.LOST)
        assert status.losses_count == 1
        gpu.fails(SUCCESS)
        sampled.waits_for(lambda status: status.state is GpuState.UP)
        sampled.samples_on()
        reads_count = backend.read_count
        sampled.samples_on()
        assert backend.read_count == reads_count


def test_a_call_that_hangs_is_seen_and_its_end_is_one_long_sample(
    fake_nvml: FakeNvml, backend: CountedNvml, native: NativeLibrary
) -> None:
    gpu = fake_nvml.scenario.gpus[0]
    with one_gpu(backend, native) as sampled:
        sampled.samples_on()
        gpu.fails(SUCCESS, "nvmlDeviceGetClockInfo", delay_ms=60_000)
        started_ns = sampled.waits_for(
            lambda status: (
                status.call_started_mono_ns
                and CLOCK.mono_ns() - status.call_started_mono_ns > 400_000_000
            )
        ).call_started_mono_ns
        gpu.fails(SUCCESS, "nvmlDeviceGetClockInfo")
        assert started_ns is not None
        sampled.samples_on()
        records, status = sampled.records, sampled.status
    assert status.call_started_mono_ns is None
    longest = records[np.argmax(records["span_ns"])]
    assert longest["span_ns"] > 400_000_000
    assert longest["t_mono_ns"] == started_ns + longest["span_ns"] // 2
    assert status.missed_count >= 75  # 400 ms of 5 ms periods
    assert backend.read_count == 1


def test_a_field_that_begins_to_answer_is_found_by_the_back_ends_own_reads(
    fake_nvml: FakeNvml, native: NativeLibrary
) -> None:
    """The driver lacks a field at first; the back end asks for it again after a minute of its."""
    gpu, clock = fake_nvml.scenario.gpus[0], AheadClock()
    gpu.fails(NOT_SUPPORTED, "nvmlDeviceGetUtilizationRates")
    backend = CountedNvml(clock)
    fake_nvml.opened.append(backend)
    with one_gpu(backend, native, own_read_every_ns=100_000_000) as sampled:
        sampled.samples_on()
        gpu.fails(SUCCESS, "nvmlDeviceGetUtilizationRates")
        sampled.samples_on()
        assert np.isnan(sampled.records["activity_ratio"]).all()
        clock.ahead_ns = 61 * 10**9
        wait_for(lambda: not np.isnan(sampled.records["activity_ratio"]).all())
        reads_count, written = backend.read_count, sampled.status.written
        sampled.samples_on(100)
        full = sampled.full_records
        assert (full["activity_ratio"][-3:] == 1.0).all()
        assert backend.read_count - reads_count < (sampled.status.written - written) / 5


def test_a_stop_is_seen_within_a_nap_of_a_long_wait(
    backend: CountedNvml, native: NativeLibrary
) -> None:
    settings = replace(QUICK, hz=0.1, slow_hz=0.1)
    with one_gpu(backend, native, settings) as sampled:
        began_ns = CLOCK.mono_ns()
        sampled.stop()
        assert CLOCK.mono_ns() - began_ns < 5 * 250_000_000


def test_an_idle_gpu_is_read_less_often_until_it_works_again(
    fake_nvml: FakeNvml, backend: CountedNvml, native: NativeLibrary
) -> None:
    """The pace is looked at each 5 s; at the idle pace after each read."""
    gpu = fake_nvml.scenario.gpus[0]
    gpu.plays(Segment(reasons=1, activity_percent=0))
    settings = replace(QUICK, idle_hz=5.0, idle_after_s=1.0)
    with one_gpu(backend, native, settings) as sampled:
        status = sampled.waits_for(lambda status: status.pace is Pace.IDLE)
        assert status.period_ns == 200_000_000
        gpu.plays(Segment())
        began_ns = CLOCK.mono_ns()
        status = sampled.waits_for(lambda status: status.pace is Pace.ASKED)
        assert CLOCK.mono_ns() - began_ns < 5 * 400_000_000  # at most two periods, with slack
        assert backend.read_count < 10


def test_the_loop_ends_when_another_process_has_taken_over(
    backend: CountedNvml, native: NativeLibrary
) -> None:
    with one_gpu(backend, native) as sampled:
        sampled.samples_on()
        RingWriter(sampled.fd, RingDescription(gpus=backend.devices()), 256).close()
        wait_for(lambda: not sampled.thread.is_alive())
        status = sampled.status
        assert (status.state, status.call_started_mono_ns) == (GpuState.UNSEEN, None)


def test_what_a_call_gives_after_a_take_over_is_not_written(
    fake_nvml: FakeNvml, backend: CountedNvml, native: NativeLibrary
) -> None:
    gpu = fake_nvml.scenario.gpus[0]
    with one_gpu(backend, native) as sampled:
        sampled.samples_on()
        gpu.fails(HANGS, "nvmlDeviceGetClockInfo")
        sampled.waits_for(
            lambda status: (
                status.call_started_mono_ns
                and CLOCK.mono_ns() - status.call_started_mono_ns > 50_000_000
            )
        )
        RingWriter(sampled.fd, RingDescription(gpus=backend.devices()), 256).close()
        before = whole_memory(sampled.fd)
        gpu.fails(SUCCESS, "nvmlDeviceGetClockInfo")
        wait_for(lambda: not sampled.thread.is_alive())
        assert whole_memory(sampled.fd) == before


def whole_memory(fd: int) -> bytes:
    return os.pread(fd, os.fstat(fd).st_size, 0)


def test_values_that_are_no_part_of_a_sample_are_kept_fresh(
    backend: CountedNvml, native: NativeLibrary
) -> None:
    """The fake's average power is that of the last second: 500 W."""
    with one_gpu(backend, native) as sampled:
        sampled.samples_on()
        first_ns = sampled.reader.slow_state(0).state_mono_ns
        assert first_ns is not None
        sampled.samples_on()
        aside = sampled.reader.slow_state(0)
        assert aside.state_mono_ns is not None
        assert aside.state_mono_ns > first_ns
        full = sampled.full_records
        assert aside.state_mono_ns in full["t_mono_ns"]
        assert aside.state["power_average_w"] == pytest.approx(500.0)
        assert backend.read_count == 1


def test_a_hang_in_a_look_without_python_is_seen_as_any_other(
    started: Callable[..., SamplerSupervisor],
    fake_nvml: FakeNvml,
    native: NativeLibrary,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert native is not None
    monkeypatch.setenv("LD_LIBRARY_PATH", str(fake_nvml.library.parent))
    gpu = fake_nvml.scenario.gpus[0]
    supervisor = started("-m", "chopperd", "_sampler", "--backend", "nvml", hz=100.0)
    wait_for(lambda: written(supervisor, 0) > 20)
    first = supervisor.pid
    gpu.fails(0, "nvmlDeviceGetClockInfo", delay_ms=3000)
    wait_for(lambda: supervisor.poll() is SupervisorState.STARTING)
    assert supervisor.left_pids == (first,)
    gpu.fails(0, "nvmlDeviceGetClockInfo")
    wait_until_gone(supervisor)  # once its call has returned
    wait_for(lambda: supervisor.poll() is SupervisorState.RUNNING)
    before = written(supervisor, 0)
    wait_for(lambda: written(supervisor, 0) > before + 20)
    records = supervisor.reader.drain(0).records
    assert (records["span_ns"] < 2 * NS_PER_S).all()  # what the first one read then, it dropped

"""The expected readings are rows of `tests.fakes.samples.track`, read off by hand."""

import numpy as np
import pytest
from msgspec.structs import replace

from chopperd.devices.replay import ReplayBackend
from chopperd.errors import BackendUnavailableError, DeviceLostError, TransientDeviceError
from chopperd.model.devices import DeviceReading, ReadScope
from chopperd.model.kinds import Cause
from chopperd.model.samples import SampleSet
from chopperd.units import NS_PER_S
from tests.fakes.clock import ScriptedClock
from tests.fakes.samples import PERIOD_NS, START_UNIX_NS, column, gpu_info, recording, track


def test_the_first_look_gives_the_first_sample() -> None:
    backend = ReplayBackend(recording(), ScriptedClock())
    assert backend.read(gpu_info(), ReadScope.FULL) == DeviceReading(
        sm_clock_mhz=1980,
        mem_clock_mhz=2619,
        power_w=700,
        energy_j=1000,
        temperature_c=61,
        memory_used_bytes=8_388_608,
        activity_ratio=0,
        causes=frozenset(),
        limited_ns={Cause.POWER_CAP: 0},
    )


def test_a_fast_look_has_clock_and_limits_only() -> None:
    backend = ReplayBackend(recording(), ScriptedClock())
    assert backend.read(gpu_info(), ReadScope.FAST) == DeviceReading(
        sm_clock_mhz=1980, causes=frozenset(), limited_ns={Cause.POWER_CAP: 0}
    )


def test_each_look_gives_the_dies_of_its_sample() -> None:
    dies_mhz = np.full((len(track()), 3), np.nan)
    dies_mhz[0] = 2100, 0, np.nan
    backend = ReplayBackend(
        SampleSet(gpus=(replace(track(), die_clocks_mhz=dies_mhz),)), ScriptedClock()
    )
    for scope in ReadScope:
        assert backend.read(gpu_info(), scope).die_clocks_mhz == (2100, 0, None)


def test_a_sample_is_held_until_the_next_one_is_due() -> None:
    clock = ScriptedClock()
    backend = ReplayBackend(recording(), clock)
    clock.advance(PERIOD_NS - 1)
    assert backend.read(gpu_info(), ReadScope.FAST).sm_clock_mhz == 1980
    clock.advance(1)
    reading = backend.read(gpu_info(), ReadScope.FAST)
    assert reading.sm_clock_mhz == 1905
    assert reading.causes == frozenset({Cause.POWER_CAP})


def test_what_was_not_recorded_is_absent_not_zero() -> None:
    clock = ScriptedClock()
    backend = ReplayBackend(recording(), clock)
    clock.advance(2 * PERIOD_NS)
    assert backend.read(gpu_info(), ReadScope.FAST) == DeviceReading()


def test_an_unknown_limit_beside_a_known_one_is_kept() -> None:
    clock = ScriptedClock()
    backend = ReplayBackend(recording(), clock)
    clock.advance(3 * PERIOD_NS)
    causes = backend.read(gpu_info(), ReadScope.FAST).causes
    assert causes == frozenset({Cause.POWER_CAP, Cause.UNKNOWN})


def test_a_full_look_finds_the_slow_loop_s_last_values() -> None:
    clock = ScriptedClock()
    backend = ReplayBackend(recording(), clock)
    clock.advance(PERIOD_NS)
    assert backend.read(gpu_info(), ReadScope.FULL).power_w == 700
    clock.advance(3 * PERIOD_NS)
    reading = backend.read(gpu_info(), ReadScope.FULL)
    assert reading.power_w == 310.5
    assert reading.memory_used_bytes == 0


def test_slow_values_older_than_two_seconds_are_not_held() -> None:
    slow = replace(
        track(),
        t_unix_ns=START_UNIX_NS + NS_PER_S * np.arange(5, dtype=np.int64),
        power_w=column(700, None, None, None, None),
    )
    clock = ScriptedClock()
    backend = ReplayBackend(SampleSet(gpus=(slow,)), clock)
    clock.advance(2 * NS_PER_S)
    assert backend.read(gpu_info(), ReadScope.FULL).power_w == 700
    clock.advance(NS_PER_S)
    assert backend.read(gpu_info(), ReadScope.FULL).power_w is None


def test_after_its_end_a_recording_gives_nothing() -> None:
    clock = ScriptedClock()
    backend = ReplayBackend(recording(), clock)
    clock.advance(5 * PERIOD_NS - 1)
    assert backend.read(gpu_info(), ReadScope.FAST).sm_clock_mhz == 1395
    clock.advance(1)
    with pytest.raises(TransientDeviceError, match="GPU 0: the recording ended"):
        backend.read(gpu_info(), ReadScope.FAST)


def test_a_gpu_recorded_later_than_the_others_is_not_yet_there() -> None:
    late = track(1, start_unix_ns=START_UNIX_NS + 2 * PERIOD_NS)
    clock = ScriptedClock()
    backend = ReplayBackend(SampleSet(gpus=(track(0), late)), clock)
    clock.advance(PERIOD_NS)
    with pytest.raises(TransientDeviceError, match="has not begun"):
        backend.read(gpu_info(1), ReadScope.FAST)
    clock.advance(PERIOD_NS)
    assert backend.read(gpu_info(1), ReadScope.FAST).sm_clock_mhz == 1980


def test_a_gpu_without_samples_is_not_listed() -> None:
    whole = track(0)
    empty = replace(
        track(1),
        **{
            name: getattr(whole, name)[:0]
            for name in ("t_unix_ns", "sm_clock_mhz", "read_span_ns", "causes")
        },
    )
    backend = ReplayBackend(SampleSet(gpus=(whole, empty)), ScriptedClock())
    assert backend.devices() == (gpu_info(0),)
    with pytest.raises(DeviceLostError, match="not in the recording"):
        backend.read(gpu_info(1), ReadScope.FAST)


def test_an_empty_recording_cannot_be_opened() -> None:
    with pytest.raises(BackendUnavailableError, match="no sample"):
        ReplayBackend(SampleSet(gpus=()), ScriptedClock())


def test_where_the_values_come_from_is_passed_on() -> None:
    backend = ReplayBackend(replace(recording(), simulated=True), ScriptedClock())
    assert backend.simulated
    assert backend.driver == "595.45.04"

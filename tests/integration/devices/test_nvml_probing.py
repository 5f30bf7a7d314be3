"""What a GPU answers over NVML: asked for again and again, and told field by field."""

from collections.abc import Callable

import pytest

from chopperd.devices.base import ProbesFields
from chopperd.devices.channel import PROBE_INTERVAL_NS
from chopperd.devices.nvml.backend import NvmlBackend
from chopperd.errors import DeviceLostError
from chopperd.model.devices import DeviceReading, FieldProbe, ReadScope
from chopperd.units import NS_PER_MS
from tests.fakes.clock import ScriptedClock
from tests.fakes.nvml.fixtures import FakeNvml, MakeFakeNvml
from tests.fakes.nvml.scenario import (
    BUFFERED_SAMPLES,
    GPU_IS_LOST,
    INVALID_ARGUMENT,
    NO_PERMISSION,
    NOT_SUPPORTED,
    SUCCESS,
    TIMEOUT,
    Segment,
)
from tests.integration.devices.h100 import H100

CALL_OF = {
    "sm_clock_mhz": "nvmlDeviceGetClockInfo",
    "causes": "nvmlDeviceGetCurrentClocksEventReasons",
    "energy_j": "nvmlDeviceGetTotalEnergyConsumption",
    "temperature_c": "nvmlDeviceGetTemperatureV",
    "memory_used_bytes": "nvmlDeviceGetMemoryInfo_v2",
    "activity_ratio": "nvmlDeviceGetUtilizationRates",
    "power_limit_w": "nvmlDeviceGetEnforcedPowerLimit",
}
ALTERNATIVES = (
    "nvmlDeviceGetCurrentClocksThrottleReasons",
    "nvmlDeviceGetTemperature",
    "nvmlDeviceGetMemoryInfo",
)
FIELD_OF = {
    "power_w": "power_instant",
    "power_average_w": "power_average",
    "temperature_memory_c": "memory_temperature",
}


def without_alternatives(fake: FakeNvml) -> None:
    gpu = fake.scenario.gpus[0]
    gpu.fails(NOT_SUPPORTED, *ALTERNATIVES, "nvmlDeviceGetPowerUsage")
    gpu.fails_field(NOT_SUPPORTED, "energy")


def value(reading: DeviceReading, field: str) -> object:
    return getattr(reading, field)


@pytest.mark.parametrize("code", [NO_PERMISSION, INVALID_ARGUMENT, NOT_SUPPORTED])
@pytest.mark.parametrize("field", sorted(CALL_OF))
def test_what_a_driver_refuses_at_first_is_there_within_a_minute_of_being_granted(
    fake_nvml: FakeNvml, field: str, code: int
) -> None:
    gpu = fake_nvml.scenario.gpus[0]
    without_alternatives(fake_nvml)
    gpu.fails(code, CALL_OF[field])
    clock = ScriptedClock()
    backend = fake_nvml.open(clock)
    assert value(backend.read(H100, ReadScope.FULL), field) is None
    gpu.fails(SUCCESS, CALL_OF[field])
    clock.advance(PROBE_INTERVAL_NS)
    assert value(backend.read(H100, ReadScope.FULL), field) is not None


@pytest.mark.parametrize("code", [NO_PERMISSION, INVALID_ARGUMENT])
@pytest.mark.parametrize("field", sorted(FIELD_OF))
def test_field_values_refused_at_first_are_there_within_a_minute(
    fake_nvml: FakeNvml, field: str, code: int
) -> None:
    gpu = fake_nvml.scenario.gpus[0]
    without_alternatives(fake_nvml)
    gpu.fails_field(code, *FIELD_OF.values())
    clock = ScriptedClock()
    backend = fake_nvml.open(clock)
    assert value(backend.read(H100, ReadScope.FULL), field) is None
    gpu.fails_field(SUCCESS, *FIELD_OF.values())
    clock.advance(PROBE_INTERVAL_NS)
    assert value(backend.read(H100, ReadScope.FULL), field) is not None


@pytest.mark.parametrize("field", sorted(CALL_OF))
def test_a_first_call_that_fails_for_now_hides_nothing(fake_nvml: FakeNvml, field: str) -> None:
    gpu = fake_nvml.scenario.gpus[0]
    gpu.fails(TIMEOUT, CALL_OF[field])
    backend = fake_nvml.open()
    assert value(backend.read(H100, ReadScope.FULL), field) is None
    gpu.fails(SUCCESS)
    assert value(backend.read(H100, ReadScope.FULL), field) is not None


def test_all_that_was_absent_is_asked_for_at_once_after_a_loss(fake_nvml: FakeNvml) -> None:
    gpu = fake_nvml.scenario.gpus[0]
    gpu.fails_field(NOT_SUPPORTED, "memory_temperature")
    backend = fake_nvml.open(ScriptedClock())
    gpu.fails(GPU_IS_LOST)
    with pytest.raises(DeviceLostError):
        backend.read(H100, ReadScope.FULL)
    gpu.fails(SUCCESS)
    gpu.fails_field(SUCCESS, "memory_temperature")
    assert backend.read(H100, ReadScope.FULL).temperature_memory_c == 55


def test_a_bad_first_look_is_followed_by_another_before_sources_are_told(
    fake_nvml: FakeNvml,
) -> None:
    """The first call on a GPU that slept is the one that fails."""
    gpu = fake_nvml.scenario.gpus[0]
    gpu.fails(TIMEOUT, "nvmlDeviceGetMemoryInfo_v2", delay_ms=1)
    backend = fake_nvml.open()
    assert backend.devices()[0].memory_source is None
    # Once by the identity and three looks.
    assert gpu.calls_of("nvmlDeviceGetMemoryInfo_v2") == 4


def probes(backend: NvmlBackend, calls_count: int = 3) -> dict[str, list[FieldProbe]]:
    assert isinstance(backend, ProbesFields)
    by_operation: dict[str, list[FieldProbe]] = {}
    for probe in backend.probe(backend.devices()[0], calls_count):
        by_operation.setdefault(probe.operation, []).append(probe)
    return by_operation


def test_a_probe_tells_each_call_s_answer_in_the_driver_s_own_unit(fake_nvml: FakeNvml) -> None:
    found = probes(fake_nvml.open())
    (clock,) = found["nvmlDeviceGetClockInfo[1]"]
    assert (clock.feeds, clock.used, clock.value, clock.unit) == ("sm_clock_mhz", True, 1980, "MHz")
    (instant,) = found["nvmlDeviceGetFieldValues[186]"]
    assert (instant.feeds, instant.source, instant.used) == ("power_w", "instant", True)
    assert (instant.value, instant.unit) == (500_000, "mW")
    (brake,) = found["nvmlDeviceGetFieldValues[271]"]
    assert (brake.feeds, brake.used) == ("limited_ns.power_brake", True)
    (slowdown,) = found["nvmlDeviceGetTemperatureThreshold[1]"]
    assert (slowdown.feeds, slowdown.value) == ("temperature_slowdown_c", 95)


def test_a_probe_names_what_does_not_answer_and_why(fake_nvml: FakeNvml) -> None:
    found = probes(fake_nvml.open())
    asked = found["nvmlDeviceGetFieldValues[186, module]"]
    (module,) = (probe for probe in asked if probe.source == "module")
    assert (module.answers, module.used, module.value) == (False, False, None)
    assert (module.error, module.error_code) == ("Not Supported", NOT_SUPPORTED)
    (clock,) = found["nvmlDeviceGetFieldValues[272]"]
    assert (clock.feeds, clock.answers) == (None, False)


def test_a_probe_tells_ways_that_answer_from_the_one_in_use(fake_nvml: FakeNvml) -> None:
    found = probes(fake_nvml.open())
    v2, reserved, size = found["nvmlDeviceGetMemoryInfo_v2"]
    assert [v2.used, reserved.used, size.used] == [True, True, True]
    assert (v2.value, reserved.value) == (8 << 20, 992 << 20)
    v1 = found["nvmlDeviceGetMemoryInfo"][0]
    assert (v1.answers, v1.used, v1.value) == (True, False, 1_048_576_000)


def test_a_symbol_that_a_driver_lacks_is_a_function_not_found(make_fake_nvml: MakeFakeNvml) -> None:
    fake = make_fake_nvml(without=frozenset({"nvmlDeviceGetFieldValues"}))
    (instant,) = probes(fake.open())["nvmlDeviceGetFieldValues[186]"]
    assert (instant.error, instant.error_code) == ("Function Not Found", 13)


def test_a_probe_times_each_call(fake_nvml: FakeNvml) -> None:
    fake_nvml.scenario.gpus[0].fails(SUCCESS, "nvmlDeviceGetPowerUsage", delay_ms=2)
    (usage,) = probes(fake_nvml.open(), calls_count=5)["nvmlDeviceGetPowerUsage"]
    assert usage.calls_count == 5
    assert usage.call_p50_ns is not None
    assert usage.call_p99_ns is not None
    assert 2 * NS_PER_MS <= usage.call_p50_ns <= usage.call_p99_ns


def test_a_call_that_does_not_answer_is_made_once(fake_nvml: FakeNvml) -> None:
    gpu = fake_nvml.scenario.gpus[0]
    backend = fake_nvml.open()
    gpu.fails(NOT_SUPPORTED, "nvmlDeviceGetUtilizationRates")
    before = gpu.calls_of("nvmlDeviceGetUtilizationRates")
    (activity,) = probes(backend, calls_count=50)["nvmlDeviceGetUtilizationRates"]
    assert (activity.calls_count, activity.call_p50_ns) == (1, None)
    assert gpu.calls_of("nvmlDeviceGetUtilizationRates") == before + 1


def test_probing_leaves_readings_and_plans_alone(fake_nvml: FakeNvml) -> None:
    gpu = fake_nvml.scenario.gpus[0]
    backend = fake_nvml.open()
    plan = backend.read_plan(H100, ReadScope.FULL)
    gpu.fails(TIMEOUT, "nvmlDeviceGetTotalEnergyConsumption")
    probes(backend)
    assert backend.read_plan(H100, ReadScope.FULL) is plan


def test_a_lost_gpu_can_t_be_probed(fake_nvml: FakeNvml) -> None:
    backend = fake_nvml.open()
    fake_nvml.scenario.gpus[0].fails(GPU_IS_LOST, "nvmlDeviceGetFieldValues")
    with pytest.raises(DeviceLostError):
        backend.probe(H100)


def test_the_driver_s_own_samples_tell_a_sensor_s_period(fake_nvml: FakeNvml) -> None:
    fake_nvml.scenario.gpus[0].buffers(power=20 * NS_PER_MS, sm_clock=100 * NS_PER_MS)
    backend = fake_nvml.open()
    assert backend.buffered_period_ns(H100, "power_w") == 20 * NS_PER_MS
    assert backend.buffered_period_ns(H100, "sm_clock_mhz") == 100 * NS_PER_MS
    assert backend.buffered_period_ns(H100, "temperature_c") is None
    (samples,) = probes(backend)["nvmlDeviceGetSamples[power_w]"]
    assert (samples.feeds, samples.value) == (None, BUFFERED_SAMPLES)


def no_call(fake: FakeNvml) -> None:
    fake.scenario.gpus[0].buffers(power=0, sm_clock=0)


def lost(fake: FakeNvml) -> None:
    fake.scenario.gpus[0].fails(GPU_IS_LOST)


@pytest.mark.parametrize("spoil", [no_call, lost])
def test_a_driver_that_keeps_no_samples_tells_no_period(
    fake_nvml: FakeNvml, spoil: Callable[[FakeNvml], None]
) -> None:
    backend = fake_nvml.open()
    spoil(fake_nvml)
    assert backend.buffered_period_ns(H100, "power_w") is None


def test_an_accumulated_clock_is_probed_and_enters_no_sample(fake_nvml: FakeNvml) -> None:
    gpu = fake_nvml.scenario.gpus[0]
    gpu.fails_field(SUCCESS, "accumulated_frequency")
    gpu.plays(Segment(sm_clock_mhz=1500))
    backend = fake_nvml.open()
    (clock,) = probes(backend)["nvmlDeviceGetFieldValues[272]"]
    assert clock.answers
    assert clock.value
    assert backend.read(H100, ReadScope.FULL).sm_clock_mhz == 1500

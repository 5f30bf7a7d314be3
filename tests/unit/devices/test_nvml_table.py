"""The table of NVML calls against the binding's own constants and C structures."""

import ctypes

import pynvml
import pytest

from chopperd.devices.nvml import table
from chopperd.devices.nvml.calls import CODE_OFFSET, TYPE_OFFSET, VALUE_OFFSET
from chopperd.devices.nvml.codes import limit_fields
from chopperd.devices.nvml.table import Direct, FieldValue, Sensor
from chopperd.devices.read_plan import FORMAT_BY_KIND
from chopperd.model.devices import DeviceReading, GpuInfo

READ = (
    table.SM_CLOCK,
    table.REASONS,
    table.POWER,
    table.POWER_AVERAGE,
    table.MODULE_POWER_AVERAGE,
    *table.SLOW,
    table.MEMORY_USED,
    table.MEMORY_RESERVED,
    *table.limit_counters(limit_fields("595.45.04")).values(),
)
ALL = (*READ, table.MEMORY_SIZE, *table.FIXED)


def direct(sensor: Sensor, position: int = 0) -> Direct:
    method = sensor.methods[position]
    assert isinstance(method, Direct)
    return method


def test_each_sensor_feeds_a_field_that_there_is() -> None:
    known = {name for cls in (DeviceReading, GpuInfo) for name in cls.__struct_fields__}
    assert {sensor.name.partition(".")[0] for sensor in ALL} <= known


def test_names_and_the_ways_of_each_field_are_told_apart() -> None:
    assert len({sensor.name for sensor in READ}) == len(READ)
    for sensor in READ:
        assert len({method.label for method in sensor.methods}) == len(sensor.methods)


def test_each_number_lies_inside_its_buffer() -> None:
    for sensor in ALL:
        for method in sensor.methods:
            if isinstance(method, Direct):
                assert method.offset + FORMAT_BY_KIND[method.kind].size <= method.size_bytes
                assert len(method.words) * 4 <= method.size_bytes


@pytest.mark.parametrize(
    ("method", "structure", "member"),
    [
        (direct(table.MEMORY_USED), pynvml.c_nvmlMemory_v2_t, "used"),
        (direct(table.MEMORY_RESERVED), pynvml.c_nvmlMemory_v2_t, "reserved"),
        (direct(table.MEMORY_SIZE), pynvml.c_nvmlMemory_v2_t, "total"),
        (direct(table.MEMORY_USED, 1), pynvml.c_nvmlMemory_t, "used"),
        (direct(table.MEMORY_SIZE, 1), pynvml.c_nvmlMemory_t, "total"),
        (direct(table.TEMPERATURE), pynvml.c_nvmlTemperature_v1_t, "temperature"),
        (direct(table.ACTIVITY), pynvml.c_nvmlUtilization_t, "gpu"),
    ],
)
def test_structures_are_laid_out_as_the_binding_has_them(
    method: Direct, structure: type[ctypes.Structure], member: str
) -> None:
    place = getattr(structure, member)
    assert method.size_bytes == ctypes.sizeof(structure)
    assert (method.offset, FORMAT_BY_KIND[method.kind].size) == (place.offset, place.size)


def test_versions_are_the_binding_s() -> None:
    assert direct(table.MEMORY_USED).words == (pynvml.nvmlMemory_v2,)
    assert direct(table.TEMPERATURE).words == (
        pynvml.nvmlTemperature_v1,
        pynvml.NVML_TEMPERATURE_GPU,
    )


def test_a_field_value_is_laid_out_as_the_binding_has_it() -> None:
    structure = pynvml.c_nvmlFieldValue_t
    members = ("fieldId", "scopeId", "valueType", "nvmlReturn", "value")
    offsets = {member: getattr(structure, member).offset for member in members}
    assert list(offsets.values()) == [0, 4, TYPE_OFFSET, CODE_OFFSET, VALUE_OFFSET]
    assert ctypes.sizeof(structure) == 40


@pytest.mark.parametrize(
    ("sensor", "argument"),
    [
        (table.SM_CLOCK, pynvml.NVML_CLOCK_SM),
        (table.MEM_CLOCK, pynvml.NVML_CLOCK_MEM),
        (table.FIXED[0], pynvml.NVML_CLOCK_SM),
        (table.FIXED[1], pynvml.NVML_CLOCK_MEM),
        (table.FIXED[2], pynvml.NVML_CLOCK_GRAPHICS),
        (table.FIXED[4], pynvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN),
        (table.FIXED[5], pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN),
        (table.FIXED[6], pynvml.NVML_TEMPERATURE_THRESHOLD_MEM_MAX),
    ],
)
def test_arguments_are_the_binding_s_constants(sensor: Sensor, argument: int) -> None:
    assert direct(sensor).argument == argument


def test_the_old_counters_are_asked_for_by_their_policy() -> None:
    counters = table.limit_counters({})
    asked = {
        cause.label: method.argument
        for cause, sensor in counters.items()
        for method in sensor.methods
        if isinstance(method, Direct)
    }
    assert asked == {
        "power_cap": pynvml.NVML_PERF_POLICY_POWER,
        "thermal": pynvml.NVML_PERF_POLICY_THERMAL,
        "sync_boost": pynvml.NVML_PERF_POLICY_SYNC_BOOST,
    }


def test_field_ids_are_the_binding_s_constants() -> None:
    ids = {
        method.field_id
        for sensor in READ
        for method in sensor.methods
        if isinstance(method, FieldValue)
    }
    assert ids | {table.ACCUMULATED_CLOCK.field_id} == {
        pynvml.NVML_FI_DEV_POWER_INSTANT,
        pynvml.NVML_FI_DEV_POWER_AVERAGE,
        pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION,
        pynvml.NVML_FI_DEV_MEMORY_TEMP,
        pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP,
        pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_SYNC_BOOST,
        pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN,
        pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN,
        pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN,
        pynvml.NVML_FI_DEV_POWER_SYNC_BALANCING_FREQ,
    }

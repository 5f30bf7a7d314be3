"""Reads one NVIDIA GPU with separate buffers: probes of all calls, and single sensors."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from ctypes import byref, c_int, c_uint, c_ulonglong, c_void_p, create_string_buffer
from functools import partial
from itertools import pairwise
from struct import Struct
from types import ModuleType
from typing import Final

from msgspec.structs import replace

from chopperd.devices.base import SensorRead
from chopperd.devices.faults import FieldProber, used_if_answered
from chopperd.devices.nvml import table
from chopperd.devices.nvml.calls import DirectNumber, Driver, FieldRequest, number_of
from chopperd.devices.nvml.codes import POWER_INSTANT_FIELD
from chopperd.devices.nvml.identity import SystemMemory
from chopperd.devices.nvml.table import Direct, Method, Sensor
from chopperd.model.devices import FieldProbe, GpuInfo
from chopperd.model.kinds import Cause
from chopperd.units import NS_PER_US, joules_from_millijoules, watts_from_milliwatts

# Samples that the driver stores itself. Only their times are used, which show a sensor's update
# period. Which GPUs store any, and whether they are the numbers of the plain calls, was not seen on
# hardware.

OPERATION: Final = "nvmlDeviceGetSamples"
#: nvmlSamplingType_t of the samples of a field: total power, processor clock.
SAMPLING_TYPES: Final = {"power_w": 0, "sm_clock_mhz": 5}

# nvmlSample_t: time in us since 1970, the value (skipped).
_SAMPLE: Final = Struct("<Q8x")
_MIN_SAMPLES: Final = 3
# A driver that reports more samples is wrong.
_MOST_SAMPLES: Final = 100_000
#: All stored samples are fetched by each call: calls are few.
_MOST_BUFFER_CALLS: Final = 3


def buffered_times_us(driver: Driver, sampling_type: int) -> list[int]:
    """Return times of the driver's stored samples of a type, in its order; us since 1970.

    Raises NVMLError if there are none. Source: nvmlDeviceGetSamples, first for the count, then for
    the samples.
    """
    function = driver.function(OPERATION)
    value_type, count = c_int(), c_uint()
    since = c_ulonglong(0)
    outputs = byref(value_type), byref(count)
    code = function(c_void_p(driver.handle), sampling_type, since, *outputs, None)
    if code:
        raise driver.error(code)
    if not 0 < count.value <= _MOST_SAMPLES:
        return []
    capacity = count.value
    buffer = create_string_buffer(_SAMPLE.size * capacity)
    code = function(c_void_p(driver.handle), sampling_type, since, *outputs, buffer)
    if code:
        raise driver.error(code)
    given = buffer.raw[: _SAMPLE.size * min(count.value, capacity)]
    return [time_us for (time_us,) in _SAMPLE.iter_unpack(given)]


def spacing_ns(times_us: list[int]) -> int | None:
    """Return the median time between two samples, in ns; None for fewer than three samples."""
    times_us = sorted(set(times_us) - {0})
    if len(times_us) < _MIN_SAMPLES:
        return None
    steps_us = sorted(after - before for before, after in pairwise(times_us))
    return steps_us[len(steps_us) // 2] * NS_PER_US


def board_probes(
    driver: Driver, prober: FieldProber, limit_fields: Mapping[int, Cause]
) -> Iterator[FieldProbe]:
    """Probe the calls for all fields of a whole GPU except memory; raises DeviceLostError.

    `limit_fields` gives causes by the field ids of this driver's limit counters.
    """
    for sensor in (table.SM_CLOCK, table.REASONS, table.POWER, table.POWER_AVERAGE):
        yield from _probes(driver, prober, sensor)
    for probe in _probes(driver, prober, table.MODULE_POWER_AVERAGE):
        yield replace(probe, feeds=table.POWER_AVERAGE.name)
    for sensor in (*table.SLOW, *table.limit_counters(limit_fields).values()):
        yield from _probes(driver, prober, sensor)
    for sensor in table.FIXED:
        yield from used_if_answered(*_probes(driver, prober, sensor))
    # Calls that feed no field: probed to see whether they answer.
    clock = table.ACCUMULATED_CLOCK
    base = FieldProbe(operation=clock.label, feeds=None, unit=clock.unit)
    yield prober.asked(base, _question(driver, clock))
    for field, kind in SAMPLING_TYPES.items():
        base = FieldProbe(operation=f"{OPERATION}[{field}]", feeds=None, unit="samples kept")
        count = partial(_samples_count, driver, kind)
        yield prober.asked(base, count, _MOST_BUFFER_CALLS)


def memory_probes(
    driver: Driver, prober: FieldProber, system_memory: SystemMemory | None
) -> Iterator[FieldProbe]:
    """Probe the calls for the memory of a GPU or an instance; raises DeviceLostError.

    `system_memory` is given for a GPU that uses the system's memory.
    """
    used = table.MEMORY_USED.name
    yield from _probes(driver, prober, table.MEMORY_USED)
    if system_memory is not None:
        path = str(system_memory.path)
        base = prober.base(used, path, table.MEMORY_SYSTEM, "bytes")
        used_bytes = system_memory.used_bytes()
        reason = "it does not report total and available memory" if used_bytes is None else None
        yield replace(base, value=used_bytes, error=reason)
    for probe in _probes(driver, prober, table.MEMORY_RESERVED):
        yield replace(probe, used=prober.is_selected(used, probe.operation))
    yield from used_if_answered(*_probes(driver, prober, table.MEMORY_SIZE))


def _probes(driver: Driver, prober: FieldProber, sensor: Sensor) -> Iterable[FieldProbe]:
    """Probe each method to read a field, in the driver's own unit."""
    for method in sensor.methods:
        source, label = method.source, method.full_label
        base = prober.base(sensor.name, method.label, source, method.unit, label)
        yield prober.asked(base, _question(driver, method))


def _question(driver: Driver, method: Method) -> Callable[[], float]:
    if isinstance(method, Direct):
        return DirectNumber(driver, dataclasses.replace(method, per_unit=1)).read
    request = FieldRequest(driver, (method,))

    def ask() -> float:
        code = request.fetch(driver.function(table.FIELD_VALUES))
        value_type, field_code, raw = request.answer(method.key)
        if code or field_code:
            raise driver.error(code or field_code)
        number = number_of(value_type, raw)
        if number is None:
            raise driver.not_supported
        return number

    return ask


def _samples_count(driver: Driver, sampling_type: int) -> float:
    return len(buffered_times_us(driver, sampling_type))


# Single sensors, read by calls and buffers of their own: one driver call per number shows the
# update period of the sensor.

_SCOPE_BY_SOURCE: Final[Mapping[str, int]] = {
    table.POWER_INSTANT: table.GPU_SCOPE,
    table.POWER_MODULE: table.MODULE_SCOPE,
}
#: nvmlFieldValue_t, 40 bytes: id, scope and times are skipped; type, return code, the union.
_FIELD: Final = Struct("<24xIIQ")


def sensor_reads(nvml: ModuleType, device: GpuInfo) -> Mapping[str, SensorRead]:
    """Return functions that read a GPU's clock, power, energy and activity, by field.

    Empty if the GPU is not found, and for an instance, which has no such sensors of its own.

    Source: nvmlDeviceGetClockInfo (MHz), field 186 or nvmlDeviceGetPowerUsage (mW), as in the
    samples, nvmlDeviceGetTotalEnergyConsumption (mJ), nvmlDeviceGetUtilizationRates (%).
    """
    if device.parent is not None:
        return {}
    try:
        handle = nvml.nvmlDeviceGetHandleByUUID(device.uuid)
    except nvml.NVMLError:
        return {}
    reads: dict[str, Callable[[], float | None]] = {
        "sm_clock_mhz": lambda: float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
        "power_w": _power_read(nvml, handle, device.power_source),
        "energy_j": lambda: joules_from_millijoules(
            nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
        ),
        "activity_ratio": lambda: float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu) / 100,
    }
    return {name: _none_on_error(nvml, read) for name, read in reads.items()}


def _power_read(nvml: ModuleType, handle: object, source: str | None) -> SensorRead:
    """Return a function that reads the power, W, by the same field and scope as the samples."""
    scope = _SCOPE_BY_SOURCE.get(source or "")
    if scope is None:
        return lambda: watts_from_milliwatts(nvml.nvmlDeviceGetPowerUsage(handle))
    request = (nvml.c_nvmlFieldValue_t * 1)()

    def read() -> float | None:
        request[0].fieldId, request[0].scopeId = POWER_INSTANT_FIELD, scope
        if nvml.nvmlLib.nvmlDeviceGetFieldValues(handle, 1, request):
            return None
        value_type, code, raw = _FIELD.unpack(request)
        power_mw = None if code else number_of(value_type, raw)
        return None if power_mw is None else watts_from_milliwatts(power_mw)

    return read


def _none_on_error(nvml: ModuleType, read: SensorRead) -> SensorRead:
    def guarded() -> float | None:
        try:
            return read()
        except (nvml.NVMLError, AttributeError):  # AttributeError: a driver without the call
            return None

    return guarded

"""What one GPU answers, call by call and field by field, and what each costs: for people who look.

It asks by itself, into buffers of its own: what samples the GPU meanwhile is left alone.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from ctypes import byref, c_int, c_uint, c_ulonglong, c_void_p, create_string_buffer
from dataclasses import replace
from itertools import pairwise
from struct import Struct
from typing import Final

from chopperd.clock import Clock
from chopperd.devices.channel import DeviceFaults
from chopperd.devices.nvml import table
from chopperd.devices.nvml.board import SystemMemory
from chopperd.devices.nvml.calls import DirectNumber, Driver, FieldRequest, number_of
from chopperd.devices.nvml.table import Direct, FieldValue, Sensor, Way
from chopperd.errors import DeviceLostError
from chopperd.model.devices import FieldProbe
from chopperd.model.kinds import Cause
from chopperd.units import NS_PER_US

# Samples that the driver keeps itself: whether it does, and how far apart they are.
#
# Their values are not mixed into what is sampled here: which GPUs keep any, and whether they are
# the same numbers as those of the plain calls, was not seen on hardware. Their times are the
# driver's own, and so tell a sensor's update period without a guess.

OPERATION: Final = "nvmlDeviceGetSamples"
#: nvmlSamplingType_t by the field that it holds samples of: total power, processor clock.
SAMPLING_TYPES: Final = {"power_w": 0, "sm_clock_mhz": 5}

# nvmlSample_t: time in us since 1970, the value (skipped).
_SAMPLE: Final = Struct("<Q8x")
_MIN_SAMPLES: Final = 3
# A driver that asks for more than that is not believed.
_MOST_SAMPLES: Final = 100_000


def buffered_times_us(driver: Driver, sampling_type: int) -> list[int]:
    """When the samples were taken that the driver holds of a kind, in its order; us since 1970.

    Raises:
        NVMLError: It holds none, or no such kind.

    Source: nvmlDeviceGetSamples, first for the count, then for the samples.
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
    room_count = count.value
    buffer = create_string_buffer(_SAMPLE.size * room_count)
    code = function(c_void_p(driver.handle), sampling_type, since, *outputs, buffer)
    if code:
        raise driver.error(code)
    given = buffer.raw[: _SAMPLE.size * min(count.value, room_count)]
    return [time_us for (time_us,) in _SAMPLE.iter_unpack(given)]


def spacing_ns(times_us: list[int]) -> int | None:
    """Median time between two samples; None for fewer than three."""
    times_us = sorted(set(times_us) - {0})
    if len(times_us) < _MIN_SAMPLES:
        return None
    steps_us = sorted(after - before for before, after in pairwise(times_us))
    return steps_us[len(steps_us) // 2] * NS_PER_US


#: Sensors that the driver may keep samples of are asked for all of them: seldom.
_MOST_BUFFER_CALLS: Final = 3
_P50, _P99 = 0.5, 0.99


class Prober:
    """Asks one GPU for everything that it might answer; each method may raise `DeviceLostError`.

    Args:
        driver: The GPU's entry points.
        faults: Of the GPU: tells what is read by which way. Nothing is counted in it.
        clock: Times the calls.
        calls_count: How often a call is made that answers.
    """

    def __init__(
        self, driver: Driver, faults: DeviceFaults, clock: Clock, calls_count: int
    ) -> None:
        self._driver = driver
        self._faults = faults
        self._clock = clock
        self._calls_count = max(calls_count, 1)

    def board(self, limit_fields: Mapping[int, Cause]) -> Iterator[FieldProbe]:
        """All but memory: of a whole GPU.

        Args:
            limit_fields: Ids of this driver's limit counters.
        """
        for sensor in (table.SM_CLOCK, table.REASONS, table.POWER, table.POWER_AVERAGE):
            yield from self._ways(sensor)
        yield from self._ways(table.MODULE_POWER_AVERAGE, feeds=table.POWER_AVERAGE.name)
        for sensor in (*table.SLOW, *table.limit_counters(limit_fields).values()):
            yield from self._ways(sensor)
        for sensor in table.FIXED:
            yield from _used_if_answered(self._ways(sensor))
        yield from self._unused()

    def memory(self, system_memory: SystemMemory | None) -> Iterator[FieldProbe]:
        """Memory: of a GPU or an instance of one.

        Args:
            system_memory: Where its memory is the system's: that.
        """
        yield from self._ways(table.MEMORY_USED)
        if system_memory is not None:
            yield self._system_memory(system_memory)
        for reserved in self._ways(table.MEMORY_RESERVED):
            kept = self._faults.choices.kept.get(table.MEMORY_USED.name)
            yield replace(reserved, used=kept == reserved.operation)
        yield from _used_if_answered(self._ways(table.MEMORY_SIZE))

    def _ways(self, sensor: Sensor, *, feeds: str | None = None) -> Iterator[FieldProbe]:
        kept = self._faults.choices.kept.get(sensor.name)
        for way in sensor.ways:
            base = FieldProbe(
                operation=way.full_label,
                feeds=feeds or sensor.name,
                source=way.source,
                used=kept == way.label,
                unit=way.unit,
            )
            yield self._asked(base, self._question(way), self._calls_count)

    def _system_memory(self, memory: SystemMemory) -> FieldProbe:
        base = FieldProbe(
            operation=str(memory.path),
            feeds=table.MEMORY_USED.name,
            source=table.MEMORY_SYSTEM,
            used=self._faults.choices.kept.get(table.MEMORY_USED.name) == str(memory.path),
            unit="bytes",
        )
        used_bytes = memory.used_bytes()
        if used_bytes is None:
            return replace(base, error="it does not tell total and available memory")
        return replace(base, value=used_bytes)

    def _unused(self) -> Iterator[FieldProbe]:
        """What is only known to answer or not."""
        clock = table.ACCUMULATED_CLOCK
        base = FieldProbe(operation=clock.label, feeds=None, unit=clock.unit)
        yield self._asked(base, self._question(clock), self._calls_count)
        for field, kind in SAMPLING_TYPES.items():
            base = FieldProbe(operation=f"{OPERATION}[{field}]", feeds=None, unit="samples kept")
            calls_count = min(self._calls_count, _MOST_BUFFER_CALLS)
            yield self._asked(base, self._samples_question(kind), calls_count)

    def _question(self, way: Way) -> Callable[[], float]:
        """Asks for a number in the driver's own unit."""
        if isinstance(way, Direct):
            return DirectNumber(self._driver, replace(way, per_unit=1)).read
        return self._field_question(way)

    def _field_question(self, way: FieldValue) -> Callable[[], float]:
        driver, request = self._driver, FieldRequest(self._driver, (way,))

        def ask() -> float:
            code = request.fetch(driver.function(table.FIELD_VALUES))
            value_type, field_code, raw = request.answer(way.key)
            if code or field_code:
                raise driver.error(code or field_code)
            number = number_of(value_type, raw)
            if number is None:
                raise driver.not_supported
            return number

        return ask

    def _samples_question(self, sampling_type: int) -> Callable[[], float]:
        return lambda: len(buffered_times_us(self._driver, sampling_type))

    def _asked(self, base: FieldProbe, ask: Callable[[], float], calls_count: int) -> FieldProbe:
        """The probe with what the driver answered; it is asked again while it answers."""
        spans_ns: list[int] = []
        value = None
        for _ in range(calls_count):
            started_ns = self._clock.mono_ns()
            try:
                value = ask()
            except self._faults.vendor_error as error:
                failed = self._failed(base, error)
                if not spans_ns:
                    return failed
                break
            spans_ns.append(self._clock.mono_ns() - started_ns)
        return replace(
            base,
            value=value,
            calls_count=len(spans_ns),
            call_p50_ns=_quantile(spans_ns, _P50),
            call_p99_ns=_quantile(spans_ns, _P99),
        )

    def _failed(self, base: FieldProbe, error: Exception) -> FieldProbe:
        failure = self._faults.classified(error, base.operation)
        if isinstance(failure, DeviceLostError):
            raise failure from error
        return replace(base, error=str(error), error_code=failure.vendor_code, calls_count=1)


def _used_if_answered(probes: Iterable[FieldProbe]) -> Iterator[FieldProbe]:
    """The same, the first that answers as the one in use."""
    is_found = False
    for probe in probes:
        yield replace(probe, used=probe.answers and not is_found)
        is_found = is_found or probe.answers


def _quantile(spans_ns: list[int], share: float) -> int:
    """The smallest of the values that at least this share of them does not exceed."""
    return sorted(spans_ns)[max(0, math.ceil(share * len(spans_ns)) - 1)]

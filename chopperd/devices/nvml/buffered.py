"""Samples that the driver keeps itself: whether it does, and how far apart they are.

Their values are not mixed into what is sampled here: which GPUs keep any, and whether they are the
same numbers as those of the plain calls, was not seen on hardware. Their times are the driver's
own, and so tell a sensor's update period without a guess.
"""

from ctypes import byref, c_int, c_uint, c_ulonglong, c_void_p, create_string_buffer
from itertools import pairwise
from struct import Struct
from typing import Final

from chopperd.devices.nvml.direct import Driver
from chopperd.units import NS_PER_US

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

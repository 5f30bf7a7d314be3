from ctypes import CFUNCTYPE, POINTER, c_int, c_uint, c_ulonglong, c_void_p, memmove
from struct import pack
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pynvml
import pytest

from chopperd.devices.nvml.calls import Driver
from chopperd.devices.nvml.probe import SAMPLING_TYPES, buffered_times_us, spacing_ns
from chopperd.units import NS_PER_MS

if TYPE_CHECKING:
    from ctypes import _Pointer

_SAMPLES = CFUNCTYPE(c_int, c_void_p, c_int, c_ulonglong, POINTER(c_int), POINTER(c_uint), c_void_p)


def test_kinds_of_samples_are_the_binding_s_constants() -> None:
    assert SAMPLING_TYPES == {
        "power_w": pynvml.NVML_TOTAL_POWER_SAMPLES,
        "sm_clock_mhz": pynvml.NVML_PROCESSOR_CLK_SAMPLES,
    }


@pytest.mark.parametrize(
    ("times_us", "spacing"),
    [
        ([20_000, 40_000, 60_000, 80_000], 20 * NS_PER_MS),
        ([60_000, 20_000, 80_000, 40_000], 20 * NS_PER_MS),  # a ring told from its middle
        ([0, 0, 20_000, 40_000, 60_000], 20 * NS_PER_MS),  # places not filled yet
        ([20_000, 20_000, 40_000, 60_000], 20 * NS_PER_MS),  # one told twice
        ([20_000, 40_000, 60_000, 900_000, 920_000], 20 * NS_PER_MS),  # a gap
        ([20_000, 40_000], None),
        ([7_000, 7_000, 7_000], None),
        ([], None),
    ],
)
def test_spacing_is_the_usual_step_between_samples(
    times_us: list[int], spacing: int | None
) -> None:
    assert spacing_ns(times_us) == spacing


@pytest.mark.parametrize(("said_count", "times_us"), [(2, [1, 2]), (3, [1, 2, 3]), (9, [1, 2, 3])])
def test_no_more_samples_are_taken_than_there_was_room_for(
    said_count: int, times_us: list[int]
) -> None:
    """Between the two calls the driver may have taken more, and say so."""

    def samples(
        _handle: int,
        _kind: int,
        _since: int,
        _type: "_Pointer[c_int]",
        count: "_Pointer[c_uint]",
        buffer: int | None,
    ) -> int:
        count[0] = 3 if buffer is None else said_count
        if buffer is not None:
            memmove(buffer, b"".join(pack("<Q8x", time_us) for time_us in (1, 2, 3)), 3 * 16)
        return 0

    binding = SimpleNamespace(nvmlLib=SimpleNamespace(nvmlDeviceGetSamples=_SAMPLES(samples)))
    driver = Driver(binding, c_void_p(1))  # type: ignore[arg-type]
    assert buffered_times_us(driver, 0) == times_us

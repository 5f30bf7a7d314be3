"""By what a trace numbers its devices: evidence of either profiler, and none invented."""

import pytest

from chopperd.model.trace import DeviceNumbers
from chopperd.traces.read.meta import device_numbers

LAUNCH, PROPERTIES = "hipLaunchKernel", "hipGetDevicePropertiesR0600"


@pytest.mark.parametrize(
    ("calls", "devices", "has_queues", "expected"),
    [
        ({LAUNCH, PROPERTIES}, (2,), False, DeviceNumbers.HSA_NODES),
        ({LAUNCH}, (2,), True, DeviceNumbers.GPU_ORDINALS),
        ({LAUNCH}, (0,), False, DeviceNumbers.GPU_ORDINALS),  # node 0 is a processor
        ({LAUNCH}, (0, 1), False, DeviceNumbers.GPU_ORDINALS),
        ({LAUNCH}, (2,), False, DeviceNumbers.UNKNOWN),
        (set(), (), False, DeviceNumbers.UNKNOWN),
        ({PROPERTIES}, (0,), False, DeviceNumbers.UNKNOWN),  # evidence of both
        ({PROPERTIES}, (2,), True, DeviceNumbers.UNKNOWN),
    ],
)
def test_only_what_one_profiler_writes_tells(
    calls: set[str], devices: tuple[int, ...], *, has_queues: bool, expected: DeviceNumbers
) -> None:
    assert device_numbers("rocm", calls, devices, has_queues=has_queues) is expected


@pytest.mark.parametrize("runtime", ["cuda", None])
def test_other_traces_number_devices_as_their_properties_do(runtime: str | None) -> None:
    assert device_numbers(runtime, {PROPERTIES}, (2,), has_queues=False) is (
        DeviceNumbers.PROPERTIES
    )

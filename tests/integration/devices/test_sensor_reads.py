"""Single sensors read back to back through the real binding; values are the fake driver's."""

import pytest
from msgspec.structs import replace

from chopperd.devices.base import ReadsSensors
from chopperd.sampling.memory.layout import TIMED_SENSORS
from chopperd.units import NS_PER_MS
from tests.fakes.nvml.fixtures import FakeNvml
from tests.fakes.nvml.scenario import GPU_IS_LOST, NOT_SUPPORTED, Segment

START_UNIX_NS = 1_800_000_000_000_000_000
QUIET = Segment(length_ns=1000 * NS_PER_MS, power_mw=100_000, sm_clock_mhz=345)
BUSY = Segment(length_ns=1000 * NS_PER_MS, power_mw=700_000, sm_clock_mhz=1410, activity_percent=87)


def test_each_read_is_one_number_of_the_driver_in_our_units(fake_nvml: FakeNvml) -> None:
    """0.5 s into the busy second: 700 W now, 400 W on average, 100 + 350 J since the start."""
    gpu = fake_nvml.scenario.gpus[0]
    gpu.plays(QUIET, BUSY, origin_unix_ns=START_UNIX_NS)
    fake_nvml.scenario.freeze(START_UNIX_NS + 1500 * NS_PER_MS)
    backend = fake_nvml.open()
    assert isinstance(backend, ReadsSensors)
    reads = backend.sensor_reads(backend.devices()[0])
    assert set(TIMED_SENSORS) <= set(reads)
    before = gpu.calls_total()
    found = {name: read() for name, read in reads.items()}
    assert gpu.calls_total() - before == len(found)
    assert found == {
        "sm_clock_mhz": 1410.0,
        "power_w": 700.0,
        "energy_j": 450.0,
        "activity_ratio": 0.87,
    }


@pytest.mark.parametrize(
    ("source", "power_w"), [("instant", 700.0), ("module", 750.0), ("average_1s", 400.0)]
)
def test_the_power_that_is_read_is_the_one_that_samples_hold(
    fake_nvml: FakeNvml, source: str, power_w: float
) -> None:
    gpu = fake_nvml.scenario.gpus[0]
    gpu.plays(QUIET, BUSY, origin_unix_ns=START_UNIX_NS)
    gpu.module_extra_mw = 50_000
    gpu.fails_field(0, "module_power_instant")
    fake_nvml.scenario.freeze(START_UNIX_NS + 1500 * NS_PER_MS)
    backend = fake_nvml.open()
    device = replace(backend.devices()[0], power_source=source)
    assert backend.sensor_reads(device)["power_w"]() == power_w


def test_a_read_that_fails_is_no_value_and_no_error(fake_nvml: FakeNvml) -> None:
    gpu = fake_nvml.scenario.gpus[0]
    backend = fake_nvml.open()
    reads = backend.sensor_reads(backend.devices()[0])
    gpu.fails(NOT_SUPPORTED, "nvmlDeviceGetTotalEnergyConsumption")
    gpu.fails(GPU_IS_LOST, "nvmlDeviceGetClockInfo", "nvmlDeviceGetFieldValues")
    assert reads["energy_j"]() is None
    assert reads["sm_clock_mhz"]() is None
    assert reads["power_w"]() is None
    gpu.fails(0)
    gpu.fails_field(NOT_SUPPORTED, "power_instant")
    assert reads["power_w"]() is None


def test_a_gpu_that_is_gone_and_a_partition_have_no_sensors_to_read(fake_nvml: FakeNvml) -> None:
    backend = fake_nvml.open()
    device = backend.devices()[0]
    assert backend.sensor_reads(replace(device, parent="0")) == {}
    assert backend.sensor_reads(replace(device, uuid="GPU-of-another-node")) == {}

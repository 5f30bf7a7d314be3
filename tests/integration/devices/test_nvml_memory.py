"""Memory by NVML: v2, v1, the system's, or none, and never one for another."""

from dataclasses import replace
from pathlib import Path

import pynvml
import pytest

from chopperd.devices.faults import DeviceFaults, VendorErrors
from chopperd.devices.nvml.codes import device_error
from chopperd.devices.nvml.identity import SystemMemory
from chopperd.devices.nvml.sensors import BoardTraits, NvmlSensors
from chopperd.model.devices import DeviceReading, ReadScope
from chopperd.testing import carried_out
from tests.fakes.clock import ScriptedClock
from tests.fakes.nvml.fixtures import BelievedEnergy, FakeNvml, MakeFakeNvml
from tests.fakes.nvml.scenario import NOT_SUPPORTED, Segment
from tests.integration.devices.h100 import H100


def test_memory_is_v2_where_the_driver_has_it(fake_nvml: FakeNvml) -> None:
    backend = fake_nvml.open()
    assert backend.devices()[0].memory_source == "v2"
    assert backend.read(H100, ReadScope.FULL).memory_used_bytes == 8_388_608


def test_memory_v1_holds_the_driver_s_reserve_and_is_named_so(make_fake_nvml: MakeFakeNvml) -> None:
    fake = make_fake_nvml(without=frozenset({"nvmlDeviceGetMemoryInfo_v2"}))
    backend = fake.open()
    assert backend.devices()[0].memory_source == "v1"
    assert backend.devices()[0].memory_size_bytes == 85_899_345_920
    # 8 MiB in use and 992 MiB reserved.
    assert backend.read(H100, ReadScope.FULL).memory_used_bytes == 1_048_576_000


def test_memory_never_changes_its_source_between_samples(fake_nvml: FakeNvml) -> None:
    gpu = fake_nvml.scenario.gpus[0]
    backend = fake_nvml.open()
    gpu.fails(NOT_SUPPORTED, "nvmlDeviceGetMemoryInfo_v2")
    assert backend.read(H100, ReadScope.FULL).memory_used_bytes is None
    assert gpu.calls_of("nvmlDeviceGetMemoryInfo") == 0


def test_a_gpu_without_memory_information_has_all_its_other_fields(fake_nvml: FakeNvml) -> None:
    gpu = fake_nvml.scenario.gpus[0]
    gpu.plays(Segment(power_mw=11_200, temperature_c=35, activity_percent=0))
    gpu.fails(NOT_SUPPORTED, "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMemoryInfo")
    backend = fake_nvml.open()
    reading = backend.read(H100, ReadScope.FULL)
    assert backend.devices()[0].memory_size_bytes is None
    assert reading.memory_used_bytes is None
    assert reading.power_w == 11.2
    assert (reading.temperature_c, reading.activity_ratio) == (35, 0)


def test_memory_and_what_is_reserved_come_by_one_call(fake_nvml: FakeNvml) -> None:
    gpu = fake_nvml.scenario.gpus[0]
    backend = fake_nvml.open()
    before = gpu.calls_of("nvmlDeviceGetMemoryInfo_v2")
    reading = backend.read(H100, ReadScope.FULL)
    assert (reading.memory_used_bytes, reading.memory_reserved_bytes) == (8 << 20, 992 << 20)
    assert gpu.calls_of("nvmlDeviceGetMemoryInfo_v2") == before + 1


def test_v1_says_nothing_of_what_is_reserved(make_fake_nvml: MakeFakeNvml) -> None:
    fake = make_fake_nvml(without=frozenset({"nvmlDeviceGetMemoryInfo_v2"}))
    assert fake.open().read(H100, ReadScope.FULL).memory_reserved_bytes is None


def test_a_reserve_beyond_the_memory_is_absent_and_counted(fake_nvml: FakeNvml) -> None:
    fake_nvml.scenario.gpus[0].memory_reserved_bytes = (1 << 40) + 1
    backend = fake_nvml.open()
    before = backend.implausible_total().get(("0", "memory_reserved_bytes"), 0)
    reading = backend.read(H100, ReadScope.FULL)
    assert (reading.memory_used_bytes, reading.memory_reserved_bytes) == (8 << 20, None)
    assert backend.implausible_total()["0", "memory_reserved_bytes"] == before + 1


MEMINFO = """MemTotal:       125829120 kB
MemFree:         8388608 kB
MemAvailable:   94371840 kB
HugePages_Total:       0
"""


def without_memory(fake: FakeNvml, *names: str) -> None:
    """GPUs that don't answer for memory (case 15)."""
    for gpu, name in zip(fake.scenario.gpus, names, strict=True):
        gpu.name = name.encode()
        gpu.fails(NOT_SUPPORTED, "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMemoryInfo")


def system_memory(folder: Path, text: str = MEMINFO) -> SystemMemory:
    path = folder / "meminfo"
    path.write_text(text)
    return SystemMemory(path)


def test_a_gpu_that_shares_the_system_s_memory_has_that_named_so(
    make_fake_nvml: MakeFakeNvml, tmp_path: Path
) -> None:
    fake = make_fake_nvml(gpu_count=2)
    without_memory(fake, "NVIDIA GB10", "NVIDIA A10")
    backend = fake.open(system_memory=system_memory(tmp_path))
    gb10, a10 = backend.devices()
    assert (gb10.memory_source, gb10.memory_size_bytes) == ("system", 128_849_018_880)
    reading = backend.read(gb10, ReadScope.FULL)
    assert (reading.memory_used_bytes, reading.memory_reserved_bytes) == (32_212_254_720, None)
    assert (a10.memory_source, a10.memory_size_bytes) == (None, None)
    assert backend.read(a10, ReadScope.FULL).memory_used_bytes is None


def test_what_is_not_read_by_a_driver_call_has_no_plan(fake_nvml: FakeNvml, tmp_path: Path) -> None:
    without_memory(fake_nvml, "NVIDIA GB10")
    backend = fake_nvml.open(system_memory=system_memory(tmp_path))
    (device,) = backend.devices()
    assert backend.read_plan(device, ReadScope.FULL) is None
    assert backend.read_plan(device, ReadScope.FAST) is not None


def test_a_driver_that_answers_for_shared_memory_is_believed(
    fake_nvml: FakeNvml, tmp_path: Path
) -> None:
    fake_nvml.scenario.gpus[0].name = b"NVIDIA GB10"
    backend = fake_nvml.open(system_memory=system_memory(tmp_path))
    assert backend.devices()[0].memory_source == "v2"


@pytest.mark.parametrize("text", ["", "MemTotal: 125829120 kB\n", "MemTotal: x kB\n"])
def test_a_system_that_does_not_tell_leaves_the_memory_absent(
    fake_nvml: FakeNvml, tmp_path: Path, text: str
) -> None:
    without_memory(fake_nvml, "NVIDIA GB10")
    backend = fake_nvml.open(system_memory=system_memory(tmp_path, text))
    (device,) = backend.devices()
    reading = backend.read(device, ReadScope.FULL)
    assert (reading.memory_used_bytes, reading.power_w) == (None, 500)


def test_an_instance_is_read_for_its_memory_alone(fake_nvml: FakeNvml) -> None:
    gpu = fake_nvml.scenario.gpus[0]
    fake_nvml.open()
    sensors = sensors_of(fake_nvml, replace(PLAN, has_board=False))
    before = gpu.calls_total()
    assert sensors.read(ReadScope.FULL) == DeviceReading(
        memory_used_bytes=8 << 20, memory_reserved_bytes=992 << 20
    )
    assert sensors.read(ReadScope.FAST) == DeviceReading()
    assert gpu.calls_total() - before == 1
    assert sensors.read_plan(ReadScope.FAST) is None
    plan = sensors.read_plan(ReadScope.FULL)
    assert plan is not None
    assert carried_out(plan) == DeviceReading(
        memory_used_bytes=8 << 20, memory_reserved_bytes=992 << 20
    )


def test_a_card_divided_into_instances_has_neither_memory_nor_activity(fake_nvml: FakeNvml) -> None:
    gpu = fake_nvml.scenario.gpus[0]
    fake_nvml.open()
    before = gpu.calls_of("nvmlDeviceGetMemoryInfo_v2")
    reading = sensors_of(fake_nvml, replace(PLAN, mig=True, has_memory=False)).read(ReadScope.FULL)
    assert (reading.memory_used_bytes, reading.memory_reserved_bytes) == (None, None)
    assert (reading.activity_ratio, reading.power_w, reading.sm_clock_mhz) == (None, 500, 1980)
    assert gpu.calls_of("nvmlDeviceGetMemoryInfo_v2") == before


PLAN = BoardTraits(limit_fields={}, mig=False, memory_size_bytes=None)


def sensors_of(fake: FakeNvml, plan: BoardTraits) -> NvmlSensors:
    """Sensors of their own for the first GPU."""
    assert fake.opened, "NVML is not open"
    vendor = VendorErrors(
        base=pynvml.NVMLError,
        classify=lambda error, operation, index: device_error(
            getattr(error, "value", -1), str(error), operation=operation, device_index=index
        ),
    )
    faults = DeviceFaults(0, vendor, ScriptedClock())
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    return NvmlSensors(pynvml, handle, plan, faults, BelievedEnergy("0"))

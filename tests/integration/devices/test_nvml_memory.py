"""Memory by NVML: v2, v1, the system's, or none, and never one for another."""

from chopperd.model.devices import ReadScope
from tests.fakes.nvml.fixtures import FakeNvml, MakeFakeNvml
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

"""GPU instances, processes and changes as the NVML back end gives them, over the fake driver."""

import pytest

from chopperd.devices.base import ExplainsTrouble, ListsProcesses, NoticesChanges
from chopperd.errors import DeviceLostError, TransientDeviceError
from chopperd.model.devices import DeviceReading, GpuInfo, GpuProcess, ReadScope, Vendor
from chopperd.units import NS_PER_S
from tests.fakes.clock import ScriptedClock
from tests.fakes.nvml.fixtures import FakeNvml, MakeFakeNvml
from tests.fakes.nvml.scenario import GPU_IS_LOST, NO_PERMISSION, SUCCESS, TIMEOUT, UNKNOWN, Segment


@pytest.fixture
def split(fake_nvml: FakeNvml) -> FakeNvml:
    """An H100 at 87 W in parts 1 and 2, with 1 and 2 GiB in use (case 23)."""
    fake_nvml.scenario.gpus[0].plays(Segment(power_mw=87_000))
    fake_nvml.scenario.partition(0, 1, uuid="MIG-1", used_bytes=1 << 30)
    fake_nvml.scenario.partition(0, 2, uuid="MIG-2", used_bytes=2 << 30)
    return fake_nvml


def test_case_23_a_card_is_listed_with_its_parts_and_read_once(split: FakeNvml) -> None:
    backend = split.open()
    card, *parts = backend.devices()
    assert (card.gpu, card.parent, card.memory_size_bytes) == ("0", None, None)
    assert parts == [
        GpuInfo(
            gpu=f"0.{number}",
            index=0,
            uuid=f"MIG-{number}",
            name="NVIDIA H100 80GB HBM3 MIG 1g.10gb",
            vendor=Vendor.NVIDIA,
            memory_size_bytes=10 << 30,
            memory_source="v2",
            parent="0",
        )
        for number in (1, 2)
    ]
    reading = backend.read(card, ReadScope.FULL)
    assert (reading.power_w, reading.sm_clock_mhz) == (87, 1980)
    assert (reading.activity_ratio, reading.memory_used_bytes) == (None, None)
    assert [backend.read(part, ReadScope.FULL) for part in parts] == [
        DeviceReading(memory_used_bytes=number << 30, memory_reserved_bytes=0) for number in (1, 2)
    ]


def test_a_fast_look_at_a_part_asks_the_driver_nothing(split: FakeNvml) -> None:
    backend = split.open()
    part = backend.devices()[1]
    asked = [gpu.calls_total() for gpu in split.scenario._layout.gpus]
    assert backend.read(part, ReadScope.FAST) == DeviceReading()
    assert [gpu.calls_total() for gpu in split.scenario._layout.gpus] == asked


def test_a_card_with_mig_on_and_no_parts_tells_its_own_memory(fake_nvml: FakeNvml) -> None:
    fake_nvml.scenario.gpus[0].mig_mode = 1
    backend = fake_nvml.open()
    (card,) = backend.devices()
    reading = backend.read(card, ReadScope.FULL)
    assert (reading.memory_used_bytes, reading.activity_ratio) == (8_388_608, None)
    assert card.memory_size_bytes == 85_899_345_920


def test_a_part_goes_with_its_card_or_alone_and_a_failed_look_is_no_loss(split: FakeNvml) -> None:
    backend = split.open()
    part = backend.devices()[1]
    fake = split.scenario._layout.gpus[1]
    fake.fails(TIMEOUT, "nvmlDeviceGetMemoryInfo_v2")
    with pytest.raises(TransientDeviceError):
        backend.read(part, ReadScope.FULL)
    fake.fails(GPU_IS_LOST, "nvmlDeviceGetMemoryInfo_v2")
    with pytest.raises(DeviceLostError):
        backend.read(part, ReadScope.FULL)
    fake.fails(SUCCESS, "nvmlDeviceGetMemoryInfo_v2")
    assert backend.read(part, ReadScope.FULL).memory_used_bytes == 1 << 30
    split.scenario.remove(fake)
    with pytest.raises(DeviceLostError, match=r"GPU instance 0\.1 \(MIG-1\) is gone"):
        backend.read(part, ReadScope.FULL)
    assert backend.changed() == "GPU instance MIG-1 is gone"


def test_parts_that_come_and_a_mode_that_changes_are_noticed(split: FakeNvml) -> None:
    backend = split.open()
    assert isinstance(backend, ListsProcesses)
    assert isinstance(backend, ExplainsTrouble)
    assert isinstance(backend, NoticesChanges)
    assert backend.changed() is None
    split.scenario.partition(0, 5, uuid="MIG-5")
    assert backend.changed() == "GPU instance MIG-5 is there"
    split.scenario.gpus[0].mig_mode = 0
    assert "MIG mode of GPU 0 is off" in (backend.changed() or "")


@pytest.mark.parametrize(
    "call",
    [
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetMaxMigDeviceCount",
        "nvmlDeviceGetMigDeviceHandleByIndex",
    ],
)
def test_a_card_that_does_not_say_what_it_is_split_into_has_not_changed(
    split: FakeNvml, call: str
) -> None:
    backend = split.open()
    assert isinstance(backend, NoticesChanges)
    split.scenario.gpus[0].fails(UNKNOWN, call)
    assert backend.changed() is None
    split.scenario.gpus[0].fails(SUCCESS, call)
    assert backend.changed() is None


def test_a_gpu_that_only_does_not_answer_has_not_gone(split: FakeNvml) -> None:
    backend = split.open()
    split.scenario.gpus[0].fails(GPU_IS_LOST)
    assert backend.changed() is None
    split.scenario.gpus[0].fails(SUCCESS)
    split.scenario.fails(UNKNOWN, ["nvmlDeviceGetCount_v2"])
    assert backend.changed() is None


def test_a_gpu_that_the_driver_no_longer_counts_has_gone(make_fake_nvml: MakeFakeNvml) -> None:
    fake = make_fake_nvml(gpu_count=2)
    backend = fake.open()
    fake.scenario._layout.gpu_count = 1
    assert backend.changed() == "GPU 1 (GPU-00000001) is gone"


def test_processes_say_which_part_they_are_on(split: FakeNvml) -> None:
    backend = split.open()
    card, _, second = backend.devices()
    split.scenario.aside(split.scenario._layout.gpus[2]).runs((7, 1 << 20))
    there = (GpuProcess(pid=7, memory_used_bytes=1 << 20, partition=2),)
    assert backend.processes(second) == there
    assert backend.processes(card) == there
    # As the driver answers those whom it does not trust with all parts.
    split.scenario.gpus[0].fails(
        NO_PERMISSION,
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetComputeRunningProcesses_v2",
    )
    assert backend.processes(second) == there
    fresh = split.open()
    assert fresh.processes(card) is None


def test_a_failed_list_of_processes_is_an_error_and_spoils_no_look(fake_nvml: FakeNvml) -> None:
    backend = fake_nvml.open()
    (device,) = backend.devices()
    fake_nvml.scenario.gpus[0].fails(TIMEOUT, "nvmlDeviceGetComputeRunningProcesses_v3")
    with pytest.raises(TransientDeviceError):
        backend.processes(device)
    assert backend.read(device, ReadScope.FAST).sm_clock_mhz == 1980


def test_an_xid_is_told_for_ten_minutes_and_as_long_as_the_gpu_is_lost(
    make_fake_nvml: MakeFakeNvml,
) -> None:
    fake = make_fake_nvml(gpu_count=2)
    clock = ScriptedClock()
    fake.scenario.aside(fake.scenario.gpus[0]).has_xid(48)  # before anyone watched
    backend = fake.open(clock)
    zero, one = backend.devices()
    assert (backend.trouble(zero), backend.trouble(one)) == (None, None)
    fake.scenario.aside(fake.scenario.gpus[0]).has_xid(13)
    fake.scenario.aside(fake.scenario.gpus[0]).has_xid(999)
    assert backend.trouble(one) is None
    assert backend.trouble(zero) == "XID 999"  # the newest
    clock.advance(601 * NS_PER_S)
    assert backend.trouble(zero) is None
    fake.scenario.aside(fake.scenario.gpus[1]).has_xid(79)
    fake.scenario.gpus[1].fails(GPU_IS_LOST)
    with pytest.raises(DeviceLostError):
        backend.read(one, ReadScope.FAST)
    assert (backend.trouble(one) or "").endswith("; XID 79 (fell off the bus)")
    clock.advance(3600 * NS_PER_S)
    assert (backend.trouble(one) or "").endswith("; XID 79 (fell off the bus)")
    fake.scenario.gpus[1].fails(SUCCESS)
    assert backend.read(one, ReadScope.FAST).sm_clock_mhz == 1980
    assert backend.trouble(one) is None

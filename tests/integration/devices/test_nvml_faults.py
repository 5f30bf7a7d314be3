"""The NVML back end when driver or GPUs misbehave, over the real binding and a fake driver."""

import subprocess
import sys
import threading
from pathlib import Path

import pynvml
import pytest

from chopperd.clock import SystemClock
from chopperd.devices.base import BackendOptions
from chopperd.devices.nvml.backend import NvmlBackend, open_backend
from chopperd.devices.nvml.identity import silent_gpu
from chopperd.errors import BackendUnavailableError, DeviceLostError, TransientDeviceError
from chopperd.model.devices import GpuInfo, ReadScope
from chopperd.sampling.settings import SamplerSettings
from chopperd.sampling.supervisor import SamplerSupervisor
from tests.fakes.nvml.fixtures import FakeNvml, MakeFakeNvml
from tests.fakes.nvml.scenario import (
    DRIVER_NOT_LOADED,
    GPU_IS_LOST,
    LIB_RM_VERSION_MISMATCH,
    SUCCESS,
    TIMEOUT,
    UNINITIALIZED,
    UNKNOWN,
)
from tests.integration.sampling.nvml import COMMAND
from tests.waiting import wait_for

DEADLINE_S = 10


def power_w(backend: NvmlBackend) -> list[float | None]:
    """The power of each GPU in turn; None for one that gives no reading."""
    readings = []
    for device in backend.devices():
        try:
            readings.append(backend.read(device, ReadScope.FULL).power_w)
        except DeviceLostError:
            readings.append(None)
    return readings


def test_a_gpu_lost_in_operation_leaves_the_others_read(make_fake_nvml: MakeFakeNvml) -> None:
    fake = make_fake_nvml(gpu_count=4)
    backend = fake.open()
    assert power_w(backend) == [500, 500, 500, 500]
    fake.scenario.gpus[2].fails(GPU_IS_LOST)
    assert power_w(backend) == [500, 500, None, 500]
    assert power_w(backend) == [500, 500, None, 500]


def test_a_lost_gpu_says_which_call_found_out(fake_nvml: FakeNvml) -> None:
    backend = fake_nvml.open()
    fake_nvml.scenario.gpus[0].fails(GPU_IS_LOST)
    with pytest.raises(DeviceLostError) as caught:
        backend.read(backend.devices()[0], ReadScope.FAST)
    assert caught.value.operation == "nvmlDeviceGetClockInfo"
    assert (caught.value.device_index, caught.value.vendor_code) == (0, GPU_IS_LOST)
    assert isinstance(caught.value.__cause__, pynvml.NVMLError)


def test_a_gpu_that_comes_back_is_found_by_its_uuid(make_fake_nvml: MakeFakeNvml) -> None:
    fake = make_fake_nvml(gpu_count=2)
    backend = fake.open()
    fake.scenario.gpus[1].fails(GPU_IS_LOST)
    assert power_w(backend) == [500, None]
    fake.scenario.gpus[1].fails(SUCCESS)
    assert power_w(backend) == [500, 500]
    assert fake.scenario.gpus[1].calls_of("nvmlDeviceGetHandleByUUID") == 1


def test_a_gpu_that_is_lost_at_the_start_shifts_no_index(make_fake_nvml: MakeFakeNvml) -> None:
    fake = make_fake_nvml(gpu_count=4)
    fake.scenario.gpus[2].fails(GPU_IS_LOST)
    backend = fake.open()
    uuids = ["GPU-00000000", "GPU-00000001", "", "GPU-00000003"]
    assert [(device.gpu, device.index, device.uuid) for device in backend.devices()] == [
        (str(index), index, uuid) for index, uuid in enumerate(uuids)
    ]
    assert power_w(backend) == [500, 500, None, 500]
    silent = backend.devices()[2]
    with pytest.raises(DeviceLostError, match="code 15"):
        backend.read(silent, ReadScope.FAST)
    assert "code 15" in (backend.trouble(silent) or "")
    assert backend.changed() is None
    fake.scenario.gpus[2].fails(SUCCESS)
    assert backend.changed() == "GPU 2 (GPU-00000002) is there"


def test_a_gpu_that_is_known_but_answers_no_look_at_the_start_is_listed(
    make_fake_nvml: MakeFakeNvml,
) -> None:
    fake = make_fake_nvml(gpu_count=2)
    fake.scenario.gpus[0].fails(GPU_IS_LOST, "nvmlDeviceGetClockInfo")
    backend = fake.open()
    assert [device.uuid for device in backend.devices()] == ["GPU-00000000", "GPU-00000001"]
    assert power_w(backend) == [None, 500]


def test_an_unknown_error_on_every_call_fails_the_look_and_heals(fake_nvml: FakeNvml) -> None:
    backend = fake_nvml.open()
    device = backend.devices()[0]
    fake_nvml.scenario.gpus[0].fails(UNKNOWN)
    for scope in ReadScope:
        with pytest.raises(TransientDeviceError, match="code 999"):
            backend.read(device, scope)
    fake_nvml.scenario.gpus[0].fails(SUCCESS)
    assert backend.read(device, ReadScope.FULL).power_w == 500


def test_one_failing_call_hides_no_other_field(fake_nvml: FakeNvml) -> None:
    backend = fake_nvml.open()
    fake_nvml.scenario.gpus[0].fails(UNKNOWN, "nvmlDeviceGetTotalEnergyConsumption")
    reading = backend.read(backend.devices()[0], ReadScope.FULL)
    assert (reading.energy_j, reading.power_w, reading.sm_clock_mhz) == (None, 500, 1980)


def test_a_driver_that_goes_away_leaves_every_gpu_lost(make_fake_nvml: MakeFakeNvml) -> None:
    fake = make_fake_nvml(gpu_count=2)
    backend = fake.open()
    for gpu in fake.scenario.gpus:
        gpu.fails(UNINITIALIZED)
    assert power_w(backend) == [None, None]


def test_a_call_that_hangs_lets_other_gpus_be_read_and_then_fails(
    make_fake_nvml: MakeFakeNvml,
) -> None:
    fake = make_fake_nvml(gpu_count=2)
    backend = fake.open()
    stuck, free = backend.devices()
    fake.scenario.gpus[0].fails(TIMEOUT, "nvmlDeviceGetClockInfo", delay_ms=60_000)
    before = fake.scenario.gpus[0].calls_of("nvmlDeviceGetClockInfo")
    readings = []

    def read_stuck() -> None:
        readings.append(backend.read(stuck, ReadScope.FAST))

    thread = threading.Thread(target=read_stuck, name="chopperd-test-stuck")
    thread.start()
    wait_for(lambda: fake.scenario.gpus[0].calls_of("nvmlDeviceGetClockInfo") > before)
    assert backend.read(free, ReadScope.FAST).sm_clock_mhz == 1980
    assert thread.is_alive(), "the other GPU was read only after the hanging call had ended"
    fake.scenario.gpus[0].fails(TIMEOUT, "nvmlDeviceGetClockInfo")
    thread.join(DEADLINE_S)
    assert readings[0].sm_clock_mhz is None
    assert readings[0].causes == frozenset()


def test_no_driver_library_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "CDLL", no_such_library)
    with pytest.raises(BackendUnavailableError, match=r"^libnvidia-ml\.so\.1 not found: "):
        open_backend(BackendOptions())


def no_such_library(name: str) -> None:
    raise OSError(f"{name}: cannot open shared object file")


def test_a_driver_that_is_not_loaded_is_told_in_one_line(fake_nvml: FakeNvml) -> None:
    fake_nvml.scenario.fails(DRIVER_NOT_LOADED, ["nvmlInitWithFlags"])
    with pytest.raises(BackendUnavailableError, match="NVML does not start: Driver Not Loaded"):
        fake_nvml.open()


def test_a_driver_that_lists_no_gpu_is_let_go_of_again(make_fake_nvml: MakeFakeNvml) -> None:
    fake = make_fake_nvml(gpu_count=0)
    with pytest.raises(BackendUnavailableError, match="there is no GPU"):
        fake.open()


def test_gpus_none_of_which_answers_are_no_back_end(make_fake_nvml: MakeFakeNvml) -> None:
    fake = make_fake_nvml(gpu_count=2)
    for gpu in fake.scenario.gpus:
        gpu.fails(GPU_IS_LOST)
    with pytest.raises(BackendUnavailableError, match="no GPU answers: GPU 0: "):
        fake.open()


def test_a_missing_binding_is_told_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(BackendUnavailableError, match=r"pip install 'chopperd\[nvidia\]'"):
        open_backend(BackendOptions())


READ_ALL = """
from chopperd.devices.registry import open_backend
from chopperd.model.devices import ReadScope
backend = open_backend("auto")
for device in backend.devices():
    print(device.uuid, backend.read(device, ReadScope.FAST).sm_clock_mhz)
backend.close()
"""


def test_another_process_finds_the_driver_by_the_loader_s_own_search(
    make_fake_nvml: MakeFakeNvml,
) -> None:
    fake: FakeNvml = make_fake_nvml(gpu_count=2)
    done = subprocess.run(
        [sys.executable, "-c", READ_ALL],
        env=fake.environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout == "GPU-00000000 1980\nGPU-00000001 1980\n"


def test_a_stranger_is_not_looked_for(fake_nvml: FakeNvml) -> None:
    backend = fake_nvml.open()
    mine = backend.devices()[0]
    stranger = GpuInfo(gpu="7", index=7, uuid="GPU-7", name=mine.name, vendor=mine.vendor)
    with pytest.raises(DeviceLostError, match="not one of this driver's"):
        backend.read(stranger, ReadScope.FAST)


def test_a_driver_that_was_replaced_under_us_is_told_in_one_line(fake_nvml: FakeNvml) -> None:
    fake_nvml.scenario.fails(LIB_RM_VERSION_MISMATCH, ["nvmlInitWithFlags"])
    with pytest.raises(BackendUnavailableError, match=r"NVML does not start: .* \(NVML code 18\)"):
        fake_nvml.open()


@pytest.mark.parametrize("lacking", ["nvmlInitWithFlags", "nvmlDeviceGetCount_v2"])
def test_a_library_without_what_everything_needs_is_told_in_one_line(
    make_fake_nvml: MakeFakeNvml, lacking: str
) -> None:
    fake = make_fake_nvml(1, frozenset({lacking}))
    with pytest.raises(BackendUnavailableError, match=r"(?i)function not found"):
        fake.open()


@pytest.mark.parametrize(
    ("gpu_count", "lacking", "words"),
    [
        (0, frozenset[str](), "there is no GPU"),
        (1, frozenset({"nvmlInitWithFlags"}), "NVML does not start"),
    ],
)
def test_a_driver_that_can_not_be_used_is_said_by_the_sampler_process(
    make_fake_nvml: MakeFakeNvml,
    monkeypatch: pytest.MonkeyPatch,
    gpu_count: int,
    lacking: frozenset[str],
    words: str,
) -> None:
    fake = make_fake_nvml(gpu_count, lacking)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(fake.library.parent))
    supervisor = SamplerSupervisor(COMMAND, SamplerSettings(), SystemClock())
    with pytest.raises(BackendUnavailableError, match=words):
        supervisor.start()


def test_all_that_the_sampler_lists_of_a_silent_gpu_is_where_it_is(
    make_fake_nvml: MakeFakeNvml, tmp_path: Path
) -> None:
    """The kernel's list has the addresses in NVML's order, with a domain of 4 digits."""
    for address in ("0000:65:00.0", "0000:17:00.0", "0001:03:00.0"):
        (tmp_path / address).mkdir()
    assert [silent_gpu(index, 3, tmp_path).pci_bus_id for index in range(3)] == [
        "00000000:17:00.0",
        "00000000:65:00.0",
        "00000001:03:00.0",
    ]
    assert silent_gpu(2, 4, tmp_path).pci_bus_id is None  # it lists fewer than NVML counts
    assert silent_gpu(2, 4, tmp_path / "none").pci_bus_id is None
    assert make_fake_nvml().open().changed() is None

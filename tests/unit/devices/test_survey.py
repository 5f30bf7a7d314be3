"""A survey reads every GPU once, through hand-written back ends."""

import pytest

from chopperd.devices.survey import survey
from chopperd.errors import BackendUnavailableError, DeviceLostError
from chopperd.model.devices import DeviceReading, GpuInfo, ReadScope, Vendor


def gpu(index: int) -> GpuInfo:
    return GpuInfo(
        gpu=str(index), index=index, uuid=f"GPU-{index}", name="A100", vendor=Vendor.NVIDIA
    )


class Driver:
    """Two GPUs of which one may be lost; every GPU may be read once."""

    name = "fake"
    driver = "1.2"
    simulated = False

    def __init__(self, count: int = 2, lost: int | None = None) -> None:
        self.count, self.lost = count, lost
        self.read_indices: list[int] = []

    def devices(self) -> tuple[GpuInfo, ...]:
        return tuple(map(gpu, range(self.count)))

    def read(self, device: GpuInfo, scope: ReadScope) -> DeviceReading:
        assert scope is ReadScope.FULL
        assert device.index not in self.read_indices
        self.read_indices.append(device.index)
        if device.index == self.lost:
            raise DeviceLostError("GPU is lost", operation="nvmlDeviceGetClockInfo")
        return DeviceReading(sm_clock_mhz=1410.0)

    def close(self) -> None:
        raise AssertionError("who opened it closes it")


def test_a_lost_device_does_not_hide_the_others() -> None:
    found = survey(Driver(lost=0))
    assert [entry.error for entry in found.gpus] == ["GPU is lost", None]
    assert found.gpus[0].reading is None
    assert found.gpus[1].reading == DeviceReading(sm_clock_mhz=1410.0)
    assert (found.backend, found.driver, found.simulated) == ("fake", "1.2", False)


def test_a_driver_without_gpus_is_no_usable_back_end() -> None:
    with pytest.raises(BackendUnavailableError, match="fake: the driver sees no GPU"):
        survey(Driver(count=0))

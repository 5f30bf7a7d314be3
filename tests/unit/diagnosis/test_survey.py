"""A survey reads every GPU once, through hand-written back ends."""

import pytest

from chopperd.diagnosis.probe import survey
from chopperd.errors import BackendUnavailableError, DeviceLostError
from chopperd.model.devices import DeviceReading, FieldProbe, GpuInfo, ReadScope, Vendor


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
    with pytest.raises(BackendUnavailableError, match="fake: the driver reports no GPU"):
        survey(Driver(count=0))


class ProbedDriver(Driver):
    """Says what each call gives, of all but GPU 1, which is lost after it was read."""

    def probe(self, device: GpuInfo, calls_count: int = 100) -> tuple[FieldProbe, ...]:
        assert device.index in self.read_indices
        if device.index == 1:
            raise DeviceLostError("GPU is lost", operation="nvmlDeviceGetClockInfo")
        return (FieldProbe(operation="clock", feeds="sm_clock_mhz", calls_count=calls_count),)

    def buffered_period_ns(self, device: GpuInfo, field: str) -> int | None:
        return 20_000_000 if (device.index, field) == (0, "power_w") else None


def test_a_survey_that_times_calls_holds_them_and_what_was_read_before_a_failure() -> None:
    first, second = survey(ProbedDriver(), calls_count=7).gpus
    assert [probe.calls_count for probe in first.probes] == [7]
    assert first.buffered_period_ns == {"power_w": 20_000_000}
    assert (second.probes, second.error) == ((), "GPU is lost")
    assert second.reading == DeviceReading(sm_clock_mhz=1410.0)


def test_a_plain_survey_times_no_call() -> None:
    assert [entry.probes for entry in survey(ProbedDriver()).gpus] == [(), ()]

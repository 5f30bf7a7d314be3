"""The contract suite finds what breaks the contract, and carries plans out as they say."""

import ctypes
import os
import struct

import pytest
from msgspec.structs import replace

from chopperd.devices.read_plan import (
    CallShape,
    NumberKind,
    PlannedCall,
    PlannedCauses,
    PlannedCounter,
    PlannedValue,
    ReadPlan,
)
from chopperd.errors import DeviceLostError
from chopperd.model.devices import DeviceReading, GpuInfo, ReadScope, Vendor
from chopperd.model.kinds import Cause
from chopperd.testing import BackendContract, carried_out

GPU = GpuInfo(gpu="0", index=0, uuid="GPU-0", name="A", vendor=Vendor.OTHER, sm_clock_max_mhz=1500)
FULL = DeviceReading(sm_clock_mhz=1200.0, power_w=100.0, energy_j=5.0, limited_ns={})


class Sound:
    """Keeps the contract, with constant values."""

    name = "sound"
    driver: str | None = None
    simulated = False

    def __init__(self, gpu: GpuInfo = GPU, reading: DeviceReading = FULL) -> None:
        self.gpu, self.reading, self.is_open = gpu, reading, True

    def devices(self) -> tuple[GpuInfo, ...]:
        return (self.gpu,)

    def read(self, device: GpuInfo, scope: ReadScope) -> DeviceReading:
        if not self.is_open or device != self.gpu:
            raise DeviceLostError("gone", operation="read")
        is_full = scope is ReadScope.FULL
        return self.reading if is_full else DeviceReading(sm_clock_mhz=self.reading.sm_clock_mhz)

    def close(self) -> None:
        self.is_open = False


class Falling(Sound):
    def read(self, device: GpuInfo, scope: ReadScope) -> DeviceReading:
        reading = super().read(device, scope)
        self.reading = replace(self.reading, energy_j=(self.reading.energy_j or 0.0) - 1)
        return reading


class Leaking(Sound):
    def __init__(self) -> None:
        super().__init__()
        self.open_fds: list[int] = []

    def read(self, device: GpuInfo, scope: ReadScope) -> DeviceReading:
        self.open_fds.append(os.open(os.devnull, os.O_RDONLY))
        return super().read(device, scope)


class Flickering(Sound):
    def read(self, device: GpuInfo, scope: ReadScope) -> DeviceReading:
        reading = super().read(device, scope)
        power_w = None if self.reading.power_w else 100.0
        self.reading = replace(self.reading, power_w=power_w)
        return reading


class Everlasting(Sound):
    def close(self) -> None:
        """Goes on as if nothing had happened."""


class Eager(Sound):
    def read(self, device: GpuInfo, scope: ReadScope) -> DeviceReading:
        del scope
        return replace(super().read(device, ReadScope.FULL), memory_used_bytes=1)


class Obliging(Sound):
    def read(self, device: GpuInfo, scope: ReadScope) -> DeviceReading:
        del device
        return super().read(self.gpu, scope)


LAWS = sorted(name for name in vars(BackendContract) if name.startswith("test_"))


@pytest.mark.parametrize("law", LAWS)
def test_a_sound_back_end_passes_each_law(law: str) -> None:
    """With one GPU; laws of what it does not offer are skipped."""
    try:
        getattr(BackendContract(), law)(Sound())
    except pytest.skip.Exception as skipped:
        assert "back end" in str(skipped)  # noqa: PT017 - what is skipped says why


@pytest.mark.parametrize(
    ("backend", "law"),
    [
        (Sound(reading=replace(FULL, power_w=0.0)), "full_look_holds_credible"),
        (Sound(reading=replace(FULL, activity_ratio=55.0)), "full_look_holds_credible"),
        (Sound(reading=replace(FULL, power_w=float("nan"))), "full_look_holds_credible"),
        (Sound(gpu=replace(GPU, power_limit_w=0.0)), "what_stands_still_is_credible"),
        (Sound(reading=replace(FULL, sm_clock_mhz=1600.0)), "below_the_highest_clock"),
        (Sound(reading=replace(FULL, sm_clock_mhz=None)), "every_whole_gpu_has_a_clock"),
        (Sound(gpu=replace(GPU, parent="7")), "a_partition_names_a_card"),
        (Eager(), "a_fast_look_fills_no_other"),
        (Falling(), "counters_never_fall"),
        (Flickering(), "reported_once_is_reported_again"),
    ],
)
def test_what_breaks_a_law_is_found(backend: Sound, law: str) -> None:
    with pytest.raises(AssertionError):
        getattr(BackendContract(), *[name for name in LAWS if law in name])(backend)


@pytest.mark.parametrize(
    ("backend", "law"),
    [(Everlasting(), "read_after_the_end"), (Obliging(), "not_there_is_a_device_error")],
)
def test_a_missing_error_is_found(backend: Sound, law: str) -> None:
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        getattr(BackendContract(), *[name for name in LAWS if law in name])(backend)


def test_a_leak_is_found() -> None:
    backend = Leaking()
    try:
        with pytest.raises(AssertionError):
            BackendContract().test_reads_leave_no_open_files_and_no_threads(backend)
    finally:
        for fd in backend.open_fds:
            os.close(fd)


def answer(handle: int, argument: int, buffer: int) -> int:
    """A driver call: handle and argument, then bits, a counter and a power in mW."""
    ctypes.memmove(buffer, struct.pack("<IIQQI", handle, argument, 0b101, 9_000, 123_456), 28)
    return 0 if argument else 3


DRIVER = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_void_p)(answer)


def plan(argument: int = 7, high: float = 1000.0) -> ReadPlan:
    address = ctypes.cast(DRIVER, ctypes.c_void_p).value
    assert address is not None
    call = PlannedCall(
        operation="fake",
        address=address,
        shape=CallShape.OF,
        handle=5,
        buffer=ctypes.create_string_buffer(28),
        argument=argument,
    )
    by_bit = (Cause.POWER_CAP.bit, Cause.THERMAL.bit, Cause.THERMAL.bit | Cause.HW_SLOWDOWN.bit)
    return ReadPlan(
        calls=(call,),
        values=(
            PlannedValue(
                call=0,
                offset=24,
                kind=NumberKind.UINT32,
                name="power_w",
                scale=0.001,
                low=0.0,
                high=high,
                checks={0: 5, 4: 7},
            ),
        ),
        causes=PlannedCauses(
            call=0, offset=8, kind=NumberKind.UINT64, causes=(*by_bit, *(0,) * 61)
        ),
        counters=(
            PlannedCounter(
                call=0, offset=16, kind=NumberKind.UINT64, cause=Cause.POWER_CAP, low=0, high=1e18
            ),
        ),
    )


def test_a_plan_is_carried_out_as_it_says() -> None:
    """Bits 0 and 2 stand for three causes; 123456 mW are 123.456 W."""
    reading = carried_out(plan())
    assert reading.power_w == 123.456
    assert reading.causes == frozenset({Cause.POWER_CAP, Cause.THERMAL, Cause.HW_SLOWDOWN})
    assert reading.limited_ns == {Cause.POWER_CAP: 9_000}


@pytest.mark.parametrize("wrong", [plan(argument=0), plan(argument=8), plan(high=100.0)])
def test_a_code_a_check_or_a_bound_that_does_not_hold_ends_a_plan(wrong: ReadPlan) -> None:
    with pytest.raises(AssertionError):
        carried_out(wrong)

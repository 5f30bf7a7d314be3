"""A GPU that is a file: a block with the clocks of dies, counters and a stamp, read as planned."""

import os
import struct
from ctypes import create_string_buffer
from dataclasses import dataclass
from pathlib import Path

from chopperd.devices.read_plan import (
    CallShape,
    NumberKind,
    PlannedCall,
    PlannedCauses,
    PlannedCounter,
    PlannedStamp,
    PlannedValue,
    ReadPlan,
    SharedLock,
)
from chopperd.errors import TransientDeviceError
from chopperd.model.devices import DeviceReading, GpuInfo, ReadScope, Vendor
from chopperd.model.kinds import Cause
from chopperd.units import NS_PER_S

_BLOCK = struct.Struct("<8H3QHHQ")
_NO_CLOCK = 0xFFFF
#: Residencies are in 10 ns; this one has wrapped once, at 2^20.
_NS_PER_COUNT = 10
_WRAPPED_NS = _NS_PER_COUNT * 2**20
GPU = GpuInfo(gpu="0", index=0, uuid="file", name="file", vendor=Vendor.AMD)


@dataclass(kw_only=True)
class Block:
    """What stands in the file."""

    clocks_mhz: tuple[int, ...] = (2100, 2000, 0, 1900)
    stamp: int = 1
    residencies: tuple[int, int] = (5, 7)
    activity_percent: int = 40
    power_w: int = 700
    energy_mj: int = 1_234_567

    def encoded(self) -> bytes:
        clocks_mhz = (*self.clocks_mhz, *[_NO_CLOCK] * 8)[:8]
        return _BLOCK.pack(
            *clocks_mhz,
            self.stamp,
            *self.residencies,
            self.activity_percent,
            self.power_w,
            self.energy_mj,
        )


class FileGpu:
    """A back end over it.

    Attributes:
        block: What was written last.
        lock: Held during each read.
        plan: Of both kinds of reads.
        read_count: Looks that the back end made itself.
    """

    name, driver, simulated = "file", None, False

    def __init__(self, path: Path, still_ns: int | None = None, dies_count: int = 4) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT)
        self.block = Block()
        self.lock = SharedLock()
        self.read_count = 0
        self.write()
        self._dies_count = dies_count
        self.plan = _plan(self._fd, self.lock, still_ns, dies_count)

    def write(self) -> None:
        """Put the block into the file, as a whole."""
        os.pwrite(self._fd, self.block.encoded(), 0)

    def shorten(self) -> None:
        """Take the last byte away."""
        os.ftruncate(self._fd, _BLOCK.size - 1)

    def devices(self) -> tuple[GpuInfo, ...]:
        return (GPU,)

    def read(self, device: GpuInfo, scope: ReadScope) -> DeviceReading:
        del scope
        self.read_count += 1
        with self.lock:
            data = os.pread(self._fd, _BLOCK.size, 0)
        if len(data) != _BLOCK.size:
            raise TransientDeviceError("short", operation="pread", device_index=device.index)
        *clocks_mhz, _stamp, first, second, activity_percent, power_w, energy_mj = _BLOCK.unpack(
            data
        )
        shown = [None if mhz == _NO_CLOCK else float(mhz) for mhz in clocks_mhz[: self._dies_count]]
        return DeviceReading(
            die_clocks_mhz=tuple(shown),
            sm_clock_mhz=1.0,  # not to be used
            limited_ns={Cause.THERMAL: _WRAPPED_NS + _NS_PER_COUNT * (first + second)},
            causes=frozenset(),
            activity_ratio=None if activity_percent > 100 else activity_percent / 100,
            power_w=float(power_w),
            energy_j=energy_mj / 1000,
        )

    def read_plan(self, device: GpuInfo, scope: ReadScope) -> ReadPlan | None:
        del device, scope
        return self.plan

    def close(self) -> None:
        os.close(self._fd)


def _plan(fd: int, lock: SharedLock, still_ns: int | None, dies_count: int) -> ReadPlan:
    call = PlannedCall(
        operation="block",
        address=0,
        shape=CallShape.FILE,
        handle=fd,
        buffer=create_string_buffer(_BLOCK.size + 8),
        argument=_BLOCK.size,
        lock=lock,
    )

    def value(offset: int, kind: NumberKind, name: str, scale: float, high: float) -> PlannedValue:
        return PlannedValue(
            call=0, offset=offset, kind=kind, name=name, scale=scale, low=0.0, high=high
        )

    counters = [
        PlannedCounter(
            call=0,
            offset=offset,
            kind=NumberKind.UINT64,
            cause=Cause.THERMAL,
            low=0,
            high=2.0**52,
            scale=_NS_PER_COUNT,
            addend=addend,
        )
        for offset, addend in ((24, _WRAPPED_NS), (32, 0.0))
    ]
    return ReadPlan(
        calls=(call,),
        values=(
            *(
                value(2 * die, NumberKind.UINT16, f"die_clocks_mhz.{die}", 1.0, 5000)
                for die in range(dies_count)
            ),
            value(40, NumberKind.UINT16, "activity_ratio", 0.01, 1.0),
            value(42, NumberKind.UINT16, "power_w", 1.0, 5000),
            value(44, NumberKind.UINT64, "energy_j", 0.001, 1e13),
        ),
        counters=tuple(counters),
        causes=PlannedCauses(call=0, offset=16, kind=NumberKind.UINT64, causes=(0,) * 64),
        stamp=PlannedStamp(
            call=0,
            offset=16,
            kind=NumberKind.UINT64,
            still_ns=3600 * NS_PER_S if still_ns is None else still_ns,
        ),
    )

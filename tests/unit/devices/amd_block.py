"""A block of metrics in memory, for tests of what is made of one."""

import ctypes
from collections.abc import Mapping
from struct import Struct

from chopperd.devices.amd.block import MetricsLayout, MetricSlot
from chopperd.devices.faults import DeviceFaults, VendorErrors
from chopperd.devices.read_plan import Buffer, CallShape, NumberKind, PlannedCall
from chopperd.errors import DeviceError, DeviceLostError, UnsupportedFieldError
from tests.fakes.clock import ScriptedClock

_FORMATS = {
    NumberKind.UINT16: Struct("<H"),
    NumberKind.UINT32: Struct("<I"),
    NumberKind.UINT64: Struct("<Q"),
}
_HEADER_BYTES = 8


class VendorError(Exception):
    """What bringing a block raises here."""


class LostError(VendorError):
    pass


class MemorySource:
    """Brings what `shows` was told last; all else is all ones.

    Args:
        kinds: How each metric stands there, and how often.
    """

    operation = "fetch"

    def __init__(self, **kinds: tuple[NumberKind, int]) -> None:
        slots, offset = {}, _HEADER_BYTES
        for name, (kind, count) in kinds.items():
            size = _FORMATS[kind].size
            offset = -(-offset // size) * size
            slots[name] = MetricSlot(
                kind=kind, offsets=tuple(offset + size * each for each in range(count))
            )
            offset += size * count
        self.layout = MetricsLayout(version="test", size_bytes=offset, slots=slots)
        self.buffer: Buffer = ctypes.create_string_buffer(b"\xff" * offset, offset)
        self._next = bytearray(b"\x01" * _HEADER_BYTES + b"\xff" * (offset - _HEADER_BYTES))
        self.error: Exception | None = None

    def shows(self, **values: int | tuple[int, ...]) -> None:
        for name, value in values.items():
            place = self.layout.slots[name]
            numbers = value if isinstance(value, tuple) else (value,)
            for offset, number in zip(place.offsets, numbers, strict=False):
                _FORMATS[place.kind].pack_into(self._next, offset, number)

    def begins(self, header: int) -> None:
        _FORMATS[NumberKind.UINT32].pack_into(self._next, 0, header)

    def fetch(self) -> None:
        if self.error is not None:
            raise self.error
        ctypes.memmove(ctypes.addressof(self.buffer), bytes(self._next), len(self._next))

    def close(self) -> None:
        pass

    def planned_call(self) -> PlannedCall | None:
        return PlannedCall(
            operation="fetch", address=1, shape=CallShape.BUFFER, handle=1, buffer=self.buffer
        )


def new_faults(clock: ScriptedClock) -> DeviceFaults:
    return DeviceFaults(0, VendorErrors(base=VendorError, classify=_classified), clock)


def _classified(error: Exception, operation: str, index: int) -> DeviceError:
    kind = DeviceLostError if isinstance(error, LostError) else UnsupportedFieldError
    return kind(str(error), operation=operation, device_index=index)


#: Metrics of a chip with four dies that counts cycles.
COUNTING: Mapping[str, tuple[NumberKind, int]] = {
    "firmware_timestamp": (NumberKind.UINT64, 1),
    "current_gfxclks": (NumberKind.UINT16, 4),
    "current_gfxclk": (NumberKind.UINT16, 1),
    "current_socket_power": (NumberKind.UINT16, 1),
    "average_socket_power": (NumberKind.UINT16, 1),
    "energy_accumulator": (NumberKind.UINT64, 1),
    "temperature_hotspot": (NumberKind.UINT16, 1),
    "temperature_mem": (NumberKind.UINT16, 1),
    "average_gfx_activity": (NumberKind.UINT16, 1),
    "current_uclk": (NumberKind.UINT16, 1),
    "accumulation_counter": (NumberKind.UINT32, 1),
    "ppt_residency_acc": (NumberKind.UINT32, 1),
    "socket_thm_residency_acc": (NumberKind.UINT32, 1),
    "hbm_thm_residency_acc": (NumberKind.UINT32, 1),
    "vr_thm_residency_acc": (NumberKind.UINT32, 1),
    "prochot_residency_acc": (NumberKind.UINT32, 1),
}

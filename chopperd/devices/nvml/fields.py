"""Several NVML field values by one driver call; decoding only, no meaning of any field."""

import struct
from collections.abc import Callable, Sequence
from ctypes import Array, Structure
from dataclasses import dataclass
from types import ModuleType
from typing import Final, TypeAlias

from chopperd.devices.channel import PROBE_INTERVAL_NS, DeviceFaults

FieldFunction: TypeAlias = Callable[[object, int, Array[Structure]], int]

# nvmlFieldValue_t, 40 bytes: ids and times (skipped), type of the value, return code, the union.
_FIELD: Final = struct.Struct("<24xIIQ")
_OPERATION: Final = "nvmlDeviceGetFieldValues"

# nvmlValueType_t, and the bits of the union that each type uses. Source: nvml.h.
_DOUBLE: Final = 0
_UNSIGNED_LONG_LONG: Final = 3
_UNSIGNED_BITS: Final = {1: 32, 2: 64, 6: 16}
_SIGNED_BITS: Final = {4: 64, 5: 32}


def number_of(value_type: int, raw: int) -> float | None:
    """The number in a `nvmlValue_t` given as its 64 raw bits; None for a type we don't know."""
    if value_type == _UNSIGNED_LONG_LONG:
        return raw
    if value_type in _UNSIGNED_BITS:
        return raw & ((1 << _UNSIGNED_BITS[value_type]) - 1)
    if value_type in _SIGNED_BITS:
        sign = 1 << (_SIGNED_BITS[value_type] - 1)
        return (raw & (sign - 1)) - (raw & sign)
    if value_type == _DOUBLE:
        value: float = struct.unpack("<d", struct.pack("<Q", raw))[0]
        return value
    return None


@dataclass(frozen=True, slots=True)
class FieldCall:
    """The driver's entry point and its handle for one device."""

    nvml: ModuleType
    handle: object

    def function(self) -> FieldFunction:
        """The C function itself: the binding's wrapper allocates on each call.

        Raises:
            NVMLError: The driver is too old to have it.
        """
        try:
            function: FieldFunction = self.nvml.nvmlLib.nvmlDeviceGetFieldValues
        except AttributeError as error:
            raise self.nvml.NVMLError(self.nvml.NVML_ERROR_FUNCTION_NOT_FOUND) from error
        return function

    def buffer(self, field_ids: Sequence[int]) -> Array[Structure]:
        """A request for these fields, GPU scope."""
        request: Array[Structure] = (self.nvml.c_nvmlFieldValue_t * len(field_ids))()
        for slot, field_id in zip(request, field_ids, strict=True):
            slot.fieldId = field_id
        return request


class FieldGroup:
    """Field values of one device, read by one driver call into one buffer that is used again.

    Fields that the device does not have leave the request and are asked for again each minute.
    """

    def __init__(self, call: FieldCall, field_ids: Sequence[int], faults: DeviceFaults) -> None:
        self._call = call
        self._wanted_ids = tuple(field_ids)
        self._faults = faults
        self._probe_mono_ns = 0
        self._ask_for(self._wanted_ids)

    @property
    def asked_ids(self) -> tuple[int, ...]:
        """The fields in the request: those that the device is not known to lack."""
        return self._ids

    def values(self) -> dict[int, float]:
        """The values by field id, in the driver's units; fields that failed are left out.

        Raises:
            DeviceLostError: The driver says that the device is gone.
        """
        if self._probe_mono_ns and self._faults.clock.mono_ns() >= self._probe_mono_ns:
            self._probe_mono_ns = 0
            self._ask_for(self._wanted_ids)
        if not self._ids or not self._fetch():
            return {}
        return self._decoded()

    def _ask_for(self, field_ids: tuple[int, ...]) -> None:
        self._ids = field_ids
        self._buffer = self._call.buffer(field_ids)
        if len(field_ids) < len(self._wanted_ids):
            self._probe_mono_ns = self._faults.clock.mono_ns() + PROBE_INTERVAL_NS

    def _fetch(self) -> bool:
        """Fill the buffer; False if the call as a whole failed."""
        try:
            code = self._call.function()(self._call.handle, len(self._ids), self._buffer)
            if code:
                raise self._call.nvml.NVMLError(code)
        except self._faults.vendor_error as error:
            if self._faults.absent(error, _OPERATION):
                self._ask_for(())
            return False
        return True

    def _decoded(self) -> dict[int, float]:
        values: dict[int, float] = {}
        absent_ids = []
        for field_id, (value_type, code, raw) in zip(
            self._ids, _FIELD.iter_unpack(self._buffer), strict=True
        ):
            if code:
                if self._is_absent(field_id, code):
                    absent_ids.append(field_id)
                continue
            # The counters of every tick are of this type: no call for each of them.
            number = raw if value_type == _UNSIGNED_LONG_LONG else number_of(value_type, raw)
            if number is not None:
                values[field_id] = number
        if absent_ids:
            self._ask_for(tuple(i for i in self._ids if i not in absent_ids))
        return values

    def _is_absent(self, field_id: int, code: int) -> bool:
        error = self._call.nvml.NVMLError(code)
        return self._faults.absent(error, f"{_OPERATION}[{field_id}]")

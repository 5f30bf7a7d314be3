"""Driver calls into buffers that are used again: the binding's wrappers allocate and decode."""

from collections.abc import Callable, Mapping
from ctypes import Array, c_char, c_void_p, cast, create_string_buffer
from dataclasses import dataclass, field
from functools import cached_property
from math import nan
from struct import Struct
from types import ModuleType
from typing import Final, TypeAlias

from chopperd.devices.channel import Call
from chopperd.devices.nvml.table import Direct
from chopperd.devices.read_plan import CallShape, NumberKind, PlannedCall

Function: TypeAlias = Callable[..., int]

FORMAT_BY_KIND: Final = {
    NumberKind.UINT16: Struct("<H"),
    NumberKind.UINT32: Struct("<I"),
    NumberKind.UINT64: Struct("<Q"),
    NumberKind.INT32: Struct("<i"),
    NumberKind.INT64: Struct("<q"),
    NumberKind.FLOAT64: Struct("<d"),
}

_ALL_ONES_SIGNED: Final = -1


class Driver:
    """The driver's entry points and errors for one device.

    Args:
        nvml: The binding, whose library and error classes are used.
        handle: The device, as the binding gives it.

    Attributes:
        handle: The device's handle as a number.
    """

    def __init__(self, nvml: ModuleType, handle: object) -> None:
        self._nvml = nvml
        self.handle: int = cast(handle, c_void_p).value or 0  # type: ignore[arg-type]

    def function(self, name: str) -> Function:
        """An entry point, looked up when it is first needed: older drivers have fewer.

        Raises:
            NVMLError: FUNCTION_NOT_FOUND: this driver does not have it.
        """
        try:
            function: Function = getattr(self._nvml.nvmlLib, name)
        except AttributeError as error:
            raise self.error(self._nvml.NVML_ERROR_FUNCTION_NOT_FOUND) from error
        return function

    def address(self, name: str) -> int:
        """Where an entry point that is there begins."""
        return cast(getattr(self._nvml.nvmlLib, name), c_void_p).value or 0

    def error(self, code: int) -> Exception:
        """The binding's error for a return code."""
        error: Exception = self._nvml.NVMLError(code)
        return error

    @property
    def not_supported(self) -> Exception:
        """The error of a device that does not have what was asked for."""
        return self.error(self._nvml.NVML_ERROR_NOT_SUPPORTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a number stands after a planned call; attributes as in `PlannedValue`."""

    call: PlannedCall
    offset: int
    kind: NumberKind
    scale: float = 1.0
    checks: Mapping[int, int] = field(default_factory=dict)


class DirectNumber:
    """One number by one call."""

    def __init__(self, driver: Driver, way: Direct) -> None:
        self._driver = driver
        self._way = way
        self._function: Function | None = None
        self._buffer: Array[c_char] = create_string_buffer(
            b"".join(word.to_bytes(4, "little") for word in way.words), way.size_bytes
        )
        argument = () if way.argument is None else (way.argument,)
        self._arguments = (c_void_p(driver.handle), *argument, self._buffer)
        self._decode = FORMAT_BY_KIND[way.kind].unpack_from
        self._offset, self._per_unit = way.offset, way.per_unit

    def read(self) -> float:
        """Ask the driver; the number in the field's unit.

        Raises:
            NVMLError: It did not answer.
        """
        function = self._function
        if function is None:
            function = self._function = self._driver.function(self._way.operation)
        code = function(*self._arguments)
        if code:
            raise self._driver.error(code)
        number: float = self._decode(self._buffer, self._offset)[0]
        if number == _ALL_ONES_SIGNED and self._way.kind is NumberKind.INT32:
            return nan  # as unsigned numbers, which it puts outside of their bounds
        return number if self._per_unit == 1 else number / self._per_unit

    def left_behind(self, way: Direct) -> float:
        """Another number that the last call left in the buffer, in its field's unit."""
        number: float = FORMAT_BY_KIND[way.kind].unpack_from(self._buffer, way.offset)[0]
        return number if way.per_unit == 1 else number / way.per_unit

    def call(self) -> "DirectCall":
        """This number as one way to a field."""
        return DirectCall(
            operation=self._way.label, read=self.read, source=self._way.source, number=self
        )

    def place(self, way: Direct | None = None) -> Place:
        """Where the number (or another of the same buffer) is, once the call has answered."""
        way = way or self._way
        return Place(
            call=self._planned_call, offset=way.offset, kind=way.kind, scale=1 / way.per_unit
        )

    @cached_property
    def _planned_call(self) -> PlannedCall:
        way = self._way
        return PlannedCall(
            operation=way.operation,
            address=self._driver.address(way.operation),
            shape=CallShape.BUFFER if way.argument is None else CallShape.OF,
            handle=self._driver.handle,
            buffer=self._buffer,
            argument=way.argument or 0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectCall(Call):
    """A way to a field by a call of its own."""

    number: DirectNumber

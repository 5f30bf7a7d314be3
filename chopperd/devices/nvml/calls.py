"""NVML calls into reused buffers, and several field values by one call; no meaning of any field."""

from collections.abc import Callable, Iterable, Mapping
from ctypes import Array, c_char, c_void_p, cast, create_string_buffer
from dataclasses import dataclass, field
from functools import cached_property, partial
from math import nan
from struct import Struct, pack
from types import ModuleType
from typing import Final, TypeAlias

from chopperd.devices.channel import Call, CallFailedError, DeviceFaults
from chopperd.devices.nvml.table import FIELD_VALUES, Direct, FieldValue
from chopperd.devices.read_plan import CallShape, NumberKind, PlannedCall

# Driver calls into buffers that are used again: the binding's wrappers allocate and decode.

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


# Several NVML field values by one driver call; decoding only, no meaning of any field.

# nvmlFieldValue_t: id and scope, two times (skipped), type of the value, return code, the union.
_FIELD_BYTES: Final = 40
_REQUEST: Final = Struct("<II32x")
_ANSWER: Final = Struct("<IIQ")
_TYPE_OFFSET: Final = 24
_CODE_OFFSET: Final = 28
_VALUE_OFFSET: Final = 32
#: Where its members are, by their names in nvml.h.
FIELD_LAYOUT: Final = {
    "fieldId": 0,
    "scopeId": 4,
    "valueType": _TYPE_OFFSET,
    "nvmlReturn": _CODE_OFFSET,
    "value": _VALUE_OFFSET,
}

# nvmlValueType_t: how each type stands in the union. Source: nvml.h.
_UNSIGNED_LONG_LONG: Final = 3
KIND_BY_TYPE: Final = {
    0: NumberKind.FLOAT64,
    1: NumberKind.UINT32,
    2: NumberKind.UINT64,
    _UNSIGNED_LONG_LONG: NumberKind.UINT64,
    4: NumberKind.INT64,
    5: NumberKind.INT32,
    6: NumberKind.UINT16,
}


def number_of(value_type: int, raw: int) -> float | None:
    """The number in a `nvmlValue_t` given as its 64 raw bits; None for a type we don't know.

    Bits beyond those of its type count for nothing.
    """
    kind = KIND_BY_TYPE.get(value_type)
    if kind is None:
        return None
    number: float = FORMAT_BY_KIND[kind].unpack_from(pack("<Q", raw))[0]
    return number


class FieldRequest:
    """One set of fields to ask for, in a buffer that is used again."""

    def __init__(self, driver: Driver, ways: tuple[FieldValue, ...]) -> None:
        self._driver = driver
        self._count = len(ways)
        self._start = {way.key: _FIELD_BYTES * index for index, way in enumerate(ways)}
        self._buffer: Array[c_char] = create_string_buffer(
            b"".join(_REQUEST.pack(way.field_id, way.scope_id) for way in ways),
            _FIELD_BYTES * len(ways),
        )
        self._arguments = (c_void_p(driver.handle), len(ways), self._buffer)

    @property
    def is_empty(self) -> bool:
        """Whether it asks for nothing."""
        return self._count == 0

    def fetch(self, function: Function) -> int:
        """Ask; the return code of the call as a whole."""
        return function(*self._arguments)

    def answer(self, key: int) -> tuple[int, int, int]:
        """Type of the value, return code and raw bits of one of the fields."""
        answer: tuple[int, int, int] = _ANSWER.unpack_from(
            self._buffer, self._start[key] + _TYPE_OFFSET
        )
        return answer

    def place(self, way: FieldValue, value_type: int) -> Place:
        """Where a field's number is, as long as it is of this type."""
        start = self._start[way.key]
        return Place(
            call=self._planned_call,
            offset=start + _VALUE_OFFSET,
            kind=KIND_BY_TYPE[value_type],
            scale=1 / way.per_unit,
            checks={start + _TYPE_OFFSET: value_type, start + _CODE_OFFSET: 0},
        )

    @cached_property
    def _planned_call(self) -> PlannedCall:
        return PlannedCall(
            operation=FIELD_VALUES,
            address=self._driver.address(FIELD_VALUES),
            shape=CallShape.COUNT,
            handle=self._driver.handle,
            buffer=self._buffer,
            argument=self._count,
        )


class FieldReader:
    """Field values of one device: those asked for in a look come by one driver call."""

    def __init__(self, driver: Driver, faults: DeviceFaults) -> None:
        self._driver = driver
        self._faults = faults
        self._function: Function | None = None
        self._requests: dict[tuple[FieldValue, ...], FieldRequest] = {}
        self._types: dict[int, int] = {}
        self._failure: CallFailedError | None = None
        self._request = self.request(())

    def request(self, ways: tuple[FieldValue, ...]) -> FieldRequest:
        """The request for a set of fields, always the same for the same set."""
        request = self._requests.get(ways)
        if request is None:
            request = self._requests[ways] = FieldRequest(self._driver, ways)
        return request

    def look(self, request: FieldRequest) -> None:
        """Ask the driver; what came of it the numbers say.

        Raises:
            DeviceLostError: The driver says that the device is gone.
        """
        self._request = request
        self._failure = None
        try:
            if self._function is None:
                self._function = self._driver.function(FIELD_VALUES)
            code = request.fetch(self._function)
            if code:
                raise self._driver.error(code)
        except self._faults.vendor_error as error:
            is_absent = self._faults.absent(error, FIELD_VALUES)
            self._failure = CallFailedError(is_absent=is_absent)

    def number(self, key: int) -> float:
        """The number of a field that was in the last request, in the driver's unit.

        Raises:
            NVMLError: The device does not have it, or it failed.
            CallFailedError: The call failed, which is counted.
        """
        if self._failure is not None:
            raise self._failure
        value_type, code, raw = self._request.answer(key)
        if code:
            raise self._driver.error(code)
        # The counters of every tick are of this type: no call for each of them.
        number = raw if value_type == _UNSIGNED_LONG_LONG else number_of(value_type, raw)
        if number is None:
            raise self._driver.not_supported
        if self._types.get(key) != value_type:
            self._types[key] = value_type
            self._faults.choices.revision += 1
        return number

    def call(self, way: FieldValue) -> "FieldCall":
        """A field as one way to a number."""
        number, key, per_unit = self.number, way.key, way.per_unit
        return FieldCall(
            operation=way.label,
            read=partial(number, key) if per_unit == 1 else lambda: number(key) / per_unit,
            source=way.source,
            way=way,
        )

    def place(self, request: FieldRequest, way: FieldValue) -> Place:
        """Where a field that has answered is after a request."""
        return request.place(way, self._types[way.key])


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldCall(Call):
    """A way to a number by a field value."""

    way: FieldValue


def wanted_fields(asked_calls: Iterable[Call]) -> tuple[FieldValue, ...]:
    """The fields among the ways that a look may try, each once, in order."""
    return tuple(dict.fromkeys(call.way for call in asked_calls if isinstance(call, FieldCall)))

"""Makes NVML calls into reused buffers, and reads several field values by one call.

The binding's own wrappers allocate and decode at each call. What each field means is in `table`.
"""

from collections.abc import Callable, Iterable
from ctypes import Array, c_char, c_void_p, cast, create_string_buffer
from dataclasses import dataclass
from functools import cached_property, partial
from math import nan
from struct import Struct, pack
from types import ModuleType
from typing import Final, TypeAlias

from chopperd.devices.channel import Call
from chopperd.devices.faults import CallFailedError, DeviceFaults
from chopperd.devices.nvml.table import FIELD_VALUES, Direct, FieldValue
from chopperd.devices.read_plan import FORMAT_BY_KIND, CallShape, NumberKind, PlannedCall, Slot

Function: TypeAlias = Callable[..., int]

_ALL_ONES_SIGNED: Final = -1


class Driver:
    """Finds the driver's entry points and makes its errors, for one device of the binding."""

    def __init__(self, nvml: ModuleType, handle: object) -> None:
        self._nvml = nvml
        self.handle: int = cast(handle, c_void_p).value or 0  # type: ignore[arg-type]

    def function(self, name: str) -> Function:
        """Find an entry point, when it is first needed; raises NVMLError in drivers without it."""
        try:
            function: Function = getattr(self._nvml.nvmlLib, name)
        except AttributeError as error:
            raise self.error(self._nvml.NVML_ERROR_FUNCTION_NOT_FOUND) from error
        return function

    def address(self, name: str) -> int:
        """Return the address of an entry point that exists."""
        return cast(getattr(self._nvml.nvmlLib, name), c_void_p).value or 0

    def error(self, code: int) -> Exception:
        """Return the binding's error for a return code; not raised here."""
        error: Exception = self._nvml.NVMLError(code)
        return error

    @property
    def not_supported(self) -> Exception:
        """The binding's error for a number that the device does not have."""
        return self.error(self._nvml.NVML_ERROR_NOT_SUPPORTED)


class DirectNumber:
    """Reads one number by one driver call into a reused buffer."""

    def __init__(self, driver: Driver, method: Direct) -> None:
        self._driver = driver
        self._method = method
        self._function: Function | None = None
        self._buffer: Array[c_char] = create_string_buffer(
            b"".join(word.to_bytes(4, "little") for word in method.words), method.size_bytes
        )
        argument = () if method.argument is None else (method.argument,)
        self._arguments = (c_void_p(driver.handle), *argument, self._buffer)
        self._decode = FORMAT_BY_KIND[method.kind].unpack_from
        self._offset, self._per_unit = method.offset, method.per_unit

    def read(self) -> float:
        """Call the driver; return the number in the field's unit; raises NVMLError."""
        function = self._function
        if function is None:
            function = self._function = self._driver.function(self._method.operation)
        code = function(*self._arguments)
        if code:
            raise self._driver.error(code)
        number: float = self._decode(self._buffer, self._offset)[0]
        if number == _ALL_ONES_SIGNED and self._method.kind is NumberKind.INT32:
            return nan  # "not reported": outside of any bounds, as all ones are if unsigned
        return number if self._per_unit == 1 else number / self._per_unit

    def left_behind(self, method: Direct) -> float:
        """Return another number from the buffer of the last call, in its field's unit."""
        number: float = FORMAT_BY_KIND[method.kind].unpack_from(self._buffer, method.offset)[0]
        return number if method.per_unit == 1 else number / method.per_unit

    def call(self) -> "DirectCall":
        """Return a `Call` that reads a field from this number."""
        return DirectCall(
            operation=self._method.label, read=self.read, source=self._method.source, number=self
        )

    def slot(self, method: Direct | None = None) -> Slot:
        """Return where a plan finds the number (or another in the same buffer)."""
        method = method or self._method
        return Slot(
            call=self._planned_call,
            offset=method.offset,
            kind=method.kind,
            scale=1 / method.per_unit,
        )

    @cached_property
    def _planned_call(self) -> PlannedCall:
        method = self._method
        return PlannedCall(
            operation=method.operation,
            address=self._driver.address(method.operation),
            shape=CallShape.BUFFER if method.argument is None else CallShape.OF,
            handle=self._driver.handle,
            buffer=self._buffer,
            argument=method.argument or 0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectCall(Call):
    """A call that reads one field by one driver call."""

    number: DirectNumber


# Several NVML field values by one driver call.

# nvmlFieldValue_t: id and scope, two times (skipped), type of the value, return code, the union.
_FIELD_BYTES: Final = 40
_REQUEST: Final = Struct("<II32x")
_ANSWER: Final = Struct("<IIQ")
TYPE_OFFSET: Final = 24
CODE_OFFSET: Final = 28
VALUE_OFFSET: Final = 32

# Encoding of each type in the union: nvmlValueType_t. Source: nvml.h.
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
    """Decode the number in a `nvmlValue_t`, given as 64 raw bits; None for an unknown type.

    Bits beyond those of its type are ignored.
    """
    kind = KIND_BY_TYPE.get(value_type)
    if kind is None:
        return None
    number: float = FORMAT_BY_KIND[kind].unpack_from(pack("<Q", raw))[0]
    return number


class FieldRequest:
    """Requests a set of fields by one driver call, with a reused buffer for the answers."""

    def __init__(self, driver: Driver, methods: tuple[FieldValue, ...]) -> None:
        self._driver = driver
        self.count = len(methods)
        self._start = {method.key: _FIELD_BYTES * index for index, method in enumerate(methods)}
        self._buffer: Array[c_char] = create_string_buffer(
            b"".join(_REQUEST.pack(method.field_id, method.scope_id) for method in methods),
            _FIELD_BYTES * len(methods),
        )
        self._arguments = (c_void_p(driver.handle), len(methods), self._buffer)

    def fetch(self, function: Function) -> int:
        """Call the driver, which fills the buffer; return the code of the call as a whole."""
        return function(*self._arguments)

    def answer(self, key: int) -> tuple[int, int, int]:
        """Return type of the value, return code and raw bits of a field of the last `fetch`."""
        answer: tuple[int, int, int] = _ANSWER.unpack_from(
            self._buffer, self._start[key] + TYPE_OFFSET
        )
        return answer

    def slot(self, method: FieldValue, value_type: int) -> Slot:
        """Return where a plan finds a field's number, valid only with this type."""
        start = self._start[method.key]
        return Slot(
            call=self._planned_call,
            offset=start + VALUE_OFFSET,
            kind=KIND_BY_TYPE[value_type],
            scale=1 / method.per_unit,
            checks={start + TYPE_OFFSET: value_type, start + CODE_OFFSET: 0},
        )

    @cached_property
    def _planned_call(self) -> PlannedCall:
        return PlannedCall(
            operation=FIELD_VALUES,
            address=self._driver.address(FIELD_VALUES),
            shape=CallShape.COUNT,
            handle=self._driver.handle,
            buffer=self._buffer,
            argument=self.count,
        )


class FieldReader:
    """Reads field values of one device: one driver call fetches all fields of a read."""

    def __init__(self, driver: Driver, faults: DeviceFaults) -> None:
        self._driver = driver
        self._faults = faults
        self._function: Function | None = None
        self._requests: dict[tuple[FieldValue, ...], FieldRequest] = {}
        self._types: dict[int, int] = {}
        self._failure: CallFailedError | None = None
        self._request = self.request(())

    def request(self, methods: tuple[FieldValue, ...]) -> FieldRequest:
        """Return the request for a set of fields; the same, stored object for the same set."""
        request = self._requests.get(methods)
        if request is None:
            request = self._requests[methods] = FieldRequest(self._driver, methods)
        return request

    def fetch(self, request: FieldRequest) -> None:
        """Make a request; a failure is stored, and `number` raises it; raises DeviceLostError."""
        self._request = request
        self._failure = None
        try:
            if self._function is None:
                self._function = self._driver.function(FIELD_VALUES)
            code = request.fetch(self._function)
            if code:
                raise self._driver.error(code)
        except self._faults.vendor_error as error:
            is_absent = self._faults.is_absent(error, FIELD_VALUES)
            self._failure = CallFailedError(is_absent=is_absent)

    def number(self, key: int) -> float:
        """Return the number of a field of the last request, in the driver's unit; store its type.

        Raises:
            NVMLError: The device does not have the field, or it failed.
            CallFailedError: The request failed, which is already counted.
        """
        if self._failure is not None:
            raise self._failure
        value_type, code, raw = self._request.answer(key)
        if code:
            raise self._driver.error(code)
        # The counters of every tick are of this type: decoding them needs no call.
        number = raw if value_type == _UNSIGNED_LONG_LONG else number_of(value_type, raw)
        if number is None:
            raise self._driver.not_supported
        if self._types.get(key) != value_type:
            self._types[key] = value_type
            self._faults.revision += 1
        return number

    def call(self, method: FieldValue) -> "FieldCall":
        """Return a `Call` that reads a number from a field of the last request."""
        number, key, per_unit = self.number, method.key, method.per_unit
        return FieldCall(
            operation=method.label,
            read=partial(number, key) if per_unit == 1 else lambda: number(key) / per_unit,
            source=method.source,
            method=method,
        )

    def slot(self, request: FieldRequest, method: FieldValue) -> Slot:
        """Return where a plan with this request finds a field that has answered."""
        return request.slot(method, self._types[method.key])


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldCall(Call):
    """A call that reads a number from a field value."""

    method: FieldValue


def wanted_fields(calls: Iterable[Call]) -> tuple[FieldValue, ...]:
    """Return the fields of those calls that are field values, each once, in order."""
    return tuple(dict.fromkeys(call.method for call in calls if isinstance(call, FieldCall)))

"""Carries out read plans slowly and plainly, for comparing with what carries them out fast."""

import ctypes
import os
import struct
from collections.abc import Iterator, Mapping
from ctypes import c_int, c_uint, c_void_p
from typing import Final

from chopperd.devices.read_plan import CallShape, NumberKind, PlannedCall, ReadPlan
from chopperd.model.causes import CAUSES, Cause
from chopperd.model.devices import DEEP_SLEEP_MHZ, DeviceReading

_ARGUMENTS: Final = {
    CallShape.BUFFER: (c_void_p, c_void_p),
    CallShape.OF: (c_void_p, c_uint, c_void_p),
    CallShape.COUNT: (c_void_p, c_int, c_void_p),
}
_NUMBERS: Final = {
    NumberKind.UINT16: struct.Struct("<H"),
    NumberKind.UINT32: struct.Struct("<I"),
    NumberKind.UINT64: struct.Struct("<Q"),
    NumberKind.INT32: struct.Struct("<i"),
    NumberKind.INT64: struct.Struct("<q"),
    NumberKind.FLOAT64: struct.Struct("<d"),
}


def carried_out(plan: ReadPlan) -> DeviceReading:
    """The reading that a plan gives, made call by call: slow and plain, for comparing with.

    Raises:
        AssertionError: A call failed, or a value is not as planned.
    """
    buffers = [_called(call) for call in plan.calls]

    def number(call: int, offset: int, kind: NumberKind, checks: Mapping[int, int]) -> float:
        for place, expected in checks.items():
            assert _NUMBERS[NumberKind.UINT32].unpack_from(buffers[call], place)[0] == expected
        if kind is NumberKind.DECIMAL:
            return int(buffers[call][offset:].partition(b"\0")[0])
        value: float = _NUMBERS[kind].unpack_from(buffers[call], offset)[0]
        return value

    values: dict[str, float] = {}
    dies: dict[int, float] = {}
    for planned in plan.values:
        raw = number(planned.call, planned.offset, planned.kind, planned.checks)
        assert planned.low <= raw * planned.scale <= planned.high
        field, _, die = planned.name.partition(".")
        if die:
            dies[int(die)] = raw * planned.scale
        else:
            values[field] = raw * planned.scale
    counted: dict[Cause, float] = {}
    for each in plan.counters:
        raw = number(each.call, each.offset, each.kind, each.checks)
        assert each.low <= raw <= each.high
        cause = Cause(each.cause)
        counted[cause] = counted.get(cause, 0.0) + raw * each.scale + each.addend
    limited_ns = {cause: round(limited) for cause, limited in counted.items()}
    causes: frozenset[Cause] | None = None
    if plan.causes is not None:
        bits = int(number(plan.causes.call, plan.causes.offset, plan.causes.kind, {}))
        causes = frozenset(_causes(bits, plan.causes.causes))
    numbers: dict[str, object] = {
        name: int(v) if name.endswith("_bytes") else v for name, v in values.items()
    }
    numbers |= _clocks(dies)
    return DeviceReading(causes=causes, limited_ns=limited_ns, **numbers)  # type: ignore[arg-type]


def _clocks(dies_mhz: Mapping[int, float]) -> dict[str, object]:
    """The clocks of dies, and the lowest of those that run, as a back end gives them."""
    if not dies_mhz:
        return {}
    clocks_mhz = tuple(dies_mhz.get(die) for die in range(max(dies_mhz) + 1))
    present = [mhz for mhz in clocks_mhz if mhz]
    running = [mhz for mhz in present if mhz > DEEP_SLEEP_MHZ]
    return {"die_clocks_mhz": clocks_mhz, "sm_clock_mhz": min(running or present, default=None)}


def _called(call: PlannedCall) -> bytes:
    """What a call leaves in its buffer."""
    if call.lock is None:
        return _called_now(call)
    with call.lock:
        return _called_now(call)


def _called_now(call: PlannedCall) -> bytes:
    if call.shape is CallShape.FILE:
        asked = memoryview(call.buffer).cast("B")[: call.argument]
        assert os.preadv(call.handle, [asked], 0) == call.argument
        return bytes(call.buffer)
    if call.shape is CallShape.TEXT:
        return os.pread(call.handle, call.argument, 0) + b"\0"
    function = ctypes.CFUNCTYPE(c_int, *_ARGUMENTS[call.shape])(call.address)
    arguments = () if call.shape is CallShape.BUFFER else (call.argument,)
    code = function(call.handle, *arguments, ctypes.addressof(call.buffer))
    assert code == 0, f"{call.operation} answers {code}"
    return bytes(call.buffer)


def _causes(bits: int, by_bit: tuple[int, ...]) -> Iterator[Cause]:
    standing = 0
    for position, causes in enumerate(by_bit):
        standing |= causes if bits >> position & 1 else 0
    return (cause for cause in CAUSES if standing & cause.bit)

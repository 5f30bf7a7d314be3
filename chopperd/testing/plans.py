"""Carries out read plans in plain Python, as a reference for the native code."""

import ctypes
import os
from collections.abc import Iterable, Mapping, Sequence
from ctypes import c_int, c_uint, c_void_p
from typing import Final

from chopperd.devices.read_plan import (
    FORMAT_BY_KIND,
    CallShape,
    NumberKind,
    PlannedCall,
    PlannedCauses,
    PlannedCounter,
    PlannedValue,
    ReadPlan,
)
from chopperd.model.devices import DeviceReading, lowest_running_mhz
from chopperd.model.kinds import CAUSES, Cause

_ARGUMENTS: Final = {
    CallShape.BUFFER: (c_void_p, c_void_p),
    CallShape.OF: (c_void_p, c_uint, c_void_p),
    CallShape.COUNT: (c_void_p, c_int, c_void_p),
}


def carried_out(plan: ReadPlan) -> DeviceReading:
    """Make the calls of a plan, in order, and return the reading.

    Raises:
        AssertionError: A call failed, or a value is not as planned.
    """
    buffers = [_called(call) for call in plan.calls]
    values: dict[str, float] = {}
    dies: dict[int, float] = {}
    for planned in plan.values:
        value = _scaled(_number(buffers, planned), planned.scale)
        assert planned.low <= value <= planned.high, f"{planned.name} is absurd: {value}"
        field, _, die = planned.name.partition(".")
        if die:
            dies[int(die)] = value
        else:
            values[field] = int(value) if field.endswith("_bytes") else value
    return DeviceReading(
        causes=None if plan.causes is None else _causes(buffers, plan.causes),
        limited_ns=_limited_ns(buffers, plan.counters),
        **(values | _clocks(dies)),  # type: ignore[arg-type]
    )


def _number(buffers: Sequence[bytes], planned: PlannedValue | PlannedCounter) -> float:
    """Return a number from its buffer, before scaling; asserts its checks."""
    buffer = buffers[planned.call]
    for offset, expected in planned.checks.items():
        found = FORMAT_BY_KIND[NumberKind.UINT32].unpack_from(buffer, offset)[0]
        assert found == expected, f"the word at {offset} is {found}, not {expected}"
    if planned.kind is NumberKind.DECIMAL:
        return int(buffer[planned.offset :].partition(b"\0")[0])
    number: float = FORMAT_BY_KIND[planned.kind].unpack_from(buffer, planned.offset)[0]
    return number


def _scaled(number: float, scale: float) -> float:
    """Scale a number to the field's unit; divides, to round once, if 1 / `scale` is whole."""
    whole = round(1 / scale) if 0 < scale < 1 else 0
    return number / whole if whole and 1 / whole == scale else number * scale


def _limited_ns(buffers: Sequence[bytes], counters: Iterable[PlannedCounter]) -> dict[Cause, int]:
    counted: dict[Cause, float] = {}
    for each in counters:
        raw = _number(buffers, each)
        assert each.low <= raw <= each.high, f"{Cause(each.cause).label} is absurd: {raw}"
        cause = Cause(each.cause)
        counted[cause] = counted.get(cause, 0.0) + raw * each.scale + each.addend
    return {cause: round(limited) for cause, limited in counted.items()}


def _clocks(dies_mhz: Mapping[int, float]) -> dict[str, object]:
    """Return the dies' clocks and the lowest of those that run, as fields of a reading."""
    if not dies_mhz:
        return {}
    clocks_mhz = tuple(dies_mhz.get(die) for die in range(max(dies_mhz) + 1))
    return {"die_clocks_mhz": clocks_mhz, "sm_clock_mhz": lowest_running_mhz(clocks_mhz)}


def _called(call: PlannedCall) -> bytes:
    """Make a call, with its lock held if it has one; return its buffer."""
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


def _causes(buffers: Sequence[bytes], planned: PlannedCauses) -> frozenset[Cause]:
    bits = FORMAT_BY_KIND[planned.kind].unpack_from(buffers[planned.call], planned.offset)[0]
    in_force = 0
    for index, causes in enumerate(planned.causes):
        in_force |= causes if bits >> index & 1 else 0
    return frozenset(cause for cause in CAUSES if in_force & cause.bit)

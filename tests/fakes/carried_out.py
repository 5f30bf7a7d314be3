"""Carries out a read plan in Python, by its text alone: what any executor of plans must give."""

import os
from contextlib import nullcontext
from ctypes import CFUNCTYPE, c_int, c_uint, c_void_p
from dataclasses import dataclass, field
from struct import unpack_from

from chopperd.devices.read_plan import (
    CallShape,
    NumberKind,
    PlannedCall,
    PlannedCounter,
    PlannedValue,
    ReadPlan,
)
from chopperd.model.causes import Cause

_FORMAT = {
    NumberKind.UINT16: "<H",
    NumberKind.UINT32: "<I",
    NumberKind.UINT64: "<Q",
    NumberKind.INT32: "<i",
    NumberKind.INT64: "<q",
    NumberKind.FLOAT64: "<d",
}


class NotAsPlannedError(Exception):
    """A call failed, or a value is not as the plan says: the back end must read itself."""


@dataclass
class CarriedOut:
    """What a plan gave: numbers by field, the bit set of causes, counters by cause."""

    values: dict[str, float] = field(default_factory=dict)
    cause_bits: int | None = None
    limited_ns: dict[Cause, float] = field(default_factory=dict)


def carry_out(plan: ReadPlan) -> CarriedOut:
    """One look by a plan."""
    for call in plan.calls:
        with call.lock or nullcontext():
            code = _code_of(call)
        if code:
            raise NotAsPlannedError(f"{call.operation}: {code}")
    done = CarriedOut()
    for value in plan.values:
        done.values[value.name] = _scaled(_number(plan, value), value.scale)
        _check(value, done.values[value.name])
    for counter in plan.counters:
        raw, cause = _number(plan, counter), Cause(counter.cause)
        _check(counter, raw)
        before = done.limited_ns.get(cause, 0.0)
        done.limited_ns[cause] = before + raw * counter.scale + counter.addend
    if plan.causes is not None:
        buffer = plan.calls[plan.causes.call].buffer
        bits = unpack_from(_FORMAT[plan.causes.kind], buffer, plan.causes.offset)[0]
        done.cause_bits = 0
        for position, causes in enumerate(plan.causes.causes):
            if bits >> position & 1:
                done.cause_bits |= causes
    return done


def _code_of(call: PlannedCall) -> int:
    """Make a call; what it answers."""
    if call.shape is CallShape.FILE:
        asked = memoryview(call.buffer).cast("B")[: call.argument]
        return int(os.preadv(call.handle, [asked], 0) != call.argument)
    if call.shape is CallShape.TEXT:
        text = os.pread(call.handle, call.argument, 0) + b"\0"
        memoryview(call.buffer).cast("B")[: len(text)] = text
        return int(len(text) == 1)
    if call.shape is CallShape.BUFFER:
        return int(CFUNCTYPE(c_int, c_void_p, c_void_p)(call.address)(call.handle, call.buffer))
    entry = CFUNCTYPE(c_int, c_void_p, c_uint, c_void_p)(call.address)
    return int(entry(call.handle, call.argument, call.buffer))


def _scaled(number: float, scale: float) -> float:
    return number * scale if scale >= 1 else number / round(1 / scale)


def _number(plan: ReadPlan, place: PlannedValue | PlannedCounter) -> float:
    buffer = plan.calls[place.call].buffer
    for offset, expected in place.checks.items():
        if unpack_from("<I", buffer, offset)[0] != expected:
            raise NotAsPlannedError(f"word at {offset} of {plan.calls[place.call].operation}")
    if place.kind is NumberKind.DECIMAL:
        return _decimal(bytes(memoryview(buffer).cast("B"))[place.offset :])
    number: float = unpack_from(_FORMAT[place.kind], buffer, place.offset)[0]
    return number


def _decimal(text: bytes) -> float:
    digits = text.partition(b"\0")[0].partition(b"\n")[0]
    if not digits.isdigit():
        raise NotAsPlannedError(f"no number: {digits!r}")
    return int(digits)


def _check(bounds: PlannedValue | PlannedCounter, number: float) -> None:
    if not bounds.low <= number <= bounds.high:
        raise NotAsPlannedError(f"{number} is absurd")

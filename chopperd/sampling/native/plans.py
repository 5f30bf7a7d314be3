"""Converts read plans to the form of the C library, checked once so that reads need no Python."""

from collections.abc import Sequence
from ctypes import addressof, c_int64, sizeof
from typing import Final, TypeAlias

from chopperd.devices.read_plan import (
    CallShape,
    NumberKind,
    PlannedCall,
    PlannedCauses,
    PlannedCounter,
    PlannedStamp,
    PlannedValue,
    ReadPlan,
)
from chopperd.model.devices import MOST_DIES, STATE_FIELDS
from chopperd.model.kinds import CAUSES
from chopperd.model.samples import VALUE_COLUMNS
from chopperd.sampling.memory.layout import RECORD, offset_of
from chopperd.sampling.native.library import Plan, PlanCall, PlanCheck, PlanNumber

_Number: TypeAlias = PlannedValue | PlannedCounter

#: Places count words: of a record up to its dies, then of the slow state's values, then dies.
_RECORD_WORDS: Final = offset_of(RECORD, "die_clocks_mhz") // 8
_FIRST_DIE: Final = _RECORD_WORDS + len(STATE_FIELDS)
_PLACES: Final = {
    **{name: offset_of(RECORD, name) // 8 for name in VALUE_COLUMNS},
    **{name: _RECORD_WORDS + place for place, name in enumerate(STATE_FIELDS)},
    **{f"die_clocks_mhz.{die}": _FIRST_DIE + die for die in range(MOST_DIES)},
}
_FIRST_COUNTER: Final = offset_of(RECORD, "limited_ns") // 8
_BYTES: Final = {
    NumberKind.UINT16: 2,
    NumberKind.UINT32: 4,
    NumberKind.UINT64: 8,
    NumberKind.INT32: 4,
    NumberKind.INT64: 8,
    NumberKind.FLOAT64: 8,
    NumberKind.DECIMAL: 1,
}
_UNSIGNED: Final = {NumberKind.UINT16, NumberKind.UINT32, NumberKind.UINT64}


class PlanMismatchError(ValueError):
    """A plan can't be carried out: it does not fit its buffers, or names an unknown field."""


class NativePlan:
    """A plan in the C library's form; keeps alive the memory that it points to.

    Attributes:
        source: The plan that was converted.
        address: Address of the `plan_t`.

    Raises:
        PlanMismatchError: The plan does not fit its buffers or names an unknown field.
    """

    def __init__(self, source: ReadPlan) -> None:
        self.source = source
        numbers: tuple[_Number, ...] = (*source.values, *source.counters)
        for number in numbers:
            _check_room(source, number)
        for call in source.calls:
            _check_call(call)
        self._calls = (PlanCall * len(source.calls))(
            *(
                PlanCall(
                    function=call.address,
                    handle=call.handle,
                    buffer=addressof(call.buffer),
                    buffer_bytes=sizeof(call.buffer),
                    shape=call.shape,
                    argument=call.argument,
                    lock=0 if call.lock is None else call.lock.address,
                )
                for call in source.calls
            )
        )
        checks = [PlanCheck(*check) for number in numbers for check in number.checks.items()]
        self._checks = (PlanCheck * len(checks))(*checks)
        self._numbers = (PlanNumber * len(numbers))(*_placed(numbers))
        self._plan = Plan(
            calls=addressof(self._calls),
            calls_count=len(self._calls),
            numbers=addressof(self._numbers),
            numbers_count=len(self._numbers),
            checks=addressof(self._checks),
            checks_count=len(self._checks),
            causes_call=-1,
            stamp_call=-1,
        )
        if source.stamp is not None:
            self._set_stamp(source, source.stamp)
        if source.causes is not None:
            self._set_causes(source, source.causes)
        self.address = addressof(self._plan)

    def _set_stamp(self, source: ReadPlan, stamp: PlannedStamp) -> None:
        _check_bytes(source, stamp.call, stamp.offset, _BYTES[stamp.kind])
        self._plan.stamp_call = stamp.call
        self._plan.stamp_offset = stamp.offset
        self._plan.stamp_kind = stamp.kind
        self._plan.stamp_still_ns = stamp.still_ns

    def _set_causes(self, source: ReadPlan, causes: PlannedCauses) -> None:
        _check_bytes(source, causes.call, causes.offset, _BYTES[causes.kind])
        if causes.kind not in _UNSIGNED or len(causes.causes) != 64:
            raise PlanMismatchError("causes are not given as bits")
        self._plan.causes_call = causes.call
        self._plan.causes_offset = causes.offset
        self._plan.causes_kind = causes.kind
        self._plan.causes_by_bit = (c_int64 * 64)(*causes.causes)


def _placed(numbers: Sequence[_Number]) -> list[PlanNumber]:
    """Convert numbers to the library's form, their checks following on one another."""
    placed = []
    first_check = 0
    for number in numbers:
        multiplier, divisor = _factors(number.scale)
        is_counted = isinstance(number, PlannedCounter)
        placed.append(
            PlanNumber(
                call=number.call,
                offset=number.offset,
                kind=number.kind,
                place=_place(number),
                multiplier=multiplier,
                divisor=divisor,
                addend=number.addend if isinstance(number, PlannedCounter) else 0.0,
                is_counted=is_counted,
                low=number.low,
                high=number.high,
                first_check=first_check,
                checks_count=len(number.checks),
            )
        )
        first_check += len(number.checks)
    return placed


def _place(number: _Number) -> int:
    if isinstance(number, PlannedCounter):
        if number.cause not in range(len(CAUSES)) or number.kind is NumberKind.FLOAT64:
            raise PlanMismatchError(f"no whole number under a limit: {number.cause}")
        return _FIRST_COUNTER + number.cause
    if number.name not in _PLACES:
        raise PlanMismatchError(f"{number.name} is not a number of a record")
    return _PLACES[number.name]


def _factors(scale: float) -> tuple[float, float]:
    """Split a scale into a multiplier and a divisor: 0.001 is a division by 1000, rounding less.

    The result is to the last bit the one that `units` gives.
    """
    whole = round(1 / scale) if 0 < scale < 1 else 0
    return (1.0, float(whole)) if whole and 1 / whole == scale else (scale, 1.0)


def _check_call(call: PlannedCall) -> None:
    is_file = call.shape in {CallShape.FILE, CallShape.TEXT}
    room_bytes = sizeof(call.buffer) - (call.shape is CallShape.TEXT)  # for the zero after it
    if is_file and not (call.handle >= 0 and 0 < call.argument <= room_bytes):
        raise PlanMismatchError(f"{call.operation} is more than its buffer holds")
    if not is_file and not call.address:
        raise PlanMismatchError(f"{call.operation} is at no address")


def _check_room(source: ReadPlan, number: _Number) -> None:
    _check_bytes(source, number.call, number.offset, _BYTES[number.kind])
    if number.kind is NumberKind.DECIMAL and source.calls[number.call].shape is not CallShape.TEXT:
        raise PlanMismatchError(f"{source.calls[number.call].operation} gives no text")
    for offset in number.checks:
        _check_bytes(source, number.call, offset, 4)


def _check_bytes(source: ReadPlan, call: int, offset: int, size_bytes: int) -> None:
    if not 0 <= call < len(source.calls):
        raise PlanMismatchError(f"there is no call {call}")
    if not 0 <= offset <= sizeof(source.calls[call].buffer) - size_bytes:
        raise PlanMismatchError(f"{source.calls[call].operation} gives nothing at byte {offset}")

"""Runs sampling ticks in the C library: read plans in its form, then ticks without Python."""

import logging
import threading
from array import array
from collections.abc import Sequence
from ctypes import addressof, c_int64, sizeof
from dataclasses import replace
from enum import IntEnum
from typing import Final, TypeAlias

import numpy as np

from chopperd.clock import Clock, RepeatLimiter, SystemClock
from chopperd.devices.base import DeviceBackend, PlansReads
from chopperd.devices.read_plan import (
    CallShape,
    NumberKind,
    PlannedCall,
    PlannedCounter,
    PlannedNumber,
    PlannedValue,
    ReadPlan,
)
from chopperd.errors import DeviceError
from chopperd.model.arrays import Int64s
from chopperd.model.devices import MOST_DIES, STATE_FIELDS, GpuInfo, ReadScope
from chopperd.model.kinds import CAUSES
from chopperd.model.samples import VALUE_COLUMNS
from chopperd.sampling.device_loop import DueRead, LoopParts
from chopperd.sampling.memory.gpu_writer import GpuWriter
from chopperd.sampling.memory.layout import RECORD, SCOPES, offset_of
from chopperd.sampling.native.library import (
    Loop,
    Memory,
    NativeLibrary,
    Plan,
    PlanCall,
    PlanCheck,
    PlanNumber,
)
from chopperd.sampling.schedule import Schedule
from chopperd.units import NS_PER_S

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
        self._plan = plan = Plan(
            calls=addressof(self._calls),
            calls_count=len(self._calls),
            numbers=addressof(self._numbers),
            numbers_count=len(self._numbers),
            checks=addressof(self._checks),
            checks_count=len(self._checks),
            causes_call=-1,
            stamp_call=-1,
        )
        stamp, causes = source.stamp, source.causes
        if stamp is not None:
            _check_bytes(source, stamp, stamp.offset, _BYTES[stamp.kind])
            plan.stamp_call, plan.stamp_offset = stamp.call, stamp.offset
            plan.stamp_kind, plan.stamp_still_ns = stamp.kind, stamp.still_ns
        if causes is not None:
            _check_bytes(source, causes, causes.offset, _BYTES[causes.kind])
            if causes.kind not in _UNSIGNED or len(causes.causes) != 64:
                raise PlanMismatchError("causes are not given as bits")
            plan.causes_call, plan.causes_offset = causes.call, causes.offset
            plan.causes_kind = causes.kind
            plan.causes_by_bit = (c_int64 * 64)(*causes.causes)
        self.address = addressof(plan)


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
    _check_bytes(source, number, number.offset, _BYTES[number.kind])
    if number.kind is NumberKind.DECIMAL and source.calls[number.call].shape is not CallShape.TEXT:
        raise PlanMismatchError(f"{source.calls[number.call].operation} gives no text")
    for offset in number.checks:
        _check_bytes(source, number, offset, 4)


def _check_bytes(source: ReadPlan, number: PlannedNumber, offset: int, size_bytes: int) -> None:
    if not 0 <= number.call < len(source.calls):
        raise PlanMismatchError(f"there is no call {number.call}")
    call = source.calls[number.call]
    if not 0 <= offset <= sizeof(call.buffer) - size_bytes:
        raise PlanMismatchError(f"{call.operation} gives nothing at byte {offset}")


logger = logging.getLogger(__name__)


class Interrupt:
    """A counter in memory whose change ends the waits of the C library within 250 ms."""

    def __init__(self) -> None:
        self._word = array("q", [0])
        self._lock = threading.Lock()
        self.address = self._word.buffer_info()[0]

    @property
    def count(self) -> int:
        """How often `raise_` was called."""
        return self._word[0]

    def raise_(self) -> None:
        """Add 1 to the count, which ends all waits."""
        with self._lock:
            self._word[0] += 1


#: How often the back end reads everything itself and gives its plans again: fields come and go.
_OWN_READ_EVERY_NS: Final = 60 * NS_PER_S
#: After this many reads in a row that were not as planned, the plan rests until then.
_MOST_MISFITS: Final = 3
#: Ticks are handed to the library for this time, unless they are too many.
_BLOCK_NS: Final = 60 * NS_PER_S
_MOST_TICKS: Final = 4096


class _Why(IntEnum):
    """`enum why` of native.h."""

    ENDED = 0
    DUE = 1
    INTERRUPTED = 2
    HANDED = 3


class _ScopePlan:
    """The plan for one scope, and how often reads did not fit it."""

    def __init__(self) -> None:
        self._native: NativePlan | None = None
        self._misfits = 0

    @property
    def address(self) -> int:
        """Address of the plan to carry out; 0: none."""
        if self._native is None or self._misfits >= _MOST_MISFITS:
            return 0
        return self._native.address

    def renew(
        self, backend: PlansReads, device: GpuInfo, scope: ReadScope, *, try_again: bool
    ) -> None:
        """Get the back end's current plan; `try_again`: also one that rests after misfits."""
        before, self._native = self._native, None
        plan = backend.read_plan(device, scope)
        if before is not None and before.source is plan:
            self._native = before
            self._misfits = 0 if try_again else self._misfits
        elif plan is not None:
            self._native = NativePlan(plan)
            self._misfits = 0

    def note_reads(self, carried_count: int, *, misfit: bool) -> None:
        """Count reads that did not fit the plan in a row: a fitting read resets the count."""
        if carried_count:
            self._misfits = 0
        self._misfits += misfit


class NativeTicks:
    """Ticks in C: the library waits and makes the reads that a plan covers.

    The loop makes the others: the first read of a schedule, one full read a minute (so that a field
    that begins to answer is found), and each tick at which a read did not go as planned.
    """

    def __init__(
        self,
        library: NativeLibrary,
        backend: PlansReads,
        device: GpuInfo,
        memory: Memory,
        interrupt: Interrupt,
        clock: Clock,
    ) -> None:
        self._library = library
        self._backend = backend
        self._device = device
        self._memory = memory
        self._interrupt = interrupt
        self._clock = clock
        self.own_read_every_ns = _OWN_READ_EVERY_NS
        self._logging = RepeatLimiter(clock)
        self._plans = {scope: _ScopePlan() for scope in SCOPES}
        self._asks_for_plans = False
        self._is_own_read = False
        self._schedule: Schedule | None = None
        self._first = 0
        self._columns: tuple[Int64s, ...] = ()
        self._loop = Loop(
            memory=addressof(memory), interrupt_word=interrupt.address, interrupt=interrupt.count
        )

    def begin(self, schedule: Schedule) -> None:
        """Follow this schedule from now on; its first full read is left to the loop."""
        self._schedule = schedule
        self._first = 0
        self._loop.next = self._loop.count = 0
        self._loop.hand_full_mono_ns = 0
        self._asks_for_plans = False

    def next(self, until_mono_ns: int, until_driver_ns: int) -> DueRead | None:
        """Wait for the next read that the loop must make, while the C library makes the others.

        None if there is something else to do: the wait was interrupted, sampling must end, or a
        read ended at `until_mono_ns` or later, or driver calls have taken `until_driver_ns` in all.
        """
        if self._asks_for_plans:
            self._ask_for_plans()
        loop = self._loop
        if loop.next >= loop.count:
            self._load_ticks()
        loop.return_mono_ns, loop.return_driver_ns = until_mono_ns, until_driver_ns
        for place, scope in enumerate(SCOPES):
            loop.plans[place] = self._plans[scope].address
        why = self._library.carry_out(loop)
        # An interruption from here on cuts the next wait short; the loop sees an earlier one now.
        loop.interrupt = self._interrupt.count
        handed = SCOPES[loop.handed_full] if why == _Why.HANDED else None
        self._note_reads(handed)
        return None if handed is None else DueRead(loop.handed_deadline_mono_ns, handed)

    def _note_reads(self, handed: ReadScope | None) -> None:
        """Update the misfit counts and whether to get new plans, before the loop makes its read."""
        loop = self._loop
        is_full = handed is ReadScope.FULL
        self._is_own_read = is_full and loop.handed_deadline_mono_ns >= loop.hand_full_mono_ns
        was_planned = handed is not None and loop.plans[loop.handed_full] != 0
        is_misfit = was_planned and not self._is_own_read
        for place, scope in enumerate(SCOPES):
            misfit = is_misfit and scope is handed
            self._plans[scope].note_reads(loop.carried_count[place], misfit=misfit)
        self._asks_for_plans = is_full or is_misfit

    def _ask_for_plans(self) -> None:
        """Get new plans from the back end, after its own read."""
        self._asks_for_plans = False
        if self._is_own_read:
            self._loop.hand_full_mono_ns = self._clock.mono_ns() + self.own_read_every_ns
        for scope, plan in self._plans.items():
            try:
                plan.renew(self._backend, self._device, scope, try_again=self._is_own_read)
            except (DeviceError, PlanMismatchError) as error:
                if self._logging.is_due():
                    logger.warning("GPU %s is read without a plan: %s", self._device.gpu, error)

    def _load_ticks(self) -> None:
        """Compute the next block of ticks and pass it to the loop."""
        schedule = self._schedule
        if schedule is None:
            raise RuntimeError("there is no schedule to follow")
        count = min(_MOST_TICKS, max(1, _BLOCK_NS // schedule.period_ns))
        columns = schedule.columns(self._first, count)
        self._first += count
        self._columns = tuple(np.ascontiguousarray(column, np.int64) for column in columns)
        loop = self._loop
        loop.deadlines_mono_ns, loop.ends_mono_ns, loop.are_full = (
            column.__array_interface__["data"][0] for column in self._columns
        )
        loop.next, loop.count = 0, count


def with_native(
    parts: LoopParts,
    library: NativeLibrary,
    backend: DeviceBackend,
    device: GpuInfo,
    gpu: GpuWriter,
    clock: Clock,
    interrupt: Interrupt,
) -> LoopParts:
    """Return the parts with ticks in C, if the back end gives plans and `clock` is real."""
    if not (isinstance(backend, PlansReads) and isinstance(clock, SystemClock)):
        return parts
    memory = Memory(*gpu.addresses())
    return replace(parts, ticks=NativeTicks(library, backend, device, memory, interrupt, clock))

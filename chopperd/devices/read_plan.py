"""Describes a device's read as data: entry points to call, and where each number is.

A back end makes a plan of the fields that answered; the sampler carries it out, in Python or
native code. A plan covers the normal case only: anything unexpected (a return code, a value out of
bounds, another type) ends it, and the back end's own `read` takes over.
"""

import ctypes
from collections.abc import Mapping
from ctypes import Array, Structure, c_char
from dataclasses import dataclass, field
from enum import IntEnum
from struct import Struct
from typing import Final, TypeAlias, TypedDict

from chopperd.plausible import Bounds

#: Enough for a `pthread_mutex_t` of any C library; on Linux all zeros is an unlocked mutex.
_MUTEX_BYTES: Final = 64


class SharedLock:
    """A C mutex that Python and native code can both take.

    It serialises drivers that only one thread may call at a time. A driver call that never returns
    leaves it locked.
    """

    def __init__(self) -> None:
        self._memory = ctypes.create_string_buffer(_MUTEX_BYTES)
        self._mutex = ctypes.c_void_p(self.address)
        libc = ctypes.CDLL(None)
        self._lock, self._unlock = libc.pthread_mutex_lock, libc.pthread_mutex_unlock

    @property
    def address(self) -> int:
        """Address of the `pthread_mutex_t`."""
        return ctypes.addressof(self._memory)

    def __enter__(self) -> None:
        """Lock the mutex; the GIL is released while waiting."""
        self._lock(self._mutex)

    def __exit__(self, *_error: object) -> None:
        """Unlock the mutex."""
        self._unlock(self._mutex)


Buffer: TypeAlias = Array[c_char] | Array[Structure] | Structure


class CallShape(IntEnum):
    """How an entry point is called; each returns an int, 0 for success.

    `BUFFER`: f(handle, buffer). `OF`: f(handle, argument, buffer). `COUNT`: f(handle, number of
    entries in the buffer, buffer). `FILE`: no entry point; reads exactly `argument` bytes from the
    start of the open file `handle` into the buffer. `TEXT`: reads 1 to `argument` bytes from the
    start of that file and adds a zero byte.
    """

    BUFFER = 0
    OF = 1
    COUNT = 2
    FILE = 3
    TEXT = 4


class NumberKind(IntEnum):
    """How a number is encoded in a buffer; binary numbers are little-endian.

    `DECIMAL`: a non-negative whole number in digits, up to the end of the line or of the text.
    """

    UINT16 = 0
    UINT32 = 1
    UINT64 = 2
    INT32 = 3
    INT64 = 4
    FLOAT64 = 5
    DECIMAL = 6


#: How each binary kind is decoded, and the unsigned kinds by their size in bytes.
FORMAT_BY_KIND: Final[Mapping[NumberKind, Struct]] = {
    NumberKind.UINT16: Struct("<H"),
    NumberKind.UINT32: Struct("<I"),
    NumberKind.UINT64: Struct("<Q"),
    NumberKind.INT32: Struct("<i"),
    NumberKind.INT64: Struct("<q"),
    NumberKind.FLOAT64: Struct("<d"),
}
UNSIGNED_BY_BYTES: Final[Mapping[int, NumberKind]] = {
    2: NumberKind.UINT16,
    4: NumberKind.UINT32,
    8: NumberKind.UINT64,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCall:
    """A driver call that writes to a reused buffer."""

    operation: str  # the vendor's name of the call
    address: int = 0  # of the entry point; 0 where there is none
    shape: CallShape
    handle: int  # first argument
    buffer: Buffer  # the output, kept alive by the plan; required input (a version) is in it
    argument: int = 0  # second argument, by shape
    #: Held during the call. All calls of a library that allows one thread have the same.
    lock: SharedLock | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedNumber:
    """A number in the buffer of a call."""

    call: int  # index of the call in the plan
    offset: int  # bytes from the start of the buffer
    kind: NumberKind  # encoding of the number


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedValue(PlannedNumber):
    """A number of a reading."""

    name: str  # the field of `DeviceReading`; "die_clocks_mhz.3" is the clock of the fourth die
    #: Factor to the field's unit; the inverse of a whole number (0.001) is applied as a division,
    #: which rounds only once.
    scale: float = 1.0
    #: Bounds after scaling; a value outside is implausible.
    low: float
    high: float
    #: Words (uint32) of the same buffer that must have a value, by offset, such as the number's own
    #: return code and type.
    checks: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCauses(PlannedNumber):
    """A word of vendor's bits, the limits in force; `causes[n]` is bit n's bit set of `Cause`."""

    causes: tuple[int, ...]  # of 64 bits


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCounter(PlannedNumber):
    """A counter of the cumulative time under a limit; counters of the same cause are added.

    The time in ns is the raw number times `scale` plus `addend`; `low` and `high` are bounds of the
    raw number. A counter that wraps falls below its `low`.
    """

    cause: int
    low: float
    high: float
    scale: float = 1.0
    addend: float = 0.0
    checks: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStamp(PlannedNumber):
    """A number that changes with each new measurement: the plan fails if it has not for `still_ns`.

    Both plans of a device, for fast and full reads, have the same.
    """

    still_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPlan:
    """Calls and numbers of one read of a device; a field that is not in it is not reported."""

    calls: tuple[PlannedCall, ...]  # in the order in which they are made
    values: tuple[PlannedValue, ...]  # each name once
    causes: PlannedCauses | None = None  # None: limits in force can't be read
    counters: tuple[PlannedCounter, ...] = ()
    stamp: PlannedStamp | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """Location of a number that a planned call gives; the fields are as in `PlannedValue`."""

    call: PlannedCall
    offset: int
    kind: NumberKind
    scale: float = 1.0
    checks: Mapping[int, int] = field(default_factory=dict)


class PlanBuilder:
    """Builds a plan from numbers; its calls are in the order of their first numbers."""

    def __init__(self) -> None:
        self._calls: list[PlannedCall] = []
        self._values: list[PlannedValue] = []
        self._counters: list[PlannedCounter] = []
        self._causes: PlannedCauses | None = None
        self._stamp: PlannedStamp | None = None

    def value(self, name: str, slot: Slot, bounds: Bounds) -> None:
        """Add a number that gives the field `name` of the reading."""
        self._values.append(
            PlannedValue(
                **self._place(slot),
                name=name,
                scale=slot.scale,
                low=bounds.low,
                high=bounds.high,
                checks=slot.checks,
            )
        )

    def counter(self, cause: int, slot: Slot, bounds: Bounds, addend: float = 0.0) -> None:
        """Add a counter of the time under a limit; the bounds are those of the raw number."""
        self._counters.append(
            PlannedCounter(
                **self._place(slot),
                cause=cause,
                low=bounds.low,
                high=bounds.high,
                scale=slot.scale,
                addend=addend,
                checks=slot.checks,
            )
        )

    def causes(self, slot: Slot, causes: tuple[int, ...]) -> None:
        """Add the word of bits that gives the limits in force, with the causes of each bit."""
        self._causes = PlannedCauses(**self._place(slot), causes=causes)

    def stamp(self, slot: Slot, still_ns: int) -> None:
        """Add the number whose lack of change for `still_ns` shows that the data are stale."""
        self._stamp = PlannedStamp(**self._place(slot), still_ns=still_ns)

    def plan(self) -> ReadPlan:
        """Return a plan of the numbers added so far."""
        return ReadPlan(
            calls=tuple(self._calls),
            values=tuple(self._values),
            causes=self._causes,
            counters=tuple(self._counters),
            stamp=self._stamp,
        )

    def _place(self, slot: Slot) -> "_Place":
        if slot.call not in self._calls:
            self._calls.append(slot.call)
        return {"call": self._calls.index(slot.call), "offset": slot.offset, "kind": slot.kind}


class _Place(TypedDict):
    """The fields of `PlannedNumber`."""

    call: int
    offset: int
    kind: NumberKind

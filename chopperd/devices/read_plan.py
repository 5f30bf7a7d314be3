"""A device's reads as data: which entry points to call, and where each number of a sample is.

A plan is made by a back end for the fields that answered, and carried out by whoever samples, in
Python or without it. It covers the plain case only: whatever is not as planned (a return code, a
value outside its bounds, another type) ends it, and the back end's own `read` takes over, which
knows what that means.
"""

import ctypes
from collections.abc import Mapping
from ctypes import Array, Structure, c_char
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cache
from typing import Final, TypeAlias

# A lock that Python and C can both take: for drivers that one thread may call at a time.

#: Room for a `pthread_mutex_t` of any C library; all zeros is an unlocked one on Linux.
_BYTES: Final = 64


class SharedLock:
    """A mutex of the C library's, in memory of its own.

    A driver call that never returns leaves it taken: whoever takes it then waits as long.
    """

    def __init__(self) -> None:
        self._memory = ctypes.create_string_buffer(_BYTES)
        # Made once: it is taken for each driver call.
        self._mutex = ctypes.c_void_p(self.address)
        self._lock, self._unlock = _library().pthread_mutex_lock, _library().pthread_mutex_unlock

    @property
    def address(self) -> int:
        """Of the `pthread_mutex_t`."""
        return ctypes.addressof(self._memory)

    def __enter__(self) -> None:
        """Take it, with the GIL released meanwhile."""
        self._lock(self._mutex)

    def __exit__(self, *_error: object) -> None:
        """Let go of it."""
        self._unlock(self._mutex)


@cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(None)


Buffer: TypeAlias = Array[c_char] | Array[Structure] | Structure


class CallShape(IntEnum):
    """How an entry point is called; each returns an int, 0 for success.

    `BUFFER`: f(handle, buffer). `OF`: f(handle, argument, buffer). `COUNT`: the same, the argument
    being the number of entries in the buffer. `FILE`: no entry point; from the beginning of the
    open file that `handle` is exactly `argument` bytes are read into the buffer. `TEXT`: the same
    of up to `argument` bytes, at least one, with a zero after them.
    """

    BUFFER = 0
    OF = 1
    COUNT = 2
    FILE = 3
    TEXT = 4


class NumberKind(IntEnum):
    """How a number stands in a buffer (little-endian, as everywhere here).

    `DECIMAL`: a whole number, not negative, in digits up to the end of the line or of the text.
    """

    UINT16 = 0
    UINT32 = 1
    UINT64 = 2
    INT32 = 3
    INT64 = 4
    FLOAT64 = 5
    DECIMAL = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCall:
    """One driver call into a buffer that is used again.

    Attributes:
        operation: The vendor's name of the call.
        address: Of the entry point; 0 where there is none.
        shape: How it is called.
        handle: Its first argument.
        buffer: Where it writes; kept alive by the plan. What a call must find there (a version)
            is there and stays.
        argument: Its second argument, by shape.
        lock: Held during the call, where the library can't be called by two threads at once; each
            call of that library's has the same, planned or not.
    """

    operation: str
    address: int
    shape: CallShape
    handle: int
    buffer: Buffer
    argument: int = 0
    lock: SharedLock | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedValue:
    """One number that a call leaves in its buffer.

    Attributes:
        call: Which call of the plan.
        offset: Bytes from the start of its buffer.
        kind: How it stands there.
        name: The field of `DeviceReading` that it is, of a number; "die_clocks_mhz.3" is that of
            the fourth die.
        scale: What to multiply it with for the field's unit; one over a whole number (0.001) is a
            division by that, which rounds once only.
        low, high: Bounds after scaling; outside, it is absurd.
        checks: Words (uint32) of the same buffer that must have a value, by offset: a return code
            of its own, its type.
    """

    call: int
    offset: int
    kind: NumberKind
    name: str
    scale: float = 1.0
    low: float
    high: float
    checks: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCauses:
    """The limits in force as a vendor's bits.

    Attributes:
        call, offset, kind: Where the bits are, as in `PlannedValue`.
        causes: For each of 64 bits, the bit set of `Cause` that it stands for.
    """

    call: int
    offset: int
    kind: NumberKind
    causes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCounter:
    """A cumulative time under a limit; several of one cause add up.

    Attributes as in `PlannedValue`; `low` and `high` are bounds of the number as it stands there,
    which times `scale` plus `addend` is ns. A counter that wraps falls below its `low`.
    """

    call: int
    offset: int
    kind: NumberKind
    cause: int
    low: float
    high: float
    scale: float = 1.0
    addend: float = 0.0
    checks: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStamp:
    """A number that changes whenever what is read was measured anew.

    It is the same one in both plans of a device, of fast and of full reads.

    Attributes:
        call, offset, kind: Where it is, as in `PlannedValue`.
        still_ns: Once it has stood still for so long, what is read is stale: not as planned.
    """

    call: int
    offset: int
    kind: NumberKind
    still_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPlan:
    """All that one read of a device takes; what is not in it is not reported.

    Attributes:
        calls: In the order in which they are made.
        values: Numbers of the reading; a name occurs once.
        causes: The limits in force; None: not readable.
        counters: Cumulative times under limits.
        stamp: Tells what is stale; None: nothing does.
    """

    calls: tuple[PlannedCall, ...]
    values: tuple[PlannedValue, ...]
    causes: PlannedCauses | None = None
    counters: tuple[PlannedCounter, ...] = ()
    stamp: PlannedStamp | None = None

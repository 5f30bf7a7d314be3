"""Finds and loads the C library, checks its version, and declares its structures."""

import logging
from ctypes import CDLL, POINTER, Structure, byref, c_double, c_int64, c_uint64, sizeof
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Final

from chopperd.model.devices import STATE_FIELDS
from chopperd.sampling.memory.layout import (
    RECORD,
    SLOW_STATE,
    SLOW_STATE_OFFSET,
    STATUS_HEAD_COUNT,
    offset_of,
)

logger = logging.getLogger(__name__)

#: `NATIVE_VERSION` of native.h: changes with what its functions do.
_VERSION: Final = 6
_STEM: Final = Path(__file__).with_name("_native")


def _words(names: str) -> list[tuple[str, type[c_int64]]]:
    return [(name, c_int64) for name in names.split()]


class Memory(Structure):
    """`memory_t`: one GPU's part of the shared memory."""

    _fields_ = _words("head status records capacity generation_word generation")


class PlanCall(Structure):
    """`call_t`: one driver call or file read of a plan."""

    _fields_ = _words("function handle buffer buffer_bytes shape argument lock")


class PlanNumber(Structure):
    """`number_t`: one number to take from a call's buffer, and its place in the record."""

    _fields_ = [
        *_words("call offset kind place"),
        *((name, c_double) for name in ("multiplier", "divisor", "addend", "low", "high")),
        *_words("is_counted first_check checks_count"),
    ]


class PlanCheck(Structure):
    """`check_t`: a 32-bit word that must be found at an offset of a number's buffer."""

    _fields_ = _words("offset value")


class Plan(Structure):
    """`plan_t`: the calls, numbers and checks of one read."""

    _fields_ = [
        *_words("calls calls_count numbers numbers_count checks checks_count"),
        *_words("causes_call causes_offset causes_kind"),
        ("causes_by_bit", c_int64 * 64),
        *_words("stamp_call stamp_offset stamp_kind stamp_still_ns"),
    ]


class Loop(Structure):
    """`loop_t`: the state of one GPU's tick loop."""

    _fields_ = [
        ("memory", c_int64),
        ("plans", c_int64 * 2),
        *_words("deadlines_mono_ns ends_mono_ns are_full count next owes_full return_mono_ns"),
        *_words("return_driver_ns hand_full_mono_ns interrupt_word interrupt"),
        ("carried_count", c_int64 * 2),
        *_words("handed_deadline_mono_ns handed_full"),
        ("stamp", c_uint64),
        ("stamp_mono_ns", c_int64),
    ]


_OWN_SIZES: Final = (
    _VERSION,
    RECORD.itemsize,
    STATUS_HEAD_COUNT * 8,
    *(
        SLOW_STATE_OFFSET + offset_of(SLOW_STATE, name)
        for name in ("sequence", "state_sequence", "state_mono_ns", "state")
    ),
    len(STATE_FIELDS),
    *map(sizeof, (Memory, PlanCall, PlanNumber, PlanCheck, Plan, Loop)),
)


class NativeLibrary:
    """The functions of the C library; they release Python's lock while they run.

    Raises:
        OSError: The library can't be loaded, or was built for another layout than this package's.
    """

    def __init__(self, path: Path) -> None:
        library = CDLL(str(path))
        self._carry_out = library.native_carry_out
        self._carry_out.argtypes = [POINTER(Loop)]
        library.native_sizes.argtypes = [POINTER(c_int64), c_int64]
        for function in (self._carry_out, library.native_sizes):
            function.restype = c_int64
        sizes = (c_int64 * len(_OWN_SIZES))()
        count = library.native_sizes(sizes, len(sizes))
        if (count, *sizes) != (len(sizes), *_OWN_SIZES):
            raise OSError(f"{path} was made for another version of chopperd")

    def carry_out(self, loop: Loop) -> int:
        """Run ticks until there is a reason to return; return it (`enum why` of native.h)."""
        return int(self._carry_out(byref(loop)))


def native_library() -> NativeLibrary | None:
    """Load the C library built with this package; None where there is none, or it does not fit."""
    for suffix in EXTENSION_SUFFIXES:
        path = _STEM.with_suffix(suffix)
        if path.exists():
            try:
                return NativeLibrary(path)
            except (OSError, AttributeError) as error:
                logger.warning("sampling goes on without its native part: %s", error)
                return None
    return None

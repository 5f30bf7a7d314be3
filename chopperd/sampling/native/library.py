"""The C library as Python sees it: where it is, what it is given, whether the two agree."""

import logging
from ctypes import (
    CDLL,
    POINTER,
    Array,
    Structure,
    addressof,
    byref,
    c_double,
    c_int64,
    c_uint64,
    sizeof,
)
from importlib.machinery import EXTENSION_SUFFIXES
from math import nan
from pathlib import Path
from typing import Final, TypeAlias

from chopperd.model.devices import MOST_DIES, STATE_FIELDS
from chopperd.model.kinds import CAUSES
from chopperd.sampling.memory.gpu_writer import GpuPlaces
from chopperd.sampling.memory.layout import (
    RECORD,
    SIDE,
    SIDE_OFFSET,
    STATUS,
    STATUS_HEAD_COUNT,
    TOTAL_COUNT,
    TOTALS,
    offset_of,
)

logger = logging.getLogger(__name__)

#: `NATIVE_VERSION` of native.h: changes with what its functions do.
_VERSION: Final = 5
#: `SPACINGS` of native.h: spacings that are kept, which need room in front of those of a batch.
SPACINGS: Final = 32
_STEM: Final = Path(__file__).with_name("_native")

Words: TypeAlias = Array[c_int64]


class Memory(Structure):
    """`memory_t`: one GPU's part of the shared memory."""

    _fields_ = [
        ("head", c_int64),
        ("status", c_int64),
        ("records", c_int64),
        ("capacity", c_int64),
        ("generation_word", c_int64),
        ("generation", c_int64),
    ]


class Energy(Structure):
    """`energy_t`: a reading of a counter of energy."""

    _fields_ = [("t_mono_ns", c_int64), ("energy_j", c_double)]


class Integrals(Structure):
    """`integrals_t`: what live integrals keep between batches of records."""

    _fields_ = [
        ("totals", c_double * TOTAL_COUNT),
        ("reference_mhz", c_double),
        ("limit_mhz", c_double),
        ("has_idle_bit", c_int64),
        ("energy_good", Energy),
        ("energy_other_first", Energy),
        ("energy_other_last", Energy),
        ("limited_ns", c_double * len(CAUSES)),
        ("limited_mono_ns", c_int64 * len(CAUSES)),
        ("activity_mono_ns", c_int64),
        ("activity_ratio", c_double),
        ("is_idle_bit_wrong", c_int64),
        ("records_count", c_int64),
        ("last_mono_ns", c_int64),
        ("last_causes", c_int64),
        ("last_sm_clock_mhz", c_double),
        ("last_busy_ratio", c_double),
        ("spacings_count", c_int64),
        ("spacings_ns", c_int64 * SPACINGS),
        ("scratch", c_int64),
        ("scratch_count", c_int64),
    ]


class Integrator(Structure):
    """`integrator_t`: when which records are integrated."""

    _fields_ = [
        ("memory", c_int64),
        ("integrals", c_int64),
        ("integrated_count", c_int64),
        ("every_ns", c_int64),
        ("due_mono_ns", c_int64),
        ("period_ns", c_int64),
    ]


class PlanCall(Structure):
    """`call_t`."""

    _fields_ = [
        (name, c_int64)
        for name in ("function", "handle", "buffer", "buffer_bytes", "shape", "argument", "lock")
    ]


class PlanNumber(Structure):
    """`number_t`."""

    _fields_ = [
        *((name, c_int64) for name in ("call", "offset", "kind", "place")),
        *((name, c_double) for name in ("multiplier", "divisor", "addend", "low", "high")),
        *((name, c_int64) for name in ("is_counted", "first_check", "checks_count")),
    ]


class PlanCheck(Structure):
    """`check_t`."""

    _fields_ = [("offset", c_int64), ("value", c_int64)]


class Plan(Structure):
    """`plan_t`."""

    _fields_ = [
        ("calls", c_int64),
        ("calls_count", c_int64),
        ("numbers", c_int64),
        ("numbers_count", c_int64),
        ("checks", c_int64),
        ("checks_count", c_int64),
        ("causes_call", c_int64),
        ("causes_offset", c_int64),
        ("causes_kind", c_int64),
        ("causes_by_bit", c_int64 * 64),
        ("has_dies", c_int64),
        *(
            (name, c_int64)
            for name in ("stamp_call", "stamp_offset", "stamp_kind", "stamp_still_ns")
        ),
    ]


class Dies(Structure):
    """`dies_t`: what is kept of the clocks of a GPU's dies."""

    _fields_ = [
        ("first", c_int64),
        ("next", c_int64),
        ("sums_mhz", c_int64 * MOST_DIES),
        ("counts", c_int64 * MOST_DIES),
    ]


class Loop(Structure):
    """`loop_t`: the ticks of one GPU, and where they stand."""

    _fields_ = [
        ("memory", c_int64),
        ("integrator", c_int64),
        ("plans", c_int64 * 2),
        ("deadlines_mono_ns", c_int64),
        ("ends_mono_ns", c_int64),
        ("are_full", c_int64),
        ("count", c_int64),
        ("next", c_int64),
        ("owes_full", c_int64),
        ("return_mono_ns", c_int64),
        ("return_driver_ns", c_int64),
        ("hand_full_mono_ns", c_int64),
        ("interrupt_word", c_int64),
        ("interrupt", c_int64),
        ("carried_count", c_int64 * 2),
        ("handed_deadline_mono_ns", c_int64),
        ("handed_full", c_int64),
        ("stamp", c_uint64),
        ("stamp_mono_ns", c_int64),
        ("dies", Dies),
    ]


_OWN_SIZES: Final = (
    _VERSION,
    RECORD.itemsize,
    STATUS_HEAD_COUNT * 8,
    TOTALS.itemsize,
    offset_of(STATUS, "totals_sequence"),
    offset_of(STATUS, "totals"),
    *(
        SIDE_OFFSET + offset_of(SIDE, name)
        for name in ("sequence", "state_sequence", "state_mono_ns", "state")
    ),
    len(STATE_FIELDS),
    *map(
        sizeof,
        (Memory, Integrals, Integrator, PlanCall, PlanNumber, PlanCheck, Plan, Dies, Loop),
    ),
)


class NativeLibrary:
    """The functions of the library; each lets go of Python's lock while it runs.

    Args:
        path: The shared library.

    Raises:
        OSError: It can't be loaded, or was made for another layout than this package's.
    """

    def __init__(self, path: Path) -> None:
        library = CDLL(str(path))
        self._carry_out = library.native_carry_out
        self._integrate = library.native_integrate
        self._add = library.native_add
        self._governing_mhz = library.native_governing_mhz
        self._governing_mhz.restype = c_double
        self._governing_mhz.argtypes = [POINTER(Dies), POINTER(Memory), c_int64]
        for function in (self._carry_out, self._integrate, self._add, library.native_sizes):
            function.restype = c_int64
        self._carry_out.argtypes = [POINTER(Loop)]
        self._integrate.argtypes = [POINTER(Integrator), c_int64]
        self._add.argtypes = [POINTER(Integrals), *[c_int64] * 5]
        library.native_sizes.argtypes = [POINTER(c_int64), c_int64]
        sizes = (c_int64 * len(_OWN_SIZES))()
        count = library.native_sizes(sizes, len(sizes))
        if (count, *sizes) != (len(sizes), *_OWN_SIZES):
            raise OSError(f"{path} was made for another version of chopperd")

    def carry_out(self, loop: Loop) -> int:
        """Carry out ticks; why it came back (`enum why` of native.h)."""
        return int(self._carry_out(byref(loop)))

    def integrate(self, integrator: Integrator, now_mono_ns: int) -> bool:
        """Bring totals up to the newest record and publish them."""
        return bool(self._integrate(byref(integrator), now_mono_ns))

    def governing_mhz(self, dies: Dies, memory: Memory, record_address: int) -> float:
        """The clock of the die that governs at a record that is about to be written."""
        return float(self._governing_mhz(byref(dies), byref(memory), record_address))

    def add(
        self,
        integrals: Integrals,
        address: int,
        *,
        capacity: int,
        first: int,
        count: int,
        period_ns: int,
    ) -> bool:
        """Integrate on over `count` records of a ring; False if there are too many at once."""
        return bool(self._add(byref(integrals), address, capacity, first, count, period_ns))


def native_library() -> NativeLibrary | None:
    """The library that was built with this package; None where it was not, or does not fit."""
    for suffix in EXTENSION_SUFFIXES:
        path = _STEM.with_suffix(suffix)
        if path.exists():
            try:
                return NativeLibrary(path)
            except (OSError, AttributeError) as error:
                logger.warning("sampling goes on without its native part: %s", error)
                return None
    return None


def memory_of(places: GpuPlaces) -> Memory:
    """A GPU's memory for the library."""
    return Memory(
        head=places.head,
        status=places.status,
        records=places.records,
        capacity=places.capacity,
        generation_word=places.generation_word,
        generation=places.generation,
    )


def new_integrals(
    *, reference_mhz: float | None, limit_mhz: float | None, has_idle_bit: bool, scratch: Words
) -> Integrals:
    """Integrals of nothing yet; the scratch space must live as long as they."""
    kept = Integrals(
        reference_mhz=nan if reference_mhz is None else reference_mhz,
        limit_mhz=nan if limit_mhz is None else limit_mhz,
        has_idle_bit=has_idle_bit,
        energy_good=Energy(energy_j=nan),
        energy_other_first=Energy(energy_j=nan),
        energy_other_last=Energy(energy_j=nan),
        activity_ratio=nan,
        last_sm_clock_mhz=nan,
        last_busy_ratio=nan,
        scratch=addressof(scratch),
        scratch_count=len(scratch),
    )
    kept.totals[:] = [nan] * TOTAL_COUNT
    kept.limited_ns[:] = [nan] * len(CAUSES)
    return kept

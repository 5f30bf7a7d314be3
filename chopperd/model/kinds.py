"""Closed sets of labels: classes of kernels, directions, element types, causes, verdicts."""

from enum import IntEnum
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, get_args

if TYPE_CHECKING:
    from chopperd.model.arrays import Int64s


# The closed set of kernel classes and how they group into compute, communication and copy.


class Labelled(IntEnum):
    """Codes in a column, published by their names in lower case."""

    @property
    def label(self) -> str:
        """Return the published name: the member name in lower case."""
        return self.name.lower()


class KernelClass(Labelled):
    """Class of a device record, by what it does; the value is its code in an int8 column.

    `FUSED_COMM` is a GEMM fused with communication and `COMM_PACK` a copy of FSDP into or out of
    its buffers: both compute. What only communicates, all-reduces included, is `COMM`.
    """

    GEMM = 0
    ATTENTION = 1
    NORM = 2
    ELEMENTWISE = 3
    REDUCTION = 4
    EMBEDDING = 5
    OPTIMIZER = 6
    FUSED_COMM = 7
    COMM = 8
    COMM_PACK = 9
    MEMCPY = 10
    MEMSET = 11
    OTHER = 12


KERNEL_CLASSES: Final = tuple(KernelClass)
COMM_CLASSES: Final = frozenset({KernelClass.COMM})
COPY_CLASSES: Final = frozenset({KernelClass.MEMCPY, KernelClass.MEMSET})
COMPUTE_CLASSES: Final = frozenset(KERNEL_CLASSES) - COMM_CLASSES - COPY_CLASSES


class CopyDirection(Labelled):
    """Direction of a copy; the value is its code in an int8 column and its precedence."""

    NONE = -1
    H2D = 0
    D2H = 1
    D2D = 2
    MEMSET = 3


class DType(Labelled):
    """Element type that a matrix kernel multiplies; the value is its code in an int8 column.

    `FLOAT` is 32 bits wide and either of FP32 and TF32, which inputs have in common.
    """

    NONE = -1
    FP64 = 0
    FP32 = 1
    TF32 = 2
    FLOAT = 3
    FP16 = 4
    BF16 = 5
    FP8 = 6
    INT8 = 7
    FP4 = 8

    @property
    def label(self) -> str:
        """Return the published name: "fp32_or_tf32" for `FLOAT`, else the name in lower case."""
        return "fp32_or_tf32" if self is DType.FLOAT else self.name.lower()


# The closed set of causes of a low clock, and their bit in a sample's `causes` column.


class Cause(Labelled):
    """Why the clock was below its reference; the value is the bit's position in a sample.

    `UNEXPLAINED`: no limit was reported although the driver was asked; `UNKNOWN`: limits could
    not be read, or the driver reported a bit that this version does not know.
    """

    USER_LIMIT = 0
    POWER_CAP = 1
    THERMAL = 2
    HW_THERMAL = 3
    POWER_BRAKE = 4
    HW_SLOWDOWN = 5
    SYNC_BOOST = 6
    LOW_UTILIZATION = 7
    UNEXPLAINED = 8
    UNKNOWN = 9

    # Enum hashes by name in Python; sets and maps of causes are built for each sample.
    __hash__ = int.__hash__

    @property
    def bit(self) -> int:
        """Return the cause's bit mask in a `causes` column."""
        return 1 << self.value


CAUSES: Final = tuple(Cause)
CAUSE_BY_LABEL: Final = {cause.label: cause for cause in Cause}

#: Causes that a driver can report in a sample. A sample whose `causes` is 0 was read and had none
#: of them set; a sample that could not be read has just `UNKNOWN`.
REPORTED_CAUSES: Final = tuple(cause for cause in Cause if cause is not Cause.UNEXPLAINED)


def causes_in(bits: int) -> frozenset[Cause] | None:
    """Return the causes in a bit set; None for the unknown bit alone: they could not be read."""
    if bits == Cause.UNKNOWN.bit:
        return None
    return frozenset(cause for cause in REPORTED_CAUSES if bits & cause.bit)


#: Hardware protections.
PROTECTIONS: Final = (Cause.HW_THERMAL, Cause.POWER_BRAKE)
_PROTECTION_BITS: Final = sum(cause.bit for cause in PROTECTIONS)
#: Ignored while a hardware protection is set: the generic bit that the driver sets with it, and
#: software limits, which don't matter while a brake holds the clock.
OUTRANKED: Final = (Cause.HW_SLOWDOWN, Cause.POWER_CAP, Cause.THERMAL)
_OUTRANKED_BITS: Final = sum(cause.bit for cause in OUTRANKED)


def has_protection(causes: "Int64s") -> "Int64s":
    """Return nonzero where a hardware protection is set (`PROTECTIONS`): (...) int64."""
    return causes & _PROTECTION_BITS


def ranked(causes: "Int64s") -> "Int64s":
    """Return the bit sets without the bits that a hardware protection set with them outranks.

    The result is (...) int64.

    Source: DESIGN.md section 2, "Cause".
    """
    held = has_protection(causes) != 0
    left: Int64s = causes & ~(held * _OUTRANKED_BITS)
    return left


#: How steady the allocator is from step to step; see `RankMemory.verdict`.
MemoryVerdict: TypeAlias = Literal[
    "churns", "program_varies", "segments_steady", "varies", "deterministic", "not_measured"
]
#: Verdicts of what was measured.
MEASURED_VERDICTS: Final = tuple(each for each in get_args(MemoryVerdict) if each != "not_measured")

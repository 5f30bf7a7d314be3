"""The closed set of kernel classes and how they group into compute, communication and copy."""

from enum import IntEnum
from typing import Final


class KernelClass(IntEnum):
    """What a device record does; the value is its code in an int8 column.

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

    @property
    def label(self) -> str:
        """The name used outside."""
        return self.name.lower()


KERNEL_CLASSES: Final = tuple(KernelClass)
COMM_CLASSES: Final = frozenset({KernelClass.COMM})
COPY_CLASSES: Final = frozenset({KernelClass.MEMCPY, KernelClass.MEMSET})
COMPUTE_CLASSES: Final = frozenset(KERNEL_CLASSES) - COMM_CLASSES - COPY_CLASSES


class CopyDirection(IntEnum):
    """Direction of a copy; the value is its code in an int8 column and its precedence."""

    NONE = -1
    H2D = 0
    D2H = 1
    D2D = 2
    MEMSET = 3

    @property
    def label(self) -> str:
        """The name used outside."""
        return self.name.lower()

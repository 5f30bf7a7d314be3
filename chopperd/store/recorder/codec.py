"""Lossless compression of columns of numbers.

A column becomes whole numbers (readings are decimal fractions of few digits), these become offsets
from the least or from the one before, whichever are smaller, divided by their common factor. Equal
bytes of neighbouring rows are then adjacent, and deflate compresses them.
"""

import struct
from collections.abc import Mapping
from typing import Final, TypeAlias, cast

import msgspec
import numpy as np
import numpy.typing as npt
from isal import isal_zlib

from chopperd.errors import StoreError
from chopperd.model.arrays import Bools, Float64s, Int64s

Column: TypeAlias = Int64s | Float64s
_Words: TypeAlias = npt.NDArray[np.uint64]

#: What a number was multiplied by to be whole: decimals, and energy in steps of 2^-16 J.
_SCALES: Final = (1, 10, 100, 1000, 65_536, 1_000_000)
#: The whole numbers are the bits of the floats.
_BITS: Final = 0
#: Whole numbers up to here are exact in a float64.
_LARGEST_WHOLE: Final = float(2**53)
#: Offsets below this are offsets also where differences wrap.
_LARGEST_SPREAD: Final = 2**62
_HEAD_SIZE: Final = struct.Struct("<I")
_NO_GAPS: Final = -1
#: isal's best compression of samples; its time is small compared with preparing them.
_LEVEL: Final = 3
_BROKEN: Final = cast("type[Exception]", isal_zlib.error)


def compressed(data: bytes) -> bytes:
    """Compress data by deflate."""
    small: bytes = isal_zlib.compress(data, _LEVEL)
    return small


def expanded(data: bytes) -> bytes:
    """Decompress the bytes of `compressed`.

    Raises:
        StoreError: The bytes are damaged.
    """
    try:
        plain: bytes = isal_zlib.decompress(data)
    except _BROKEN as error:
        raise StoreError(f"compressed data is damaged: {error}") from error
    return plain


class _Coding(msgspec.Struct, array_like=True):
    """How one column was coded."""

    name: str
    is_float: bool  # else int64
    gaps: int  # index of the mask of its NaN; `_NO_GAPS` without any
    scale: int  # what floats were multiplied by; `_BITS`
    first: int  # the first (of differences) or least (of offsets) number
    factor: int  # what all numbers were divided by
    is_difference: bool  # of neighbours, else offsets
    width: int  # bytes of each number; 0: all are zero


class _Head(msgspec.Struct, array_like=True):
    """Header before the bytes of masks and columns."""

    rows: int
    masks: int
    columns: list[_Coding]


def encoded_columns(columns: Mapping[str, Column]) -> bytes:
    """Encode columns, each (n,) int64 or float64, as compressed bytes; all NaN become one NaN."""
    masks: dict[bytes, int] = {}
    codings: list[_Coding] = []
    parts: list[bytes] = []
    for name, column in columns.items():
        coding, numbers = _coded(name, column, masks)
        codings.append(coding)
        parts.append(_planes(numbers, coding.width))
    rows = len(next(iter(columns.values()), ()))
    head = msgspec.msgpack.encode(_Head(rows=rows, masks=len(masks), columns=codings))
    return compressed(b"".join((_HEAD_SIZE.pack(len(head)), head, *masks, *parts)))


def decoded_columns(data: bytes) -> dict[str, Column]:
    """Decode the columns from the bytes of `encoded_columns`, in their order.

    Raises:
        StoreError: The bytes are damaged.
    """
    try:
        plain = memoryview(expanded(data))
        (head_bytes,) = _HEAD_SIZE.unpack_from(plain)
        position = _HEAD_SIZE.size + head_bytes
        head = msgspec.msgpack.decode(plain[_HEAD_SIZE.size : position], type=_Head)
        masks: list[Bools] = []
        for _ in range(head.masks):
            packed = np.frombuffer(plain, np.uint8, (head.rows + 7) // 8, position)
            masks.append(np.unpackbits(packed, count=head.rows).astype(np.bool_))
            position += len(packed)
        columns: dict[str, Column] = {}
        for coding in head.columns:
            mask = None if coding.gaps == _NO_GAPS else masks[coding.gaps]
            count = head.rows if mask is None else int(mask.sum())
            planes = np.frombuffer(plain, np.uint8, count * coding.width, position)
            position += len(planes)
            columns[coding.name] = _decoded(coding, _numbers(planes, count), mask)
    except (struct.error, msgspec.MsgspecError, ValueError, LookupError) as cause:
        raise StoreError(f"columns can't be decoded: {cause}") from cause
    return columns


def _coded(name: str, column: Column, masks: dict[bytes, int]) -> tuple[_Coding, _Words]:
    """Code a column; return how, and its numbers. A new mask of NaN is added to `masks`."""
    gaps, scale, is_float = _NO_GAPS, 1, column.dtype == np.float64
    if is_float:
        known = ~np.isnan(column)
        if not known.all():
            gaps = masks.setdefault(np.packbits(known).tobytes(), len(masks))
        whole, scale = _whole_numbers(np.ascontiguousarray(column[known], np.float64))
    else:
        whole = np.ascontiguousarray(column, np.int64)
    first, factor, is_difference, numbers = _offsets(whole)
    width = (int(numbers.max(initial=0)).bit_length() + 7) // 8
    return _Coding(name, is_float, gaps, scale, first, factor, is_difference, width), numbers


def _whole_numbers(values: Float64s) -> tuple[Int64s, int]:
    """Scale values to whole numbers; return these and the scale, or the bits if none is exact."""
    largest = float(np.abs(values).max(initial=0.0))
    for scale in _SCALES:
        if not largest * scale < _LARGEST_WHOLE:
            break
        whole = np.rint(values * scale).astype(np.int64)
        if np.array_equal((whole / scale).view(np.int64), values.view(np.int64)):
            return whole, scale
    return values.view(np.int64), _BITS


def _offsets(whole: Int64s) -> tuple[int, int, bool, _Words]:
    """Convert numbers to differences or offsets from the least, whichever need fewer bits.

    Returns the first or least number, the common factor, whether differences, and the numbers.
    Differences and offsets wrap around 2^64 where they must, and wrap back when they are undone.
    """
    if not len(whole):
        return 0, 1, False, whole.view(np.uint64)
    least = int(whole.min())
    differences = np.diff(whole, prepend=whole[:1])
    factor = 1
    if int(whole.max()) - least < _LARGEST_SPREAD:
        factor = int(np.gcd.reduce(differences)) or 1
    differences //= factor
    folded = ((differences << 1) ^ (differences >> 63)).view(np.uint64)
    offsets = (whole - np.int64(least)).view(np.uint64) // np.uint64(factor)
    if _cost(folded) < _cost(offsets):
        return int(whole[0]), factor, True, folded
    return least, factor, False, offsets


def _cost(numbers: _Words) -> float:
    """Estimate how many bits the numbers need."""
    return float(np.log2(numbers.astype(np.float64) + 1.0).sum())


def _planes(numbers: _Words, width: int) -> bytes:
    """Split numbers into byte planes: the lowest byte of all, then the second, and so on."""
    return numbers.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :width].T.tobytes()


def _numbers(planes: npt.NDArray[np.uint8], count: int) -> _Words:
    """Join byte planes, as from `_planes`, into `count` numbers."""
    table = np.zeros((count, 8), np.uint8)
    if len(planes):
        table[:, : len(planes) // count] = planes.reshape(-1, count).T
    words: _Words = table.view("<u8").reshape(-1).astype(np.uint64)
    return words


def _decoded(coding: _Coding, numbers: _Words, known: Bools | None) -> Column:
    if coding.is_difference:
        half = (numbers >> np.uint64(1)).view(np.int64)
        differences = half ^ -(numbers & np.uint64(1)).view(np.int64)
        offsets = np.cumsum(differences * np.int64(coding.factor))
    else:
        offsets = (numbers * np.uint64(coding.factor)).view(np.int64)
    whole = offsets + np.int64(coding.first)
    if not coding.is_float:
        return whole
    values = whole.view(np.float64) if coding.scale == _BITS else whole / coding.scale
    if known is None:
        return values
    column = np.full(len(known), np.nan)
    column[known] = values
    return column

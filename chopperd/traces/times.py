"""Decimal microseconds of a trace to integer ns, without losing one."""

import re
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
from msgspec import Raw

from chopperd.model.arrays import Int64s
from chopperd.units import NS_PER_US

NO_TIME: Final = -(2**63)
"""Stands for a time that is absent, not finite or absurd."""

_FARTHEST_US: Final = 4_000_000_000_000_000
"""The year 2096; two such times and a base still fit int64 ns."""

_FARTHEST_NS: Final = _FARTHEST_US * NS_PER_US
_MOST_DIGITS: Final = len(str(_FARTHEST_NS))
_NS_DIGITS: Final = 3
"""Of a microsecond."""
_EXPONENT_DIGITS: Final = 6
"""So many count; what is greater is as if it were cut off there."""
_LONGEST_TEXT: Final = 64
"""That may be a number."""
_NUMBER: Final = re.compile(rb"(-?)(0|[1-9][0-9]*)(?:\.([0-9]+))?(?:[eE]([-+]?)([0-9]+))?")
"""As JSON writes numbers."""


def ns_from_us(values_us: Sequence[float | None]) -> Int64s:
    """The nearest ns to each number of us, (n,) int64; `NO_TIME` where there is none.

    Exact for numbers of up to three decimals below 2^43 us, which is what the decoder lets
    through: the part after the point is split off first, exactly, and differs from the decimal
    by at most half the spacing of float64 there, 0.488 ns.
    """
    us = np.array(values_us, dtype=np.float64)
    absent = ~(np.abs(us) <= _FARTHEST_US)
    us[absent] = 0.0
    whole = np.floor(us)
    ns = whole.astype(np.int64) * NS_PER_US
    ns += np.rint((us - whole) * NS_PER_US).astype(np.int64)
    ns[absent] = NO_TIME
    return ns


def ns_from_texts_us(texts: Sequence[bytes | Raw | None]) -> Int64s:
    """The nearest ns to each time in us, (n,) int64, halves to even; `NO_TIME` where there is none.

    Args:
        texts: JSON: numbers of any length, or texts that are such a number.
    """
    return np.array([NO_TIME if text is None else _ns(bytes(text)) for text in texts], np.int64)


def _ns(text: bytes) -> int:
    whole, point, part = text.partition(b".")
    if whole.isdigit() and len(whole) < _MOST_DIGITS and len(part) <= _NS_DIGITS:
        if not point:
            return _within(int(whole) * NS_PER_US)
        if part.isdigit():
            return _within(int(whole) * NS_PER_US + int(part.ljust(_NS_DIGITS, b"0")))
    return _ns_of_any(text)


def _within(ns: int) -> int:
    return ns if -_FARTHEST_NS <= ns <= _FARTHEST_NS else NO_TIME


def _ns_of_any(text: bytes) -> int:
    """As `_ns`, of any JSON text."""
    if text.startswith(b'"'):
        try:
            plain = msgspec.json.decode(text, type=str)
        except (msgspec.DecodeError, UnicodeDecodeError):  # stray bytes, half a surrogate
            return NO_TIME
        text = plain.encode() if len(plain) <= _LONGEST_TEXT else b""
    found = _NUMBER.fullmatch(text)
    if found is None:
        return NO_TIME
    sign, whole, part, exponent_sign, exponent = found.groups(b"")
    power = int(exponent.lstrip(b"0")[:_EXPONENT_DIGITS] or b"0")
    power = _NS_DIGITS - len(part) + (-power if exponent_sign == b"-" else power)
    digits = (whole + part).lstrip(b"0")
    if digits and len(digits) + power > _MOST_DIGITS:
        return NO_TIME
    ns = _rounded(digits, power)
    return _within(-ns if sign else ns)


def _rounded(digits: bytes, power: int) -> int:
    """Digits times a power of ten, as the nearest whole number, halves to even."""
    if power >= 0:
        return int(digits or b"0") * 10**power if digits else 0
    cut = len(digits) + power
    if cut < 0:
        return 0
    whole, first, rest = int(digits[:cut] or b"0"), digits[cut : cut + 1], digits[cut + 1 :]
    is_up = first > b"5" or (first == b"5" and (whole % 2 == 1 or bool(rest.strip(b"0"))))
    return whole + is_up

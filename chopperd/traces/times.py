"""Decimal microseconds of a trace to integer ns, without losing one."""

from collections.abc import Sequence
from decimal import Decimal
from typing import Final

import numpy as np

from chopperd.model.arrays import Int64s
from chopperd.units import NS_PER_US

NO_TIME: Final = -(2**63)
"""Stands for a time that is absent, not finite or absurd."""

_FARTHEST_US: Final = 4_000_000_000_000_000
"""The year 2096; two such times and a base still fit int64 ns."""


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


def ns_from_decimal_us(values_us: Sequence[Decimal | None]) -> Int64s:
    """The nearest ns to each decimal of us, (n,) int64; `NO_TIME` where there is none."""
    return np.array([_ns(value) for value in values_us], dtype=np.int64)


def _ns(value_us: Decimal | None) -> int:
    if value_us is None or not value_us.is_finite():
        return NO_TIME
    if not -_FARTHEST_US <= value_us <= _FARTHEST_US:
        return NO_TIME
    return round(value_us * NS_PER_US)

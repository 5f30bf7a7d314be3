"""The clocks of a row of the report document, a part of what `report` publishes."""

from dataclasses import dataclass
from typing import Literal

ClockBasis = Literal["in_class", "mixed", "all"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockStats:
    """Time-weighted mean clock with its 95 % interval; percentiles of the samples themselves."""

    mean_mhz: float | None
    low_mhz: float | None
    high_mhz: float | None
    p05_mhz: float | None
    p95_mhz: float | None
    std_mhz: float | None
    samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockDies:
    """The compute dies (AMD: XCDs) of a GPU with several, over a row's samples in compute.

    The row's clocks are those of the governing die, moment by moment; these figures tell how the
    others ran beside it.

    Attributes:
        running: How many dies ran, at some of the samples at least.
        gated: How many were off at some while others ran.
        mean_mhz: Mean clock over the running dies, in the measure of `compute.mean_mhz`.
        spread_mhz: Highest less lowest of the running dies' own means; None of fewer than two.
        governing: The die with the lowest mean, as the driver counts them from 0.
    """

    running: int
    gated: int
    mean_mhz: float
    spread_mhz: float | None
    governing: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RowClock:
    """Clocks of a row: over compute, over busy time, and the share of compute that was covered.

    `dies` is None where the GPU does not tell clocks of several dies.
    """

    basis: ClockBasis | None
    compute: ClockStats | None
    busy: ClockStats | None
    coverage_ratio: float | None
    dies: ClockDies | None = None

"""Find which of a GPU's compute dies governs: the clock that its work waits for.

Kernels are spread over all dies, so the slowest running one decides how long they take. Its clock
is not the least of the momentary ones: dies tremble about their means, and the least of several
trembling clocks lies below each of their means.
"""

from typing import Final

import numpy as np
from msgspec.structs import replace

from chopperd.model.arrays import Bools, Float64s, Int64s
from chopperd.model.devices import DEEP_SLEEP_MHZ
from chopperd.model.samples import GpuSamples
from chopperd.units import NS_PER_S

#: A die's clock is its mean over so long before a sample and as long after it.
HALF_WINDOW_NS: Final = NS_PER_S

#: Sums are of whole kHz, which float64 holds exactly, so that equal means are equal.
_KHZ_PER_MHZ: Final = 1_000


def governed(samples: GpuSamples) -> GpuSamples:
    """Put the governing die's clock into `sm_clock_mhz`; samples without dies stay as they are.

    Of the dies that run at a sample it is the one with the lowest mean over the samples within 1 s
    before and after, both ends included, in which it ran; the first of equal ones. Where no die
    runs it is the lowest clock that is not 0, NaN if all are 0. Where no die is reported at a
    sample its clock stays.

    Source: "the lowest clock determines the performance" (AMD, on its measurements of maximum
    achievable FLOP/s).
    """
    dies_mhz = samples.die_clocks_mhz
    if dies_mhz is None or not len(samples):
        return samples
    clock_mhz = governing_mhz(samples.t_unix_ns, dies_mhz, samples.sm_clock_mhz)
    return replace(samples, sm_clock_mhz=clock_mhz)


def governing_mhz(
    t_ns: Int64s,
    dies_mhz: Float64s,
    own_mhz: Float64s,
    *,
    before_ns: int = HALF_WINDOW_NS,
    after_ns: int = HALF_WINDOW_NS,
) -> Float64s:
    """Return the clock of the governing die at each sample, (n,), by the rule of `governed`.

    `t_ns`: (n,) times, rising. `dies_mhz`: (n, dies) clocks, NaN where a die reports none.
    `own_mhz`: (n,) what stays where no die is reported. `before_ns`: how far back the means reach,
    that time included. `after_ns`: how far ahead they reach, that time included.
    """
    clock_mhz = _of_running_mhz(t_ns, dies_mhz, t_ns - before_ns, t_ns + after_ns)
    asleep = np.flatnonzero(np.isnan(clock_mhz))
    clock_mhz[asleep] = _asleep_mhz(dies_mhz[asleep], own_mhz[asleep])
    return clock_mhz


def are_running(dies_mhz: Float64s) -> Bools:
    """Whether each die runs, by its clock: it is reported and not in deep sleep. Any shape."""
    return dies_mhz > DEEP_SLEEP_MHZ


def are_gated(dies_mhz: Float64s) -> Bools:
    """Whether each die is in deep sleep while another runs, (n, d) bool for (n, d) clocks."""
    running = are_running(dies_mhz)
    return (dies_mhz <= DEEP_SLEEP_MHZ) & running.any(axis=1, keepdims=True)


def reported_dies(dies_mhz: Float64s) -> Float64s | None:
    """Cut off the dies after the last ever reported: (n, d) of (n, more); None without any."""
    known = np.flatnonzero(~np.isnan(dies_mhz).all(axis=0))
    return np.ascontiguousarray(dies_mhz[:, : known[-1] + 1]) if len(known) else None


def _of_running_mhz(t_ns: Int64s, dies_mhz: Float64s, from_ns: Int64s, to_ns: Int64s) -> Float64s:
    """Return the clock of the die of least mean over `[from_ns, to_ns]`; NaN where none runs."""
    begin = np.searchsorted(t_ns, from_ns, side="left")
    end = np.searchsorted(t_ns, to_ns, side="right")
    lowest_mean = np.full(len(t_ns), np.inf)
    governing_mhz = np.full(len(t_ns), np.nan)
    for die in range(dies_mhz.shape[1]):
        own_mhz = np.ascontiguousarray(dies_mhz[:, die])
        running = are_running(own_mhz)
        mean = _means_khz(own_mhz, running, begin, end)
        is_lower = running & (mean < lowest_mean)
        np.copyto(lowest_mean, mean, where=is_lower)
        np.copyto(governing_mhz, own_mhz, where=is_lower)
    return governing_mhz


def _means_khz(own_mhz: Float64s, running: Bools, begin: Int64s, end: Int64s) -> Float64s:
    """Compute means in kHz of a die's clock where it ran over rows `[begin, end)`; NaN if none."""
    khz = np.zeros(len(own_mhz))
    np.rint(own_mhz * _KHZ_PER_MHZ, out=khz, where=running)
    total = _sums(khz, begin, end)
    count = _sums(running.astype(np.float64), begin, end)
    means: Float64s = np.divide(total, count, out=np.full(len(total), np.nan), where=count > 0)
    return means


def _sums(values: Float64s, begin: Int64s, end: Int64s) -> Float64s:
    before = np.zeros(len(values) + 1)
    np.cumsum(values, out=before[1:])
    return before[end] - before[begin]


def _asleep_mhz(dies_mhz: Float64s, own_mhz: Float64s) -> Float64s:
    """Return the clock where no die runs: the lowest not 0 or NaN; `own_mhz` if none reports."""
    lowest = np.where(dies_mhz > 0, dies_mhz, np.inf).min(axis=1)
    lowest[np.isinf(lowest)] = np.nan
    return np.where(np.isnan(dies_mhz).all(axis=1), own_mhz, lowest)

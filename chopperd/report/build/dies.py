"""How the dies of a GPU ran beside the governing one, over a row; unknown is None."""

import numpy as np

from chopperd.correlate.clock.governing import are_gated, are_running
from chopperd.correlate.clock.signal import RunningClass
from chopperd.correlate.join import RowClocks
from chopperd.model.row_clock import ClockDies
from chopperd.model.samples import GpuSamples
from chopperd.report.build.clocks import row_samples


def dies_of(samples: GpuSamples, clocks: RowClocks, index: int) -> ClockDies | None:
    """The row's figures of the dies; None without dies, or where none ran at a sample in compute.

    Args:
        samples: As they were joined: their clock is the governing die's.
        clocks: The joined rows.
        index: The row.
    """
    if samples.die_clocks_mhz is None or not clocks.compute.covered_ns[index]:
        return None
    inside = row_samples(clocks, index)
    rows = clocks.kept[inside][clocks.samples.label[inside] == RunningClass.COMPUTE]
    dies_mhz = samples.die_clocks_mhz[rows]
    ran = are_running(dies_mhz)
    if not ran.any():
        return None
    running_mhz = np.where(ran, dies_mhz, np.nan)
    means_mhz = np.nanmean(running_mhz[:, ran.any(axis=0)], axis=0)
    at_all = ran.any(axis=1)
    above_mhz = np.nanmean(running_mhz[at_all], axis=1) - samples.sm_clock_mhz[rows][at_all]
    return ClockDies(
        running=len(means_mhz),
        gated=int(are_gated(dies_mhz).any(axis=0).sum()),
        mean_mhz=float(clocks.compute.mean_mhz[index] + above_mhz.mean()),
        spread_mhz=float(np.ptp(means_mhz)) if len(means_mhz) > 1 else None,
        governing=int(np.flatnonzero(ran.any(axis=0))[means_mhz.argmin()]),
    )

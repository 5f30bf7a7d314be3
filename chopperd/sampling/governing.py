"""Which die of a GPU governs its clock, as far as the past tells.

Of the dies that run now it is the one with the lowest mean over the last 2 s in which it ran: the
lowest clock of each moment would be below any die's, as each trembles for itself. Reports, which
know what came after, look at both sides (`correlate.governing`). `native/dies.c` does the same.
"""

from math import nan
from typing import Final

import numpy as np
import numpy.typing as npt

from chopperd.sampling.layout import NO_DIE
from chopperd.units import NS_PER_S

WINDOW_NS: Final = 2 * NS_PER_S
#: A die whose clock is not above this sleeps, as AMD's own tools take it.
DEEP_SLEEP_MHZ: Final = 140


def governing_mhz(clocks_mhz: npt.NDArray[np.uint16]) -> float:
    """The clock of the governing die at the last of some records.

    Where no die runs it is the lowest clock that is not switched off; NaN if there is none.

    Args:
        clocks_mhz: (n, dies) of the records of the last 2 s, n >= 1; `NO_DIE` where there is none.

    Source: DESIGN.md section 2, "Several dies".
    """
    now = clocks_mhz[-1]
    ran = (clocks_mhz > DEEP_SLEEP_MHZ) & (clocks_mhz != NO_DIE)
    if not ran[-1].any():
        present = now[(now > 0) & (now != NO_DIE)]
        return float(present.min()) if len(present) else nan
    count = ran.sum(axis=0)
    total = np.where(ran, clocks_mhz, 0).sum(axis=0, dtype=np.int64)
    mean = np.divide(total, count, out=np.full(len(now), np.inf), where=ran[-1])
    return float(now[np.argmin(mean)])

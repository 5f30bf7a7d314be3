"""The clocks of dies as columns to be kept: none for GPUs without dies."""

from collections.abc import Mapping
from typing import Final

import numpy as np

from chopperd.model.arrays import Float64s, Int64s
from chopperd.model.devices import MOST_DIES
from chopperd.sampling.memory.layout import NO_DIE, Records
from chopperd.store.recorder.codec import Column

#: By die. What a die is above the sample's own clock takes fewer bits than its clock.
_NAMES: Final = tuple(f"die_{die}_above_mhz" for die in range(MOST_DIES))


def die_columns(rows: Records) -> dict[str, Column]:
    """A column for each die that has a clock in (n,) of `RECORD`; NaN where it has none."""
    clocks_mhz = rows["die_clocks_mhz"]
    is_there = clocks_mhz != NO_DIE
    if not is_there.any():
        return {}
    own_mhz = _own_mhz(rows["sm_clock_mhz"])
    return {
        name: np.where(is_there[:, die], clocks_mhz[:, die] - own_mhz, np.nan)
        for die, name in enumerate(_NAMES)
        if is_there[:, die].any()
    }


def put_dies(rows: Records, columns: Mapping[str, Column]) -> None:
    """Put the clocks of dies from their columns into records whose own clocks are there already."""
    rows["die_clocks_mhz"] = NO_DIE
    own_mhz = _own_mhz(rows["sm_clock_mhz"])
    for die, name in enumerate(_NAMES):
        if name in columns:
            known = ~np.isnan(columns[name])
            rows["die_clocks_mhz"][known, die] = columns[name][known] + own_mhz[known]


def _own_mhz(clock_mhz: Float64s) -> Int64s:
    """The sample's own clock in whole MHz; 0 where it is not known."""
    return np.rint(np.nan_to_num(clock_mhz)).astype(np.int64)

"""Records of a GPU's ring, written out."""

from collections.abc import Mapping, Sequence
from math import nan

import numpy as np

from chopperd.model.kinds import CAUSE_BY_LABEL
from chopperd.sampling.memory.layout import NO_DIE, RECORD, Records
from chopperd.units import NS_PER_MS


def records(
    rows: Sequence[Mapping[str, float]], *, first_ns: int = 0, period_ms: float = 100
) -> Records:
    """Records a period apart; what a row does not name was not reported, its causes are none.

    Args:
        rows: Columns by name, and the driver's counters by the cause's label.
        first_ns: Time of the first one.
        period_ms: Time between them.
    """
    made = np.zeros(len(rows), RECORD)
    made["die_clocks_mhz"] = NO_DIE
    for name in RECORD.names or ():
        if RECORD[name].base == np.float64:
            made[name] = nan
    made["t_mono_ns"] = first_ns + np.arange(len(rows)) * round(period_ms * NS_PER_MS)
    for record, row in zip(made, rows, strict=True):
        for name, value in row.items():
            if name in CAUSE_BY_LABEL:
                record["limited_ns"][CAUSE_BY_LABEL[name]] = value
            else:
                record[name] = value
    return made

"""What only rows of several devices tell together: peers, excess, and the critical device."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from chopperd.correlate.peers import excess_ns, peers_median_mhz
from chopperd.model.arrays import Float64s, Int64s
from chopperd.model.report import Peers, Row
from chopperd.report.rows import DraftRow


def across_devices(
    drafts: Sequence[DraftRow], model_of: Callable[[Row], str | None]
) -> list[DraftRow]:
    """The rows with peers, excess and `is_critical`, in the same order.

    Peers are the same model's GPUs in the same job and step (for totals: in the same files); the
    critical device of a step is the one with the largest window less exposed communication.

    Args:
        drafts: Rows of all devices of a job.
        model_of: Product name of a row's GPU; None where it is not known.
    """
    rows = list(drafts)
    for group in _groups(rows, lambda row: (row.job, row.step, model_of(row))):
        if model_of(rows[group[0]].row) is not None:
            _set_peers(rows, group)
    for group in _groups(rows, lambda row: (row.job, row.step)):
        critical = max(group, key=lambda i: own_time_ns(rows[i].row))
        for i in group:
            rows[i] = replace(rows[i], row=replace(rows[i].row, is_critical=i == critical))
    return rows


def own_time_ns(row: Row) -> int:
    """The window less exposed communication: what a device needs when nobody makes it wait."""
    exposed_ns = row.waterfall_ns.exposed_comm if row.waterfall_ns else 0
    return (row.window_ns or 0) - exposed_ns


def _groups(rows: Sequence[DraftRow], key: Callable[[Row], Hashable]) -> Iterable[list[int]]:
    """Indices of the device rows with one key."""
    groups: defaultdict[Hashable, list[int]] = defaultdict(list)
    for index, draft in enumerate(rows):
        groups[key(draft.row)].append(index)
    return groups.values()


def _set_peers(rows: list[DraftRow], group: list[int]) -> None:
    mean_mhz = _means(rows[i].row for i in group)
    median_mhz = peers_median_mhz(mean_mhz)
    if median_mhz is None:
        return
    covered_ns: Int64s = np.array([rows[i].covered_ns for i in group], np.int64)
    count = int(np.isfinite(mean_mhz).sum())
    for i, excess in zip(group, excess_ns(mean_mhz, median_mhz, covered_ns), strict=True):
        row = rows[i].row
        known = row.dvfs.lost_ns is not None
        dvfs = replace(row.dvfs, excess_ns=int(excess)) if known else row.dvfs
        peers = Peers(n=count, median_mhz=median_mhz)
        rows[i] = replace(rows[i], row=replace(row, dvfs=dvfs, peers=peers))


def _means(rows: Iterable[Row]) -> Float64s:
    """Mean compute clocks, NaN where not known."""
    return np.array(
        [row.clock.compute.mean_mhz if row.clock and row.clock.compute else None for row in rows],
        np.float64,
    )

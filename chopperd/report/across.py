"""What only rows of several devices tell together: peers, excess, and the critical device."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from chopperd.correlate.peers import excess_ns, peers_median_mhz
from chopperd.model.arrays import Float64s, Int64s
from chopperd.model.report import Peers, Row
from chopperd.report.rows import DraftRow


def across_devices(drafts: Sequence[DraftRow]) -> list[DraftRow]:
    """The rows with peers, excess and `is_critical`, in the same order.

    Peers are the same model's GPUs in the same job, run and step (for totals: in files that begin
    with the same step); the critical device is the one with the largest window less exposed
    communication.

    Args:
        drafts: Rows of all devices of a job: its steps, or its totals.
    """
    rows = list(drafts)
    for group in _groups(rows, lambda draft: (*_when(draft), draft.model)):
        if rows[group[0]].model is not None and not _repeats(rows, group):
            _set_peers(rows, group)
    for group in _groups(rows, _when):
        critical = max(group, key=lambda i: own_time_ns(rows[i].row))
        for i in group:
            rows[i] = replace(rows[i], row=replace(rows[i].row, is_critical=i == critical))
    return rows


def _when(draft: DraftRow) -> tuple[str | None, str | None, int | None, int | None]:
    """What rows that are set beside one another have in common."""
    row = draft.row
    return row.job, row.run, row.step, draft.first_step if row.step is None else None


def _repeats(rows: Sequence[DraftRow], group: Sequence[int]) -> bool:
    """Whether a GPU is in a group more than once, so that it would be its own peer."""
    return len({(rows[i].process, rows[i].row.device) for i in group}) < len(group)


def own_time_ns(row: Row) -> int:
    """The window less exposed communication: what a device needs when nobody makes it wait."""
    exposed_ns = row.waterfall_ns.exposed_comm if row.waterfall_ns else 0
    return (row.window_ns or 0) - exposed_ns


def _groups(rows: Sequence[DraftRow], key: Callable[[DraftRow], Hashable]) -> Iterable[list[int]]:
    """Indices of the device rows with one key."""
    groups: defaultdict[Hashable, list[int]] = defaultdict(list)
    for index, draft in enumerate(rows):
        groups[key(draft)].append(index)
    return groups.values()


def _set_peers(rows: list[DraftRow], group: list[int]) -> None:
    mean_mhz = _means(rows[i].row for i in group)
    median_mhz = peers_median_mhz(mean_mhz)
    if median_mhz is None:
        return
    covered_ns: Int64s = np.array([rows[i].covered_ns for i in group], np.int64)
    known = np.isfinite(mean_mhz)
    peers = Peers(n=int(known.sum()), median_mhz=median_mhz)
    for nth, excess in enumerate(excess_ns(mean_mhz, median_mhz, covered_ns)):
        row, i = rows[group[nth]].row, group[nth]
        if not known[nth]:
            continue
        dvfs = row.dvfs
        if dvfs.lost_ns is not None:
            dvfs = replace(dvfs, excess_ns=int(excess))
        rows[i] = replace(rows[i], row=replace(row, dvfs=dvfs, peers=peers))


def _means(rows: Iterable[Row]) -> Float64s:
    """Mean compute clocks, NaN where not known."""
    return np.array(
        [row.clock.compute.mean_mhz if row.clock and row.clock.compute else None for row in rows],
        np.float64,
    )

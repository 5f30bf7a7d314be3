"""Host time by operation, layer or phase, of traces without device work: sums."""

from collections.abc import Sequence

import numpy as np

from chopperd.correlate.groups import GroupTotals, RecordFigures, group_totals
from chopperd.model.arrays import Int8s, Int32s
from chopperd.model.row_work import HostPart, HostTime
from chopperd.model.timeline import PHASE_LABELS, HostWork
from chopperd.report.build.clocks import group_name


def host_time(work: HostWork, job: str | None, run: str | None, rank: int | None) -> HostTime:
    """The operators' time, taken together by operation, layer and phase."""
    own = RecordFigures(
        duration_ns=work.own_ns,
        samples=np.zeros(len(work.own_ns), np.int64),
        compute=np.empty(0, np.int64),
        cycles=np.empty(0),
        covered_ns=np.empty(0),
        lost=None,
        shared_ns=np.empty(0),
        own=None,
        reference_mhz=None,
    )

    def parts(column: Int32s | Int8s, names: Sequence[str]) -> tuple[HostPart, ...]:
        return _parts(group_totals(column, own), names)

    return HostTime(
        job=job,
        run=run,
        rank=rank,
        by_operation=parts(work.operation, work.operations),
        by_layer=parts(work.layer, work.layers),
        by_phase=parts(work.phase, PHASE_LABELS),
    )


def _parts(totals: GroupTotals, names: Sequence[str]) -> tuple[HostPart, ...]:
    return tuple(
        HostPart(
            name=group_name(int(totals.group[g]), names),
            count=int(totals.count[g]),
            host_ns=int(totals.time_ns[g]),
            merged=int(totals.merged[g]),
        )
        for g in range(len(totals))
    )

"""The figures of a device's memory in each step, from rows, a snapshot and calls.

Source: DESIGN.md section 2, "FSDP and memory".
"""

from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np
from msgspec import Struct

from chopperd.correlate.memory.alignment import Requests
from chopperd.correlate.memory.calls import HostCalls
from chopperd.model.arrays import Float64s, Int8s, Int64s
from chopperd.model.memory import MemoryRows, MemorySnapshot, SnapshotAction, StepMemory
from chopperd.model.timeline import Step
from chopperd.units import NS_PER_US

#: A free that comes back later has waited for another stream; times are whole us.
_WAITED_NS: Final = 2 * NS_PER_US
_REQUESTS: Final = (SnapshotAction.ALLOC, SnapshotAction.FREE_REQUESTED)
_GROWS: Final = (SnapshotAction.SEGMENT_ALLOC, SnapshotAction.SEGMENT_MAP)
_SHRINKS: Final = (SnapshotAction.SEGMENT_FREE, SnapshotAction.SEGMENT_UNMAP)

Figures: TypeAlias = dict[str, int | float | None]
"""Some fields of `StepMemory`."""


class StepCuts:
    """Cuts columns of times into steps: the markers' `[start, end)`, of overlapping ones the last.

    A step that is several markers has the time of all.
    """

    def __init__(self, steps: Sequence[Step]) -> None:
        markers = sorted(
            (marker.start_ns, marker.end_ns, index)
            for index, step in enumerate(steps)
            for marker in step.markers
        )
        self.start_ns = np.array([step.start_ns for step in steps], np.int64)
        self.end_ns = np.array([step.end_ns for step in steps], np.int64)
        self._markers = np.array(markers, np.int64).reshape(-1, 3).T

    def __len__(self) -> int:
        """The number of steps."""
        return len(self.start_ns)

    def of(self, at_ns: Int64s) -> Int64s:
        """Return the index of the step of each time, (n,) int64; -1 outside all."""
        start_ns, end_ns, index = self._markers
        at = np.searchsorted(start_ns, at_ns, "right") - 1
        if not len(index):
            return at
        return np.where((at >= 0) & (at_ns < end_ns[at]), index[at], -1)

    def split(self, at_ns: Int64s) -> list[Int64s]:
        """Return the indices of the times in each step, in their order."""
        step = self.of(at_ns)
        order = np.argsort(step, kind="stable")
        edges = np.searchsorted(step[order], np.arange(len(self) + 1))
        return [order[edges[i] : edges[i + 1]] for i in range(len(self))]

    def count(self, at_ns: Int64s, weights: Int64s | None = None) -> list[int]:
        """Count the times in each step, or sum their weights."""
        step = self.of(at_ns)
        inside = step >= 0
        sums = np.zeros(len(self), np.int64)
        np.add.at(sums, step[inside], 1 if weights is None else weights[inside])
        return [int(each) for each in sums]


class StepEvidence(Struct, frozen=True, kw_only=True):
    """One step's figures, and its requests from a snapshot or from rows; None unknown."""

    memory: StepMemory
    exact: Requests | None
    blocks: Requests | None


def step_evidence(
    steps: Sequence[Step],
    calls: HostCalls,
    rows: MemoryRows | None,
    snapshot: MemorySnapshot | None,
) -> list[StepEvidence]:
    """Return the figures of each step of a process on one device.

    `rows`, `snapshot`: of that device, in the trace's time; None where there are none.
    """
    cuts = StepCuts(steps)
    by_rows = [Figures()] * len(cuts) if rows is None else _by_rows(rows, cuts)
    by_snapshot: list[Figures] = [{}] * len(cuts)
    exact: list[Requests | None] = [None] * len(cuts)
    if snapshot is not None and snapshot.at_ns is not None:
        by_snapshot, exact = _by_snapshot(snapshot, snapshot.at_ns, cuts)
    by_calls = _by_calls(calls, cuts)
    blocks = [None] * len(cuts) if rows is None else _blocks(rows, cuts, by_rows)
    return [
        StepEvidence(
            memory=_merged(step.step, by_calls[i], by_rows[i], by_snapshot[i]),
            exact=exact[i],
            blocks=blocks[i],
        )
        for i, step in enumerate(steps)
    ]


def breaks(rows: MemoryRows) -> int:
    """Count rows whose total does not go on from the row before: some between are missing."""
    total = rows.allocated_bytes
    known = (total[1:] >= 0) & (total[:-1] >= 0)
    return int(np.sum(known & (total[1:] != total[:-1] + rows.bytes[1:])))


def _by_calls(calls: HostCalls, cuts: StepCuts) -> list[Figures]:
    columns: dict[str, list[int]] = {}
    if calls.is_recorded:
        for name, letters in (
            *(("segment_allocs", "M"), ("segment_frees", "F"), ("event_queries", "Q")),
            ("segment_ns", "MFCO"),
        ):
            mine = calls.is_any(letters)
            length_ns = calls.length_ns[mine] if name == "segment_ns" else None
            columns[name] = cuts.count(calls.start_ns[mine], length_ns)
        columns["retries"] = cuts.count(calls.start_ns[calls.is_retry])
    if calls.has_spans:
        columns["record_streams"] = cuts.count(calls.record_stream_ns)
        columns["rate_limiter_ns"] = cuts.count(calls.limiter_ns, calls.limiter_length_ns)
    return [{name: column[i] for name, column in columns.items()} for i in range(len(cuts))]


def _by_rows(rows: MemoryRows, cuts: StepCuts) -> list[Figures]:
    """Return what rows say of each step; nothing of a step that ends before the first row."""
    real = np.flatnonzero(~rows.is_oom)
    at_ns, sizes = rows.at_ns[real], rows.bytes[real]
    totals = rows.allocated_bytes[real], rows.reserved_bytes[real]
    entry = np.searchsorted(at_ns, cuts.start_ns) - 1
    ooms = cuts.count(rows.at_ns[rows.is_oom])
    found: list[Figures] = []
    for i, inside in enumerate(cuts.split(at_ns)):
        figures: Figures = {"ooms": ooms[i]}
        if len(real) and at_ns[0] < cuts.end_ns[i]:
            size = sizes[inside]
            figures["allocations"] = int(np.sum(size > 0))
            figures["allocated_bytes"] = int(size[size > 0].sum())
            allocated = _states(totals[0], entry[i], inside, totals[0][0] - sizes[0])
            reserved = _states(totals[1], entry[i], inside, -1)
            figures |= _peaks(allocated, reserved, since=int(entry[i] < 0))
        found.append(figures)
    return found


def _states(total: Int64s, entry: int, inside: Int64s, unknown: int) -> Int64s:
    """Return the total on entry and after each row of a step; `unknown` before the first row."""
    before = total[entry] if entry >= 0 else unknown if total[0] >= 0 else -1
    return np.concatenate(([before], total[inside]))


def _peaks(allocated: Int64s, reserved: Int64s, since: int) -> Figures:
    """Return the peaks of a step, given both totals on entry and after each row; -1 unknown.

    `since`: where `reserved` is known from.
    """
    figures: Figures = {}
    if allocated.max() >= 0:
        figures["peak_allocated_bytes"] = int(allocated.max())
    if reserved.max() >= 0:
        peak, change = int(reserved.max()), np.diff(reserved[since:])
        used = int(allocated[reserved == peak].max())
        figures |= {
            "peak_reserved_bytes": peak,
            "held_bytes": peak - used if used >= 0 else None,
            "segment_allocs": int(np.sum(change > 0)),
            "segment_frees": int(np.sum(change < 0)),
        }
    return figures


def _blocks(rows: MemoryRows, cuts: StepCuts, found: list[Figures]) -> list[Requests | None]:
    real = np.flatnonzero(~rows.is_oom)
    inside = [real[each] for each in cuts.split(rows.at_ns[real])]
    return [
        Requests(size=rows.bytes[each], address=rows.address[each], is_block=True)
        if "allocations" in figures
        else None
        for each, figures in zip(inside, found, strict=True)
    ]


def _by_snapshot(
    snapshot: MemorySnapshot, at_ns: Int64s, cuts: StepCuts
) -> tuple[list[Figures], list[Requests | None]]:
    """Return what a snapshot says of the steps that it has whole, and their requests."""
    action = snapshot.action
    dumps_ns = at_ns[action == SnapshotAction.SNAPSHOT]
    whole = np.full(len(cuts), bool(len(at_ns)))
    if len(at_ns) and snapshot.is_cut:
        whole &= cuts.start_ns >= at_ns[0]
    if len(dumps_ns):
        whole &= cuts.end_ns <= dumps_ns[-1]
    elif len(at_ns):  # when it was made is not said: not before the last entry
        whole &= cuts.start_ns <= at_ns[-1]
    signed = np.where(action == SnapshotAction.ALLOC, 1, -1) * snapshot.bytes
    waits_ns = _waits_ns(action, snapshot.address, at_ns)
    grown = np.isin(action, _GROWS) * snapshot.bytes - np.isin(action, _SHRINKS) * snapshot.bytes
    reserved = snapshot.reserved_bytes - grown.sum() + np.concatenate(([0], np.cumsum(grown)))
    figures: list[Figures] = []
    requests: list[Requests | None] = []
    for i, inside in enumerate(cuts.split(at_ns)):
        if not whole[i]:
            figures.append({})
            requests.append(None)
            continue
        asked = inside[np.isin(action[inside], _REQUESTS)]
        size = signed[asked]
        entry = int(np.searchsorted(at_ns, cuts.start_ns[i]))
        figures.append(
            {
                "ooms": int(np.sum(action[inside] == SnapshotAction.OOM)),
                "allocations": int(np.sum(size > 0)),
                "peak_reserved_bytes": int(max(reserved[entry], *reserved[inside + 1], 0)),
                "segment_allocs": int(np.isin(action[inside], _GROWS).sum()),
                "segment_frees": int(np.isin(action[inside], _SHRINKS).sum()),
            }
            | _waited(waits_ns[inside[action[inside] == SnapshotAction.FREE_REQUESTED]])
        )
        requests.append(Requests(size=size, address=snapshot.address[asked], is_block=False))
    return figures, requests


def _waits_ns(action: Int8s, address: Int64s, at_ns: Int64s) -> Float64s:
    """Return how long after each free that was asked for it came, (n,) float64; inf never.

    NaN at other entries.
    """
    frees = np.flatnonzero(
        np.isin(action, (SnapshotAction.FREE_REQUESTED, SnapshotAction.FREE_COMPLETED))
    )
    order = frees[np.argsort(address[frees], kind="stable")]
    waits_ns = np.where(action == SnapshotAction.FREE_REQUESTED, np.inf, np.nan)
    done = action[order[1:]] == SnapshotAction.FREE_COMPLETED
    done &= action[order[:-1]] == SnapshotAction.FREE_REQUESTED
    done &= address[order[1:]] == address[order[:-1]]
    waits_ns[order[:-1][done]] = at_ns[order[1:][done]] - at_ns[order[:-1][done]]
    return waits_ns


def _waited(waits_ns: Float64s) -> Figures:
    """Return the share of frees that waited, and for how long those did that came back."""
    if not len(waits_ns):
        return {}
    waited = waits_ns > _WAITED_NS
    figures: Figures = {"waited_ratio": float(waited.mean())}
    ended = waits_ns[waited & np.isfinite(waits_ns)]
    if len(ended):
        figures["waited_median_ns"] = round(float(np.median(ended)))
        figures["waited_p95_ns"] = int(np.quantile(ended, 0.95, method="inverted_cdf"))
    return figures


def _merged(step: int, calls: Figures, rows: Figures, snapshot: Figures) -> StepMemory:
    """Take each figure from where it is best: calls, then rows, then the snapshot.

    Sizes of rows are those of blocks, which count in totals; only calls show failed attempts.
    """
    by_changes = "segment_allocs" not in calls
    if by_changes and "segment_allocs" in snapshot:  # entries tell more than changes of a total
        calls = {**calls, **{name: snapshot[name] for name in ("segment_allocs", "segment_frees")}}
    every = {**snapshot, **rows, **calls}
    known = "segment_allocs" in every
    return StepMemory(
        step=step,
        at_least=by_changes and known,
        **{name: every.get(name) for name in _FIGURES},  # type: ignore[arg-type]
    )


_FIGURES: Final = (
    *("allocations", "allocated_bytes", "peak_allocated_bytes", "peak_reserved_bytes"),
    *("held_bytes", "segment_allocs", "segment_frees", "segment_ns", "event_queries"),
    *("record_streams", "rate_limiter_ns", "retries", "ooms"),
    *("waited_ratio", "waited_median_ns", "waited_p95_ns"),
)

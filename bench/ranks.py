"""How well the slow rank of a job is found: jobs with known truth, compared by the reducer alone.

Eight ranks of one node for 20 steps, whose collectives are exposed (`sync`: all-reduces, broadcasts
and uneven all-to-alls after each piece of work) or under compute (`overlap`: all-gathers that are
prefetched one layer ahead). Clocks spread by 0.5 % (standard deviation, at most 1 %), hosts pause
now and then, ends and starts jitter by some us. One rank is late by 5 % of a step by heat, data or
launch, or none is.

    python -m bench.ranks [SEEDS]
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

import numpy as np

from chopperd.correlate.intervals import difference, lengths_ns, union
from chopperd.correlate.ranks.collectives import CollectiveKind, RankCollectives
from chopperd.correlate.ranks.comparing import judged, late_ns, split_ns, waits, with_cause
from chopperd.correlate.ranks.matching import match
from chopperd.model.arrays import Bools, Float64s, Int64s

Fault = Literal["none", "heat", "data", "launch"]
Style = Literal["sync", "overlap"]

RANKS: Final = 8
STEPS: Final = 20
LATE_SHARE: Final = 0.05
CAUSES: Final = {"heat": "dvfs_loss", "data": "idle_data", "launch": "idle_launch_prep"}
_PIECES: Final = 16
_WORK_NS: Final = 5e6
_KINDS: Final = tuple(
    CollectiveKind(name=name, group=1, group_size=RANKS, shape=shape)
    for shape, name in enumerate(("allreduce", "broadcast", "alltoall", "allgather"), 1)
)
_REFERENCE_GAP: Final = 0.2  # of each clock to the reference


@dataclass(slots=True)
class _Rank:
    """What one rank did: (start, end) of compute, and (start, end, kind, step, number)."""

    compute: list[tuple[float, float]] = field(default_factory=list)
    collectives: list[tuple[float, float, int, int, int]] = field(default_factory=list)
    cuts: list[float] = field(default_factory=list)


class _Draws(NamedTuple):
    """The random values of a job, (steps, pieces, ranks) or as noted."""

    slow: Float64s  # (ranks,), how much longer compute takes than at the mean clock
    work_ns: Float64s
    loader_ns: Float64s  # (steps, ranks)
    launch_ns: Float64s  # (steps, ranks)
    transfer_ns: Float64s  # (pieces,)
    kind: Int64s  # (pieces,)
    share: Float64s  # (ranks,), of an uneven all-to-all


class Truth(NamedTuple):
    """What is so: the late rank (None: none), and each step's exposed waits, (steps, ranks)."""

    rank: int | None
    wait_ns: Float64s


class Found(NamedTuple):
    """What the reducer says: stragglers with their causes; its waits as in `Truth`."""

    stragglers: dict[int, str | None]
    wait_ns: Float64s


def _draws(fault: Fault, late: int, rng: np.random.Generator) -> _Draws:
    shape = STEPS, _PIECES, RANKS
    is_late = np.arange(RANKS) == late
    late_ns_ = LATE_SHARE * _PIECES * _WORK_NS * is_late * rng.lognormal(0, 0.2, (STEPS, 1))
    pause_ns = 20e6 * (rng.random((STEPS, RANKS)) < 0.01)
    slow = rng.normal(0, 0.005, RANKS).clip(-0.01, 0.01)
    work_ns = rng.uniform(0.5, 1.5, _PIECES)[:, None] * _WORK_NS * rng.normal(1, 0.01, shape)
    return _Draws(
        slow=slow + (LATE_SHARE * is_late if fault == "heat" else 0.0),
        work_ns=work_ns,
        loader_ns=rng.exponential(2e5, (STEPS, RANKS)) + (late_ns_ if fault == "data" else 0.0),
        launch_ns=rng.exponential(2e5, (STEPS, RANKS))
        + (late_ns_ if fault == "launch" else 0.0)
        + pause_ns,
        transfer_ns=np.exp(rng.uniform(np.log(5e4), np.log(3e6), _PIECES)),
        kind=np.where(rng.random(_PIECES) < 0.3, rng.integers(1, 3, _PIECES), 0),
        share=rng.uniform(-0.5, 0.5, RANKS),
    )


def _played(style: Style, draws: _Draws, rng: np.random.Generator) -> list[_Rank]:
    """Run the job; each rank starts a step when it is done with the one before."""
    ranks = [_Rank() for _ in range(RANKS)]
    ready, number = np.zeros(RANKS), 0
    for step in range(STEPS):
        for rank, start in zip(ranks, ready.tolist(), strict=True):
            rank.cuts.append(start)
        at = ready + draws.loader_ns[step] + draws.launch_ns[step]
        gathered = at
        before = at
        for piece in range(_PIECES):
            work_ns = draws.work_ns[step, piece] * (1 + draws.slow)
            kind = 3 if style == "overlap" else int(draws.kind[piece])
            begin = np.maximum(at, gathered)
            done = begin + work_ns
            arrive = (before if style == "overlap" else done) + rng.exponential(5e3, RANKS)
            end = _ends(kind, arrive, draws.transfer_ns[piece], draws.share)
            end = np.maximum(end + rng.uniform(-3e3, 3e3, RANKS), arrive + 1e3)
            for nth, rank in enumerate(ranks):
                rank.compute.append((begin[nth], done[nth]))
                rank.collectives.append((arrive[nth], end[nth], kind, step, number))
            number += 1
            before, at, gathered = done, done, end
        ready = np.maximum(at, gathered)
    return ranks


def _ends(kind: int, arrive: Float64s, transfer_ns: float, share: Float64s) -> Float64s:
    """Return when each rank leaves a collective that it reached at `arrive`."""
    if kind == 1:  # rank 0 sends and goes on, the others wait for it only
        ends: Float64s = np.maximum(arrive, arrive[0]) + transfer_ns
        ends[0] = arrive[0] + 0.3 * transfer_ns
        return ends
    longer = share if kind == 2 else np.zeros(RANKS)
    ends = arrive.max() + transfer_ns * (1 + longer)
    return ends


def _columns(rank: _Rank, *, with_seq: bool) -> RankCollectives:
    start, end, kind, step, number = np.array(rank.collectives).T
    order = np.argsort(start, kind="stable")
    start_ns, end_ns = np.rint(start[order]).astype(np.int64), np.rint(end[order]).astype(np.int64)
    computed = np.rint(np.array(rank.compute)).astype(np.int64)
    communicated = union(start_ns, end_ns)
    return RankCollectives(
        kinds=_KINDS,
        kind=kind[order].astype(np.int64),
        step=step[order].astype(np.int64),
        seq=number[order].astype(np.int64) if with_seq else np.full(len(order), -1),
        comms_id=np.full(len(order), -1),
        start_ns=start_ns,
        end_ns=end_ns,
        exposed=difference(communicated, union(computed[:, 0], computed[:, 1])),
        until_ns=int(np.iinfo(np.int64).max),
    )


def _waterfall(
    rank: _Rank, draws: _Draws, nth: int, comm_ns: Float64s, used: Bools
) -> dict[str, float | None]:
    """Return the median of a rank's waterfall over the steps used, as samples would show it."""
    computed = np.array(rank.compute)
    length_ns = (computed[:, 1] - computed[:, 0]).reshape(STEPS, -1).sum(axis=1)[:-1]
    compute_ns = float(np.median(length_ns[used]))
    at_ref_ns = compute_ns / (1 + float(draws.slow[nth])) * (1 - _REFERENCE_GAP)
    return {
        "compute_at_ref": at_ref_ns,
        "dvfs_loss": compute_ns - at_ref_ns,
        "compute_unsampled": 0.0,
        "exposed_comm": float(np.median(comm_ns[used])),
        "idle_data": float(np.median(draws.loader_ns[:-1, nth][used])),
        "idle_launch_prep": float(np.median(draws.launch_ns[:-1, nth][used])),
    }


def trial(style: Style, fault: Fault, seed: int, *, with_seq: bool) -> tuple[Truth, Found]:
    """Play one job and compare its ranks: what is so, and what is found."""
    rng = np.random.default_rng([seed, ("none", *CAUSES).index(fault), style == "sync"])
    late = int(rng.integers(RANKS))
    draws = _draws(fault, late, rng)
    played = _played(style, draws, rng)
    ranks = [_columns(each, with_seq=with_seq) for each in played]
    cuts = [np.rint(np.array(each.cuts)).astype(np.int64) for each in played]
    window_ns = np.array([np.diff(each) for each in cuts], np.float64).T
    exposed_ns = np.array(
        [lengths_ns(r.exposed, c[:-1], c[1:]) for r, c in zip(ranks, cuts, strict=True)], np.float64
    ).T
    matches = match(ranks, RANKS)
    wait_ns = np.empty((STEPS - 1, RANKS))
    for nth, (rank, cut) in enumerate(zip(ranks, cuts, strict=True)):
        split, known = split_ns(rank, waits(rank, matches, nth), cut[:-1], cut[1:])
        wait_ns[:, nth] = np.where(known, split, np.nan)
    verdicts = judged(late_ns(window_ns, exposed_ns), np.median(window_ns, axis=1))
    named: dict[int, str | None] = {}
    for nth, verdict in enumerate(verdicts):
        falls = [
            _waterfall(each, draws, other, exposed_ns[:, other], verdict.is_late)
            for other, each in enumerate(played if verdict.is_late.any() else ())
        ]
        judgement = with_cause(verdict, falls, nth)
        if judgement.verdict == "straggler":
            named[nth] = judgement.cause
    truth_ns = _true_waits(played, ranks, cuts)
    return Truth(None if fault == "none" else late, truth_ns), Found(named, wait_ns)


def _true_waits(
    played: Sequence[_Rank], ranks: Sequence[RankCollectives], cuts: Sequence[Int64s]
) -> Float64s:
    """Return exposed waits by the numbers that the job gave its collectives, (steps - 1, ranks)."""
    arrived = np.array([[each[0] for each in rank.collectives] for rank in played])
    ended = np.array([[each[1] for each in rank.collectives] for rank in played])
    kind = np.array([each[2] for each in played[0].collectives])
    least = np.where(np.isin(kind, (1, 2)), (ended - arrived).min(axis=0), 0.0)
    found = np.empty((STEPS - 1, RANKS))
    for nth, rank in enumerate(ranks):
        until = np.minimum(arrived.max(axis=0), ended[nth] - least)
        waited = union(*(np.rint(each).astype(np.int64) for each in (arrived[nth], until)))
        moved = union(*(np.rint(each).astype(np.int64) for each in (until, ended[nth])))
        outside = difference(rank.exposed, difference(waited, moved))
        inside = difference(rank.exposed, outside)
        found[:, nth] = lengths_ns(inside, cuts[nth][:-1], cuts[nth][1:])
    return found


def main(seeds: int = 100) -> None:
    """Print for each job how often the late rank and its cause are found, and others accused."""
    print(
        "job, matched by           found  with cause  others accused  waits known  error us (max)"
    )
    for style in ("sync", "overlap"):
        for fault in ("none", *CAUSES):
            for with_seq in (True, False):
                _line(style, fault, seeds, with_seq=with_seq)  # type: ignore[arg-type]


def _line(style: Style, fault: Fault, seeds: int, *, with_seq: bool) -> None:
    right = because = accused = 0
    known, worst_ns = [], 0.0
    for seed in range(seeds):
        truth, found = trial(style, fault, seed, with_seq=with_seq)
        right += truth.rank in found.stragglers
        because += found.stragglers.get(truth.rank if truth.rank is not None else -1) == CAUSES.get(
            fault, ""
        )
        accused += bool(found.stragglers.keys() - {truth.rank})
        known.append(np.isfinite(found.wait_ns).mean())
        worst_ns = max(worst_ns, float(np.nanmax(np.abs(found.wait_ns - truth.wait_ns))))
    name = f"{style} {fault}, {'seq' if with_seq else 'order'}"
    figures = f"{right:5d}  {because:10d}  {accused:14d}  {np.mean(known):11.3f}"
    print(f"{name:24s}  {figures}  {worst_ns / 1e3:14.1f}", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))

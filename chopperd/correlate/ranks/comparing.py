"""Compare the ranks of one job on one host: waits, own work between collectives, who is late, why.

Source: DESIGN.md section 2, "Ranks".
"""

from collections.abc import Mapping, Sequence
from typing import Final, Literal

import numpy as np
from msgspec import Struct

from chopperd.correlate.intervals import difference, intersection, lengths_ns, union
from chopperd.correlate.ranks.collectives import RankCollectives
from chopperd.correlate.ranks.matching import Matches
from chopperd.model.arrays import Bools, Float64s, Int64s
from chopperd.model.timeline import Intervals

#: A rank is late in a step where it works so much of the step longer than the median rank.
_LATE_SHARE: Final = 0.01
#: It is a straggler where it is late in more than half of the steps, and in at least so many.
LEAST_STEPS: Final = 3
#: Up to this share of a window's exposed communication may be of unmatched collectives: it counts
#: as transfer.
_UNMATCHED_SHARE: Final = 0.01
#: From this share of compute with a clock on, the rest is taken to be alike.
_LEAST_COVERED: Final = 0.5

Verdict = Literal["straggler", "pauses", "even"]
#: Rows that are longer where a GPU's clock is lower.
_BY_CLOCK: Final = frozenset({"dvfs_loss", "compute_unsampled"})


# Waiting and transferring.


class RankWaits(Struct, frozen=True, kw_only=True):
    """When one rank waited for others."""

    wait_ns: Int64s  # (n,) of each of its kernels; -1 unmatched
    waiting: Intervals  # exposed communication in which it waited and transferred nothing
    # Exposed communication of unmatched collectives only, or beyond the columns' end
    unknown: Intervals


def waits(rank: RankCollectives, matches: Matches, index: int) -> RankWaits:
    """Return the waits of rank `index`: in each collective from its start to the last rank's.

    Not longer than it took; of a collective whose ranks need not end together (a broadcast, whose
    root goes on at once) not longer than it took beyond the shortest.
    """
    instance = matches.instance[index]
    matched = np.flatnonzero(instance >= 0)
    which, start_ns, end_ns = instance[matched], rank.start_ns[matched], rank.end_ns[matched]
    length_ns = end_ns - start_ns
    transfer_ns = np.where(matches.is_symmetric[which], 0, matches.transfer_ns[which])
    until_last_ns = matches.last_start_ns[which] - start_ns
    wait_ns = np.full(len(rank), -1, np.int64)
    wait_ns[matched] = np.minimum(until_last_ns, length_ns - transfer_ns)
    moving = union(start_ns + wait_ns[matched], end_ns)
    still = difference(rank.exposed, moving)
    waited = union(start_ns, start_ns + wait_ns[matched])
    return RankWaits(
        wait_ns=wait_ns, waiting=intersection(still, waited), unknown=difference(still, waited)
    )


def split_ns(
    rank: RankCollectives, found: RankWaits, start_ns: Int64s, end_ns: Int64s
) -> tuple[Int64s, Bools]:
    """Return how long a rank waited, exposed, in each window, and whether that is known: (w,) each.

    The rest of the window's exposed communication is transfer. Not known where more than 1 % of it
    is of collectives that are not matched.
    """
    exposed_ns = lengths_ns(rank.exposed, start_ns, end_ns)
    unknown_ns = lengths_ns(found.unknown, start_ns, end_ns)
    known: Bools = (unknown_ns <= _UNMATCHED_SHARE * exposed_ns) & (end_ns <= rank.until_ns)
    return lengths_ns(found.waiting, start_ns, end_ns), known


def caused_ns(
    ranks: Sequence[RankCollectives], matches: Matches, every: Sequence[RankWaits], steps: Int64s
) -> Int64s:
    """Return for each rank how long others waited for it, exposed, as the last to come: (r,) int64.

    In sum over the other ranks and the collectives of `steps`, the numbers of steps.
    """
    caused = np.zeros(len(ranks), np.int64)
    for rank, found, instance in zip(ranks, every, matches.instance, strict=True):
        mine = np.flatnonzero((instance >= 0) & np.isin(rank.step, steps))
        start_ns = rank.start_ns[mine]
        exposed_ns = lengths_ns(found.waiting, start_ns, start_ns + found.wait_ns[mine])
        np.add.at(caused, matches.last_rank[instance[mine]], exposed_ns)
    return caused


# Own work.


def late_ns(window_ns: Float64s, exposed_comm_ns: Float64s) -> Float64s:
    """Return how much longer than the median rank each rank worked by itself: (s, r) float64, ns.

    Own work is what is left of a step without exposed communication: from the end of a collective
    to the start of the next, where none of them overlaps compute. Waits for others are not in it,
    nor transfers of uneven length. (With overlap the gaps between collectives would count one lead
    of a rank over another in every collective in which it lasts.)

    `window_ns`: (s, r), of each step and rank.
    """
    own_ns = window_ns - exposed_comm_ns
    return own_ns - median_rank(own_ns)[:, None]


def median_rank(values: Float64s) -> Float64s:
    """Return the median of each row, of two values the lower: (n, r) to (n,) float64.

    Of two ranks the slower one is then late by all of the difference.
    """
    return values.min(axis=1) if values.shape[1] == 2 else np.median(values, axis=1)


class Lateness(Struct, frozen=True, kw_only=True):
    """How late one rank is."""

    verdict: Verdict | None  # None with fewer than `LEAST_STEPS` steps
    mean_ns: float  # mean over all steps
    pause_ns: int  # sum over those in which it is late
    is_late: Bools  # (s,) whether it is late in each step
    is_spread: bool  # whether it is late by no more than clocks of equal GPUs differ by nature


def judged(late: Float64s, step_ns: Float64s) -> list[Lateness]:
    """Judge each rank by its lateness in ns, (s, r), and the steps' lengths, (s,).

    A straggler is late by more than 1 % of the step in more than half of the steps.
    """
    is_late = late > _LATE_SHARE * step_ns[:, None]
    ratio = late / step_ns[:, None]
    margin = _spread_ratio(ratio)
    found = []
    for rank in range(late.shape[1]):
        mine = is_late[:, rank]
        count = int(mine.sum())
        straggles = count > len(late) / 2 and count >= LEAST_STEPS
        verdict: Verdict = "straggler" if straggles else "pauses" if count else "even"
        found.append(
            Lateness(
                verdict=verdict if len(late) >= LEAST_STEPS else None,
                mean_ns=float(late[:, rank].mean()),
                pause_ns=int(late[mine, rank].sum()),
                is_late=mine,
                is_spread=bool(count and np.median(ratio[mine, rank]) <= margin),
            )
        )
    return found


def _spread_ratio(ratio: Float64s) -> float:
    """Return the share of a step up to which lateness by the clock is natural.

    As for a GPU's clock below its peers': equal ones spread by 1 %.
    """
    mean = ratio.mean(axis=0)
    if len(mean) < MIN_PEERS:
        return NAMED_RATIO
    deviation = float(np.median(np.abs(mean - np.median(mean))))
    return max(NAMED_RATIO, NAMED_DEVIATIONS * deviation)


# Causes.


class Judgement(Struct, frozen=True, kw_only=True):
    """The verdict on a rank, the row of the waterfall that is its cause, and that row's excess."""

    verdict: Verdict | None
    cause: str | None = None
    cause_ns: float | None = None


def with_cause(
    found: Lateness, waterfalls: Sequence[Mapping[str, float | None]], rank: int
) -> Judgement:
    """Return the verdict on a rank with its cause; it is even if late by natural spread of clocks.

    `waterfalls`: median of each row in ns, of each rank, over the steps in which this one is late.
    (One long pause moves a mean, and would be taken for the cause of all of them.)
    """
    if found.verdict not in {"straggler", "pauses"}:
        return Judgement(verdict=found.verdict)
    why = cause(waterfalls, rank)
    if why is None:
        return Judgement(verdict=found.verdict)
    if why[0] in _BY_CLOCK and found.is_spread:
        return Judgement(verdict="even")
    return Judgement(verdict=found.verdict, cause=why[0], cause_ns=why[1])


def cause(waterfalls: Sequence[Mapping[str, float | None]], rank: int) -> tuple[str, float] | None:
    """Return the row of a rank's waterfall that exceeds the median rank's most, and by how much.

    None where no row does. Communication and what is unknown are no causes. Compute is divided into
    that at the reference clock and the clock's loss where at least half of it is covered by samples
    on all ranks, the rest taken to be alike; else it is `compute_unsampled` as a whole.

    `waterfalls`: median of each row in ns, of each rank; None is unknown.
    """
    rows = _comparable(waterfalls)
    names = sorted(rows[0])
    values = np.array([[row[name] for row in rows] for name in names])
    more_ns = values[:, rank] - median_rank(values)
    most = int(more_ns.argmax())
    return (names[most], float(more_ns[most])) if more_ns[most] > 0 else None


def _comparable(waterfalls: Sequence[Mapping[str, float | None]]) -> list[dict[str, float]]:
    """Return the rows that may be causes, compute in the same parts on all ranks."""
    parts = [_compute_parts(each) for each in waterfalls]
    if any(each is None for each in parts):
        parts = [{"compute_unsampled": _compute_ns(each)} for each in waterfalls]
    skipped = {"compute_at_ref", "dvfs_loss", "compute_unsampled", "exposed_comm", "unknown"}
    return [
        {name: value or 0.0 for name, value in rows.items() if name not in skipped} | (part or {})
        for rows, part in zip(waterfalls, parts, strict=True)
    ]


def _compute_ns(rows: Mapping[str, float | None]) -> float:
    names = ("compute_at_ref", "dvfs_loss", "compute_unsampled")
    return sum(rows.get(name) or 0.0 for name in names)


def _compute_parts(rows: Mapping[str, float | None]) -> dict[str, float] | None:
    """Return compute at the reference clock and the loss; None where too little is known."""
    at_ref, lost, every = rows.get("compute_at_ref"), rows.get("dvfs_loss"), _compute_ns(rows)
    if at_ref is None or lost is None or at_ref + lost < _LEAST_COVERED * every or not every:
        return None
    lost_ns = lost * every / (at_ref + lost)
    return {"compute_at_ref": every - lost_ns, "dvfs_loss": lost_ns}


MIN_PEERS: Final = 4
#: A GPU is named from so far below its peers on, with the low end of its interval; what clocks
#: wander adds as squares.
NAMED_RATIO: Final = 0.015
#: And from so many median absolute deviations of its peers on.
NAMED_DEVIATIONS: Final = 3.0
#: Peers that are further apart than this are two groups.
_GROUPS_APART_RATIO: Final = 0.05
#: A group is at least so many: a single GPU is an outlier.
_LEAST_GROUP: Final = 2
#: Standard error of a median over that of a mean.
_MEDIAN_ERROR: Final = float(np.sqrt(np.pi / 2))
#: Student's t, 97.5 %, by degrees of freedom from one on.
_T_975: Final = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
_MOST_PARTS: Final = len(_T_975) + 1
#: How much neighbouring parts of a run may resemble each other; few parts do not show more.
_CORRELATIONS: Final = np.linspace(0.0, 0.8, 17)
#: Squares of a GPU that scatters more than so many times the median do not count: it is the one to
#: be found, as one that is slow in some steps only.
_MOST_OF_MEDIAN: Final = 6.0


class Peers(Struct, frozen=True, kw_only=True):
    """GPUs of one model with which each of them is compared over one window."""

    count: int  # GPUs with a known clock
    reference_mhz: float  # their median, or that of the upper of two groups
    error_mhz: float  # half width of its 95 % interval; NaN unknown
    disagree: bool  # whether they fall into two groups
    margin_ratio: float  # from so far below the reference on a GPU is named

    def excess(self, mean_mhz: Float64s, half_mhz: Float64s) -> "Excess":
        """Compute how far mean clocks over the same window lie below the reference."""
        below = 1.0 - mean_mhz / self.reference_mhz
        half = np.hypot(half_mhz, mean_mhz / self.reference_mhz * self.error_mhz)
        half /= self.reference_mhz
        return Excess(
            ratio=np.maximum(below, 0.0),
            low=np.maximum(below - half, 0.0),
            high=np.maximum(below + half, 0.0),
            is_named=below - half > self.margin_ratio,
        )


class Excess(Struct, frozen=True, kw_only=True):
    """Shares of covered compute lost against peers, (n,) each.

    Means come before the max: momentary clocks would give equal GPUs 1-2 % of excess.

    Source: DESIGN.md section 2, "Three losses".
    """

    ratio: Float64s  # max(0, 1 - f / reference); NaN where the clock is not known
    #: Its 95 % interval; NaN unknown.
    low: Float64s
    high: Float64s
    is_named: Bools  # whether the GPU is an outlier: the low end passes the margin


def peers_of(mean_mhz: Float64s, half_mhz: Float64s, wander: float = 0.0) -> Peers | None:
    """Compute the reference that GPUs of one model are compared with; None for fewer than four.

    It is of all of them, the compared GPU included. `mean_mhz`, `half_mhz`: (n,), mean compute
    clocks over one window and half widths of their 95 % intervals; NaN unknown. `wander`: see
    `wander_ratio`.
    """
    known = np.flatnonzero(np.isfinite(mean_mhz))
    if len(known) < MIN_PEERS:
        return None
    upper = known[_upper_group(mean_mhz[known], half_mhz[known])]
    reference_mhz = float(np.median(mean_mhz[upper]))
    widths_mhz = half_mhz[upper][np.isfinite(half_mhz[upper])]
    error_mhz = _MEDIAN_ERROR * np.median(widths_mhz) if len(widths_mhz) else np.nan
    deviation = np.median(np.abs(mean_mhz[upper] / reference_mhz - 1.0))
    return Peers(
        count=len(known),
        reference_mhz=reference_mhz,
        error_mhz=float(error_mhz / np.sqrt(len(upper))),
        disagree=len(upper) < len(known),
        margin_ratio=max(float(np.hypot(NAMED_RATIO, wander)), NAMED_DEVIATIONS * float(deviation)),
    )


def wander_ratio(shares: Sequence[Float64s]) -> float:
    """Estimate how far equal GPUs' mean clocks over a run may differ as clocks wander.

    Half of the 95 % interval as a share of the clock; 0 for fewer than two steps. Each GPU's run is
    cut into up to ten parts. How their means scatter about that GPU's own, and how much neighbours
    resemble each other (a first-order autoregression), gives the standard error of the run's mean.
    All GPUs are used together but for one that scatters far more than the others: what it does in
    some steps only must not hide it. `shares`: for each GPU (steps,), its clock over the peers'.

    Source: known-truth simulation of nodes of 8 equal GPUs (spread of 1 % either way). Clocks that
    wander by 4 % over 0.3 to 1 s made 1.5 % and 3 MAD alone accuse somebody in 9-28 % of runs of 1
    to 20 s, as a MAD of eight is rough; with this in 0-6 %. Of stragglers of 6 % over 10 steps of 1
    s it hides less than one in 100.
    """
    parts = min(max(map(len, shares), default=0), _MOST_PARTS)
    if parts < 2:
        return 0.0
    means = np.array(
        [
            [float(part.mean()) for part in np.array_split(each, parts)]
            for each in shares
            if len(each) >= parts
        ]
    )
    off = means - means.mean(axis=1, keepdims=True)
    squares = (off**2).sum(axis=1)
    off = off[squares <= _MOST_OF_MEDIAN * np.median(squares)]
    square = float((off**2).sum())
    together = float((off[:, 1:] * off[:, :-1]).sum()) / max(square, np.finfo(float).tiny)
    resembling = _CORRELATIONS if parts > 2 else _CORRELATIONS[:1]
    expected, variance = np.array([_of_correlation(each, parts) for each in resembling]).T
    variance_ratio = float(np.interp(together, expected, variance))
    return _T_975[parts - 2] * float(np.sqrt(square / len(off) * variance_ratio))


def _of_correlation(correlation: float, parts: int) -> tuple[float, float]:
    """Compute what a first-order autoregression predicts for parts less their own mean.

    Expected products of neighbours over squares; variance of the mean over the squares.
    """
    apart = np.abs(np.subtract.outer(np.arange(parts), np.arange(parts)))
    covariance = correlation**apart
    centred = np.eye(parts) - 1 / parts
    left = centred @ covariance @ centred
    squares = float(np.trace(left))
    return float(np.trace(left, offset=1)) / squares, float(covariance.mean()) / squares


def _upper_group(mean_mhz: Float64s, half_mhz: Float64s) -> Bools:
    """Whether each GPU is in the upper of two groups, (n,) bool; all are where there is one group.

    Groups have at least two GPUs, and a gap of more than 5 % between them after the intervals of
    the two GPUs next to it are taken off.
    """
    order = np.argsort(mean_mhz)
    ordered_mhz, widths_mhz = mean_mhz[order], np.nan_to_num(half_mhz[order])
    gaps_mhz = np.diff(ordered_mhz) - np.hypot(widths_mhz[1:], widths_mhz[:-1])
    inner = gaps_mhz[_LEAST_GROUP - 1 : 1 - _LEAST_GROUP]
    at = int(np.argmax(inner)) + _LEAST_GROUP - 1
    upper: Bools = np.ones(len(mean_mhz), bool)
    if gaps_mhz[at] > _GROUPS_APART_RATIO * ordered_mhz[at + 1 :].min():
        upper[order[: at + 1]] = False
    return upper

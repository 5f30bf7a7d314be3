"""Group traces into runs of a job by their ranks, process groups, times and step numbers.

torch draws a `trace_id` in each process; the same one in several files means that one capture
asked for them all.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopperd.model.run import ProcessGroup, RunIdentity
from chopperd.units import NS_PER_S

#: How many steps apart the ranks of a run may be at one instant: a pipeline is about one deep.
_MOST_STEPS_APART: Final = 1.0
#: Files of one job are no further apart than this; a profiler may write one every few hours.
_FAR_NS: Final = 12 * 3600 * NS_PER_S
#: Ranks do the same step within this, differences of their clocks included.
_SAME_STEP_NS: Final = 300 * NS_PER_S
#: In place of a distance in steps that is not known.
_UNKNOWN_DISTANCE: Final = _MOST_STEPS_APART


def runs_of(traces: Sequence[RunIdentity], *, is_told: bool, is_named: bool = True) -> list[int]:
    """Get for each trace the number of its run: the index of that run's first trace.

    Traces that contradict each other are never of one run (`are_apart`). Of the others those that
    fit best (the nearest step at one instant, then the nearest start) are joined first, so that
    two equal jobs at one time come apart as soon as a rank is there twice.

    `traces`: of one owner and job. `is_told`: whether the user declared them one job; else only
    what overlaps in time, directly or by others, is joined. `is_named`: whether the job has a name;
    without one, traces that do not know their rank are jobs of their own.

    Source: DESIGN.md section 2, "Steps", identity.
    """
    number = list(range(len(traces)))
    members = {index: [index] for index in number}
    apart = np.zeros((len(traces), len(traces)), bool)
    links = []
    for a, b in combinations(range(len(traces)), 2):
        one, other = traces[a], traces[b]
        apart[a, b] = apart[b, a] = are_apart(one, other)
        if not apart[a, b] and (is_told or _meet(one, other, is_named=is_named)):
            links.append((_distance(one, other), a, b))
    for _, a, b in sorted(links):
        first, second = sorted((number[a], number[b]))
        if first != second and not apart[np.ix_(members[first], members[second])].any():
            members[first] += members.pop(second)
            for index in members[first]:
                number[index] = first
    return number


def are_apart(one: RunIdentity, other: RunIdentity) -> bool:
    """Whether two traces of one job are of different runs of it by their identities."""
    if one.run or other.run:
        return one.run != other.run
    if one.trace_id is not None and one.trace_id == other.trace_id:
        return False
    return (
        _differ(one.world_size, other.world_size)
        or _differ(one.backend, other.backend)
        or _groups_differ(one, other)
        or is_rank_twice(one, other)
        or (_steps_apart(one, other) or 0.0) > _MOST_STEPS_APART
    )


def is_rank_twice(one: RunIdentity, other: RunIdentity) -> bool:
    """Whether two traces claim one rank for the same time or step; cycles of one process do not."""
    if one.rank is None or one.rank != other.rank:
        return False
    timed = None not in (one.begin_unix_ns, other.begin_unix_ns)
    numbered = bool(one.steps and other.steps)
    if _gap_ns(one, other) == 0 or not (timed or numbered):
        return True
    return _share_steps(one, other)


def why_unrelated(one: RunIdentity, other: RunIdentity) -> str | None:
    """Explain in words why two files are of different runs; None if nothing shows it.

    Stricter about dates than `are_apart`, as files named together may lie far apart, and milder
    about clocks, which may differ from host to host.
    """
    if one.run or other.run:
        same = one.run == other.run
        return None if same else f"its run is {one.run or 'unnamed'}, not {other.run or 'unnamed'}"
    if one.trace_id is not None and one.trace_id == other.trace_id:
        return None
    return next(_differences(one, other), None)


def _differences(one: RunIdentity, other: RunIdentity) -> Iterator[str]:
    if _differ(one.world_size, other.world_size):
        yield f"its world size is {one.world_size}, not {other.world_size}"
    if _differ(one.backend, other.backend):
        yield f"it communicates by {one.backend}, not {other.backend}"
    if _groups_differ(one, other):
        yield "its process groups have other ranks"
    gap_ns = _gap_ns(one, other) or 0
    if gap_ns > _FAR_NS:
        yield f"it was traced {gap_ns / (3600 * NS_PER_S):.0f} hours apart"
    if _share_steps(one, other) and gap_ns > _SAME_STEP_NS:
        yield f"it has the same steps {gap_ns / (60 * NS_PER_S):.0f} minutes apart"
    if is_rank_twice(one, other):
        yield f"both are rank {one.rank}"


def _gap_ns(one: RunIdentity, other: RunIdentity) -> int | None:
    """Return the ns between two traces, 0 where they overlap or touch; None if not known."""
    begins, ends = (one.begin_unix_ns, other.begin_unix_ns), (one.end_unix_ns, other.end_unix_ns)
    known = [(b, e) for b, e in zip(begins, ends, strict=True) if b is not None and e is not None]
    return max(max(b for b, _ in known) - min(e for _, e in known), 0) if len(known) == 2 else None


def _share_steps(one: RunIdentity, other: RunIdentity) -> bool:
    return bool(one.steps and other.steps) and (
        max(one.steps[0][0], other.steps[0][0]) < min(one.steps[-1][0], other.steps[-1][0])
    )


def is_rival(one: RunIdentity, other: RunIdentity) -> bool:
    """Whether two traces would be of one run if they did not claim the same rank."""
    return is_rank_twice(one, other) and not are_apart(one, replace(other, rank=None))


def _differ(one: object, other: object) -> bool:
    return one is not None and other is not None and one != other


def _groups_differ(one: RunIdentity, other: RunIdentity) -> bool:
    """Whether a group has other ranks in the other trace, or lacks there though its rank is in."""
    if one.groups is None or other.groups is None:
        return False
    return _contradicts(one.groups, other) or _contradicts(other.groups, one)


def _contradicts(groups: Sequence[ProcessGroup], other: RunIdentity) -> bool:
    known = {group.name: group for group in other.groups or ()}
    return any(
        group != known[group.name]
        if group.name in known
        else other.rank is not None and group.holds(other.rank)
        for group in groups
    )


def _meet(one: RunIdentity, other: RunIdentity, *, is_named: bool) -> bool:
    if one.trace_id is not None and one.trace_id == other.trace_id:
        return True
    if not is_named and None in (one.rank, other.rank) and not one.run:
        return False
    return _gap_ns(one, other) == 0 or one.begin_unix_ns is other.begin_unix_ns is None


def _distance(one: RunIdentity, other: RunIdentity) -> tuple[float, int]:
    """Return how far apart two traces are at one instant, in steps, and their starts, in ns.

    Both are 0 for traces of one named run or one `trace_id`.
    """
    if one.run or (one.trace_id is not None and one.trace_id == other.trace_id):
        return 0.0, 0
    steps = _steps_apart(one, other)
    starts_ns = abs((one.begin_unix_ns or 0) - (other.begin_unix_ns or 0))
    return _UNKNOWN_DISTANCE if steps is None else steps, starts_ns


def _steps_apart(one: RunIdentity, other: RunIdentity) -> float | None:
    """Return by how many steps two traces of a host differ at one instant; None if not known."""
    if not (one.steps and other.steps) or _differ(one.host_name, other.host_name):
        return None
    begin_ns = max(one.steps[0][1], other.steps[0][1])
    end_ns = min(one.steps[-1][1], other.steps[-1][1])
    if end_ns <= begin_ns:
        return None
    middle_ns = (begin_ns + end_ns) // 2
    return abs(_step_at(one, middle_ns) - _step_at(other, middle_ns))


def _step_at(trace: RunIdentity, t_unix_ns: int) -> float:
    origin_ns = trace.steps[0][1]
    starts_ns = [start_ns - origin_ns for _, start_ns in trace.steps]
    return float(np.interp(t_unix_ns - origin_ns, starts_ns, [step for step, _ in trace.steps]))

"""Group trace files by run and process; find contradictions and GPUs claimed twice."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from itertools import combinations
from statistics import median_low
from typing import Final

from msgspec.structs import replace

from chopperd.correlate.identity.by_signal import Agreement, assigned
from chopperd.correlate.identity.mapping import UNCERTAIN_RULES
from chopperd.correlate.identity.runs import runs_of, why_unrelated
from chopperd.model.run import RunIdentity
from chopperd.model.timeline import StepSource
from chopperd.report.build.clocked_device import BY_SIGNAL
from chopperd.report.build.trace_report import TraceReport
from chopperd.units import NS_PER_S

#: Sources of steps whose numbers are the job's; of others each file counts its own.
_NUMBERED_BY_JOB: Final = frozenset({StepSource.PROFILER_STEP.value, StepSource.JOB_MARKS.value})
#: Steps by which a trace is compared with those of other ranks.
_MOST_STEPS: Final = 32


def processes(reports: Sequence[TraceReport]) -> list[int]:
    """Return for each trace the number of its process: the index of that process's first trace.

    A profiler writes a file each cycle: files of one rank whose steps or times lie apart are of
    one process. Files with the same step or time are not, even if they claim the same rank.
    """
    members: dict[int, list[TraceReport]] = {}
    numbers = []
    for index, report in enumerate(reports):
        own = (first for first, those in members.items() if all(_goes_on(report, o) for o in those))
        numbers.append(next(own, index))
        members.setdefault(numbers[-1], []).append(report)
    return numbers


def rank_conflicts(reports: Sequence[TraceReport]) -> list[tuple[int, int]]:
    """Return pairs of traces of one job that claim one rank and can't be of one process."""
    number = processes(reports)
    return [
        (a, b)
        for a, b in combinations(range(len(reports)), 2)
        if reports[a].trace.rank is not None
        and _identity(reports[a]) == _identity(reports[b])
        and number[a] != number[b]
    ]


def guessed_twice(reports: Sequence[TraceReport]) -> list[int]:
    """Return indices of traces with a GPU from an uncertain rule that another used at that time."""
    found = {
        index
        for a, b in combinations(range(len(reports)), 2)
        if _overlap(reports[a], reports[b]) and not _of_one_process(reports[a], reports[b])
        for index, other in ((a, b), (b, a))
        if guessed_gpus(reports[index]) & _claimed(reports[other])
    }
    return sorted(found)


def _of_one_process(a: TraceReport, b: TraceReport) -> bool:
    """Whether two traces were written by one process, which may have one GPU in both."""
    pids = {device.pid for device in (*a.devices, *b.devices)}
    has_rank = a.trace.rank is not None and a.trace.rank == b.trace.rank
    return has_rank and len(pids) == 1 and None not in pids


def given_twice(reports: Sequence[TraceReport]) -> tuple[str, list[int]] | None:
    """Return a GPU that a user's map gives to traces of the same time, and their indices."""
    given = [_gpus_by(report, {"device_map"}) for report in reports]
    for a, b in combinations(range(len(reports)), 2):
        if _of_one_process(reports[a], reports[b]):
            continue
        if given[a] & given[b] and _overlap(reports[a], reports[b]):
            gpu = min(given[a] & given[b])
            return gpu, [index for index, gpus in enumerate(given) if gpu in gpus]
    return None


def guessed_gpus(report: TraceReport) -> set[str]:
    """Return the labels of a trace's GPUs that an uncertain rule found."""
    return _gpus_by(report, UNCERTAIN_RULES)


def _gpus_by(report: TraceReport, rules: Collection[str]) -> set[str]:
    return {d.gpu for d in report.devices if d.gpu is not None and d.mapping in rules}


def unconfirmed(
    reports: Sequence[TraceReport], fits: Sequence[Mapping[int, Agreement]]
) -> list[int]:
    """Return indices of traces with a GPU found by samples that concurrent traces don't confirm.

    `fits`: for each, the devices that may be mapped by samples.
    """
    left = {index for index, each in enumerate(fits) if each}
    wrong: list[int] = []
    while left:
        found = [left.pop()]
        those = list(found)
        while found:
            near = [reports[i] for i in those]
            found = [each for each in left if any(_overlap(reports[each], one) for one in near)]
            those += found
            left -= set(found)
        wrong += _unconfirmed_of(sorted(those), reports, fits)
    return sorted(wrong)


def _unconfirmed_of(
    those: Sequence[int], reports: Sequence[TraceReport], fits: Sequence[Mapping[int, Agreement]]
) -> list[int]:
    """Return the unconfirmed traces of a set that overlap, directly or by others."""
    taken = {
        gpu
        for index, report in enumerate(reports)
        if any(index == each or _overlap(report, reports[each]) for each in those)
        for gpu in _claimed(report) - _gpus_by(report, {BY_SIGNAL})
    }
    rows = [(index, device) for index in those for device in fits[index]]
    found = assigned([fits[index][device] for index, device in rows], taken)
    gpus = dict(zip(rows, found, strict=True))
    return [
        index
        for index in those
        if any(
            each.mapping == BY_SIGNAL and gpus.get((index, each.device)) != each.gpu
            for each in reports[index].devices
        )
    ]


def span_ns(report: TraceReport) -> tuple[int, int] | None:
    """Return start and end of a trace's device records, else host steps, Unix ns; else None."""
    spans = [
        (row.start_unix_ns, row.start_unix_ns + (row.window_ns or 0))
        for row in (each.row for each in report.totals)
        if row.start_unix_ns is not None
    ] or [
        (row.marker_start_unix_ns, row.marker_start_unix_ns + (row.marker_ns or 0))
        for row in report.host_steps
        if row.marker_start_unix_ns is not None and not report.totals
    ]
    return (min(s for s, _ in spans), max(e for _, e in spans)) if spans else None


def identity(report: TraceReport) -> RunIdentity:
    """Return the identity of a trace's run, with times and the job's own steps from its rows."""
    span = span_ns(report) or (None, None)
    return replace(
        report.said, begin_unix_ns=span[0], end_unix_ns=span[1], steps=_numbered_steps(report)
    )


def clocks_apart_ns(reports: Sequence[TraceReport]) -> dict[int, int]:
    """Return how far the clock of a trace's host is from the other ranks', in ns, by index.

    Ranks of a run begin a step within about one step of each other. Where a trace's steps begin
    later than those of the others by more than that, and than 1 s, its clock differs.
    """
    runs: defaultdict[tuple[str | None, str | None], dict[int, dict[int, int]]] = defaultdict(dict)
    for index, report in enumerate(reports):
        starts = dict(identity(report).steps)
        if starts:
            runs[report.trace.job, report.trace.run][index] = starts
    apart: dict[int, int] = {}
    for starts_of in runs.values():
        limit_ns = max(NS_PER_S, *(_step_ns(starts) for starts in starts_of.values()))
        for index, starts in starts_of.items():
            offset_ns = _offset_ns(starts, starts_of.values())
            if abs(offset_ns) > limit_ns:
                apart[index] = offset_ns
    return apart


def _step_ns(starts: Mapping[int, int]) -> int:
    (first, begin_ns), (last, end_ns) = min(starts.items()), max(starts.items())
    return (end_ns - begin_ns) // max(last - first, 1)


def _offset_ns(starts: Mapping[int, int], every: Collection[Mapping[int, int]]) -> int:
    """Return by how much steps begin after the median rank's, in ns: the median over steps."""
    return median_low(
        start_ns - median_low([each[step] for each in every if step in each])
        for step, start_ns in starts.items()
    )


def unrelated(reports: Sequence[TraceReport]) -> str | None:
    """Return a message on the file that is not of the same job as most others; None if all are."""
    identities = [identity(report) for report in reports]
    groups: list[list[int]] = []
    for index, one in enumerate(identities):
        for those in groups:
            if all(why_unrelated(one, identities[other]) is None for other in those):
                those.append(index)
                break
        else:
            groups.append([index])
    if len(groups) < 2:
        return None
    most = max(groups, key=len)
    odd = next(index for those in groups if those is not most for index in those)
    first, why = next(
        (other, why) for other in most if (why := why_unrelated(identities[odd], identities[other]))
    )
    more = len(reports) - len(most) - 1
    others = f" (nor are {more} more)" if more else ""
    odd_path, path = reports[odd].trace.path, reports[first].trace.path
    return f"{odd_path} is not of the same job as {path}: {why}{others}"


def of_runs(reports: Sequence[TraceReport], name: str | None) -> list[TraceReport]:
    """Return the reports with their run's name set; several runs get numbers for names."""
    number = [0] * len(reports)
    if unrelated(reports) is not None:
        number = runs_of([identity(report) for report in reports], is_told=True)
    runs = sorted(set(number))
    names = {run: name if len(runs) == 1 else str(nth) for nth, run in enumerate(runs, 1)}
    each_run = zip(reports, number, strict=True)
    return [_of_run(report, report.said.run or names[run]) for report, run in each_run]


def _of_run(report: TraceReport, run: str | None) -> TraceReport:
    if report.trace.run == run:
        return report
    return replace(
        report,
        trace=replace(report.trace, run=run),
        steps=tuple(replace(each, row=replace(each.row, run=run)) for each in report.steps),
        totals=tuple(replace(each, row=replace(each.row, run=run)) for each in report.totals),
        host_steps=tuple(replace(each, run=run) for each in report.host_steps),
        host=report.host and replace(report.host, run=run),
    )


def _numbered_steps(report: TraceReport) -> tuple[tuple[int, int], ...]:
    rows = [each.row for each in report.steps] or list(report.host_steps)
    starts: dict[int, int] = {}
    end_ns = 0
    for row in rows:
        start_ns = row.marker_start_unix_ns if row.start_unix_ns is None else row.start_unix_ns
        if row.step is None or start_ns is None or row.step_source not in _NUMBERED_BY_JOB:
            continue
        starts[row.step] = min(start_ns, starts.get(row.step, start_ns))
        length_ns = row.marker_ns if row.window_ns is None else row.window_ns
        end_ns = max(end_ns, start_ns + (length_ns or 0))
    if not starts:
        return ()
    ordered = sorted(starts.items())
    thinned = ordered[:: -(-len(ordered) // _MOST_STEPS)]
    return (*thinned, (ordered[-1][0] + 1, max(end_ns, ordered[-1][1] + 1)))


def _identity(report: TraceReport) -> tuple[str | None, int | None]:
    return report.trace.job, report.trace.rank


def _goes_on(a: TraceReport, b: TraceReport) -> bool:
    """Whether two traces of one rank are known to cover different steps and times."""
    steps_a, steps_b = _steps(a), _steps(b)
    if _identity(a) != _identity(b) or steps_a & steps_b or _overlap(a, b):
        return False
    return bool(steps_a and steps_b) or (span_ns(a) is not None and span_ns(b) is not None)


def _steps(report: TraceReport) -> set[int | None]:
    return {row.step for row in (*(each.row for each in report.steps), *report.host_steps)}


def first_step(report: TraceReport) -> int | None:
    """Return the lowest number of a trace's steps; None if it has none."""
    return min((step for step in _steps(report) if step is not None), default=None)


def _overlap(a: TraceReport, b: TraceReport) -> bool:
    span_a, span_b = span_ns(a), span_ns(b)
    if span_a is None or span_b is None:
        return False
    return span_a[0] < span_b[1] and span_b[0] < span_a[1]


def _claimed(report: TraceReport) -> set[str]:
    return {device.gpu for device in report.devices if device.gpu is not None}

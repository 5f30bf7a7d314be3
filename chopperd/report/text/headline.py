"""Make the first lines of a report: the largest cost, what comes next, and what to do about it.

Costs are those that somebody can act on; the clock's ceiling loss, mostly physics, is none.
"""

from collections import Counter
from typing import Final

from msgspec import Struct

from chopperd.model.report import HostTime, ReportDocument, Summary
from chopperd.model.report_rows import UNKNOWN_PART
from chopperd.report.text import wording as fmt
from chopperd.report.text.costs import UNKNOWN_ROWS, Cost, costs, of_step
from chopperd.report.text.trust import clock, foreign_samples, trust
from chopperd.report.text.wording import known

#: Shares of the step from which a cost is large, and very large; below the first nothing is.
_LARGE: Final = 0.05
_VERY_LARGE: Final = 0.2
#: The first of these for whole files, which also hold what comes before and after steps.
_LARGE_OF_FILE: Final = 0.1
#: The share from which a further cost is mentioned, and the most that are.
_NEXT_RATIO: Final = 0.01
_NEXT: Final = 3
_YELLOW, _RED, _GREEN = "bold yellow", "bold red", "bold green"
_NO_COMPUTE: Final = frozenset({"comm", "memcpy", "memset"})
_OTHER: Final = "other"  # the class of kernels that no pattern knows: says nothing
_COMPUTE: Final = ("compute_at_ref", "dvfs_loss", "compute_unsampled")


class HeadlineRow(Struct, frozen=True, kw_only=True):
    """One line of the first screen: its label, the clauses, what separates them, and its style."""

    label: str
    clauses: tuple[str, ...]
    separator: str = ", "
    style: str = ""


def headline(document: ReportDocument) -> tuple[HeadlineRow, ...]:
    """Return the rows of the first screen: the largest cost, THEN, DO, CLOCK and TRUST."""
    first, then, do = _answer(document)
    lines = (
        first,
        HeadlineRow(label="THEN", clauses=then, separator=" · "),
        HeadlineRow(label="DO", clauses=do, separator="; "),
        HeadlineRow(label="CLOCK", clauses=_filled(clock(document)), separator="; "),
        HeadlineRow(label="TRUST", clauses=_filled(trust(document))),
    )
    return tuple(line for line in lines if line.clauses)


def _filled(clauses: list[str]) -> tuple[str, ...]:
    return tuple(filter(None, clauses))


def _answer(document: ReportDocument) -> tuple[HeadlineRow, tuple[str, ...], tuple[str, ...]]:
    summary = document.summary
    if summary is None or not summary.step_ns:
        return _of_host(document)
    found = costs(document, summary)
    least_ns = _least_ratio(summary) * summary.step_ns
    largest = next((c for c in found if c.named or c.time_ns >= least_ns), None)
    if largest is None:
        first = _unknown_time(summary) or _nothing_large(document, summary)
    else:
        ratio = largest.time_ns / summary.step_ns
        amount = largest.of_all or _amount(summary, largest.time_ns)
        style = _RED if largest.named or ratio >= _VERY_LARGE else _YELLOW
        clauses = (amount, *largest.details)
        first = HeadlineRow(label=largest.label, clauses=clauses, style=style)
    return (
        first,
        _then(document, summary, [c for c in found if c is not largest], first),
        _do(document, summary, largest),
    )


def _amount(summary: Summary, time_ns: float) -> str:
    share = fmt.percent(time_ns / (summary.step_ns or 1.0))
    return f"{fmt.short_ms(time_ns)} {of_step(summary)} ({share} %)"


def _least_ratio(summary: Summary) -> float:
    return _LARGE_OF_FILE if summary.basis == "totals" else _LARGE


def _unknown_time(summary: Summary) -> HeadlineRow | None:
    """Return the first line where only time that nobody can act on yet is large; else None."""
    step_ns = summary.step_ns or 1.0
    key = max(UNKNOWN_ROWS, key=lambda row: summary.waterfall_ns.get(row) or 0.0)
    time_ns = summary.waterfall_ns.get(key) or 0.0
    if time_ns < _least_ratio(summary) * step_ns:
        return None
    clauses = (_amount(summary, time_ns), UNKNOWN_ROWS[key])
    return HeadlineRow(label="TIME UNEXPLAINED", clauses=clauses, style=_YELLOW)


def _nothing_large(document: ReportDocument, summary: Summary) -> HeadlineRow:
    compute_ns = sum(summary.waterfall_ns.get(name) or 0.0 for name in _COMPUTE)
    clauses = _filled([f"compute takes {_amount(summary, compute_ns)}", _largest_class(document)])
    return HeadlineRow(label="NOTHING LARGE", clauses=clauses, style=_GREEN)


def _largest_class(document: ReportDocument) -> str:
    rows = [row for row in document.totals if row.classes and row.is_critical] or document.totals
    sums: Counter[str] = Counter()
    for each in (each for row in rows for each in row.classes if each.class_ not in _NO_COMPUTE):
        sums[each.class_] += each.total_ns
    for name, largest_ns in sums.most_common(1):
        if largest_ns and name != _OTHER:
            share = fmt.percent(largest_ns / sums.total(), 0)
            return f"{share} % of it in {fmt.words(name)} kernels"
    return ""


def _then(
    document: ReportDocument, summary: Summary, further: list[Cost], first: HeadlineRow
) -> tuple[str, ...]:
    step_ns = summary.step_ns or 1.0
    others = [
        f"{name} {fmt.short_ms(time_ns)} ms"
        for key, name in UNKNOWN_ROWS.items()
        if name not in first.clauses
        and (time_ns := summary.waterfall_ns.get(key) or 0.0) >= _NEXT_RATIO * step_ns
    ]
    next_ones = [c.brief for c in further if c.named or c.time_ns >= _NEXT_RATIO * step_ns]
    found = [*next_ones[:_NEXT], *others] or ["nothing else takes 1 % of it"]
    return _filled([*found, _no_gpu_stands_out(document, summary)])


def _no_gpu_stands_out(document: ReportDocument, summary: Summary) -> str:
    compared = [line for line in summary.gpus if known(line.excess_ns_per_step)]
    if len(compared) < 2 or any(line.stands_out for line in compared) or foreign_samples(document):
        return ""
    if all(line.stands_out is None for line in compared):
        return "no GPU can be singled out: the intervals of their clocks are unknown"
    return f"no GPU stands out among {len(compared)}"


def _do(document: ReportDocument, summary: Summary, largest: Cost | None) -> tuple[str, ...]:
    if not document.findings and largest is not None and largest.named:
        return ("look at it: chopperd devices gives its limits, power and temperatures",)
    if not document.findings and largest is None and _unknown_time(summary) is not None:
        return ("see the NOTES below for what the file lacks",)
    if not document.findings:
        by = "family" if largest is None else "operation"
        of = "the kernels themselves are what is left" if largest is None else "find what it is"
        return (f"{of}: the same command with --by {by}",)
    first = document.findings[0]
    bound = f", at most {fmt.brief_ms(first.bound_ns)} ms" if known(first.bound_ns) else ""
    return (f"{first.action} ({first.code}{bound})", f"check: {first.command}")


# Traces without work of a GPU.


def _of_host(document: ReportDocument) -> tuple[HeadlineRow, tuple[str, ...], tuple[str, ...]]:
    rows = [row for row in document.steps if row.marker_ns is not None and not row.partial]
    markers_ns = [row.marker_ns for row in rows if row.marker_ns is not None]
    steps = ""
    if markers_ns:
        mean = fmt.short_ms(sum(markers_ns) / len(markers_ns))
        count = len({(row.job, row.run, row.step) for row in rows})
        steps = f"{fmt.plural(count, 'step')} of {mean} ms"
    most = _most_host_time(document.host, "by_operation")
    clauses = _filled([steps, f"most in {most}" if most else ""])
    phases = _most_host_time(document.host, "by_phase")
    return (
        HeadlineRow(
            label="HOST TIME ONLY",
            clauses=clauses or ("the trace has no work of a GPU",),
            style=_YELLOW,
        ),
        (f"by phase: {phases}",) if phases else (),
        (
            "if the job uses a GPU, profile that too (ProfilerActivity.CUDA); "
            "else the same command with --by operation, layer or phase",
        ),
    )


def _most_host_time(host: tuple[HostTime, ...], field: str) -> str:
    sums: Counter[str] = Counter()
    for part in (part for each in host for part in getattr(each, field)):
        sums[part.name] += part.host_ns
    all_ns = sums.total()
    del sums[UNKNOWN_PART]
    largest = sums.most_common(_NEXT)
    return ", ".join(
        f"{fmt.holder_name(name)} ({fmt.percent(ns / all_ns, 0)} %)" for name, ns in largest if ns
    )

"""Findings: what cost most, what to do about it, and how to verify it; a closed catalogue.

Here are those on ranks and on the measurement, and the order of all. A finding that is wrong is
worse than none.

Source: DESIGN.md section 6, "Findings".
"""

from collections.abc import Iterator
from shlex import quote
from typing import Final

from chopperd.model.answers import Finding, RankLine
from chopperd.model.report import ReportDocument
from chopperd.model.report_rows import Row
from chopperd.report.build.summary import is_complete
from chopperd.report.findings.clocks import clock_findings
from chopperd.report.findings.hosts import host_findings
from chopperd.report.findings.run import Run
from chopperd.report.findings.traffic import traffic_findings
from chopperd.report.text.wording import brief_ms, percent, plural

#: A report has so many findings at most, those with the largest bounds.
MOST_FINDINGS: Final = 5
#: Less lateness than this share of a step is no straggler's.
LATE_RATIO: Final = 0.01
#: Less of compute with a clock leaves losses, which cover only that, too low to compare.
COVERAGE_RATIO: Final = 0.8
#: Steps under the profiler that are longer by more than this are not those of the job.
PROFILED_RATIO: Final = 1.05

_CAUSE_ACTIONS: Final = {
    "dvfs_loss": "look at the clock of {who}: power, temperature and limits",
    "idle_data": "look at the data of {who}: its workers, its files and the length of its samples",
    "idle_launch_prep": "look at the host of {who}: its CPU cores, other processes, gc and logging",
}


def findings_of(document: ReportDocument, *, in_agent: bool = False) -> tuple[Finding, ...]:
    """Return the findings of a document with all its steps, those with the largest bound first.

    `in_agent`: its traces are the agent's, so that commands name its job instead of files.
    """
    found = clock_findings(document)
    summary = document.summary
    if summary is not None and summary.step_ns and (rows := _rows(document)):
        run = Run(
            document=document,
            summary=summary,
            step_ns=summary.step_ns,
            rows=rows,
            report=_report_command(document, rows[0], in_agent=in_agent),
        )
        named = {finding.gpu for finding in found if finding.basis == "peers"}
        found += [
            *host_findings(run),
            *traffic_findings(run),
            *_stragglers(run, named),
            *_quality(run),
        ]
    found.sort(key=lambda finding: -(finding.bound_ns or 0))
    return tuple(found[:MOST_FINDINGS])


def _rows(document: ReportDocument) -> list[Row]:
    """Return the rows of the critical device that the summary's means are over."""
    used = [row for row in document.steps if row.is_critical and is_complete(row)]
    used = [row for row in used if row.dvfs.lost_ns is not None] or used
    return used or [row for row in document.totals if row.is_critical]


def _report_command(document: ReportDocument, row: Row, *, in_agent: bool) -> str:
    if in_agent:
        job = document.trace.job
        return "chopperd report" if job is None else f"chopperd report --job {quote(job)}"
    own = [each for each in document.traces if each.rank == row.rank]
    return f"chopperd report {quote((own or [document.trace])[0].path)}"


# Ranks, where several of a job were traced.


def _stragglers(run: Run, named: set[str | None]) -> list[Finding]:
    ranks = run.document.ranks
    lines = () if ranks is None else ranks.lines
    return [
        _straggler(run, line)
        for line in lines
        if not (line.cause == "dvfs_loss" and line.gpu is not None and line.gpu in named)
        and run.is_worth(_late_ns(line), LATE_RATIO)
    ]


def _late_ns(line: RankLine) -> float:
    """Return what a rank's lateness can cost a step of the job, on average over the steps."""
    if line.verdict == "straggler":
        return line.late_ns or 0.0
    is_known = line.verdict == "pauses" and line.pause_ns is not None and line.steps
    return (line.pause_ns or 0) / line.steps if is_known else 0.0


def _straggler(run: Run, line: RankLine) -> Finding:
    who = f"device {line.device}" if line.rank is None else f"rank {line.rank}"
    often = f"in {line.late_steps} of {plural(line.steps, 'step')}"
    cause = "" if line.cause is None else f"most of it in {line.cause.replace('_', ' ')}"
    if line.cause is not None and line.cause_ns is not None:
        cause += f": {brief_ms(line.cause_ns)} ms more than the median rank"
    waited = line.wait_caused_ns
    evidence = (
        f"{brief_ms(_late_ns(line))} ms a step later than the median rank, late {often}",
        f"the others wait {brief_ms(waited)} ms a step for it, in sum" if waited else "",
        cause,
    )
    action = _CAUSE_ACTIONS.get(line.cause or "", "compare the work of {who} with another rank's")
    is_slow = line.verdict == "straggler"
    return Finding(
        code="rank.straggler",
        title=f"the job waits for {who}" if is_slow else f"{who} pauses, and the job waits",
        evidence=tuple(filter(None, evidence)),
        bound_ns=round(_late_ns(line)),
        basis="peers",
        gpu=line.gpu,
        rank=line.rank,
        action=action.format(who=who),
        command=run.report,
    )


# The measurement itself.


def _quality(run: Run) -> Iterator[Finding]:
    coverage, kept_hz = run.summary.coverage_ratio, run.document.sampling.kept_hz
    ratio = run.document.profiler.profiled_step_ratio
    if coverage is not None and coverage < COVERAGE_RATIO:
        kept = "" if kept_hz is None else f", {kept_hz:.3g} Hz kept"
        yield _of_measurement(
            "quality.low_coverage",
            "much of compute has no clock sample near it",
            f"{percent(coverage, 0)} % of compute covered{kept}",
            "sample at 100 Hz, from before the trace begins until it has ended",
            "chopperd doctor",
        )
    if ratio is not None and ratio > PROFILED_RATIO:
        yield _of_measurement(
            "quality.profiler_overhead",
            "profiled steps are longer than the job's own",
            f"{percent(ratio - 1)} % longer than the steps around them",
            "profile without with_stack, record_shapes and profile_memory",
            "chopperd explain profiler",
        )


def _of_measurement(code: str, title: str, evidence: str, action: str, command: str) -> Finding:
    return Finding(
        code=code,
        title=title,
        evidence=(evidence,),
        bound_ns=None,
        basis="none",
        gpu=None,
        rank=None,
        action=action,
        command=command,
    )

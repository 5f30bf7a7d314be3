"""Findings: what a report says should be done, from a closed catalogue of rules.

A finding has evidence, an upper bound on what its action saves, and a command that verifies it. One
that is wrong is worse than none: a GPU is accused only where it `stands_out` from its peers.
Source: DESIGN.md section 6, "Findings".
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from shlex import quote
from statistics import median
from typing import Final

from chopperd.model.answers import Finding
from chopperd.model.kinds import Cause
from chopperd.model.report import GpuLine, ReportDocument, Summary
from chopperd.units import NS_PER_MS

#: Most findings in a report, those with the largest bounds.
MOST_FINDINGS: Final = 5
#: A cause answers for a GPU's loss where it has at least this share of it.
_MAIN_SHARE: Final = 0.5
#: A GPU is hot where it is so much hotter than the median of the others: sensors and places in the
#: airflow make healthy ones differ by less.
_HOT_C: Final = 8.0
#: Below this share of compute with a clock, the loss may be far from what is shown.
_LOW_COVERAGE: Final = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One code of the catalogue, as `chopperd explain` shows it."""

    code: str
    title: str
    meaning: str
    fires: str
    action: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _RowRule:
    """A rule on one row of the waterfall: it fires from `least_share` of the step on."""

    rule: Rule
    row: str
    least_share: float


_ROW_RULES: Final = (
    _RowRule(
        rule=Rule(
            code="data.wait",
            title="the GPU waits for data",
            meaning="The thread that launches next waits for its data loader while the GPU idles.",
            fires="at 3 % of the step or more",
            action="give the loader more workers (num_workers, prefetch_factor, pin_memory), or do "
            "its work beforehand",
        ),
        row="idle_data",
        least_share=0.03,
    ),
    _RowRule(
        rule=Rule(
            code="launch.bound",
            title="the GPU idles while the host is not ready to launch",
            meaning="The GPU is done before the host has launched what comes next: it prepares "
            "launches, or does something else (a CPU optimizer, logging, a checkpoint).",
            fires="at 10 % of the step or more",
            action="see what the host does meanwhile (profile with with_stack=True); if it is "
            "launches: torch.compile, CUDA graphs, fused optimizers",
        ),
        row="idle_launch_prep",
        least_share=0.1,
    ),
    _RowRule(
        rule=Rule(
            code="host.sync",
            title="the host waits in a synchronise call while the GPU idles",
            meaning="The host is still in a synchronise call (.item(), .cpu(), a blocking copy) "
            "when the GPU has nothing left to do.",
            fires="at 3 % of the step or more",
            action="read results less often, and copy with non_blocking=True from pinned memory",
        ),
        row="idle_sync",
        least_share=0.03,
    ),
    _RowRule(
        rule=Rule(
            code="comm.exposed",
            title="communication without compute beside it",
            meaning="The GPU runs collectives and computes nothing meanwhile. The time holds waits "
            "for other ranks: a faster network gives back the transfers only.",
            fires="at 5 % of the step or more",
            action="compare the ranks first (give the traces of all to one report), then overlap: "
            "bucket sizes, prefetching of FSDP, fewer and larger collectives",
        ),
        row="exposed_comm",
        least_share=0.05,
    ),
    _RowRule(
        rule=Rule(
            code="copy.exposed",
            title="copies without compute beside them",
            meaning="The GPU copies or fills memory and does nothing else meanwhile.",
            fires="at 3 % of the step or more",
            action="copy from pinned memory with non_blocking=True on a stream of its own; "
            "prefetch what is offloaded",
        ),
        row="exposed_copy",
        least_share=0.03,
    ),
)

_HOT: Final = Rule(
    code="cooling.hot_gpu",
    title="a GPU is slowed by heat and hotter than its peers",
    meaning="Its clock is below its peers' beyond sampling error and natural spread, its loss is "
    "mostly by thermal limits, and it is hotter than they are.",
    fires="where a GPU stands out, heat has half of its loss or more, and it is 8 C above the "
    "median of the others",
    action="look at this GPU's cooling: airflow, fan, heat sink, its place in the chassis",
)
_BRAKED: Final = Rule(
    code="hw.slowdown_or_brake",
    title="a GPU's hardware slows it",
    meaning="Its clock is below its peers', and a hardware protection (slowdown, power brake) has "
    "most of its loss.",
    fires="where a GPU stands out and these causes have half of its loss or more",
    action="check power supplies and cables, the brake signal of the chassis, and the GPU's errors",
)
_UNEXPLAINED: Final = Rule(
    code="clock.unexplained_low",
    title="a GPU's clock is low and its driver gives no reason",
    meaning="Its clock is below its peers', and for most of its loss no limit is reported.",
    fires="where a GPU stands out and half of its loss or more is unexplained",
    action="look for a locked clock and other settings, then swap the GPU with a peer to see "
    "whether it stays slow",
)
_COVERAGE: Final = Rule(
    code="quality.low_coverage",
    title="much of compute has no clock sample",
    meaning="Losses and clocks are of the sampled part only.",
    fires="below 80 % of compute",
    action="sample for the whole run (chopperd record -- CMD), or at a higher rate (--hz)",
)
_BY_CAUSE: Final = (
    (_HOT, frozenset({Cause.THERMAL.label, Cause.HW_THERMAL.label})),
    (_BRAKED, frozenset({Cause.HW_SLOWDOWN.label, Cause.POWER_BRAKE.label})),
    (_UNEXPLAINED, frozenset({Cause.UNEXPLAINED.label})),
)
#: The catalogue, by code.
RULES: Final = {
    rule.code: rule
    for rule in (*(each.rule for each in _ROW_RULES), *(rule for rule, _ in _BY_CAUSE), _COVERAGE)
}


def findings_of(document: ReportDocument) -> tuple[Finding, ...]:
    """Return what should be done, at most `MOST_FINDINGS`: the largest bound first, unknown last.

    By `document.summary`, whose times are means per step of the critical device.
    """
    summary = document.summary
    if summary is None or not summary.step_ns:
        return ()
    found = [*_of_rows(document, summary), *_of_gpus(document, summary), *_of_samples(summary)]
    found.sort(key=lambda each: -(each.bound_ns or 0))
    return tuple(found[:MOST_FINDINGS])


def _of_rows(document: ReportDocument, summary: Summary) -> Iterator[Finding]:
    step_ns = summary.step_ns or 0.0
    for each in _ROW_RULES:
        time_ns = summary.waterfall_ns.get(each.row) or 0.0
        if time_ns < each.least_share * step_ns:
            continue
        of_what = "of the traced time" if summary.basis == "totals" else "of each step"
        share = f"{time_ns / NS_PER_MS:.1f} ms {of_what}, {time_ns / step_ns:.1%}"
        yield _finding(each.rule, [share], int(time_ns), "row", document)


def _of_gpus(document: ReportDocument, summary: Summary) -> Iterator[Finding]:
    for line in summary.gpus:
        if not line.stands_out or line.gpu is None or line.excess_ns_per_step is None:
            continue
        shares = _cause_shares(document, line)
        for rule, causes in _BY_CAUSE:
            share = sum(shares.get(cause, 0.0) for cause in causes)
            hotter_c = _hotter_c(line, summary.gpus)
            if share < _MAIN_SHARE or (rule is _HOT and (hotter_c is None or hotter_c < _HOT_C)):
                continue
            evidence = [_slower(line), f"{share:.0%} of its loss by {' and '.join(sorted(causes))}"]
            if rule is _HOT and hotter_c is not None:
                evidence.append(f"{hotter_c:.0f} C hotter than the median of the others")
            yield _finding(rule, evidence, int(line.excess_ns_per_step), "peers", document, line)


def _cause_shares(document: ReportDocument, line: GpuLine) -> dict[str, float]:
    """Return each cause's share of the GPU's clock loss over its traces; empty without any."""
    sums: dict[str, int] = {}
    for row in document.totals:
        if row.gpu == line.gpu and row.rank == line.rank:
            for cause, lost_ns in (row.dvfs.by_cause_ns or {}).items():
                sums[cause] = sums.get(cause, 0) + lost_ns
    total_ns = sum(sums.values())
    return {cause: lost_ns / total_ns for cause, lost_ns in sums.items()} if total_ns else {}


def _hotter_c(line: GpuLine, lines: Sequence[GpuLine]) -> float | None:
    """Return by how much a GPU is hotter than the median of the others; None if unknown."""
    others = [
        each.temperature_mean_c
        for each in lines
        if each is not line and each.temperature_mean_c is not None
    ]
    if line.temperature_mean_c is None or not others:
        return None
    return line.temperature_mean_c - median(others)


def _slower(line: GpuLine) -> str:
    if line.mean_mhz is None or line.peers_median_mhz is None:
        return "its clock is below its peers'"
    below_mhz = line.peers_median_mhz - line.mean_mhz
    return f"GPU {line.gpu} runs {below_mhz:.0f} MHz below its peers' {line.peers_median_mhz:.0f}"


def _of_samples(summary: Summary) -> Iterator[Finding]:
    covered = summary.coverage_ratio
    if covered and covered < _LOW_COVERAGE:
        yield Finding(
            code=_COVERAGE.code,
            title=_COVERAGE.title,
            evidence=(f"{covered:.0%} of compute has a clock",),
            bound_ns=None,
            basis="none",
            gpu=None,
            rank=None,
            action=_COVERAGE.action,
            command=f"chopperd explain {_COVERAGE.code}",
        )


def _finding(
    rule: Rule,
    evidence: Sequence[str],
    bound_ns: int,
    basis: str,
    document: ReportDocument,
    line: GpuLine | None = None,
) -> Finding:
    paths = " ".join(quote(trace.path) for trace in document.traces)
    return Finding(
        code=rule.code,
        title=rule.title,
        evidence=tuple(evidence),
        bound_ns=bound_ns,
        basis="peers" if basis == "peers" else "row",
        gpu=None if line is None else line.gpu,
        rank=None if line is None else line.rank,
        action=rule.action,
        command=f"chopperd report {paths}" if len(paths) <= 80 else f"chopperd explain {rule.code}",
    )

"""Make the report document: the traces of one job, compared with each other and summarised."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final, Literal, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from chopperd.correlate.ranks.comparing import MIN_PEERS
from chopperd.errors import StepNotFoundError
from chopperd.model.report import (
    SCHEMA,
    Alignment,
    DeviceSummary,
    FrameworkSummary,
    Generated,
    Note,
    Profiler,
    Reference,
    ReportDocument,
    Sampling,
)
from chopperd.model.report_rows import Row
from chopperd.report.build.processes import clocks_apart_ns, first_step, processes, rank_conflicts
from chopperd.report.build.ranks import RankComparison
from chopperd.report.build.rows import DraftRow, without_intervals
from chopperd.report.build.summary import across_devices, summarise
from chopperd.report.build.timelines import document_timelines, without_samples
from chopperd.report.build.trace_notes import noted
from chopperd.report.build.trace_report import SampledBy, TraceReport
from chopperd.report.findings.catalogue import findings_of
from chopperd.report.text.wording import spread
from chopperd.units import NS_PER_S, ms_from_ns

Value = TypeVar("Value")

#: Number of stretches of consecutive steps that an error names.
_STRETCHES_NAMED: Final = 6


class StepSelection(Struct, frozen=True, kw_only=True):
    """Selection of the step rows that a document shows; its summary is over all."""

    step: int | None = None  # only this step number; None for all
    last: int | None = None  # only so many of the last steps; None for all


def build_document(
    reports: Sequence[TraceReport],
    *,
    version: str,
    time: str,
    selection: StepSelection,
    notes: Sequence[Note] = (),
    in_agent: bool = False,
) -> ReportDocument:
    """Build the document of at least one trace report, all of one job; `time`: now, RFC 3339.

    `in_agent` decides which commands findings name. Raises as `with_selection`.
    """
    apart_ns = clocks_apart_ns(reports)
    reports = [
        _of_another_clock(report, apart_ns[nth]) if nth in apart_ns else report
        for nth, report in enumerate(reports)
    ]
    devices = tuple(
        replace(device, trace=nth)
        for nth, report in enumerate(reports)
        for device in report.devices
    )
    numbers = processes(reports)
    ranks = RankComparison.of(reports, numbers)
    steps, totals = (
        across_devices(ranks.split(_placed(reports, numbers, kind))) for kind in ("steps", "totals")
    )
    drops = sorted(
        (drop for report in reports for drop in report.drops), key=lambda each: each.start_unix_ns
    )
    timelines = (each for report in reports for each in report.timelines)
    document = ReportDocument(
        schema=SCHEMA,
        generated=_generated(reports, version, time),
        summary=summarise(steps, totals, _common_reference(devices)),
        findings=(),
        trace=reports[0].trace,
        traces=tuple(report.trace for report in reports),
        sampling=_sampling(totals, reports),
        alignment=_alignment(reports),
        profiler=Profiler(),
        framework=_framework(reports),
        devices=devices,
        totals=tuple(each.row for each in totals),
        steps=(*(each.row for each in steps), *(row for r in reports for row in r.host_steps)),
        drops=tuple(drops),
        notes=tuple(dict.fromkeys((*notes, *_notes(reports, totals), *ranks.notes()))),
        host=tuple(report.host for report in reports if report.host is not None),
        ranks=ranks.summary(steps),
        memory=tuple(each for report in reports for each in report.memory),
        timeline=document_timelines(timelines, (e.row for e in steps), drops, selection.step),
    )
    document = replace(document, findings=findings_of(document, in_agent=in_agent))
    return with_selection(document, selection)


def _of_another_clock(report: TraceReport, apart_ns: int) -> TraceReport:
    side = "after" if apart_ns > 0 else "before"
    text = (
        f"its steps begin {abs(apart_ns) / NS_PER_S:.1f} s {side} those of the other ranks: the "
        "clock of its host differs, so that samples of another host are matched with other work; "
        "give samples of its own host, and let NTP or PTP set the clocks"
    )
    return replace(
        report,
        steps=tuple(map(without_intervals, report.steps)),
        totals=tuple(map(without_intervals, report.totals)),
        alignments=tuple(
            replace(each, offset_uncertainty_ns=each.offset_uncertainty_ns + abs(apart_ns))
            for each in report.alignments
        ),
        notes=(*report.notes, Note(code="clocks_differ", text=text)),
        drops=(),
        timelines=tuple(map(without_samples, report.timelines)),
    )


def with_selection(document: ReportDocument, selection: StepSelection) -> ReportDocument:
    """Return the document with the selected steps, in order; `StepNotFoundError` without."""
    steps = _selected(document.steps, selection)
    numbers = {row.step for row in steps}
    timeline = tuple(each for each in document.timeline if each.step in numbers)
    return replace(document, steps=steps, timeline=timeline)


def _placed(
    reports: Sequence[TraceReport], numbers: Sequence[int], kind: Literal["steps", "totals"]
) -> list[DraftRow]:
    """Return all rows, each with the process and the first step of its trace."""
    return [
        replace(draft, process=number, first_step=first)
        for report, number in zip(reports, numbers, strict=True)
        for first in (first_step(report),)
        for draft in getattr(report, kind)
    ]


def _generated(reports: Sequence[TraceReport], version: str, time: str) -> Generated:
    simulated = any(report.simulated for report in reports)
    sampled = _sampled(reports)
    return Generated(
        version=version,
        node=_common(each.node for each in sampled),
        backend=_common(each.backend for each in sampled),
        driver=_common(each.driver for each in sampled),
        simulated=simulated or any(each.simulated for each in sampled),
        time=time,
    )


def _sampled(reports: Sequence[TraceReport]) -> list[SampledBy]:
    """Return the facts about the samples that the traces were joined with, each once."""
    return list(dict.fromkeys(each.sampled for each in reports if each.sampled is not None))


def _common(values: Iterable[Value]) -> Value | None:
    """Return the value that all have; None if they differ or there is none."""
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else None


def _common_reference(devices: Sequence[DeviceSummary]) -> Reference:
    """Return the reference clock of the devices that have one; unknown if they differ."""
    known = {each.reference for each in devices if each.reference.sm_clock_mhz is not None}
    return known.pop() if len(known) == 1 else Reference(sm_clock_mhz=None, source=None)


def _sampling(totals: Sequence[DraftRow], reports: Sequence[TraceReport]) -> Sampling:
    slowest_ns = max((each.period_ns for r in reports for each in r.alignments), default=0)
    sensors_ns = [each.sensor_period_ns for r in reports for each in r.alignments]
    known_ns = [each for each in sensors_ns if each is not None]
    sampled = _sampled(reports)
    return Sampling(
        asked_hz=_common(each.asked_hz for each in sampled),
        kept_hz=NS_PER_S / slowest_ns if slowest_ns else None,
        samples_in_compute=sum(each.samples_in_compute for each in totals),
        sensor_period_ms=ms_from_ns(max(known_ns)) if known_ns else None,
        power_source=_common(source for each in sampled for source in each.power_sources),
    )


def _alignment(reports: Sequence[TraceReport]) -> Alignment:
    """Return the worst alignment of devices: the largest uncertainty, the widest lag interval."""
    every = [each for report in reports for each in report.alignments]
    measured = [each for each in every if each.lag_ns is not None]
    widest = max(
        measured, key=lambda each: (each.lag_high_ns or 0) - (each.lag_low_ns or 0), default=None
    )
    stepped = [r.realtime_step for r in reports if r.realtime_step is not None]
    check = "measured" if measured else "not measurable"
    return Alignment(
        offset_uncertainty_ns=max((e.offset_uncertainty_ns for e in every), default=None),
        lag_ns=widest.lag_ns if widest else None,
        lag_low_ns=widest.lag_low_ns if widest else None,
        lag_high_ns=widest.lag_high_ns if widest else None,
        realtime_step=any(stepped) if stepped else None,
        check=check if _sampled(reports) else "no samples",
    )


def _framework(reports: Sequence[TraceReport]) -> FrameworkSummary:
    """Return the framework of the traces; "several" where they differ."""
    found = {r.framework.name: r.framework for r in reports if r.framework.name != "none"}
    if len(found) <= 1:
        return next(iter(found.values()), reports[0].framework)
    evidence = dict.fromkeys(text for each in found.values() for text in each.evidence)
    return FrameworkSummary(name="several", evidence=tuple(evidence))


def _selected(rows: Sequence[Row], selection: StepSelection) -> tuple[Row, ...]:
    numbers = sorted({row.step for row in rows if row.step is not None})
    if selection.step is not None:
        if selection.step not in numbers:
            raise StepNotFoundError(_no_step(selection.step, numbers))
        numbers = [selection.step]
    if selection.last is not None:
        numbers = numbers[-selection.last :]
    wanted = set(numbers)
    return tuple(sorted((row for row in rows if row.step in wanted), key=_order))


def _order(row: Row) -> list[int]:
    return [-1 if each is None else each for each in (row.step, row.rank, row.device)]


def _notes(reports: Sequence[TraceReport], totals: Sequence[DraftRow]) -> list[Note]:
    conflicts = [(reports[a].trace, reports[b].trace) for a, b in rank_conflicts(reports)]
    texts = (f"{one.rank} is claimed by {one.path} and by {other.path}" for one, other in conflicts)
    return [
        *(Note(code="rank_conflict", text=f"rank {text}: both are shown") for text in texts),
        *_trace_notes(reports),
        *(note for each in _sampled(reports) for note in each.notes),
        *_peer_notes(totals),
    ]


def _trace_notes(reports: Sequence[TraceReport]) -> list[Note]:
    """Return the traces' notes; each names its ranks unless all traces have it."""
    whose: defaultdict[Note, list[TraceReport]] = defaultdict(list)
    for report in reports:
        for note in dict.fromkeys(report.notes):
            whose[note].append(report)
    return [
        note if len(those) == len(reports) else replace(note, text=f"{_names(those)}: {note.text}")
        for note, those in whose.items()
    ]


def _names(reports: Sequence[TraceReport]) -> str:
    ranks = sorted(r.trace.rank for r in reports if r.trace.rank is not None)
    if len(ranks) < len(reports):
        return ", ".join(report.trace.path for report in reports)
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _peer_notes(totals: Sequence[DraftRow]) -> list[Note]:
    clocked = [each.row for each in totals if each.row.clock is not None]
    peers = [row.peers for row in clocked if row.peers is not None]
    apart_mhz = [each.median_mhz for each in peers if each.disagree and each.median_mhz is not None]
    of = f" for {len(clocked) - len(peers)} of {len(clocked)}" if peers else ""
    return noted(
        peers_disagree=apart_mhz
        and "GPUs of one model fall into two groups, more than 5 % apart: they are compared with "
        f"the faster group's median, {spread(apart_mhz)} MHz",
        peers_untraced=len(peers) < len(clocked)
        and f"fewer than {MIN_PEERS} GPUs of one model traced: excess over peers unknown{of}",
    )


def _no_step(wanted: int, numbers: Sequence[int]) -> str:
    if not numbers:
        return f"there is no step {wanted}: no steps are marked in what the traces hold"
    breaks = [at for at in range(1, len(numbers)) if numbers[at] != numbers[at - 1] + 1]
    firsts, ends = [0, *breaks], [*breaks, len(numbers)]
    stretches = [
        f"{numbers[first]}" if end - first == 1 else f"{numbers[first]} to {numbers[end - 1]}"
        for first, end in zip(firsts, ends, strict=True)
    ]
    if len(stretches) > _STRETCHES_NAMED:
        stretches = [*stretches[: _STRETCHES_NAMED - 1], f"... {numbers[-1]}"]
    return f"there is no step {wanted}: the steps are {', '.join(stretches)}"

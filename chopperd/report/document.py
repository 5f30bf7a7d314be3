"""The report document: traces of one job, joined, set beside one another and summed up."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

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
    Row,
    Sampling,
)
from chopperd.model.samples import SampleSet
from chopperd.report.across import across_devices
from chopperd.report.rows import DraftRow
from chopperd.report.summary import summarise
from chopperd.report.trace_report import DeviceAlignment, TraceReport
from chopperd.units import NS_PER_S

_MIN_PEERS_TRACED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSelection:
    """Which step rows a document shows; its summary is over all.

    Attributes:
        step: Only this step number; None for all.
        last: Only the last so many steps; None for all.
    """

    step: int | None = None
    last: int | None = None


def build_document(
    reports: Sequence[TraceReport],
    samples: SampleSet | None,
    *,
    version: str,
    time: str,
    selection: StepSelection,
) -> ReportDocument:
    """The document of at least one trace report.

    Args:
        reports: One a trace, of one job.
        samples: What they were joined with.
        version: Of this program.
        time: Now, RFC 3339.
        selection: Which steps to show.
    """
    devices = tuple(device for report in reports for device in report.devices)
    models = {(device.rank, device.device): device.name for device in devices}

    def model_of(row: Row) -> str | None:
        return models.get((row.rank, row.device)) if row.device is not None else None

    steps = across_devices([row for report in reports for row in report.steps], model_of)
    totals = across_devices([row for report in reports for row in report.totals], model_of)
    reference = _common_reference(devices)
    alignments = [each for report in reports for each in report.alignments]
    return ReportDocument(
        schema=SCHEMA,
        generated=_generated(reports, samples, version, time),
        summary=summarise(steps, totals, reference),
        findings=(),
        trace=reports[0].trace,
        traces=tuple(report.trace for report in reports),
        sampling=_sampling(samples, totals, alignments),
        alignment=_alignment(alignments, realtime_step=any(r.realtime_step for r in reports)),
        profiler=Profiler(),
        framework=_framework(reports),
        devices=devices,
        totals=tuple(each.row for each in totals),
        steps=_selected([*(each.row for each in steps), *_host_steps(reports)], selection),
        drops=(),
        notes=_notes(reports, samples, totals),
    )


def _generated(
    reports: Sequence[TraceReport], samples: SampleSet | None, version: str, time: str
) -> Generated:
    simulated = any(report.simulated for report in reports)
    return Generated(
        version=version,
        node=samples.node if samples else None,
        backend=samples.backend if samples else None,
        driver=samples.driver if samples else None,
        simulated=simulated or (samples is not None and samples.simulated),
        time=time,
    )


def _common_reference(devices: Sequence[DeviceSummary]) -> Reference:
    """The devices' reference clock if it is one, else unknown."""
    references = {device.reference for device in devices}
    return references.pop() if len(references) == 1 else Reference(sm_clock_mhz=None, source=None)


def _sampling(
    samples: SampleSet | None, totals: Sequence[DraftRow], alignments: Sequence[DeviceAlignment]
) -> Sampling:
    slowest_ns = max((each.period_ns for each in alignments), default=0)
    sources = {each.gpu.power_source for each in samples.gpus} if samples else set()
    return Sampling(
        asked_hz=samples.asked_hz if samples else None,
        kept_hz=NS_PER_S / slowest_ns if slowest_ns else None,
        samples_in_compute=sum(each.samples_in_compute for each in totals),
        sensor_period_ms=None,
        power_source=sources.pop() if len(sources) == 1 else None,
    )


def _alignment(alignments: Sequence[DeviceAlignment], *, realtime_step: bool) -> Alignment:
    """The worst of all devices: the largest uncertainty, the widest lag interval."""
    measured = [each for each in alignments if each.lag_ns is not None]
    widest = max(
        measured, key=lambda each: (each.lag_high_ns or 0) - (each.lag_low_ns or 0), default=None
    )
    check = "measured" if measured else "not measurable"
    return Alignment(
        offset_uncertainty_ns=max((e.offset_uncertainty_ns for e in alignments), default=None),
        lag_ns=widest.lag_ns if widest else None,
        lag_low_ns=widest.lag_low_ns if widest else None,
        lag_high_ns=widest.lag_high_ns if widest else None,
        realtime_step=realtime_step,
        check=check if alignments else "no samples",
    )


def _framework(reports: Sequence[TraceReport]) -> FrameworkSummary:
    """What the traces agree on; "several" where they do not."""
    found = {r.framework.name: r.framework for r in reports if r.framework.name != "none"}
    if len(found) <= 1:
        return next(iter(found.values()), reports[0].framework)
    evidence = dict.fromkeys(text for each in found.values() for text in each.evidence)
    return FrameworkSummary(name="several", evidence=tuple(evidence))


def _host_steps(reports: Sequence[TraceReport]) -> list[Row]:
    return [row for report in reports for row in report.host_steps]


def _selected(rows: Sequence[Row], selection: StepSelection) -> tuple[Row, ...]:
    """Rows of the selected steps, by step, rank and device."""
    numbers = sorted({row.step for row in rows if row.step is not None})
    if selection.step is not None:
        numbers = [number for number in numbers if number == selection.step]
    if selection.last is not None:
        numbers = numbers[-selection.last :]
    wanted = set(numbers)
    return tuple(sorted((row for row in rows if row.step in wanted), key=_order))


def _order(row: Row) -> list[int]:
    return [-1 if each is None else each for each in (row.step, row.rank, row.device)]


def _notes(
    reports: Sequence[TraceReport], samples: SampleSet | None, totals: Sequence[DraftRow]
) -> tuple[Note, ...]:
    """All notes, each once; of several traces, each line says whose it is."""
    notes: dict[Note, None] = {}
    for report in reports:
        for note in report.notes:
            notes[_of_rank(note, report, several=len(reports) > 1)] = None
    clocked = sum(each.row.clock is not None for each in totals)
    if samples is not None and 0 < clocked < _MIN_PEERS_TRACED:
        text = f"{clocked} GPU{'s' if clocked > 1 else ''} traced: excess over peers needs four"
        notes[Note(code="peers_untraced", text=text)] = None
    return tuple(notes)


def _of_rank(note: Note, report: TraceReport, *, several: bool) -> Note:
    if not several or note.code == "no_samples":
        return note
    rank = report.trace.rank
    whose = report.trace.path if rank is None else f"rank {rank}"
    return replace(note, text=f"{whose}: {note.text}")

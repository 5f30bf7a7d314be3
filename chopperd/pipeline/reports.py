"""From trace files and samples to a report document."""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, TypeAlias

from chopperd import __version__
from chopperd.clock import Clock, SystemClock
from chopperd.errors import TraceFormatError
from chopperd.model.report import Note, ReportDocument
from chopperd.model.samples import SampleSet
from chopperd.model.services import SampleSource
from chopperd.model.trace import Trace
from chopperd.report.document import StepSelection, build_document
from chopperd.report.privacy import Names, with_names
from chopperd.report.processes import guessed_twice
from chopperd.report.rows import rfc3339
from chopperd.report.trace_report import JoinOptions, TraceReport, report_trace
from chopperd.traces.activity import DATA_WAIT_PATTERNS
from chopperd.traces.reader import DEFAULT_LIMITS, read_trace
from chopperd.traces.sniff import is_kineto
from chopperd.traces.source import ReadLimits
from chopperd.traces.timeline import LayoutOptions, lay_out
from chopperd.units import NS_PER_S

logger = logging.getLogger(__name__)

Progress = Callable[[int, int | None], None]
Samples: TypeAlias = SampleSet | SampleSource | None

#: Of samples around a trace: what reads once a second and holds for three must reach into it.
_MARGIN_NS: Final = 10 * NS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportOptions:
    """What a report is to be made with.

    Attributes:
        join: Devices and reference clocks.
        selection: Which steps to show.
        limits: What files to refuse.
        data_wait_patterns: Names of host spans that wait for data, beside the built-in ones.
        names: How kernel names are shown.
    """

    join: JoinOptions = field(default_factory=JoinOptions)
    selection: StepSelection = field(default_factory=StepSelection)
    limits: ReadLimits = DEFAULT_LIMITS
    data_wait_patterns: tuple[str, ...] = ()
    names: Names = "full"


def report_files(
    paths: Sequence[Path],
    *,
    samples: Samples,
    options: ReportOptions,
    progress: Progress | None = None,
    clock: Clock | None = None,
) -> ReportDocument:
    """The report on the traces of one job.

    One trace is in memory at a time. Of several, one that can't be read is left out, and one that
    comes twice is counted once; notes say so.

    Args:
        paths: At least one Kineto trace.
        samples: Clock samples of the node, or where to ask for those of a time; None if there are
            none.
        options: How to make it.
        progress: Called with bytes read so far and in all.
        clock: What the document is dated by.

    Raises:
        TraceFormatError: None of the files can be read.
    """
    reports, notes = _report_each(paths, samples, options, progress)
    for note in notes:
        logger.warning(note.text)
    certain = replace(options, join=replace(options.join, guess=False))
    for index in guessed_twice(reports):
        path = Path(reports[index].trace.path)
        reports[index] = report_file(path, samples, certain, progress)
    document = build_document(
        reports,
        version=__version__,
        time=rfc3339((clock or SystemClock()).unix_ns()),
        selection=options.selection,
        notes=notes,
    )
    return with_names(document, options.names)


def _report_each(
    paths: Sequence[Path],
    samples: Samples,
    options: ReportOptions,
    progress: Progress | None,
) -> tuple[list[TraceReport], list[Note]]:
    """At least one report, and what is to be said of traces that have none."""
    reports: list[TraceReport] = []
    failures: list[TraceFormatError] = []
    notes: list[Note] = []
    for path in paths:
        try:
            report = report_file(path, samples, options, progress)
        except TraceFormatError as error:
            failures.append(error)
            notes.append(Note(code="trace_left_out", text=f"left out: {error}"))
            continue
        if first := _same_bytes(report, reports):
            text = f"{path} has the same bytes as {first}: counted once"
            notes.append(Note(code="trace_repeated", text=text))
        else:
            reports.append(report)
    if not reports:
        raise failures[0]
    return reports, notes


def _same_bytes(report: TraceReport, others: Sequence[TraceReport]) -> str | None:
    """The path of a trace with the same bytes; None if there is none."""
    same = (o.trace.path for o in others if o.trace.sha256 == report.trace.sha256)
    return next(same, None)


def report_file(
    path: Path, samples: Samples, options: ReportOptions, progress: Progress | None = None
) -> TraceReport:
    """One trace joined with the samples of its time.

    Raises:
        TraceFormatError: It can't be read.
    """
    trace = read_trace(path, limits=options.limits, progress=progress)
    patterns = DATA_WAIT_PATTERNS + options.data_wait_patterns
    timeline = lay_out(trace, LayoutOptions(data_wait_patterns=patterns))
    return report_trace(trace, timeline, _of_its_time(samples, trace), options.join)


def _of_its_time(samples: Samples, trace: Trace) -> SampleSet | None:
    if samples is None or isinstance(samples, SampleSet):
        return samples
    if not trace.meta.anchored:
        return None
    begin_ns, end_ns = trace.span_ns
    return samples.between(begin_ns - _MARGIN_NS, end_ns + _MARGIN_NS)


def kineto_files(directory: Path, *, newer_than_unix_ns: int, depth: int = 3) -> list[Path]:
    """Kineto traces, by content, under a folder that were written since a time; sorted.

    Args:
        directory: Where to look.
        newer_than_unix_ns: Files last written before are left out.
        depth: How many levels of folders to look into, the folder itself being the first.
    """
    return sorted(
        path
        for path in _files(directory, depth)
        if _written_since(path, newer_than_unix_ns) and is_kineto(path)
    )


def _written_since(path: Path, unix_ns: int) -> bool:
    """Whether the file was last written since then; False for one that is gone."""
    try:
        return path.stat().st_mtime_ns >= unix_ns
    except OSError:
        return False


def _files(directory: Path, depth: int) -> Iterator[Path]:
    """Files down to a depth; folders that can't be read and links to folders are passed over."""
    try:
        entries = sorted(directory.iterdir())
    except OSError:
        return
    for entry in entries:
        if entry.is_file():
            yield entry
        elif depth > 1 and entry.is_dir() and not entry.is_symlink():
            yield from _files(entry, depth - 1)

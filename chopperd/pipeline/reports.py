"""Make a report document from trace files and samples."""

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from chopperd import __version__
from chopperd.clock import Clock, SystemClock
from chopperd.config.sections import Config
from chopperd.correlate.identity.by_signal import Agreement
from chopperd.errors import ConfigError, TraceFormatError, UnrelatedTracesError
from chopperd.model.captures import GpuDrop
from chopperd.model.kinds import KernelClass
from chopperd.model.memory import RankMemory
from chopperd.model.report import Note, ReportDocument
from chopperd.model.run import DeviceMap, device_map_of
from chopperd.model.samples import GpuSamples, SampleSet
from chopperd.model.timeline import Timeline
from chopperd.model.trace import Trace
from chopperd.pipeline.memory import memory_of
from chopperd.report.build import processes
from chopperd.report.build.clocked_device import JoinOptions, fits_by_signal
from chopperd.report.build.document import StepSelection, build_document
from chopperd.report.build.privacy import Names, trace_with_names
from chopperd.report.build.rows import rfc3339
from chopperd.report.build.trace_report import HISTORY_NS, MARGIN_NS, TraceReport, report_trace
from chopperd.traces.kernels.classes import ClassRule
from chopperd.traces.read.reader import DEFAULT_LIMITS, read_trace
from chopperd.traces.read.sniff import is_kineto
from chopperd.traces.read.source import ReadLimits
from chopperd.traces.timeline.host import DATA_WAIT_PATTERNS
from chopperd.traces.timeline.layout import LayoutOptions, lay_out, without_laid_out

if TYPE_CHECKING:
    # Its protocols name all that the agent knows; a report needs none of it.
    from chopperd.model.services import SampleSource

logger = logging.getLogger(__name__)

Progress = Callable[[int, int | None], None]
Samples: TypeAlias = "SampleSet | SampleSource | None"

#: How to report on traces that are not of one run.
CHOOSE: Final = (
    "Name the files of one job, say --rank-of FILE=N where a rank is wrong, or --merge to report "
    "on all of them side by side"
)


class ReportOptions(Struct, frozen=True, kw_only=True):
    """Options of a report."""

    join: JoinOptions = field(default_factory=JoinOptions)  # devices and reference clocks
    selection: StepSelection = field(default_factory=StepSelection)
    limits: ReadLimits = DEFAULT_LIMITS  # of files; larger ones are refused
    data_wait_patterns: tuple[str, ...] = ()  # of host spans that wait for data, further ones
    step_marker: str | None = None  # found in names of annotations that mark steps
    class_rules: tuple[ClassRule, ...] = ()  # the site's kernel classes, before the built-in table
    names: Names = "full"  # how kernel names are shown
    merge: bool = False  # whether files may be of several jobs or runs
    hashes: bool = True  # whether the file's hash is shown; those of several are compared too
    # Snapshots of torch's memory: the file of a trace's rank, or of its path
    memory: Mapping[int | str, str] = field(default_factory=dict)
    # A trace with more step rows (steps times devices) is refused before it is joined.
    most_rows: int | None = None


def configured_options(config: Config, *, in_agent: bool = False) -> ReportOptions:
    """Return the report options that the configuration sets."""
    text = config.traces.device_map
    return ReportOptions(
        join=JoinOptions(
            device_map=device_map_of(text, "traces.device_map") if text else DeviceMap(),
            in_agent=in_agent,
            model_references_mhz=config.reference.models,
            default_reference_mhz=config.reference.sm_clock_mhz,
            limit_mhz=config.reference.limit_mhz,
        ),
        limits=ReadLimits(
            stored_bytes=config.ingest.max_stored_bytes,
            expanded_bytes=config.ingest.max_decompressed_bytes,
        ),
        data_wait_patterns=config.traces.data_wait_patterns,
        step_marker=config.traces.step_marker,
        class_rules=tuple(
            ClassRule(KernelClass[rule.kernel_class.upper()], rule.pattern)
            for rule in config.traces.classes
        ),
        names=config.privacy.names,
    )


class FileReport(Struct, frozen=True, kw_only=True):
    """The report on one file, stored until the other files of its job have arrived."""

    report: TraceReport  # on the file alone
    # The report without GPUs found by elimination or by their samples, for the case that another
    # file turns out to have had them; None where there are none, or by elimination and no other
    # file will come.
    certain: TraceReport | None = None
    # How well each device that no rule maps fits each GPU, by its samples.
    fits: Mapping[int, Agreement] = field(default_factory=dict)


class JoinInput(Struct, frozen=True, kw_only=True):
    """A trace with its timeline, and the samples of its time (None where there are none)."""

    trace: Trace
    timeline: Timeline
    samples: SampleSet | None
    memory: tuple[RankMemory, ...] = ()  # of its devices, where rows, calls or a snapshot tell


class Origin(Struct, frozen=True, kw_only=True):
    """Facts about a trace file that its uploader or user gave; None: take the file's own."""

    name: str | None = None  # its original name
    job: str | None = None  # the job that it was uploaded for
    rank: int | None = None


def report_files(
    paths: Sequence[Path],
    *,
    samples: Samples,
    options: ReportOptions,
    progress: Progress | None = None,
    clock: Clock | None = None,
    rank_of: Mapping[Path, int] | None = None,
) -> ReportDocument:
    """Make the report on the trace files of one job.

    One trace is in memory at a time. Of several, one that can't be read is left out, and a
    duplicate is counted once, both with a note.

    Of at least one Kineto trace; `samples`: of the node, or a source of those of a time; `clock`
    dates the document; `rank_of`: ranks of files, instead of those in the files.

    Raises:
        TraceFormatError: None of the files can be read.
        ConfigError: The device map gives one GPU to several at a time.
        UnrelatedTracesError: They are not of one job.
        StepNotFoundError: There is no step of the number asked for.
    """
    each_from = {path: Origin(rank=rank) for path, rank in (rank_of or {}).items()}
    reports, notes = _report_each(paths, samples, options, progress, each_from)
    _check_device_map([file.report for file in reports])
    ranks = {file.report.trace.rank for file in reports}
    if lost := [rank for rank in options.memory if isinstance(rank, int) and rank not in ranks]:
        files = [f"{options.memory[rank]}: no trace of rank {rank}" for rank in lost]
        raise ConfigError([f"--memory: {each}" for each in files])
    for note in notes:
        logger.warning(note.text)
    if not options.merge and (why := processes.unrelated([file.report for file in reports])):
        raise UnrelatedTracesError(f"{why}. {CHOOSE}")
    return composed(
        [shown(file, options.names) for file in reports],
        clock or SystemClock(),
        selection=options.selection,
        notes=notes,
    )


def report_traces(paths: Sequence[Path], samples: Path | None) -> ReportDocument | None:
    """Make the report on trace files with default options; None if it is one file and no trace.

    Raises as `report_files`, or `ConfigError` if the first of several is no trace, or `StoreError`
    for samples that can't be read.
    """
    if not is_kineto(paths[0]):
        if samples is None and len(paths) == 1:
            return None
        raise ConfigError([f"{paths[0]} is no Kineto trace: samples and further files need one"])
    clocks = None
    if samples is not None:
        from chopperd.store.samples.files import read_samples  # noqa: PLC0415 - rarely needed

        clocks = read_samples(samples)
    return report_files(paths, samples=clocks, options=ReportOptions())


def _check_device_map(reports: Sequence[TraceReport]) -> None:
    """Refuse a device map that gives one GPU to several traces at the same time."""
    found = processes.given_twice(reports)
    if found is None:
        return
    gpu, indices = found
    traces = [reports[index].trace for index in indices]
    device = next(d.device for d in reports[indices[0]].devices if d.gpu == gpu)
    ranks = [str(trace.rank) for trace in traces if trace.rank is not None]
    if len(set(ranks)) == len(traces):
        who = f"ranks {', '.join(ranks)}"
        form = f"{ranks[0]}:{device}={gpu},{ranks[1]}:{device}=..."
        do = f"name a GPU for each, as in --device-map {form}"
    else:
        who, do = " and ".join(trace.path for trace in traces[:2]), "report on each file alone"
    raise ConfigError([f"--device-map: {who} ran at one time, and all on GPU {gpu}; {do}"])


def shown(file: FileReport, names: Names) -> FileReport:
    """Return the report with names hidden as the site demands."""
    certain = file.certain and trace_with_names(file.certain, names)
    return replace(file, report=trace_with_names(file.report, names), certain=certain)


def composed(
    files: Sequence[FileReport],
    clock: Clock,
    *,
    selection: StepSelection | None = None,
    notes: Sequence[Note] = (),
    run: str | None = None,
    in_agent: bool = False,
) -> ReportDocument:
    """Make the document over the reports on at least one file of one job.

    A GPU guessed for two files at a time is removed from both, as is one found by its samples that
    the samples of all files don't confirm. `run` is the name of their run, if it has one.
    `in_agent` decides which commands findings name.
    """
    reports = [file.report for file in files]
    for index in processes.unconfirmed(reports, [file.fits for file in files]):
        reports[index] = files[index].certain or reports[index]
    for index in processes.guessed_twice(reports):
        reports[index] = files[index].certain or reports[index]
    return build_document(
        processes.of_runs(reports, run),
        version=__version__,
        time=rfc3339(clock.unix_ns()),
        selection=selection or StepSelection(),
        notes=notes,
        in_agent=in_agent,
    )


def _report_each(
    paths: Sequence[Path],
    samples: Samples,
    options: ReportOptions,
    progress: Progress | None,
    each_from: Mapping[Path, Origin],
) -> tuple[list[FileReport], list[Note]]:
    reports: list[FileReport] = []
    failures: list[TraceFormatError] = []
    notes: list[Note] = []
    several = len(paths) > 1
    options = replace(options, hashes=options.hashes or several)
    for path in paths:
        try:
            arguments = path, samples, options, progress
            one = report_file(*arguments, one_of_several=several, origin=each_from.get(path))
        except TraceFormatError as error:
            failures.append(error)
            notes.append(Note(code="trace_left_out", text=f"left out: {error}"))
            continue
        same = (r.report.trace for r in reports if r.report.trace.sha256 == one.report.trace.sha256)
        if first := next(same, None):
            text = f"{path} has the same bytes as {first.path}: counted once"
            notes.append(Note(code="trace_repeated", text=text))
        else:
            reports.append(one)
    if not reports:
        raise failures[0]
    return reports, notes


def report_file(
    path: Path,
    samples: Samples,
    options: ReportOptions,
    progress: Progress | None = None,
    *,
    one_of_several: bool,
    origin: Origin | None = None,
) -> FileReport:
    """Report on one trace file, joined with samples; arguments as of `report_files`.

    `one_of_several`: other files of its job exist or will come. Raises `TraceFormatError` if it
    can't be read.
    """
    of_file = join_input(path, samples, options, progress, origin=origin)
    trace, timeline, of_its_time = of_file.trace, of_file.timeline, of_file.samples
    fits = fits_by_signal(timeline, trace, of_its_time, options.join)
    best = {device: (each.best, each.why_not) for device, each in fits.items()}
    join = replace(options.join, by_signal=best)
    report = report_trace(trace, timeline, of_its_time, join, drops_between, of_file.memory)
    guesses = one_of_several and bool(processes.guessed_gpus(report))
    if not guesses and not any(gpu for gpu, _ in best.values()):
        return FileReport(report=report, fits=fits)
    untold = {device: (None, each.why_not) for device, each in fits.items()}
    sure = replace(join, guess=join.guess and not guesses, by_signal=untold)
    certain = report_trace(trace, timeline, of_its_time, sure, drops_between, of_file.memory)
    return FileReport(report=report, certain=certain, fits=fits)


def drops_between(
    samples: GpuSamples, begin_ns: int, end_ns: int, step_s: float
) -> Sequence[GpuDrop]:
    """Return the drops of a GPU's busy clock in `[begin_ns, end_ns)` by the rule of the live ones.

    `step_s`: the length of a step, 0 unknown; no mean is over less.
    """
    from chopperd.live import drops  # noqa: PLC0415 - only with samples

    used_ns = begin_ns - HISTORY_NS, end_ns + MARGIN_NS
    return drops.drops_between(samples, begin_ns, end_ns, used_ns=used_ns, step_s=step_s)


def join_input(
    path: Path,
    samples: Samples,
    options: ReportOptions,
    progress: Progress | None = None,
    *,
    origin: Origin | None = None,
) -> JoinInput:
    """Read one trace, build its timeline, and get the samples of its time.

    Arguments are as of `report_file`.

    Raises:
        TraceFormatError: It can't be read.
        TraceError: Its snapshot of memory can't be.
    """
    trace = _read(path, options, progress, origin or Origin())
    layout = LayoutOptions(
        data_wait_patterns=DATA_WAIT_PATTERNS + options.data_wait_patterns,
        class_rules=options.class_rules,
        step_marker=options.step_marker,
    )
    timeline = lay_out(trace, layout)
    if options.most_rows is not None:
        _check_rows(trace, timeline, options.most_rows)
    return JoinInput(
        trace=without_laid_out(trace),
        timeline=timeline,
        samples=_of_its_time(samples, trace),
        memory=memory_of(path, trace, timeline, options.memory),
    )


def _read(path: Path, options: ReportOptions, progress: Progress | None, origin: Origin) -> Trace:
    trace = read_trace(
        path, limits=options.limits, progress=progress, name=origin.name, hashed=options.hashes
    )
    meta = trace.meta
    if origin.job is not None:
        meta = replace(meta, job=origin.job)
    if origin.rank is not None:
        meta = replace(meta, rank=origin.rank, rank_source="command line")
    return replace(trace, meta=meta)


def _check_rows(trace: Trace, timeline: Timeline, most_rows: int) -> None:
    rows = max(sum(len(each.windows) for each in timeline.devices), len(timeline.steps))
    if rows > most_rows:
        path, devices = trace.meta.path, len(timeline.devices)
        raise TraceFormatError(
            f"{path} has {rows:,} rows of steps on {devices} devices, and {most_rows:,} at most are"
            " stored: profile fewer steps into one file (schedule(active=...)), or use `chopperd"
            " report` on it",
            path=path,
        )


def _of_its_time(samples: Samples, trace: Trace) -> SampleSet | None:
    if samples is None or isinstance(samples, SampleSet):
        return samples
    if not trace.meta.anchored:
        return None
    begin_ns, end_ns = trace.span_ns
    return samples.between(begin_ns - HISTORY_NS, end_ns + MARGIN_NS)

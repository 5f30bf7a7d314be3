"""Commands that make reports (`record`, `report`), annotate traces, and explain findings."""

import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from chopperd.cli import options
from chopperd.cli.options import (
    agent_client,
    chosen_form,
    parsed_memory,
    parsed_ranks,
    parsed_zone,
    report_options,
)
from chopperd.cli.output import (
    complain,
    print_report,
    print_samples_report,
    reading_progress,
    write,
)
from chopperd.cli.recording import recording, run_command, samples_to_join
from chopperd.clock import SystemClock
from chopperd.config.load import DEFAULT_PATH, load_config
from chopperd.errors import AgentUnreachableError, ChopperdError, ConfigError
from chopperd.model.run import device_map_of

if TYPE_CHECKING:
    from chopperd.model.report import Breakdown, ReportDocument
    from chopperd.model.samples import SampleSet
    from chopperd.pipeline.reports import ReportOptions, Samples

_WITHOUT_HASHES: Final = ("text", "markdown")
_OF_TRACES: Final = ("--memory", "--device-map", "--rank-of", "--merge")


# Options after CMD belong to CMD.
@click.command(
    context_settings={"allow_interspersed_args": False},
    epilog=options.examples(
        "chopperd record -- python train.py",
        "chopperd record -o samples.csv -- torchrun --nproc-per-node 8 train.py",
    ),
)
@options.command
@options.output
@options.hz
@options.trace_folder
@options.device_map
@options.form
@options.backend
@options.config_path
def record(
    command: Sequence[str],
    output: Path | None,
    hz: float | None,
    traces: Path,
    device_map: str | None,
    form: options.Format,
    backend: str | None,
    config: Path | None,
) -> None:
    """Sample clocks while CMD runs, then report on the traces it wrote; exit with its status."""
    from chopperd.traces.read.sniff import kineto_files

    settings = load_config(config or DEFAULT_PATH)
    _check_output(output)
    if device_map is not None:
        device_map_of(device_map, "--device-map")
    started_unix_ns = SystemClock().unix_ns()
    with recording(settings, backend, hz) as finish:
        status = run_command(command)
        try:
            samples = finish() if finish is not None else None
            if output is not None:
                _save(samples, output)
            found = kineto_files(traces, newer_than_unix_ns=started_unix_ns)
            if found:
                # One command may train more than once.
                how = report_options(settings, device_map=device_map, merge=True)
                print_report(_document(found, samples, how), form)
            else:
                _say_no_trace(traces, samples, form)
        except Exception as error:
            if status == 0:
                raise
            complain(str(error) if isinstance(error, ChopperdError) else repr(error))
    raise click.exceptions.Exit(status)


def _save(samples: "SampleSet | None", output: Path) -> None:
    if samples is None:
        complain(f"{output} is not written: no GPU was sampled")
        return
    from chopperd.store.samples.files import write_samples

    write_samples(output, samples)


def _check_output(output: Path | None) -> None:
    """Check, before the job runs, that its samples can be saved; else raise `ConfigError`."""
    if output is None:
        return
    if not output.parent.is_dir():
        raise ConfigError([f"-o: there is no folder {output.parent}"])
    if output.suffix == ".parquet":
        from chopperd.store.samples.files import check_parquet

        check_parquet()


def _say_no_trace(folder: Path, samples: "SampleSet | None", form: options.Format) -> None:
    missing = f"no Kineto trace written since the start under {folder.resolve()}"
    if samples is None or form not in {"text", "json", "html"}:
        complain(f"{missing}; no report")
        return
    complain(f"{missing}: reported from samples alone")
    _print_sampled(samples, form)


def _print_sampled(
    samples: "SampleSet",
    form: options.Format,
    *,
    output: Path | None = None,
    reference_mhz: float | None = None,
) -> None:
    from chopperd.pipeline.sampled import report_samples

    now_ns = SystemClock().unix_ns()
    report = report_samples(samples, unix_ns=now_ns, reference_mhz=reference_mhz)
    print_samples_report(report, form, output=output)


@options.documented(
    "chopperd report trace.json.gz --samples samples.csv",
    "chopperd report traces/*.json.gz --format json -o report.json",
)
@options.traces
@options.samples
@options.memory
@options.job
@options.step
@options.last
@options.by
@options.report_form
@options.report_to
@options.device_map
@options.rank_of
@options.merge
@options.step_marker
@options.reference
@options.zone
@options.config_path
def report(
    traces: Sequence[Path],
    samples: Path | None,
    memory: Sequence[Path],
    job: str | None,
    step: int | None,
    last: int | None,
    by: options.Breakdown | None,
    form: options.Format | None,
    output: Path | None,
    device_map: str | None,
    rank_of: Sequence[str],
    merge: bool,
    step_marker: str | None,
    reference_mhz: float | None,
    tz: str | None,
    config: Path | None,
) -> None:
    """Report what the clock cost in a job's steps, from trace files or the agent's last capture.

    With --samples and no trace: what the samples alone say of the GPUs.
    """
    in_form = chosen_form(form, output)
    files_only: dict[str, object] = {
        "--samples": samples,
        "--memory": memory or None,
        "--device-map": device_map,
        "--rank-of": rank_of or None,
        "--merge": merge or None,
        "--step-marker": step_marker,
        "--reference-mhz": reference_mhz,
        "--tz": tz,
    }
    if traces:
        _refuse({"--job": job}, "the job is read from the traces")
        settings = load_config(config or DEFAULT_PATH)
        ranks = parsed_ranks(rank_of, traces)
        how = report_options(
            settings,
            device_map=device_map,
            reference_mhz=reference_mhz,
            step=step,
            last=last,
            merge=merge,
            step_marker=step_marker,
            hashes=in_form not in _WITHOUT_HASHES,
            memory=parsed_memory(memory, traces),
        )
        clocks = samples_to_join(settings, samples, parsed_zone(tz))
        document = _document(traces, clocks, how, ranks)
    elif samples is not None:
        of_steps = {"--job": job, "--step": step, "--last": last, "--by": by}
        of_traces = {name: files_only[name] for name in _OF_TRACES}
        _refuse({**of_steps, **of_traces}, "samples alone have no steps; give trace files")
        from chopperd.store.samples.files import read_samples

        found = read_samples(samples, tz=parsed_zone(tz))
        _print_sampled(found, in_form, output=output, reference_mhz=reference_mhz)
        return
    else:
        _refuse(files_only, "the agent has analysed its traces already; give trace files")
        document = _agents_document(config, job, step, last)
    print_report(document, in_form, by=by, output=output)
    _say_why_none(document, in_form, by)


def _say_why_none(document: "ReportDocument", form: str, by: "Breakdown | None") -> None:
    """Print on stderr why a CSV has no rows; other formats include the reason themselves."""
    if form != "csv" or by is None:
        return
    from chopperd.model.report import has_parts

    if not has_parts(document, by):
        from chopperd.report.text.answers import NO_DROPS, NO_MEMORY
        from chopperd.report.text.tables import why_none

        others = {"drop": NO_DROPS, "memory": NO_MEMORY}
        complain(f"--by {by}: {others.get(by) or why_none(document)}")


def _refuse(given: Mapping[str, object], why: str) -> None:
    problems = [f"{name}: {why}" for name, value in given.items() if value is not None]
    if problems:
        raise ConfigError(problems)


def _agents_document(
    config: Path | None, job: str | None, step: int | None, last: int | None
) -> "ReportDocument":
    client = agent_client(config)
    from chopperd.report.build.document import StepSelection, with_selection

    try:
        document = client.report_latest(job)
    except AgentUnreachableError as error:
        raise AgentUnreachableError(f"{error}, or give trace files") from error
    return with_selection(document, StepSelection(step=step, last=last))


def _document(
    traces: Sequence[Path],
    samples: "Samples",
    how: "ReportOptions",
    ranks: Mapping[Path, int] | None = None,
) -> "ReportDocument":
    from chopperd.pipeline.reports import report_files

    with reading_progress(sys.stderr) as progress:
        return report_files(traces, samples=samples, options=how, progress=progress, rank_of=ranks)


@options.documented(
    "chopperd annotate rank*.json.gz --open",
    "chopperd annotate trace.json -o clocks.json --samples samples.csv",
)
@options.ranks_traces
@options.copy_to
@options.opens
@options.samples
@options.device_map
@options.reference
@options.zone
@options.config_path
def annotate(
    traces: tuple[Path, ...],
    output: Path | None,
    opens: bool,
    samples: Path | None,
    device_map: str | None,
    reference_mhz: float | None,
    tz: str | None,
    config: Path | None,
) -> None:
    """Write TRACEs into one file with counter tracks: clock, power, temperature, causes, loss."""
    settings = load_config(config or DEFAULT_PATH)
    how = report_options(settings, device_map=device_map, reference_mhz=reference_mhz)
    clocks = samples_to_join(settings, samples, parsed_zone(tz))
    from chopperd.pipeline.annotation import annotate_file, annotate_ranks

    output = output or _annotated_name(traces)
    with reading_progress(sys.stderr) as progress:
        if len(traces) == 1:
            (trace,) = traces
            done = annotate_file(trace, output, samples=clocks, options=how, progress=progress)
        else:
            done = annotate_ranks(traces, output, samples=clocks, options=how, progress=progress)
    complain(*(f"{traces[0] if len(traces) == 1 else output}: {each}" for each in done.remarks))
    if how.names != "full":
        complain(
            f"{output} has the full names of kernels and modules, like its traces:"
            f" privacy.names = {how.names!r} applies to reports only"
        )
    gpus = ", ".join(f"{device} is GPU {gpu}" for device, gpu in done.gpus.items())
    write(f"{output}: {done.event_count} counter events ({gpus}); open it in ui.perfetto.dev\n")
    if opens:
        from chopperd.cli.perfetto import show_in_perfetto

        show_in_perfetto(output, write)


def _annotated_name(traces: Sequence[Path]) -> Path:
    """Return the default name in the working folder: `rank0.clocks.json.gz`, of several `ranks`."""
    name = traces[0].name if len(traces) == 1 else "ranks"
    for suffix in (".gz", ".json"):
        name = name.removesuffix(suffix)
    return Path(f"{name}.clocks.json.gz")


def _codes(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
    from chopperd.report.findings.explanations import NAMES

    return [name for name in NAMES if name.startswith(begun)]


@options.documented("chopperd explain launch.bound", "chopperd explain profiler")
@click.argument("code", required=False, shell_complete=_codes)
def explain(code: str | None) -> None:
    """Explain a finding by its CODE, or how to profile steps (`profiler`); list all without one."""
    from chopperd.report.findings.explanations import NAMES, explained

    text = explained(code)
    if text is None:
        near = get_close_matches(code or "", NAMES, n=1)
        meant = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError([f"there is no finding {code!r}: `chopperd explain` lists all{meant}"])
    write(text)

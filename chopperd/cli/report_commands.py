"""Reports: on what a recorded job wrote, on files, and on what the agent took in."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from chopperd.cli import options
from chopperd.cli.job import run_command
from chopperd.cli.options import parsed_device_map, parsed_zone, report_options
from chopperd.cli.output import complain, print_report
from chopperd.cli.recording import recording
from chopperd.clock import SystemClock
from chopperd.config.load import DEFAULT_PATH, load_config
from chopperd.config.sections import Config
from chopperd.errors import ChopperdError, ConfigError

if TYPE_CHECKING:
    from chopperd.model.report import ReportDocument
    from chopperd.model.samples import SampleSet
    from chopperd.pipeline.reports import ReportOptions


def record(
    command: options.Command,
    output: options.Output = None,
    hz: options.Hz = None,
    traces: options.TraceFolder = Path(),
    backend: options.Backend = None,
    config: options.ConfigPath = None,
) -> None:
    """Sample clocks while CMD runs, then report on the traces it wrote. Gives CMD's status."""
    settings = load_config(config or DEFAULT_PATH)
    if output is not None and not output.parent.is_dir():
        raise ConfigError([f"-o: there is no folder {output.parent}"])
    started_unix_ns = SystemClock().unix_ns()
    with recording(settings, backend, hz) as finish:
        status = run_command(command)
        try:
            samples = finish() if finish is not None else None
            _keep(output, samples)
            _report_recorded(settings, traces, started_unix_ns, samples)
        except Exception as error:
            if status == 0:
                raise
            complain(str(error) if isinstance(error, ChopperdError) else repr(error))
    raise typer.Exit(status)


def _keep(output: Path | None, samples: "SampleSet | None") -> None:
    """Write the samples to a file, where one was asked for and there are any."""
    if output is not None and samples is not None:
        from chopperd.store.samples import write_samples

        write_samples(output, samples)


def _report_recorded(
    config: Config, folder: Path, started_unix_ns: int, samples: "SampleSet | None"
) -> None:
    from chopperd.pipeline.reports import kineto_files

    found = kineto_files(folder, newer_than_unix_ns=started_unix_ns)
    if not found:
        complain(f"no Kineto trace written since the start under {folder.resolve()}; no report")
        return
    print_report(_document(found, samples, report_options(config)), "text")


def report(
    traces: options.Traces,
    samples: options.Samples = None,
    step: options.Step = None,
    last: options.Last = None,
    by: options.By = None,
    form: options.Form = "text",
    device_map: options.DeviceMap = None,
    reference_mhz: options.Reference = None,
    tz: options.Zone = None,
    config: options.ConfigPath = None,
) -> None:
    """Say what the clock cost in the steps of one job's traces."""
    how = report_options(
        load_config(config or DEFAULT_PATH),
        device_map=parsed_device_map(device_map),
        reference_mhz=reference_mhz,
        step=step,
        last=last,
    )
    zone = parsed_zone(tz)
    sample_set = None
    if samples is not None:
        from chopperd.store.samples import read_samples

        sample_set = read_samples(samples, tz=zone)
    print_report(_document(traces, sample_set, how), form, by_family=by == "family")


def _document(
    traces: Sequence[Path], samples: "SampleSet | None", how: "ReportOptions"
) -> "ReportDocument":
    from chopperd.pipeline.reports import report_files
    from chopperd.report.progress import reading_progress

    with reading_progress(sys.stderr) as progress:
        return report_files(traces, samples=samples, options=how, progress=progress)

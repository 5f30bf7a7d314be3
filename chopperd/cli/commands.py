"""The commands: parse, call the pipeline or the agent, print.

Heavy imports stand inside the commands, so that `chopperd version` and usage errors are quick.
"""

import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from chopperd import __version__
from chopperd.cli import options
from chopperd.cli.agent import COMMAND as AGENT
from chopperd.cli.agent import AgentOptions, run_agent
from chopperd.cli.job import run_command
from chopperd.cli.options import parsed_device_map, parsed_zone, report_options
from chopperd.cli.output import complain, print_page, print_report, write
from chopperd.cli.recording import recording
from chopperd.cli.samples import samples_to_join
from chopperd.clock import SystemClock
from chopperd.config.load import DEFAULT_PATH, effective, load_config
from chopperd.config.sections import Config
from chopperd.errors import ChopperdError, ConfigError
from chopperd.logs import configure_logging

if TYPE_CHECKING:
    from chopperd.model.report import ReportDocument
    from chopperd.model.samples import SampleSet
    from chopperd.pipeline.reports import ReportOptions, Samples

_EXIT_USAGE: Final = 2

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    log_json: options.LogForm = False,
    log_level: options.LogFrom = None,
) -> None:
    """Say what the GPU clock costs each training step, and why."""
    is_agent = context.invoked_subcommand == AGENT
    configure_logging(log_level or ("info" if is_agent else "warning"), as_json=log_json)
    if context.invoked_subcommand is None:
        write(f"{context.get_help()}\n")
        raise typer.Exit(_EXIT_USAGE)


@app.command()
def version() -> None:
    """Print the version."""
    write(f"{__version__}\n")


@app.command(AGENT)
def run(backend: options.Backend = None, config: options.ConfigPath = None) -> None:
    """Run the agent of this node: sample, keep, analyse, serve, until it is told to stop."""
    raise typer.Exit(run_agent(AgentOptions(config=config, backend=backend)))


@app.command()
def demo(
    seconds: options.Seconds = 5.0,
    preset: options.Preset = "fsdp2-h100",
    seed: options.Seed = 0,
    form: options.Form = "text",
) -> None:
    """Report on a simulated training job; needs no GPU."""
    from chopperd.pipeline.simulated import report_simulation
    from chopperd.simulation.spec import SimulationSpec

    clock = SystemClock()
    spec = SimulationSpec(seed=seed, preset=preset, start_unix_ns=clock.unix_ns())
    with recording(load_config(DEFAULT_PATH), "simulated", None, spec) as finish:
        document = report_simulation(spec, seconds, finish, clock)
    print_report(document, form)


@app.command(context_settings={"allow_interspersed_args": False})
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


@app.command()
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
    settings = load_config(config or DEFAULT_PATH)
    how = report_options(
        settings,
        device_map=parsed_device_map(device_map),
        reference_mhz=reference_mhz,
        step=step,
        last=last,
    )
    clocks = samples_to_join(settings, samples, parsed_zone(tz))
    print_report(_document(traces, clocks, how), form, by_family=by == "family")


@app.command()
def devices(
    backend: options.Backend = None,
    form: options.ListForm = "text",
    config: options.ConfigPath = None,
) -> None:
    """List the GPUs and which of their fields answer."""
    from chopperd.devices.registry import open_backend
    from chopperd.devices.survey import survey
    from chopperd.report.inventory import encode_inventory, render_inventory

    name = backend or load_config(config or DEFAULT_PATH).sampling.backend
    with closing(open_backend(name)) as opened:
        found = survey(opened)
    if form == "json":
        write(encode_inventory(found).decode())
    else:
        print_page(render_inventory(found))


@app.command("check-config")
def check_config(file: options.ConfigFile = None) -> None:
    """Check the configuration and print what is in force, and where each value comes from."""
    from chopperd.report.settings import render_settings

    print_page(render_settings(effective(load_config(file or DEFAULT_PATH))))


def _document(traces: Sequence[Path], samples: "Samples", how: "ReportOptions") -> "ReportDocument":
    from chopperd.pipeline.reports import report_files
    from chopperd.report.progress import reading_progress

    with reading_progress(sys.stderr) as progress:
        return report_files(traces, samples=samples, options=how, progress=progress)

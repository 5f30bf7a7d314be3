"""The command line: parses, calls the pipeline, prints, and turns errors into exit codes.

Heavy imports stand inside the commands, so that `chopperd version` and usage errors are quick.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, tzinfo
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeAlias

import typer
from typer.exceptions import TyperException

from chopperd import __version__
from chopperd.clock import SystemClock
from chopperd.config import DEFAULT_PATH, Config, effective, load_config
from chopperd.errors import BackendUnavailableError, ChopperdError, ConfigError
from chopperd.logs import configure_logging

if TYPE_CHECKING:
    from rich.console import RenderableType

    from chopperd.model.report import ReportDocument
    from chopperd.model.samples import SampleSet
    from chopperd.pipeline import ReportOptions
    from chopperd.simulation.spec import SimulationSpec

_AUTO: Final = "auto"
_EXIT_USAGE: Final = 2
_EXIT_BAD_INPUT: Final = 4
_EXIT_NOT_EXECUTABLE: Final = 126
_EXIT_NOT_FOUND: Final = 127
_EXIT_SIGNAL: Final = 128
_EXIT_INTERRUPTED: Final = _EXIT_SIGNAL + signal.SIGINT
_EXIT_BROKEN_PIPE: Final = _EXIT_SIGNAL + signal.SIGPIPE

Format: TypeAlias = Literal["text", "json", "csv"]
ListFormat: TypeAlias = Literal["text", "json"]
LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]

# The options of all commands; every command names those it takes.
Traces = Annotated[list[Path], typer.Argument(metavar="TRACE...", help="Kineto traces.")]
Command = Annotated[list[str], typer.Argument(metavar="CMD...", help="What to run.")]
ConfigFile = Annotated[Path | None, typer.Argument(metavar="FILE", help="The file to check.")]
Samples = Annotated[Path | None, typer.Option("--samples", help="Clock samples.")]
Step = Annotated[int | None, typer.Option("--step", help="Only this step.")]
Last = Annotated[int | None, typer.Option("--last", min=1, help="Only the last N steps.")]
By = Annotated[Literal["family"] | None, typer.Option("--by", help="Break kernels down.")]
Form = Annotated[Format, typer.Option("--format", help="Form of the report.")]
ListForm = Annotated[ListFormat, typer.Option("--format", help="Form of the list.")]
DeviceMap = Annotated[
    str | None, typer.Option("--device-map", metavar="0=UUID,...", help="GPUs of trace devices.")
]
Reference = Annotated[float | None, typer.Option("--reference-mhz", min=1, help="Top clock.")]
Zone = Annotated[str | None, typer.Option("--tz", help="Time zone of nvidia-smi's local times.")]
ConfigPath = Annotated[Path | None, typer.Option("--config", help=f"Default: {DEFAULT_PATH}")]
Backend = Annotated[str | None, typer.Option("--backend", help="Driver to read GPUs through.")]
Hz = Annotated[float | None, typer.Option("--hz", min=0.1, max=1000, help="Samples a second.")]
Seconds = Annotated[float, typer.Option("--seconds", min=0.5, max=600, help="How long.")]
Preset = Annotated[str, typer.Option("--preset", help="Which simulated node.")]
Seed = Annotated[int, typer.Option("--seed", help="Which course of events.")]
TraceFolder = Annotated[Path, typer.Option("--traces", help="Where CMD writes its traces.")]
Output = Annotated[Path | None, typer.Option("-o", "--output", help="Keep the samples here.")]
RingFd = Annotated[int, typer.Option("--ring-fd", help="Inherited memory file.")]
SettingsJson = Annotated[str, typer.Option("--settings", help="How to sample.")]
SimulationJson = Annotated[str | None, typer.Option("--simulation", help="What to simulate.")]
LogForm = Annotated[bool, typer.Option("--log-json", help="Log lines as JSON.")]
LogFrom = Annotated[LogLevel, typer.Option("--log-level", help="Least severe to show.")]

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def root(context: typer.Context, log_json: LogForm = False, log_level: LogFrom = "warning") -> None:
    """Say what the GPU clock costs each training step, and why."""
    configure_logging(log_level, as_json=log_json)
    if context.invoked_subcommand is None:
        _write(f"{context.get_help()}\n")
        raise typer.Exit(_EXIT_USAGE)


@app.command()
def version() -> None:
    """Print the version."""
    _write(f"{__version__}\n")


@app.command()
def demo(
    seconds: Seconds = 5.0, preset: Preset = "fsdp2-h100", seed: Seed = 0, form: Form = "text"
) -> None:
    """Report on a simulated training job; needs no GPU."""
    from chopperd.pipeline import report_simulation
    from chopperd.simulation.spec import SimulationSpec

    clock = SystemClock()
    spec = SimulationSpec(seed=seed, preset=preset, start_unix_ns=clock.unix_ns())
    finish = start_recording(load_config(DEFAULT_PATH), "simulated", None, spec)
    _print_report(report_simulation(spec, seconds, finish, clock), form)


@app.command(context_settings={"allow_interspersed_args": False})
def record(
    command: Command,
    output: Output = None,
    hz: Hz = None,
    traces: TraceFolder = Path(),
    backend: Backend = None,
    config: ConfigPath = None,
) -> None:
    """Sample clocks while CMD runs, then report on the traces it wrote. Gives CMD's status."""
    settings = load_config(config or DEFAULT_PATH)
    started_unix_ns = SystemClock().unix_ns()
    finish = start_recording(settings, backend, hz)
    status = run_command(command)
    try:
        samples = finish() if finish is not None else None
        if samples is not None and output is not None:
            from chopperd.store.samples import write_samples

            write_samples(output, samples)
        _report_recorded(settings, traces, started_unix_ns, samples)
    except Exception as error:
        if status == 0:
            raise
        _complain(str(error) if isinstance(error, ChopperdError) else repr(error))
    raise typer.Exit(status)


def _report_recorded(
    config: Config, folder: Path, started_unix_ns: int, samples: "SampleSet | None"
) -> None:
    from chopperd.pipeline import kineto_files

    found = kineto_files(folder, newer_than_unix_ns=started_unix_ns)
    if not found:
        _complain(f"no Kineto trace written since the start under {folder.resolve()}; no report")
        return
    _print_report(_document(found, samples, report_options(config)), "text")


@app.command()
def report(
    traces: Traces,
    samples: Samples = None,
    step: Step = None,
    last: Last = None,
    by: By = None,
    form: Form = "text",
    device_map: DeviceMap = None,
    reference_mhz: Reference = None,
    tz: Zone = None,
    config: ConfigPath = None,
) -> None:
    """Say what the clock cost in the steps of one job's traces."""
    options = report_options(
        load_config(config or DEFAULT_PATH),
        device_map=_parsed_device_map(device_map),
        reference_mhz=reference_mhz,
        step=step,
        last=last,
    )
    zone = _parsed_zone(tz)
    sample_set = None
    if samples is not None:
        from chopperd.store.samples import read_samples

        sample_set = read_samples(samples, tz=zone)
    _print_report(_document(traces, sample_set, options), form, by_family=by == "family")


@app.command()
def devices(backend: Backend = None, form: ListForm = "text", config: ConfigPath = None) -> None:
    """List the GPUs and which of their fields answer."""
    from chopperd.devices.registry import open_backend
    from chopperd.devices.survey import survey
    from chopperd.report.inventory import encode_inventory, render_inventory

    name = backend or load_config(config or DEFAULT_PATH).sampling.backend
    with closing(open_backend(name)) as opened:
        found = survey(opened)
    if form == "json":
        _write(encode_inventory(found).decode())
    else:
        _print_page(render_inventory(found))


@app.command("check-config")
def check_config(file: ConfigFile = None) -> None:
    """Check the configuration and print what is in force, and where each value comes from."""
    from chopperd.report.settings import render_settings

    _print_page(render_settings(effective(load_config(file or DEFAULT_PATH))))


@app.command("_sampler", hidden=True)
def sampler(
    ring_fd: RingFd,
    settings: SettingsJson,
    backend: Backend = _AUTO,
    simulation: SimulationJson = None,
) -> None:
    """Sample into shared memory; started by other chopperd processes only."""
    from chopperd.devices.base import BackendOptions
    from chopperd.devices.registry import open_backend
    from chopperd.sampling import process
    from chopperd.sampling.settings import SamplerSettings
    from chopperd.simulation.spec import SimulationSpec

    options = BackendOptions(
        simulation=SimulationSpec.from_json(simulation) if simulation else None
    )
    how = SamplerSettings.from_json(settings)
    raise typer.Exit(process.main(ring_fd, lambda: open_backend(backend or _AUTO, options), how))


def main() -> None:
    """Run the command line of this process and exit with its status."""
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """The exit status of a command line; errors become one line each on stderr."""
    try:
        status = app(list(arguments), prog_name="chopperd", standalone_mode=False)
    except ConfigError as error:
        return _complain(*error.problems, status=error.exit_code)
    except ChopperdError as error:
        return _complain(str(error), status=error.exit_code)
    except TyperException as error:
        return _complain(error.format_message(), status=error.exit_code)
    except OSError as error:
        return _complain(str(error), status=_EXIT_BAD_INPUT)
    except (KeyboardInterrupt, typer.Abort):
        return _EXIT_INTERRUPTED
    return status if isinstance(status, int) else 0


def run_command(command: Sequence[str]) -> int:
    """Run a command to its end, passing signals on; its status as a shell gives it."""
    relay = _Relay()
    before = {number: signal.signal(number, relay) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with subprocess.Popen(command) as process:
            relay.attach(process)
            status = process.wait()
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        status = _EXIT_NOT_FOUND if missing else _EXIT_NOT_EXECUTABLE
        _complain(f"can't run {command[0]}: {error.strerror}")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return _EXIT_SIGNAL - status if status < 0 else status


@dataclass(slots=True)
class _Relay:
    """A signal handler that passes signals on to a child, also those from before its start."""

    process: "subprocess.Popen[bytes] | None" = None
    early: list[int] = field(default_factory=list)

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        if self.process is None:
            self.early.append(number)
        elif number != signal.SIGINT or not _in_foreground():
            self.process.send_signal(number)

    def attach(self, process: "subprocess.Popen[bytes]") -> None:
        self.process = process
        for number in self.early:
            process.send_signal(number)


def _in_foreground() -> bool:
    """Whether a Ctrl-C at the terminal reaches our children without us."""
    try:
        with Path("/dev/tty").open("rb") as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False


def start_recording(
    config: Config,
    backend: str | None,
    hz: float | None,
    simulation: "SimulationSpec | None" = None,
) -> "Callable[[], SampleSet] | None":
    """Start to sample every GPU; gives what ends it, or None where no GPU can be used.

    Raises:
        BackendUnavailableError: The back end was asked for by name and can't be used.
    """
    from chopperd.sampling.recording import Recorder
    from chopperd.sampling.settings import SamplerSettings
    from chopperd.sampling.supervisor import SamplerSupervisor

    name, clock = backend or config.sampling.backend, SystemClock()
    settings = SamplerSettings(
        hz=hz or config.sampling.record_hz,
        slow_hz=config.sampling.slow_hz,
        # There is no driver to spare in a simulation.
        budget_ratio=1.0 if simulation else config.sampling.record_driver_budget_ratio,
    )
    # -P: the job's working directory must not shadow a module of ours.
    start_sampler = [sys.executable, "-P", "-m", "chopperd", "_sampler", "--backend", name]
    if simulation is not None:
        start_sampler += ["--simulation", simulation.to_json()]
    recorder = Recorder(SamplerSupervisor(start_sampler, settings, clock), clock)
    try:
        recorder.start()
    except BackendUnavailableError as error:
        if name != _AUTO:
            raise
        _complain(f"{error}; CMD runs without clock samples")
        return None
    return recorder.finish


def report_options(
    config: Config,
    *,
    device_map: dict[int, str] | None = None,
    reference_mhz: float | None = None,
    step: int | None = None,
    last: int | None = None,
) -> "ReportOptions":
    """What the configuration and a command line say about a report; the command line wins."""
    from chopperd.pipeline import ReportOptions
    from chopperd.traces.source import ReadLimits

    return ReportOptions(
        device_map=device_map,
        reference_mhz=reference_mhz or config.reference.sm_clock_mhz,
        limits=ReadLimits(
            stored_bytes=config.ingest.max_stored_bytes,
            expanded_bytes=config.ingest.max_decompressed_bytes,
        ),
        step=step,
        last=last,
        data_wait_patterns=config.traces.data_wait_patterns,
    )


def _document(
    traces: Sequence[Path], samples: "SampleSet | None", options: "ReportOptions"
) -> "ReportDocument":
    from chopperd.pipeline import report_files
    from chopperd.report.progress import reading_progress

    with reading_progress(sys.stderr) as progress:
        return report_files(traces, samples=samples, options=options, progress=progress)


def _parsed_device_map(text: str | None) -> dict[int, str] | None:
    """`0=GPU-uuid,1=...` as a mapping."""
    if text is None:
        return None
    pairs = [part.partition("=") for part in text.split(",")]
    wrong = ["".join(p) for p in pairs if not (p[0].strip().isdecimal() and p[2].strip())]
    if wrong:
        raise ConfigError([f"--device-map: {part!r} is not DEVICE=GPU" for part in wrong])
    return {int(device): gpu.strip() for device, _, gpu in pairs}


def _parsed_zone(name: str | None) -> tzinfo | None:
    if name is None:
        return None
    if name.upper() == "UTC":
        return UTC
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name)
    except (ValueError, LookupError, OSError) as error:
        raise ConfigError([f"--tz: {name!r} is no time zone such as Europe/Berlin"]) from error


def _print_report(document: "ReportDocument", form: Format, *, by_family: bool = False) -> None:
    from chopperd.report.formats import formatted

    _write(formatted(document, form, by_family=by_family, styled=sys.stdout.isatty()))


def _print_page(page: "RenderableType") -> None:
    from chopperd.report.text import page_text

    _write(page_text(page, styled=sys.stdout.isatty()))


def _write(text: str) -> None:
    """Print to stdout; a reader that has gone ends the command quietly."""
    try:
        print(text, end="", flush=True)
    except BrokenPipeError:
        # Whatever is written or flushed later must not fail again, aloud, at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(_EXIT_BROKEN_PIPE) from None


def _complain(*messages: str, status: int = 0) -> int:
    """Print each message as one line on stderr; gives `status`, so that it can be returned."""
    for message in messages:
        print(f"chopperd: {' '.join(message.splitlines())}", file=sys.stderr)
    return status

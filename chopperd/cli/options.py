"""The options of all commands, and what their texts mean; every command names those it takes."""

import os
from dataclasses import replace
from datetime import UTC, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import typer

from chopperd.config.load import DEFAULT_PATH
from chopperd.config.sections import Config
from chopperd.errors import ConfigError

if TYPE_CHECKING:
    from chopperd.pipeline.reports import ReportOptions

Format: TypeAlias = Literal["text", "json", "csv", "parquet"]
ListFormat: TypeAlias = Literal["text", "json"]
LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]

Traces = Annotated[
    list[Path] | None,
    typer.Argument(metavar="[TRACE]...", help="Kineto traces; without any the agent is asked."),
]
Trace = Annotated[Path, typer.Argument(metavar="TRACE", help="A Kineto trace.")]
Command = Annotated[list[str], typer.Argument(metavar="CMD...", help="What to run.")]
ConfigFile = Annotated[Path | None, typer.Argument(metavar="FILE", help="The file to check.")]
Samples = Annotated[
    Path | None,
    typer.Option(
        "--samples", help="Clock samples of its time; default: what the local agent recorded."
    ),
]
Step = Annotated[int | None, typer.Option("--step", help="Only this step, on every device.")]
Last = Annotated[int | None, typer.Option("--last", min=1, help="Only the last N steps.")]
Job = Annotated[str | None, typer.Option("--job", help="Only of this job.")]
Run = Annotated[str | None, typer.Option("--run", help="Only of this run.")]
Rank = Annotated[int | None, typer.Option("--rank", min=0, help="Only this rank.")]
Gpu = Annotated[str | None, typer.Option("--gpu", help="Only the GPU of this label.")]
LastSteps = Annotated[int, typer.Option("--last", min=1, help="How many steps.")]
Stay = Annotated[
    bool | None,
    typer.Option("--stay/--no-stay", help="Go on until Ctrl-C; the default at a terminal."),
]
Once = Annotated[bool, typer.Option("--once", help="Print one table and end.")]
By = Annotated[
    Literal["family", "operation", "layer", "phase"] | None,
    typer.Option("--by", help="Break the device's work down; the host's, where no device worked."),
]
Form = Annotated[Format, typer.Option("--format", help="Form of the report.")]
ReportForm = Annotated[
    Format, typer.Option("--format", help="Form of the report; csv with --by is that table alone.")
]
ListForm = Annotated[ListFormat, typer.Option("--format", help="Form of the list.")]
DeviceMap = Annotated[
    str | None,
    typer.Option(
        "--device-map", metavar="0=UUID,...", help="Which GPU each device of the trace is."
    ),
]
Reference = Annotated[
    float | None,
    typer.Option(
        "--reference-mhz", min=1, help="Clock to measure losses against; default: the highest."
    ),
]
Zone = Annotated[str | None, typer.Option("--tz", help="Time zone of nvidia-smi's local times.")]
ConfigPath = Annotated[Path | None, typer.Option("--config", help=f"Default: {DEFAULT_PATH}")]
Backend = Annotated[str | None, typer.Option("--backend", help="Driver to read GPUs through.")]
Hz = Annotated[float | None, typer.Option("--hz", min=0.1, max=1000, help="Samples a second.")]
Seconds = Annotated[float, typer.Option("--seconds", min=0.5, max=600, help="How long.")]
Preset = Annotated[str, typer.Option("--preset", help="Which simulated node.")]
Seed = Annotated[int, typer.Option("--seed", help="Which course of events.")]
TraceFolder = Annotated[Path, typer.Option("--traces", help="Where CMD writes its traces.")]
Output = Annotated[Path | None, typer.Option("-o", "--output", help="Keep the samples here.")]
CopyTo = Annotated[Path, typer.Option("-o", "--output", help="Write it here; .gz compresses.")]
ReportTo = Annotated[Path | None, typer.Option("-o", "--output", help="Write the report here.")]
LogForm = Annotated[bool, typer.Option("--log-json", help="Log lines as JSON.")]
LogFrom = Annotated[LogLevel | None, typer.Option("--log-level", help="Least severe to show.")]


def report_options(
    config: Config,
    *,
    device_map: dict[int, str] | None = None,
    reference_mhz: float | None = None,
    step: int | None = None,
    last: int | None = None,
) -> "ReportOptions":
    """What the configuration and a command line say about a report; the command line wins."""
    from chopperd.pipeline.configured import configured_options
    from chopperd.report.document import StepSelection

    options = configured_options(config)
    join = replace(options.join, device_map=device_map or {}, reference_mhz=reference_mhz)
    selection = StepSelection(step=step, last=last)
    return replace(options, join=join, selection=selection, threads=reading_threads())


def reading_threads() -> int:
    """How many threads read a trace.

    More than two would wait for the one that feeds them.
    """
    return min(len(os.sched_getaffinity(0)), 2)


def parsed_device_map(text: str | None) -> dict[int, str] | None:
    """`0=GPU-uuid,1=...` as a mapping.

    Raises:
        ConfigError: Which parts are none.
    """
    if text is None:
        return None
    pairs = [part.partition("=") for part in text.split(",")]
    wrong = ["".join(p) for p in pairs if not (p[0].strip().isdecimal() and p[2].strip())]
    if wrong:
        raise ConfigError([f"--device-map: {part!r} is not DEVICE=GPU" for part in wrong])
    return {int(device): gpu.strip() for device, _, gpu in pairs}


def parsed_zone(name: str | None) -> tzinfo | None:
    """The time zone of this name.

    Raises:
        ConfigError: There is none.
    """
    if name is None:
        return None
    if name.upper() == "UTC":
        return UTC
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name)
    except (ValueError, LookupError, OSError) as error:
        raise ConfigError([f"--tz: {name!r} is no time zone such as Europe/Berlin"]) from error

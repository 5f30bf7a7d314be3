"""The options of all commands, and what their texts mean; commands are decorated with theirs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, get_args

import click

from chopperd.config.load import DEFAULT_PATH
from chopperd.config.sections import Config
from chopperd.errors import ConfigError

if TYPE_CHECKING:
    from chopperd.pipeline.reports import ReportOptions

Format: TypeAlias = Literal["text", "json", "csv", "parquet"]
ListFormat: TypeAlias = Literal["text", "json"]
Breakdown: TypeAlias = Literal["family", "operation", "layer", "phase"]
LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]

PATH: Final = click.Path(path_type=Path)
HZ: Final = click.FloatRange(0.1, 1000)
_GZIP: Final = ".gz"
_FORM_BY_SUFFIX: Final[Mapping[str, Format]] = {
    ".txt": "text",
    ".json": "json",
    ".csv": "csv",
    ".parquet": "parquet",
}
_FORMATS: Final = click.Choice(get_args(Format))
_LIST_FORMATS: Final = click.Choice(get_args(ListFormat))
_BREAKDOWNS: Final = click.Choice(get_args(Breakdown))
_LOG_LEVELS: Final = click.Choice(get_args(LogLevel))

traces = click.argument(
    "traces",
    nargs=-1,
    type=PATH,
    metavar="[TRACE]...",
    help="Kineto traces; without any the agent is asked.",
)
trace = click.argument("trace", type=PATH, metavar="TRACE", help="A Kineto trace.")
command = click.argument(
    "command",
    nargs=-1,
    required=True,
    type=click.UNPROCESSED,
    metavar="CMD...",
    help="What to run.",
)
config_file = click.argument(
    "file", required=False, type=PATH, metavar="[FILE]", help="The file to check."
)
samples = click.option(
    "--samples",
    type=PATH,
    help="Clock samples of its time; default: what the local agent recorded.",
)
step = click.option("--step", type=int, help="Only this step, on every device.")
last = click.option("--last", type=click.IntRange(min=1), help="Only the last N steps.")
job = click.option("--job", help="Only of this job.")
run = click.option("--run", help="Only of this run.")
rank = click.option("--rank", type=click.IntRange(min=0), help="Only this rank.")
gpu = click.option("--gpu", help="Only the GPU of this label.")
last_steps = click.option("--last", type=click.IntRange(min=1), default=10, help="How many steps.")
last_traces = click.option(
    "--last", type=click.IntRange(1, 1000), default=50, help="How many traces."
)
last_drops = click.option(
    "--last", type=click.IntRange(1, 1000), default=50, help="How many drops."
)
stay = click.option(
    "--stay/--no-stay", default=None, help="Go on until Ctrl-C; the default at a terminal."
)
once = click.option("--once", is_flag=True, help="Print one table and end.")
by = click.option(
    "--by",
    type=_BREAKDOWNS,
    help="Break the device's work down; the host's, where no device worked.",
)
form = click.option("--format", "form", type=_FORMATS, default="text", help="Form of the report.")
report_form = click.option(
    "--format",
    "form",
    type=_FORMATS,
    help="Form of the report; default: what -o's suffix says, else text.",
)
list_form = click.option(
    "--format", "form", type=_LIST_FORMATS, default="text", help="Form of the list."
)
device_map = click.option(
    "--device-map",
    metavar="[RANK:]DEV=GPU,...",
    help="Which GPU (label, UUID, PCI bus id) each device of a trace is, of that rank or of any; "
    "pci: devices are numbered in PCI order.",
)
rank_of = click.option(
    "--rank-of", multiple=True, metavar="FILE=N", help="The rank of a trace that names it wrongly."
)
merge = click.option(
    "--merge", is_flag=True, help="Also report on files of several jobs or runs, side by side."
)
reference = click.option(
    "--reference-mhz",
    type=click.FloatRange(min=1),
    help="Clock to measure losses against; default: the highest.",
)
zone = click.option("--tz", help="Time zone of nvidia-smi's local times.")
config_path = click.option("--config", type=PATH, help=f"Default: {DEFAULT_PATH}")
backend = click.option("--backend", help="Driver to read GPUs through.")
hz = click.option("--hz", type=HZ, help="Samples a second.")
seconds = click.option("--seconds", type=click.FloatRange(0.5, 600), default=5.0, help="How long.")
preset = click.option("--preset", default="fsdp2-h100", help="Which simulated node.")
seed = click.option("--seed", default=0, help="Which course of events.")
trace_folder = click.option(
    "--traces", type=PATH, default=Path(), help="Where CMD writes its traces."
)
output = click.option("-o", "--output", type=PATH, help="Keep the samples here.")
copy_to = click.option(
    "-o", "--output", type=PATH, required=True, help="Write it here; .gz compresses."
)
report_to = click.option(
    "-o",
    "--output",
    type=PATH,
    help="Write the report here; .txt, .json, .csv and .parquet choose the form, .gz compresses.",
)
log_form = click.option("--log-json", is_flag=True, help="Log lines as JSON.")
log_from = click.option("--log-level", type=_LOG_LEVELS, help="Least severe to show.")


def report_options(
    config: Config,
    *,
    device_map: str | None = None,
    reference_mhz: float | None = None,
    step: int | None = None,
    last: int | None = None,
    merge: bool = False,
) -> "ReportOptions":
    """What the configuration and a command line say about a report; the command line wins.

    Raises:
        ConfigError: The device map is none.
    """
    from chopperd.model.run import device_map_of
    from chopperd.pipeline.configured import configured_options
    from chopperd.report.build.document import StepSelection

    options = configured_options(config)
    join = replace(options.join, reference_mhz=reference_mhz)
    if device_map is not None:
        join = replace(join, device_map=device_map_of(device_map, "--device-map"))
    selection = StepSelection(step=step, last=last)
    return replace(options, join=join, selection=selection, merge=merge)


def chosen_form(form: Format | None, output: Path | None) -> Format:
    """The form of a report: as asked for, else as the output's suffix says, else text.

    Raises:
        ConfigError: The suffix says another form than is asked for, or one that there is not.
    """
    suffixes = [each for each in (output.suffixes if output else ()) if each != _GZIP]
    suffix = suffixes[-1].lower() if suffixes else ""
    by_suffix = _FORM_BY_SUFFIX.get(suffix)
    if form is None and suffix and by_suffix is None:
        known = ", ".join(_FORM_BY_SUFFIX)
        raise ConfigError([f"-o {output}: {suffix} names no form; end in {known} or say --format"])
    if form is not None and by_suffix not in {None, form}:
        raise ConfigError([f"-o {output} is {by_suffix} by its suffix, --format says {form}"])
    return form or by_suffix or "text"


def parsed_ranks(texts: Sequence[str], traces: Sequence[Path]) -> dict[Path, int]:
    """Each `FILE=N` as the rank of one of the traces, which may be named without its folder.

    Raises:
        ConfigError: Which are none, or name no trace or several.
    """
    ranks: dict[Path, int] = {}
    problems = []
    for text in texts:
        name, _, rank = text.rpartition("=")
        named = [trace for trace in traces if name in {str(trace), trace.name}]
        if not name or not rank.isdecimal():
            problems.append(f"--rank-of: {text!r} is not FILE=N")
        elif len(named) != 1:
            problem = (
                "several traces have that name: say the whole path"
                if named
                else "no trace has that name"
            )
            problems.append(f"--rank-of: {name!r}: {problem}")
        else:
            ranks[named[0]] = int(rank)
    if problems:
        raise ConfigError(problems)
    return ranks


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

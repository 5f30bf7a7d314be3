"""Options of all commands as decorators, and parsing of their values."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, get_args

import click
from msgspec.structs import replace

from chopperd.config.load import DEFAULT_PATH, load_config
from chopperd.config.sections import Config
from chopperd.config.table import why_no_pattern
from chopperd.errors import ConfigError

if TYPE_CHECKING:
    from chopperd.client.agent import AgentClient
    from chopperd.pipeline.reports import ReportOptions

Format: TypeAlias = Literal["text", "markdown", "json", "html", "csv", "parquet"]
CompareFormat: TypeAlias = Literal["text", "line", "markdown", "json"]
Allowed: TypeAlias = Literal["gpus", "reference", "power-limit"]
ListFormat: TypeAlias = Literal["text", "json"]
Breakdown: TypeAlias = Literal[
    "family", "operation", "layer", "phase", "annotation", "idle", "drop", "memory"
]
LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]

PATH: Final = click.Path(path_type=Path)
HZ: Final = click.FloatRange(0.1, 1000)
_GZIP: Final = ".gz"
_FORM_BY_SUFFIX: Final[Mapping[str, Format]] = {
    ".txt": "text",
    ".md": "markdown",
    ".json": "json",
    ".html": "html",
    ".csv": "csv",
    ".parquet": "parquet",
}


def examples(first: str, second: str) -> str:
    """Return the end of a command's help: two command lines to copy, at most 76 characters each."""
    return f"\b\nExamples:\n  {first}\n  {second}"


def documented(first: str, second: str) -> Callable[[Callable[..., None]], click.Command]:
    """Make a command of a function, with `examples` at the end of its help."""
    return click.command(epilog=examples(first, second))


_FORMATS, _COMPARE_FORMATS, _LIST_FORMATS, _BREAKDOWNS, _LOG_LEVELS = (
    click.Choice(get_args(each))
    for each in (Format, CompareFormat, ListFormat, Breakdown, LogLevel)
)

traces = click.argument(
    "traces", nargs=-1, type=PATH, metavar="[TRACE]...", help="Kineto traces; default: the agent's."
)
ranks_traces = click.argument(
    "traces", nargs=-1, required=True, type=PATH, metavar="TRACE...", help="Kineto traces of a job."
)
compared = click.argument(
    "files",
    nargs=-1,
    required=True,
    type=click.Path(readable=False),
    metavar="A... [--] B... [-- C...]...",
    help="Reports in JSON or HTML, or traces and samples.",
)
command = click.argument(
    "command",
    nargs=-1,
    required=True,
    type=click.Path(readable=False),
    metavar="CMD...",
    help="To run.",
)
config_file = click.argument(
    "file", required=False, type=PATH, metavar="[FILE]", help="The file to check."
)
samples = click.option(
    "--samples", type=PATH, help="Clock samples; default: those that the local agent recorded."
)
memory = click.option(
    "--memory",
    type=PATH,
    multiple=True,
    metavar="FILE",
    help="Snapshot of torch's memory (_dump_snapshot), one a trace: by rankN in its name, else in "
    "order.",
)
step = click.option("--step", type=int, help="Only this step, on every device.")
last = click.option("--last", type=click.IntRange(min=1), help="Only the last N steps.")
job = click.option("--job", help="Only this job.")
run = click.option("--run", help="Only this run.")
rank = click.option("--rank", type=click.IntRange(min=0), help="Only this rank.")
gpu = click.option("--gpu", help="Only the GPU with this label.")
last_steps = click.option("--last", type=click.IntRange(min=1), default=10, help="How many steps.")
last_traces, last_drops = (
    click.option("--last", type=click.IntRange(1, 1000), default=50, help=f"How many {what}.")
    for what in ("traces", "drops")
)
stay = click.option(
    "--stay/--no-stay", default=None, help="Continue until Ctrl-C; default: at a terminal."
)
once = click.option("--once", is_flag=True, help="Print one table and exit.")
by = click.option(
    "--by",
    type=_BREAKDOWNS,
    help="Break down the work of devices, or of the host if there is none; idle: who held a GPU; "
    "drop: the work in drops of clocks; memory: each step's device memory.",
)
form = click.option("--format", "form", type=_FORMATS, default="text", help="Output format.")
report_form = click.option(
    "--format", "form", type=_FORMATS, help="Output format; default: by -o's suffix, else text."
)
compare_form = click.option(
    "--format",
    "form",
    type=_COMPARE_FORMATS,
    help="Output format, line: one for CI; default: by -o's suffix, else text.",
)
list_form = click.option(
    "--format", "form", type=_LIST_FORMATS, default="text", help="Output format."
)
device_map = click.option(
    "--device-map",
    metavar="[RANK:]DEV=GPU,...",
    help="GPU (label, UUID, PCI bus id) of each device in the traces, of one rank or of all; "
    "pci: devices are numbered in PCI order.",
)
rank_of = click.option(
    "--rank-of", multiple=True, metavar="FILE=N", help="Rank of a trace that has a wrong one."
)
step_marker = click.option(
    "--step-marker",
    metavar="REGEX",
    help="Annotations that mark steps, before any others; a group may have the step's number.",
)
merge = click.option(
    "--merge", is_flag=True, help="Allow files of several jobs or runs in one report."
)
reference = click.option(
    "--reference-mhz",
    type=click.FloatRange(min=1),
    help="Reference clock of losses; default: the highest.",
)
zone = click.option("--tz", help="Time zone of local times in nvidia-smi's samples.")
config_path = click.option("--config", type=PATH, help=f"Default: {DEFAULT_PATH}")
backend = click.option("--backend", help="Driver to read GPUs through.")
hz = click.option("--hz", type=HZ, help="Samples a second.")
seconds = click.option(
    "--seconds", type=click.FloatRange(0.5, 600), default=5.0, help="Length of each capture."
)
preset = click.option("--preset", default="fsdp2-h100", help="Simulated node and job.")
seed = click.option("--seed", default=0, help="Seed of the simulation.")
trace_folder = click.option(
    "--traces", type=PATH, default=Path(), help="Folder that CMD writes its traces to."
)
output = click.option("-o", "--output", type=PATH, help="File to save the samples in.")
copy_to = click.option(
    "-o",
    "--output",
    type=PATH,
    help="File to write; .gz compresses. Default: TRACE's name with .clocks, in this folder.",
)
opens = click.option(
    "--open", "opens", is_flag=True, help="Serve the file once, to the Perfetto UI in a browser."
)
report_to = click.option(
    "-o",
    "--output",
    type=PATH,
    help="File to write; .txt, .md, .json, .html, .csv and .parquet choose the format, .gz "
    "compresses.",
)
compare_to = click.option(
    "-o",
    "--output",
    type=PATH,
    help="File to write; .txt, .md and .json choose the format, .gz compresses.",
)
allow = click.option(
    "--allow",
    multiple=True,
    type=click.Choice(get_args(Allowed)),
    help="Compare although these differ: GPUs, their reference clocks or power limits.",
)
fail_over = click.option(
    "--fail-over",
    metavar="PERCENT",
    help="Exit with 1 if B's step is longer than A's by more than this, or nobody can tell.",
)
log_form = click.option("--log-json", is_flag=True, help="Log lines as JSON.")
log_from = click.option("--log-level", type=_LOG_LEVELS, help="Lowest level to show.")


def agent_client(config: Path | None) -> "AgentClient":
    """Return a client of this node's agent at its configured address."""
    from chopperd.client.agent import AgentClient

    return AgentClient.of(load_config(config or DEFAULT_PATH))


def report_options(
    config: Config,
    *,
    device_map: str | None = None,
    reference_mhz: float | None = None,
    step: int | None = None,
    last: int | None = None,
    merge: bool = False,
    step_marker: str | None = None,
    hashes: bool = True,
    memory: "Mapping[int | str, str] | None" = None,
) -> "ReportOptions":
    """Return the options of a report: the configuration's, overridden by the command line.

    Raises `ConfigError` if the device map, or the pattern of step markers, is invalid.
    """
    from chopperd.model.run import device_map_of
    from chopperd.pipeline.reports import configured_options
    from chopperd.report.build.document import StepSelection

    options = configured_options(config)
    if step_marker is not None:
        if (why := why_no_pattern(step_marker)) is not None:
            raise ConfigError([f"--step-marker: {step_marker!r} {why}"])
        options = replace(options, step_marker=step_marker)
    join = replace(options.join, reference_mhz=reference_mhz, drawn_step=step)
    if device_map is not None:
        join = replace(join, device_map=device_map_of(device_map, "--device-map"))
    selection = StepSelection(step=step, last=last)
    return replace(
        options, join=join, selection=selection, merge=merge, hashes=hashes, memory=memory or {}
    )


def chosen_form(form: Format | None, output: Path | None) -> Format:
    """Return the format of a report: as requested, else by the output's suffix, else text.

    Raises:
        ConfigError: The suffix is unknown or contradicts the requested format.
    """
    suffixes = [each for each in (output.suffixes if output else ()) if each != _GZIP]
    suffix = suffixes[-1].lower() if suffixes else ""
    by_suffix = _FORM_BY_SUFFIX.get(suffix)
    if form is None and suffix and by_suffix is None:
        known = ", ".join(_FORM_BY_SUFFIX)
        message = f"-o {output}: {suffix} is no known format; use {known} or --format"
        raise ConfigError([message])
    if form is not None and by_suffix not in {None, form}:
        raise ConfigError([f"-o {output} is {by_suffix} by its suffix, but --format is {form}"])
    return form or by_suffix or "text"


def chosen_compare_form(form: CompareFormat | None, output: Path | None) -> CompareFormat:
    """Return the format of a comparison, as `chosen_form`.

    Raises:
        ConfigError: The suffix has no format of comparisons, or contradicts the requested one.
    """
    if form == "line":
        return form
    match chosen_form(form, output):
        case "text" | "markdown" | "json" as chosen:
            return chosen
    raise ConfigError([f"-o {output}: comparisons are written as .txt, .md or .json"])


def parsed_ranks(texts: Sequence[str], traces: Sequence[Path]) -> dict[Path, int]:
    """Parse texts `FILE=N` to ranks by trace; FILE may be a trace's name without its folder.

    Raises:
        ConfigError: Texts of another form, or that name no trace or several.
    """
    ranks: dict[Path, int] = {}
    problems = []
    for text in texts:
        name, _, rank = text.rpartition("=")
        named = [trace for trace in traces if name in {str(trace), trace.name}]
        if not name or not rank.isdecimal():
            problems.append(f"--rank-of: {text!r} is not FILE=N")
        elif len(named) != 1:
            count = "several traces have" if named else "no trace has"
            problems.append(f"--rank-of: {name!r}: {count} that name; give its whole path")
        else:
            ranks[named[0]] = int(rank)
    if problems:
        raise ConfigError(problems)
    return ranks


def parsed_memory(files: Sequence[Path], traces: Sequence[Path]) -> dict[int | str, str]:
    """Return snapshots of memory by the ranks in their names, or else in order, by trace.

    In order also where a name has no rank, or if there is one file for one trace.

    Raises:
        ConfigError: There are more of them than traces.
    """
    from chopperd.traces.read.meta import rank_of

    ranks = [rank for file in files if (rank := rank_of({}, file.name)[0]) is not None]
    if len(files) > len(traces):
        raise ConfigError([f"--memory: {len(files)} files for {len(traces)} traces"])
    if len(set(ranks)) == len(files) and len(traces) > 1:
        return dict(zip(ranks, map(str, files), strict=True))
    return dict(zip(map(str, traces), map(str, files), strict=False))


def parsed_zone(name: str | None) -> tzinfo | None:
    """Return the time zone with this name; raise `ConfigError` if there is none. None for None."""
    if name is None:
        return None
    if name.upper() == "UTC":
        return UTC
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name)
    except (ValueError, LookupError, OSError) as error:
        raise ConfigError([f"--tz: {name!r} is not a time zone such as Europe/Berlin"]) from error

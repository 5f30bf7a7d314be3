"""The command that compares runs (`compare`)."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, get_args

import click

from chopperd import __version__
from chopperd.cli import options
from chopperd.cli.output import complain, print_comparison, reading_progress
from chopperd.config.load import DEFAULT_PATH, load_config
from chopperd.errors import ConfigError, IncomparableError, UnrelatedTracesError

if TYPE_CHECKING:
    from chopperd.model.comparison import ComparisonDocument
    from chopperd.model.report import ReportDocument
    from chopperd.pipeline.reports import Progress, ReportOptions, Samples

_EACH: Final = "Traces of one side are one run: write a report on each run, and compare the reports"
#: Stands for `--`, which click would take out: a path that no file can have.
_BETWEEN: Final = "/dev/null/--"


class _Sides(click.Command):
    """A command whose arguments are in groups, with `--` between them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse, with `--` as one of the arguments."""
        return super().parse_args(ctx, [_BETWEEN if each == "--" else each for each in args])

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the usage line."""
        formatter.write_usage(ctx.command_path, "[OPTIONS] A... [--] B... [-- C...]...")


@click.command(
    cls=_Sides,
    epilog=options.examples(
        "chopperd compare before.json after.json --fail-over 2%",
        "chopperd compare a/*.json.gz a.csv -- b/*.json.gz b.csv --format markdown",
    ),
)
@options.compared
@options.compare_form
@options.compare_to
@options.allow
@options.fail_over
@options.config_path
def compare(
    files: Sequence[str],
    form: options.CompareFormat | None,
    output: Path | None,
    allow: Sequence[options.Allowed],
    fail_over: str | None,
    config: Path | None,
) -> None:
    """Compare runs: is B slower than A, by how much, and in which part of the step.

    A side is reports in JSON, each of a run, or the traces of one run and their samples. With three
    or more sides: the table of power limits against step time and energy.
    """
    sides = _sides(files)
    in_form = options.chosen_compare_form(form, output)
    most = None if fail_over is None else _ratio(fail_over)
    document = _compared(sides, allow, config)
    print_comparison(document, in_form, output=output)
    if most is not None:
        _check(document, most)


def _sides(files: Sequence[str]) -> list[list[Path]]:
    """Return the files of each side; two files alone are two sides.

    Raises:
        ConfigError: There are fewer than two, or one is empty.
    """
    if len(files) == 2 and _BETWEEN not in files:
        return [[Path(each)] for each in files]
    sides: list[list[Path]] = [[]]
    for each in files:
        if each == _BETWEEN:
            sides.append([])
        else:
            sides[-1].append(Path(each))
    if len(sides) < 2 or not all(sides):
        raise ConfigError(["compare takes two sides, with -- between them: A... -- B..."])
    return sides


def _ratio(text: str) -> float:
    """Return a percentage ("2%", "2") as a ratio."""
    try:
        value = float(text.strip().removesuffix("%")) / 100
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise ConfigError([f"--fail-over: {text!r} is no percentage such as 2%"])
    return value


def read_side(
    paths: Sequence[Path],
    *,
    samples: "Samples",
    options: "ReportOptions",
    progress: "Progress | None" = None,
) -> "tuple[ReportDocument, ...]":
    """Return the reports of one side: those in files, and one on all its traces.

    Args:
        paths: Reports in JSON (each is a run), traces (all of one run), and at most one file of
            samples for these.
        samples: Those of traces without a file of samples.
        options: Of reports on traces.
        progress: As of `report_files`.

    Raises:
        ConfigError: There are samples and no trace, or several files of them.
        StoreError, TraceFormatError, UnrelatedTracesError: A file can't be used.
    """
    from chopperd.pipeline.reports import CHOOSE, report_files
    from chopperd.report.forms.schema import read_document
    from chopperd.store.samples.files import read_samples
    from chopperd.traces.read.sniff import is_kineto, is_report

    traces = [path for path in paths if is_kineto(path)]
    reports = [path for path in paths if path not in traces and is_report(path)]
    others = [path for path in paths if path not in traces and path not in reports]
    if len(others) > 1 or (others and not traces):
        listed = ", ".join(map(str, others))
        for path in others:
            read_samples(path)  # says what is wrong with a file that is none
        why = "one file of samples a side" if traces else "samples have no steps: add the traces"
        raise ConfigError([f"{listed}: {why}"])
    found = [read_document(path) for path in reports]
    if traces:
        clocks = read_samples(others[0]) if others else samples
        try:
            of_traces = report_files(traces, samples=clocks, options=options, progress=progress)
        except UnrelatedTracesError as error:
            why = str(error).removesuffix(CHOOSE)
            raise UnrelatedTracesError(f"{why}{_EACH}") from error
        found.append(of_traces)
    return tuple(found)


def _compared(
    sides: Sequence[Sequence[Path]], allow: Sequence[options.Allowed], config: Path | None
) -> "ComparisonDocument":
    from chopperd.cli.recording import samples_to_join
    from chopperd.correlate.compared_reports import compare as compare_reports

    settings = load_config(config or DEFAULT_PATH)
    how, samples = options.report_options(settings), samples_to_join(settings, None)
    with reading_progress(sys.stderr) as progress:
        read = [read_side(s, samples=samples, options=how, progress=progress) for s in sides]
    try:
        return compare_reports(read, version=__version__, allow=allow)
    except IncomparableError as error:
        if error.allow not in get_args(options.Allowed):
            raise
        message = f"{error}; to compare them all the same: --allow {error.allow}"
        raise IncomparableError(message, allow=error.allow) from error


def _check(document: "ComparisonDocument", most: float) -> None:
    """Exit with 1 if a side is slower than A by more than this, or if nobody can tell."""
    failed = False
    for each in document.comparisons:
        if each.step.verdict == "too_few":
            complain(f"--fail-over: {each.name} and A have too few steps to tell")
            failed = True
        elif each.step.verdict == "higher" and (each.step.change or 0.0) > most:
            failed = True
    if failed:
        raise click.exceptions.Exit(1)

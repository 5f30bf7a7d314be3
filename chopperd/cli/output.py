"""All printing: reports and pages on stdout, messages on stderr."""

import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Final, TextIO, TypeAlias

from chopperd.errors import ConfigError
from chopperd.safe_text import visible, visible_lines

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import RenderableType

    from chopperd.cli.options import CompareFormat, Format
    from chopperd.model.comparison import ComparisonDocument
    from chopperd.model.report import Breakdown, ReportDocument
    from chopperd.model.samples import SamplesReport


_NAME: Final = "chopperd"
_MOST_NEAR: Final = 3
_EXIT_BROKEN_PIPE: Final = 128 + signal.SIGPIPE


def open_standard_files() -> None:
    """Open the null device as each standard file that this process was started without.

    Else a file opened later, such as a socket, would take their numbers and receive their output.
    """
    for fd, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number: this one
            setattr(sys, name, os.fdopen(fd, mode, encoding="utf-8", closefd=False))


def print_report(
    document: "ReportDocument",
    form: "Format",
    *,
    by: "Breakdown | None" = None,
    output: "Path | None" = None,
) -> None:
    """Print a report in a format, or write it to a file, compressed if its name ends in `.gz`.

    Raises:
        ConfigError: The format is for files only, or needs a package that is not installed.
        StoreError: The file can't be written.
    """
    styled = output is None and sys.stdout.isatty()
    if form == "parquet":
        data = _parquet(document, to_terminal=styled)
    else:
        from chopperd.report.forms.schema import formatted

        width = shutil.get_terminal_size().columns if styled else None
        text = formatted(document, form, by=by, styled=styled, width=width)
        if output is None:
            _write_safe(text)
            return
        data = text.encode()
    if output is None:
        with reader_may_go():
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        return
    _save(data, output)


def print_samples_report(
    report: "SamplesReport", form: "Format", *, output: "Path | None" = None
) -> None:
    """Print a report on samples alone, as `print_report`; formats of steps raise `ConfigError`."""
    from chopperd.report.text.page import page_text
    from chopperd.report.text.samples_page import encode_samples_report, samples_page

    if form not in {"html", "json", "text"}:
        why = "is made of steps, and there is no trace: use json or html"
        raise ConfigError([f"--format {form} {why}"])
    if form == "text" and output is None:
        print_page(samples_page(report))
        return
    if form == "html":
        from chopperd.report.html.page import render_samples_html

        text = render_samples_html(report)
    elif form == "json":
        text = encode_samples_report(report).decode()
    else:
        text = page_text(samples_page(report))
    if output is None:
        _write_safe(text)
    else:
        _save(text.encode(), output)


def print_comparison(
    document: "ComparisonDocument", form: "CompareFormat", *, output: "Path | None" = None
) -> None:
    """Print a comparison in a format, or write it to a file, as `print_report`.

    Raises:
        StoreError: The file can't be written.
    """
    from chopperd.report.text import comparison
    from chopperd.report.text.page import LEAST_WIDTH, page_text

    if form == "text":
        styled = output is None and sys.stdout.isatty()
        width = shutil.get_terminal_size().columns if styled else LEAST_WIDTH
        page = comparison.comparison_page(document)
        text = page_text(page, styled=styled, width=width)
    elif form == "json":
        text = comparison.encode_comparison(document).decode()
    elif form == "markdown":
        text = comparison.comparison_markdown(document)
    else:
        text = comparison.comparison_line(document)
    if output is None:
        _write_safe(text)
    else:
        _save(text.encode(), output)


def _save(data: bytes, output: "Path") -> None:
    import gzip

    from chopperd.store.disk import replaced_file

    with replaced_file(output) as file:
        file.write(gzip.compress(data, mtime=0) if output.suffix == ".gz" else data)


def _parquet(document: "ReportDocument", *, to_terminal: bool) -> bytes:
    if to_terminal:
        raise ConfigError(["--format parquet: not for a terminal; name a file with -o"])
    from chopperd.report.forms.parquet import parquet_bytes

    try:
        return parquet_bytes(document)
    except ImportError as error:
        needed = "--format parquet needs pyarrow: pip install 'chopperd[analysis]'"
        raise ConfigError([needed]) from error


def print_page(page: "RenderableType") -> None:
    """Print a page of text or tables to stdout, styled on a terminal."""
    from chopperd.report.text.page import WIDTH, page_text

    styled = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if styled else WIDTH
    _write_safe(page_text(page, styled=styled, width=width))


def write(text: str) -> None:
    """Print to stdout, with control characters made visible."""
    _write_safe(visible_lines(text))


def _write_safe(text: str) -> None:
    """Print text without control characters; end the command quietly if its reader has gone."""
    with reader_may_go():
        print(text, end="", flush=True)


@contextmanager
def reader_may_go() -> Iterator[None]:
    """End the command quietly if the reader of its output closes the pipe during the block."""
    try:
        yield
    except BrokenPipeError:
        import click

        # Later writes and flushes, at exit too, must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise click.exceptions.Exit(_EXIT_BROKEN_PIPE) from None


def complain(*messages: str, status: int = 0) -> int:
    """Print each message as one line on stderr; return `status`."""
    for message in messages:
        print(f"chopperd: {visible(' '.join(message.splitlines()))}", file=sys.stderr)
    return status


def near_names(error: BaseException) -> str:
    """Return "; did you mean ...?" with names like that of a missing file; "" for other errors."""
    cause = error.__cause__
    if not isinstance(cause, FileNotFoundError) or not isinstance(cause.filename, str):
        return ""
    from difflib import get_close_matches
    from pathlib import Path

    missing = Path(cause.filename)
    try:
        names = [each.name for each in missing.parent.iterdir()]
    except OSError:
        return ""
    near = sorted(get_close_matches(missing.name, names, n=_MOST_NEAR))
    paths = " or ".join(str(missing.with_name(each)) for each in near)
    return f"; did you mean {paths}?" if near else ""


def complain_of_crash(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Print a traceback on stderr, with control characters visible (for `sys.excepthook`)."""
    lines = traceback.format_exception(kind, error, trace)
    print(visible_lines("".join(lines)), end="", file=sys.stderr)


def program(called: str | None = None, python: str = sys.executable) -> str:
    """Return how to call this program in a shell: by its name if that finds it, else by a path."""
    from pathlib import Path

    own = Path(called or sys.argv[0])
    if own.name == "__main__.py":  # by `python -m`: the script lies beside the interpreter
        own = Path(python).with_name(_NAME)
        if not own.exists():
            return f"{python} -m {_NAME}"
    found = shutil.which(_NAME)
    if found is not None and Path(found).absolute() == own.absolute():
        return _NAME
    path, here = own.absolute(), Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) and here != Path("/") else path)


Advance: TypeAlias = Callable[[int, int | None], None]


@contextmanager
def reading_progress(stream: TextIO) -> Iterator[Advance | None]:
    """Give a function that updates a progress bar (bytes done, in all); None without a terminal."""
    if not stream.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(file=stream), transient=True) as bars:
        task = bars.add_task("reading", total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)

"""Printing: reports and pages on stdout, complaints on stderr. Nothing else prints."""

import os
import signal
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.console import RenderableType

    from chopperd.cli.options import Format
    from chopperd.model.report import ReportDocument

_EXIT_BROKEN_PIPE: Final = 128 + signal.SIGPIPE


def open_standard_files() -> None:
    """Give this process the standard files that it was started without; they lead nowhere.

    Else what is opened next, such as a socket, takes their numbers, and is written to as one.
    """
    for fd, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number: this one
            setattr(sys, name, os.fdopen(fd, mode, encoding="utf-8", closefd=False))


def print_report(document: "ReportDocument", form: "Format", *, by_family: bool = False) -> None:
    """Print a report in one of its forms."""
    from chopperd.report.formats import formatted

    write(formatted(document, form, by_family=by_family, styled=sys.stdout.isatty()))


def print_page(page: "RenderableType") -> None:
    """Print a page made for people."""
    from chopperd.report.text import page_text

    write(page_text(page, styled=sys.stdout.isatty()))


def write(text: str) -> None:
    """Print to stdout; a reader that has gone ends the command quietly."""
    try:
        print(text, end="", flush=True)
    except BrokenPipeError:
        import typer

        # Whatever is written or flushed later must not fail again, aloud, at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(_EXIT_BROKEN_PIPE) from None


def complain(*messages: str, status: int = 0) -> int:
    """Print each message as one line on stderr; gives `status`, so that it can be returned."""
    for message in messages:
        print(f"chopperd: {' '.join(message.splitlines())}", file=sys.stderr)
    return status

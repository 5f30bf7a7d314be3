"""Entry point of the command line: choose the command to run, turn errors into exit codes.

The agent and its own processes run without the libraries of the other commands: sampling starts
sooner, and takes less memory.
"""

import gc
import os
import signal
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Final, NoReturn

from chopperd.cli.agent import COMMAND as AGENT_COMMAND
from chopperd.cli.agent import leave, plain_options, run_agent
from chopperd.cli.output import (
    complain,
    complain_of_crash,
    near_names,
    open_standard_files,
    reader_may_go,
)
from chopperd.errors import ChopperdError, ConfigError
from chopperd.logs import configure_logging

_EXIT_BAD_INPUT: Final = 4
_EXIT_SIGNAL: Final = 128
#: Loading the modules alone makes so many objects, of which none is garbage.
_COLLECTED_AFTER: Final = 100_000
_EXIT_INTERRUPTED: Final = _EXIT_SIGNAL + signal.SIGINT


def main() -> NoReturn:
    """Run the command line of this process and exit with its status, also when terminated."""
    open_standard_files()
    sys.excepthook = complain_of_crash
    arguments = sys.argv[1:]
    signal.signal(signal.SIGTERM, _at_termination(arguments))
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    leave(run(arguments))


def _at_termination(arguments: Sequence[str]) -> Callable[[int, FrameType | None], None]:
    """Return the handler of SIGTERM that holds until the command installs its own.

    The agent and its processes exit at once: exceptions may be lost while a module is imported.
    """
    if arguments[:1] == [AGENT_COMMAND]:
        return lambda _number, _frame: os._exit(0)
    if _is_own(arguments):
        return lambda number, _frame: os._exit(_EXIT_SIGNAL + number)
    return _terminate


def _terminate(number: int, _frame: FrameType | None) -> None:
    """Raise `SystemExit`, so that open files and processes are closed."""
    raise SystemExit(_EXIT_SIGNAL + number)


def run(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit status. Errors become one line each on stderr."""
    try:
        options = plain_options(arguments)
        if options is None:
            return _run_own(arguments) if _is_own(arguments) else _run_command(arguments)
        configure_logging("info", as_json=False)
        return run_agent(options)
    except ConfigError as error:
        return complain(*error.problems, status=error.exit_code)
    except ChopperdError as error:
        return complain(f"{error}{near_names(error)}", status=error.exit_code)
    except OSError as error:
        return complain(str(error), status=_EXIT_BAD_INPUT)
    except KeyboardInterrupt:
        return _EXIT_INTERRUPTED


def _is_own(arguments: Sequence[str]) -> bool:
    """Whether it is a hidden command, for processes that chopperd starts: "_" comes first."""
    return bool(arguments) and arguments[0].startswith("_")


def _run_own(arguments: Sequence[str]) -> int:
    from chopperd.cli import own

    return own.run(arguments[0], arguments[1:])


def _run_command(arguments: Sequence[str]) -> int:
    gc.set_threshold(_COLLECTED_AFTER)
    import click

    from chopperd.cli.commands import app
    from chopperd.config.paths import COMPLETION_VARIABLE, completion_request

    if asked := completion_request():
        from click.shell_completion import shell_complete

        return shell_complete(app, {}, "chopperd", COMPLETION_VARIABLE, asked)
    try:
        # Not by `app()`, which prints a message of its own at an interrupt.
        with reader_may_go(), app.make_context("chopperd", list(arguments)) as context:
            app.invoke(context)
    except click.ClickException as error:
        return complain(error.format_message(), status=error.exit_code)
    except click.exceptions.Exit as leaving:
        return leaving.exit_code
    return 0

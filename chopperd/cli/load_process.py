"""The load of a self-test as a child process, and what it says."""

import subprocess
from collections.abc import Callable, Sequence

from chopperd.errors import BackendUnavailableError
from chopperd.selftest.protocol import Begin, LoadLog, Said, decoded, log_of


def run_load(command: Sequence[str], told: Callable[[Begin], None]) -> LoadLog:
    """Run the load to its end; what it said. However this is left, the child has ended.

    Args:
        command: Starts it.
        told: Called as each phase begins.

    Raises:
        BackendUnavailableError: It could not run, or ended early; says why.
    """
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    except OSError as error:
        raise BackendUnavailableError(f"no load: can't run {command[0]}: {error}") from error
    with process:
        try:
            return log_of(_said(process, told))
        finally:
            process.terminate()


def _said(process: "subprocess.Popen[str]", told: Callable[[Begin], None]) -> list[Said]:
    said = []
    for line in process.stdout or ():
        said.append(decoded(line))
        if isinstance(said[-1], Begin):
            told(said[-1])
    return said

"""Running the command of `record`: signals passed on, its status as a shell gives it."""

import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Final

from chopperd.cli.output import complain

_EXIT_NOT_EXECUTABLE: Final = 126
_EXIT_NOT_FOUND: Final = 127
_EXIT_SIGNAL: Final = 128


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
        complain(f"can't run {command[0]}: {error.strerror}")
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

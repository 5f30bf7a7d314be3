"""The terminal while a page fills it: keys that end it, and nothing written across it."""

import os
import select
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

_QUIT: Final = frozenset(b"qQ\x1b")
_READ_BYTES: Final = 64
_STDERR: Final = 2


@contextmanager
def quit_key() -> Iterator[Callable[[], bool]]:
    """Tells, whenever called, whether `q` or Escape was pressed; leaves the terminal as it was.

    Where standard input is no terminal nothing is ever pressed.
    """
    if not sys.stdin.isatty():
        yield lambda: False
        return
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    tty.setcbreak(fd)  # keys come at once and are not shown; Ctrl-C still interrupts
    try:
        yield lambda: _quits(fd)
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


@contextmanager
def quiet_stderr() -> Iterator[None]:
    """Drops what this process and those that it starts meanwhile write to standard error."""
    sys.stderr.flush()
    before, nowhere = os.dup(_STDERR), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, _STDERR)
    os.close(nowhere)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(before, _STDERR)
        os.close(before)


def _quits(fd: int) -> bool:
    """Whether what was pressed since the last look ends the page, or the terminal has gone."""
    if not select.select([fd], [], [], 0)[0]:
        return False
    pressed = os.read(fd, _READ_BYTES)
    return not pressed or not _QUIT.isdisjoint(pressed)

"""A temporary folder that goes with the process that made it, even one that is killed."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from tempfile import gettempdir
from typing import Final
from uuid import uuid4

from chopperd.clock import Clock, SystemClock
from chopperd.units import NS_PER_MS, NS_PER_S

_PREFIX: Final = "chopperd-"
_ID_LENGTH: Final = 8
_RETRY_NS: Final = 50 * NS_PER_MS
_GIVE_UP_NS: Final = 10 * NS_PER_S


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A new folder, private to the user, that is gone afterwards.

    A process of our own stands by: its standard input closes with ours when we end, however that
    happens, and then it removes the folder. It is there before the folder is.
    """
    folder = Path(gettempdir()) / f"{_PREFIX}{uuid4().hex[:_ID_LENGTH]}"
    command = [sys.executable, "-P", "-m", "chopperd", "_sweep", "--folder", str(folder)]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,  # an interrupt from the terminal is ours to handle
    ):
        folder.mkdir(mode=0o700)
        try:
            yield folder
        finally:
            rmtree(folder, ignore_errors=True)


def sweep(folder: Path, clock: Clock | None = None) -> int:
    """Wait until standard input closes, then remove the folder; the exit status.

    Processes that are still ending may write into it meanwhile: it is removed until it is gone.

    Args:
        folder: What `scratch_folder` made, or was about to make.
        clock: Tells and waits for the time.
    """
    sys.stdin.buffer.read()
    clock = clock or SystemClock()
    limit_ns = clock.mono_ns() + _GIVE_UP_NS
    while folder.exists() and clock.mono_ns() < limit_ns:
        rmtree(folder, ignore_errors=True)
        clock.sleep_until(clock.mono_ns() + _RETRY_NS)
    return int(folder.exists())

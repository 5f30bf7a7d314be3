"""A program that is left alone while it hangs holds nothing of the command that asked it."""

import os
import signal
import subprocess
import sys
from typing import Final

#: Says something, and neither answers nor ends.
_HANGS: Final = """
import signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("a warning", file=sys.stderr, flush=True)
time.sleep(60)
"""
_ASKS: Final = f"""
import sys
from chopperd.cli.doctor import answer_of
print(answer_of([sys.executable, "-c", {_HANGS!r}], 3.0).left_pid)
"""


def test_what_reads_the_errors_of_a_command_ends_with_it_and_not_with_what_is_left() -> None:
    """As `chopperd devices 2>&1 | less` does, whose end is when nobody can write any more."""
    asked = subprocess.run(
        [sys.executable, "-c", _ASKS], capture_output=True, text=True, timeout=30, check=True
    )
    os.kill(int(asked.stdout), signal.SIGKILL)
    assert asked.stderr == "a warning\n"

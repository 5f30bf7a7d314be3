"""Running a program that asks a driver, for a limited time.

One that does not answer is asked to end and then left alone, never killed: that has frozen GPUs.
"""

import math
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from chopperd.model.safe_text import visible_lines

_END_S: Final = 1.0
#: How often it is looked whether the output is whole.
_LOOK_S: Final = 0.2
#: In place of an exit status: nobody waits for the process any more, nor does its object complain.
_LEFT_ALONE: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a program said.

    Attributes:
        status: Its exit status; None where it did not end by itself in time.
        output: What it wrote, as far as it came.
        left_pid: The process, where it would not end.
    """

    status: int | None
    output: bytes
    left_pid: int | None = None


def answer_of(
    command: Sequence[str],
    limit_s: float,
    *,
    quiet: bool = False,
    is_whole: Callable[[bytes], bool] = lambda _: False,
) -> Answer:
    """Run a program to its end, or until `limit_s` have passed, or it said all it has to say.

    Args:
        command: The program and its arguments.
        limit_s: How long to wait for it.
        quiet: Whether its complaints are dropped; else they follow when it has ended, or is left:
            with our own stderr it would keep whoever reads that waiting.
        is_whole: Whether what it wrote so far is all: then it has a second to end by itself.

    Raises:
        OSError: It can't be started.
    """
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL if quiet else subprocess.PIPE,
        start_new_session=True,  # an interrupt from the terminal is ours to handle
    )
    try:
        output, complaints = _said(process, limit_s, is_whole)
    except subprocess.TimeoutExpired:
        return _ended(process)
    except BaseException:
        process.terminate()
        raise
    _pass_on(complaints)
    return Answer(status=process.returncode, output=output)


def _said(
    process: "subprocess.Popen[bytes]", limit_s: float, is_whole: Callable[[bytes], bool]
) -> tuple[bytes, bytes | None]:
    """All that a process writes until it ends; raises `TimeoutExpired` where it does not."""
    looks_count = max(1, math.ceil(limit_s / _LOOK_S))
    for _ in range(looks_count):
        try:
            return process.communicate(timeout=limit_s / looks_count)
        except subprocess.TimeoutExpired as late:
            if is_whole(late.output or b""):
                break
    else:
        raise subprocess.TimeoutExpired(process.args, limit_s)
    return process.communicate(timeout=_END_S)


def _ended(process: "subprocess.Popen[bytes]") -> Answer:
    process.terminate()
    try:
        output, complaints = process.communicate(timeout=_END_S)
    except subprocess.TimeoutExpired as late:
        _pass_on(late.stderr)
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
        process.returncode = _LEFT_ALONE
        return Answer(status=None, output=late.output or b"", left_pid=process.pid)
    _pass_on(complaints)
    return Answer(status=None, output=output)


def _pass_on(complaints: bytes | None) -> None:
    sys.stderr.write(visible_lines((complaints or b"").decode(errors="replace")))

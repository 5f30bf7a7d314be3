"""A running `loop_job`, and the conditions that it runs under in turns."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from random import Random
from typing import Final

from bench.gpu.paired import Done, Stretch

_JOB: Final = Path(__file__).with_name("loop_job.py")
_START_S: Final = 60.0

Condition = Callable[[], AbstractContextManager[object]]


class JobFailedError(Exception):
    """The job ended, or never began."""


@contextmanager
def looping(what: str, device: str) -> Iterator[list[Done]]:
    """The job, started and at work; what it has done so far, which grows."""
    done: list[Done] = []
    command = [sys.executable, "-P", str(_JOB), what, device]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        reader = threading.Thread(target=_read, args=(process, done))
        reader.start()
        try:
            _wait_for_first(process, done)
            yield done
        finally:
            process.terminate()
            reader.join()


def _read(process: "subprocess.Popen[str]", done: list[Done]) -> None:
    for line in process.stdout or ():
        words = line.split()
        if len(words) == 2:
            done.append(Done(start_mono_ns=int(words[0]), took_ns=int(words[1])))


def _wait_for_first(process: "subprocess.Popen[str]", done: list[Done]) -> None:
    until_s = time.monotonic() + _START_S
    while not done:
        if process.poll() is not None or time.monotonic() > until_s:
            raise JobFailedError("the job did not begin")
        time.sleep(0.05)


def in_turns(
    conditions: dict[str, Condition], pairs: int, seconds: float, settle_s: float, seed: int
) -> list[Stretch]:
    """Each condition once in each pair, in drawn order; when each held."""
    stretches = []
    draw = Random(seed)
    for pair in range(pairs):
        for name in draw.sample(sorted(conditions), len(conditions)):
            with conditions[name]():
                time.sleep(settle_s)
                start_ns = time.monotonic_ns()
                time.sleep(seconds)
                stretch = Stretch(
                    condition=name,
                    pair=pair,
                    start_mono_ns=start_ns,
                    end_mono_ns=time.monotonic_ns(),
                )
            stretches.append(stretch)
    return stretches


@contextmanager
def process_of(command: Sequence[str], env: dict[str, str]) -> Iterator[int]:
    """A process that runs meanwhile and is asked to end; its id."""
    with subprocess.Popen(
        command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    ) as process:
        try:
            yield process.pid
            if process.poll() is not None:
                raise JobFailedError(f"{command[-1]} ended with status {process.returncode}")
        finally:
            process.terminate()

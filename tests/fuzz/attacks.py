"""Traces made to take long: each against a sound one of its size, in time and in memory.

`python -m tests.fuzz.attacks` prints the table; a part of it is among the tests.
"""

import argparse
import signal
import sys
import tempfile
import tracemalloc
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import process_time
from typing import Final

from chopperd.errors import TraceFormatError
from chopperd.traces.read.reader import read_trace
from tests.fuzz.attack_texts import ATTACKS, sound

_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What reading took: processor time and, at its most, memory beside the file."""

    time_s: float
    peak_bytes: int
    outcome: str


def cost(path: Path, data: bytes, *, times: int = 3, memory: bool = False) -> Cost:
    """The least time of several readings; the memory of one, which takes longer.

    Args:
        path: A file to write.
        data: What to read.
        times: How often.
        memory: Whether to look at memory.
    """
    path.write_bytes(data)
    least_s, outcome = float("inf"), ""
    for _ in range(times):
        begin_s = process_time()
        try:
            outcome = _outcome(path)
        except TimeoutError:
            return Cost(time_s=process_time() - begin_s, peak_bytes=0, outcome="given up")
        least_s = min(least_s, process_time() - begin_s)
    peak_bytes = 0
    if memory:
        tracemalloc.start()
        _outcome(path)
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return Cost(time_s=least_s, peak_bytes=peak_bytes, outcome=outcome)


def _outcome(path: Path) -> str:
    try:
        trace = read_trace(path)
    except TraceFormatError as error:
        return f"refused: {str(error).removeprefix(str(path))[:60]}"
    damage = trace.damage
    rows = len(trace.records) + len(trace.calls) + len(trace.spans)
    return f"{rows} rows, {damage.damaged_events} damaged, {damage.undecodable_events} undecodable"


def _give_up(_signal: int, _frame: object) -> None:
    raise TimeoutError


def main(arguments: Sequence[str]) -> int:
    """Print what each attack costs; 1 if one costs more than it may."""
    parser = argparse.ArgumentParser(prog="tests.fuzz.attacks", description=__doc__)
    parser.add_argument("--mib", type=float, default=4.0, help="size of the traces")
    parser.add_argument("--max-ratio", type=float, default=3.0)
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--give-up-s", type=float, default=10.0)
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGPROF, _give_up)
    worst = 0.0
    with tempfile.TemporaryDirectory() as folder:
        path, size = Path(folder) / "attack.json", round(options.mib * _MIB)
        beside = sound(size)
        for name, attack in ATTACKS.items():
            if options.names and name not in options.names:
                continue
            data = attack(size)
            clean = cost(path, beside, times=options.times + 1, memory=options.memory)
            signal.setitimer(signal.ITIMER_PROF, options.give_up_s)
            found = cost(path, data, times=options.times, memory=options.memory)
            signal.setitimer(signal.ITIMER_PROF, 0)
            ratio = found.time_s / clean.time_s * (size / len(data))
            worst = max(worst, ratio)
            mark = "!" if ratio > options.max_ratio else " "
            print(
                f"{name:44} {clean.time_s:6.3f} {found.time_s:8.3f} s "
                f"{found.peak_bytes / _MIB:6.0f} MiB {ratio:7.2f}x {mark} {found.outcome}",
                flush=True,
            )
    return int(worst > options.max_ratio)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

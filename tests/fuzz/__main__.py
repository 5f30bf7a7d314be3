"""`make fuzz`: reads mutated traces, says what does not hold, keeps the inputs of it.

What is asked of an input stands in `oracles.py`. An input is known by its number and the seed of
the run, whatever the number of processes.
"""

import argparse
import os
import resource
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Final

from tests.fuzz.findings import Findings, Found, saved, small
from tests.fuzz.mutations import Mutator
from tests.fuzz.oracles import Failure, Oracles
from tests.fuzz.seeds import seeds

_EACH: Final = 2500
"""Inputs at once to a process."""
_TELL_EACH_S: Final = 10.0
_SETTLING: Final = 4
"""Shares after which a process needs no more memory than before."""
_MAX_GROWTH_MIB: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The inputs `[first, end)` of a run; processes write theirs into a folder."""

    first: int
    end: int
    seed: int
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What came of a share, and of the process that read it."""

    share: Share
    findings: Findings
    process: int
    most_mib: float


def main(arguments: Sequence[str]) -> int:
    """Run; 1 if anything failed."""
    options = _options(arguments)
    begin_s = monotonic()
    findings, watch, whole = Findings(), _Watch(options.count), True
    try:
        with TemporaryDirectory(dir=_in_memory()) as folder:
            for done in _all_done(options, Path(folder)):
                watch.see(done)
                for found in findings.include(done.findings):
                    _tell(found, options)
    except BrokenProcessPool:
        whole = False
    took_s = monotonic() - begin_s
    for line in findings.table():
        print(line)
    print(f"\n{options.count} inputs in {took_s:.0f} s: {options.count / took_s:.0f} a second")
    if findings.failures:
        print(f"{findings.failures.total()} failures: {dict(findings.failures.most_common())}")
        _tell_small(findings, options.out)
    return 0 if whole and not findings.failures else 1


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=1_000_000, help="how many inputs")
    parser.add_argument("--first", type=int, default=0, help="the number of the first input")
    parser.add_argument("--seed", type=int, default=1, help="another one gives other inputs")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, default=Path("tests/fuzz/failures"))
    return parser.parse_args(arguments)


def _in_memory() -> Path | None:
    """A file system in memory, which spares the disk a million files; None for the usual one."""
    folder = Path("/dev/shm")
    return folder if folder.is_dir() else None


def _all_done(options: argparse.Namespace, folder: Path) -> Iterator[Done]:
    """All shares as they are done."""
    end = options.first + options.count
    shares = [
        Share(first=first, end=min(first + _EACH, end), seed=options.seed, folder=folder)
        for first in range(options.first, end, _EACH)
    ]
    with ProcessPoolExecutor(options.processes, mp_context=get_context("fork")) as processes:
        under_way = {processes.submit(_done, share): share for share in shares}
        try:
            for future in as_completed(under_way):
                yield future.result()
        except BrokenProcessPool:
            wait(under_way)
            lost = sorted(share.first for future, share in under_way.items() if future.exception())
            first = " or ".join(map(str, lost[: options.processes]))
            print(f"a process died: --seed {options.seed} --count {_EACH} --first {first}")
            raise


class _Watch:
    """Says how far a run is, and which process grows.

    Args:
        count: How many inputs it will read.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._done_count = 0
        self._begin_s = monotonic()
        self._told_s = 0.0
        self._settled_mib: dict[int, list[float]] = {}

    def see(self, done: Done) -> None:
        """Take note of a share."""
        self._done_count += done.share.end - done.share.first
        passed_s = monotonic() - self._begin_s
        if passed_s > self._told_s + _TELL_EACH_S:
            rate = self._done_count / passed_s
            left_s = (self._count - self._done_count) / rate
            print(
                f"{self._done_count} inputs, {rate:.0f} a second, {left_s:.0f} s left", flush=True
            )
            self._told_s = passed_s
        settled_mib = self._settled_mib.setdefault(done.process, [])
        if len(settled_mib) < _SETTLING:
            settled_mib.append(done.most_mib)
        elif done.most_mib > settled_mib[-1] + _MAX_GROWTH_MIB:
            last = Mutator(seeds()).mutated(done.share.end - 1, done.share.seed)
            failure = Failure("memory", f"{settled_mib[-1]:.0f}, then {done.most_mib:.0f} MiB")
            done.findings.add(Found(done.share.end - 1, last, failure))
            settled_mib.append(done.most_mib)


@cache
def _own(folder: Path) -> tuple[Mutator, Oracles]:
    """What a process uses over and over."""
    own = folder / str(os.getpid())
    own.mkdir()
    every = seeds()
    return Mutator(every), Oracles(own, every, timed=True)


def _done(share: Share) -> Done:
    """Reads the inputs of a share."""
    mutator, oracles = _own(share.folder)
    findings = Findings()
    oracles.seen.clear()
    for number in range(share.first, share.end):
        one = mutator.mutated(number, share.seed)
        findings.take(number, one, oracles.failures(one, number))
    findings.seen.update(oracles.seen)
    most_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return Done(share=share, findings=findings, process=os.getpid(), most_mib=most_mib)


def _tell(found: Found, options: argparse.Namespace) -> None:
    """Save an input that fails, and say how to read it again."""
    path = saved(found, options.out)
    print(f"\n{found.failure.kind}: {found.failure.detail[:600]}")
    print(f"  {', '.join(found.input.kinds)}, of {found.input.seed.name}; saved as {path}")
    again = f"--seed {options.seed} --first {found.number} --count 1 --processes 1"
    print(f"  again: python -m tests.fuzz {again}", flush=True)


def _tell_small(findings: Findings, out: Path) -> None:
    """Say, and save, the smallest inputs that fail in the same ways."""
    with TemporaryDirectory() as folder:
        oracles = Oracles(Path(folder), seeds(), timed=True)
        for found in (one for kept in findings.kept.values() for one in kept):
            data = small(found, oracles)
            path = out / f"small-{found.number}.json"
            path.write_bytes(data)
            print(f"{found.failure.kind}: {path}: {data[:300]!r}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

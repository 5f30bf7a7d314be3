"""`make fuzz`: reads mutated traces, says what does not hold, keeps the smallest inputs of it."""

import argparse
import os
import resource
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Final

from tests.fuzz.mutations import Mutated, Mutator
from tests.fuzz.oracles import Failure, Oracles, smallest
from tests.fuzz.seeds import seeds

_EACH: Final = 5000
_KEPT_OF_A_KIND: Final = 3
_MAX_GROWTH_MIB: Final = 64


@dataclass(slots=True)
class Findings:
    """Failures by kind, and the first inputs of each."""

    counts: Counter[str] = field(default_factory=Counter)
    kept: dict[str, list[tuple[int, Mutated, Failure]]] = field(default_factory=dict)

    def add(self, number: int, one: Mutated, failure: Failure) -> None:
        """Count a failure."""
        self.counts[failure.kind] += 1
        kept = self.kept.setdefault(failure.kind, [])
        if len(kept) < _KEPT_OF_A_KIND:
            kept.append((number, one, failure))

    def include(self, other: "Findings") -> None:
        """Count those of another process too."""
        self.counts += other.counts
        for kind, kept in other.kept.items():
            mine = self.kept.setdefault(kind, [])
            mine += kept[: _KEPT_OF_A_KIND - len(mine)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The inputs of one process: every `step`-th number from `first` on, before `end`."""

    first: int
    end: int
    step: int
    seed: int


def main(arguments: Sequence[str]) -> int:
    """Run; 1 if anything failed."""
    options = _options(arguments)
    end = options.first + options.count
    shares = [
        Share(first=options.first + n, end=end, step=options.processes, seed=options.seed)
        for n in range(options.processes)
    ]
    begin_s = monotonic()
    findings = Findings()
    with ProcessPoolExecutor(options.processes, mp_context=get_context("fork")) as processes:
        for found in processes.map(_found, shares):
            findings.include(found)
    took_s = monotonic() - begin_s
    print(f"{options.count} inputs in {took_s:.0f} s: {options.count / took_s:.0f} a second")
    with TemporaryDirectory(dir=_in_memory()) as folder:
        _tell(findings, Oracles(Path(folder), seeds(), timed=True), options.out)
    return 1 if findings.counts else 0


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


def _found(share: Share) -> Findings:
    """What fails of the inputs of one process."""
    every = seeds()
    mutator, findings = Mutator(every), Findings()
    begin_s, settled_mib = monotonic(), 0.0
    with TemporaryDirectory(dir=_in_memory()) as folder:
        oracles = Oracles(Path(folder), every, timed=True)
        for done, number in enumerate(range(share.first, share.end, share.step), 1):
            one = mutator.mutated(number, share.seed)
            for failure in oracles.failures(one, number):
                findings.add(number, one, failure)
            if done % _EACH == 0:
                now_mib = _most_resident_mib()
                if settled_mib and now_mib > settled_mib + _MAX_GROWTH_MIB:
                    findings.add(number, one, Failure("memory", f"{now_mib:.0f} MiB"))
                settled_mib = max(settled_mib, now_mib)
                rate = done / (monotonic() - begin_s)
                print(f"{done} inputs, {rate:.0f} a second, {dict(findings.counts)}", flush=True)
    return findings


def _most_resident_mib() -> float:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _tell(findings: Findings, oracles: Oracles, out: Path) -> None:
    """Print each kind of failure with its first inputs, made small, and write these."""
    for kind, count in findings.counts.most_common():
        print(f"\n{kind}: {count}")
        for number, one, failure in findings.kept[kind]:
            data = _small(one, number, kind, oracles)
            out.mkdir(parents=True, exist_ok=True)
            path = out / f"{kind.replace(' ', '-').replace(':', '')}-{number}.json"
            path.write_bytes(data)
            print(f"  {number} ({one.seed.name}): {failure.detail}\n    {path}: {data[:300]!r}")


def _small(one: Mutated, number: int, kind: str, oracles: Oracles) -> bytes:
    """The smallest input found that fails in the same way, where that can be judged alone."""
    if kind in {"memory", "refused", "lost sound events"}:
        return one.data

    def fails(data: bytes) -> bool:
        other = Mutated(data=data, seed=one.seed, sound=0)
        return any(failure.kind == kind for failure in oracles.failures(other, number))

    return smallest(one.data, fails)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""`make fuzz`: reads mutated traces, says what does not hold, keeps the smallest inputs of it."""

import argparse
import resource
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
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


def main(arguments: Sequence[str]) -> int:
    """Run; 1 if anything failed."""
    options = _options(arguments)
    every = seeds()
    mutator, findings = Mutator(every), Findings()
    # A file system in memory spares the disk a million files.
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as folder:
        oracles = Oracles(Path(folder), every, timed=True)
        begin_s = monotonic()
        _run(options, mutator, oracles, findings, begin_s)
        took_s = monotonic() - begin_s
        print(f"{options.count} inputs in {took_s:.0f} s: {options.count / took_s:.0f} a second")
        _tell(findings, oracles, options.out)
    return 1 if findings.counts else 0


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=1_000_000, help="how many inputs")
    parser.add_argument("--first", type=int, default=0, help="the number of the first input")
    parser.add_argument("--seed", type=int, default=1, help="another one gives other inputs")
    parser.add_argument("--out", type=Path, default=Path("tests/fuzz/failures"))
    return parser.parse_args(arguments)


def _run(
    options: argparse.Namespace,
    mutator: Mutator,
    oracles: Oracles,
    findings: Findings,
    begin_s: float,
) -> None:
    resident_mib = 0.0
    for done in range(options.count):
        number = options.first + done
        one = mutator.mutated(number, options.seed)
        for failure in oracles.failures(one, number):
            findings.add(number, one, failure)
        if done % _EACH == _EACH - 1:
            grown_mib = _resident_mib() - (resident_mib or _resident_mib())
            resident_mib = resident_mib or _resident_mib()
            if grown_mib > _MAX_GROWTH_MIB:
                findings.add(number, one, Failure("memory", f"{grown_mib:.0f} MiB more"))
                resident_mib = _resident_mib()
            rate = (done + 1) / (monotonic() - begin_s)
            print(f"{done + 1} inputs, {rate:.0f} a second, {dict(findings.counts)}", flush=True)


def _resident_mib() -> float:
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

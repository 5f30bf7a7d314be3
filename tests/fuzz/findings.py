"""What a run has found so far, and how it is told."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.fuzz.likeness import smallest
from tests.fuzz.mutations import Mutated
from tests.fuzz.oracles import Failure, Oracles

_KEPT_OF_A_KIND: Final = 3
_NOT_ALONE: Final = frozenset({"memory", "refused", "lost sound events"})
"""Kinds that can't be judged by the bytes alone."""


@dataclass(frozen=True, slots=True)
class Found:
    """An input that fails."""

    number: int
    input: Mutated
    failure: Failure


@dataclass(slots=True)
class Findings:
    """Inputs and failures by kind, what was reached, and the first inputs that fail.

    Attributes:
        inputs: By what was done to them; of one to which two things were done, under both.
        failed: As `inputs`, only those that fail.
        failures: By kind.
        seen: By what was seen of them (`Oracles.seen`).
        kept: The first of each kind of failure.
    """

    inputs: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    seen: Counter[str] = field(default_factory=Counter)
    kept: dict[str, list[Found]] = field(default_factory=dict)

    def take(self, number: int, one: Mutated, failures: Iterable[Failure]) -> None:
        """Count an input and what does not hold of it."""
        kinds = set(one.kinds)
        self.inputs.update(kinds)
        fails = False
        for failure in failures:
            fails = True
            self.add(Found(number, one, failure))
        if fails:
            self.failed.update(kinds)

    def add(self, found: Found) -> bool:
        """Count a failure; whether it is kept."""
        kind = found.failure.kind
        self.failures[kind] += 1
        return self._keep(found)

    def include(self, other: "Findings") -> Iterator[Found]:
        """Count those of other inputs too; gives the failures that are kept of them."""
        self.inputs += other.inputs
        self.failed += other.failed
        self.failures += other.failures
        self.seen += other.seen
        for found in (one for kept in other.kept.values() for one in kept):
            if self._keep(found):
                yield found

    def table(self) -> Iterator[str]:
        """What was done to how many inputs, how many failed, and what was seen."""
        yield f"{'what was done':28} {'inputs':>9} {'failed':>7}"
        for kind, count in sorted(self.inputs.items()):
            yield f"{kind:28} {count:9} {self.failed[kind]:7}"
        yield f"\n{'what was seen':28} {'inputs':>9}"
        for kind, count in sorted(self.seen.items()):
            yield f"{kind:28} {count:9}"

    def _keep(self, found: Found) -> bool:
        kept = self.kept.setdefault(found.failure.kind, [])
        if len(kept) < _KEPT_OF_A_KIND:
            kept.append(found)
            return True
        return False


def saved(found: Found, folder: Path) -> Path:
    """Where the input of a failure was written."""
    folder.mkdir(parents=True, exist_ok=True)
    kind = "".join(letter if letter.isalnum() else "-" for letter in found.failure.kind)
    path = folder / f"{kind}-{found.number}.json"
    path.write_bytes(found.input.data)
    return path


def small(found: Found, oracles: Oracles) -> bytes:
    """The smallest input found that fails in the same way, where that can be judged alone."""
    one, kind = found.input, found.failure.kind
    if kind in _NOT_ALONE or one.packed:
        return one.data

    def fails(data: bytes) -> bool:
        other = Mutated(data=data, seed=one.seed, kinds=(), sound=0, changed_at=len(data) // 2)
        return any(failure.kind == kind for failure in oracles.failures(other, found.number))

    return smallest(one.data, fails) if fails(one.data) else one.data

"""A short, fixed part of `make fuzz`."""

from pathlib import Path

import pytest

from tests.fuzz.mutations import Mutator, event_ends
from tests.fuzz.oracles import Oracles, smallest
from tests.fuzz.seeds import Seed, seeds

RUN = 3


@pytest.mark.parametrize("first", range(0, 300, 100))
def test_mutated_traces_are_read_as_far_as_they_are_sound(tmp_path: Path, first: int) -> None:
    mutator, oracles = Mutator(seeds()), Oracles(tmp_path, seeds(), timed=False)
    for number in range(first, first + 100):
        one = mutator.mutated(number, RUN)
        assert list(oracles.failures(one, number)) == [], (number, one.data)


@pytest.mark.parametrize("seed", seeds(), ids=lambda seed: str(seed.name))
def test_the_seeds_are_sound_and_their_ends_known(tmp_path: Path, seed: Seed) -> None:
    ends = event_ends(seed.text)
    assert len(ends) == len(seed.events) + 1
    assert all(seed.text[end - 1 : end] == b"}" for end in ends[1:])
    assert 1000 < len(seed.text) < 10_000
    found = Oracles(tmp_path, [seed], timed=False).sound_rows(seed, len(seed.events))
    assert len(found) >= 5


def test_an_input_is_the_same_whenever_it_is_asked_for() -> None:
    one, other = Mutator(seeds()), Mutator(seeds())
    assert [one.mutated(n, 5) for n in range(50)] == [other.mutated(n, 5) for n in range(50)]
    assert one.mutated(3, 5) != one.mutated(3, 6)


def test_the_smallest_input_that_fails_has_what_makes_it_fail() -> None:
    assert (
        smallest(b"some text with an x and a y", lambda data: b"x" in data and b"y" in data)
        == b"xy"
    )

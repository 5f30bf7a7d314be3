"""A short, fixed part of `make fuzz`."""

from pathlib import Path

import pytest

from tests.fuzz.__main__ import main
from tests.fuzz.likeness import smallest
from tests.fuzz.mutations import BYTE_CHANGES, Mutated, Mutator
from tests.fuzz.oracles import Oracles
from tests.fuzz.seeds import bare_array, compact, keys_last, native, pretty, seeds, windows
from tests.fuzz.structure import CHANGES

RUN = 3


@pytest.mark.parametrize("first", range(0, 240, 80))
def test_mutated_traces_are_read_as_far_as_they_are_sound(tmp_path: Path, first: int) -> None:
    every = seeds()
    mutator, oracles = Mutator(every), Oracles(tmp_path, every, timed=False, thorough=True)
    for number in range(first, first + 80):
        one = mutator.mutated(number, RUN)
        assert list(oracles.failures(one, number)) == [], (number, one.data)


@pytest.mark.parametrize("layout", [native, keys_last, compact, windows, pretty, bare_array])
def test_the_seeds_are_sound_and_their_ends_known(tmp_path: Path, layout: object) -> None:
    every = seeds()
    oracles = Oracles(tmp_path, every, timed=False)
    some = [seed for seed in every if seed.layout is layout]
    assert len(some) > 50
    for seed in some:
        assert len(seed.ends) == len(seed.events) + 1
        assert all(seed.text[end - 1 : end] == b"}" for end in seed.ends[1:])
        assert 200 < len(seed.text) < 6000
    assert all(oracles.sound_rows(seed, len(seed.events)) for seed in some[:13:2])


def test_an_input_is_the_same_whenever_it_is_asked_for() -> None:
    one, other = Mutator(seeds()), Mutator(seeds())
    assert [one.mutated(n, 5) for n in range(50)] == [other.mutated(n, 5) for n in range(50)]
    assert one.mutated(3, 5) != one.mutated(3, 6)


def test_every_change_is_made_and_reaches_what_it_is_for(tmp_path: Path) -> None:
    """Most inputs are still partly read; each kind of damage and of loss is among them."""
    every = seeds()
    mutator, oracles = Mutator(every), Oracles(tmp_path, every, timed=False)
    kinds: set[str] = set()
    for number in range(1000):
        one = mutator.mutated(number, RUN)
        kinds.update(one.kinds)
        list(oracles.failures(one, number))
    assert kinds >= {*CHANGES, *BYTE_CHANGES}
    seen = oracles.seen
    assert seen["some rows"] > seen["arrays"] / 2
    assert seen["damaged"] > seen["arrays"] / 5
    for kind in ("undecodable", "undecodable rows", "invalid records", "truncated", "flows"):
        assert seen[kind] > 5, kind
    lost = ("damaged_events", "duplicate_records", "further_events", "overrun_records", "truncated")
    for kind in (*lost, "unreadable_keys", "collectives", "shapes", "refused"):
        assert seen[f"files: {kind}"], kind


def test_events_that_are_not_read_are_missed(tmp_path: Path) -> None:
    every = seeds()
    oracles = Oracles(tmp_path, every, timed=False)
    seed = next(seed for seed in every if len(seed.events) > 3)
    data = seed.layout(seed.events[:-2], seed.keys)
    one = Mutated(data=data, seed=seed, kinds=("two less",), sound=len(seed.events))
    assert [failure.kind for failure in oracles.failures(one, 1)] == ["lost sound events"]


def test_a_run_says_what_was_done_and_that_all_holds(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--count", "50", "--seed", "3", "--processes", "1", "--out", str(tmp_path))
    assert main(arguments) == 0
    said = capfd.readouterr().out
    assert "\n50 inputs in " in said
    assert "drop a key" in said
    assert not list(tmp_path.iterdir())


def test_the_smallest_input_that_fails_has_what_makes_it_fail() -> None:
    assert (
        smallest(b"some text with an x and a y", lambda data: b"x" in data and b"y" in data)
        == b"xy"
    )

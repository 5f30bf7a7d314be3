"""Traces made to take long: ratios to a sound one of the same size, in processor time, in one run.

What seems too slow is looked at again, beside the sound one: other programs that use the machine
make a reading longer.
"""

import os
from pathlib import Path
from typing import Final

import pytest

from chopperd.traces.native.library import scanner_library
from tests.fuzz.attacks import ATTACKS, Cost, cost, sound

MIB: Final = 1 << 20
MAX_RATIO: Final = 3.0
FLOOR_S: Final = 0.02
TRIES: Final = 4

#: Cost more yet.
KNOWN: Final = frozenset(
    {
        "a head of event lists in text",
        "a long head",
        "a stray byte in every name",
        "every thread another one",
        "half a surrogate in every name",
    }
)


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Cost:
    if scanner_library() is None:
        if os.environ.get("CI"):
            pytest.fail("the native scanner was not built")
        pytest.skip("the native scanner was not built")
    return cost(tmp_path_factory.mktemp("clean") / "trace.json", sound(2 * MIB), memory=True)


@pytest.mark.parametrize("name", sorted(ATTACKS.keys() - KNOWN))
def test_no_trace_takes_three_times_as_long_as_a_sound_one(
    tmp_path: Path, clean: Cost, name: str
) -> None:
    data = ATTACKS[name](2 * MIB)
    path, beside = tmp_path / "trace.json", clean
    for attempt in range(TRIES):
        found = cost(path, data, times=1 + attempt)
        limit_s = MAX_RATIO * beside.time_s * len(data) / (2 * MIB) + FLOOR_S
        if found.time_s <= limit_s:
            break
        # The machine may have become slower since: both again, one after the other.
        beside = cost(path, sound(2 * MIB), times=1)
    assert found.time_s <= limit_s, found


@pytest.mark.parametrize(
    "name", ["empty objects", "every name another one", "lists in lists", "quotes", "commas"]
)
def test_memory_is_bounded_by_the_size_of_the_file(tmp_path: Path, clean: Cost, name: str) -> None:
    """What a sound file takes is a block and its columns; nothing takes several times the text."""
    found = cost(tmp_path / "trace.json", ATTACKS[name](2 * MIB), times=1, memory=True)
    assert found.peak_bytes < 3 * clean.peak_bytes + 16 * MIB

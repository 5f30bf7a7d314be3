"""Alignments by hand, and against a table filled cell by cell."""

from bisect import bisect_left

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from chopperd.correlate.memory.alignment import Requests, align

MIB = 1 << 20
MANY = 10**9


def requests(*pairs: tuple[int, int], is_block: bool = True) -> Requests:
    table = np.array(pairs, np.int64).reshape(-1, 2).T
    return Requests(size=table[0], address=table[1], is_block=is_block)


def best(a: Requests, b: Requests) -> tuple[int, int]:
    """The largest (pairs, equal addresses), by the textbook's table."""

    def matches(x: int, y: int) -> bool:
        both_large = min(abs(x), abs(y)) > MIB and (x > 0) == (y > 0)
        return x == y or (a.is_block and both_large and abs(x - y) <= MIB)

    sizes, addresses = (a.size.tolist(), b.size.tolist()), (a.address.tolist(), b.address.tolist())
    table = [[(0, 0)] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i in range(len(a)):
        for j in range(len(b)):
            cell = max(table[i][j + 1], table[i + 1][j])
            if matches(sizes[0][i], sizes[1][j]):
                pairs, same = table[i][j]
                cell = max(cell, (pairs + 1, same + (addresses[0][i] == addresses[1][j])))
            table[i + 1][j + 1] = cell
    return table[-1][-1]


SIZES = st.sampled_from(
    [512, -512, MIB, -MIB, MIB + 512, 2 * MIB, 2 * MIB + 512, -2 * MIB, -3 * MIB, 3 * MIB + 512]
)


@settings(max_examples=100)
@given(
    st.lists(st.tuples(SIZES, st.integers(0, 3)), max_size=14),
    st.lists(st.tuples(SIZES, st.integers(0, 3)), max_size=14),
    st.booleans(),
)
def test_it_is_the_longest_with_most_equal_addresses(
    a: list[tuple[int, int]], b: list[tuple[int, int]], is_block: bool
) -> None:
    one, other = requests(*a, is_block=is_block), requests(*b, is_block=is_block)
    found = align(one, other, MANY)
    assert found is not None
    assert found[:2] == best(one, other)


@pytest.mark.parametrize("seed", range(12))
def test_long_steps_that_differ_a_little_or_much(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count, dropped = int(rng.integers(60, 160)), rng.uniform(0, 0.7)
    size = rng.choice([512, 1024, MIB, 3 * MIB, 3 * MIB + 512, 40 * MIB], count)
    a = Requests(size=size, address=rng.integers(0, 9, count), is_block=bool(seed % 2))
    kept = np.flatnonzero(rng.random(count) > dropped)
    size = np.where(rng.random(len(kept)) < dropped / 3, 7 * MIB, size[kept])
    b = Requests(size=size, address=rng.integers(0, 9, len(kept)), is_block=bool(seed % 2))
    found = align(a, b, MANY)
    assert found is not None
    assert found[:2] == best(a, b)


def test_a_step_of_very_many_sizes_in_another_order() -> None:
    order = np.random.default_rng(0).permutation(3500)
    a, b = (requests(*((512 * x, 1) for x in each.tolist())) for each in (np.arange(3500), order))
    rising: list[int] = []  # of sizes that are all different, the longest rising subsequence
    for x in order.tolist():
        rising[bisect_left(rising, x) : bisect_left(rising, x) + 1] = [x]
    found = align(replace(a, is_block=False), replace(b, is_block=False), MANY)
    assert found is not None
    assert found[:2] == (len(rising), len(rising))


def test_sizes_of_blocks_match_within_a_mib_of_one_another() -> None:
    size = 5 * MIB
    for other, is_equal in ((size + MIB, True), (size + MIB + 512, False), (-size, False)):
        found = align(requests((size, 1)), requests((other, 1)), MANY)
        assert found is not None
        assert found.pairs == is_equal
    for least, is_block in ((MIB, True), (size, False)):  # small ones, and what was asked for
        one, more = (requests((each, 1), is_block=is_block) for each in (least, least + 512))
        found = align(one, more, MANY)
        assert found is not None
        assert found.pairs == 0


def test_addresses_are_compared_along_the_alignment_and_not_by_position() -> None:
    a = requests((512, 1), (1024, 2), (2048, 3))
    b = requests((4096, 9), (512, 1), (1024, 2), (2048, 3))
    found = align(a, b, MANY)
    assert found is not None
    assert found[:2] == (3, 3)


def test_too_much_work_gives_no_alignment() -> None:
    a, b = requests(*[(512, 1)] * 50, (1024, 1)), requests((2048, 2), *[(512, 3)] * 50)
    assert align(a, b, 1000) is None
    assert align(a, b, MANY) is not None


def test_a_step_without_requests_has_no_pairs() -> None:
    assert align(requests(), requests(), MANY) == (0, 0, 0)
    assert align(requests(), requests((512, 1)), MANY) == (0, 0, 0)

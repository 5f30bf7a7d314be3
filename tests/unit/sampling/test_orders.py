"""Orders as lines, and those that stand."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chopperd.errors import ConfigError
from chopperd.sampling.orders import (
    LONGEST_NS,
    Burst,
    OrderBook,
    OrderLines,
    Quiet,
    decoded,
    encoded,
)

SECOND = 1_000_000_000
BURST = Burst(hz=100.0, until_mono_ns=50 * SECOND)
QUIET = Quiet(until_mono_ns=50 * SECOND)


@pytest.mark.parametrize("order", [BURST, QUIET])
def test_an_order_comes_out_as_it_went_in(order: Burst | Quiet) -> None:
    line = encoded(order)
    assert line.endswith(b"\n")
    assert decoded(line.strip()) == order


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"faster!",
        b"\xff\xfe",
        b"[]",
        b'{"type":"erase"}',
        b'{"type":"burst"}',
        b'{"type":"burst","hz":1e9,"until_mono_ns":1}',
        b'{"type":"burst","hz":-1,"until_mono_ns":1}',
        b'{"type":"quiet","until_mono_ns":"later"}',
    ],
)
def test_what_is_no_order_is_refused(line: bytes) -> None:
    with pytest.raises(ConfigError, match="not an order"):
        decoded(line)


@given(
    lines=st.lists(st.binary(min_size=1, max_size=40).filter(lambda line: b"\n" not in line)),
    cuts=st.lists(st.integers(1, 60)),
)
@settings(max_examples=100, deadline=None)
def test_lines_are_the_same_however_they_are_cut_up(lines: list[bytes], cuts: list[int]) -> None:
    data, found, cutter = b"".join(line + b"\n" for line in lines), [], OrderLines()
    for length in [*cuts, len(data)]:
        found += cutter.feed(data[:length])
        data = data[length:]
    found += cutter.feed(data)
    assert found == lines


def test_a_flood_without_a_line_end_is_passed_over_and_the_next_line_is_read() -> None:
    cutter = OrderLines()
    for _ in range(100):
        assert cutter.feed(b"x" * 4096) == []
    assert cutter.feed(b"the end of it\nnext\n") == [b"next"]
    assert cutter.feed(b"pa") == []
    assert cutter.feed(b"rt\n\n") == [b"part"]


def test_an_order_holds_until_its_time_and_another_of_its_kind_takes_its_place() -> None:
    book = OrderBook()
    book.take(BURST, 0)
    assert book.burst(50 * SECOND - 1) == BURST
    assert book.burst(50 * SECOND) is None
    book.take(Burst(hz=20.0, until_mono_ns=10 * SECOND), 0)
    burst = book.burst(9 * SECOND)
    assert burst is not None
    assert burst.hz == 20.0
    book.take(Burst(hz=20.0, until_mono_ns=0), 9 * SECOND)
    assert book.burst(9 * SECOND) is None
    assert book.version == 3


def test_no_order_holds_for_longer_than_a_minute() -> None:
    book = OrderBook()
    book.take(Quiet(until_mono_ns=2**62), SECOND)
    assert book.quiet(SECOND + LONGEST_NS - 1) is not None
    assert book.quiet(SECOND + LONGEST_NS) is None


def test_a_burst_goes_before_a_quiet_time_and_both_keep_rare_calls_waiting() -> None:
    book = OrderBook()
    assert book.allows_rare_calls(0)
    book.take(QUIET, 0)
    assert book.quiet(SECOND) is not None
    assert not book.allows_rare_calls(SECOND)
    book.take(Burst(hz=100.0, until_mono_ns=10 * SECOND), SECOND)
    assert book.quiet(SECOND) is None
    assert not book.allows_rare_calls(SECOND)
    assert book.quiet(10 * SECOND) is not None
    assert book.allows_rare_calls(50 * SECOND)


def test_a_successor_is_told_what_still_holds() -> None:
    book = OrderBook()
    book.take(Burst(hz=100.0, until_mono_ns=10 * SECOND), 0)
    book.take(QUIET, 0)
    assert book.in_force(SECOND) == (Burst(hz=100.0, until_mono_ns=10 * SECOND), QUIET)
    assert book.in_force(20 * SECOND) == (QUIET,)
    assert book.in_force(60 * SECOND) == ()

"""The dies of a GPU as they run now; expected values by hand."""

import pytest

from chopperd.live.readings import DieClocks
from chopperd.model.live import DiesLive
from chopperd.sampling.memory.layout import NO_DIE, Records
from chopperd.units import NS_PER_MS, NS_PER_S
from tests.fakes.records import records


def dies(*rows: tuple[int, ...], first_ms: int = 0, period_ms: float = 100) -> Records:
    """Records of these dies; there are none of those not named."""
    made = records([{}] * len(rows), first_ns=first_ms * NS_PER_MS, period_ms=period_ms)
    for record, row in zip(made, rows, strict=True):
        record["die_clocks_mhz"][: len(row)] = row
    return made


def live(*parts: Records) -> DiesLive | None:
    clocks = DieClocks()
    for part in parts:
        clocks.add(part)
    return clocks.live(0)


def test_clocks_are_those_of_now_and_means_those_of_two_seconds() -> None:
    found = live(dies((2100, 1990, 0, NO_DIE), (2000, 2010, 0, NO_DIE), (2050, 2000, 132, NO_DIE)))
    assert found == DiesLive(
        clocks_mhz=(2050, 2000, 132, None, None, None, None, None),
        running=2,
        gated=1,
        mean_mhz=2025.0,  # of 2050 and 2000
        spread_mhz=50.0,
        governing=1,
    )


def test_two_seconds_are_looked_back_over_what_comes_piece_by_piece() -> None:
    found = live(
        dies((1000, 3000), first_ms=500),
        dies((2000, 2010), first_ms=501),
        dies((2040, 2020), first_ms=2_500),
    )
    assert found is not None
    # 2020 and 2015; what lies 2 s back is not counted.
    assert (found.mean_mhz, found.spread_mhz, found.governing) == (2017.5, 5.0, 1)


def test_a_die_counts_in_the_mean_only_where_it_ran_and_only_while_it_runs() -> None:
    found = live(dies((2000, 0, 1500), (2000, 1800, 0)))
    assert found is not None
    assert (found.running, found.gated) == (2, 1)
    assert (found.mean_mhz, found.spread_mhz, found.governing) == (1900.0, 200.0, 1)


def test_one_running_die_has_no_spread_and_none_has_no_mean() -> None:
    one, none = live(dies((2000, 0))), live(dies((132, 0)))
    assert one is not None
    assert (one.running, one.gated, one.mean_mhz, one.spread_mhz) == (1, 1, 2000.0, None)
    assert none == DiesLive(clocks_mhz=(132, 0, *[None] * 6), running=0, gated=0)


def test_a_gpu_without_dies_has_none() -> None:
    assert live(records([{"sm_clock_mhz": 1500.0}] * 3)) is None
    assert live() is None


@pytest.mark.parametrize(("since_ns", "is_known"), [(NS_PER_S, True), (NS_PER_S + 1, False)])
def test_dies_that_are_not_fresh_are_not_known(since_ns: int, is_known: bool) -> None:
    clocks = DieClocks()
    clocks.add(dies((2000, 2010), first_ms=1_000))
    # Later reads that tell nothing of dies do not make them fresh.
    clocks.add(records([{"sm_clock_mhz": 1500.0}], first_ns=2 * NS_PER_S))
    assert (clocks.live(since_ns) is not None) == is_known

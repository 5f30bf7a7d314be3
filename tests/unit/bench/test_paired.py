"""Ratios of pairs, by hand."""

import pytest

from bench.gpu.paired import Done, Stretch, medians, paired_ratio


def stretch(condition: str, pair: int, start_ns: int) -> Stretch:
    return Stretch(
        condition=condition, pair=pair, start_mono_ns=start_ns, end_mono_ns=start_ns + 100
    )


def test_what_began_or_ended_outside_a_stretch_does_not_count() -> None:
    done = [
        Done(start_mono_ns=-1, took_ns=50),
        Done(start_mono_ns=0, took_ns=10),
        Done(start_mono_ns=20, took_ns=30),
        Done(start_mono_ns=95, took_ns=10),
    ]
    assert medians(done, [stretch("on", 0, 0), stretch("off", 0, 200)]) == {("on", 0): 20.0}


def test_the_ratio_of_two_pairs_by_hand() -> None:
    found = {("on", 0): 2.0, ("off", 0): 1.0, ("on", 1): 8.0, ("off", 1): 1.0, ("on", 2): 5.0}
    ratio = paired_ratio(found, "on", "off")
    # Logs to base 2 are 1 and 3: mean 2, standard deviation sqrt 2, error 1; t of one degree.
    assert ratio.pairs == 2
    assert ratio.value_ratio == pytest.approx(4.0)
    assert ratio.low_ratio == pytest.approx(2 ** (2 - 12.706))
    assert ratio.high_ratio == pytest.approx(2 ** (2 + 12.706))


def test_one_pair_has_no_interval_and_no_ratio() -> None:
    ratio = paired_ratio({("on", 0): 2.0, ("off", 0): 1.0}, "on", "off")
    assert (ratio.pairs, ratio.value_ratio) == (1, None)

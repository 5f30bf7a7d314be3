"""A counter of energy is believed once it agrees with the power beside it."""

import logging
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chopperd.devices.channel import EnergyCheck, Verdict
from chopperd.units import NS_PER_S

HALF_NS = NS_PER_S // 2


def verdicts(
    rates_w: Sequence[float], power_w: float = 400, step_ns: int = HALF_NS
) -> list[Verdict]:
    """After each look, at a counter that rises at these rates."""
    check, energy_j, found = EnergyCheck("0"), 1e6, [Verdict.OPEN]
    check.take(0, energy_j, power_w)
    for look, rate_w in enumerate(rates_w, 1):
        energy_j += rate_w * step_ns / NS_PER_S
        found.append(check.take(look * step_ns, energy_j, power_w))
    return found


def test_a_counter_that_agrees_is_right_after_two_seconds() -> None:
    assert verdicts([400] * 5) == [Verdict.OPEN] * 4 + [Verdict.RIGHT] * 2


def test_a_gpu_that_draws_little_is_compared_for_longer() -> None:
    """10 J at 2 W take five seconds."""
    assert verdicts([2] * 10, power_w=2) == [Verdict.OPEN] * 10 + [Verdict.RIGHT]


@pytest.mark.parametrize("rate_w", [0, 40, 4000])
def test_one_that_stands_still_or_has_another_unit_is_wrong_after_five_comparisons(
    rate_w: float, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert verdicts([rate_w] * 20) == [Verdict.OPEN] * 20 + [Verdict.WRONG]
    assert len(caplog.records) == 1


def test_a_power_that_lags_behind_a_load_condemns_no_counter() -> None:
    """Four seconds in which a mean is far behind, then it is not."""
    assert verdicts([800] * 8 + [400] * 4)[-1] is Verdict.RIGHT


def test_a_verdict_stands() -> None:
    assert verdicts([400] * 4 + [0] * 40)[-1] is Verdict.RIGHT
    assert verdicts([0] * 20 + [400] * 40)[-1] is Verdict.WRONG


def test_looks_without_power_or_far_apart_or_over_a_restart_compare_nothing() -> None:
    check = EnergyCheck("0")
    for look in range(100):
        assert check.take(look * HALF_NS, 400.0 * look, None) is Verdict.OPEN
    assert set(verdicts([400] * 20, step_ns=4 * NS_PER_S)) == {Verdict.OPEN}
    check = EnergyCheck("0")
    for look in range(40):  # it begins anew at each look
        assert check.take(look * HALF_NS, 1e6 - look, 400.0) is Verdict.OPEN


@given(st.floats(0.65, 1.55), st.floats(20, 2000))
@settings(max_examples=50, deadline=None)
def test_whatever_agrees_about_is_right(ratio: float, power_w: float) -> None:
    assert verdicts([ratio * power_w] * 4, power_w)[-1] is Verdict.RIGHT

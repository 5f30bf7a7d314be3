import pytest

from chopperd.sampling.schedule import DriverBudget

MS = 1_000_000
SECOND = 1_000_000_000


def budget() -> DriverBudget:
    return DriverBudget(budget_ratio=0.02, asked_period_ns=10 * MS, longest_period_ns=1_000 * MS)


def test_calls_within_the_budget_leave_the_period() -> None:
    kept = budget()
    assert not kept.judge(0, 0)
    assert not kept.judge(2 * SECOND, 40 * MS)
    assert kept.period_ns == 10 * MS
    assert kept.spent_ratio == pytest.approx(0.02)


def test_past_the_budget_the_period_grows_to_the_multiple_that_keeps_it() -> None:
    slowed = budget()
    slowed.judge(0, 0)
    # 90 ms in 2 s is 4.5 %, 2.25 times the budget: every third period keeps it.
    assert slowed.judge(2 * SECOND, 90 * MS)
    assert slowed.period_ns == 30 * MS
    # Then the same calls take 1.5 %: two thirds of the period would spend 2.25 %, so it stays.
    assert not slowed.judge(4 * SECOND, 120 * MS)
    assert slowed.period_ns == 30 * MS


def test_it_goes_back_when_calls_are_quick_again() -> None:
    slowed = budget()
    slowed.judge(0, 0)
    slowed.judge(2 * SECOND, 400 * MS)
    assert slowed.period_ns == 100 * MS
    assert slowed.judge(4 * SECOND, 401 * MS)
    assert slowed.period_ns == 10 * MS


def test_it_never_falls_behind_the_slow_loop() -> None:
    slowed = budget()
    slowed.judge(0, 0)
    slowed.judge(2 * SECOND, 2 * SECOND)
    slowed.judge(4 * SECOND, 4 * SECOND)
    slowed.judge(6 * SECOND, 6 * SECOND)
    assert slowed.period_ns == 1_000 * MS


def test_what_comes_before_the_first_judgement_is_left_out() -> None:
    kept = budget()
    assert not kept.judge(SECOND, SECOND)
    assert not kept.judge(2 * SECOND, SECOND)
    assert kept.spent_ratio == 0


def test_the_ratio_at_the_requested_rate_says_why_it_slows_also_where_it_recovers() -> None:
    """8 % at 100 Hz: every fourth period; then 0.9 % at 25 Hz, 3.6 % at 100 Hz: every second.

    The 0.9 % spent are below the budget of 2 %, so they are not what slows it.
    """
    slowed = budget()
    slowed.judge(0, 0)
    assert slowed.judge(2 * SECOND, 160 * MS)
    assert slowed.period_ns == 40 * MS
    assert slowed.asked_ratio == pytest.approx(0.08)
    assert slowed.judge(4 * SECOND, 178 * MS)
    assert slowed.period_ns == 20 * MS
    assert slowed.asked_ratio == pytest.approx(0.036)

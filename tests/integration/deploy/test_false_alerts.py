"""Half a day of healthy and of faulty nodes; `bench.alerts` has 125 days."""

import pytest

from bench.alerts import FAULTS, GPUS, SCRAPES_AN_HOUR, SPREAD, alerts_of, day
from tests.tools import needed


@pytest.fixture(autouse=True)
def _with_promtool() -> None:
    needed("promtool")


def test_nothing_fires_on_equal_gpus_whatever_their_jobs_do() -> None:
    found = day(17, hours=12)
    # Jobs come and go, the agent begins again, and scrapes fail.
    at_work = (found.busy.mean(axis=1) > 0.5).mean()
    assert 0.2 < at_work < 0.98
    assert found.restarts
    assert found.missing
    assert alerts_of(found) == []


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_raises_its_alert_on_its_gpu_within_three_hours(fault: str) -> None:
    fired = alerts_of(day(1000, fault, hours=6))
    assert " ".join(FAULTS[fault]).strip() in fired
    # Neither another GPU nor another node's alert.
    assert all(each.endswith(" 5") or " " not in each for each in fired)


def test_the_spread_of_healthy_gpus_is_as_said() -> None:
    """Their mean clocks at work are within ±1 % of their middle."""
    found = day(17, hours=12)
    at_work = found.busy.min(axis=1) > 0.5
    means = found.clock_mhz[at_work].mean(axis=0)
    assert len(means) == GPUS
    assert at_work.sum() > SCRAPES_AN_HOUR
    assert 0.003 < (means.max() - means.min()) / means.mean() < 2.2 * SPREAD

import math

import numpy as np
import pytest

from chopperd.errors import ConfigError
from chopperd.simulation.physics import draw_silicon, switching_ratio
from chopperd.simulation.presets import PRESETS, node_preset


def test_switching_is_voltage_squared_times_clock() -> None:
    # by hand: at half the highest clock the voltage is 0.62 + 0.38/2 = 0.81 of the highest
    assert switching_ratio(np.array([0.5, 1.0])) == pytest.approx([0.81**2 * 0.5, 1.0])


@pytest.mark.parametrize("name", PRESETS)
def test_power_at_the_capped_clock_is_the_power_limit(name: str) -> None:
    silicon = draw_silicon(node_preset(name), seed=1)
    resting = silicon.resting_w(np.full(8, 70.0))
    clock = silicon.capped_clock_mhz(np.ones(8), resting)
    limit_w = silicon.model.power_limit_w
    assert silicon.power_w(clock, np.ones(8), resting) == pytest.approx(limit_w, rel=1e-3)
    assert (clock < silicon.model.sm_clock_max_mhz).all()


def test_little_activity_leaves_the_highest_clock() -> None:
    silicon = draw_silicon(node_preset("fsdp2-h100"), seed=1)
    clock = silicon.capped_clock_mhz(np.full(8, 0.2), silicon.resting_w(np.full(8, 70.0)))
    assert clock == pytest.approx(1980)


def test_the_temperature_answers_a_step_of_power_in_first_order() -> None:
    silicon = draw_silicon(node_preset("fsdp2-h100"), seed=1)
    constant_ns = silicon.model.thermal_constant_ns
    settled = 28 + silicon.resistance_c_per_w * 600.0
    for times in (0.0, 1.0, 3.0):
        reached = silicon.temperature_c(
            np.full(8, 28.0), np.full(8, 600.0), np.full(8, times * constant_ns)
        )
        # closed form: T = T_end + (T_0 - T_end) exp(-t / tau)
        assert reached == pytest.approx(settled + (28 - settled) * math.exp(-times))


def test_the_clock_falls_with_heat_above_the_slowdown_temperature_only() -> None:
    silicon = draw_silicon(node_preset("fsdp2-h100"), seed=1)
    # by hand: 120 MHz for each degree above 84 C
    allowed = silicon.cooled_clock_mhz(np.array([50.0, 84.0, 86.0]))
    assert allowed == pytest.approx([1980, 1980, 1740])


def test_gpus_of_a_node_differ_by_percents_and_the_fault_by_much() -> None:
    silicon = draw_silicon(node_preset("fsdp2-h100"), seed=3)
    healthy = np.delete(silicon.resistance_c_per_w, 5)
    assert 0.005 < healthy.std() / healthy.mean() < 0.1
    assert silicon.resistance_c_per_w[5] > 1.4 * healthy.max()


def test_an_unknown_preset_is_a_configuration_error_that_names_the_known() -> None:
    with pytest.raises(ConfigError, match="fsdp2-h100"):
        node_preset("fsdp3")

"""Formulas that relate clock, power and temperature, over columns with one row a GPU.

Dynamic power is proportional to V²·f·activity, with a voltage that rises linearly with the clock.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from chopperd.model.arrays import Float64s
from chopperd.simulation.presets import GpuModel, NodePreset, generator

_VOLTAGE_AT_ZERO: Final = 0.62
_LEAKAGE_FROM_C: Final = 30.0
_LOWEST_SHARE: Final = 0.15
_SHARES: Final = np.linspace(_LOWEST_SHARE, 1.0, 256)
_SILICON_KEY: Final = 11
_BISECTIONS: Final = 40


def switching_ratio(clock_ratio: Float64s) -> Float64s:
    """Compute V²·f relative to its value at the highest clock, for clocks relative to it."""
    voltage = _VOLTAGE_AT_ZERO + (1 - _VOLTAGE_AT_ZERO) * clock_ratio
    ratio: Float64s = voltage * voltage * clock_ratio
    return ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class Silicon:
    """The physical constants of a node's GPUs, (gpus,), which vary a little about the model's."""

    model: GpuModel
    dynamic_w: Float64s
    static_w: Float64s
    resistance_c_per_w: Float64s

    def resting_w(self, temperature_c: Float64s) -> Float64s:
        """Compute the power that does not depend on the clock: static and leakage, W."""
        return self.static_w + self.model.leakage_w_per_c * (temperature_c - _LEAKAGE_FROM_C)

    def power_w(self, clock_mhz: Float64s, activity: Float64s, resting_w: Float64s) -> Float64s:
        """Compute the board power, (..., gpus) W."""
        switching = switching_ratio(clock_mhz / self.model.sm_clock_max_mhz)
        return resting_w + self.dynamic_w * activity * switching

    def capped_clock_mhz(self, activity: Float64s, resting_w: Float64s) -> Float64s:
        """Compute the highest clock at which power stays within the limit, (..., gpus) MHz."""
        budget = (self.model.power_limit_w - resting_w) / (self.dynamic_w * activity)
        share = np.interp(budget, switching_ratio(_SHARES), _SHARES)
        return self.model.sm_clock_max_mhz * share

    def cooled_clock_mhz(self, temperature_c: Float64s) -> Float64s:
        """Compute the highest clock that the temperature allows, (gpus,) MHz."""
        excess_c = np.maximum(0.0, temperature_c - self.model.slowdown_c)
        allowed = self.model.sm_clock_max_mhz - self.model.slowdown_mhz_per_c * excess_c
        return np.maximum(_LOWEST_SHARE * self.model.sm_clock_max_mhz, allowed)

    def temperature_c(
        self, initial_c: Float64s, power_w: Float64s, elapsed_ns: Float64s
    ) -> Float64s:
        """Compute the temperature after a time at constant power: a first-order response."""
        settled = self.model.inlet_c + self.resistance_c_per_w * power_w
        return settled + (initial_c - settled) * np.exp(
            -elapsed_ns / self.model.thermal_constant_ns
        )

    def settled_temperature_c(self, activity: float) -> Float64s:
        """Compute the temperature reached under constant activity, governor included, (gpus,)."""
        low = np.full_like(self.static_w, self.model.inlet_c)
        high = np.full_like(self.static_w, 150.0)
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            hotter = self._settles_at(middle, activity) > middle
            low, high = np.where(hotter, middle, low), np.where(hotter, high, middle)
        return (low + high) / 2

    def _settles_at(self, temperature_c: Float64s, activity: float) -> Float64s:
        resting_w = self.resting_w(temperature_c)
        each = np.full_like(resting_w, activity)
        clock = np.minimum(
            self.capped_clock_mhz(each, resting_w), self.cooled_clock_mhz(temperature_c)
        )
        power = self.power_w(clock, each, resting_w)
        return self.model.inlet_c + self.resistance_c_per_w * power


def draw_silicon(preset: NodePreset, seed: int) -> Silicon:
    """Draw the GPUs of a seed: a few percent of spread, and the preset's cooling fault."""
    rng, count, model = generator(_SILICON_KEY, seed), preset.gpu_count, preset.gpu
    resistance = model.thermal_resistance_c_per_w * rng.normal(1.0, 0.04, count)
    if preset.badly_cooled is not None:
        fault_c_per_w = model.thermal_resistance_c_per_w * preset.fault_resistance
        resistance[preset.badly_cooled] = fault_c_per_w
    return Silicon(
        model=model,
        dynamic_w=model.dynamic_w * rng.normal(1.0, 0.012, count),
        static_w=model.static_w * rng.normal(1.0, 0.04, count),
        resistance_c_per_w=resistance,
    )

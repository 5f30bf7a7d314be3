"""What the clock of a GPU with several dies is off by, told in three ways, over known truth.

`python -m bench.dies` prints a table. The truth is the clock of the die that governs, which the
others run above in the mean and tremble about; in one of two settings another die governs every
5 s. Ways: the lowest die of the moment; the die with the lowest mean over the 2 s before, which is
what is known live; that over 1 s before and after, which reports take.
"""

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from msgspec.structs import replace

from bench.accuracy import Outcome, held_against, scenario_timeline
from bench.scenarios import Scenario, observe, scenario, step_truth
from chopperd.correlate.clock.governing import governed
from chopperd.correlate.join import join_device
from chopperd.model.arrays import Float64s
from chopperd.model.samples import GpuSamples
from chopperd.simulation.presets import DieModel, Dies, generator
from chopperd.units import NS_PER_S

_DIES_KEY: Final = 21
_TRAILING_NS: Final = 2 * NS_PER_S
TURNS_NS: Final = (0, 5 * NS_PER_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One line of the table: the clock, how often it is read, how soon another die governs."""

    preset: str
    hz: float
    turn_ns: int = 0
    steps: int = 60


def lowest_of_the_moment(samples: GpuSamples) -> GpuSamples:
    """Each sample's lowest die."""
    return replace(samples, sm_clock_mhz=_dies_mhz(samples).min(axis=1))


def trailing(samples: GpuSamples) -> GpuSamples:
    """The die with the lowest mean over the 2 s up to each sample."""
    t_ns, dies_mhz = samples.t_unix_ns, _dies_mhz(samples)
    first = np.searchsorted(t_ns, t_ns - _TRAILING_NS, side="left").tolist()
    means = [dies_mhz[begin : row + 1].mean(axis=0) for row, begin in enumerate(first)]
    governing = np.argmin(means, axis=1)
    return replace(samples, sm_clock_mhz=dies_mhz[np.arange(len(t_ns)), governing])


WAYS: Final[Mapping[str, Callable[[GpuSamples], GpuSamples]]] = {
    "moment": lowest_of_the_moment,
    "trailing": trailing,
    "surrounding": governed,
}


def outcomes(setting: Setting, seed: int) -> dict[str, Outcome]:
    """One simulated run told in each of the ways, against its truth."""
    known = scenario(setting.preset, seed=seed, step_s=1.0, steps=setting.steps)
    samples = _with_dies(known, setting, seed)
    return {name: _outcome(known, way(samples)) for name, way in WAYS.items()}


def _with_dies(known: Scenario, setting: Setting, seed: int) -> GpuSamples:
    samples = observe(known, hz=setting.hz, seed=seed)
    dies = Dies(DieModel(count=8, turn_ns=setting.turn_ns), generator(_DIES_KEY, seed))
    true_mhz = known.truth.clock.at(samples.t_unix_ns)
    dies_mhz = np.round(dies.clocks_mhz(true_mhz, samples.t_unix_ns))
    return replace(samples, die_clocks_mhz=dies_mhz)


def _outcome(known: Scenario, samples: GpuSamples) -> Outcome:
    joined = join_device(scenario_timeline(known), (), samples, known.reference_mhz)
    return held_against(joined, step_truth(known), known.reference_mhz)


def _dies_mhz(samples: GpuSamples) -> Float64s:
    if samples.die_clocks_mhz is None:
        raise ValueError("samples without dies")
    return samples.die_clocks_mhz


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    chosen = parser.parse_args()
    print("| clock | Hz | another governs each | told by | bias | held | p95 error |")
    print("|---|---|---|---|---|---|---|")
    for preset in ("steady", "phase-locked", "hopping"):
        for hz in (10.0, 100.0):
            for turn_ns in TURNS_NS:
                setting = Setting(preset=preset, hz=hz, turn_ns=turn_ns)
                runs = [outcomes(setting, seed) for seed in range(chosen.seeds)]
                for way in WAYS:
                    print(_line(setting, way, [run[way] for run in runs]), flush=True)


def _line(setting: Setting, way: str, runs: list[Outcome]) -> str:
    bias = np.mean([run.bias_points for run in runs])
    held = np.concatenate([run.held for run in runs]).mean()
    error = np.quantile(np.abs(np.concatenate([run.error_points for run in runs])), 0.95)
    each = f"{setting.turn_ns / NS_PER_S:g} s" if setting.turn_ns else "-"
    figures = f"{bias:+.3f} | {held:.3f} | {error:.2f}"
    return f"| {setting.preset} | {setting.hz:g} | {each} | {way} | {figures} |"


if __name__ == "__main__":
    main()

"""How far the joined figures lie from the truth, over simulated jobs whose clock is known.

`python -m bench.accuracy` prints a table: every preset, step length, sampling rate and sensor
lag of the accuracy budgets, through `join_device`, the way of the product.
"""

import argparse
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from typing import Final

import numpy as np
from msgspec.structs import replace

from bench.scenarios import SCENARIO_PRESETS, Scenario, StepTruth, observe, scenario, step_truth
from chopperd.correlate.join import JoinedDevice, join_device
from chopperd.correlate.losses import CeilingLoss
from chopperd.model.arrays import Bools, Float64s
from chopperd.model.kinds import Cause, CopyDirection, DType
from chopperd.model.timeline import DeviceTimeline, DeviceWindow, Intervals
from chopperd.units import NS_PER_MS

STEPS_S: Final = (0.3, 1.0, 5.0)
RATES_HZ: Final = (10.0, 100.0)
LAGS_MS: Final = (0, 20)
READ_SPAN_NS: Final = 200_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One line of the table: a job and how it is sampled.

    Attributes:
        preset, step_s, steps: The job.
        hz, lag_ms: Rate, and the sensor's lag.
        sensor_ms: How often the sensor looks; 0: at each read.
        told: Whether that is known to the join.
    """

    preset: str
    step_s: float
    hz: float
    lag_ms: int
    steps: int = 100
    sensor_ms: int = 0
    told: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one simulated run gave against its truth.

    Attributes:
        bias_points: Gap of the run less the true one, percentage points.
        error_points: (steps,) the same for each step.
        held: (steps,) bool, whether the step's interval holds the truth.
        cause_points: Largest difference of a cause's share of the run's loss, percentage points.
        lag_ms: The sensor's lag as measured; NaN when not measurable.
    """

    bias_points: float
    error_points: Float64s
    held: Bools
    cause_points: float
    lag_ms: float


def scenario_timeline(known: Scenario) -> DeviceTimeline:
    """The scenario's records as the device of a trace, unlinked, one family a class."""
    records, windows, count = known.records, known.windows, len(known.records)
    return DeviceTimeline(
        device=0,
        start_ns=records.start_ns,
        end_ns=records.end_ns,
        stream=records.stream,
        kernel_class=records.kernel_class,
        copy_direction=np.full(count, CopyDirection.NONE, np.int8),
        family=records.kernel_class.astype(np.int32),
        step=records.step,
        call_start_ns=records.start_ns,
        call_end_ns=records.start_ns,
        call_thread=np.full(count, -1, np.int32),
        copied_bytes=np.full(count, -1, np.int64),
        collective=np.full(count, -1, np.int32),
        seq=np.full(count, -1, np.int64),
        comms_id=np.full(count, -1, np.int64),
        operation=np.full(count, -1, np.int32),
        layer=np.full(count, -1, np.int32),
        annotation=np.full(count, -1, np.int32),
        phase=np.full(count, -1, np.int8),
        flops=np.full(count, np.nan),
        matrix_dtype=np.full(count, DType.NONE, np.int8),
        windows=tuple(
            DeviceWindow(
                step=step,
                start_ns=int(windows.start_ns[step]),
                end_ns=int(windows.end_ns[step]),
                tail=step == len(windows) - 1,
            )
            for step in range(len(windows))
        ),
        unrecorded=Intervals(start_ns=np.empty(0, np.int64), end_ns=np.empty(0, np.int64)),
    )


def outcome(setting: Setting, seed: int) -> Outcome:
    """One run of a setting, joined and held against its truth."""
    known = scenario(setting.preset, seed=seed, step_s=setting.step_s, steps=setting.steps)
    gpu_samples = observe(
        known,
        hz=setting.hz,
        lag_ns=setting.lag_ms * NS_PER_MS,
        seed=seed,
        read_span_ns=READ_SPAN_NS,
        sensor_period_ns=setting.sensor_ms * NS_PER_MS,
    )
    if setting.sensor_ms and setting.told:
        gpu = replace(gpu_samples.gpu, sm_clock_period_ns=setting.sensor_ms * NS_PER_MS)
        gpu_samples = replace(gpu_samples, gpu=gpu)
    joined = join_device(scenario_timeline(known), (), gpu_samples, known.reference_mhz)
    return held_against(joined, step_truth(known), known.reference_mhz)


def held_against(joined: JoinedDevice, truth: StepTruth, reference_mhz: float) -> Outcome:
    """What a joined run gave against its truth."""
    clocks = joined.clocks
    if clocks is None or clocks.loss is None:
        raise ValueError("the simulated samples do not cover the simulated trace")
    lost_ns, covered_ns = clocks.loss.lost_ns[:-1], clocks.compute.covered_ns[:-1]
    error = lost_ns / covered_ns - truth.gap_ratio
    half_width = clocks.compute.half_width_mhz[:-1] / reference_mhz
    true_gap = truth.lost_ns.sum() / truth.compute_ns.sum()
    return Outcome(
        bias_points=100 * float(lost_ns.sum() / covered_ns.sum() - true_gap),
        error_points=100 * error,
        held=np.abs(error) <= half_width,
        cause_points=_cause_points(clocks.loss, truth),
        lag_ms=np.nan if clocks.lag.lag_ns is None else clocks.lag.lag_ns / NS_PER_MS,
    )


def _cause_points(loss: CeilingLoss, truth: StepTruth) -> float:
    found = loss.by_cause_ns[:-1].sum(axis=0) / loss.lost_ns[:-1].sum()
    known = np.zeros(len(Cause))
    for cause, lost_ns in truth.by_cause_ns.items():
        known[cause] = lost_ns.sum() / truth.lost_ns.sum()
    return 100 * float(np.abs(found - known).max())


def settings(sensor_ms: int = 0, *, told: bool = True) -> list[Setting]:
    """All lines of the table."""
    return [
        Setting(preset=preset, step_s=step_s, hz=hz, lag_ms=lag_ms, sensor_ms=sensor_ms, told=told)
        for preset, step_s, hz, lag_ms in product(SCENARIO_PRESETS, STEPS_S, RATES_HZ, LAGS_MS)
    ]


def table_line(setting: Setting, outcomes: Sequence[Outcome]) -> str:
    """The outcomes of one setting as a row of the table."""
    bias = np.array([one.bias_points for one in outcomes])
    error = np.abs(np.concatenate([one.error_points for one in outcomes]))
    held = np.concatenate([one.held for one in outcomes])
    lags = np.array([one.lag_ms for one in outcomes])
    found = lags[np.isfinite(lags)]
    lag = f"{np.median(found):.1f} in {len(found)}/{len(lags)}" if len(found) else "not measurable"
    causes = max(one.cause_points for one in outcomes)
    return (
        f"| {setting.preset} | {setting.step_s:g} | {setting.hz:g} | {setting.lag_ms} "
        f"| {bias.mean():+.3f} | {bias.std():.3f} | {held.mean():.3f} "
        f"| {np.quantile(error, 0.95):.2f} | {causes:.2f} | {lag} |"
    )


def _one(job: tuple[Setting, int]) -> Outcome:
    return outcome(*job)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--only", default="", help="presets whose name contains this")
    parser.add_argument("--sensor-ms", type=int, default=0, help="the sensor looks so often")
    parser.add_argument("--untold", action="store_true", help="and the join is not told")
    chosen = parser.parse_args()
    print(
        "| preset | step s | Hz | lag ms | bias | sd | held | p95 error | causes | lag found ms |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    with ProcessPoolExecutor(chosen.processes) as pool:
        for setting in settings(chosen.sensor_ms, told=not chosen.untold):
            if chosen.only in setting.preset:
                jobs = [(setting, seed) for seed in range(chosen.seeds)]
                print(table_line(setting, list(pool.map(_one, jobs))), flush=True)


if __name__ == "__main__":
    main()

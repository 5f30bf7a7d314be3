"""What is said of samples that are not the trace's, over simulated jobs whose clock is known.

`python -m bench.foreign_samples` prints a table: ordinary samples (which must get no note), and
samples that were shifted, of an idle or another GPU, of a wall clock that was set, or held against
a wrong reference. Each must get a note (then it has no interval) or an interval that holds.
"""

import argparse
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
from msgspec.structs import replace

from bench.accuracy import READ_SPAN_NS, held_against, scenario_timeline
from bench.scenario_draws import Chunks, draw_records
from bench.scenarios import SCENARIO_PRESETS, Scenario, observe, scenario, step_truth
from chopperd.correlate.join import join_device
from chopperd.model.kinds import Cause
from chopperd.model.report import Reference
from chopperd.model.samples import GpuSamples
from chopperd.model.timeline import Intervals
from chopperd.report.build.clocked_device import doubt_notes
from chopperd.simulation.track import ClockTruth, StepFunction
from chopperd.units import NS_PER_MS, NS_PER_S

RATES_HZ: Final = (10.0, 100.0)
SHIFTS_MS: Final = (-2000, -300, -150, -50, 50, 150, 300, 700, 1000, 2000, 3000)
#: So many of the steps' intervals must hold the truth.
HELD: Final = 0.85
EVEN: Final = "even"

Change = Callable[[Scenario, GpuSamples], GpuSamples]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One line of the table.

    Attributes:
        name: What is wrong with the samples.
        preset: One of the scenario's, or `EVEN`: phase-locked, steps equal to the ns.
        change: Makes the samples wrong.
        hz, step_s, steps: How the job is sampled, and the job.
        reference_ratio: What the true reference clock is taken as.
    """

    name: str
    preset: str
    hz: float
    change: Change
    step_s: float = 1.0
    steps: int = 40
    reference_ratio: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The codes of what was noted, and the share of steps whose interval holds the truth."""

    codes: frozenset[str]
    held: float


def even_job(seed: int, steps: int) -> Scenario:
    """Steps of exactly 1 s, 0.7 s of computation at 1400 MHz and 0.3 s of the rest at 1950 MHz."""
    rng = np.random.default_rng(seed)
    start_ns = np.arange(steps, dtype=np.int64) * NS_PER_S
    chunks = Chunks(
        start_ns=start_ns,
        compute_end_ns=start_ns + 700 * NS_PER_MS,
        comm_end_ns=start_ns + 970 * NS_PER_MS,
        end_ns=start_ns + NS_PER_S,
        step=np.arange(steps, dtype=np.int32),
    )
    records = draw_records(rng, chunks)
    first, last = -4, steps + 4  # the job ran before it was traced, and after
    edges = np.arange(first, last + 1, dtype=np.int64)[:, None] * NS_PER_S
    edges = (edges + np.array([0, 700 * NS_PER_MS])).reshape(-1)
    value = np.tile([1400.0, 1950.0], last - first + 1)[: len(edges) - 1]
    known = scenario("phase-locked", seed=seed, step_s=1.0, steps=4)
    ends = np.append(start_ns[1:], int(records.end_ns.max()))
    return replace(
        known,
        preset=EVEN,
        windows=Intervals(start_ns=start_ns, end_ns=ends),
        records=records,
        truth=ClockTruth(
            clock=StepFunction(edges_ns=edges, value=value), causes=np.zeros(len(value), np.int64)
        ),
    )


def as_it_is(known: Scenario, samples: GpuSamples) -> GpuSamples:
    """The samples as they were taken."""
    del known
    return samples


def shifted(known: Scenario, samples: GpuSamples, *, by_ms: int) -> GpuSamples:
    """All samples later by so much."""
    del known
    return replace(samples, t_unix_ns=samples.t_unix_ns + by_ms * NS_PER_MS)


def set_forward(known: Scenario, samples: GpuSamples, *, by_ms: int) -> GpuSamples:
    """The clock that the samples are timed by is set forward in the middle of the trace."""
    middle_ns = int(known.windows.start_ns[len(known.windows) // 2])
    later = samples.t_unix_ns >= middle_ns
    return replace(samples, t_unix_ns=samples.t_unix_ns + np.where(later, by_ms * NS_PER_MS, 0))


def idle(
    known: Scenario, samples: GpuSamples, *, clock_mhz: float, tells: str | None
) -> GpuSamples:
    """A GPU that does nothing; it tells activity, its idle bit, its power, or its clock only."""
    del known
    count, unknown = len(samples), Cause.UNKNOWN.bit
    return replace(
        samples,
        gpu=replace(samples.gpu, power_limit_w=700.0),
        sm_clock_mhz=np.full(count, clock_mhz),
        limited_ns={},
        causes=np.full(count, Cause.LOW_UTILIZATION.bit if tells == "bit" else unknown),
        activity_ratio=np.full(count, 0.0 if tells == "activity" else np.nan),
        power_w=np.full(count, 75.0 if tells == "power" else np.nan),
    )


def blind_with_power(known: Scenario, samples: GpuSamples, *, by_ms: int) -> GpuSamples:
    """Shifted samples that also have the power at the instant, which follows what runs."""
    compute, t_ns = known.compute, samples.t_unix_ns
    nth = np.clip(np.searchsorted(compute.start_ns, t_ns, "right") - 1, 0, None)
    busy = (t_ns >= compute.start_ns[nth]) & (t_ns < compute.end_ns[nth])
    gpu = replace(samples.gpu, power_source="instant", power_limit_w=700.0)
    power_w = np.where(busy, 640.0, 280.0)
    return shifted(known, replace(samples, gpu=gpu, power_w=power_w), by_ms=by_ms)


def outcome(setting: Setting, seed: int) -> Outcome:
    """One run of a setting."""
    known = (
        even_job(seed, setting.steps)
        if setting.preset == EVEN
        else scenario(setting.preset, seed=seed, step_s=setting.step_s, steps=setting.steps)
    )
    seen = observe(known, hz=setting.hz, seed=seed, read_span_ns=READ_SPAN_NS)
    samples = setting.change(known, seen)
    reference_mhz = known.reference_mhz * setting.reference_ratio
    joined = join_device(scenario_timeline(known), (), samples, reference_mhz)
    reference = Reference(sm_clock_mhz=reference_mhz, source="device_max")
    notes = doubt_notes(joined, samples, reference)
    held = held_against(joined, step_truth(known), reference_mhz).held
    return Outcome(codes=frozenset(note.code for note in notes), held=float(held.mean()))


def settings() -> list[Setting]:
    """All lines of the table: ordinary ones first."""
    ordinary = [
        Setting(name="none", preset=preset, hz=hz, change=as_it_is, step_s=step_s, steps=steps)
        for preset in (*SCENARIO_PRESETS, EVEN)
        for hz in RATES_HZ
        for step_s, steps in (((0.3, 40), (1.0, 10), (1.0, 40)) if preset != EVEN else ((1.0, 40),))
    ]
    moved = [
        Setting(
            name=f"shifted by {by_ms} ms",
            preset=preset,
            hz=hz,
            change=partial(shifted, by_ms=by_ms),
        )
        for preset in ("phase-locked", EVEN)
        for hz in RATES_HZ
        for by_ms in SHIFTS_MS
    ]
    others = [
        Setting(name=name, preset=preset, hz=hz, change=change, reference_ratio=ratio)
        for name, preset, change, ratio in (
            ("blind clock with power, shifted by 700 ms", "steady", _POWER_LATE, 1.0),
            ("blind clock, shifted by 700 ms", "steady", _LATE, 1.0),
            ("clock set forward by 700 ms", "phase-locked", _SET, 1.0),
            ("idle, tells activity", "phase-locked", _idle_gpu(1980.0, "activity"), 1.0),
            ("idle, tells its idle bit", "phase-locked", _idle_gpu(1980.0, "bit"), 1.0),
            ("idle, tells power", "phase-locked", _idle_gpu(1980.0, "power"), 1.0),
            ("idle at 345 MHz, tells no more", "phase-locked", _idle_gpu(345.0, None), 1.0),
            ("idle at 1980 MHz, tells no more", "phase-locked", _idle_gpu(1980.0, None), 1.0),
            ("reference half of the true one", "phase-locked", as_it_is, 0.5),
            ("reference ten times the true one", "phase-locked", as_it_is, 10.0),
        )
        for hz in RATES_HZ
    ]
    return [*ordinary, *moved, *others]


_LATE: Final = partial(shifted, by_ms=700)
_SET: Final = partial(set_forward, by_ms=700)
_POWER_LATE: Final = partial(blind_with_power, by_ms=700)


def _idle_gpu(clock_mhz: float, tells: str | None) -> Change:
    return partial(idle, clock_mhz=clock_mhz, tells=tells)


def table_line(setting: Setting, outcomes: Sequence[Outcome]) -> str:
    """The outcomes of one setting as a row of the table."""
    noted = [bool(one.codes) for one in outcomes]
    held = [one.held for one in outcomes if not one.codes]
    fine = [bool(one.codes) or one.held >= HELD for one in outcomes]
    codes = ", ".join(sorted({code for one in outcomes for code in one.codes})) or "-"
    share = f"{np.mean(held):.2f}" if held else "-"
    return (
        f"| {setting.name} | {setting.preset} | {setting.hz:g} "
        f"| {setting.steps} x {setting.step_s:g} s | {sum(noted)}/{len(noted)} | {codes} "
        f"| {share} | {sum(fine)}/{len(fine)} |"
    )


def _one(job: tuple[Setting, int]) -> Outcome:
    return outcome(*job)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=100)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--only", default="", help="lines whose name contains this")
    chosen = parser.parse_args()
    print("| wrong | preset | Hz | job | noted | notes | held without | noted or held |")
    print("|---|---|---|---|---|---|---|---|")
    with ProcessPoolExecutor(chosen.processes) as pool:
        for setting in settings():
            if chosen.only in setting.name:
                jobs = [(setting, chosen.first_seed + seed) for seed in range(chosen.seeds)]
                print(table_line(setting, list(pool.map(_one, jobs))), flush=True)


if __name__ == "__main__":
    main()

"""Whether intervals of the clock gap hold the truth, over sensors and reads of many kinds.

`python -m bench.sensors` prints a table. The jobs, clocks, sensors and reads here are written in
plain numpy, apart from `chopperd.simulation`: what both had wrong would show in neither.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopperd.correlate.join import RowClocks, join_device
from chopperd.model.arrays import Bools, Float64s, Int8s, Int64s
from chopperd.model.devices import GpuInfo, Vendor
from chopperd.model.kinds import CopyDirection, DType, KernelClass
from chopperd.model.samples import GpuSamples
from chopperd.model.timeline import DeviceTimeline, DeviceWindow, Intervals
from chopperd.units import NS_PER_MS, NS_PER_S

REFERENCE_MHZ: Final = 1980.0
CELL_NS: Final = NS_PER_MS // 2
MARGIN_S: Final = 2.0
STEPS_S: Final = (0.3, 1.0, 5.0)
RATES_HZ: Final = (10.0, 100.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Steps of compute and communication, and the true clock on cells of `CELL_NS`.

    Attributes:
        edges_ns: (steps + 1,) int64.
        start_ns, end_ns, step: (n,) int64, stretches of compute.
        computing: (cells,) bool, compute runs in most of the cell; cell 0 starts at 0.
        clock_mhz: (cells,) float64.
    """

    edges_ns: Int64s
    start_ns: Int64s
    end_ns: Int64s
    step: Int64s
    computing: Bools
    clock_mhz: Float64s


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A kind of clock, of sensor, and of reads.

    Attributes:
        clock: One of `CLOCKS`.
        lag_ms, average_ms, hold_ms: What the sensor does to it, in this order: it averages over
            the time before, shows that later, and takes a new value so often (0: at each read).
        declared: Whether the back end says that the sensor shows an instant.
        regular: Reads at regular intervals, as of `nvidia-smi -lms`.
        exact: Steps of exactly equal length.
    """

    name: str
    clock: str
    lag_ms: float = 0
    average_ms: float = 0
    hold_ms: float = 0
    declared: bool = False
    regular: bool = False
    exact: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One run: all in percentage points of gap; (steps,) each.

    Attributes:
        bias_points: Of the run.
        error_points, half_points: Of each step, signed; half width of its interval.
        run_held: Whether the run's interval holds.
        resolved: Whether a step is shown as a figure.
        notes: Codes of notes about the clock.
    """

    bias_points: float
    error_points: Float64s
    half_points: Float64s
    run_held: bool
    resolved: Bools
    notes: tuple[str, ...]

    @property
    def held(self) -> Bools:
        """(steps,) whether the interval holds the truth."""
        held: Bools = np.abs(self.error_points) <= self.half_points
        return held


def job(case: Case, step_s: float, steps: int, rng: np.random.Generator) -> Job:
    """The job of a case: about four chunks a second, at least four a step, a fifth not compute."""
    chunks = max(4, round(step_s * 4))
    jitter = 0.0 if case.exact else 0.01
    lengths_s = step_s * (1 + jitter * rng.standard_normal(steps))
    weight = 1 + 10 * jitter * rng.uniform(-1, 1, (steps, chunks))
    chunk_s = (weight / weight.sum(axis=1, keepdims=True) * lengths_s[:, None]).ravel()
    begin_s = MARGIN_S + (0 if case.exact else rng.uniform(0, step_s))
    at_s = begin_s + np.concatenate(([0.0], np.cumsum(chunk_s)))
    share = 0.8 + 4 * jitter * rng.uniform(-1, 1, len(chunk_s))
    start_ns = np.rint(at_s[:-1] * NS_PER_S).astype(np.int64)
    end_ns = start_ns + np.rint(chunk_s * share * NS_PER_S).astype(np.int64)
    cells = int((at_s[-1] + MARGIN_S) * NS_PER_S) // CELL_NS
    middle_ns = np.arange(cells) * CELL_NS + CELL_NS // 2
    inside = np.searchsorted(start_ns, middle_ns, "right") - 1
    computing = (inside >= 0) & (middle_ns < end_ns[np.maximum(inside, 0)])
    return Job(
        edges_ns=np.rint(at_s[::chunks] * NS_PER_S).astype(np.int64),
        start_ns=start_ns,
        end_ns=end_ns,
        step=np.repeat(np.arange(steps), chunks),
        computing=computing,
        clock_mhz=CLOCKS[case.clock](computing, rng),
    )


def _wander(count: int, deviation: float, tau_s: float, rng: np.random.Generator) -> Float64s:
    """An Ornstein-Uhlenbeck process on cells, by spectra (it closes on itself)."""
    keep = np.exp(-CELL_NS / NS_PER_S / tau_s)
    turn = np.exp(-2j * np.pi * np.fft.rfftfreq(count))
    noise = np.fft.rfft(rng.normal(0, deviation * np.sqrt(1 - keep**2), count))
    wandering: Float64s = np.fft.irfft(noise / (1 - keep * turn), count)
    return wandering


def _settled(target: Float64s, tau_s: float) -> Float64s:
    """`target` followed with a first-order time constant."""
    keep = np.exp(-CELL_NS / NS_PER_S / tau_s)
    turn = np.exp(-2j * np.pi * np.fft.rfftfreq(len(target)))
    followed: Float64s = np.fft.irfft(
        np.fft.rfft(target) * (1 - keep) / (1 - keep * turn), len(target)
    )
    return followed


def _locked(tau_s: float) -> Callable[[Bools, np.random.Generator], Float64s]:
    def clock(computing: Bools, rng: np.random.Generator) -> Float64s:
        target = np.where(computing, 1400.0, 1950.0)
        return _settled(target, tau_s) + _wander(len(computing), 15.0, 2.0, rng)

    return clock


def _hopping(computing: Bools, rng: np.random.Generator) -> Float64s:
    cells_per_s = NS_PER_S // CELL_NS
    dwell = rng.integers(cells_per_s // 50, cells_per_s // 5, len(computing) // 40 + 1)
    level = 1200.0 + 15 * rng.integers(0, 53, len(dwell))
    return np.repeat(level, dwell)[: len(computing)]


def _limit_cycle(computing: Bools, rng: np.random.Generator) -> Float64s:
    """50 times a second up and, for a third of the time, down by 200 MHz."""
    cells = NS_PER_S // CELL_NS // 50
    phase = (np.arange(len(computing)) + rng.integers(cells)) % cells
    return np.where(phase < cells / 3, 1500.0, 1700.0)


CLOCKS: Final[Mapping[str, Callable[[Bools, np.random.Generator], Float64s]]] = {
    "steady": lambda computing, rng: np.minimum(
        1600 + _wander(len(computing), 60.0, 0.3, rng), REFERENCE_MHZ
    ),
    "locked": _locked(0.005),
    "locked at once": _locked(0.0003),
    "settling 40 ms": _locked(0.04),
    "settling 100 ms": _locked(0.1),
    "hopping": _hopping,
    "limit cycle": _limit_cycle,
    "constant": lambda computing, rng: np.full(len(computing), 1380 + rng.uniform(0, 40)),
}

CASES: Final = (
    *(
        Case(name=f"{clock}, instant", clock=clock, declared=True)
        for clock in ("steady", "locked", "hopping")
    ),
    *(
        Case(name=f"{clock}, instant, lag 20", clock=clock, declared=True, lag_ms=20)
        for clock in ("steady", "locked", "hopping")
    ),
    *(Case(name=f"{clock}, unknown", clock=clock) for clock in ("steady", "locked", "hopping")),
    *(
        Case(name=f"{clock}, average {ms}", clock=clock, average_ms=ms)
        for clock in ("steady", "locked", "locked at once", "hopping")
        for ms in (50, 100)
    ),
    *(
        Case(name=f"{clock}, held 100", clock=clock, hold_ms=100)
        for clock in ("steady", "locked", "hopping")
    ),
    *(Case(name=clock, clock=clock) for clock in ("settling 40 ms", "settling 100 ms")),
    Case(name="constant", clock="constant"),
    Case(name="constant, instant", clock="constant", declared=True),
    *(Case(name=f"locked, lag {ms}", clock="locked", lag_ms=ms) for ms in (50, 100, 250)),
    *(
        Case(name=f"{clock}, lag 50", clock=clock, lag_ms=50, declared=declared)
        for clock in ("steady", "hopping")
        for declared in (False, True)
    ),
    *(
        Case(name=f"{clock}, equal steps", clock=clock, declared=True, exact=True)
        for clock in ("locked", "limit cycle")
    ),
    *(
        Case(name=f"{clock}, equal steps, regular", clock=clock, regular=True, exact=True)
        for clock in ("locked", "limit cycle")
    ),
    Case(name="locked, regular", clock="locked", declared=True, regular=True),
    Case(name="hopping, regular", clock="hopping", declared=True, regular=True),
)


def seen(case: Case, known: Job, hz: float, rng: np.random.Generator) -> GpuSamples:
    """What reads of the case's sensor give, rounded to 15 MHz, from 1 s before to 1 s after."""
    begin_ns, end_ns = known.edges_ns[0] - NS_PER_S, known.edges_ns[-1] + NS_PER_S
    count = int((end_ns - begin_ns) * hz / NS_PER_S)
    into = rng.uniform() + rng.normal(0, 0.005, count) if case.regular else rng.uniform(size=count)
    t_ns = np.sort(begin_ns + ((np.arange(count) + into) / hz * NS_PER_S).astype(np.int64))
    at_ns = t_ns.astype(np.float64)
    if case.hold_ms:
        hold_ns = case.hold_ms * NS_PER_MS
        phase_ns = rng.uniform(0, hold_ns)
        at_ns = np.floor((at_ns - phase_ns) / hold_ns) * hold_ns + phase_ns
    at_ns -= case.lag_ms * NS_PER_MS
    return samples_of(t_ns, _read_mhz(known.clock_mhz, at_ns, case.average_ms), case.declared)


def _read_mhz(clock_mhz: Float64s, at_ns: Float64s, average_ms: float) -> Float64s:
    if average_ms:
        width = average_ms * NS_PER_MS
        total = np.concatenate(([0.0], np.cumsum(clock_mhz)))
        cells = np.arange(len(total))
        upto, since = (np.interp(t / CELL_NS, cells, total) for t in (at_ns, at_ns - width))
        shown = (upto - since) * CELL_NS / width
    else:
        shown = clock_mhz[(at_ns / CELL_NS).astype(np.int64)]
    rounded: Float64s = np.round(shown / 15) * 15
    return rounded


def samples_of(t_ns: Int64s, clock_mhz: Float64s, declared: bool) -> GpuSamples:
    """Samples of a GPU of NVIDIA's; nothing but clocks."""
    absent = np.full(len(t_ns), np.nan)
    gpu = GpuInfo(
        gpu="0",
        index=0,
        uuid="GPU-0",
        name="Some GPU",
        vendor=Vendor.NVIDIA,
        sm_clock_max_mhz=REFERENCE_MHZ,
    )
    if declared:
        gpu = replace(gpu, sm_clock_average_ns=0)
    return GpuSamples(
        gpu=gpu,
        t_unix_ns=t_ns,
        sm_clock_mhz=clock_mhz,
        read_span_ns=np.full(len(t_ns), 200_000, np.int64),
        causes=np.zeros(len(t_ns), np.int64),
        mem_clock_mhz=absent,
        power_w=absent,
        energy_j=absent,
        temperature_c=absent,
        memory_used_bytes=absent,
        activity_ratio=absent,
        limited_ns={},
    )


def timeline_of(known: Job) -> DeviceTimeline:
    """One kernel a stretch of compute, one collective between two."""
    between = np.append(known.start_ns[1:], known.edges_ns[-1])
    start_ns = np.stack((known.start_ns, known.end_ns), axis=1).ravel()
    end_ns = np.stack((known.end_ns, between), axis=1).ravel()
    count = len(start_ns)

    def full(value: int) -> Int64s:
        return np.full(count, value, np.int64)

    kinds: Int8s = np.tile(np.array([KernelClass.GEMM, KernelClass.COMM], np.int8), count // 2)
    return DeviceTimeline(
        device=0,
        start_ns=start_ns,
        end_ns=end_ns,
        stream=np.tile(np.array([7, 20], np.int64), count // 2),
        kernel_class=kinds,
        copy_direction=full(CopyDirection.NONE).astype(np.int8),
        family=kinds.astype(np.int32),
        step=np.repeat(known.step, 2).astype(np.int32),
        call_start_ns=start_ns,
        call_end_ns=start_ns,
        call_thread=full(-1).astype(np.int32),
        copied_bytes=full(-1),
        collective=full(-1).astype(np.int32),
        seq=full(-1),
        comms_id=full(-1),
        operation=full(-1).astype(np.int32),
        layer=full(-1).astype(np.int32),
        annotation=full(-1).astype(np.int32),
        phase=full(-1).astype(np.int8),
        flops=np.full(count, np.nan),
        matrix_dtype=full(DType.NONE).astype(np.int8),
        windows=tuple(
            DeviceWindow(
                step=step, start_ns=start, end_ns=end, tail=step == len(known.edges_ns) - 2
            )
            for step, (start, end) in enumerate(
                zip(known.edges_ns[:-1].tolist(), known.edges_ns[1:].tolist(), strict=True)
            )
        ),
        unrecorded=Intervals(start_ns=np.empty(0, np.int64), end_ns=np.empty(0, np.int64)),
    )


def true_gap(known: Job) -> tuple[Float64s, float]:
    """The gap of each step and of the run."""
    total = np.concatenate(([0.0], np.cumsum(known.clock_mhz))) * CELL_NS
    cells = np.arange(len(total)) * CELL_NS
    cycles = np.interp(known.end_ns, cells, total) - np.interp(known.start_ns, cells, total)
    by_step = np.bincount(known.step, cycles)
    length = np.bincount(known.step, known.end_ns - known.start_ns)
    return (
        1 - by_step / length / REFERENCE_MHZ,
        float(1 - cycles.sum() / length.sum() / REFERENCE_MHZ),
    )


def outcome(case: Case, step_s: float, hz: float, seed: int, steps: int | None = None) -> Outcome:
    """One run of a case, joined and held against its truth."""
    rng = np.random.default_rng([seed, round(step_s * 10), round(hz)])
    known = job(case, step_s, steps or (100 if step_s < 2 else 40), rng)
    samples = seen(case, known, hz, rng)
    clocks = join_device(timeline_of(known), (), samples, REFERENCE_MHZ).clocks
    if clocks is None or clocks.loss is None:
        raise ValueError("the samples do not cover the job")
    found = 1 - clocks.compute.mean_mhz / REFERENCE_MHZ
    half_points = 100 * clocks.compute.half_width_mhz / REFERENCE_MHZ
    gaps, gap = true_gap(known)
    bias = 100 * float(found[-1] - gap)
    return Outcome(
        bias_points=bias,
        error_points=100 * (found[:-1] - gaps),
        half_points=half_points[:-1],
        run_held=abs(bias) <= half_points[-1],
        resolved=_resolved(clocks),
        notes=("regular_reads",) if clocks.regular_reads else (),
    )


def _resolved(clocks: RowClocks) -> Bools:
    windows = clocks.windows
    share = clocks.compute.covered_ns[:-1] / (windows.end_ns - windows.start_ns)[:-1]
    shown: Bools = 100 * clocks.compute.pooled_mhz[:-1] / REFERENCE_MHZ * share <= 2.0
    return shown


HEAD: Final = (
    "| case | step s | Hz | bias | run held | held | shown | of those held | half width | notes |\n"
    "|---|---|---|---|---|---|---|---|---|---|"
)


def table_line(case: Case, step_s: float, hz: float, outcomes: Sequence[Outcome]) -> str:
    """The outcomes of one setting as a row of the table."""
    bias = np.mean([one.bias_points for one in outcomes])
    run_held = np.mean([one.run_held for one in outcomes])
    held = np.concatenate([one.held for one in outcomes])
    shown = np.concatenate([one.resolved for one in outcomes])
    half = np.median(np.concatenate([one.half_points for one in outcomes]))
    notes = sorted({code for one in outcomes for code in one.notes})
    of_shown = f"{held[shown].mean():.2f}" if shown.any() else "-"
    return (
        f"| {case.name} | {step_s:g} | {hz:g} | {bias:+.2f} | {run_held:.2f} | {held.mean():.2f} "
        f"| {shown.mean():.2f} | {of_shown} | {half:.2f} | {', '.join(notes)} |"
    )


def _one(work: tuple[Case, float, float, int]) -> Outcome:
    return outcome(*work)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=100)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--steps-s", type=float, nargs="*", default=STEPS_S)
    chosen = parser.parse_args()
    print(HEAD)
    seeds = range(chosen.first_seed, chosen.first_seed + chosen.seeds)
    with ProcessPoolExecutor(chosen.processes) as pool:
        for case, step_s, hz in product(CASES, chosen.steps_s, RATES_HZ):
            if chosen.only in case.name:
                work = [(case, step_s, hz, seed) for seed in seeds]
                print(table_line(case, step_s, hz, list(pool.map(_one, work))), flush=True)


if __name__ == "__main__":
    main()

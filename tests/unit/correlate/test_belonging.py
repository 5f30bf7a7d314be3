"""Samples of another time axis or another GPU, made from scenarios whose truth is known."""

import numpy as np
import pytest
from msgspec.structs import replace

from bench.scenarios import Scenario, observe, scenario
from chopperd.correlate import intervals
from chopperd.correlate.belonging import Belonging, belonging, placed_lag
from chopperd.correlate.clock.lag import LagEstimate, measure_lag
from chopperd.model.kinds import Cause
from chopperd.model.samples import GpuSamples
from chopperd.model.timeline import Intervals
from tests.unit.correlate.builders import MS, spans

SECOND = 1000 * MS
NOTHING = spans()


def job(preset: str = "phase-locked", steps: int = 20) -> Scenario:
    return scenario(preset, seed=11, step_s=1.0, steps=steps)


def compute_of(known: Scenario) -> Intervals:
    return intervals.union(known.compute.start_ns, known.compute.end_ns)


def busy_of(known: Scenario) -> Intervals:
    return intervals.union(known.records.start_ns, known.records.end_ns)


def seen(known: Scenario, hz: float = 10.0, shift_ms: int = 0) -> GpuSamples:
    samples = observe(known, hz=hz, seed=5)
    return replace(samples, t_unix_ns=samples.t_unix_ns + shift_ms * MS)


def lag_of(known: Scenario, samples: GpuSamples) -> LagEstimate:
    gap_ns = 3 * int(np.median(np.diff(samples.t_unix_ns)))
    return placed_lag(samples.t_unix_ns, samples.sm_clock_mhz, compute_of(known), gap_ns)


def judged(known: Scenario, samples: GpuSamples, unknown: Intervals = NOTHING) -> Belonging:
    lag = lag_of(known, samples)
    return belonging(lag, samples, compute_of(known), busy_of(known), unknown)


@pytest.mark.parametrize("hz", [10.0, 100.0])
@pytest.mark.parametrize("shift_ms", [-3000, -700, -300, 300, 1000, 3000])
def test_samples_on_another_time_axis_are_found_where_they_fit(hz: float, shift_ms: int) -> None:
    known = job()
    samples = seen(known, hz, shift_ms)
    lag = lag_of(known, samples)
    assert lag.lag_ns == pytest.approx(shift_ms * MS, abs=3 * MS)
    assert lag.to_subtract_ns == lag.lag_ns
    assert judged(known, samples).apart_ns == lag.lag_ns


@pytest.mark.parametrize("shift_ms", [-200, -50, 0, 50, 200])
def test_what_a_sensor_may_lag_by_is_measured_and_no_fault(shift_ms: int) -> None:
    known = job()
    samples = seen(known, 100.0, shift_ms)
    lag = lag_of(known, samples)
    assert lag.lag_ns == pytest.approx(shift_ms * MS, abs=3 * MS)
    assert judged(known, samples) == Belonging()


@pytest.mark.parametrize("preset", ["steady", "hopping"])
@pytest.mark.parametrize("hz", [10.0, 100.0])
def test_a_clock_blind_to_what_runs_says_nothing_of_its_time(preset: str, hz: float) -> None:
    known = job(preset)
    assert lag_of(known, seen(known, hz)).lag_ns is None
    assert judged(known, seen(known, hz)) == Belonging()


def test_steps_of_one_length_leave_the_nearest_of_lags_that_fit_alike() -> None:
    """600 ms of compute in each second, to the ns: 0 fits as -4, -3, ... 4 s do."""
    compute = spans(*((k * SECOND, k * SECOND + 600 * MS) for k in range(30)))
    t_ns = np.arange(0, 30 * SECOND, 37 * MS, dtype=np.int64)
    clock_mhz = np.where(intervals.contains(compute, t_ns), 1400.0, 1950.0)
    found = placed_lag(t_ns + 1000 * MS, clock_mhz, compute, 120 * MS)
    assert found.lag_ns == pytest.approx(0, abs=40 * MS)
    found = placed_lag(t_ns + 1400 * MS, clock_mhz, compute, 120 * MS)
    assert found.lag_ns == pytest.approx(400 * MS, abs=40 * MS)


@pytest.mark.parametrize(("pause_ms", "lag_ms"), [(10, 2), (10, 5), (14, 5)])
def test_short_pauses_that_fit_between_two_lags_are_not_sought_steps_away(
    pause_ms: int, lag_ms: int
) -> None:
    """Steps of one length that is not on the grid of lags: some steps later fall upon it."""
    step_ns = 541_667_000
    compute = spans(*((k * step_ns, (k + 1) * step_ns - pause_ms * MS) for k in range(40)))
    t_ns = np.arange(0, 40 * step_ns, 10 * MS, dtype=np.int64)
    t_ns += np.random.default_rng(1).integers(0, 10 * MS, len(t_ns))
    computes = intervals.contains(compute, t_ns - lag_ms * MS)
    found = placed_lag(t_ns, np.where(computes, 1300.0, 2100.0), compute, 30 * MS)
    assert found.lag_ns == pytest.approx(lag_ms * MS, abs=3 * MS)


def test_where_too_few_pairs_tell_of_lags_near_0_none_is_sought_far_away() -> None:
    """1.5 s are traced, 15 pairs at 10 Hz; moved by 3 s, 30 to 40 taken outside would fall inside.

    By hand: a square wave of 400 ms, which the samples outside show exactly 2 s later.
    """
    compute = spans(*((k * 400 * MS, k * 400 * MS + 200 * MS) for k in range(10)))
    t_ns = np.arange(2_400 * MS, 8_000 * MS, 100 * MS, dtype=np.int64)
    later = intervals.contains(compute, t_ns - 2_450 * MS)
    found = placed_lag(t_ns, np.where(later, 1300.0, 2100.0), compute, 300 * MS)
    assert found.lag_ns is None


def test_a_lag_whose_fine_search_fails_is_as_coarse_as_the_coarse_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = job()
    samples = seen(known, 10.0, 700)
    monkeypatch.setattr(
        "chopperd.correlate.belonging.measure_lag", lambda *_, **__: LagEstimate(reason="none")
    )
    lag = lag_of(known, samples)
    assert (lag.lag_ns, lag.low_ns, lag.high_ns) == (700 * MS, 660 * MS, 740 * MS)


def test_a_wall_clock_that_is_set_forward_half_way_is_seen_in_one_half() -> None:
    known = job()
    samples = seen(known, 100.0)
    middle_ns = samples.t_unix_ns[len(samples) // 2]
    later = samples.t_unix_ns >= middle_ns
    moved = replace(samples, t_unix_ns=samples.t_unix_ns + np.where(later, 700 * MS, 0))
    assert judged(known, moved).apart_ns == pytest.approx(700 * MS, abs=10 * MS)


@pytest.mark.parametrize(
    ("source", "shift_ms", "found_ms"),
    [
        ("instant", 700, 700),
        ("instant", 100, None),
        ("average_1s", 700, None),  # half of what it averages over, and a lag
        (None, -700, -700),
    ],
)
def test_power_that_follows_what_runs_tells_where_the_clock_does_not(
    source: str | None, shift_ms: int, found_ms: int | None
) -> None:
    known = job("steady")
    samples = seen(known, 10.0)
    busy = intervals.contains(compute_of(known), samples.t_unix_ns)
    samples = replace(
        samples,
        gpu=replace(samples.gpu, power_source=source),
        power_w=np.where(busy, 650.0, 250.0),
        t_unix_ns=samples.t_unix_ns + shift_ms * MS,
    )
    apart_ns = judged(known, samples).apart_ns
    assert apart_ns == (None if found_ms is None else pytest.approx(found_ms * MS, abs=20 * MS))


def test_hours_are_compared_by_their_first_minutes_and_few_of_their_samples() -> None:
    """Steps as in `job`, the last 1 s of them an hour later; 0 % activity throughout."""
    known = job(steps=20)
    late = spans((3_600 * SECOND, 3_601 * SECOND))
    compute = intervals.union(
        np.concatenate((compute_of(known).start_ns, late.start_ns)),
        np.concatenate((compute_of(known).end_ns, late.end_ns)),
    )
    samples = seen(known, 100.0, 700)
    assert placed_lag(
        np.append(samples.t_unix_ns, 3_601 * SECOND),
        np.append(samples.sm_clock_mhz, 1400.0),
        compute,
        30 * MS,
    ).lag_ns == pytest.approx(700 * MS, abs=3 * MS)
    always = spans((0, 3_600 * SECOND))
    t_ns = np.arange(0, 3_600 * SECOND, 500 * MS, dtype=np.int64)
    unknown = np.full(len(t_ns), np.nan)
    idle = GpuSamples(
        gpu=samples.gpu,
        t_unix_ns=t_ns,
        sm_clock_mhz=np.full(len(t_ns), 345.0),
        read_span_ns=t_ns,
        causes=t_ns * 0,
        mem_clock_mhz=unknown,
        power_w=unknown,
        energy_j=unknown,
        temperature_c=unknown,
        memory_used_bytes=unknown,
        activity_ratio=np.zeros(len(t_ns)),
    )
    lag = LagEstimate(reason="the clock never changes")
    assert belonging(lag, idle, always, always, NOTHING).says == "idle"


def test_too_little_to_compare_says_nothing() -> None:
    known = job(steps=2)
    few = seen(known, 10.0, 1000)
    assert judged(known, few).apart_ns is None
    one = replace(few, **{name: getattr(few, name)[:1] for name in COLUMNS})
    nothing = measure_lag(one.t_unix_ns, one.sm_clock_mhz, NOTHING, SECOND)
    assert belonging(nothing, one, NOTHING, NOTHING, NOTHING) == Belonging()


COLUMNS = (
    *("t_unix_ns", "sm_clock_mhz", "read_span_ns", "causes", "mem_clock_mhz", "power_w"),
    *("energy_j", "temperature_c", "memory_used_bytes", "activity_ratio"),
)


def saying(
    known: Scenario,
    *,
    activity: float = np.nan,
    cause: Cause = Cause.UNKNOWN,
    power_w: float = np.nan,
    limit_w: float | None = 700.0,
) -> GpuSamples:
    samples = seen(known)
    count = len(samples)
    return replace(
        samples,
        gpu=replace(samples.gpu, power_limit_w=limit_w),
        activity_ratio=np.full(count, activity),
        causes=np.full(count, cause.bit),
        power_w=np.full(count, power_w),
    )


def test_samples_of_an_idle_gpu_contradict_a_busy_trace() -> None:
    known = job("steady", steps=5)
    assert judged(known, saying(known, activity=0.0)).says == "idle"
    assert judged(known, saying(known, activity=0.9)).says is None
    assert judged(known, saying(known, cause=Cause.LOW_UTILIZATION)).says == "idle"
    assert judged(known, saying(known, cause=Cause.POWER_CAP)).says is None
    assert judged(known, saying(known, power_w=80.0)).says == "idle"
    assert judged(known, saying(known, power_w=80.0, limit_w=None)).says is None
    assert judged(known, saying(known, power_w=400.0)).says is None


def test_a_gpu_that_reports_activity_is_busy_whatever_its_idle_bit_says() -> None:
    known = job("steady", steps=5)
    both = saying(known, activity=1.0, cause=Cause.LOW_UTILIZATION, power_w=80.0)
    assert judged(known, both).says is None


def test_what_says_idle_for_half_of_the_time_or_less_contradicts_nothing() -> None:
    """By hand: of the samples whose last second was traced, the first 40 % say idle."""
    known = job("steady", steps=10)
    samples = saying(known, activity=1.0)
    first_ns = int(busy_of(known).start_ns[0]) + SECOND
    span_ns = int(busy_of(known).end_ns[-1]) - first_ns
    for share, says in ((0.4, None), (0.6, "idle")):
        idle = samples.t_unix_ns < first_ns + share * span_ns
        part = replace(samples, activity_ratio=np.where(idle, 0.0, 1.0))
        assert judged(known, part).says == says


def test_samples_that_are_busy_while_the_trace_is_idle_contradict_it() -> None:
    """Work in the first and the last second of ten."""
    known = job("steady", steps=10)
    begin_ns = int(known.windows.start_ns[0])
    busy = spans((begin_ns, begin_ns + SECOND), (begin_ns + 9 * SECOND, begin_ns + 10 * SECOND))
    lag = LagEstimate(reason="the clock does not follow what runs")

    def says(samples: GpuSamples, unknown: Intervals = NOTHING) -> str | None:
        return belonging(lag, samples, busy, busy, unknown).says

    assert says(saying(known, activity=1.0)) == "busy"
    assert says(saying(known, activity=0.2)) is None
    assert says(saying(known, power_w=600.0)) == "busy"
    assert says(saying(known, cause=Cause.POWER_CAP)) is None
    # Where the profiler lost records, the trace is not idle.
    lost = spans((begin_ns + SECOND, begin_ns + 9 * SECOND))
    assert says(saying(known, activity=1.0), lost) is None

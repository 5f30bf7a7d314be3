import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from chopperd.model.devices import ReadScope
from chopperd.sampling.schedule import Schedule, period_ns_of, staggered_schedule

MS = 1_000_000

schedules = st.builds(
    Schedule,
    start_mono_ns=st.integers(0, 10**18),
    period_ns=st.integers(MS, 2_000 * MS),
    seed=st.integers(0, 2**64 - 1),
)


def run(schedule: Schedule, stalls_ns: dict[int, int], turns: int) -> tuple[list[int], list[int]]:
    """Read times and skip counts of a loop whose n-th read takes `stalls_ns[n]`."""
    now_ns, period, reads_ns, missed = schedule.start_mono_ns, -1, [], []
    for turn in range(turns):
        tick = schedule.next_tick(now_ns, period)
        now_ns = max(now_ns, tick.deadline_mono_ns)
        reads_ns.append(now_ns)
        missed.append(tick.missed_count)
        period = tick.period
        now_ns += stalls_ns.get(turn, 0)
    return reads_ns, missed


@given(schedule=schedules, period=st.integers(0, 10**9))
@settings(max_examples=100, deadline=None)
def test_a_read_falls_in_the_middle_nine_tenths_of_its_period(
    schedule: Schedule, period: int
) -> None:
    into_ns = schedule.deadline_mono_ns(period) - schedule.start_mono_ns
    into_ns -= period * schedule.period_ns
    assert 0.05 * schedule.period_ns - 1 <= into_ns <= 0.95 * schedule.period_ns + 1


@given(schedule=schedules)
@settings(max_examples=50, deadline=None)
def test_undisturbed_each_period_has_exactly_one_read(schedule: Schedule) -> None:
    reads_ns, missed = run(schedule, {}, 50)
    periods = [(t - schedule.start_mono_ns) // schedule.period_ns for t in reads_ns]
    assert periods == list(range(50))
    assert missed == [0] * 50


@given(
    schedule=schedules,
    stalls=st.dictionaries(st.integers(0, 29), st.floats(0, 7), max_size=6),
)
@settings(max_examples=100, deadline=None)
def test_after_a_stall_no_period_has_two_reads_and_each_skip_is_counted(
    schedule: Schedule, stalls: dict[int, float]
) -> None:
    stalls_ns = {turn: int(ratio * schedule.period_ns) for turn, ratio in stalls.items()}
    reads_ns, missed = run(schedule, stalls_ns, 30)
    since_start_ns = [t - schedule.start_mono_ns for t in reads_ns]
    periods = [t // schedule.period_ns for t in since_start_ns]
    assert len(set(periods)) == 30
    assert periods[-1] + 1 == 30 + sum(missed)
    into = [t % schedule.period_ns / schedule.period_ns for t in since_start_ns]
    assert all(0.049 <= share <= 0.951 for share in into)


def test_a_read_that_is_late_within_its_period_is_made_at_once() -> None:
    schedule = Schedule(start_mono_ns=0, period_ns=100 * MS, seed=3)
    tick = schedule.next_tick(594 * MS, 4)
    assert (tick.period, tick.missed_count) == (5, 0)
    late = schedule.next_tick(596 * MS, 4)  # past 95 %: period 5 is lost
    assert (late.period, late.missed_count) == (6, 1)


def test_before_the_start_the_first_tick_is_that_of_period_0() -> None:
    tick = Schedule(start_mono_ns=500 * MS, period_ns=100 * MS, seed=1).next_tick(0, -1)
    assert (tick.period, tick.end_mono_ns, tick.missed_count) == (0, 600 * MS, 0)


def test_the_phase_is_uniform_and_independent_from_period_to_period() -> None:
    schedule = Schedule(start_mono_ns=0, period_ns=10**9, seed=11)
    into = np.array([schedule.deadline_mono_ns(k) - k * 10**9 for k in range(20_000)]) / 1e9
    counts, _ = np.histogram(into, bins=18, range=(0.05, 0.95))
    # Chi-squared with 17 degrees of freedom: 99.99 % lie below 44 (table).
    assert ((counts - 20_000 / 18) ** 2 / (20_000 / 18)).sum() < 44
    centred = into - into.mean()
    for lag in (1, 2, 3, 10):
        correlation = (centred[lag:] * centred[:-lag]).mean() / centred.var()
        assert abs(correlation) < 4 / np.sqrt(20_000)  # four standard errors


def test_the_same_seed_gives_the_same_times_and_another_gpu_gets_others() -> None:
    def times(position: int) -> list[int]:
        schedule = staggered_schedule(
            start_mono_ns=0,
            period_ns=100 * MS,
            slow_period_ns=1_000 * MS,
            seed=42,
            position=position,
            device_count=8,
        )
        return [
            schedule.deadline_mono_ns(k) - schedule.start_mono_ns - k * 100 * MS for k in range(20)
        ]

    assert times(0) == times(0)
    assert not set(times(0)) & set(times(1))


def test_full_reads_come_once_a_slow_period_spread_over_the_gpus() -> None:
    phases = set()
    for position in range(8):
        schedule = staggered_schedule(
            start_mono_ns=0,
            period_ns=10 * MS,
            slow_period_ns=1_000 * MS,
            seed=0,
            position=position,
            device_count=8,
        )
        assert schedule.start_mono_ns == position * 10 * MS // 8
        full = [k for k in range(1, 401) if schedule.scope(k) is ReadScope.FULL]
        assert np.diff(full).tolist() == [100, 100, 100]
        assert schedule.scope(0) is ReadScope.FULL
        phases.add(full[0] % 100)
    assert len(phases) == 8


def test_at_one_hertz_every_read_is_full() -> None:
    schedule = staggered_schedule(
        start_mono_ns=0,
        period_ns=period_ns_of(1.0),
        slow_period_ns=10**9,
        seed=0,
        position=0,
        device_count=1,
    )
    assert all(schedule.scope(k) is ReadScope.FULL for k in range(5))

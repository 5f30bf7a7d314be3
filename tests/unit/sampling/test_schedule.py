from itertools import islice

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


def staggered(position: int, *, device_count: int = 8, period_ns: int = 10 * MS) -> Schedule:
    return staggered_schedule(
        start_mono_ns=0,
        period_ns=period_ns,
        slow_period_ns=1_000 * MS,
        seed=42,
        position=position,
        device_count=device_count,
    )


@given(schedule=schedules)
@settings(max_examples=25, deadline=None)
def test_each_period_has_one_read_which_may_be_late_by_a_tenth(schedule: Schedule) -> None:
    ticks = list(islice(schedule.ticks(), 300))  # more than one block
    period_ns = schedule.period_ns
    starts_ns = [schedule.start_mono_ns + k * period_ns for k in range(300)]
    for start_ns, tick in zip(starts_ns, ticks, strict=True):
        assert 0 <= tick.deadline_mono_ns - start_ns < period_ns
        late_ns = tick.deadline_mono_ns + period_ns // 10
        assert abs(tick.end_mono_ns - max(start_ns + period_ns, late_ns)) <= 1


def test_the_phase_is_uniform_and_independent_from_period_to_period() -> None:
    schedule = Schedule(start_mono_ns=0, period_ns=10**9, seed=11)
    periods = np.arange(20_000)
    into = (schedule.deadlines_mono_ns(periods) - periods * 10**9) / 1e9
    counts, _ = np.histogram(into, bins=18, range=(0, 1))
    # Chi-squared with 17 degrees of freedom: 99.98 % lie below 44 (table).
    assert ((counts - 20_000 / 18) ** 2 / (20_000 / 18)).sum() < 44
    centred = into - into.mean()
    for lag in (1, 2, 3, 10):
        correlation = (centred[lag:] * centred[:-lag]).mean() / centred.var()
        assert abs(correlation) < 4 / np.sqrt(20_000)  # four standard errors


def test_no_step_length_beats_with_the_reads() -> None:
    """For steps of 1 to 50 periods' length the reads' phases in the step stay uniform."""
    periods = np.arange(20_000)
    times = Schedule(start_mono_ns=0, period_ns=10**8, seed=5).deadlines_mono_ns(periods) / 1e8
    for step in (1.0, 2.0, 3.0, 10.0, 50.0, 7.3):
        # |mean of exp(2 pi i t / step)| is 0 for uniform phases, within 4 / sqrt(n).
        assert abs(np.exp(2j * np.pi * times / step).mean()) < 4 / np.sqrt(20_000)


def test_the_same_seed_gives_the_same_times_and_another_gpu_gets_others() -> None:
    def into_ns(schedule: Schedule) -> list[int]:
        deadlines = schedule.deadlines_mono_ns(np.arange(50)) - schedule.start_mono_ns
        return [int(at) % schedule.period_ns for at in deadlines]

    assert into_ns(staggered(0)) == into_ns(staggered(0))
    seen = [tuple(into_ns(staggered(position))) for position in range(8)]
    assert len(set(seen)) == 8
    together = np.corrcoef(np.array(seen))
    assert np.abs(together - np.eye(8)).max() < 0.6  # 50 points: 4 standard errors


def full_reads(schedule: Schedule, count: int) -> list[int]:
    """The periods with a full read, but for the first of all."""
    scopes = [tick.scope for tick in islice(schedule.ticks(), count)]
    assert scopes[0] is ReadScope.FULL
    return [k for k in range(1, count) if scopes[k] is ReadScope.FULL]


def test_full_reads_come_once_a_slow_period_at_other_times_on_each_gpu() -> None:
    places = set()
    for position in range(8):
        schedule = staggered(position)
        assert schedule.start_mono_ns == position * 10 * MS // 8
        full = full_reads(schedule, 1200)
        assert [k // 100 for k in full if k >= 100] == list(range(1, 12))
        places.add(tuple(k % 100 for k in full))
    assert len(places) == 8


def test_no_step_length_beats_with_the_full_reads() -> None:
    """For steps as long as the slow period, or a part of it: phases are uniform, as above."""
    full = np.array(full_reads(staggered(3, period_ns=100 * MS), 40_000))
    for step in (10.0, 5.0, 2.5, 20.0):
        assert abs(np.exp(2j * np.pi * full / step).mean()) < 4 / np.sqrt(len(full))


def test_at_one_hertz_every_read_is_full() -> None:
    schedule = staggered(0, device_count=1, period_ns=period_ns_of(1.0))
    assert {tick.scope for tick in islice(schedule.ticks(), 5)} == {ReadScope.FULL}

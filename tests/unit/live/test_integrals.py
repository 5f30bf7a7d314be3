"""Live integrals against hand computation and against a plain loop over intervals."""

from collections.abc import Mapping
from math import inf, isnan, nan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from chopperd.live.integrals import LiveIntegrals, LongestPeriod
from chopperd.model.devices import GpuInfo, Vendor
from chopperd.model.kinds import CAUSES, Cause
from chopperd.model.live import LiveTotals
from chopperd.sampling.memory.layout import RECORD, Records

MS = 1_000_000
GPU = GpuInfo(gpu="0", index=0, uuid="u", name="n", vendor=Vendor.NVIDIA, sm_clock_max_mhz=2000.0)


def records(*rows: Mapping[str, float], period_ms: int = 100) -> Records:
    """Records a period apart; what a row does not name was not reported, its causes are none."""
    made = np.zeros(len(rows), RECORD)
    for name in RECORD.names or ():
        if made[name].dtype == np.float64:
            made[name] = nan
    made["t_mono_ns"] = (1 + np.arange(len(rows))) * period_ms * MS
    for record, row in zip(made, rows, strict=True):
        for name, value in row.items():
            if name in CAUSES_BY_LABEL:
                record["limited_ns"][CAUSES_BY_LABEL[name]] = value
            else:
                record[name] = value
    return made


CAUSES_BY_LABEL = {cause.label: cause for cause in CAUSES}


def totals_of(made: Records, gpu: GpuInfo = GPU, period_ms: int = 100) -> LiveTotals:
    integrals = LiveIntegrals(gpu)
    integrals.add(made, period_ms * MS)
    return integrals.totals()


def test_cycles_are_the_trapezoid_of_the_clock() -> None:
    totals = totals_of(records({"sm_clock_mhz": 1000}, {"sm_clock_mhz": 2000}))
    assert totals.sampled_s == pytest.approx(0.1)
    assert totals.sm_cycles == pytest.approx(0.1 * 1500e6)


def test_what_was_never_known_stays_unknown() -> None:
    totals = totals_of(records({}, {}, {}), replace(GPU, vendor=Vendor.AMD))
    assert totals.sm_cycles is None
    assert totals.sampled_s is None
    assert totals.busy_s is None
    assert totals.energy_j is None
    assert totals.limited_s == {}
    assert totals.lost_s == {}


def test_one_sample_makes_no_interval() -> None:
    assert totals_of(records({"sm_clock_mhz": 1000})).sm_cycles is None


def test_a_gap_of_more_than_three_periods_is_not_integrated_over() -> None:
    made = records(*[{"sm_clock_mhz": 1000}] * 8)
    made["t_mono_ns"][4:] += 201 * MS  # 301 ms between the 4th and the 5th
    assert totals_of(made).sampled_s == pytest.approx(0.6)
    made["t_mono_ns"][4:] -= MS
    assert totals_of(made).sampled_s == pytest.approx(0.9)


def test_the_achieved_period_counts_where_it_is_longer_than_the_kept_one() -> None:
    made = records(*[{"sm_clock_mhz": 1000}] * 10, period_ms=400)
    assert totals_of(made, period_ms=100).sampled_s == pytest.approx(3.6)


def test_the_idle_bit_makes_a_half_interval_idle() -> None:
    idle = Cause.LOW_UTILIZATION.bit
    totals = totals_of(
        records(
            {"sm_clock_mhz": 1000}, {"sm_clock_mhz": 1400, "causes": idle}, {"sm_clock_mhz": 1600}
        )
    )
    # By hand: the halves beside samples 1 and 3 are busy, 50 ms each.
    assert totals.busy_s == pytest.approx(0.1)
    assert totals.busy_sampled_s == pytest.approx(0.1)
    assert totals.busy_sm_cycles == pytest.approx(0.05 * 1000e6 + 0.05 * 1600e6)


def test_activity_weighs_time_and_holds_until_the_next_full_read() -> None:
    rows: list[dict[str, float]] = [{"sm_clock_mhz": 1000} for _ in range(5)]
    rows[0]["activity_ratio"] = 0.5
    totals = totals_of(records(*rows), replace(GPU, vendor=Vendor.AMD))
    assert totals.busy_s == pytest.approx(0.2)


def test_an_old_activity_tells_nothing() -> None:
    nothing: dict[str, float] = {}
    rows = [{"activity_ratio": 1.0}, *[nothing] * 40]
    totals = totals_of(records(*rows), replace(GPU, vendor=Vendor.AMD))
    assert totals.busy_s == pytest.approx(3.0)


def test_loss_goes_to_the_reasons_in_force_in_equal_parts() -> None:
    bits = Cause.POWER_CAP.bit | Cause.THERMAL.bit
    row = {"sm_clock_mhz": 1500, "causes": bits}
    totals = totals_of(records(row, row))
    assert totals.lost_s[Cause.POWER_CAP] == pytest.approx(0.1 * 0.25 / 2)
    assert totals.lost_s[Cause.THERMAL] == pytest.approx(0.1 * 0.25 / 2)
    assert totals.lost_s[Cause.HW_SLOWDOWN] == 0
    assert Cause.UNKNOWN not in totals.lost_s


def test_a_hardware_protection_outranks_what_is_set_beside_it() -> None:
    """0x8c: the brake, its generic bit, and the cap's that is set under any load."""
    bits = Cause.HW_SLOWDOWN.bit | Cause.POWER_BRAKE.bit | Cause.POWER_CAP.bit
    row = {"sm_clock_mhz": 1000, "causes": bits}
    totals = totals_of(records(row, row))
    assert totals.lost_s[Cause.POWER_BRAKE] == pytest.approx(0.05)
    assert totals.lost_s[Cause.HW_SLOWDOWN] == totals.lost_s[Cause.POWER_CAP] == 0


def test_counters_of_software_limits_have_what_the_brake_leaves() -> None:
    """The cap was counted all the time; the brake for 30 ms, or seen at both ends."""
    first = {"sm_clock_mhz": 1000, "power_cap": 0, "power_brake": 0}
    totals = totals_of(records(first, {**first, "power_cap": 100 * MS, "power_brake": 30 * MS}))
    assert totals.lost_s[Cause.POWER_BRAKE] == pytest.approx(0.05 * 0.3)
    assert totals.lost_s[Cause.POWER_CAP] == pytest.approx(0.05 * 0.7)
    braked = {"sm_clock_mhz": 1000, "causes": Cause.POWER_BRAKE.bit, "power_cap": 0}
    totals = totals_of(records(braked, {**braked, "power_cap": 100 * MS}))
    assert totals.lost_s[Cause.POWER_BRAKE] == pytest.approx(0.05)


def test_each_end_of_an_interval_loses_to_its_own_reasons() -> None:
    """50 ms at 1000 of 2000 MHz under the brake, 50 ms at 1800 under the cap."""
    deep = {"sm_clock_mhz": 1000, "causes": Cause.POWER_BRAKE.bit}
    mild = {"sm_clock_mhz": 1800, "causes": Cause.POWER_CAP.bit}
    totals = totals_of(records(deep, mild))
    assert totals.lost_s[Cause.POWER_BRAKE] == pytest.approx(0.025)
    assert totals.lost_s[Cause.POWER_CAP] == pytest.approx(0.005)


def test_of_several_reasons_at_one_end_the_counted_ones_have_their_time() -> None:
    """Cap 60 ms, thermal 20 ms of 100 ms; then the cap alone, and the generic slowdown has 40."""
    both = Cause.POWER_CAP.bit | Cause.THERMAL.bit
    first = {"sm_clock_mhz": 1000, "causes": both, "power_cap": 0, "thermal": 0}
    totals = totals_of(records(first, {**first, "power_cap": 60 * MS, "thermal": 20 * MS}))
    assert totals.lost_s[Cause.POWER_CAP] == pytest.approx(0.05 * 0.75)
    assert totals.lost_s[Cause.THERMAL] == pytest.approx(0.05 * 0.25)
    both = Cause.POWER_CAP.bit | Cause.HW_SLOWDOWN.bit
    first = {"sm_clock_mhz": 1000, "causes": both, "power_cap": 0}
    totals = totals_of(records(first, {**first, "power_cap": 60 * MS}))
    assert totals.lost_s[Cause.POWER_CAP] == pytest.approx(0.05 * 0.6)
    assert totals.lost_s[Cause.HW_SLOWDOWN] == pytest.approx(0.05 * 0.4)


def test_a_gpu_that_reports_activity_is_busy_whatever_its_idle_bit_says() -> None:
    """Stuck at 345 MHz with the idle bit for ever, and at work: all of 4 s is lost to that."""
    stuck: dict[str, float] = {"sm_clock_mhz": 345, "causes": Cause.LOW_UTILIZATION.bit}
    rows = [{**stuck, "activity_ratio": 1.0} if n % 10 == 0 else stuck for n in range(41)]
    totals = totals_of(records(*rows))
    assert totals.busy_s == pytest.approx(4.0)
    assert totals.lost_s[Cause.LOW_UTILIZATION] == pytest.approx(4.0 * (1 - 345 / 2000))


def test_an_idle_bit_that_comes_after_the_activity_was_read_is_newer() -> None:
    busy, idle = {"sm_clock_mhz": 1000}, {"sm_clock_mhz": 1000, "causes": 128}
    totals = totals_of(records({**busy, "activity_ratio": 1.0}, busy, idle, idle))
    assert totals.busy_s == pytest.approx(0.15)


def test_a_stale_activity_leaves_the_idle_bit_right() -> None:
    idle: dict[str, float] = {"causes": Cause.LOW_UTILIZATION.bit}
    rows = [{**idle, "activity_ratio": 1.0}, *[idle] * 40]
    assert totals_of(records(*rows)).busy_s == pytest.approx(3.05)


def test_loss_without_a_reason_is_unexplained_and_unreadable_reasons_are_unknown() -> None:
    row = {"sm_clock_mhz": 1000}
    assert totals_of(records(row, row)).lost_s[Cause.UNEXPLAINED] == pytest.approx(0.05)
    blind = {"sm_clock_mhz": 1000, "causes": Cause.UNKNOWN.bit, "activity_ratio": 1.0}
    totals = totals_of(records(blind, blind))
    assert totals.lost_s == {Cause.UNKNOWN: pytest.approx(0.05)}


def test_counters_count_from_a_twentieth_of_the_interval_on_and_for_no_more_than_their_time() -> (
    None
):
    bits = Cause.THERMAL.bit
    first = {"sm_clock_mhz": 1000, "causes": bits, "power_cap": 0, "sync_boost": 0}
    second = {**first, "power_cap": 3 * MS, "sync_boost": 2.1 * MS}
    totals = totals_of(records(first, second))  # 5.1 ms of 100 ms: enough
    assert totals.lost_s[Cause.POWER_CAP] == pytest.approx(0.05 * 0.03)
    assert totals.lost_s[Cause.SYNC_BOOST] == pytest.approx(0.05 * 0.021)
    assert totals.lost_s[Cause.THERMAL] == pytest.approx(0.05 * 0.949)
    less = {**second, "sync_boost": 1.9 * MS}
    assert totals_of(records(first, less)).lost_s[Cause.THERMAL] == pytest.approx(0.05)


def test_down_to_the_standing_limit_the_loss_is_the_users() -> None:
    row = {"sm_clock_mhz": 1000, "causes": Cause.USER_LIMIT.bit | Cause.POWER_CAP.bit}
    totals = totals_of(records(row, row), replace(GPU, sm_clock_limit_mhz=1500.0))
    # By hand: 25 ms above the limit are the user's, the 25 ms below it are shared by both bits.
    assert totals.lost_s[Cause.USER_LIMIT] == pytest.approx(0.0375)
    assert totals.lost_s[Cause.POWER_CAP] == pytest.approx(0.0125)


def test_a_users_limit_reported_alone_below_the_standing_one_explains_the_loss() -> None:
    row = {"sm_clock_mhz": 1000, "causes": Cause.USER_LIMIT.bit}
    totals = totals_of(records(row, row), replace(GPU, sm_clock_limit_mhz=1500.0))
    assert totals.lost_s[Cause.USER_LIMIT] == pytest.approx(0.05)
    assert totals.lost_s[Cause.UNEXPLAINED] == 0


def test_a_clock_above_the_reference_loses_nothing() -> None:
    row = {"sm_clock_mhz": 2010, "causes": Cause.POWER_CAP.bit}
    assert set(totals_of(records(row, row)).lost_s.values()) == {0.0}


def test_without_a_reference_there_is_no_loss_figure() -> None:
    row = {"sm_clock_mhz": 1000}
    totals = totals_of(records(row, row), replace(GPU, sm_clock_max_mhz=None))
    assert totals.lost_s == {}
    assert totals.busy_sampled_s == pytest.approx(0.1)


def test_limit_counters_add_up_over_gaps_and_restarts() -> None:
    values_ms = [5, 7, None, 12, 2, 3]
    rows = [{} if value is None else {"thermal": value * MS} for value in values_ms]
    totals = totals_of(records(*rows))
    # By hand: 2 + 5, then the counter restarts at 2 and adds 1.
    assert totals.limited_s == {Cause.THERMAL: pytest.approx(0.008)}


@pytest.mark.parametrize(
    ("energy_j", "expected_j"),
    [
        ([1e6, 0, 0, 1e6 + 300, 1e6 + 400], 100),  # nothing over the dip of two reads
        ([1e6, 1e12, 1e6 + 300, 1e6 + 400], 400),  # garbage, then as if it had not been
        ([0, 0, 1e6, 1e6 + 100], 100),  # the first reads said nothing
        ([1e6, 1e6, 1e6 + 2700, 1e6 + 5400], 5400),  # a module of 2.7 kW
        ([1e6, 0, 500, 1200], 1200),  # a driver that was loaded anew
    ],
)
def test_energy_is_not_made_of_jumps_of_its_counter(
    energy_j: list[float], expected_j: float
) -> None:
    """By hand; reads a second apart."""
    rows = [{"energy_j": value} for value in energy_j]
    assert totals_of(records(*rows, period_ms=1000)).energy_j == expected_j


def test_a_counter_that_comes_back_from_garbage_does_not_count_all_that_it_ever_counted() -> None:
    """By hand: 50 ms before it read 0, 50 ms after it was back, and 50 ms after the all-ones."""
    hour_ms = 3_600_000
    values_ms = [0, 50, -hour_ms, 60, 110, 10**12, 120, 170]
    rows = [{"power_cap": (hour_ms + value) * MS} for value in values_ms]
    totals = totals_of(records(*rows))
    assert totals.limited_s == {Cause.POWER_CAP: pytest.approx(0.150)}


def test_what_a_newer_sampler_says_of_the_gpu_splits_the_losses_from_then_on() -> None:
    """By hand, at 1000 of 2000 MHz, a half of the time is lost: down to 1500 MHz to the user."""
    rows = [{"sm_clock_mhz": 1000.0, "causes": Cause.POWER_CAP.bit}] * 3
    integrals, made = LiveIntegrals(GPU), records(*rows)
    integrals.add(made[:2], 100 * MS)
    integrals.know(replace(GPU, sm_clock_limit_mhz=1500.0))
    integrals.add(made[2:], 100 * MS)
    lost_s = integrals.totals().lost_s
    assert lost_s[Cause.POWER_CAP] == pytest.approx(0.05 + 0.025)
    assert lost_s[Cause.USER_LIMIT] == pytest.approx(0.025)


def test_the_longest_period_counts_until_it_is_taken_and_the_present_one_stays() -> None:
    longest = LongestPeriod()
    longest.note(100)
    longest.note(1000)
    longest.note(100)
    assert longest.taken_ns() == 1000
    assert longest.taken_ns() == 100
    longest.note(0)
    assert longest.taken_ns() == 100
    assert longest.taken_ns() == 0


def brute_force(made: Records, period_ns: int) -> dict[str, float]:
    """Cycles, sampled, busy and lost time, interval by interval in plain Python."""
    sums = {"sm_cycles": nan, "sampled_s": nan, "busy_s": nan, "busy_sm_cycles": nan}

    def add(name: str, amount: float) -> None:
        sums[name] = amount if isnan(sums.get(name, nan)) else sums[name] + amount

    spacings = np.diff(made["t_mono_ns"])
    achieved = max(float(np.median(spacings)) if len(spacings) else -inf, period_ns)
    for a, b, spacing in zip(made[:-1], made[1:], spacings, strict=True):
        if spacing > 3 * achieved:
            continue
        half = spacing / 2e9
        busy = [0.0 if row["causes"] & Cause.LOW_UTILIZATION.bit else 1.0 for row in (a, b)]
        known = [
            not row["causes"] & Cause.UNKNOWN.bit or ratio == 0
            for row, ratio in zip((a, b), busy, strict=True)
        ]
        clocks = [float(row["sm_clock_mhz"]) for row in (a, b)]
        if all(known):
            add("busy_s", half * sum(busy))
        if any(isnan(clock) for clock in clocks):
            continue
        add("sampled_s", 2 * half)
        add("sm_cycles", half * sum(clocks) * 1e6)
        if not all(known):
            continue
        add("busy_sm_cycles", half * sum(x * f for x, f in zip(busy, clocks, strict=True)) * 1e6)
        for x, clock in zip(busy, clocks, strict=True):
            add("lost", half * x * max(0.0, 1 - clock / 2000.0))
    return sums


@st.composite
def recordings(draw: st.DrawFn) -> Records:
    count = draw(st.integers(1, 25))
    clock = st.just(nan) | st.floats(100, 2100)
    bits = st.sets(st.sampled_from(CAUSES), max_size=3).map(lambda s: sum(c.bit for c in s))
    made = records(*[{"sm_clock_mhz": draw(clock), "causes": draw(bits)} for _ in range(count)])
    spacings = draw(st.lists(st.integers(1, 500), min_size=count, max_size=count))
    made["t_mono_ns"] = np.cumsum(np.array(spacings) * MS)
    return made


@given(made=recordings())
@settings(max_examples=25, deadline=None)
def test_integrals_equal_a_plain_loop_over_the_intervals(made: Records) -> None:
    expected = brute_force(made, 100 * MS)
    totals = totals_of(made)
    for name in ("sm_cycles", "sampled_s", "busy_s", "busy_sm_cycles"):
        value = getattr(totals, name)
        assert (nan if value is None else value) == pytest.approx(expected[name], nan_ok=True)
    if "lost" in expected:
        assert sum(totals.lost_s.values()) == pytest.approx(expected["lost"])


@given(made=recordings(), cut=st.integers(0, 25))
@settings(max_examples=25, deadline=None)
def test_totals_never_fall_whatever_comes(made: Records, cut: int) -> None:
    integrals = LiveIntegrals(GPU)
    integrals.add(made[:cut], 100 * MS)
    before = integrals.totals()
    integrals.add(made[cut:], 100 * MS)
    after = integrals.totals()
    for name in ("sm_cycles", "sampled_s", "busy_s", "busy_sm_cycles", "busy_sampled_s"):
        assert (getattr(after, name) or 0.0) >= (getattr(before, name) or 0.0)
    for cause, lost_s in before.lost_s.items():
        assert after.lost_s[cause] >= lost_s

"""Counters of limited cycles as times; a cycle is 1 ms here where nothing else is said."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chopperd.devices.amd.block import Block
from chopperd.devices.amd.residency import Residency
from chopperd.devices.read_plan import NumberKind
from chopperd.model.kinds import Cause
from chopperd.units import NS_PER_MS, NS_PER_S
from tests.fakes.clock import ScriptedClock
from tests.unit.devices.amd_block import COUNTING, MemorySource, new_faults

WIDTH = 1 << 32
BELOW = {
    "firmware_timestamp": (NumberKind.UINT64, 1),
    "accumulation_counter": (NumberKind.UINT64, 1),
    **{
        f"gfx_{name}_acc": (NumberKind.UINT64, 4)
        for name in (
            "below_host_limit_ppt",
            "below_host_limit_thm",
            "below_host_limit_total",
            "low_utilization",
        )
    },
}


class Firmware:
    """Counts cycles in a block; time passes by `looks` only."""

    def __init__(self, source: MemorySource, start: int = 1000, *, stamped: bool = True) -> None:
        self.source, self.clock, self.cycles = source, ScriptedClock(), start
        self.stamped = stamped
        self._show()
        self.block = Block(source, new_faults(self.clock))
        self.block.refresh()
        self.residency = Residency(self.block, self.clock)

    def _show(self) -> None:
        self.source.shows(accumulation_counter=self.cycles % WIDTH)
        if self.stamped:
            self.source.shows(firmware_timestamp=self.clock.mono_ns() // 10)

    def looks(self, after_ms: int, **shown: int | tuple[int, ...]) -> dict[Cause, int]:
        self.clock.advance(after_ms * NS_PER_MS)
        self.cycles += after_ms
        self._show()
        self.source.shows(**shown)
        self.block.refresh()
        return self.residency.limited_ns()

    def settled(self) -> "Firmware":
        self.looks(0)
        self.looks(1000)
        assert self.residency.is_settled
        return self


def counting(**shown: int) -> Firmware:
    source = MemorySource(**COUNTING)
    source.shows(ppt_residency_acc=500, **shown)
    return Firmware(source)


def planned_ns(firmware: Firmware) -> dict[Cause, int]:
    """What a plan makes of the block as it is."""
    planned: dict[Cause, float] = {}
    for place in firmware.residency.slots():
        raw = place.number.raw() or 0
        assert raw in place.bounds
        planned[place.cause] = planned.get(place.cause, 0) + raw * place.scale + place.addend
    return {cause: round(ns) for cause, ns in planned.items()}


def test_a_cycle_is_timed_for_a_second_before_there_is_a_time() -> None:
    firmware = counting()
    assert firmware.looks(0) == {}
    assert firmware.looks(999) == {}
    assert firmware.looks(1) == {Cause.POWER_CAP: 0}
    assert firmware.looks(100, ppt_residency_acc=540) == {Cause.POWER_CAP: 40 * NS_PER_MS}


def test_a_firmware_that_tells_no_time_is_timed_by_ours() -> None:
    source = MemorySource(**COUNTING)
    source.shows(ppt_residency_acc=500)
    firmware = Firmware(source, stamped=False).settled()
    assert firmware.looks(100, ppt_residency_acc=540) == {Cause.POWER_CAP: 40 * NS_PER_MS}


@pytest.mark.parametrize("ticks_per_us", [1, 1000])
def test_a_firmware_whose_time_has_another_tick_is_timed_by_ours(ticks_per_us: int) -> None:
    """It should count in 10 ns; here a tick is 1 us or 1 ns, and a cycle 1 ms as ever."""
    firmware = counting()

    def looks(after_ms: int, residency: int) -> dict[Cause, int]:
        stamp = (firmware.clock.mono_ns() + after_ms * NS_PER_MS) * ticks_per_us // 1000
        return firmware.looks(after_ms, ppt_residency_acc=residency, firmware_timestamp=stamp)

    looks(0, 500)
    looks(1000, 500)
    assert looks(100, 540) == {Cause.POWER_CAP: 40 * NS_PER_MS}


def test_each_limit_has_its_cause_and_those_of_one_cause_add_up() -> None:
    names = ("socket_thm", "hbm_thm", "vr_thm", "prochot")
    firmware = counting(**{f"{name}_residency_acc": 7 for name in names}).settled()
    shown = {f"{name}_residency_acc": 7 + 10**place for place, name in enumerate(names)}
    assert firmware.looks(2000, **shown) == {
        Cause.POWER_CAP: 0,
        Cause.THERMAL: 11 * NS_PER_MS,
        Cause.HW_THERMAL: 100 * NS_PER_MS,
        Cause.HW_SLOWDOWN: 1000 * NS_PER_MS,
    }


def test_a_chip_that_counts_nothing_has_no_times_and_nothing_to_find_out() -> None:
    firmware = Firmware(MemorySource(**COUNTING))
    assert not firmware.residency.has_counters
    assert firmware.residency.is_settled
    assert firmware.looks(2000) == {}


def test_counters_without_a_count_of_all_cycles_are_of_no_use() -> None:
    source = MemorySource(**COUNTING)
    source.shows(ppt_residency_acc=500)
    block = Block(source, new_faults(ScriptedClock()))
    block.refresh()
    assert not Residency(block, ScriptedClock()).has_counters


def test_cycles_that_are_no_time_are_given_up() -> None:
    """A count that does not move."""
    firmware = counting()
    for _ in range(70):
        firmware.cycles = 1000
        firmware.looks(0)
        firmware.clock.advance(NS_PER_S)
    assert not firmware.residency.has_counters


def test_a_wrapped_counter_goes_on_without_loss() -> None:
    firmware = counting()
    firmware.source.shows(ppt_residency_acc=WIDTH - 50)
    firmware.block.refresh()
    firmware.residency = Residency(firmware.block, firmware.clock)
    firmware.settled()
    before = firmware.residency.origin
    assert firmware.looks(100, ppt_residency_acc=30) == {Cause.POWER_CAP: 80 * NS_PER_MS}
    assert firmware.residency.origin != before
    assert firmware.looks(100, ppt_residency_acc=40) == {Cause.POWER_CAP: 90 * NS_PER_MS}


def test_a_counter_that_begins_anew_adds_nothing_and_never_falls() -> None:
    """It is not told at the first look, as it may be a torn number; at the second it counts on."""
    firmware = counting().settled()
    assert firmware.looks(100, ppt_residency_acc=560) == {Cause.POWER_CAP: 60 * NS_PER_MS}
    assert firmware.looks(100, ppt_residency_acc=3) == {}
    assert firmware.residency.implausible_count == 1
    assert firmware.looks(100, ppt_residency_acc=13) == {Cause.POWER_CAP: 60 * NS_PER_MS}
    assert firmware.looks(100, ppt_residency_acc=20) == {Cause.POWER_CAP: 67 * NS_PER_MS}


def test_one_that_plans_have_shown_fallen_does_not_come_back_at_a_look() -> None:
    """It began anew at 0 long after the last look, near which it was first seen: 600 of 700 ms.

    Plans show 599 s less; were it back at 600 s at a look, that would be a rise.
    """
    firmware = counting().settled()
    firmware.source.shows(ppt_residency_acc=1)
    firmware.block.refresh()
    firmware.residency = Residency(firmware.block, firmware.clock)
    firmware.settled()
    before = firmware.looks(600_000, ppt_residency_acc=600_001)
    assert before == {Cause.POWER_CAP: 600 * NS_PER_S}
    firmware.clock.advance(NS_PER_S)
    firmware.source.shows(ppt_residency_acc=1001, firmware_timestamp=firmware.clock.mono_ns() // 10)
    firmware.block.refresh()
    assert planned_ns(firmware) == {Cause.POWER_CAP: NS_PER_S}
    assert firmware.looks(100, ppt_residency_acc=1101) == {}
    assert firmware.looks(100, ppt_residency_acc=1201) == {Cause.POWER_CAP: 1200 * NS_PER_MS}


def test_one_that_begins_anew_above_what_a_plan_allows_goes_on_from_there() -> None:
    firmware = counting().settled()
    assert firmware.looks(100, ppt_residency_acc=3 << 30) == {}
    assert firmware.looks(100, ppt_residency_acc=(3 << 30) + 9) == {Cause.POWER_CAP: 0}
    assert firmware.looks(100, ppt_residency_acc=(3 << 30) + 50) == {
        Cause.POWER_CAP: 41 * NS_PER_MS
    }


def test_one_that_began_anew_high_up_is_not_taken_for_one_that_wrapped() -> None:
    firmware = counting()
    firmware.source.shows(ppt_residency_acc=3 << 30)
    firmware.block.refresh()
    firmware.residency = Residency(firmware.block, firmware.clock)
    firmware.settled()
    firmware.looks(100, ppt_residency_acc=0)
    assert firmware.looks(100, ppt_residency_acc=0) == {Cause.POWER_CAP: 0}


def test_a_torn_number_is_dropped_for_its_look_only() -> None:
    firmware = counting().settled()
    assert firmware.looks(100, ppt_residency_acc=1 << 29) == {}
    assert firmware.looks(100, ppt_residency_acc=510) == {Cause.POWER_CAP: 10 * NS_PER_MS}
    assert firmware.residency.implausible_count == 1


def test_dies_count_as_one_and_what_the_reasons_leave_is_unexplained() -> None:
    source = MemorySource(**BELOW)
    source.shows(**{name: (5, 5, 5, 5) for name in BELOW if name.startswith("gfx_")})
    firmware = Firmware(source).settled()
    limited_ns = firmware.looks(
        1000,
        gfx_below_host_limit_ppt_acc=(105, 105, 5, 5),
        gfx_below_host_limit_thm_acc=(5, 5, 5, 45),
        gfx_below_host_limit_total_acc=(205, 105, 5, 45),
        gfx_low_utilization_acc=(5, 5, 405, 5),
    )
    assert limited_ns == {
        Cause.POWER_CAP: 50 * NS_PER_MS,
        Cause.THERMAL: 10 * NS_PER_MS,
        Cause.LOW_UTILIZATION: 100 * NS_PER_MS,
        Cause.UNEXPLAINED: 25 * NS_PER_MS,
    }


def test_cycles_that_two_reasons_counted_are_taken_from_what_is_unexplained() -> None:
    """40 ms for no reason; then 30 ms for two at once: 70 in all, less twice 30, is 10 ms.

    A plan gives the same, so that a look among plans makes no time that never passed.
    """
    source = MemorySource(**BELOW)
    source.shows(**{name: (5, 5, 5, 5) for name in BELOW if name.startswith("gfx_")})
    firmware = Firmware(source).settled()
    firmware.looks(1000, gfx_below_host_limit_total_acc=(45, 45, 45, 45))
    both = {f"gfx_below_host_limit_{name}_acc": (35,) * 4 for name in ("ppt", "thm")}
    limited_ns = firmware.looks(1000, **both, gfx_below_host_limit_total_acc=(75, 75, 75, 75))
    assert limited_ns[Cause.UNEXPLAINED] == 10 * NS_PER_MS
    assert planned_ns(firmware) == limited_ns


def test_a_plan_gives_what_a_look_gives() -> None:
    source = MemorySource(**BELOW)
    source.shows(**{name: (5, 5, 5, 5) for name in BELOW if name.startswith("gfx_")})
    firmware = Firmware(source).settled()
    limited_ns = firmware.looks(
        1000,
        gfx_below_host_limit_ppt_acc=(105, 105, 5, 5),
        gfx_below_host_limit_total_acc=(205, 105, 5, 45),
    )
    assert planned_ns(firmware) == limited_ns


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=30), st.integers(0, WIDTH - 2))
@settings(max_examples=60, deadline=None)
def test_whatever_is_counted_is_the_sum_over_any_wraps(rises: list[int], start: int) -> None:
    firmware = counting()
    firmware.source.shows(ppt_residency_acc=start)
    firmware.block.refresh()
    firmware.residency = Residency(firmware.block, firmware.clock)
    firmware.settled()
    raw, total = start, 0
    for rise in rises:
        raw, total = (raw + rise) % WIDTH, total + rise
        limited_ns = firmware.looks(1000, ppt_residency_acc=raw)
        if raw != WIDTH - 1:  # all ones: not reported at this look
            assert limited_ns == {Cause.POWER_CAP: total * NS_PER_MS}

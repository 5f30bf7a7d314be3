"""For how long a value stands for now."""

from chopperd.live.readings import NewestValues, fresh_ns
from chopperd.model.devices import DeviceReading
from chopperd.model.kinds import Cause
from chopperd.units import NS_PER_MS, NS_PER_S
from tests.fakes.records import records

PERIOD_NS = 100 * NS_PER_MS
FULL = {
    "sm_clock_mhz": 1500.0,
    "mem_clock_mhz": 2619.0,
    "power_w": 640.0,
    "energy_j": 5.5,
    "temperature_c": 61.0,
    "memory_used_bytes": 1024.0,
    "activity_ratio": 0.5,
    "causes": Cause.POWER_CAP.bit | Cause.THERMAL.bit,
    "power_cap": 7.0,
}
FAST = {"sm_clock_mhz": 1600.0, "power_cap": 9.0}


def test_each_field_is_the_newest_that_was_reported() -> None:
    newest = NewestValues(NS_PER_S)
    newest.take(records([FULL, FAST, {"causes": Cause.UNKNOWN.bit}]))
    assert newest.reading(200 * NS_PER_MS, PERIOD_NS) == DeviceReading(
        sm_clock_mhz=1600.0,
        mem_clock_mhz=2619.0,
        power_w=640.0,
        energy_j=5.5,
        temperature_c=61.0,
        memory_used_bytes=1024,
        activity_ratio=0.5,
        causes=None,  # the newest read could not tell
        limited_ns={Cause.POWER_CAP: 9},
    )


def test_no_limit_set_is_an_empty_set_and_several_are_all_there() -> None:
    newest = NewestValues(NS_PER_S)
    newest.take(records([FULL]))
    assert newest.reading(0, PERIOD_NS).causes == frozenset({Cause.POWER_CAP, Cause.THERMAL})
    newest.take(records([FAST], first_ns=1))
    assert newest.reading(1, PERIOD_NS).causes == frozenset()


def test_values_are_fresh_for_three_seconds_at_usual_rates() -> None:
    newest = NewestValues(NS_PER_S)
    newest.take(records([FULL]))
    assert newest.reading(3 * NS_PER_S, PERIOD_NS).power_w == 640.0
    assert newest.reading(3 * NS_PER_S, PERIOD_NS).sm_clock_mhz == 1500.0
    assert newest.reading(3 * NS_PER_S + 1, PERIOD_NS) == DeviceReading()


def test_a_slow_read_is_fresh_for_three_of_its_periods() -> None:
    newest = NewestValues(5 * NS_PER_S)
    newest.take(records([FULL]))
    later = newest.reading(15 * NS_PER_S, PERIOD_NS)
    assert (later.power_w, later.sm_clock_mhz, later.causes) == (640.0, None, None)
    assert newest.reading(15 * NS_PER_S + 1, PERIOD_NS) == DeviceReading()


def test_a_slowed_loop_keeps_its_clock_fresh_for_three_periods() -> None:
    assert fresh_ns(2 * NS_PER_S) == 6 * NS_PER_S
    newest = NewestValues(NS_PER_S)
    newest.take(records([FULL]))
    assert newest.reading(6 * NS_PER_S, 2 * NS_PER_S).sm_clock_mhz == 1500.0


def test_nothing_is_known_before_the_first_record() -> None:
    newest = NewestValues(NS_PER_S)
    newest.take(records([]))
    assert newest.reading(0, PERIOD_NS) == DeviceReading()


def test_a_driver_without_counters_of_limits_gives_none_and_no_records_change_nothing() -> None:
    newest = NewestValues(NS_PER_S)
    newest.take(records([{"sm_clock_mhz": 1500.0}]))
    newest.take(records([]))
    assert newest.reading(0, PERIOD_NS) == DeviceReading(sm_clock_mhz=1500.0, causes=frozenset())

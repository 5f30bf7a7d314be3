"""Limits in force and cumulative counters by NVML, whatever the driver calls them."""

import pytest

from chopperd.devices.channel import PROBE_INTERVAL_NS
from chopperd.errors import DeviceLostError
from chopperd.model.devices import ReadScope
from chopperd.model.kinds import Cause
from chopperd.units import NS_PER_S
from tests.fakes.clock import ScriptedClock
from tests.fakes.nvml.fixtures import FakeNvml, MakeFakeNvml
from tests.fakes.nvml.scenario import GPU_IS_LOST, NOT_SUPPORTED, SUCCESS, UNKNOWN, Segment
from tests.fakes.samples import START_UNIX_NS
from tests.integration.devices.h100 import H100, read_at


@pytest.mark.parametrize(
    "without",
    [
        frozenset(),
        frozenset({"nvmlDeviceGetCurrentClocksEventReasons"}),
        frozenset({"nvmlDeviceGetCurrentClocksThrottleReasons"}),
    ],
)
def test_limits_are_read_by_their_new_or_their_old_name(
    make_fake_nvml: MakeFakeNvml, without: frozenset[str]
) -> None:
    fake = make_fake_nvml(without=without)
    fake.scenario.gpus[0].plays(Segment(reasons=0x44))
    causes = fake.open().read(H100, ReadScope.FAST).causes
    assert causes == frozenset({Cause.POWER_CAP, Cause.HW_THERMAL})


def test_limits_that_no_call_gives_are_not_readable_rather_than_none_set(
    make_fake_nvml: MakeFakeNvml,
) -> None:
    fake = make_fake_nvml(
        without=frozenset(
            {"nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"}
        )
    )
    assert fake.open().read(H100, ReadScope.FAST).causes is None


@pytest.mark.parametrize(
    ("driver", "first_limit_field", "has_them"),
    [("580.65.06", 251, True), ("595.45.04", 269, True), ("570.86.15", 0, False)],
)
def test_thermal_counters_are_never_read_from_another_field_s_number(
    fake_nvml: FakeNvml, driver: str, first_limit_field: int, has_them: bool
) -> None:
    fake_nvml.scenario.driver(driver, first_limit_field=first_limit_field)
    fake_nvml.scenario.gpus[0].plays(Segment(reasons=0x24), origin_unix_ns=START_UNIX_NS)
    limited_ns = read_at(fake_nvml, 3_000, ReadScope.FAST).limited_ns
    expected = {Cause.POWER_CAP: 3 * NS_PER_S, Cause.SYNC_BOOST: 0}
    if has_them:
        expected |= {Cause.THERMAL: 3 * NS_PER_S, Cause.HW_THERMAL: 0, Cause.POWER_BRAKE: 0}
    assert limited_ns == expected


def test_absent_limit_counters_leave_the_request_and_come_back(fake_nvml: FakeNvml) -> None:
    gpu = fake_nvml.scenario.gpus[0]
    gpu.fails_field(NOT_SUPPORTED, "sync_boost", "power_brake")
    gpu.fails(NOT_SUPPORTED, "nvmlDeviceGetViolationStatus")
    clock = ScriptedClock()
    backend = fake_nvml.open(clock)
    there = {Cause.POWER_CAP, Cause.THERMAL, Cause.HW_THERMAL}
    assert set(backend.read(H100, ReadScope.FAST).limited_ns) == there
    gpu.fails_field(0, "sync_boost", "power_brake")
    assert set(backend.read(H100, ReadScope.FAST).limited_ns) == there
    clock.advance(PROBE_INTERVAL_NS)
    # Only full looks ask for what was absent: fast ones stay three calls of the driver.
    assert set(backend.read(H100, ReadScope.FAST).limited_ns) == there
    returned = {*there, Cause.SYNC_BOOST, Cause.POWER_BRAKE}
    assert set(backend.read(H100, ReadScope.FULL).limited_ns) == returned
    assert set(backend.read(H100, ReadScope.FAST).limited_ns) == returned


def test_a_counter_that_reads_all_ones_is_absent(fake_nvml: FakeNvml) -> None:
    fake_nvml.scenario.gpus[0].limited_start_ns[0] = -1
    limited_ns = fake_nvml.open().read(H100, ReadScope.FAST).limited_ns
    assert Cause.POWER_CAP not in limited_ns
    assert Cause.SYNC_BOOST in limited_ns


def test_limits_follow_the_driver_from_look_to_look(fake_nvml: FakeNvml) -> None:
    fake_nvml.scenario.gpus[0].plays(
        Segment(length_ns=NS_PER_S, reasons=0x4),
        Segment(length_ns=NS_PER_S, reasons=0x20),
        Segment(length_ns=NS_PER_S, reasons=0x0),
        origin_unix_ns=START_UNIX_NS,
    )
    causes = [read_at(fake_nvml, ms, ReadScope.FAST).causes for ms in (500, 600, 1_500, 2_500)]
    capped, hot = frozenset({Cause.POWER_CAP}), frozenset({Cause.THERMAL})
    assert causes == [capped, capped, hot, frozenset()]


HELD = Segment(reasons=0x34)  # power cap, sync boost, thermal
OLD_COUNTERS = (Cause.POWER_CAP, Cause.SYNC_BOOST, Cause.THERMAL)


def test_the_old_counters_stand_in_for_causes_without_a_field(fake_nvml: FakeNvml) -> None:
    """A driver before 575 has fields for two causes, and counts thermal limits elsewhere."""
    fake_nvml.scenario.driver("550.54.15", first_limit_field=0)
    gpu = fake_nvml.scenario.gpus[0]
    gpu.plays(HELD, origin_unix_ns=START_UNIX_NS)
    assert read_at(fake_nvml, 3_000).limited_ns == dict.fromkeys(OLD_COUNTERS, 3 * NS_PER_S)
    before = gpu.calls_of("nvmlDeviceGetViolationStatus")
    read_at(fake_nvml, 3_100)
    assert gpu.calls_of("nvmlDeviceGetViolationStatus") == before + 1


def test_the_old_counters_are_read_by_full_looks_only(fake_nvml: FakeNvml) -> None:
    fake_nvml.scenario.driver("550.54.15", first_limit_field=0)
    gpu = fake_nvml.scenario.gpus[0]
    backend = fake_nvml.open()
    before = gpu.calls_total()
    reading = backend.read(H100, ReadScope.FAST)
    assert gpu.calls_total() - before == 3
    assert set(reading.limited_ns) == {Cause.POWER_CAP, Cause.SYNC_BOOST}


def test_without_fields_three_causes_are_counted(make_fake_nvml: MakeFakeNvml) -> None:
    fake = make_fake_nvml(without=frozenset({"nvmlDeviceGetFieldValues"}))
    fake.scenario.gpus[0].plays(HELD, origin_unix_ns=START_UNIX_NS)
    assert read_at(fake, 2_000).limited_ns == dict.fromkeys(OLD_COUNTERS, 2 * NS_PER_S)


def test_the_old_counters_are_not_asked_where_fields_answer(fake_nvml: FakeNvml) -> None:
    fake_nvml.open().read(H100, ReadScope.FULL)
    assert fake_nvml.scenario.gpus[0].calls_of("nvmlDeviceGetViolationStatus") == 0


def test_causes_that_are_newer_than_the_old_counters_have_none(fake_nvml: FakeNvml) -> None:
    gpu = fake_nvml.scenario.gpus[0]
    gpu.fails_field(NOT_SUPPORTED, "hw_thermal", "power_brake", "thermal")
    limited_ns = fake_nvml.open().read(H100, ReadScope.FULL).limited_ns
    assert set(limited_ns) == set(OLD_COUNTERS)
    # Thermal only.
    assert gpu.calls_of("nvmlDeviceGetViolationStatus") == 2


def test_a_counter_never_changes_its_source(fake_nvml: FakeNvml) -> None:
    """Two counters of one cause need not have begun together: a change would look like a rise."""
    gpu = fake_nvml.scenario.gpus[0]
    gpu.fails_field(NOT_SUPPORTED, "thermal")
    clock = ScriptedClock()
    backend = fake_nvml.open(clock)
    gpu.fails_field(SUCCESS, "thermal")
    gpu.fails(NOT_SUPPORTED, "nvmlDeviceGetViolationStatus")
    for _ in range(3):
        clock.advance(PROBE_INTERVAL_NS)
        assert Cause.THERMAL not in backend.read(H100, ReadScope.FULL).limited_ns
    gpu.fails(GPU_IS_LOST)
    with pytest.raises(DeviceLostError):
        backend.read(H100, ReadScope.FULL)
    gpu.fails(SUCCESS)
    before = gpu.calls_of("nvmlDeviceGetViolationStatus")
    assert Cause.THERMAL in backend.read(H100, ReadScope.FULL).limited_ns
    assert gpu.calls_of("nvmlDeviceGetViolationStatus") == before + 1


def test_a_counter_that_fails_for_now_is_left_out_of_that_look(fake_nvml: FakeNvml) -> None:
    gpu = fake_nvml.scenario.gpus[0]
    backend = fake_nvml.open()
    gpu.fails_field(UNKNOWN, "thermal")
    assert Cause.THERMAL not in backend.read(H100, ReadScope.FAST).limited_ns
    gpu.fails_field(SUCCESS, "thermal")
    assert Cause.THERMAL in backend.read(H100, ReadScope.FAST).limited_ns

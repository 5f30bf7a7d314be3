"""The NVML back end over the real binding and a fake driver; expected values by hand."""

from dataclasses import replace

import pytest

from chopperd.devices.channel import PROBE_INTERVAL_NS
from chopperd.model.causes import Cause
from chopperd.model.devices import DeviceReading, GpuInfo, ReadScope, Vendor
from chopperd.units import NS_PER_MS, NS_PER_S
from tests.fakes.clock import ScriptedClock
from tests.fakes.nvml.fixtures import FakeNvml, MakeFakeNvml
from tests.fakes.nvml.scenario import NOT_SUPPORTED, UNKNOWN, Segment
from tests.fakes.samples import START_UNIX_NS

H100 = GpuInfo(
    gpu="0",
    index=0,
    uuid="GPU-00000000",
    name="NVIDIA H100 80GB HBM3",
    vendor=Vendor.NVIDIA,
    pci_bus_id="00000000:10:00.0",
    sm_clock_max_mhz=1980,
    mem_clock_max_mhz=2619,
    power_limit_w=700,
    power_limit_default_w=700,
    memory_size_bytes=85_899_345_920,
    power_source="instant",
    memory_source="v2",
    temperature_slowdown_c=95,
    temperature_shutdown_c=100,
    temperature_memory_max_c=105,
)

# 200 ms at 700 W under a power cap, 200 ms at 100 W without a limit, round and round (case 21).
STEP_A = Segment(length_ns=200 * NS_PER_MS, sm_clock_mhz=1410, power_mw=700_000, reasons=0x4)
STEP_B = Segment(length_ns=200 * NS_PER_MS, sm_clock_mhz=1980, power_mw=100_000, reasons=0x1)


def read_at(fake: FakeNvml, ms: int, scope: ReadScope = ReadScope.FULL) -> DeviceReading:
    """What a back end reads `ms` after the start of the scenario."""
    fake.scenario.freeze(START_UNIX_NS + ms * NS_PER_MS)
    backend = fake.opened[0] if fake.opened else fake.open()
    return backend.read(backend.devices()[0], scope)


def test_a_gpu_s_identity_and_fixed_properties_are_the_driver_s(fake_nvml: FakeNvml) -> None:
    backend = fake_nvml.open()
    assert backend.devices() == (H100,)
    assert (backend.name, backend.driver, backend.simulated) == ("nvml", "595.45.04", False)


def test_a_full_look_has_every_field_in_our_units(fake_nvml: FakeNvml) -> None:
    gpu = fake_nvml.scenario.gpus[0]
    gpu.plays(STEP_A, STEP_B, origin_unix_ns=START_UNIX_NS, repeats=True)
    gpu.energy_start_mj = 1_000
    # 4 s are ten rounds of 0.2 s * 700 W + 0.2 s * 100 W = 160 J; 50 ms more of step A are 35 J.
    assert read_at(fake_nvml, 4_050) == DeviceReading(
        sm_clock_mhz=1410,
        mem_clock_mhz=2619,
        power_w=700,
        energy_j=1 + 1600 + 35,
        temperature_c=60,
        memory_used_bytes=8_388_608,
        memory_reserved_bytes=1_040_187_392,
        activity_ratio=1,
        causes=frozenset({Cause.POWER_CAP}),
        limited_ns={
            Cause.POWER_CAP: 2_050 * NS_PER_MS,
            Cause.SYNC_BOOST: 0,
            Cause.THERMAL: 0,
            Cause.HW_THERMAL: 0,
            Cause.POWER_BRAKE: 0,
        },
        # Of the second before, 450 ms were at 700 W and 550 ms at 100 W.
        power_average_w=370,
        temperature_memory_c=55,
        power_limit_w=700,
    )


def test_a_fast_look_takes_three_driver_calls(fake_nvml: FakeNvml) -> None:
    gpu = fake_nvml.scenario.gpus[0]
    backend = fake_nvml.open()
    before = gpu.calls_total()
    reading = backend.read(H100, ReadScope.FAST)
    assert gpu.calls_total() - before == 3
    assert reading == DeviceReading(
        sm_clock_mhz=1980, causes=frozenset(), limited_ns=reading.limited_ns
    )
    assert len(reading.limited_ns) == 5


def test_energy_gives_each_step_its_own_where_averaged_power_gives_both_the_same(
    fake_nvml: FakeNvml,
) -> None:
    gpu = fake_nvml.scenario.gpus[0]
    gpu.plays(STEP_A, STEP_B, origin_unix_ns=START_UNIX_NS, repeats=True)
    energy_j = [read_at(fake_nvml, ms).energy_j or 0 for ms in (1_200, 1_400, 1_600)]
    assert [energy_j[1] - energy_j[0], energy_j[2] - energy_j[1]] == [140, 20]


def test_power_that_is_only_an_average_is_named_so(fake_nvml: FakeNvml) -> None:
    gpu = fake_nvml.scenario.gpus[0]
    gpu.plays(STEP_A, STEP_B, origin_unix_ns=START_UNIX_NS, repeats=True)
    gpu.fails_field(NOT_SUPPORTED, "power_instant")
    fake_nvml.scenario.freeze(START_UNIX_NS + 1_400 * NS_PER_MS)
    backend = fake_nvml.open()
    assert backend.devices()[0].power_source == "average_1s"
    # Of the second before 1400 ms, 600 ms were at 700 W and 400 ms at 100 W.
    assert read_at(fake_nvml, 1_400).power_w == 0.6 * 700 + 0.4 * 100


def test_the_source_of_power_is_kept_when_the_other_starts_to_answer(fake_nvml: FakeNvml) -> None:
    gpu = fake_nvml.scenario.gpus[0]
    gpu.fails_field(NOT_SUPPORTED, "power_instant")
    clock = ScriptedClock()
    backend = fake_nvml.open(clock)
    gpu.fails_field(0, "power_instant")
    clock.advance(PROBE_INTERVAL_NS)
    gpu.plays(STEP_A, STEP_B, origin_unix_ns=START_UNIX_NS, repeats=True)
    reading = read_at(fake_nvml, 1_400)
    assert reading.power_w == reading.power_average_w == 0.6 * 700 + 0.4 * 100
    assert backend.devices()[0].power_source == "average_1s"


def test_instant_power_that_fails_once_is_absent_and_not_replaced_by_an_average(
    fake_nvml: FakeNvml,
) -> None:
    gpu = fake_nvml.scenario.gpus[0]
    backend = fake_nvml.open()
    gpu.fails_field(UNKNOWN, "power_instant")
    assert backend.read(H100, ReadScope.FULL).power_w is None
    gpu.fails_field(0, "power_instant")
    assert backend.read(H100, ReadScope.FULL).power_w == 500


def test_memory_is_v2_where_the_driver_has_it(fake_nvml: FakeNvml) -> None:
    backend = fake_nvml.open()
    assert backend.devices()[0].memory_source == "v2"
    assert backend.read(H100, ReadScope.FULL).memory_used_bytes == 8_388_608


def test_memory_v1_holds_the_driver_s_reserve_and_is_named_so(make_fake_nvml: MakeFakeNvml) -> None:
    fake = make_fake_nvml(without=frozenset({"nvmlDeviceGetMemoryInfo_v2"}))
    backend = fake.open()
    assert backend.devices()[0].memory_source == "v1"
    assert backend.devices()[0].memory_size_bytes == 85_899_345_920
    # 8 MiB in use and 992 MiB reserved.
    assert backend.read(H100, ReadScope.FULL).memory_used_bytes == 1_048_576_000


def test_memory_never_changes_its_source_between_samples(fake_nvml: FakeNvml) -> None:
    gpu = fake_nvml.scenario.gpus[0]
    backend = fake_nvml.open()
    gpu.fails(NOT_SUPPORTED, "nvmlDeviceGetMemoryInfo_v2")
    assert backend.read(H100, ReadScope.FULL).memory_used_bytes is None
    assert gpu.calls_of("nvmlDeviceGetMemoryInfo") == 0


def test_a_gpu_without_memory_information_has_all_its_other_fields(fake_nvml: FakeNvml) -> None:
    gpu = fake_nvml.scenario.gpus[0]
    gpu.plays(Segment(power_mw=11_200, temperature_c=35, activity_percent=0))
    gpu.fails(NOT_SUPPORTED, "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMemoryInfo")
    backend = fake_nvml.open()
    reading = backend.read(H100, ReadScope.FULL)
    assert backend.devices()[0].memory_size_bytes is None
    assert reading.memory_used_bytes is None
    assert reading.power_w == 11.2
    assert (reading.temperature_c, reading.activity_ratio) == (35, 0)


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
            {
                "nvmlDeviceGetCurrentClocksEventReasons",
                "nvmlDeviceGetCurrentClocksThrottleReasons",
            }
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


def test_absent_fields_are_asked_for_once_a_minute(fake_nvml: FakeNvml) -> None:
    gpu = fake_nvml.scenario.gpus[0]
    gpu.fails(NOT_SUPPORTED, "nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetFieldValues")
    clock = ScriptedClock()
    backend = fake_nvml.open(clock)
    before = gpu.calls_of("nvmlDeviceGetTotalEnergyConsumption")
    for _ in range(10):
        assert backend.read(H100, ReadScope.FULL).energy_j is None
    assert gpu.calls_of("nvmlDeviceGetTotalEnergyConsumption") == before
    gpu.fails(0)
    clock.advance(PROBE_INTERVAL_NS)
    reading = backend.read(H100, ReadScope.FULL)
    assert reading.energy_j is not None
    assert len(reading.limited_ns) == 5


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


def test_a_name_that_is_not_utf_8_is_shown_with_marks(fake_nvml: FakeNvml) -> None:
    fake_nvml.scenario.gpus[0].name = b"NVIDIA \xff100"
    assert fake_nvml.open().devices()[0].name == "NVIDIA \ufffd100"


@pytest.mark.parametrize(
    ("set_mhz", "default_mhz", "limit_mhz"),
    [
        (1980, 1980, None),
        (1095, 1095, None),  # an A100's default: it boosts past it
        (1200, 1980, 1200),
        (2100, 1980, None),
    ],
)
def test_an_applications_clock_is_a_limit_only_where_somebody_lowered_it(
    fake_nvml: FakeNvml, set_mhz: int, default_mhz: int, limit_mhz: float | None
) -> None:
    gpu = fake_nvml.scenario.gpus[0]
    gpu.applications_clock_mhz = set_mhz
    gpu.default_applications_clock_mhz = default_mhz
    assert fake_nvml.open().devices()[0].sm_clock_limit_mhz == limit_mhz


def test_an_applications_clock_without_a_known_default_is_not_taken_for_a_limit(
    fake_nvml: FakeNvml,
) -> None:
    gpu = fake_nvml.scenario.gpus[0]
    gpu.applications_clock_mhz = 1200
    gpu.fails(NOT_SUPPORTED, "nvmlDeviceGetDefaultApplicationsClock")
    assert fake_nvml.open().devices()[0].sm_clock_limit_mhz is None


def test_with_mig_on_the_whole_gpu_is_read_and_its_activity_is_absent(fake_nvml: FakeNvml) -> None:
    gpu = fake_nvml.scenario.gpus[0]
    gpu.mig_mode = 1
    gpu.plays(Segment(power_mw=87_000, activity_percent=0))
    backend = fake_nvml.open()
    assert backend.devices() == (H100,)
    reading = backend.read(H100, ReadScope.FULL)
    assert (reading.power_w, reading.activity_ratio) == (87, None)
    assert gpu.calls_of("nvmlDeviceGetUtilizationRates") == 0


def test_absurd_values_are_absent_and_counted(fake_nvml: FakeNvml) -> None:
    gpu = fake_nvml.scenario.gpus[0]
    gpu.plays(
        Segment(
            sm_clock_mhz=0,
            mem_clock_mhz=65_535,
            power_mw=0,
            temperature_c=-273,
            activity_percent=101,
        )
    )
    gpu.memory_used_bytes = gpu.memory_total_bytes + 1
    gpu.memory_temperature_c = 0
    backend = fake_nvml.open()
    before = backend.implausible_total()
    reading = backend.read(H100, ReadScope.FULL)
    nothing = DeviceReading(causes=frozenset(), limited_ns=reading.limited_ns, power_limit_w=700)
    assert replace(reading, energy_j=None) == nothing
    after = backend.implausible_total()
    dropped = {field for (_, field), count in after.items() if count == before[("0", field)] + 1}
    assert dropped == {
        "sm_clock_mhz",
        "mem_clock_mhz",
        "power_w",
        "temperature_c",
        "temperature_memory_c",
        "activity_ratio",
        "memory_used_bytes",
    }


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


def test_an_average_is_not_settled_for_while_instant_power_only_fails_for_now(
    fake_nvml: FakeNvml,
) -> None:
    gpu = fake_nvml.scenario.gpus[0]
    gpu.fails_field(UNKNOWN, "power_instant")
    backend = fake_nvml.open()
    assert backend.devices()[0].power_source is None
    assert backend.read(H100, ReadScope.FULL).power_w is None
    gpu.fails_field(0, "power_instant")
    assert backend.read(H100, ReadScope.FULL).power_w == 500
    assert gpu.calls_of("nvmlDeviceGetPowerUsage") == 0

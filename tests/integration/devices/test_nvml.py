"""The NVML back end over the real binding and a fake driver; expected values by hand."""

import pytest
from msgspec.structs import replace

from chopperd.devices.channel import PROBE_INTERVAL_NS
from chopperd.model.devices import DeviceReading, ReadScope
from chopperd.model.kinds import Cause
from chopperd.units import NS_PER_MS
from tests.fakes.clock import ScriptedClock
from tests.fakes.nvml.fixtures import FakeNvml
from tests.fakes.nvml.scenario import NOT_SUPPORTED, Segment
from tests.fakes.samples import START_UNIX_NS
from tests.integration.devices.h100 import H100, STEP_A, STEP_B, read_at


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


def test_a_temperature_of_all_ones_is_absent_though_it_reads_as_frost(fake_nvml: FakeNvml) -> None:
    gpu = fake_nvml.scenario.gpus[0]
    backend = fake_nvml.open()
    for temperature_c, read_c in ((-2, -2.0), (-1, None), (40, 40.0)):
        gpu.plays(Segment(temperature_c=temperature_c))
        assert backend.read(H100, ReadScope.FULL).temperature_c == read_c
    assert backend.implausible_total()["0", "temperature_c"] == 1


def test_absurd_values_are_absent_and_counted(fake_nvml: FakeNvml) -> None:
    gpu = fake_nvml.scenario.gpus[0]
    gpu.memory_temperature_c = 60
    backend = fake_nvml.open()
    backend.read(H100, ReadScope.FULL)
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
    before = backend.implausible_total()
    reading = backend.read(H100, ReadScope.FULL)
    nothing = DeviceReading(causes=frozenset(), limited_ns=reading.limited_ns, power_limit_w=700)
    assert replace(reading, energy_j=None) == nothing
    after = backend.implausible_total()
    dropped = {
        field for (_, field), count in after.items() if count == before.get(("0", field), 0) + 1
    }
    assert dropped == {
        "sm_clock_mhz",
        "mem_clock_mhz",
        "power_w",
        "power_average_w",
        "temperature_c",
        "temperature_memory_c",
        "activity_ratio",
        "memory_used_bytes",
    }

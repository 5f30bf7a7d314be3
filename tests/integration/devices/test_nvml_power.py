"""Power and energy by NVML: which source, and that none stands for another."""

import pytest

from chopperd.devices.channel import PROBE_INTERVAL_NS
from chopperd.errors import DeviceLostError
from chopperd.model.devices import ReadScope
from chopperd.units import NS_PER_MS
from tests.fakes.clock import ScriptedClock
from tests.fakes.nvml.fixtures import FakeNvml, MakeFakeNvml
from tests.fakes.nvml.scenario import (
    GPU_IS_LOST,
    NOT_SUPPORTED,
    SUCCESS,
    UNKNOWN,
    GpuLayout,
    Segment,
)
from tests.fakes.samples import START_UNIX_NS
from tests.integration.devices.h100 import H100, STEP_A, STEP_B, read_at


def test_energy_gives_each_step_its_own_where_averaged_power_gives_both_the_same(
    fake_nvml: FakeNvml,
) -> None:
    gpu = fake_nvml.scenario.gpus[0]
    gpu.plays(STEP_A, STEP_B, origin_unix_ns=START_UNIX_NS, repeats=True)
    energy_j = [read_at(fake_nvml, ms).energy_j or 0 for ms in (1_200, 1_400, 1_600)]
    assert [energy_j[1] - energy_j[0], energy_j[2] - energy_j[1]] == [140, 20]


def test_energy_is_believed_once_it_agrees_with_the_power(fake_nvml: FakeNvml) -> None:
    """500 W for 2 s are 1000 J; a look a second, of which the third has seen 2 s."""
    clock = ScriptedClock()
    backend = fake_nvml.open(clock, checks_energy=True)
    found = []
    for second in range(4):
        fake_nvml.scenario.freeze(START_UNIX_NS + second * 1000 * NS_PER_MS)
        found.append(backend.read(H100, ReadScope.FULL).energy_j is not None)
        assert (backend.read_plan(H100, ReadScope.FULL) is not None) is found[-1]
        assert backend.read_plan(H100, ReadScope.FAST) is not None
        clock.advance(1000 * NS_PER_MS)
    assert found == [False, False, True, True]


def test_energy_that_disagrees_with_the_power_is_left_out(fake_nvml: FakeNvml) -> None:
    """Read at 500 W for 2.4 s in all while the driver's counter sees 24 s: ten times too much."""
    clock = ScriptedClock()
    backend = fake_nvml.open(clock, checks_energy=True)
    for look in range(12):
        fake_nvml.scenario.freeze(START_UNIX_NS + look * 10_000 * NS_PER_MS)
        assert backend.read(H100, ReadScope.FULL).energy_j is None
        clock.advance(1000 * NS_PER_MS)
    plan = backend.read_plan(H100, ReadScope.FULL)
    assert plan is not None
    assert "energy_j" not in {value.name for value in plan.values}


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


def test_the_average_stands_beside_the_power_at_this_instant(fake_nvml: FakeNvml) -> None:
    gpu = fake_nvml.scenario.gpus[0]
    gpu.plays(STEP_A, STEP_B, origin_unix_ns=START_UNIX_NS, repeats=True)
    # In the middle of step B; of the second before, 500 ms were at 700 W and 500 ms at 100 W.
    reading = read_at(fake_nvml, 1_500)
    assert (reading.power_w, reading.power_average_w) == (100, 400)


def test_an_average_that_a_gpu_lacks_is_not_made_of_another_call(fake_nvml: FakeNvml) -> None:
    """Where the field of the average is missing, `nvmlDeviceGetPowerUsage` gives an instant."""
    gpu = fake_nvml.scenario.gpus[0]
    gpu.fails_field(NOT_SUPPORTED, "power_average")
    reading = fake_nvml.open().read(H100, ReadScope.FULL)
    assert (reading.power_w, reading.power_average_w) == (500, None)
    assert gpu.calls_of("nvmlDeviceGetPowerUsage") == 0


def test_a_driver_without_fields_gives_one_average_as_both(make_fake_nvml: MakeFakeNvml) -> None:
    fake = make_fake_nvml(without=frozenset({"nvmlDeviceGetFieldValues"}))
    gpu = fake.scenario.gpus[0]
    gpu.plays(STEP_A, STEP_B, origin_unix_ns=START_UNIX_NS, repeats=True)
    reading = read_at(fake, 1_400)
    assert reading.power_w == reading.power_average_w == 0.6 * 700 + 0.4 * 100
    before = gpu.calls_of("nvmlDeviceGetPowerUsage")
    read_at(fake, 1_500)
    assert gpu.calls_of("nvmlDeviceGetPowerUsage") == before + 1


def superchip(gpu: GpuLayout) -> None:
    """Only the module's power is known; it draws 200 W beside the GPU."""
    gpu.fails_field(NOT_SUPPORTED, "power_instant", "power_average")
    gpu.fails_field(SUCCESS, "module_power_instant", "module_power_average")
    gpu.module_extra_mw = 200_000


def test_a_superchip_s_power_is_its_module_s_and_named_so(fake_nvml: FakeNvml) -> None:
    gpu = fake_nvml.scenario.gpus[0]
    superchip(gpu)
    gpu.plays(STEP_A, STEP_B, origin_unix_ns=START_UNIX_NS, repeats=True)
    reading = read_at(fake_nvml, 1_500)
    assert (reading.power_w, reading.power_average_w) == (100 + 200, 400 + 200)
    assert fake_nvml.opened[0].devices()[0].power_source == "module"
    assert gpu.calls_of("nvmlDeviceGetPowerUsage") == 0


def test_module_and_gpu_power_are_never_mixed(fake_nvml: FakeNvml) -> None:
    gpu = fake_nvml.scenario.gpus[0]
    superchip(gpu)
    gpu.fails_field(NOT_SUPPORTED, "module_power_average")
    gpu.fails_field(SUCCESS, "power_average")
    clock = ScriptedClock()
    backend = fake_nvml.open(clock)
    gpu.fails_field(SUCCESS, "power_instant")
    for _ in range(2):
        reading = backend.read(H100, ReadScope.FULL)
        assert (reading.power_w, reading.power_average_w) == (700, None)
        clock.advance(PROBE_INTERVAL_NS)


def test_sources_are_kept_over_a_loss_and_the_gpu_s_return(fake_nvml: FakeNvml) -> None:
    gpu = fake_nvml.scenario.gpus[0]
    gpu.fails_field(NOT_SUPPORTED, "power_instant")
    gpu.fails(NOT_SUPPORTED, "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetTotalEnergyConsumption")
    backend = fake_nvml.open()
    assert backend.devices()[0].memory_source == "v1"
    gpu.fails(GPU_IS_LOST)
    with pytest.raises(DeviceLostError):
        backend.read(H100, ReadScope.FULL)
    gpu.fails(SUCCESS)
    gpu.fails_field(SUCCESS, "power_instant")
    gpu.plays(STEP_A, STEP_B, origin_unix_ns=START_UNIX_NS, repeats=True)
    before = {call: gpu.calls_of(call) for call in ("nvmlDeviceGetMemoryInfo_v2",)}
    reading = read_at(fake_nvml, 1_400)
    assert reading.power_w == 0.6 * 700 + 0.4 * 100
    assert reading.memory_used_bytes == 1_048_576_000
    assert reading.memory_reserved_bytes is None
    assert {call: gpu.calls_of(call) for call in before} == before
    assert gpu.calls_of("nvmlDeviceGetTotalEnergyConsumption") == 1


def test_energy_is_read_as_a_field_where_the_call_is_missing(make_fake_nvml: MakeFakeNvml) -> None:
    fake = make_fake_nvml(without=frozenset({"nvmlDeviceGetTotalEnergyConsumption"}))
    fake.scenario.gpus[0].energy_start_mj = 1_500
    fake.scenario.gpus[0].plays(Segment(power_mw=250_000), origin_unix_ns=START_UNIX_NS)
    assert read_at(fake, 2_000).energy_j == 1.5 + 2 * 250


def test_a_limit_that_somebody_lowers_is_seen_at_the_next_full_look(fake_nvml: FakeNvml) -> None:
    gpu = fake_nvml.scenario.gpus[0]
    backend = fake_nvml.open()
    gpu.power_limit_mw = 450_000
    assert backend.read(H100, ReadScope.FULL).power_limit_w == 450
    assert backend.devices()[0].power_limit_w == 700


@pytest.mark.parametrize("first_mw", [0, 200_000_001])
def test_a_first_power_that_is_absurd_hides_neither_power_nor_its_source(
    fake_nvml: FakeNvml, first_mw: int
) -> None:
    gpu = fake_nvml.scenario.gpus[0]
    gpu.plays(Segment(power_mw=first_mw))
    backend = fake_nvml.open()
    assert backend.read(H100, ReadScope.FULL).power_w is None
    gpu.plays(Segment(power_mw=321_000))
    assert backend.read(H100, ReadScope.FULL).power_w == 321
    assert gpu.calls_of("nvmlDeviceGetPowerUsage") == 0


def test_instant_power_that_stays_absurd_for_a_minute_makes_room_for_the_average(
    fake_nvml: FakeNvml,
) -> None:
    """Some drivers answer a field that they lack with 0; the average is then named as such."""
    gpu = fake_nvml.scenario.gpus[0]
    gpu.plays(STEP_A, STEP_B, Segment(power_mw=0), origin_unix_ns=START_UNIX_NS)
    clock = ScriptedClock()
    fake_nvml.scenario.freeze(START_UNIX_NS + 500 * NS_PER_MS)
    backend = fake_nvml.open(clock)
    assert backend.read(H100, ReadScope.FULL).power_w is None
    clock.advance(PROBE_INTERVAL_NS)
    # Of the second before 1200 ms, 200 ms were at 100 W.
    assert read_at(fake_nvml, 1_200).power_w == 20

"""Read plans of the NVML back end: carried out by themselves they give what `read` gives."""

from random import Random

import pytest

from chopperd.devices.base import PlansReads
from chopperd.devices.channel import PROBE_INTERVAL_NS
from chopperd.devices.nvml.backend import NvmlBackend
from chopperd.devices.read_plan import ReadPlan
from chopperd.model.devices import DeviceReading, ReadScope
from chopperd.model.kinds import Cause
from chopperd.testing import carried_out
from chopperd.units import NS_PER_MS
from tests.fakes.clock import ScriptedClock
from tests.fakes.nvml.fixtures import FakeNvml, MakeFakeNvml
from tests.fakes.nvml.scenario import (
    FIELDS,
    GPU_IS_LOST,
    NOT_SUPPORTED,
    SUCCESS,
    UNKNOWN,
    GpuLayout,
    Segment,
)
from tests.fakes.samples import START_UNIX_NS

OLD_DRIVER = frozenset(
    {
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetTemperatureV",
        "nvmlDeviceGetFieldValues",
    }
)


def plan_of(backend: NvmlBackend, scope: ReadScope) -> ReadPlan | None:
    return backend.read_plan(backend.devices()[0], scope)


def settled_plan(backend: NvmlBackend, scope: ReadScope) -> ReadPlan:
    plan = plan_of(backend, scope)
    assert plan is not None
    return plan


def odd_values(gpu: GpuLayout, *, temperature_c: int) -> None:
    gpu.plays(
        Segment(
            sm_clock_mhz=1417,
            power_mw=11_201,
            temperature_c=temperature_c,
            reasons=0x244,
            activity_percent=29,
        ),
        origin_unix_ns=START_UNIX_NS,
    )
    gpu.energy_start_mj = 1_234_567


@pytest.mark.parametrize("scope", ReadScope)
@pytest.mark.parametrize("without", [frozenset(), OLD_DRIVER])
def test_a_plan_gives_to_the_bit_what_a_read_gives(
    make_fake_nvml: MakeFakeNvml, scope: ReadScope, without: frozenset[str]
) -> None:
    fake = make_fake_nvml(without=without)
    # Frost is beyond what the old call can say.
    odd_values(fake.scenario.gpus[0], temperature_c=61 if without else -3)
    fake.scenario.freeze(START_UNIX_NS + 12_345 * NS_PER_MS)
    backend = fake.open()
    assert isinstance(backend, PlansReads)
    reading = backend.read(backend.devices()[0], scope)
    assert carried_out(settled_plan(backend, scope)) == reading


def test_a_plan_follows_values_that_move(fake_nvml: FakeNvml) -> None:
    backend = fake_nvml.open()
    plan = settled_plan(backend, ReadScope.FULL)
    fake_nvml.scenario.gpus[0].plays(Segment(sm_clock_mhz=990, power_mw=300_000, reasons=0x20))
    planned = carried_out(plan)
    assert (planned.sm_clock_mhz, planned.power_w) == (990, 300)
    assert planned.causes == frozenset({Cause.THERMAL})


def test_a_fast_plan_takes_three_driver_calls(fake_nvml: FakeNvml) -> None:
    gpu = fake_nvml.scenario.gpus[0]
    plan = settled_plan(fake_nvml.open(), ReadScope.FAST)
    before = gpu.calls_total()
    carried_out(plan)
    assert gpu.calls_total() - before == len(plan.calls) == 3


def test_a_plan_stays_the_same_object_while_nothing_changes(fake_nvml: FakeNvml) -> None:
    backend = fake_nvml.open()
    plans = {scope: settled_plan(backend, scope) for scope in ReadScope}
    for scope in (ReadScope.FAST, ReadScope.FULL, ReadScope.FAST):
        backend.read(backend.devices()[0], scope)
        assert all(plan_of(backend, each) is plan for each, plan in plans.items())


def test_there_is_no_plan_before_the_first_look_has_been_answered(fake_nvml: FakeNvml) -> None:
    gpu = fake_nvml.scenario.gpus[0]
    gpu.fails(UNKNOWN, "nvmlDeviceGetClockInfo")
    backend = fake_nvml.open()
    assert [plan_of(backend, scope) for scope in ReadScope] == [None, None]
    gpu.fails(SUCCESS)
    backend.read(backend.devices()[0], ReadScope.FULL)
    assert None not in [plan_of(backend, scope) for scope in ReadScope]


def test_a_field_that_fails_for_now_takes_the_plan_away_until_it_answers(
    fake_nvml: FakeNvml,
) -> None:
    gpu = fake_nvml.scenario.gpus[0]
    backend = fake_nvml.open()
    device = backend.devices()[0]
    plan = settled_plan(backend, ReadScope.FULL)
    gpu.fails_field(UNKNOWN, "memory_temperature")
    with pytest.raises(AssertionError, match="the word at"):
        carried_out(plan)
    backend.read(device, ReadScope.FULL)
    assert plan_of(backend, ReadScope.FULL) is None
    assert plan_of(backend, ReadScope.FAST) is not None
    gpu.fails_field(SUCCESS, "memory_temperature")
    backend.read(device, ReadScope.FULL)
    assert plan_of(backend, ReadScope.FULL) is plan


def test_a_plan_makes_way_for_a_probe_and_comes_back_unchanged(fake_nvml: FakeNvml) -> None:
    gpu = fake_nvml.scenario.gpus[0]
    gpu.fails_field(NOT_SUPPORTED, "memory_temperature")
    clock = ScriptedClock()
    backend = fake_nvml.open(clock)
    plan = settled_plan(backend, ReadScope.FULL)
    assert carried_out(plan).temperature_memory_c is None
    clock.advance(PROBE_INTERVAL_NS)
    assert plan_of(backend, ReadScope.FULL) is None
    assert plan_of(backend, ReadScope.FAST) is not None
    backend.read(backend.devices()[0], ReadScope.FULL)
    assert plan_of(backend, ReadScope.FULL) is plan


def test_a_field_found_by_a_probe_is_in_the_next_plan(fake_nvml: FakeNvml) -> None:
    gpu = fake_nvml.scenario.gpus[0]
    gpu.fails_field(NOT_SUPPORTED, "memory_temperature")
    clock = ScriptedClock()
    backend = fake_nvml.open(clock)
    gpu.fails_field(SUCCESS, "memory_temperature")
    clock.advance(PROBE_INTERVAL_NS)
    backend.read(backend.devices()[0], ReadScope.FULL)
    assert carried_out(settled_plan(backend, ReadScope.FULL)).temperature_memory_c == 55


def test_an_absurd_value_is_not_as_planned(fake_nvml: FakeNvml) -> None:
    plan = settled_plan(fake_nvml.open(), ReadScope.FAST)
    fake_nvml.scenario.gpus[0].plays(Segment(sm_clock_mhz=0))
    with pytest.raises(AssertionError, match="absurd"):
        carried_out(plan)


def test_a_lost_gpu_has_no_plan_until_it_is_read_again(fake_nvml: FakeNvml) -> None:
    backend = fake_nvml.open()
    device = backend.devices()[0]
    fake_nvml.scenario.gpus[0].fails(GPU_IS_LOST)
    with pytest.raises(Exception, match="lost"):
        backend.read(device, ReadScope.FAST)
    assert plan_of(backend, ReadScope.FAST) is None
    fake_nvml.scenario.gpus[0].fails(SUCCESS)
    backend.read(device, ReadScope.FULL)
    assert carried_out(settled_plan(backend, ReadScope.FAST)).sm_clock_mhz == 1980


SEEDS = range(40)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_plan_gives_what_a_read_gives_whatever_a_device_lacks(
    fake_nvml: FakeNvml, seed: int
) -> None:
    random = Random(seed)
    gpu = fake_nvml.scenario.gpus[0]
    odd_values(gpu, temperature_c=61)
    fake_nvml.scenario.freeze(START_UNIX_NS + 12_345 * NS_PER_MS)
    for call in random.sample(LACKING_CALLS, random.randrange(len(LACKING_CALLS))):
        gpu.fails(NOT_SUPPORTED, call)
    for field in FIELDS:
        gpu.fails_field(random.choice((SUCCESS, NOT_SUPPORTED)), field)
    backend = fake_nvml.open()
    for scope in ReadScope:
        reading = backend.read(backend.devices()[0], scope)
        plan = plan_of(backend, scope)
        assert reading == (DeviceReading() if plan is None else carried_out(plan))


LACKING_CALLS = (
    "nvmlDeviceGetClockInfo",
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetCurrentClocksThrottleReasons",
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetTotalEnergyConsumption",
    "nvmlDeviceGetTemperatureV",
    "nvmlDeviceGetTemperature",
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetEnforcedPowerLimit",
    "nvmlDeviceGetViolationStatus",
)

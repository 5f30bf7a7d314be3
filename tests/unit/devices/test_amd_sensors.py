"""What a look at one AMD GPU makes of its block, and how a plan gives the same."""

import pytest
from msgspec.structs import replace

from chopperd.devices.amd.sensors import AmdSensors, ExtraField, GpuTraits, causes_of
from chopperd.devices.channel import PROBE_INTERVAL_NS, Call
from chopperd.devices.read_plan import NumberKind
from chopperd.errors import DeviceLostError
from chopperd.model.devices import DeviceReading, ReadScope
from chopperd.model.kinds import Cause
from chopperd.plausible import MEMORY_BYTES
from chopperd.units import NS_PER_MS, NS_PER_S
from tests.fakes.clock import ScriptedClock
from tests.unit.devices.amd_block import COUNTING, LostError, MemorySource, VendorError, new_faults

SHOWN: dict[str, int | tuple[int, ...]] = {
    "current_gfxclks": (2100, 2000, 1900, 0xFFFF),
    "current_gfxclk": 2100,
    "current_socket_power": 500,
    "energy_accumulator": 10**9,
    "temperature_hotspot": 60,
    "temperature_mem": 50,
    "average_gfx_activity": 97,
    "current_uclk": 1300,
    "accumulation_counter": 1000,
    "ppt_residency_acc": 100,
}


class Gpu:
    """A GPU in memory whose firmware and whose time advance by `looks` only."""

    def __init__(self, traits: GpuTraits | None = None, **shown: int | tuple[int, ...]) -> None:
        self.clock, self.source = ScriptedClock(), MemorySource(**COUNTING)
        self.source.shows(**(SHOWN | shown))
        self.faults = new_faults(self.clock)
        self.sensors = AmdSensors(self.source, traits or GpuTraits(label="0"), self.faults)
        self.cycles, self.energy = 1000, 10**9

    def looks(
        self, after_ms: int = 0, scope: ReadScope = ReadScope.FULL, **shown: int | tuple[int, ...]
    ) -> DeviceReading:
        self.clock.advance(after_ms * NS_PER_MS)
        self.cycles += after_ms
        self.energy += 500 * 65536 * after_ms // 1000
        self.source.shows(
            firmware_timestamp=self.clock.mono_ns() // 10,
            accumulation_counter=self.cycles,
            energy_accumulator=self.energy,
        )
        self.source.shows(**shown)
        return self.sensors.read(scope)

    def settled(self) -> "Gpu":
        for _ in range(6):
            self.looks(500)
        assert not self.sensors._may_find_more(ReadScope.FAST)
        return self


def test_a_look_has_all_that_the_block_says_in_the_fields_units() -> None:
    gpu = Gpu().settled()
    assert gpu.looks() == DeviceReading(
        sm_clock_mhz=1900,
        die_clocks_mhz=(2100, 2000, 1900),
        mem_clock_mhz=1300,
        power_w=500,
        energy_j=gpu.energy / 65536,
        temperature_c=60,
        temperature_memory_c=50,
        activity_ratio=0.97,
        causes=frozenset(),
        limited_ns={Cause.POWER_CAP: 0},
    )
    fast = gpu.looks(scope=ReadScope.FAST)
    assert fast == replace(gpu.looks(), temperature_memory_c=None)


def test_limits_are_not_known_until_cycles_are_timed() -> None:
    """None is "could not be read": an empty set would say that nothing limits."""
    gpu = Gpu()
    assert gpu.looks().causes is None
    assert gpu.settled().looks().causes == frozenset()


def test_what_is_read_beside_the_block_is_in_full_looks_only() -> None:
    extra = ExtraField(
        name="memory_used_bytes",
        bounds=MEMORY_BYTES,
        calls=(Call(operation="memory", read=lambda: 7.0),),
    )
    gpu = Gpu(GpuTraits(label="0", extra=(extra,)))
    assert gpu.looks().memory_used_bytes == 7
    assert gpu.looks(scope=ReadScope.FAST).memory_used_bytes is None


def test_a_plan_waits_for_the_energy_and_the_cycles_and_stays_the_same() -> None:
    gpu = Gpu()
    gpu.looks()
    assert gpu.sensors.read_plan(ReadScope.FAST) is None
    gpu.settled()
    plan = gpu.sensors.read_plan(ReadScope.FAST)
    assert plan is not None
    gpu.looks(100, ppt_residency_acc=150)
    assert gpu.sensors.read_plan(ReadScope.FAST) is plan
    assert [value.name for value in plan.values] == [
        "die_clocks_mhz.0",
        "die_clocks_mhz.1",
        "die_clocks_mhz.2",
        "power_w",
        "energy_j",
        "mem_clock_mhz",
        "temperature_c",
        "activity_ratio",
    ]
    assert [value.checks for value in plan.values] == [{0: 0x01010101}, *[{}] * 7]
    assert plan.stamp is not None
    assert plan.stamp.still_ns == NS_PER_S


def test_no_planned_value_takes_all_ones_for_a_number() -> None:
    gpu = Gpu().settled()
    plan = gpu.sensors.read_plan(ReadScope.FULL)
    assert plan is not None
    ones = {
        NumberKind.UINT16: 2**16 - 1,
        NumberKind.UINT32: 2**32 - 1,
        NumberKind.UINT64: 2**64 - 1,
    }
    for value in plan.values:
        assert not value.low <= ones[value.kind] * value.scale <= value.high, value.name
    for counter in plan.counters:
        assert not counter.low <= ones[counter.kind] <= counter.high


def test_a_wrapped_counter_makes_another_plan() -> None:
    gpu = Gpu(ppt_residency_acc=2**32 - 10).settled()
    plan = gpu.sensors.read_plan(ReadScope.FAST)
    gpu.looks(100, ppt_residency_acc=20)
    after = gpu.sensors.read_plan(ReadScope.FAST)
    assert plan is not None
    assert after is not None
    assert after is not plan
    assert [each.low for each in plan.counters] == [2**32 - 10]
    assert [each.low for each in after.counters] == [20]


def test_a_metric_that_is_missing_at_first_is_asked_for_each_minute() -> None:
    gpu = Gpu(temperature_mem=0xFFFF).settled()
    assert gpu.looks(temperature_mem=50).temperature_memory_c is None
    gpu.clock.advance(PROBE_INTERVAL_NS)
    assert gpu.sensors.read_plan(ReadScope.FULL) is None
    assert gpu.looks().temperature_memory_c == 50


def test_a_metric_that_was_there_is_asked_for_at_each_look() -> None:
    gpu = Gpu().settled()
    assert gpu.looks(current_socket_power=0xFFFF).power_w is None
    assert gpu.sensors.read_plan(ReadScope.FAST) is None
    assert gpu.looks(current_socket_power=510).power_w == 510
    assert gpu.sensors.read_plan(ReadScope.FAST) is not None


@pytest.mark.parametrize(
    ("shown", "card", "source", "power_w"),
    [
        ({"current_socket_power": 60, "average_socket_power": 55}, False, "instant", 60),
        ({"current_socket_power": 0xFFFF, "average_socket_power": 91}, False, "average", 91),
        ({"current_socket_power": 0xFFFF, "average_socket_power": 430}, True, "card", 430),
        ({"current_socket_power": 0xFFFF}, True, None, None),
    ],
)
def test_the_kind_of_power_is_chosen_by_one_rule(
    shown: dict[str, int], card: bool, source: str | None, power_w: float | None
) -> None:
    gpu = Gpu(GpuTraits(label="0", gives_card_power=card), **shown)
    assert gpu.looks().power_w == power_w
    assert gpu.sensors.power_source == source
    assert gpu.sensors.is_settled


def test_a_power_of_nothing_is_no_power() -> None:
    """As the second die of a MI250X may say it: not 0 W, and not waited for for ever."""
    gpu = Gpu(current_socket_power=0xFFFF, average_socket_power=0)
    assert gpu.looks().power_w is None
    gpu.looks(60_000)
    assert gpu.sensors.power.is_absent
    for _ in range(4):
        gpu.looks(500)
    assert gpu.sensors.read_plan(ReadScope.FULL) is not None


def test_a_block_that_begins_otherwise_is_torn_and_gives_nothing() -> None:
    gpu = Gpu().settled()
    gpu.source.begins(0x02010101)
    assert gpu.looks() == DeviceReading()
    assert gpu.faults.implausible_total == {"header": 1}
    gpu.source.begins(0x01010101)
    assert gpu.looks().sm_clock_mhz == 1900


def test_a_block_that_is_not_given_at_first_is_missing_and_a_lost_gpu_is_an_error() -> None:
    gpu = Gpu()
    gpu.source.error = VendorError("not supported")
    assert gpu.looks() == DeviceReading()
    assert gpu.sensors.power.is_absent
    gpu.source.error = LostError("gone")
    with pytest.raises(DeviceLostError):
        gpu.looks()


def test_a_die_that_begins_to_tell_its_clock_is_found_by_a_full_look() -> None:
    gpu = Gpu(current_gfxclks=(2100, 0xFFFF, 1900, 0xFFFF)).settled()
    assert gpu.sensors.read_plan(ReadScope.FULL) is None
    told = gpu.looks(current_gfxclks=(2100, 1700, 1900, 1800))
    assert list(told.die_clocks_mhz) == [2100, 1700, 1900, 1800]
    assert gpu.sensors.read_plan(ReadScope.FULL) is not None


def test_dies_that_fall_silent_leave_a_chip_with_several() -> None:
    """Its other number is the clock of the first die, which is no clock of the others."""
    gpu = Gpu().settled()
    reading = gpu.looks(current_gfxclks=(0xFFFF, 0xFFFF, 1900, 0xFFFF), current_gfxclk=0xFFFF)
    assert list(reading.die_clocks_mhz) == [None, None, 1900]
    assert reading.sm_clock_mhz == 1900


def test_every_bit_of_a_limit_status_has_a_cause() -> None:
    expected = {
        0: Cause.POWER_CAP,
        16: Cause.POWER_CAP,
        36: Cause.THERMAL,
        44: Cause.HW_THERMAL,
        47: Cause.HW_SLOWDOWN,
        63: Cause.UNKNOWN,
    }
    for bit, cause in expected.items():
        assert causes_of(1 << bit) == {cause}
    assert causes_of(0) == frozenset()

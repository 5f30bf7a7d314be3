"""Reads one AMD GPU, from its block of metrics and from calls for single fields."""

import logging
from dataclasses import dataclass
from typing import Final

from chopperd.devices.amd import planning, table
from chopperd.devices.amd.block import Block, BlockNumber, MetricsSource, bounds_of, calls_of
from chopperd.devices.amd.residency import Residency
from chopperd.devices.amd.table import Sensor
from chopperd.devices.channel import Call, Channel, EnergyCheck, GpuSensors, Verdict
from chopperd.devices.faults import DeviceFaults
from chopperd.devices.read_plan import ReadPlan
from chopperd.model.devices import MOST_DIES, DeviceReading, ReadScope, lowest_running_mhz
from chopperd.model.kinds import CAUSES, Cause
from chopperd.plausible import DIE_CLOCK_MHZ, Bounds

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtraField:
    """A field that is read by separate calls, not from the block; best call first."""

    name: str
    bounds: Bounds
    calls: tuple[Call, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTraits:
    """What is known of a GPU before its first read."""

    label: str  # the GPU's label
    gives_card_power: bool = False  # whether its power is that of a card with another GPU on it
    #: Calls for fields that the block may lack, used after the block's own.
    fallbacks: tuple[ExtraField, ...] = ()
    extra: tuple[ExtraField, ...] = ()  # fields that are never in the block, for full reads
    #: Temperature at which the chip slows down; None if not known.
    hotspot_limit_c: float | None = None


class AmdSensors(GpuSensors):
    """Reads the sensors of one GPU.

    One call fetches the block, from which fast reads take all that changes quickly: it costs no
    more than the clock alone.
    """

    def __init__(self, source: MetricsSource, traits: GpuTraits, faults: DeviceFaults) -> None:
        super().__init__(faults, EnergyCheck(traits.label))
        self._traits = traits
        self.block = Block(source, faults)
        self._fallbacks = {each.name: each.calls for each in traits.fallbacks}
        self.one_clock = self._channel(table.ONE_CLOCK)
        self.power = self._channel(table.POWER)
        self.energy = self._channel(table.ENERGY)
        self.slow = tuple(self._channel(sensor) for sensor in table.SLOW)
        self.full_only = tuple(self._channel(sensor) for sensor in table.FULL_ONLY)
        self.extra = tuple(
            Channel(faults, each.name, each.bounds, *each.calls) for each in traits.extra
        )
        self._channels = (
            *(self.one_clock, self.power, self.energy),
            *(*self.slow, *self.full_only, *self.extra),
        )
        self._all_dies = self._die_numbers()
        self._reporting_dies = self._dies_with_clock()
        self._die_count = self._reporting_dies[-1] + 1 if self._reporting_dies else 0
        self._status = self.block.first(table.THROTTLE_STATUS)
        self.residency: Residency | None = None
        self._false_bits = FalseBits(traits.label, traits.hotspot_limit_c)
        self._causes: tuple[int | None, frozenset[Cause] | None] = (None, None)

    @property
    def power_source(self) -> str | None:
        """Name of the power that is read (`GpuInfo.power_source`); None until one has answered."""
        source = self.power.source
        if self._traits.gives_card_power and source == table.POWER_AVERAGE:
            return table.POWER_CARD
        return source

    @property
    def is_settled(self) -> bool:
        """Whether the source of the power is known, or the power is known to be absent."""
        return self.power.source is not None or self.power.is_absent

    def _reading(self, scope: ReadScope) -> DeviceReading:
        if scope is ReadScope.FULL:
            now_ns = self._faults.clock.mono_ns()
            for channel in self._channels:
                channel.reopen(now_ns)
        self.block.refresh()
        return self._decoded(scope)

    def _planned(self, scope: ReadScope) -> ReadPlan | None:
        return planning.read_plan(self, scope)

    def die_clocks_mhz(self) -> tuple[float | None, ...]:
        """Return the clock of each die in the block that `read` fetched; empty on a chip with one.

        Stores which dies report a clock. A clock is None if it is not reported or implausible.
        """
        if self.block.failure is not None:
            return ()
        reporting = self._dies_with_clock()
        if reporting != self._reporting_dies:
            self._reporting_dies = reporting
            self._die_count = max(self._die_count, reporting[-1] + 1 if reporting else 0)
            self._faults.revision += 1
        clocks_mhz = tuple(number.raw() for number in self.dies)
        plausible = tuple(
            mhz if mhz is None or mhz in DIE_CLOCK_MHZ else None for mhz in clocks_mhz
        )
        if plausible != clocks_mhz:
            self._faults.implausible_total[table.DIE_CLOCKS] += 1
        return plausible

    def _decoded(self, scope: ReadScope) -> DeviceReading:
        dies_mhz = self.die_clocks_mhz()
        clock_mhz = lowest_running_mhz(dies_mhz) if self.dies else self.one_clock.value()
        power_w = self.power.value()
        is_wrong = self._energy_check.verdict is Verdict.WRONG
        energy_j = None if is_wrong else self.energy.value()
        values = {channel.field: channel.value() for channel in self.slow}
        if scope is ReadScope.FULL:
            more = (*self.full_only, *self.extra)
            values.update((channel.field, channel.value()) for channel in more)
        numbers = {
            name: int(value) if name.endswith("_bytes") and value is not None else value
            for name, value in values.items()
        }
        self._check_bits(values.get("temperature_c"), values.get("activity_ratio"))
        return DeviceReading(
            sm_clock_mhz=clock_mhz,
            die_clocks_mhz=dies_mhz,
            power_w=power_w,
            energy_j=self._checked_j(energy_j, power_w),
            causes=self._causes_now(),
            limited_ns=self._limited_ns(),
            **numbers,  # type: ignore[arg-type]
        )

    def _limited_ns(self) -> dict[Cause, int]:
        if self.residency is None:
            if self.block.failure is not None:
                return {}
            self.residency = Residency(self.block, self._faults.clock)
            self._faults.revision += 1
        residency = self.residency
        before = residency.is_settled, residency.origin
        implausible_before = residency.implausible_count
        limited_ns = residency.limited_ns()
        if (residency.is_settled, residency.origin) != before:
            self._faults.revision += 1
        if residency.implausible_count != implausible_before:
            self._faults.implausible_total["limited_ns"] += 1
        return limited_ns

    def _causes_now(self) -> frozenset[Cause] | None:
        """Return the limits in force; empty where counters report them, None where nothing does."""
        if self.block.failure is not None:
            return None
        if self.has_counters:
            return frozenset() if self.residency and self.residency.is_settled else None
        bits = None if self._status is None else self._status.raw()
        if bits != self._causes[0]:
            self._causes = bits, None if bits is None else causes_of(bits & ~self._false_bits.bits)
        return self._causes[1]

    def _check_bits(self, temperature_c: float | None, activity_ratio: float | None) -> None:
        """Find bits of limits that can't be in force, and ignore them from now on."""
        bits = None if self._status is None or self.has_counters else self._status.raw()
        if bits and self._false_bits.take(bits, temperature_c, activity_ratio):
            self._causes = (None, None)
            self._faults.revision += 1

    @property
    def causes_by_bit(self) -> tuple[int, ...]:
        """Bit set of `Cause` of each bit of `status`; 0 for a bit that is false on this GPU."""
        false = self._false_bits.bits
        return tuple(
            0 if false >> index & 1 else causes for index, causes in enumerate(table.CAUSES_BY_BIT)
        )

    @property
    def has_counters(self) -> bool:
        """Whether the firmware counts the time under limits, as far as is known."""
        return self.residency is not None and self.residency.has_counters

    @property
    def dies(self) -> tuple[BlockNumber, ...]:
        """Readers of the dies' clocks, up to the last die that reported one; empty with one die."""
        return self._all_dies[: self._die_count] if self._die_count > 1 else ()

    @property
    def status(self) -> BlockNumber | None:
        """Reader of the limits in force as bits; None where they are not reported now."""
        return None if self._status is None or self._status.raw() is None else self._status

    def _die_numbers(self) -> tuple[BlockNumber, ...]:
        slot = self.block.slot(table.DIE_CLOCKS)
        count = min(len(slot.offsets), MOST_DIES) if slot else 0
        return tuple(self.block.number(slot, each) for each in range(count)) if slot else ()

    def _dies_with_clock(self) -> tuple[int, ...]:
        return tuple(
            index for index, number in enumerate(self._all_dies) if number.raw() is not None
        )

    def _channel(self, sensor: Sensor) -> Channel:
        calls = calls_of(self.block, sensor.methods)
        bounds = bounds_of(calls, sensor.bounds) if calls else sensor.bounds
        fallbacks = self._fallbacks.get(sensor.name, ())
        return Channel(self._faults, sensor.name, bounds, *calls, *fallbacks)

    def _may_find_more(self, scope: ReadScope) -> bool:
        checks = self._checks_energy(self.energy) or self._false_bits.is_in_doubt
        if checks or self.residency is None or not self.residency.is_settled:
            return True
        return scope is ReadScope.FULL and self._needs_full_read()

    def _needs_full_read(self) -> bool:
        """Whether a full read may find a field or a die's clock that is absent so far."""
        if len(self._reporting_dies) < len(self.dies):
            return True
        now_ns = self._faults.clock.mono_ns()
        due = (channel.absent_until_ns for channel in self._channels)
        return any(ns is not None and ns <= now_ns for ns in due)


#: No temperature limit is in force further than this below its threshold, nor on an idle GPU at
#: `_COOL_C` or less.
_BELOW_LIMIT_C: Final = 25.0
_COOL_C: Final = 50.0
#: Reads in a row that must find the same false bits.
_FALSE_READS: Final = 3


class FalseBits:
    """Finds bits of temperature limits that are set where no such limit can be in force.

    On Navi 31 and 48 the hotspot's bit is always set, also when idle at 37 C.
    """

    def __init__(self, label: str, limit_c: float | None) -> None:
        self.bits = 0  # found to be false: ignored on this GPU from now on
        self.is_in_doubt = False  # whether bits are suspect, which the next reads confirm or clear
        self._label = label
        self._limit_c = limit_c
        self._suspects = 0
        self._reads = 0

    def take(self, bits: int, temperature_c: float | None, activity_ratio: float | None) -> bool:
        """Check the bits set now; return True if this adds some of them to `bits`."""
        if temperature_c is None:
            return False
        suspects = bits & ~self.bits & self._impossible(temperature_c, activity_ratio)
        self._reads = self._reads + 1 if suspects and suspects == self._suspects else 1
        self._suspects = suspects
        self.is_in_doubt = bool(suspects) and self._reads < _FALSE_READS
        if not suspects or self.is_in_doubt:
            return False
        self.bits |= suspects
        logger.warning(
            "GPU %s reports a temperature limit at %.0f C that can't be in force (bits %#x of its "
            "throttle status): left out",
            self._label,
            temperature_c,
            suspects,
        )
        return True

    def _impossible(self, temperature_c: float, activity_ratio: float | None) -> int:
        """Return the temperature bits that can't be true at this temperature and activity."""
        if activity_ratio == 0 and temperature_c <= _COOL_C:
            return table.TEMPERATURE_BITS
        if self._limit_c is not None and temperature_c <= self._limit_c - _BELOW_LIMIT_C:
            return table.OWN_TEMPERATURE_BITS
        return 0


def causes_of(bits: int) -> frozenset[Cause]:
    """Return the causes of the bits that are set in a throttle status."""
    in_force = 0
    for index, causes in enumerate(table.CAUSES_BY_BIT):
        in_force |= causes if bits >> index & 1 else 0
    return frozenset(cause for cause in CAUSES if in_force & cause.bit)

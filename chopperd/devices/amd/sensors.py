"""One AMD GPU's readings: what a look gives, from a block of metrics and from beside it."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from chopperd.devices.amd import planning, table
from chopperd.devices.amd.block import (
    Block,
    BlockCall,
    BlockNumber,
    MetricsSource,
    bounds_of,
    calls_of,
)
from chopperd.devices.amd.residency import Residency
from chopperd.devices.amd.table import Sensor
from chopperd.devices.channel import Call, Channel, DeviceFaults
from chopperd.devices.energy_check import EnergyCheck, Verdict
from chopperd.devices.read_plan import ReadPlan
from chopperd.model.devices import DEEP_SLEEP_MHZ, MOST_DIES, DeviceReading, ReadScope
from chopperd.model.kinds import CAUSES, Cause
from chopperd.model.plausible import DIE_CLOCK_MHZ, Bounds

# The clocks of a GPU's compute dies at one instant.


def lowest_running_mhz(clocks_mhz: Sequence[float | None]) -> float | None:
    """The lowest clock of the dies that run; of those that sleep where none runs.

    None where no die has a clock: all are switched off, or none is told.
    """
    present = [clock for clock in clocks_mhz if clock]
    running = [clock for clock in present if clock > DEEP_SLEEP_MHZ]
    return min(running or present, default=None)


logger = logging.getLogger(__name__)

_NOTHING: Final = DeviceReading()


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """A field that does not come from the block, read by full looks.

    Attributes:
        name: The field.
        bounds: Outside of which a value is absurd.
        calls: The ways to it, best first.
    """

    name: str
    bounds: Bounds
    calls: tuple[Call, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTraits:
    """What is known of a GPU before its first look.

    Attributes:
        label: What it is called.
        gives_card_power: Whether its power is that of a card with another GPU on it.
        stand_ins: Ways to fields of the block that it may lack, after the block's own.
        beside: Fields that the block never has.
        hotspot_limit_c: Where the chip slows down; None if not known.
    """

    label: str
    gives_card_power: bool = False
    stand_ins: tuple[Beside, ...] = ()
    beside: tuple[Beside, ...] = ()
    hotspot_limit_c: float | None = None


class AmdSensors:
    """Reads one GPU; used by one thread at a time.

    One call brings the block, from which fast looks take all that changes quickly: it costs no more
    than the clock alone. What a device lacks is asked for again each minute, by full looks only.

    Args:
        source: Brings the block.
        traits: What is known of the GPU.
        faults: Takes what goes wrong, and keeps which way each field is read by.
    """

    def __init__(self, source: MetricsSource, traits: GpuTraits, faults: DeviceFaults) -> None:
        self._faults = faults
        self._traits = traits
        self.block = Block(source, faults)
        self._stand_ins = {each.name: each for each in traits.stand_ins}
        self.one_clock = self._channel(planning.ONE_CLOCK)
        self.power = self._channel(table.POWER)
        self.energy = self._channel(table.ENERGY)
        self.slow = tuple(self._channel(sensor) for sensor in table.SLOW)
        self.full_only = tuple(self._channel(sensor) for sensor in table.FULL_ONLY)
        self.beside = tuple(
            Channel(faults, each.name, each.bounds, *each.calls) for each in traits.beside
        )
        self._die_places = self._die_numbers()
        self._told = self._told_dies()
        self._die_count = self._told[-1] + 1 if self._told else 0
        self._status = self._status_number()
        self.residency: Residency | None = None
        self._energy_check = EnergyCheck(traits.label)
        self._false_bits = FalseBits(traits.label, traits.hotspot_limit_c)
        self._causes: tuple[int | None, frozenset[Cause] | None] = (None, None)
        self._plans: dict[ReadScope, ReadPlan | None] = dict.fromkeys(ReadScope)
        self._planned_revision = -1

    @property
    def power_source(self) -> str | None:
        """Which power is read; None until one has answered."""
        source = self.power.source
        if self._traits.gives_card_power and source == table.POWER_AVERAGE:
            return table.POWER_CARD
        return source

    @property
    def is_settled(self) -> bool:
        """Whether it is known where the power comes from, if from anywhere."""
        return self.power.source is not None or self.power.is_absent

    @property
    def believes_energy(self) -> bool:
        """Whether the counter of energy has passed its check."""
        return self._energy_check.verdict is Verdict.RIGHT

    @property
    def awaits_checks(self) -> bool:
        """Whether something is still being found out that takes several looks."""
        checks_energy = self._energy_check.verdict is Verdict.OPEN and not (
            self.energy.is_absent or self.power.is_absent
        )
        checks = checks_energy or self._false_bits.is_in_doubt
        return checks or self.residency is None or not self.residency.is_settled

    def read(self, scope: ReadScope) -> DeviceReading:
        """One look; fields that are absent or failed are None.

        Raises:
            TransientDeviceError: Calls failed, and not one field was read.
            DeviceLostError: The GPU is gone.
        """
        self._faults.begin_look()
        if scope is ReadScope.FULL:
            self._reopen()
        self.block.look()
        reading = self._reading(scope)
        failure = self._faults.transient
        if failure is not None and reading == _NOTHING:
            raise failure
        return reading

    def read_plan(self, scope: ReadScope) -> ReadPlan | None:
        """How to read the same without this object; None while something is still to be found.

        The same object as before while nothing changed.
        """
        if self.awaits_checks or (scope is ReadScope.FULL and self._must_look()):
            return None
        if self._planned_revision != self._faults.choices.revision:
            self._planned_revision = self._faults.choices.revision
            for each in ReadScope:
                plan, known = planning.read_plan(self, each), self._plans[each]
                self._plans[each] = known if plan == known else plan
        return self._plans[scope]

    def die_clocks_mhz(self) -> tuple[float | None, ...]:
        """The clock of each die after a look; none of a chip with one."""
        if self.block.failure is not None:
            return ()
        told = self._told_dies()
        if told != self._told:
            self._told = told
            self._die_count = max(self._die_count, told[-1] + 1 if told else 0)
            self._faults.choices.revision += 1
        clocks_mhz = tuple(number.raw() for number in self.dies)
        believed = tuple(mhz if mhz is None or mhz in DIE_CLOCK_MHZ else None for mhz in clocks_mhz)
        if believed != clocks_mhz:
            self._faults.implausible_total[table.DIE_CLOCKS] += 1
        return believed

    def _reading(self, scope: ReadScope) -> DeviceReading:
        dies_mhz = self.die_clocks_mhz()
        clock_mhz = lowest_running_mhz(dies_mhz) if self.dies else self.one_clock.value()
        power_w = self.power.value()
        values = {channel.field: channel.value() for channel in self.slow}
        if scope is ReadScope.FULL:
            more = (*self.full_only, *self.beside)
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
            energy_j=self._checked_j(power_w),
            causes=self._causes_now(),
            limited_ns=self._limited_ns(),
            **numbers,  # type: ignore[arg-type]
        )

    def _checked_j(self, power_w: float | None) -> float | None:
        """The counter of energy, once it agrees with the power."""
        if self._energy_check.verdict is Verdict.WRONG:
            return None
        energy_j = self.energy.value()
        before = self._energy_check.verdict
        verdict = self._energy_check.take(self._faults.clock.mono_ns(), energy_j, power_w)
        if verdict is not before:
            self._faults.choices.revision += 1
        return energy_j if verdict is Verdict.RIGHT else None

    def _limited_ns(self) -> dict[Cause, int]:
        if self.residency is None:
            if self.block.failure is not None:
                return {}
            self.residency = Residency(self.block, self._faults.clock)
            self._faults.choices.revision += 1
        residency = self.residency
        before = residency.is_settled, residency.origin, residency.implausible_count
        limited_ns = residency.limited_ns()
        if (residency.is_settled, residency.origin) != before[:2]:
            self._faults.choices.revision += 1
        if residency.implausible_count != before[2]:
            self._faults.implausible_total["limited_ns"] += 1
        return limited_ns

    def _causes_now(self) -> frozenset[Cause] | None:
        """The limits in force: none where counters tell them, None where nothing does."""
        if self.block.failure is not None:
            return None
        if self.has_counters:
            return frozenset() if self.residency and self.residency.is_settled else None
        bits = None if self._status is None else self._status.raw()
        if bits != self._causes[0]:
            self._causes = bits, None if bits is None else causes_of(bits & ~self._false_bits.bits)
        return self._causes[1]

    def _check_bits(self, temperature_c: float | None, activity_ratio: float | None) -> None:
        """Leave out the bits of limits that can't be in force now."""
        bits = None if self._status is None or self.has_counters else self._status.raw()
        if bits and self._false_bits.take(bits, temperature_c, activity_ratio):
            self._causes = (None, None)
            self._faults.choices.revision += 1

    @property
    def causes_by_bit(self) -> tuple[int, ...]:
        """What each bit of `status` stands for; nothing where it means nothing on this GPU."""
        false = self._false_bits.bits
        return tuple(
            0 if false >> position & 1 else causes
            for position, causes in enumerate(table.CAUSES_BY_BIT)
        )

    @property
    def has_counters(self) -> bool:
        """Whether the firmware counts the time under limits."""
        return self.residency is not None and self.residency.has_counters

    @property
    def dies(self) -> tuple[BlockNumber, ...]:
        """Where the clocks of several dies stand, up to the last that ever told one.

        None of a chip with one.
        """
        return self._die_places[: self._die_count] if self._die_count > 1 else ()

    @property
    def status(self) -> BlockNumber | None:
        """Where the limits in force stand as bits, where that is told."""
        return None if self._status is None or self._status.raw() is None else self._status

    def _die_numbers(self) -> tuple[BlockNumber, ...]:
        place = self.block.place(table.DIE_CLOCKS)
        count = min(len(place.offsets), MOST_DIES) if place else 0
        return tuple(self.block.number(place, each) for each in range(count)) if place else ()

    def _told_dies(self) -> tuple[int, ...]:
        """Which dies have a clock now."""
        places = enumerate(self._die_places)
        return tuple(position for position, number in places if number.raw() is not None)

    def _status_number(self) -> BlockNumber | None:
        place = self.block.place(table.THROTTLE_STATUS)
        return None if place is None else self.block.number(place, 0)

    def _channel(self, sensor: Sensor) -> Channel:
        calls: Sequence[BlockCall] = calls_of(self.block, sensor.ways)
        bounds = bounds_of(calls, sensor.bounds) if calls else sensor.bounds
        more = self._stand_ins.get(sensor.name)
        return Channel(self._faults, sensor.name, bounds, *calls, *(more.calls if more else ()))

    def _channels(self) -> tuple[Channel, ...]:
        own = (self.one_clock, self.power, self.energy, *self.slow, *self.full_only)
        return (*own, *self.beside)

    def _must_look(self) -> bool:
        """Whether a full look may find what no plan looks for: a sensor, or a gated die's clock."""
        return len(self._told) < len(self.dies) or self._is_probe_due()

    def _is_probe_due(self) -> bool:
        now_ns = self._faults.clock.mono_ns()
        due = (channel.absent_until_ns for channel in self._channels())
        return any(ns is not None and ns <= now_ns for ns in due)

    def _reopen(self) -> None:
        now_ns = self._faults.clock.mono_ns()
        for channel in self._channels():
            channel.reopen(now_ns)


class FalseBits:
    """Finds bits of temperature limits that are set where no such limit can be in force.

    On Navi 31 and 48 the hotspot's bit is set at all times, 37 C at idle included.

    Attributes:
        bits: Those that mean nothing on this GPU, from then on.
        is_in_doubt: Whether the next looks decide over one.

    Args:
        label: What the GPU is called.
        limit_c: Where the chip slows down; None if not known.
    """

    def __init__(self, label: str, limit_c: float | None) -> None:
        self.bits = 0
        self.is_in_doubt = False
        self._label = label
        self._limit_c = limit_c
        self._suspects = 0
        self._looks = 0

    def take(self, bits: int, temperature_c: float | None, activity_ratio: float | None) -> bool:
        """Whether bits, those that are set now, turn out to mean nothing."""
        if temperature_c is None:
            return False
        suspects = bits & ~self.bits & self._impossible(temperature_c, activity_ratio)
        self._looks = self._looks + 1 if suspects and suspects == self._suspects else 1
        self._suspects = suspects
        self.is_in_doubt = bool(suspects) and self._looks < _FALSE_LOOKS
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
        """The bits that can't be true at this temperature."""
        if activity_ratio == 0 and temperature_c <= _COOL_C:
            return table.TEMPERATURE_BITS
        if self._limit_c is not None and temperature_c <= self._limit_c - _BELOW_LIMIT_C:
            return table.OWN_TEMPERATURE_BITS
        return 0


#: A limit is not in force so far below it, nor on an idle GPU up to this temperature.
_BELOW_LIMIT_C: Final = 25.0
_COOL_C: Final = 50.0
#: Looks in a row that must agree on it.
_FALSE_LOOKS: Final = 3


def causes_of(bits: int) -> frozenset[Cause]:
    """What the bits of a limit's status stand for."""
    standing = 0
    for position, causes in enumerate(table.CAUSES_BY_BIT):
        standing |= causes if bits >> position & 1 else 0
    return frozenset(cause for cause in CAUSES if standing & cause.bit)

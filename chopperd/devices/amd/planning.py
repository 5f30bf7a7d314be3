"""Makes a read plan of what has settled in a GPU's block of metrics and beside it."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from struct import Struct
from typing import TYPE_CHECKING, Final

from chopperd.devices.amd import table
from chopperd.devices.amd.block import (
    ABSENT,
    HEADER_OFFSET,
    STILL_NS,
    BlockCall,
    BlockNumber,
    MetricPlace,
    MetricsSource,
)
from chopperd.devices.amd.table import Sensor
from chopperd.devices.base import SensorRead
from chopperd.devices.channel import Call, Channel
from chopperd.devices.read_plan import (
    CallShape,
    NumberKind,
    PlannedCall,
    PlannedCauses,
    PlannedCounter,
    PlannedStamp,
    PlannedValue,
    ReadPlan,
)
from chopperd.model import plausible
from chopperd.model.devices import ReadScope

if TYPE_CHECKING:
    from chopperd.devices.amd.sensors import AmdSensors


#: The clock of a chip with one die.
ONE_CLOCK: Final = Sensor(name="sm_clock_mhz", bounds=plausible.CLOCK_MHZ, ways=(table.ONE_CLOCK,))
_BYTES: Final = {NumberKind.UINT16: 2, NumberKind.UINT32: 4, NumberKind.UINT64: 8}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannableCall(Call):
    """A way to a field by a call of its own that can be made without Python.

    Attributes:
        plan: Gives the call, once it was made.
        offset, kind, scale: Where its number stands, as in `PlannedValue`.
    """

    plan: Callable[[], PlannedCall]
    offset: int
    kind: NumberKind
    scale: float = 1.0


class _NotSettledError(Exception):
    """Something is still to be found, or is read by Python alone."""


def read_plan(sensors: "AmdSensors", scope: ReadScope) -> ReadPlan | None:
    """How to make a look without `sensors`.

    None while a field neither answers nor is known to be absent, where one is read by Python alone,
    and where there is nothing to read.
    """
    block = sensors.block.source.planned_call()
    if block is None:
        return None
    calls = [block]
    try:
        values = _checked(_block_values(sensors), sensors.block.header)
        if scope is ReadScope.FULL:
            values += _values(sensors.full_only, calls)
            values += _values(sensors.beside, calls)
    except _NotSettledError:
        return None
    if not values:
        return None
    plan = ReadPlan(
        calls=tuple(calls),
        values=tuple(values),
        causes=_causes(sensors),
        counters=tuple(_counters(sensors)),
        stamp=_stamp(sensors),
    )
    return _no_longer_than_needed(plan) if block.shape is CallShape.FILE else plan


def _no_longer_than_needed(plan: ReadPlan) -> ReadPlan:
    """The plan with its block read from a file as far as it is of use: less than half, mostly."""
    places = [(each.call, each.offset, each.kind) for each in plan.values]
    places += [(each.call, each.offset, each.kind) for each in plan.counters]
    if plan.causes is not None:
        places.append((plan.causes.call, plan.causes.offset, plan.causes.kind))
    if plan.stamp is not None:
        places.append((plan.stamp.call, plan.stamp.offset, plan.stamp.kind))
    end = max(offset + _BYTES[kind] for call, offset, kind in places if call == 0)
    block = replace(plan.calls[0], argument=end)
    return replace(plan, calls=(block, *plan.calls[1:]))


def _checked(values: Iterator[PlannedValue], header: int | None) -> list[PlannedValue]:
    """Values of a block that must begin as it did: else it is torn, or of another version."""
    if header is None:
        raise _NotSettledError
    found = list(values)
    return [replace(value, checks={HEADER_OFFSET: header}) for value in found[:1]] + found[1:]


def _block_values(sensors: "AmdSensors") -> Iterator[PlannedValue]:
    calls: list[PlannedCall] = []
    if sensors.dies:
        yield from _dies(sensors.dies)
    else:
        yield from _values((sensors.one_clock,), calls)
    yield from _values((sensors.power,), calls)
    if sensors.believes_energy:
        yield from _values((sensors.energy,), calls)
    yield from _values(sensors.slow, calls)
    if calls:  # a stand-in, which is read by a call of its own
        raise _NotSettledError


def _dies(numbers: tuple[BlockNumber, ...]) -> Iterator[PlannedValue]:
    for die, number in enumerate(numbers):
        if number.raw() is not None:
            yield PlannedValue(
                call=0,
                offset=number.offset,
                kind=number.kind,
                name=f"die_clocks_mhz.{die}",
                low=0,
                high=plausible.DIE_CLOCK_MHZ.high,
            )


def _values(channels: tuple[Channel, ...], calls: list[PlannedCall]) -> Iterator[PlannedValue]:
    """The numbers of those channels that answer; their calls, where they have own ones, added."""
    for channel in channels:
        if channel.is_absent:
            continue
        call = channel.settled_call
        if isinstance(call, BlockCall):
            yield _value(channel, 0, call.number.offset, call.number.kind, 1 / call.way.per_unit)
        elif isinstance(call, PlannableCall):
            planned = call.plan()
            if planned not in calls:
                calls.append(planned)
            position = calls.index(planned)
            yield _value(channel, position, call.offset, call.kind, call.scale)
        else:
            raise _NotSettledError


def _value(
    channel: Channel, call: int, offset: int, kind: NumberKind, scale: float
) -> PlannedValue:
    return PlannedValue(
        call=call,
        offset=offset,
        kind=kind,
        name=channel.field,
        scale=scale,
        low=channel.bounds.low,
        high=channel.bounds.high,
    )


def _counters(sensors: "AmdSensors") -> Iterator[PlannedCounter]:
    if sensors.residency is None:
        return
    for each in sensors.residency.places():
        yield PlannedCounter(
            call=0,
            offset=each.number.offset,
            kind=each.number.kind,
            cause=each.cause,
            low=each.low,
            high=each.high,
            scale=each.scale,
            addend=each.addend,
        )


def _causes(sensors: "AmdSensors") -> PlannedCauses | None:
    """The limits in force; where counters tell them, a number whose bits mean nothing."""
    if sensors.has_counters:
        cycles = sensors.block.place(table.CYCLES)
        if cycles is not None:
            return PlannedCauses(
                call=0, offset=cycles.offsets[0], kind=cycles.kind, causes=table.NO_CAUSES
            )
    status = sensors.status
    if status is None:
        return None
    return PlannedCauses(
        call=0, offset=status.offset, kind=status.kind, causes=sensors.causes_by_bit
    )


def _stamp(sensors: "AmdSensors") -> PlannedStamp | None:
    place = sensors.block.stamp_place
    if place is None:
        return None
    return PlannedStamp(call=0, offset=place.offsets[0], kind=place.kind, still_ns=STILL_NS)


# Single sensors read back to back, with a block of their own.

_FORMATS: Final = {
    NumberKind.UINT16: Struct("<H"),
    NumberKind.UINT32: Struct("<I"),
    NumberKind.UINT64: Struct("<Q"),
}


def sensor_reads(
    source: MetricsSource, power_source: str | None, vendor_error: type[Exception]
) -> Mapping[str, SensorRead]:
    """How to read a GPU's clock (of its first die), power, energy and activity.

    Args:
        source: Its block, for nobody else.
        power_source: Which power samples hold.
        vendor_error: What bringing the block raises.
    """
    power = next(
        (way for way in table.POWER.ways if way.source == power_source), table.POWER.ways[1]
    )
    ways = {
        "sm_clock_mhz": table.ONE_CLOCK,
        "power_w": power,
        "energy_j": table.ENERGY.ways[0],
        "activity_ratio": table.ACTIVITY.ways[0],
    }
    places = source.layout.places
    return {
        name: _read(source, places[way.metric], way.per_unit, vendor_error)
        for name, way in ways.items()
        if way.metric in places
    }


def _read(
    source: MetricsSource, place: MetricPlace, per_unit: int, vendor_error: type[Exception]
) -> SensorRead:
    unpack, offset, absent = _FORMATS[place.kind].unpack_from, place.offsets[0], ABSENT[place.kind]

    def read() -> float | None:
        try:
            source.fetch()
        except vendor_error:
            return None
        number: int = unpack(source.buffer, offset)[0]
        return None if number == absent else number / per_unit

    return read

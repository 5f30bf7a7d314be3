"""Makes a read plan from what has settled in a GPU's block of metrics and in its other calls."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from chopperd.devices.amd import table
from chopperd.devices.amd.block import HEADER_OFFSET, STILL_NS, BlockCall
from chopperd.devices.channel import Call, Channel
from chopperd.devices.read_plan import (
    FORMAT_BY_KIND,
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

#: Index of the call that fetches the block.
_BLOCK: Final = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannableCall(Call):
    """A way to read a field by a call of its own, which native code can make as well.

    Attributes:
        plan: Gives the call, once it was made; None if it can't be planned.
        offset, kind, scale: Where its number is, as in `PlannedValue`.
        unit: The driver's unit.
    """

    plan: Callable[[], PlannedCall | None]
    offset: int
    kind: NumberKind
    scale: float = 1.0
    unit: str = ""


class _NotSettledError(Exception):
    """A field is still to be found, or can't be read by a plan."""


def read_plan(sensors: "AmdSensors", scope: ReadScope) -> ReadPlan | None:
    """The plan of a read.

    None while a field neither answers nor is known to be absent, where one can't be read by a plan,
    and where there is nothing to read.
    """
    block = sensors.block.source.planned_call()
    if block is None or sensors.block.header is None:
        return None
    calls = [block]
    try:
        values = list(_block_values(sensors))
        # A block with another header is torn or of another version.
        values[:1] = [
            replace(each, checks={HEADER_OFFSET: sensors.block.header}) for each in values[:1]
        ]
        if scope is ReadScope.FULL:
            values += _values((*sensors.full_only, *sensors.extra), calls)
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
    return _shortest(plan) if block.shape is CallShape.FILE else plan


def _shortest(plan: ReadPlan) -> ReadPlan:
    """The plan with its block file read only as far as needed: mostly less than half."""
    others = [each for each in (plan.causes, plan.stamp) if each is not None]
    end = max(
        each.offset + FORMAT_BY_KIND[each.kind].size
        for each in (*plan.values, *plan.counters, *others)
        if each.call == _BLOCK
    )
    block = replace(plan.calls[_BLOCK], argument=end)
    return replace(plan, calls=(block, *plan.calls[1:]))


def _block_values(sensors: "AmdSensors") -> Iterator[PlannedValue]:
    calls: list[PlannedCall] = []
    channels = [sensors.power, *sensors.slow]
    if sensors.believes_energy:
        channels.insert(1, sensors.energy)
    if sensors.dies:
        yield from _dies(sensors)
    else:
        channels.insert(0, sensors.one_clock)
    yield from _values(channels, calls)
    if calls:  # a fallback, with a call of its own
        raise _NotSettledError


def _dies(sensors: "AmdSensors") -> Iterator[PlannedValue]:
    for die, number in enumerate(sensors.dies):
        if number.raw() is not None:
            yield PlannedValue(
                call=_BLOCK,
                offset=number.offset,
                kind=number.kind,
                name=f"die_clocks_mhz.{die}",
                low=0,
                high=plausible.DIE_CLOCK_MHZ.high,
            )


def _values(channels: Sequence[Channel], calls: list[PlannedCall]) -> Iterator[PlannedValue]:
    """The numbers of the channels that answer; calls of their own are appended to `calls`."""
    for channel in channels:
        if channel.is_absent:
            continue
        call = channel.settled_call
        if isinstance(call, BlockCall):
            number, scale = call.number, 1 / call.method.per_unit
            yield _value(channel, _BLOCK, number.offset, number.kind, scale)
        elif isinstance(call, PlannableCall) and (planned := call.plan()) is not None:
            if planned not in calls:
                calls.append(planned)
            yield _value(channel, calls.index(planned), call.offset, call.kind, call.scale)
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
    for each in sensors.residency.slots() if sensors.residency else ():
        yield PlannedCounter(
            call=_BLOCK,
            offset=each.number.offset,
            kind=each.number.kind,
            cause=each.cause,
            low=each.low,
            high=each.high,
            scale=each.scale,
            addend=each.addend,
        )


def _causes(sensors: "AmdSensors") -> PlannedCauses | None:
    """The limits in force; where counters report them, a number whose bits mean nothing."""
    status, causes = sensors.status, sensors.causes_by_bit
    if sensors.has_counters and (cycles := sensors.block.first(table.CYCLES)) is not None:
        status, causes = cycles, table.NO_CAUSES
    if status is None:
        return None
    return PlannedCauses(call=_BLOCK, offset=status.offset, kind=status.kind, causes=causes)


def _stamp(sensors: "AmdSensors") -> PlannedStamp | None:
    slot = sensors.block.stamp_slot
    if slot is None:
        return None
    return PlannedStamp(call=_BLOCK, offset=slot.offsets[0], kind=slot.kind, still_ns=STILL_NS)

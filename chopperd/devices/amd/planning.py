"""Makes a GPU's read plan, once it is known which number or call gives each field."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from chopperd import plausible
from chopperd.devices.amd import table
from chopperd.devices.amd.block import HEADER_OFFSET, STILL_NS, BlockCall, BlockNumber
from chopperd.devices.channel import Call, Channel
from chopperd.devices.read_plan import (
    FORMAT_BY_KIND,
    CallShape,
    NumberKind,
    PlanBuilder,
    PlannedCall,
    ReadPlan,
    Slot,
)
from chopperd.model.devices import ReadScope
from chopperd.plausible import Bounds

if TYPE_CHECKING:
    from chopperd.devices.amd.sensors import AmdSensors

#: Index of the call that fetches the block.
_BLOCK: Final = 0
_DIE_BOUNDS: Final = Bounds(0, plausible.DIE_CLOCK_MHZ.high)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannableCall(Call):
    """A call for one field, outside of the block, that native code can make as well."""

    #: Returns the call for a plan, after a first read; None if it can't be planned.
    plan: Callable[[], PlannedCall | None]
    #: Where its number is and its factor, as in `PlannedValue`.
    offset: int
    kind: NumberKind
    scale: float = 1.0
    unit: str = ""  # the driver's unit


class _NotSettledError(Exception):
    """It is not known yet what gives a field, or no plan can read it."""


def read_plan(sensors: "AmdSensors", scope: ReadScope) -> ReadPlan | None:
    """Return the plan of a read, or None if `read` must be called instead.

    None while a field neither answers nor is known to be absent, where one can't be read by a plan,
    and where there is nothing to read.
    """
    call, header = sensors.block.source.planned_call(), sensors.block.header
    if call is None or header is None:
        return None
    planner = _Planner(call, header)
    try:
        for die, number in enumerate(sensors.dies):
            if number.raw() is not None:
                planner.add_number(f"die_clocks_mhz.{die}", number, _DIE_BOUNDS)
        channels = [] if sensors.dies else [sensors.one_clock]
        channels.append(sensors.power)
        if sensors.believes_energy:
            channels.append(sensors.energy)
        planner.add(*channels, *sensors.slow, only_block=True)
        if scope is ReadScope.FULL:
            planner.add(*sensors.full_only, *sensors.extra)
    except _NotSettledError:
        return None
    planner.add_limits(sensors)
    plan = planner.builder.plan()
    if not plan.values:
        return None
    return _shortest(plan) if call.shape is CallShape.FILE else plan


def _shortest(plan: ReadPlan) -> ReadPlan:
    """Return the plan with its block file read only up to the last number used."""
    others = [each for each in (plan.causes, plan.stamp) if each is not None]
    end = max(
        each.offset + FORMAT_BY_KIND[each.kind].size
        for each in (*plan.values, *plan.counters, *others)
        if each.call == _BLOCK
    )
    block = replace(plan.calls[_BLOCK], argument=end)
    return replace(plan, calls=(block, *plan.calls[1:]))


class _Planner:
    """Adds a GPU's numbers, of its block and of other calls, to a plan.

    The first number checks the block's header: another header means a torn block or a new version.
    """

    def __init__(self, block: PlannedCall, header: int) -> None:
        self._block = block
        self._checks = {HEADER_OFFSET: header}
        self.builder = PlanBuilder()

    def add_number(
        self, name: str, number: BlockNumber, bounds: Bounds, scale: float = 1.0
    ) -> None:
        """Add a number of the block, which gives the field `name`."""
        checks, self._checks = self._checks, {}
        self.builder.value(name, self._slot(number, scale, checks), bounds)

    def add(self, *channels: Channel, only_block: bool = False) -> None:
        """Add each channel that is not absent; raise `_NotSettledError` if one can't be planned.

        With `only_block`, a channel that is read by a call outside of the block can't be.
        """
        for channel in channels:
            if channel.is_absent:
                continue
            call = channel.settled_call
            if isinstance(call, BlockCall):
                scale = 1 / call.method.per_unit
                self.add_number(channel.field, call.number, channel.bounds, scale)
                continue
            planned = call.plan() if isinstance(call, PlannableCall) and not only_block else None
            if planned is None or not isinstance(call, PlannableCall):
                raise _NotSettledError
            slot = Slot(call=planned, offset=call.offset, kind=call.kind, scale=call.scale)
            self.builder.value(channel.field, slot, channel.bounds)

    def add_limits(self, sensors: "AmdSensors") -> None:
        """Plan the reads of the limits in force, their counters and the firmware's timestamp."""
        status, causes = sensors.status, sensors.causes_by_bit
        if sensors.has_counters and (cycles := sensors.block.first(table.CYCLES)) is not None:
            status, causes = cycles, table.NO_CAUSES
        if status is not None:
            self.builder.causes(self._slot(status), causes)
        for each in sensors.residency.slots() if sensors.residency else ():
            slot = self._slot(each.number, each.scale)
            self.builder.counter(each.cause, slot, each.bounds, each.addend)
        stamp = sensors.block.stamp_number
        if stamp is not None:
            self.builder.stamp(self._slot(stamp), STILL_NS)

    def _slot(
        self, number: BlockNumber, scale: float = 1.0, checks: Mapping[int, int] | None = None
    ) -> Slot:
        at, kind = number.offset, number.kind
        return Slot(call=self._block, offset=at, kind=kind, scale=scale, checks=checks or {})

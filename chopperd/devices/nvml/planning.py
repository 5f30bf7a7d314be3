"""Makes a read plan of what has settled on a board: where each number of a look is."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from chopperd.devices.channel import Call, Channel
from chopperd.devices.nvml import table
from chopperd.devices.nvml.board import Board
from chopperd.devices.nvml.codes import causes_of
from chopperd.devices.nvml.direct import DirectCall, Place
from chopperd.devices.nvml.fields import FieldCall, FieldRequest
from chopperd.devices.read_plan import (
    PlannedCall,
    PlannedCauses,
    PlannedCounter,
    PlannedValue,
    ReadPlan,
)
from chopperd.model.causes import Cause
from chopperd.model.devices import ReadScope
from chopperd.model.plausible import Bounds

#: What each of the driver's 64 reason bits stands for, as a bit set of `Cause`.
CAUSES_BY_BIT: Final = tuple(
    sum(cause.bit for cause in causes_of(1 << position)) for position in range(64)
)


class _NotSettledError(Exception):
    """Something is still to be found, or is not read by a driver call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Number:
    """A number that a plan shall give."""

    name: str
    place: Place
    bounds: Bounds


def read_plan(board: Board, scope: ReadScope, *, with_energy: bool) -> ReadPlan | None:
    """How to make a look at a board without it.

    None while a field neither answers nor is known to be absent, where one is not read by a
    driver call, and where there is nothing to read.

    Args:
        board: The channels.
        scope: How much to read.
        with_energy: Whether the counter of energy is believed.
    """
    board.arrange()
    is_full = scope is ReadScope.FULL
    placer = _Placer(board, board.full_request if is_full else board.fast_request)
    limits = board.limits if is_full else board.fast_limits
    try:
        values = [*placer.numbers([board.sm_clock])]
        reasons = placer.place(board.reasons)
        counters = {
            cause: number
            for cause, channel in limits.items()
            for number in placer.numbers([channel])
        }
        if is_full:
            values += placer.slow_numbers(with_energy=with_energy)
    except _NotSettledError:
        return None
    calls = _calls([*values[:1], *counters.values(), *values[1:]], reasons)
    return _plan(calls, values, reasons, counters) if calls else None


class _Placer:
    """Finds where a board's numbers are once a look has been made with a request."""

    def __init__(self, board: Board, request: FieldRequest) -> None:
        self._board = board
        self._request = request

    def place(self, channel: Channel) -> Place | None:
        """Where a channel's number is; None where the device lacks it."""
        if channel.is_absent:
            return None
        if channel.settled_call is None:
            raise _NotSettledError
        return self._place_of(channel.settled_call)

    def numbers(self, channels: Iterable[Channel]) -> Iterator[_Number]:
        """The numbers of those channels that answer."""
        for channel in channels:
            place = self.place(channel)
            if place is not None:
                yield _Number(name=channel.field, place=place, bounds=channel.bounds)

    def slow_numbers(self, *, with_energy: bool) -> Iterator[_Number]:
        """What full looks alone read, but for the counters."""
        board = self._board
        yield from self.numbers([board.power])
        yield from self._average()
        yield from self.numbers([board.memory])
        if board.memory_v2 is not None:
            reserved = table.MEMORY_RESERVED
            yield _Number(
                name=reserved.name,
                place=board.memory_v2.place(table.MEMORY_RESERVED_WAY),
                bounds=board.memory_bounds,
            )
        yield from self.numbers(
            channel for channel in board.slow if with_energy or channel is not board.energy
        )

    def _average(self) -> Iterator[_Number]:
        """The mean of the last second, which may be what stands for the power as well."""
        average, power = self._board.power_average, self._board.power
        place = None if average is None else self.place(average)
        if place is None and power.source == table.POWER_AVERAGE_1S:
            place = self.place(power)
        if place is not None:
            yield _Number(name=table.POWER_AVERAGE.name, place=place, bounds=power.bounds)

    def _place_of(self, call: Call) -> Place:
        if isinstance(call, DirectCall):
            return call.number.place()
        if isinstance(call, FieldCall):
            return self._board.fields.place(self._request, call.way)
        raise _NotSettledError


def _calls(numbers: Iterable[_Number], reasons: Place | None) -> tuple[PlannedCall, ...]:
    """Each call once, in the order of a look: clock, limits in force, the rest."""
    places = [number.place for number in numbers]
    if reasons is not None:
        places.insert(1, reasons)
    by_identity = {id(place.call): place.call for place in places}
    return tuple(by_identity.values())


def _plan(
    calls: tuple[PlannedCall, ...],
    values: Iterable[_Number],
    reasons: Place | None,
    counters: Mapping[Cause, _Number],
) -> ReadPlan:
    position = {id(call): index for index, call in enumerate(calls)}
    return ReadPlan(
        calls=calls,
        values=tuple(_value(number, position[id(number.place.call)]) for number in values),
        causes=None if reasons is None else _causes(reasons, position[id(reasons.call)]),
        counters=tuple(
            _counter(cause, number, position[id(number.place.call)])
            for cause, number in counters.items()
        ),
    )


def _value(number: _Number, call: int) -> PlannedValue:
    place = number.place
    return PlannedValue(
        call=call,
        offset=place.offset,
        kind=place.kind,
        name=number.name,
        scale=place.scale,
        low=number.bounds.low,
        high=number.bounds.high,
        checks=place.checks,
    )


def _causes(place: Place, call: int) -> PlannedCauses:
    return PlannedCauses(call=call, offset=place.offset, kind=place.kind, causes=CAUSES_BY_BIT)


def _counter(cause: Cause, number: _Number, call: int) -> PlannedCounter:
    place = number.place
    return PlannedCounter(
        call=call,
        offset=place.offset,
        kind=place.kind,
        cause=cause,
        low=number.bounds.low,
        high=number.bounds.high,
        checks=place.checks,
    )

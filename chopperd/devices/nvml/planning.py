"""Read plans of one board, and single sensors read back to back."""

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Final

from chopperd.devices.base import SensorRead
from chopperd.devices.channel import Call, Channel
from chopperd.devices.nvml import table
from chopperd.devices.nvml.board import Board
from chopperd.devices.nvml.calls import DirectCall, FieldCall, FieldRequest, Place, number_of
from chopperd.devices.nvml.codes import POWER_INSTANT_FIELD, causes_of
from chopperd.devices.read_plan import (
    PlannedCall,
    PlannedCauses,
    PlannedCounter,
    PlannedValue,
    ReadPlan,
)
from chopperd.model.devices import GpuInfo, ReadScope
from chopperd.model.kinds import Cause
from chopperd.model.plausible import Bounds
from chopperd.units import joules_from_millijoules, watts_from_milliwatts

# Makes a read plan of what has settled on a board: where each number of a look is.

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


# Single NVML sensors read back to back, with calls and buffers of their own.
#
# What is read when a GPU is sampled is in `sensors`; here a read is one driver call for one number,
# so that its update period can be seen.

_SCOPE_BY_SOURCE: Final[Mapping[str, int]] = {
    table.POWER_INSTANT: table.GPU_SCOPE,
    table.POWER_MODULE: table.MODULE_SCOPE,
}
#: nvmlFieldValue_t, 40 bytes: id, scope and times are skipped; type, return code, the union.
_FIELD: Final = struct.Struct("<24xIIQ")


def sensor_reads(nvml: ModuleType, device: GpuInfo) -> Mapping[str, SensorRead]:
    """How to read a GPU's clock, power, energy and activity; nothing where it can't be found.

    A partition has no sensors of its own.

    Source: nvmlDeviceGetClockInfo (MHz), field 186 or nvmlDeviceGetPowerUsage (mW), whichever
    samples hold, nvmlDeviceGetTotalEnergyConsumption (mJ), nvmlDeviceGetUtilizationRates (%).
    """
    if device.parent is not None:
        return {}
    try:
        handle = nvml.nvmlDeviceGetHandleByUUID(device.uuid)
    except nvml.NVMLError:
        return {}
    reads: dict[str, Callable[[], float | None]] = {
        "sm_clock_mhz": lambda: float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
        "power_w": _power_read(nvml, handle, device.power_source),
        "energy_j": lambda: joules_from_millijoules(
            nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
        ),
        "activity_ratio": lambda: float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu) / 100,
    }
    return {name: _failing_softly(nvml, read) for name, read in reads.items()}


def _power_read(nvml: ModuleType, handle: object, source: str | None) -> SensorRead:
    """Reads the power that samples hold: the same field, from the same scope."""
    scope = _SCOPE_BY_SOURCE.get(source or "")
    if scope is None:
        return lambda: watts_from_milliwatts(nvml.nvmlDeviceGetPowerUsage(handle))
    request = (nvml.c_nvmlFieldValue_t * 1)()

    def read() -> float | None:
        request[0].fieldId, request[0].scopeId = POWER_INSTANT_FIELD, scope
        if nvml.nvmlLib.nvmlDeviceGetFieldValues(handle, 1, request):
            return None
        value_type, code, raw = _FIELD.unpack(request)
        power_mw = None if code else number_of(value_type, raw)
        return None if power_mw is None else watts_from_milliwatts(power_mw)

    return read


def _failing_softly(nvml: ModuleType, read: SensorRead) -> SensorRead:
    """The read, giving None for what the driver does not answer."""

    def softly() -> float | None:
        try:
            return read()
        except (nvml.NVMLError, AttributeError):  # AttributeError: a driver without the call
            return None

    return softly

"""Read plans of one board, and single sensors read back to back."""

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Final

from chopperd.devices.base import SensorRead
from chopperd.devices.channel import Call, Channel
from chopperd.devices.nvml import table
from chopperd.devices.nvml.calls import DirectCall, FieldCall, FieldRequest, Slot, number_of
from chopperd.devices.nvml.codes import POWER_INSTANT_FIELD, causes_of
from chopperd.devices.read_plan import (
    PlannedCall,
    PlannedCauses,
    PlannedCounter,
    PlannedValue,
    ReadPlan,
)
from chopperd.model.devices import GpuInfo, ReadScope
from chopperd.model.plausible import Bounds
from chopperd.units import joules_from_millijoules, watts_from_milliwatts

if TYPE_CHECKING:
    from chopperd.devices.nvml.sensors import Board

#: The bit set of `Cause` of each of the driver's 64 reason bits.
CAUSES_BY_BIT: Final = tuple(
    sum(cause.bit for cause in causes_of(1 << index)) for index in range(64)
)


class _NotSettledError(Exception):
    """A field is still to be found, or is not read by a driver call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Number:
    """A number of the plan: the field's name, where it is, and its bounds."""

    name: str
    slot: Slot
    bounds: Bounds


def read_plan(board: "Board", scope: ReadScope, *, with_energy: bool) -> ReadPlan | None:
    """The plan of a read.

    None while a field neither answers nor is known to be absent, where one is not read by a driver
    call, and where there is nothing to read.

    Args:
        board: The channels.
        scope: How much to read.
        with_energy: Whether the energy counter has passed its check.
    """
    board.arrange()
    is_full = scope is ReadScope.FULL
    slots = _Slots(board, board.full_request if is_full else board.fast_request)
    limits = board.limits if is_full else board.fast_limits
    try:
        values = [*slots.numbers([board.sm_clock])]
        reasons = slots.slot(board.reasons)
        counters = {
            cause: number
            for cause, channel in limits.items()
            for number in slots.numbers([channel])
        }
        if is_full:
            values += slots.slow_numbers(with_energy=with_energy)
    except _NotSettledError:
        return None
    calls = _calls([*values[:1], *counters.values(), *values[1:]], reasons)
    index = {id(call): position for position, call in enumerate(calls)}
    if not calls:
        return None
    return ReadPlan(
        calls=calls,
        values=tuple(_value(number, index[id(number.slot.call)]) for number in values),
        causes=None if reasons is None else _causes(reasons, index[id(reasons.call)]),
        counters=tuple(
            _counter(cause, number, index[id(number.slot.call)])
            for cause, number in counters.items()
        ),
    )


class _Slots:
    """Finds where a board's numbers are after a read with a request."""

    def __init__(self, board: "Board", request: FieldRequest) -> None:
        self._board = board
        self._request = request

    def slot(self, channel: Channel) -> Slot | None:
        """Where a channel's number is; None if the device does not have it."""
        if channel.is_absent:
            return None
        if channel.settled_call is None:
            raise _NotSettledError
        return self._slot_of(channel.settled_call)

    def numbers(self, channels: Iterable[Channel]) -> Iterator[_Number]:
        """The numbers of the channels that answer."""
        for channel in channels:
            slot = self.slot(channel)
            if slot is not None:
                yield _Number(name=channel.field, slot=slot, bounds=channel.bounds)

    def slow_numbers(self, *, with_energy: bool) -> Iterator[_Number]:
        """The numbers of full reads only, except the counters."""
        board = self._board
        yield from self.numbers([board.power])
        yield from self._average()
        yield from self.numbers([board.memory])
        if board.memory_v2 is not None:
            yield _Number(
                name=table.MEMORY_RESERVED.name,
                slot=board.memory_v2.slot(table.MEMORY_RESERVED_METHOD),
                bounds=board.memory_bounds,
            )
        yield from self.numbers(
            channel for channel in board.slow if with_energy or channel is not board.energy
        )

    def _average(self) -> Iterator[_Number]:
        """The mean power of the last second, which `power` may be as well."""
        average, power = self._board.power_average, self._board.power
        slot = None if average is None else self.slot(average)
        if slot is None and power.source == table.POWER_AVERAGE_1S:
            slot = self.slot(power)
        if slot is not None:
            yield _Number(name=table.POWER_AVERAGE.name, slot=slot, bounds=power.bounds)

    def _slot_of(self, call: Call) -> Slot:
        if isinstance(call, DirectCall):
            return call.number.slot()
        if isinstance(call, FieldCall):
            return self._board.fields.slot(self._request, call.method)
        raise _NotSettledError


def _calls(numbers: Iterable[_Number], reasons: Slot | None) -> tuple[PlannedCall, ...]:
    """Each call once, in the order of a read: clock, limits in force, the rest."""
    slots = [number.slot for number in numbers]
    if reasons is not None:
        slots.insert(1, reasons)
    return tuple({id(slot.call): slot.call for slot in slots}.values())


def _value(number: _Number, call: int) -> PlannedValue:
    slot = number.slot
    return PlannedValue(
        call=call,
        offset=slot.offset,
        kind=slot.kind,
        name=number.name,
        scale=slot.scale,
        low=number.bounds.low,
        high=number.bounds.high,
        checks=slot.checks,
    )


def _causes(slot: Slot, call: int) -> PlannedCauses:
    return PlannedCauses(call=call, offset=slot.offset, kind=slot.kind, causes=CAUSES_BY_BIT)


def _counter(cause: int, number: _Number, call: int) -> PlannedCounter:
    slot = number.slot
    return PlannedCounter(
        call=call,
        offset=slot.offset,
        kind=slot.kind,
        cause=cause,
        low=number.bounds.low,
        high=number.bounds.high,
        checks=slot.checks,
    )


# Single sensors, read by calls and buffers of their own: one driver call per number shows the
# update period of the sensor.

_SCOPE_BY_SOURCE: Final[Mapping[str, int]] = {
    table.POWER_INSTANT: table.GPU_SCOPE,
    table.POWER_MODULE: table.MODULE_SCOPE,
}
#: nvmlFieldValue_t, 40 bytes: id, scope and times are skipped; type, return code, the union.
_FIELD: Final = struct.Struct("<24xIIQ")


def sensor_reads(nvml: ModuleType, device: GpuInfo) -> Mapping[str, SensorRead]:
    """Functions that read a GPU's clock, power, energy and activity; empty if it is not found.

    A partition has no sensors of its own.

    Source: nvmlDeviceGetClockInfo (MHz), field 186 or nvmlDeviceGetPowerUsage (mW), as in the
    samples, nvmlDeviceGetTotalEnergyConsumption (mJ), nvmlDeviceGetUtilizationRates (%).
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
    return {name: _none_on_error(nvml, read) for name, read in reads.items()}


def _power_read(nvml: ModuleType, handle: object, source: str | None) -> SensorRead:
    """Reads the power of the samples: the same field and scope."""
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


def _none_on_error(nvml: ModuleType, read: SensorRead) -> SensorRead:
    def guarded() -> float | None:
        try:
            return read()
        except (nvml.NVMLError, AttributeError):  # AttributeError: a driver without the call
            return None

    return guarded

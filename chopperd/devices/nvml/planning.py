"""Makes the read plan of one board, and functions that read single sensors back to back."""

import struct
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Final

from chopperd.devices.base import SensorRead
from chopperd.devices.channel import Channel
from chopperd.devices.nvml import table
from chopperd.devices.nvml.calls import DirectCall, FieldCall, FieldRequest, number_of
from chopperd.devices.nvml.codes import POWER_INSTANT_FIELD, causes_of
from chopperd.devices.read_plan import PlanBuilder, ReadPlan, Slot
from chopperd.model.devices import GpuInfo, ReadScope
from chopperd.model.kinds import Cause
from chopperd.units import joules_from_millijoules, watts_from_milliwatts

if TYPE_CHECKING:
    from chopperd.devices.nvml.sensors import Board

#: The bit set of `Cause` of each of the driver's 64 reason bits.
CAUSES_BY_BIT: Final = tuple(
    sum(cause.bit for cause in causes_of(1 << index)) for index in range(64)
)


class _NotSettledError(Exception):
    """It is not known yet what gives a field, or no driver call does."""


def read_plan(board: "Board", scope: ReadScope, *, with_energy: bool) -> ReadPlan | None:
    """Return the plan of a read, or None if `read` must be called instead.

    None while a field neither answers nor is known to be absent, where one is not read by a driver
    call, and where there is nothing to read. `with_energy`: the energy counter passed its check.
    """
    board.arrange()
    is_full = scope is ReadScope.FULL
    planner = _Planner(board, board.full_request if is_full else board.fast_request)
    try:
        planner.add(board.sm_clock)
        planner.add_limits(board.limits if is_full else board.fast_limits)
        if is_full:
            planner.add_slow(with_energy=with_energy)
    except _NotSettledError:
        return None
    plan = planner.builder.plan()
    return plan if plan.calls else None


class _Planner:
    """Adds a board's numbers to a plan, with field values at their places in a request."""

    def __init__(self, board: "Board", request: FieldRequest) -> None:
        self._board = board
        self._request = request
        self.builder = PlanBuilder()

    def add(self, *channels: Channel) -> None:
        """Add each channel that is not absent; raise `_NotSettledError` if one can't be planned."""
        for channel in channels:
            slot = self._slot(channel)
            if slot is not None:
                self.builder.value(channel.field, slot, channel.bounds)

    def add_limits(self, limits: Mapping[Cause, Channel]) -> None:
        """Add the bits of limits in force and the limit counters that are not absent."""
        reasons = self._slot(self._board.reasons)
        if reasons is not None:
            self.builder.causes(reasons, CAUSES_BY_BIT)
        for cause, channel in limits.items():
            slot = self._slot(channel)
            if slot is not None:
                self.builder.counter(cause, slot, channel.bounds)

    def add_slow(self, *, with_energy: bool) -> None:
        """Add the fields that only full reads have, except the limit counters."""
        board = self._board
        average, power = board.power_average, board.power
        self.add(power)
        # The mean power of the last second, which `power` may be as well.
        slot = None if average is None else self._slot(average)
        if slot is None and power.source == table.POWER_AVERAGE_1S:
            slot = self._slot(power)
        if slot is not None:
            self.builder.value(table.POWER_AVERAGE.name, slot, power.bounds)
        self.add(board.memory)
        if board.memory_v2 is not None:
            slot = board.memory_v2.slot(table.MEMORY_RESERVED_METHOD)
            self.builder.value(table.MEMORY_RESERVED.name, slot, board.memory_bounds)
        self.add(*(each for each in board.slow if with_energy or each is not board.energy))

    def _slot(self, channel: Channel) -> Slot | None:
        """Return where a channel's number is; None if the device does not have it."""
        if channel.is_absent:
            return None
        call = channel.settled_call
        if isinstance(call, DirectCall):
            return call.number.slot()
        if isinstance(call, FieldCall):
            return self._board.fields.slot(self._request, call.method)
        raise _NotSettledError


# Single sensors, read by calls and buffers of their own: one driver call per number shows the
# update period of the sensor.

_SCOPE_BY_SOURCE: Final[Mapping[str, int]] = {
    table.POWER_INSTANT: table.GPU_SCOPE,
    table.POWER_MODULE: table.MODULE_SCOPE,
}
#: nvmlFieldValue_t, 40 bytes: id, scope and times are skipped; type, return code, the union.
_FIELD: Final = struct.Struct("<24xIIQ")


def sensor_reads(nvml: ModuleType, device: GpuInfo) -> Mapping[str, SensorRead]:
    """Return functions that read a GPU's clock, power, energy and activity, by field.

    Empty if the GPU is not found, and for an instance, which has no such sensors of its own.

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
    """Return a function that reads the power, W, by the same field and scope as the samples."""
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

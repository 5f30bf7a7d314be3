"""Reads one NVIDIA GPU: a channel per field, requests for field values, reads and plans."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Final

from chopperd import plausible
from chopperd.devices.channel import Call, Channel, EnergyCheck, GpuSensors
from chopperd.devices.faults import DeviceFaults
from chopperd.devices.nvml import table
from chopperd.devices.nvml.calls import (
    DirectCall,
    DirectNumber,
    Driver,
    FieldCall,
    FieldReader,
    FieldRequest,
    wanted_fields,
)
from chopperd.devices.nvml.codes import causes_of
from chopperd.devices.nvml.identity import SystemMemory
from chopperd.devices.nvml.table import Direct, Method, Sensor
from chopperd.devices.read_plan import PlanBuilder, ReadPlan, Slot
from chopperd.errors import DeviceLostError
from chopperd.model.devices import DeviceReading, GpuInfo, ReadScope
from chopperd.model.kinds import Cause
from chopperd.plausible import Bounds

#: The bit set of `Cause` of each of the driver's 64 reason bits.
CAUSES_BY_BIT: Final = tuple(
    sum(cause.bit for cause in causes_of(1 << index)) for index in range(64)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardTraits:
    """What is known of a GPU, or of an instance of one, before its first read."""

    #: Causes by the field ids of the driver's cumulative limit counters.
    limit_fields: Mapping[int, Cause]
    mig: bool  # whether MIG mode is on: the activity of the whole GPU is then not defined
    memory_size_bytes: int | None  # upper bound of the memory in use; None if not known
    #: Whether clock, power, energy, temperature and limits are its own: not those of an instance,
    #: which shares them with its card.
    has_board: bool = True
    has_memory: bool = True  # whether its memory is its own: not that of a card in MIG mode
    system_memory: SystemMemory | None = None  # the system's memory, for a GPU that uses it


class NvmlSensors(GpuSensors):
    """Reads the sensors of one GPU, or the memory of an instance.

    A field that it does not have is a channel that is always absent. Fast reads read clock,
    reasons and `_fast_limits`: those of the limit counters that one call reads together. Field
    values are read by `_fast_request` or `_full_request`, at once.
    """

    def __init__(
        self,
        nvml: ModuleType,
        handle: object,
        traits: BoardTraits,
        faults: DeviceFaults,
        energy_check: EnergyCheck | None = None,
    ) -> None:
        super().__init__(faults, energy_check or EnergyCheck(""))
        self._driver = Driver(nvml, handle)
        self._fields = FieldReader(self._driver, faults)
        self._last_causes = (0, causes_of(0))
        self._arranged = -1
        board = traits.has_board
        self._sm_clock = self._channel(table.SM_CLOCK, wanted=board)
        self._reasons = self._channel(table.REASONS, wanted=board)
        self.power = self._channel(table.POWER, wanted=board)
        self._gpu_average = self._channel(table.POWER_AVERAGE, wanted=board)
        self._module_average = self._channel(table.MODULE_POWER_AVERAGE, wanted=board)
        size_bytes = traits.memory_size_bytes
        self._memory_bounds = Bounds(0, size_bytes) if size_bytes else plausible.MEMORY_BYTES
        self.memory = self._memory_channel(traits)
        self._slow = tuple(
            self._channel(sensor, wanted=board and not (sensor is table.ACTIVITY and traits.mig))
            for sensor in table.SLOW
        )
        self._energy = next(each for each in self._slow if each.field == table.ENERGY.name)
        self._limits = {
            cause: self._channel(sensor, wanted=board)
            for cause, sensor in table.limit_counters(traits.limit_fields).items()
        }
        self._arrange()

    @property
    def memory_source(self) -> str | None:
        """Name of the memory number that is read (`GpuInfo.memory_source`); None until known."""
        return self.memory.source

    @property
    def is_settled(self) -> bool:
        """Whether the sources of power and memory are known, or known to be absent."""
        return all(each.source or each.is_absent for each in (self.power, self.memory))

    def _reading(self, scope: ReadScope) -> DeviceReading:
        is_full = scope is ReadScope.FULL
        if is_full:
            self._reopen()
        else:
            self._arrange()
        sm_clock_mhz = self._sm_clock.value()
        causes = self._causes()
        request = self._full_request if is_full else self._fast_request
        if request.count:
            self._fields.fetch(request)
        if not is_full:
            limited_ns = _limited_ns(self._fast_limits)
            return DeviceReading(sm_clock_mhz=sm_clock_mhz, causes=causes, limited_ns=limited_ns)
        power_w = self.power.value()
        used_bytes = self.memory.value()
        average_w = self._average_w(power_w)
        slow = {channel.field: channel.value() for channel in self._slow}
        slow["energy_j"] = self._checked_j(slow["energy_j"], average_w or power_w)
        return DeviceReading(
            sm_clock_mhz=sm_clock_mhz,
            causes=causes,
            power_w=power_w,
            power_average_w=average_w,
            memory_used_bytes=None if used_bytes is None else int(used_bytes),
            memory_reserved_bytes=None if used_bytes is None else self._reserved_bytes(),
            limited_ns=_limited_ns(self._limits),
            **slow,  # type: ignore[arg-type]
        )

    def _may_find_more(self, scope: ReadScope) -> bool:
        is_full = scope is ReadScope.FULL
        return is_full and (self._is_probe_due() or self._checks_energy(self._energy))

    def _planned(self, scope: ReadScope) -> ReadPlan | None:
        """Make the plan of a read.

        None while a field neither answers nor is known to be absent, where one is not read by a
        driver call, and where there is nothing to read.
        """
        self._arrange()
        is_full = scope is ReadScope.FULL
        planner = _Planner(self._fields, self._full_request if is_full else self._fast_request)
        try:
            planner.add(self._sm_clock)
            planner.add_limits(self._reasons, self._limits if is_full else self._fast_limits)
            if is_full:
                planner.add(self.power)
                # The mean power of the last second, which `power` may be as well.
                average = self._power_average
                slot = None if average is None else planner.slot(average)
                if slot is None and self.power.source == table.POWER_AVERAGE_1S:
                    slot = planner.slot(self.power)
                if slot is not None:
                    planner.builder.value(table.POWER_AVERAGE.name, slot, self.power.bounds)
                planner.add(self.memory)
                if (number := self._memory_v2) is not None:
                    slot = number.slot(table.MEMORY_RESERVED_METHOD)
                    planner.builder.value(table.MEMORY_RESERVED.name, slot, self._memory_bounds)
                is_left_out = None if self.believes_energy else self._energy
                planner.add(*(each for each in self._slow if each is not is_left_out))
        except _NotSettledError:
            return None
        plan = planner.builder.plan()
        return plan if plan.calls else None

    @property
    def _power_average(self) -> Channel | None:
        """Channel of the last second's mean of `power`; None until the source of `power` is known.

        If it is absent and `power` itself is an average, the mean is `power`.
        """
        if self.power.source is None:
            return None
        is_module = self.power.source == table.POWER_MODULE
        return self._module_average if is_module else self._gpu_average

    @property
    def _memory_v2(self) -> DirectNumber | None:
        """Number of the call that gave the memory in use, if that gives the reserve too."""
        call = self.memory.settled_call
        if isinstance(call, DirectCall) and call.source == table.MEMORY_V2:
            return call.number
        return None

    def _is_probe_due(self) -> bool:
        """Return whether an absent field's next probe is due; updates the requests."""
        self._arrange()
        due_ns = self._probe_mono_ns
        return due_ns is not None and self._faults.clock.mono_ns() >= due_ns

    def _reopen(self) -> None:
        """Mark absent fields whose next probe is due as not absent, so that a read tries them."""
        if self._is_probe_due():
            now_ns = self._faults.clock.mono_ns()
            for channel in self._channels():
                channel.reopen(now_ns)
            self._arrange()

    def _arrange(self) -> None:
        """Update requests and the time of the next probe to the calls that answer, if changed."""
        if self._arranged == self._faults.revision:
            return
        self._arranged = self._faults.revision
        self._fast_limits = {
            cause: channel for cause, channel in self._limits.items() if _is_field_first(channel)
        }
        self._fast_request = self._fields.request(
            wanted_fields(channel.next_calls[0] for channel in self._fast_limits.values())
        )
        self._full_request = self._fields.request(
            wanted_fields(call for channel in self._channels() for call in channel.next_calls)
        )
        due = (channel.absent_until_ns for channel in self._channels())
        self._probe_mono_ns = min((ns for ns in due if ns is not None), default=None)

    def _channel(self, sensor: Sensor, *, wanted: bool) -> Channel:
        calls = (self._call(method) for method in sensor.methods) if wanted else ()
        return Channel(self._faults, sensor.name, sensor.bounds, *calls)

    def _call(self, method: Method) -> Call:
        if isinstance(method, Direct):
            return DirectNumber(self._driver, method).call()
        return self._fields.call(method)

    def _memory_channel(self, traits: BoardTraits) -> Channel:
        calls = []
        if traits.has_memory:
            calls = [self._call(method) for method in table.MEMORY_USED.methods]
            if traits.system_memory is not None:
                calls.append(self._system_call(traits.system_memory))
        return Channel(self._faults, table.MEMORY_USED.name, self._memory_bounds, *calls)

    def _system_call(self, memory: SystemMemory) -> Call:
        def read() -> float:
            used_bytes = memory.used_bytes()
            if used_bytes is None:
                raise self._driver.not_supported
            return used_bytes

        return Call(operation=str(memory.path), read=read, source=table.MEMORY_SYSTEM)

    def _channels(self) -> Iterator[Channel]:
        yield from (self._sm_clock, self._reasons, self.power)
        average = self._power_average
        yield from (self._gpu_average, self._module_average) if average is None else (average,)
        yield self.memory
        yield from self._limits.values()
        yield from self._slow

    def _causes(self) -> frozenset[Cause] | None:
        """Read the limits in force; the set is reused while the bits do not change."""
        bits = self._reasons.value()
        if bits is None:
            return None
        if bits != self._last_causes[0]:
            self._last_causes = (int(bits), causes_of(int(bits)))
        return self._last_causes[1]

    def _average_w(self, power_w: float | None) -> float | None:
        """Return the last second's mean of the power that `power_w` measures; None if none."""
        average = self._power_average
        value_w = None if average is None else average.value()
        is_average = self.power.source == table.POWER_AVERAGE_1S
        return power_w if is_average and value_w is None else value_w

    def _reserved_bytes(self) -> int | None:
        """Return the driver's reserve, bytes, from the call for the memory in use; else None."""
        number = self._memory_v2
        if number is None:
            return None
        reserved_bytes = int(number.left_behind(table.MEMORY_RESERVED_METHOD))
        if reserved_bytes in self._memory_bounds:
            return reserved_bytes
        self._faults.implausible_total[table.MEMORY_RESERVED.name] += 1
        return None


class InstanceSensors(NvmlSensors):
    """Reads a GPU instance's memory, and detects its loss; used by one thread at a time."""

    def __init__(
        self, nvml: ModuleType, handle: object, info: GpuInfo, faults: DeviceFaults
    ) -> None:
        traits = BoardTraits(
            limit_fields={}, mig=True, memory_size_bytes=info.memory_size_bytes, has_board=False
        )
        super().__init__(nvml, handle, traits, faults)
        self._info = info
        self._has_answered = False

    def read(self, scope: ReadScope) -> DeviceReading:
        """Read the instance's memory if `scope` is full; else return an empty reading."""
        reading = super().read(scope)
        if reading.memory_used_bytes is not None:
            self._has_answered = True
        elif self._has_answered and self.memory.is_absent:
            raise DeviceLostError(
                f"GPU instance {self._info.gpu} ({self._info.uuid}) is gone",
                operation="nvmlDeviceGetMemoryInfo",
                device_index=self._info.index,
            )
        return reading


def _is_field_first(channel: Channel) -> bool:
    """Return whether a field value is the first call for a channel (one call reads many)."""
    calls = channel.next_calls
    return bool(calls) and isinstance(calls[0], FieldCall)


def _limited_ns(limits: Mapping[Cause, Channel]) -> dict[Cause, int]:
    """Read the cumulative time, ns, under each limit whose counter answers."""
    limited_ns = {}
    for cause, channel in limits.items():
        value = channel.value()
        if value is not None:
            limited_ns[cause] = int(value)
    return limited_ns


class _NotSettledError(Exception):
    """It is not known yet what gives a field, or no driver call does."""


class _Planner:
    """Adds numbers to a plan, with field values at their places in a request."""

    def __init__(self, fields: FieldReader, request: FieldRequest) -> None:
        self._fields = fields
        self._request = request
        self.builder = PlanBuilder()

    def add(self, *channels: Channel) -> None:
        """Add each channel that is not absent; raise `_NotSettledError` if one can't be planned."""
        for channel in channels:
            slot = self.slot(channel)
            if slot is not None:
                self.builder.value(channel.field, slot, channel.bounds)

    def add_limits(self, reasons: Channel, limits: Mapping[Cause, Channel]) -> None:
        """Add the bits of limits in force and the limit counters that are not absent."""
        bits = self.slot(reasons)
        if bits is not None:
            self.builder.causes(bits, CAUSES_BY_BIT)
        for cause, channel in limits.items():
            slot = self.slot(channel)
            if slot is not None:
                self.builder.counter(cause, slot, channel.bounds)

    def slot(self, channel: Channel) -> Slot | None:
        """Return where a channel's number is; None if the device does not have it."""
        if channel.is_absent:
            return None
        call = channel.settled_call
        if isinstance(call, DirectCall):
            return call.number.slot()
        if isinstance(call, FieldCall):
            return self._fields.slot(self._request, call.method)
        raise _NotSettledError

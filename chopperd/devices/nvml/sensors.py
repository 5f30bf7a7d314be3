"""Reads one NVIDIA GPU: a channel per field, requests for field values, reads and plans."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Final

from chopperd import plausible
from chopperd.devices.channel import Call, Channel, EnergyCheck, Verdict
from chopperd.devices.faults import DeviceFaults
from chopperd.devices.nvml import planning, table
from chopperd.devices.nvml.calls import (
    DirectCall,
    DirectNumber,
    Driver,
    FieldCall,
    FieldReader,
    wanted_fields,
)
from chopperd.devices.nvml.codes import causes_of
from chopperd.devices.nvml.identity import SystemMemory
from chopperd.devices.nvml.table import Direct, Method, Sensor
from chopperd.devices.read_plan import ReadPlan
from chopperd.errors import DeviceLostError
from chopperd.model.devices import DeviceReading, GpuInfo, ReadScope
from chopperd.model.kinds import Cause
from chopperd.plausible import Bounds

_NOTHING: Final = DeviceReading()


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


class Board:
    """The channels of one GPU; a field that it does not have is a channel that is always absent.

    Fast reads read `sm_clock`, `reasons` and `fast_limits`: those of `limits` that one call reads
    together. Field values are read by `fast_request` or `full_request`, at once.
    """

    def __init__(
        self, nvml: ModuleType, handle: object, traits: BoardTraits, faults: DeviceFaults
    ) -> None:
        self._driver = Driver(nvml, handle)
        self._faults = faults
        self._arranged = -1
        self.fields = FieldReader(self._driver, faults)
        board = traits.has_board
        self.sm_clock = self._channel(table.SM_CLOCK, wanted=board)
        self.reasons = self._channel(table.REASONS, wanted=board)
        self.power = self._channel(table.POWER, wanted=board)
        self._gpu_average = self._channel(table.POWER_AVERAGE, wanted=board)
        self._module_average = self._channel(table.MODULE_POWER_AVERAGE, wanted=board)
        size_bytes = traits.memory_size_bytes
        self.memory_bounds = Bounds(0, size_bytes) if size_bytes else plausible.MEMORY_BYTES
        self.memory = self._memory_channel(traits)
        self.slow = tuple(
            self._channel(sensor, wanted=board and not (sensor is table.ACTIVITY and traits.mig))
            for sensor in table.SLOW
        )
        self.energy = next(each for each in self.slow if each.field == table.ENERGY.name)
        self.limits = {
            cause: self._channel(sensor, wanted=board)
            for cause, sensor in table.limit_counters(traits.limit_fields).items()
        }
        self.arrange()

    @property
    def power_average(self) -> Channel | None:
        """Channel of the last second's mean of `power`; None until the source of `power` is known.

        If it is absent and `power` itself is an average, the mean is `power`.
        """
        if self.power.source is None:
            return None
        is_module = self.power.source == table.POWER_MODULE
        return self._module_average if is_module else self._gpu_average

    @property
    def memory_v2(self) -> DirectNumber | None:
        """Number of the call that gave the memory in use, if that gives the reserve too."""
        call = self.memory.settled_call
        if isinstance(call, DirectCall) and call.source == table.MEMORY_V2:
            return call.number
        return None

    def is_probe_due(self) -> bool:
        """Return whether an absent field's next probe is due; updates the requests."""
        self.arrange()
        due_ns = self._probe_mono_ns
        return due_ns is not None and self._faults.clock.mono_ns() >= due_ns

    def reopen(self) -> None:
        """Mark absent fields whose next probe is due as not absent, so that a read tries them."""
        if self.is_probe_due():
            now_ns = self._faults.clock.mono_ns()
            for channel in self._channels():
                channel.reopen(now_ns)
            self.arrange()

    def arrange(self) -> None:
        """Update requests and the time of the next probe to the calls that answer, if changed."""
        if self._arranged == self._faults.revision:
            return
        self._arranged = self._faults.revision
        self.fast_limits = {
            cause: channel for cause, channel in self.limits.items() if _is_field_first(channel)
        }
        self.fast_request = self.fields.request(
            wanted_fields(channel.next_calls[0] for channel in self.fast_limits.values())
        )
        self.full_request = self.fields.request(
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
        return self.fields.call(method)

    def _memory_channel(self, traits: BoardTraits) -> Channel:
        calls = []
        if traits.has_memory:
            calls = [self._call(method) for method in table.MEMORY_USED.methods]
            if traits.system_memory is not None:
                calls.append(self._system_call(traits.system_memory))
        return Channel(self._faults, table.MEMORY_USED.name, self.memory_bounds, *calls)

    def _system_call(self, memory: SystemMemory) -> Call:
        def read() -> float:
            used_bytes = memory.used_bytes()
            if used_bytes is None:
                raise self._driver.not_supported
            return used_bytes

        return Call(operation=str(memory.path), read=read, source=table.MEMORY_SYSTEM)

    def _channels(self) -> Iterator[Channel]:
        yield from (self.sm_clock, self.reasons, self.power)
        yield from (
            (self._gpu_average, self._module_average)
            if self.power_average is None
            else (self.power_average,)
        )
        yield self.memory
        yield from self.limits.values()
        yield from self.slow


def _is_field_first(channel: Channel) -> bool:
    """Return whether a field value is the first call for a channel (one call reads many)."""
    calls = channel.next_calls
    return bool(calls) and isinstance(calls[0], FieldCall)


class NvmlSensors:
    """Reads the sensors of one GPU, or the memory of an instance; used by one thread at a time.

    What a device lacks is probed again each minute, by full reads only. A call that has once given
    a field stays selected, also for sensors that are made for the same `faults` later.
    """

    def __init__(
        self,
        nvml: ModuleType,
        handle: object,
        traits: BoardTraits,
        faults: DeviceFaults,
        energy_check: EnergyCheck | None = None,
    ) -> None:
        self._board = Board(nvml, handle, traits, faults)
        self._faults = faults
        self._energy_check = energy_check or EnergyCheck("")
        self._last_causes = (0, causes_of(0))
        self._plans: dict[ReadScope, ReadPlan | None] = dict.fromkeys(ReadScope)
        self._last_plans: dict[ReadScope, ReadPlan] = {}
        self._planned_revision = -1

    @property
    def power_source(self) -> str | None:
        """Name of the power that is read (`GpuInfo.power_source`); None until one has answered."""
        return self._board.power.source

    @property
    def memory_source(self) -> str | None:
        """Name of the memory number that is read (`GpuInfo.memory_source`); None until known."""
        return self._board.memory.source

    @property
    def is_settled(self) -> bool:
        """Whether the sources of power and memory are known, or known to be absent."""
        channels = (self._board.power, self._board.memory)
        return all(channel.source or channel.is_absent for channel in channels)

    @property
    def lacks_memory(self) -> bool:
        """Whether the device is known not to report its memory."""
        return self._board.memory.is_absent

    def read(self, scope: ReadScope) -> DeviceReading:
        """Read the sensors once; fields that are absent or failed are None."""
        self._faults.begin_read()
        reading = self._full() if scope is ReadScope.FULL else self._fast()
        failure = self._faults.transient
        if failure is not None and reading == _NOTHING:
            raise failure
        return reading

    def read_plan(self, scope: ReadScope) -> ReadPlan | None:
        """Return the plan of a read; None while a field or a check is not settled.

        Returns the same object as before while nothing changed.
        """
        if scope is ReadScope.FULL and (self._board.is_probe_due() or self._awaits_check()):
            return None
        if self._planned_revision != self._faults.revision:
            self._planned_revision = self._faults.revision
            for each in ReadScope:
                self._plans[each] = self._planned(each)
        return self._plans[scope]

    def _planned(self, scope: ReadScope) -> ReadPlan | None:
        """Make the plan for what answers now; store it, or return the last one if it is equal."""
        believes_energy = self._energy_check.verdict is Verdict.RIGHT
        plan = planning.read_plan(self._board, scope, with_energy=believes_energy)
        if plan is None:
            return None
        if plan != self._last_plans.get(scope):
            self._last_plans[scope] = plan
        return self._last_plans[scope]

    def _fast(self) -> DeviceReading:
        board = self._board
        board.arrange()
        sm_clock_mhz = board.sm_clock.value()
        causes = self._causes()
        if board.fast_request.count:
            board.fields.fetch(board.fast_request)
        return DeviceReading(
            sm_clock_mhz=sm_clock_mhz, causes=causes, limited_ns=_limited_ns(board.fast_limits)
        )

    def _full(self) -> DeviceReading:
        board = self._board
        board.reopen()
        sm_clock_mhz = board.sm_clock.value()
        causes = self._causes()
        if board.full_request.count:
            board.fields.fetch(board.full_request)
        power_w = board.power.value()
        used_bytes = board.memory.value()
        average_w = self._average_w(power_w)
        slow = {channel.field: channel.value() for channel in board.slow}
        slow["energy_j"] = self._checked_j(slow["energy_j"], average_w or power_w)
        return DeviceReading(
            sm_clock_mhz=sm_clock_mhz,
            causes=causes,
            power_w=power_w,
            power_average_w=average_w,
            memory_used_bytes=None if used_bytes is None else int(used_bytes),
            memory_reserved_bytes=None if used_bytes is None else self._reserved_bytes(),
            limited_ns=_limited_ns(board.limits),
            **slow,  # type: ignore[arg-type]
        )

    def _awaits_check(self) -> bool:
        """Return whether the check of the energy counter is not finished."""
        board = self._board
        is_open = self._energy_check.verdict is Verdict.OPEN
        return is_open and not (board.energy.is_absent or board.power.is_absent)

    def _checked_j(self, energy_j: float | None, power_w: float | None) -> float | None:
        """Check the energy counter; return it, or None until it has agreed with the power."""
        before = self._energy_check.verdict
        verdict = self._energy_check.take(self._faults.clock.mono_ns(), energy_j, power_w)
        if verdict is not before:
            self._faults.revision += 1
        return energy_j if verdict is Verdict.RIGHT else None

    def _causes(self) -> frozenset[Cause] | None:
        """Read the limits in force; the set is reused while the bits do not change."""
        bits = self._board.reasons.value()
        if bits is None:
            return None
        if bits != self._last_causes[0]:
            self._last_causes = (int(bits), causes_of(int(bits)))
        return self._last_causes[1]

    def _average_w(self, power_w: float | None) -> float | None:
        """Return the last second's mean of the power that `power_w` measures; None if none."""
        average = self._board.power_average
        value_w = None if average is None else average.value()
        is_average = self._board.power.source == table.POWER_AVERAGE_1S
        return power_w if is_average and value_w is None else value_w

    def _reserved_bytes(self) -> int | None:
        """Return the driver's reserve, bytes, from the call for the memory in use; else None."""
        number = self._board.memory_v2
        if number is None:
            return None
        reserved_bytes = int(number.left_behind(table.MEMORY_RESERVED_METHOD))
        if reserved_bytes in self._board.memory_bounds:
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
        elif self._has_answered and self.lacks_memory:
            raise DeviceLostError(
                f"GPU instance {self._info.gpu} ({self._info.uuid}) is gone",
                operation="nvmlDeviceGetMemoryInfo",
                device_index=self._info.index,
            )
        return reading


def _limited_ns(limits: Mapping[Cause, Channel]) -> dict[Cause, int]:
    """Read the cumulative time, ns, under each limit whose counter answers."""
    limited_ns = {}
    for cause, channel in limits.items():
        value = channel.value()
        if value is not None:
            limited_ns[cause] = int(value)
    return limited_ns

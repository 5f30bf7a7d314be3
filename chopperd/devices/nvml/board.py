"""What can be asked of one GPU: a channel for each field, and which fields go into a request."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Final

from chopperd.devices.channel import Call, Channel, DeviceFaults
from chopperd.devices.nvml import table
from chopperd.devices.nvml.calls import (
    DirectCall,
    DirectNumber,
    Driver,
    FieldCall,
    FieldReader,
    wanted_fields,
)
from chopperd.devices.nvml.table import Direct, Sensor, Way
from chopperd.model import plausible
from chopperd.model.kinds import Cause
from chopperd.model.plausible import Bounds
from chopperd.units import BYTES_PER_KIB

# The system's memory, for GPUs that have none of their own; no driver call.

_MEMINFO: Final = Path("/proc/meminfo")

# NVML has no flag for it, CUDA's `integrated` needs a context, and the addressing mode doesn't
# tell: a Grace Hopper shares page tables, not memory. DGX Spark, then the Jetson series.
_SHARES_MEMORY: Final = re.compile(r"\b(GB10|Xavier|Orin|Thor)\b")


def shares_system_memory(name: str) -> bool:
    """Whether a GPU of this name has no memory of its own.

    Source: nvml.h on nvmlDeviceGetMemoryInfo: NOT_SUPPORTED on SoCs whose GPU shares memory with
    the system. A GPU that has its own may fail with the same code, hence by name.
    """
    return _SHARES_MEMORY.search(name) is not None


@dataclass(frozen=True, slots=True)
class SystemMemory:
    """The system's memory as the kernel tells it.

    Attributes:
        path: A file of the layout of /proc/meminfo.
    """

    path: Path = _MEMINFO

    def total_bytes(self) -> int | None:
        """All of it; None if the file doesn't say."""
        return self._bytes_by_name().get("MemTotal")

    def used_bytes(self) -> int | None:
        """What a new program could not get: total less available; None if the file doesn't say.

        Free memory is no measure: the kernel's caches fill all that nobody else uses.
        """
        bytes_by_name = self._bytes_by_name()
        total, available = bytes_by_name.get("MemTotal"), bytes_by_name.get("MemAvailable")
        return None if total is None or available is None else total - available

    def _bytes_by_name(self) -> dict[str, int]:
        try:
            text = self.path.read_text(encoding="ascii", errors="replace")
        except OSError:
            return {}
        entries = re.findall(r"^(\w+):\s*(\d+) kB$", text, re.MULTILINE)
        return {name: int(size) * BYTES_PER_KIB for name, size in entries}


#: That of this machine.
SYSTEM_MEMORY: Final = SystemMemory()


@dataclass(frozen=True, slots=True, kw_only=True)
class SensorPlan:
    """What is known of a GPU, or of an instance of one, before its first look.

    Attributes:
        limit_fields: Ids of the driver's cumulative limit counters, by cause.
        mig: Whether MIG mode is on: the activity of the whole GPU is then not defined.
        memory_size_bytes: Upper bound of the memory in use; None if not known.
        has_board: Whether clock, power, energy, temperature and limits are its own: not of an
            instance, which shares them with its card.
        has_memory: Whether its memory is its own: not of a card whose instances divide it up.
        system_memory: Where its memory is the system's: that.
    """

    limit_fields: Mapping[int, Cause]
    mig: bool
    memory_size_bytes: int | None
    has_board: bool = True
    has_memory: bool = True
    system_memory: SystemMemory | None = None

    @property
    def memory_bounds(self) -> Bounds:
        """Outside of which a size of memory is absurd."""
        size_bytes = self.memory_size_bytes
        return Bounds(0, size_bytes) if size_bytes else plausible.MEMORY_BYTES


class Board:
    """The channels of one GPU; what it shall not be asked for has a channel that is absent.

    Attributes:
        sm_clock, reasons: What a fast look reads beside `fast_limits`.
        power: W, by the best source that answers.
        memory: Bytes in use.
        memory_bounds: Outside of which its memory is absurd.
        slow: Fields of which full looks read a number each.
        energy: That of them which counts energy.
        limits: The cumulative limit counters.
        fast_limits: Those of them that come in one call, which fast looks read too.
        fields: Reads field values.
        fast_request, full_request: The fields that a look asks for.
        probe_mono_ns: When the first absent field is to be asked for again; None if none is.
    """

    def __init__(
        self, nvml: ModuleType, handle: object, plan: SensorPlan, faults: DeviceFaults
    ) -> None:
        self._driver = Driver(nvml, handle)
        self._faults = faults
        self._arranged = -1
        self.fields = FieldReader(self._driver, faults)
        board = plan.has_board
        self.sm_clock = self._channel(table.SM_CLOCK, wanted=board)
        self.reasons = self._channel(table.REASONS, wanted=board)
        self.power = self._channel(table.POWER, wanted=board)
        self._gpu_average = self._channel(table.POWER_AVERAGE, wanted=board)
        self._module_average = self._channel(table.MODULE_POWER_AVERAGE, wanted=board)
        self.memory_bounds = plan.memory_bounds
        self.memory = self._memory_channel(plan)
        self.slow = tuple(
            self._channel(sensor, wanted=board and not (sensor is table.ACTIVITY and plan.mig))
            for sensor in table.SLOW
        )
        self.energy = next(each for each in self.slow if each.field == table.ENERGY.name)
        self.limits = {
            cause: self._channel(sensor, wanted=board)
            for cause, sensor in table.limit_counters(plan.limit_fields).items()
        }
        self.arrange()

    @property
    def power_average(self) -> Channel | None:
        """The mean of the last second of what `power` is the power of; None until that is known.

        Where `power` itself is an average and this is absent, that is the average.
        """
        if self.power.source is None:
            return None
        is_module = self.power.source == table.POWER_MODULE
        return self._module_average if is_module else self._gpu_average

    @property
    def memory_v2(self) -> DirectNumber | None:
        """The call that gave the memory in use, where it tells what is reserved as well."""
        call = self.memory.settled_call
        if isinstance(call, DirectCall) and call.source == table.MEMORY_V2:
            return call.number
        return None

    def is_probe_due(self) -> bool:
        """Whether an absent field is to be asked for again."""
        self.arrange()
        due_ns = self.probe_mono_ns
        return due_ns is not None and self._faults.clock.mono_ns() >= due_ns

    def reopen(self) -> None:
        """Let the absent fields be asked for again whose time has come."""
        if self.is_probe_due():
            now_ns = self._faults.clock.mono_ns()
            for channel in self._channels():
                channel.reopen(now_ns)
            self.arrange()

    def arrange(self) -> None:
        """Fit the requests to what answers now."""
        if self._arranged == self._faults.choices.revision:
            return
        self._arranged = self._faults.choices.revision
        self.fast_limits = {
            cause: channel for cause, channel in self.limits.items() if _is_field_first(channel)
        }
        self.fast_request = self.fields.request(
            wanted_fields(channel.asked_calls[0] for channel in self.fast_limits.values())
        )
        self.full_request = self.fields.request(
            wanted_fields(call for channel in self._channels() for call in channel.asked_calls)
        )
        due = (channel.absent_until_ns for channel in self._channels())
        self.probe_mono_ns = min((ns for ns in due if ns is not None), default=None)

    def _channel(self, sensor: Sensor, *, wanted: bool) -> Channel:
        calls = (self._call(way) for way in sensor.ways) if wanted else ()
        return Channel(self._faults, sensor.name, sensor.bounds, *calls)

    def _call(self, way: Way) -> Call:
        if isinstance(way, Direct):
            return DirectNumber(self._driver, way).call()
        return self.fields.call(way)

    def _memory_channel(self, plan: SensorPlan) -> Channel:
        calls = [self._call(way) for way in table.MEMORY_USED.ways] if plan.has_memory else []
        if plan.has_memory and plan.system_memory is not None:
            calls.append(self._system_call(plan.system_memory))
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
    """Whether a counter comes with others in one call, as far as is known."""
    calls = channel.asked_calls
    return bool(calls) and isinstance(calls[0], FieldCall)

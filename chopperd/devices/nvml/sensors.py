"""One NVIDIA GPU's readings: which calls fill which field, and at which scope."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Final

from chopperd.devices import plausible
from chopperd.devices.channel import Channel, DeviceFaults, Gauge
from chopperd.devices.nvml import calls as nvml_calls
from chopperd.devices.nvml.codes import POWER_INSTANT_FIELD, causes_of
from chopperd.devices.nvml.fields import FieldCall, FieldGroup
from chopperd.model.causes import Cause
from chopperd.model.devices import DeviceReading, ReadScope
from chopperd.units import watts_from_milliwatts

_NOTHING: Final = DeviceReading()

#: `GpuInfo.power_source`: the power at this instant, or the mean of the last second.
POWER_INSTANT: Final = "instant"
POWER_AVERAGE_1S: Final = "average_1s"


@dataclass(frozen=True, slots=True, kw_only=True)
class SensorPlan:
    """What is known of a GPU before its first look.

    Attributes:
        limit_fields: Ids of the driver's cumulative limit counters, by cause.
        mig: Whether MIG mode is on: the activity of the whole GPU is then not defined.
        has_memory: Whether its memory is told here, and not of its GPU instances.
        memory_size_bytes: Upper bound of the memory in use; None if not known.
    """

    limit_fields: Mapping[int, Cause]
    mig: bool
    has_memory: bool = True
    memory_size_bytes: int | None


class PowerMeter:
    """A GPU's power, from one source for good: a change between samples would look like an event.

    Source: field POWER_INSTANT (mW) where the driver has it. Whether its fall-back,
    `nvmlDeviceGetPowerUsage`, averages over 1 s depends on the chip (GA100 doesn't) and can't be
    asked, so it counts as an average on every GPU.
    """

    def __init__(self, average_w: Gauge[float], faults: DeviceFaults) -> None:
        self._average_w = average_w
        self._faults = faults
        self.source: str | None = None

    def value_w(self, group: FieldGroup, fields: Mapping[int, float]) -> float | None:
        """The power, given the field values of this look and the group they came from."""
        if self.source is None:
            self._settle(group, fields)
        if self.source == POWER_AVERAGE_1S:
            return self._average_w.value()
        value_mw = fields.get(POWER_INSTANT_FIELD)
        if value_mw is None:
            return None
        value_w = watts_from_milliwatts(value_mw)
        return value_w if self._faults.plausible("power_w", value_w, plausible.POWER_W) else None

    def _settle(self, group: FieldGroup, fields: Mapping[int, float]) -> None:
        if POWER_INSTANT_FIELD in fields:
            self.source = POWER_INSTANT
        elif POWER_INSTANT_FIELD not in group.asked_ids and self._average_w.value() is not None:
            self.source = POWER_AVERAGE_1S


class NvmlSensors:
    """Reads one GPU; used by one thread at a time."""

    def __init__(
        self, nvml: ModuleType, handle: object, plan: SensorPlan, faults: DeviceFaults
    ) -> None:
        self._plan = plan
        self._faults = faults
        size_bytes = plan.memory_size_bytes
        memory = plausible.Bounds(0, size_bytes) if size_bytes else plausible.MEMORY_BYTES
        clock = plausible.CLOCK_MHZ
        calls = nvml_calls
        self._sm_clock = Gauge(faults, "sm_clock_mhz", clock, calls.sm_clock_mhz(nvml, handle))
        self._mem_clock = Gauge(faults, "mem_clock_mhz", clock, calls.mem_clock_mhz(nvml, handle))
        self._energy = Gauge(faults, "energy_j", plausible.ENERGY_J, calls.energy_j(nvml, handle))
        self._temperature = Gauge(
            faults, "temperature_c", plausible.TEMPERATURE_C, *calls.temperature_c(nvml, handle)
        )
        self._memory = Gauge(
            faults, "memory_used_bytes", memory, *calls.memory_used_bytes(nvml, handle)
        )
        self._activity = Gauge(
            faults, "activity_ratio", plausible.RATIO, calls.activity_ratio(nvml, handle)
        )
        average_w = Gauge(faults, "power_w", plausible.POWER_W, calls.power_usage_w(nvml, handle))
        self._power = PowerMeter(average_w, faults)
        self._reason_bits = Channel(faults, *calls.reason_bits(nvml, handle))
        self._last_causes = (0, causes_of(0))
        call = FieldCall(nvml, handle)
        self._fast_fields = FieldGroup(call, tuple(plan.limit_fields), faults)
        self._full_fields = FieldGroup(call, (*plan.limit_fields, POWER_INSTANT_FIELD), faults)

    @property
    def power_source(self) -> str | None:
        """Which power is read; None until one has answered."""
        return self._power.source

    @property
    def memory_source(self) -> str | None:
        """Which memory call answers: "v2", or "v1", whose figure holds the driver's reserve."""
        return self._memory.source

    def read(self, scope: ReadScope) -> DeviceReading:
        """One look; fields that are absent or failed are None.

        Raises:
            TransientDeviceError: Calls failed, and not one field was read.
            DeviceLostError: The driver says that the GPU is gone.
        """
        self._faults.begin_look()
        reading = self._full() if scope is ReadScope.FULL else self._fast()
        failure = self._faults.transient
        if failure is not None and reading == _NOTHING:
            raise failure
        return reading

    def _fast(self) -> DeviceReading:
        return DeviceReading(
            sm_clock_mhz=self._sm_clock.value(),
            causes=self._causes(),
            limited_ns=self._limited_ns(self._fast_fields.values()),
        )

    def _full(self) -> DeviceReading:
        sm_clock_mhz = self._sm_clock.value()
        causes = self._causes()
        fields = self._full_fields.values()
        return DeviceReading(
            sm_clock_mhz=sm_clock_mhz,
            mem_clock_mhz=self._mem_clock.value(),
            power_w=self._power.value_w(self._full_fields, fields),
            energy_j=self._energy.value(),
            temperature_c=self._temperature.value(),
            memory_used_bytes=self._memory.value() if self._plan.has_memory else None,
            activity_ratio=None if self._plan.mig else self._activity.value(),
            causes=causes,
            limited_ns=self._limited_ns(fields),
        )

    def _causes(self) -> frozenset[Cause] | None:
        """The limits in force; the set of the look before is reused while the bits stay."""
        bits = self._reason_bits.value()
        if bits is None:
            return None
        if bits != self._last_causes[0]:
            self._last_causes = (bits, causes_of(bits))
        return self._last_causes[1]

    def _limited_ns(self, fields: Mapping[int, float]) -> dict[Cause, int]:
        """The driver's cumulative time under each limit."""
        causes, bounds = self._plan.limit_fields, plausible.LIMITED_NS
        low_ns, high_ns = bounds.low, bounds.high
        limited_ns = {}
        for field_id, value in fields.items():
            if field_id not in causes:
                continue
            # Compared here first: five calls fewer in each tick.
            if low_ns <= value <= high_ns or self._faults.plausible("limited_ns", value, bounds):
                limited_ns[causes[field_id]] = int(value)
        return limited_ns

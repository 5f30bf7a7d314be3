"""The real back end over the fake driver, with a read plan written by hand.

It covers a healthy GPU only: SM and memory clock, reasons, limit counters, energy, temperature,
memory and activity; power as a field. So tests of who carries plans out need no back end that
makes them.
"""

from ctypes import (
    Array,
    Structure,
    c_void_p,
    cast,
    create_string_buffer,
    sizeof,
)
from types import ModuleType

from chopperd.devices import plausible
from chopperd.devices.nvml.backend import NvmlBackend
from chopperd.devices.nvml.codes import POWER_INSTANT_FIELD, causes_of, limit_fields
from chopperd.devices.plausible import Bounds
from chopperd.devices.read_plan import (
    Buffer,
    CallShape,
    NumberKind,
    PlannedCall,
    PlannedCauses,
    PlannedCounter,
    PlannedValue,
    ReadPlan,
)
from chopperd.model.devices import DeviceReading, GpuInfo, ReadScope

CAUSES_BY_BIT = tuple(
    sum(cause.bit for cause in causes_of(1 << position)) for position in range(64)
)


class PlannedNvml:
    """`NvmlBackend`, but for its plans."""

    name = "nvml"
    simulated = False

    def __init__(self, nvml: ModuleType, backend: NvmlBackend) -> None:
        self._nvml = nvml
        self._backend = backend
        self.driver = backend.driver
        self.read_count = 0
        self._plans: dict[tuple[str, ReadScope], ReadPlan] = {}

    def devices(self) -> tuple[GpuInfo, ...]:
        return self._backend.devices()

    def read(self, device: GpuInfo, scope: ReadScope) -> DeviceReading:
        self.read_count += 1
        return self._backend.read(device, scope)

    def close(self) -> None:
        self._backend.close()

    def read_plan(self, device: GpuInfo, scope: ReadScope) -> ReadPlan | None:
        key = device.uuid, scope
        if key not in self._plans:
            self._plans[key] = self._made(device, scope)
        return self._plans[key]

    def forget(self) -> None:
        """Make other plans from now on."""
        self._plans.clear()

    def _made(self, device: GpuInfo, scope: ReadScope) -> ReadPlan:
        handle = cast(self._nvml.nvmlDeviceGetHandleByUUID(device.uuid), c_void_p).value or 0
        calls: list[PlannedCall] = []
        values: list[PlannedValue] = []

        def call(name: str, buffer: Buffer, shape: CallShape, argument: int = 0) -> int:
            function = getattr(self._nvml.nvmlLib, name)
            address = cast(function, c_void_p).value or 0
            calls.append(
                PlannedCall(
                    operation=name,
                    address=address,
                    shape=shape,
                    handle=handle,
                    buffer=buffer,
                    argument=argument,
                )
            )
            return len(calls) - 1

        def value(at: int, name: str, kind: NumberKind, bounds: Bounds, **more: float) -> None:
            values.append(
                PlannedValue(
                    call=at,
                    offset=int(more.get("offset", 0)),
                    kind=kind,
                    name=name,
                    scale=more.get("scale", 1.0),
                    low=bounds.low,
                    high=bounds.high,
                )
            )

        nvml, of, plain = self._nvml, CallShape.OF, CallShape.BUFFER
        clock = "nvmlDeviceGetClockInfo"
        word, long_word = NumberKind.UINT32, NumberKind.UINT64
        at = call(clock, create_string_buffer(4), of, nvml.NVML_CLOCK_SM)
        value(at, "sm_clock_mhz", word, plausible.CLOCK_MHZ)
        reasons = call("nvmlDeviceGetCurrentClocksEventReasons", create_string_buffer(8), plain)
        fields = limit_fields(self.driver)
        wanted = [*fields, *([POWER_INSTANT_FIELD] if scope is ReadScope.FULL else [])]
        request: Array[Structure] = (nvml.c_nvmlFieldValue_t * len(wanted))()
        for slot, field_id in zip(request, wanted, strict=True):
            slot.fieldId = field_id
        size = sizeof(nvml.c_nvmlFieldValue_t)
        at = call("nvmlDeviceGetFieldValues", request, CallShape.COUNT, len(wanted))
        counters = tuple(
            PlannedCounter(
                call=at,
                offset=size * place + 32,
                kind=long_word,
                cause=fields[field_id],
                low=0,
                high=float(plausible.LIMITED_NS.high),
                checks={size * place + 24: 3, size * place + 28: 0},
            )
            for place, field_id in enumerate(fields)
        )
        if scope is ReadScope.FULL:
            power = size * len(fields)
            values.append(
                PlannedValue(
                    call=at,
                    offset=power + 32,
                    kind=word,
                    name="power_w",
                    scale=0.001,
                    low=plausible.POWER_W.low,
                    high=plausible.POWER_W.high,
                    checks={power + 24: 1, power + 28: 0},
                )
            )
            at = call(clock, create_string_buffer(4), of, nvml.NVML_CLOCK_MEM)
            value(at, "mem_clock_mhz", word, plausible.CLOCK_MHZ)
            at = call("nvmlDeviceGetTotalEnergyConsumption", create_string_buffer(8), plain)
            value(at, "energy_j", long_word, plausible.ENERGY_J, scale=0.001)
            temperature = nvml.c_nvmlTemperature_v1_t()
            temperature.version = nvml.nvmlTemperature_v1
            at = call("nvmlDeviceGetTemperatureV", temperature, plain)
            value(at, "temperature_c", NumberKind.INT32, plausible.TEMPERATURE_C, offset=8)
            memory = nvml.c_nvmlMemory_v2_t()
            memory.version = nvml.nvmlMemory_v2
            at = call("nvmlDeviceGetMemoryInfo_v2", memory, plain)
            used = type(memory).used.offset
            value(at, "memory_used_bytes", long_word, plausible.MEMORY_BYTES, offset=used)
            at = call("nvmlDeviceGetUtilizationRates", nvml.c_nvmlUtilization_t(), plain)
            value(at, "activity_ratio", word, plausible.RATIO, scale=0.01)
        return ReadPlan(
            calls=tuple(calls),
            values=tuple(values),
            causes=PlannedCauses(call=reasons, offset=0, kind=long_word, causes=CAUSES_BY_BIT),
            counters=counters,
        )

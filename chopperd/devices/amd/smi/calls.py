"""Makes AMD SMI's calls for one GPU: for its block of metrics, and for single numbers."""

import ctypes
from collections.abc import Iterable, Iterator
from ctypes import Structure, Union, memset, sizeof
from dataclasses import dataclass
from itertools import groupby
from typing import Final, TypeAlias

from chopperd import plausible
from chopperd.devices.amd.block import ABSENT, MetricsLayout, MetricSlot
from chopperd.devices.amd.planning import PlannableCall
from chopperd.devices.amd.sensors import ExtraField
from chopperd.devices.amd.smi.library import METRICS_CALL, SPARE_BYTES, Library, OutBuffer, SmiError
from chopperd.devices.amd.table import POWER_AVERAGE, POWER_INSTANT
from chopperd.devices.faults import CallFailedError
from chopperd.devices.read_plan import (
    FORMAT_BY_KIND,
    UNSIGNED_BY_BYTES,
    Buffer,
    CallShape,
    NumberKind,
    PlannedCall,
)
from chopperd.plausible import Bounds
from chopperd.units import MICROWATTS_PER_WATT


@dataclass(frozen=True, slots=True, kw_only=True)
class SmiQuery:
    """A number that a separate call gives, outside of the block of metrics."""

    field: str  # the field of `DeviceReading` or `GpuInfo`
    bounds: Bounds
    call: str  # the entry point
    #: Arguments that select the number: names of constants in the binding, or numbers.
    keys: tuple[str | int, ...] = ()
    structure: str | None = None  # type of the answer; None if it is a number alone
    member: str = ""  # member of that structure
    kind: NumberKind = NumberKind.UINT64  # encoding of a number alone
    per_unit: int = 1  # how many of the library's units are one of the field's
    source: str | None = None  # name of this query where a field has several
    unit: str  # the library's unit
    #: A value that means "not reported", in addition to all ones: all ones of a narrower number
    #: that was copied here.
    absent: int | None = None

    @property
    def operation(self) -> str:
        """Name of the call and the member, for errors and counts."""
        return f"{self.call}.{self.member}" if self.member else self.call


def _memory(field: str, call: str) -> SmiQuery:
    keys, bounds = ("AMDSMI_MEM_TYPE_VRAM",), plausible.MEMORY_BYTES
    return SmiQuery(field=field, bounds=bounds, call=call, keys=keys, unit="bytes")


def _power_limit(field: str, member: str) -> SmiQuery:
    return SmiQuery(
        field=field,
        bounds=plausible.POWER_W,
        call="amdsmi_get_power_cap_info",
        keys=(0,),
        structure="amdsmi_power_cap_info_t",
        member=member,
        per_unit=MICROWATTS_PER_WATT,
        unit="uW",
    )


def _clock(field: str, domain: str, member: str) -> SmiQuery:
    return SmiQuery(
        field=field,
        bounds=plausible.CLOCK_MHZ,
        call="amdsmi_get_clock_info",
        keys=(f"AMDSMI_CLK_TYPE_{domain}",),
        structure="amdsmi_clk_info_t",
        member=member,
        unit="MHz",
    )


def _power(member: str, source: str) -> SmiQuery:
    return SmiQuery(
        field="power_w",
        bounds=Bounds(plausible.POWER_W.low, 65_534),
        call="amdsmi_get_power_info",
        structure="amdsmi_power_info_t",
        member=member,
        source=source,
        unit="W",
        absent=ABSENT[NumberKind.UINT16],
    )


def _threshold(field: str, sensor: str, limit: str) -> SmiQuery:
    return SmiQuery(
        field=field,
        bounds=plausible.THRESHOLD_C,
        call="amdsmi_get_temp_metric",
        keys=(f"AMDSMI_TEMPERATURE_TYPE_{sensor}", f"AMDSMI_TEMP_{limit}"),
        kind=NumberKind.INT64,
        unit="C",
    )


#: Queries of fields, best first.
Queries: TypeAlias = tuple[SmiQuery, ...]

#: Fields that full reads add to the block. Source: amdsmi_get_gpu_memory_usage (bytes, of the whole
#: card); amdsmi_power_cap_info_t (uW from ROCm 6.1.2 on), of the first sensor.
EXTRA: Final[Queries] = (
    _memory("memory_used_bytes", "amdsmi_get_gpu_memory_usage"),
    _power_limit("power_limit_w", "power_cap"),
)
#: For GPUs whose block is not available (in virtual machines), or lacks the field.
FALLBACKS: Final[Queries] = (
    _clock("sm_clock_mhz", "GFX", "clk"),
    _clock("mem_clock_mhz", "MEM", "clk"),
    _power("current_socket_power", POWER_INSTANT),
    _power("average_socket_power", POWER_AVERAGE),
    SmiQuery(
        field="activity_ratio",
        bounds=plausible.RATIO,
        call="amdsmi_get_gpu_activity",
        structure="amdsmi_engine_usage_t",
        member="gfx_activity",
        per_unit=100,
        unit="%",
        absent=ABSENT[NumberKind.UINT16],
    ),
)
#: Fields of `GpuInfo`, read once. A clock's highest level is that of now: a user may have lowered
#: it.
FIXED: Final[Queries] = (
    _clock("sm_clock_max_mhz", "GFX", "max_clk"),
    _clock("mem_clock_max_mhz", "MEM", "max_clk"),
    _power_limit("power_limit_w", "power_cap"),
    _power_limit("power_limit_default_w", "default_power_cap"),
    _threshold("temperature_slowdown_c", "HOTSPOT", "CRITICAL"),
    _threshold("temperature_shutdown_c", "HOTSPOT", "EMERGENCY"),
    _threshold("temperature_memory_max_c", "VRAM", "CRITICAL"),
    _memory("memory_size_bytes", "amdsmi_get_gpu_memory_total"),
)


def fields_of(
    library: Library, handle: int, queries: Queries, size_bytes: int | None = None
) -> tuple[ExtraField, ...]:
    """Return fields of a GPU, each with those of its calls that this library version has.

    `size_bytes` is the upper bound of the memory in use.
    """
    fields = []
    for name, group in groupby(queries, key=lambda query: query.field):
        each = tuple(group)
        is_limited = name == "memory_used_bytes" and size_bytes
        bounds = Bounds(0, size_bytes or 0) if is_limited else each[0].bounds
        calls = tuple(_calls(library, handle, each))
        fields.append(ExtraField(name=name, bounds=bounds, calls=calls))
    return tuple(fields)


def values_of(fields: Iterable[ExtraField]) -> dict[str, float]:
    """Read fields once; return their plausible values other than 0, by name."""
    found: dict[str, float] = {}
    for field in fields:
        for call in field.calls:
            try:
                value = call.read()
            except (SmiError, CallFailedError):
                continue
            if value in field.bounds and value:
                found[field.name] = int(value) if field.name.endswith("_bytes") else value
    return found


def _calls(library: Library, handle: int, queries: Queries) -> Iterator[PlannableCall]:
    for query in queries:
        try:
            yield _call(library, handle, query)
        except LookupError:  # this version has no such call, key or member
            continue


def _call(library: Library, handle: int, query: SmiQuery) -> PlannableCall:
    """Make a call for one number, with a reused buffer; raises LookupError if it is missing."""
    structure = library.binding.structure(query.structure) if query.structure else None
    out = OutBuffer(structure)
    keys = tuple(_key(library, key) for key in query.keys)
    offset, kind = 0, query.kind
    if query.structure is not None:
        offset, kind = _member(structure, query.member)
    address = library.binding.address(query.call)
    if address is None:
        raise LookupError(query.call)
    absent = {ABSENT.get(kind), query.absent} - {None}
    unpack, per_unit = FORMAT_BY_KIND[kind].unpack_from, query.per_unit

    def read() -> float:
        library.call(query.call, handle, *keys, out.address)
        number: int = unpack(out.buffer, offset)[0]
        if number in absent:
            raise CallFailedError(is_absent=True)
        return number if per_unit == 1 else number / per_unit

    planned = PlannedCall(
        operation=query.call,
        address=address,
        shape=CallShape.OF if keys else CallShape.BUFFER,
        handle=handle,
        buffer=out.buffer,
        argument=keys[0] if keys else 0,
        lock=library.lock,
    )
    return PlannableCall(
        operation=query.operation,
        read=read,
        source=query.source,
        plan=lambda: None if len(keys) > 1 else planned,  # no shape has two arguments
        offset=offset,
        kind=kind,
        scale=1 / per_unit,
        unit=query.unit,
    )


def _key(library: Library, key: str | int) -> int:
    number = key if isinstance(key, int) else library.binding.number(key)
    if number is None:
        raise LookupError(key)
    return number


def _member(structure: type | None, name: str) -> tuple[int, NumberKind]:
    """Return offset (bytes) and encoding of a member; raises LookupError if there is none."""
    member = getattr(structure, name, None)
    if member is None:
        raise LookupError(name)
    return member.offset, UNSIGNED_BY_BYTES[member.size]


# The block of metrics, laid out as the binding's own structure.

_STRUCTURE: Final = "amdsmi_gpu_metrics_t"
#: Member with an array of statistics per partition, each with an array of counts per die.
_PARTITIONS: Final = "xcp_stats"
_UNSIGNED: Final = (ctypes.c_uint16, ctypes.c_uint32, ctypes.c_uint64)
#: Fill bytes that show how much the library writes.
_CANARIES: Final = (0xA5, 0x5A)
#: Padding at the end of a structure, which may not be written.
_PADDING_BYTES: Final = 8
_ALL_ONES: Final = 0xFF


def layout_of(library: Library) -> MetricsLayout:
    """Return where each metric is; no metrics where the binding has no such structure."""
    structure = library.binding.structure(_STRUCTURE)
    if structure is None:
        return MetricsLayout(version="none", size_bytes=0, slots={})
    slots: dict[str, MetricSlot] = {}
    for name, kind in _members(structure):
        offset = getattr(structure, name).offset
        if name == _PARTITIONS:
            slots |= _partition_slots(kind, offset)
        elif (slot := _slot(kind, offset)) is not None:
            slots[name] = slot
    return MetricsLayout(
        version=f"amdsmi {library.version_text}", size_bytes=sizeof(structure), slots=slots
    )


def check_size(library: Library, handle: int, layout: MetricsLayout) -> None:
    """Fetch the block and check that the library writes as many bytes as the binding expects.

    Does nothing for a GPU that gives no metrics, as nothing is read of them either.

    Raises:
        BackendUnavailableError: The library writes another number of bytes.
    """
    if not layout.slots:
        return
    written = 0
    for canary in _CANARIES:
        out = OutBuffer(library.binding.structure(_STRUCTURE))
        memset(out.address, canary, layout.size_bytes + SPARE_BYTES)
        try:
            library.call(METRICS_CALL, handle, out.address)
        except SmiError:
            return
        written = max(written, len(out.buffer.raw.rstrip(bytes([canary]))))
    if not layout.size_bytes - _PADDING_BYTES < written <= layout.size_bytes:
        detail = f", whose metrics have {written} bytes, not {layout.size_bytes}"
        raise library.mismatch(library.version, detail)


class SmiSource:
    """Fetches one GPU's block into a reused buffer, which is all ones ("not reported") at first."""

    operation = METRICS_CALL

    def __init__(self, library: Library, handle: int, layout: MetricsLayout) -> None:
        self.layout = layout
        self._library = library
        self._handle = handle
        self._out = OutBuffer(library.binding.structure(_STRUCTURE))
        memset(self._out.address, _ALL_ONES, layout.size_bytes)
        self.buffer: Buffer = self._out.buffer

    def fetch(self) -> None:
        """Fetch the block into `buffer`; raises SmiError."""
        self._library.call(METRICS_CALL, self._handle, self._out.address)

    def planned_call(self) -> PlannedCall | None:
        """Return `fetch` as a call of a read plan; None if the library has no such call."""
        address = self._library.binding.address(METRICS_CALL)
        if address is None:
            return None
        return PlannedCall(
            operation=METRICS_CALL,
            address=address,
            shape=CallShape.BUFFER,
            handle=self._handle,
            buffer=self.buffer,
            lock=self._library.lock,
        )

    def close(self) -> None:
        """Do nothing: the library is closed for all GPUs together."""


def _members(structure: type) -> list[tuple[str, type]]:
    """Return names and types of a structure's members."""
    return [(member[0], member[1]) for member in getattr(structure, "_fields_", ())]


def _slot(kind: type, offset: int) -> MetricSlot | None:
    """Return the slot of an unsigned number, or of an array of them; None for other types."""
    count = getattr(kind, "_length_", 1)
    one = getattr(kind, "_type_", None) if hasattr(kind, "_length_") else kind
    size = next((sizeof(each) for each in _UNSIGNED if one is each), None)
    if size is None:
        return None
    return MetricSlot(
        kind=UNSIGNED_BY_BYTES[size], offsets=tuple(offset + size * each for each in range(count))
    )


def _partition_slots(kind: type, offset: int) -> dict[str, MetricSlot]:
    """Return slots of the partitions' statistics, each with all partitions' dies in a row."""
    one = getattr(kind, "_type_", None)
    if not isinstance(one, type) or not issubclass(one, Structure | Union):
        return {}
    slots: dict[str, MetricSlot] = {}
    for name, member in _members(one):
        for partition in range(getattr(kind, "_length_", 0)):
            start = offset + partition * sizeof(one) + getattr(one, name).offset
            slot = _slot(member, start)
            if slot is None:
                continue
            before = slots[name].offsets if name in slots else ()
            slots[name] = MetricSlot(kind=slot.kind, offsets=before + slot.offsets)
    return slots

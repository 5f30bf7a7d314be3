"""Numbers that AMD SMI gives by calls of their own: memory, limits, and stand-ins for the block."""

from collections.abc import Iterator
from ctypes import addressof, c_uint32, create_string_buffer, sizeof
from dataclasses import dataclass
from struct import Struct
from typing import Final

from chopperd.devices.amd.block import ABSENT
from chopperd.devices.amd.planning import PlannableCall
from chopperd.devices.amd.sensors import Beside
from chopperd.devices.amd.smi.codes import OUT_OF_RESOURCES
from chopperd.devices.amd.smi.library import SPARE_BYTES, Library, Room, SmiError
from chopperd.devices.amd.table import POWER_AVERAGE, POWER_INSTANT
from chopperd.devices.channel import CallFailedError, DeviceFaults
from chopperd.devices.read_plan import CallShape, NumberKind, PlannedCall
from chopperd.model import plausible
from chopperd.model.devices import GpuProcess
from chopperd.model.plausible import Bounds
from chopperd.units import MICROWATTS_PER_WATT

_FORMATS: Final = {
    NumberKind.UINT16: Struct("<H"),
    NumberKind.UINT32: Struct("<I"),
    NumberKind.UINT64: Struct("<Q"),
    NumberKind.INT64: Struct("<q"),
}
_ABSENT_16: Final = ABSENT[NumberKind.UINT16]
_KINDS: Final = {2: NumberKind.UINT16, 4: NumberKind.UINT32, 8: NumberKind.UINT64}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """How a number is asked for.

    Attributes:
        call: By which entry point.
        keys: Names of the numbers, in the binding, that choose what is asked for; a number itself.
        structure: What the answer is; None: a number alone.
        member: Which of its members.
        kind: How a number alone stands there.
        per_unit: How many of the library's units are one of the field's.
        source: What tells users this way from its alternatives.
        unit: The library's unit.
        absent: What stands for "not reported" beside all ones: those of a narrower number that was
            copied here.
    """

    call: str
    keys: tuple[str | int, ...] = ()
    structure: str | None = None
    member: str = ""
    kind: NumberKind = NumberKind.UINT64
    per_unit: int = 1
    source: str | None = None
    unit: str
    absent: int | None = None


_VRAM: Final = ("AMDSMI_MEM_TYPE_VRAM",)
_GFX: Final = ("AMDSMI_CLK_TYPE_GFX",)
_MEM: Final = ("AMDSMI_CLK_TYPE_MEM",)
_CLOCK: Final = "amdsmi_clk_info_t"

# Source: amdsmi_get_gpu_memory_usage and _total (bytes), of the card as a whole.
MEMORY_USED: Final = Question(call="amdsmi_get_gpu_memory_usage", keys=_VRAM, unit="bytes")
MEMORY_SIZE: Final = Question(call="amdsmi_get_gpu_memory_total", keys=_VRAM, unit="bytes")
# Source: amdsmi_power_cap_info_t (uW from ROCm 6.1.2 on), of the first sensor.
POWER_LIMIT: Final = Question(
    call="amdsmi_get_power_cap_info",
    keys=(0,),
    structure="amdsmi_power_cap_info_t",
    member="power_cap",
    per_unit=MICROWATTS_PER_WATT,
    unit="uW",
)


def _clock(keys: tuple[str, ...], member: str) -> Question:
    return Question(
        call="amdsmi_get_clock_info", keys=keys, structure=_CLOCK, member=member, unit="MHz"
    )


def _power(member: str, source: str) -> Question:
    return Question(
        call="amdsmi_get_power_info",
        structure="amdsmi_power_info_t",
        member=member,
        source=source,
        unit="W",
        absent=_ABSENT_16,
    )


def _temperature(sensor: str, metric: str) -> Question:
    return Question(
        call="amdsmi_get_temp_metric",
        keys=(f"AMDSMI_TEMPERATURE_TYPE_{sensor}", f"AMDSMI_TEMP_{metric}"),
        kind=NumberKind.INT64,
        unit="C",
    )


#: What full looks read beside the block.
BESIDE: Final = (
    ("memory_used_bytes", plausible.MEMORY_BYTES, (MEMORY_USED,)),
    ("power_limit_w", plausible.POWER_W, (POWER_LIMIT,)),
)
#: Where the block is not given (in virtual machines), or lacks the field.
STAND_INS: Final = (
    ("sm_clock_mhz", plausible.CLOCK_MHZ, (_clock(_GFX, "clk"),)),
    ("mem_clock_mhz", plausible.CLOCK_MHZ, (_clock(_MEM, "clk"),)),
    (
        "power_w",
        Bounds(plausible.POWER_W.low, 65_534),
        (
            _power("current_socket_power", POWER_INSTANT),
            _power("average_socket_power", POWER_AVERAGE),
        ),
    ),
    (
        "activity_ratio",
        plausible.RATIO,
        (
            Question(
                call="amdsmi_get_gpu_activity",
                structure="amdsmi_engine_usage_t",
                member="gfx_activity",
                per_unit=100,
                unit="%",
                absent=_ABSENT_16,
            ),
        ),
    ),
)
#: Fields of `GpuInfo`, asked for once. A clock's highest level is that of now: one that was lowered
#: by a user hides what it was.
FIXED: Final = (
    ("sm_clock_max_mhz", plausible.CLOCK_MHZ, _clock(_GFX, "max_clk")),
    ("mem_clock_max_mhz", plausible.CLOCK_MHZ, _clock(_MEM, "max_clk")),
    ("power_limit_w", plausible.POWER_W, POWER_LIMIT),
    (
        "power_limit_default_w",
        plausible.POWER_W,
        Question(
            call="amdsmi_get_power_cap_info",
            keys=(0,),
            structure="amdsmi_power_cap_info_t",
            member="default_power_cap",
            per_unit=MICROWATTS_PER_WATT,
            unit="uW",
        ),
    ),
    ("temperature_slowdown_c", plausible.THRESHOLD_C, _temperature("HOTSPOT", "CRITICAL")),
    ("temperature_shutdown_c", plausible.THRESHOLD_C, _temperature("HOTSPOT", "EMERGENCY")),
    ("temperature_memory_max_c", plausible.THRESHOLD_C, _temperature("VRAM", "CRITICAL")),
    ("memory_size_bytes", plausible.MEMORY_BYTES, MEMORY_SIZE),
)


class SmiNumber:
    """One number by a call of its own, into a buffer that is used again.

    Raises:
        LookupError: This version of the binding has no such call, key or member.
    """

    def __init__(self, library: Library, handle: int, question: Question) -> None:
        structure = library.binding.structure(question.structure) if question.structure else None
        self._library = library
        self._handle = handle
        self._room = Room(structure)
        self._call = question.call
        self._keys = tuple(_key(library, key) for key in question.keys)
        self.offset, self.kind = 0, question.kind
        if question.structure is not None:
            self.offset, self.kind = _member(structure, question.member)
        self._absent = {ABSENT.get(self.kind), question.absent} - {None}
        self._unpack = _FORMATS[self.kind].unpack_from
        if library.binding.address(question.call) is None:
            raise LookupError(question.call)

    def raw(self) -> int:
        """The number in the library's unit.

        Raises:
            SmiError: The call fails.
            CallFailedError: It says that there is no such number: all ones.
        """
        self._library.call(self._call, self._handle, *self._keys, self._room.address)
        number: int = self._unpack(self._room.buffer, self.offset)[0]
        if number in self._absent:
            raise CallFailedError(is_absent=True)
        return number

    def planned_call(self) -> PlannedCall | None:
        """The same without Python; None where it takes too much for that."""
        address = self._library.binding.address(self._call)
        if address is None or len(self._keys) > 1:
            return None
        return PlannedCall(
            operation=self._call,
            address=address,
            shape=CallShape.OF if self._keys else CallShape.BUFFER,
            handle=self._handle,
            buffer=self._room.buffer,
            argument=self._keys[0] if self._keys else 0,
            lock=self._library.lock,
        )


def beside(library: Library, handle: int, size_bytes: int | None) -> tuple[Beside, ...]:
    """What full looks at a GPU read beside its block."""
    return tuple(
        Beside(
            name=name,
            bounds=Bounds(0, size_bytes) if name == "memory_used_bytes" and size_bytes else bounds,
            calls=tuple(_calls(library, handle, questions)),
        )
        for name, bounds, questions in BESIDE
    )


def stand_ins(library: Library, handle: int) -> tuple[Beside, ...]:
    """Ways to fields of the block that a GPU may lack there."""
    return tuple(
        Beside(name=name, bounds=bounds, calls=tuple(_calls(library, handle, questions)))
        for name, bounds, questions in STAND_INS
    )


def fixed(library: Library, handle: int) -> dict[str, float]:
    """What of a GPU stands still and is told and can be believed, by field of `GpuInfo`."""
    found: dict[str, float] = {}
    for name, bounds, question in FIXED:
        try:
            value = SmiNumber(library, handle, question).raw() / question.per_unit
        except (LookupError, SmiError, CallFailedError):
            continue
        if value in bounds and value:
            found[name] = int(value) if name.endswith("_bytes") else value
    return found


def _calls(
    library: Library, handle: int, questions: tuple[Question, ...]
) -> Iterator[PlannableCall]:
    for question in questions:
        try:
            number = SmiNumber(library, handle, question)
        except LookupError:
            continue
        planned = number.planned_call()
        if planned is not None:
            yield _way(number, planned, question)


def _way(number: SmiNumber, planned: PlannedCall, question: Question) -> PlannableCall:
    read, per_unit = number.raw, question.per_unit
    suffix = f".{question.member}" if question.source else ""
    return PlannableCall(
        operation=question.call + suffix,
        read=read if per_unit == 1 else lambda: read() / per_unit,
        source=question.source,
        plan=lambda: planned,
        offset=number.offset,
        kind=number.kind,
        scale=1 / per_unit,
    )


def _key(library: Library, key: str | int) -> int:
    number = key if isinstance(key, int) else library.binding.number(key)
    if number is None:
        raise LookupError(key)
    return number


def _member(structure: type | None, name: str) -> tuple[int, NumberKind]:
    """Where a member stands, and how."""
    member = getattr(structure, name, None)
    if member is None:
        raise LookupError(name)
    return member.offset, _KINDS[member.size]


# What of a GPU is asked seldom, by another thread than the one that reads it.

_PROCESSES: Final = "amdsmi_get_gpu_process_list"
_MOST_PROCESSES: Final = 256
_BAD_PAGES: Final = "amdsmi_get_gpu_bad_page_info"


class ProcessList:
    """The compute processes of one GPU; used by one thread.

    Source: amdsmi_get_gpu_process_list: pid, of the initial pid namespace where the library sees
    that, and bytes of device memory.
    """

    def __init__(self, library: Library, handle: int, faults: DeviceFaults) -> None:
        self._library = library
        self._handle = handle
        self._faults = faults
        self._one = library.binding.structure("amdsmi_proc_info_t")

    def now(self) -> tuple[GpuProcess, ...] | None:
        """The processes; None where AMD SMI does not say.

        Raises:
            TransientDeviceError: The call failed this time.
            DeviceLostError: The GPU is gone.
        """
        if self._one is None:
            return None
        self._faults.begin_look()
        try:
            return self._faults.plausible_processes(self._listed())
        except SmiError as error:
            self._faults.absent(error, _PROCESSES)
            if self._faults.transient is not None:
                raise self._faults.transient from error
            return None

    def _listed(self) -> Iterator[GpuProcess]:
        one = self._one
        assert one is not None
        room = create_string_buffer(_MOST_PROCESSES * sizeof(one) + SPARE_BYTES)
        count = c_uint32(_MOST_PROCESSES)
        try:
            self._library.call(_PROCESSES, self._handle, addressof(count), addressof(room))
        except SmiError as error:
            if error.code != OUT_OF_RESOURCES:  # more than there is room for: these at least
                raise
        for place in range(min(count.value, _MOST_PROCESSES)):
            row = one.from_buffer(room, place * sizeof(one))
            yield GpuProcess(
                pid=int(getattr(row, "pid", 0)), memory_used_bytes=int(getattr(row, "mem", 0))
            )


def troubles(library: Library, handle: int) -> Iterator[str]:
    """What AMD SMI knows to be wrong with a GPU, a line each; never raises.

    Source: amdsmi_get_gpu_total_ecc_count, amdsmi_get_gpu_bad_page_info.
    """
    room = Room(library.binding.structure("amdsmi_error_count_t"))
    try:
        library.call("amdsmi_get_gpu_total_ecc_count", handle, room.address)
        count = int(getattr(room.fields, "uncorrectable_count", 0))
        if 0 < count < 1 << 63:
            yield f"{count} uncorrectable memory errors since the driver loaded"
    except SmiError:
        pass
    count_of_pages = c_uint32(0)
    try:
        library.call(_BAD_PAGES, handle, addressof(count_of_pages), None)
    except SmiError:
        return
    if count_of_pages.value:
        yield f"{count_of_pages.value} bad memory pages"

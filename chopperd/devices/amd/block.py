"""A GPU's block of metrics: brought by one call a look, then read number by number."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final, Protocol

from chopperd.devices.amd import table
from chopperd.devices.amd.table import Way
from chopperd.devices.channel import Call, CallFailedError, DeviceFaults
from chopperd.devices.read_plan import Buffer, NumberKind, PlannedCall
from chopperd.errors import TransientDeviceError
from chopperd.model.plausible import Bounds
from chopperd.units import NS_PER_S

# Where each metric of an AMD GPU stands in a block of memory; what it means is in `table`.

#: All ones in a number's own width stands for "not reported".
ABSENT: Final[Mapping[NumberKind, int]] = {
    NumberKind.UINT16: 2**16 - 1,
    NumberKind.UINT32: 2**32 - 1,
    NumberKind.UINT64: 2**64 - 1,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricPlace:
    """Where one metric stands.

    Attributes:
        kind: How each of its numbers stands there.
        offsets: Bytes from the start of the block: one, or one for each die, in order.
    """

    kind: NumberKind
    offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsLayout:
    """A block of metrics of one version.

    Attributes:
        version: For people ("gpu_metrics v1.8", "amdsmi 26.0").
        size_bytes: Of the whole block.
        places: By the metric's name: that of `amdsmi_gpu_metrics_t`, also where the kernel's
            differs ("current_gfxclks", "current_socket_power"). What is counted for each die of
            each partition has all dies in a row ("gfx_below_host_limit_ppt_acc").
    """

    version: str
    size_bytes: int
    places: Mapping[str, MetricPlace]


class TornBlock:
    """Marks a vendor's error that says that a block is not as long as it was."""


class MetricsSource(Protocol):
    """Brings the block of one GPU."""

    @property
    def layout(self) -> MetricsLayout:
        """Where what stands in it."""
        ...

    @property
    def buffer(self) -> Buffer:
        """Holds the block after `fetch`; always the same."""
        ...

    @property
    def operation(self) -> str:
        """What bringing it is called, in errors and counts."""
        ...

    def fetch(self) -> None:
        """Bring the block anew.

        Raises:
            Exception: The vendor's error, as `VendorErrors` classes it.
        """
        ...

    def planned_call(self) -> PlannedCall | None:
        """The same without Python; None where that can't be."""
        ...


#: Every block begins with a word that says how long it is and of which version.
HEADER_OFFSET: Final = 0
_HEADER: Final = Struct("<I")
#: A block whose firmware's time stands still for so long is stale.
STILL_NS: Final = NS_PER_S

_FORMATS: Final = {
    NumberKind.UINT16: Struct("<H"),
    NumberKind.UINT32: Struct("<I"),
    NumberKind.UINT64: Struct("<Q"),
}
_SIZES: Final = {kind: form.size for kind, form in _FORMATS.items()}


class Block:
    """Brings the block once a look; what is in it, numbers say.

    Args:
        source: Brings it; what it holds before is of no use, or all ones.
        faults: Takes what goes wrong.

    Attributes:
        header: The word that it begins with; None until it was brought.
    """

    def __init__(self, source: MetricsSource, faults: DeviceFaults) -> None:
        self._source = source
        self._faults = faults
        self._failure: CallFailedError | None = None
        self.header: int | None = None
        stamp = self.place(table.STAMP)
        self._stamp = None if stamp is None else self.number(stamp, 0)
        self._torn_mono_ns: int | None = None
        self._last_stamp: int | None = None
        self._changed_mono_ns = 0

    @property
    def source(self) -> MetricsSource:
        """Where it comes from."""
        return self._source

    @property
    def failure(self) -> CallFailedError | None:
        """Why the last look brought nothing; None if it did."""
        return self._failure

    @property
    def stamp_place(self) -> MetricPlace | None:
        """Where the firmware's time stands, once it was seen; None where it is not told."""
        return None if self._last_stamp is None else self.place(table.STAMP)

    def look(self) -> None:
        """Bring it anew.

        Raises:
            DeviceLostError: The GPU is gone, or its block has been of another version for a while
                (the driver was replaced): who finds it again finds the new one.
        """
        self._failure = None
        try:
            self._source.fetch()
        except self._faults.vendor_error as error:
            is_absent = self._faults.absent(error, self._source.operation)
            if is_absent and self.header is not None:
                self._fail_for_now(error)
                is_absent = False
            self._failure = CallFailedError(is_absent=is_absent)
            if isinstance(error, TornBlock):
                self._note_torn()
            return
        header = _HEADER.unpack_from(self._source.buffer, HEADER_OFFSET)[0]
        if self.header is None:
            self.header = header
            self._faults.choices.revision += 1
        if header != self.header:
            self._drop("header")
            self._note_torn()
            return
        self._torn_mono_ns = None
        if self._is_stale():
            self._drop(table.STAMP)

    def _note_torn(self) -> None:
        """Count this look's block as torn; one that stays so is another one."""
        now_ns = self._faults.clock.mono_ns()
        if self._torn_mono_ns is None:
            self._torn_mono_ns = now_ns
        if now_ns - self._torn_mono_ns >= STILL_NS:
            raise self._faults.lost(
                "its block of metrics is of another version now", self._source.operation
            )

    def _fail_for_now(self, error: Exception) -> None:
        """What once came is not missing because it does not come now: this look has failed.

        Drivers say "not supported" and "no permission" while a GPU is reset.
        """
        failure = self._faults.classified(error, self._source.operation)
        self._faults.failed_total[failure.operation] += 1
        self._faults.transient = TransientDeviceError(
            str(failure),
            operation=failure.operation,
            device_index=failure.device_index,
            vendor_code=failure.vendor_code,
        )

    def _drop(self, reason: str) -> None:
        """Take nothing from this block."""
        self._faults.implausible_total[reason] += 1
        self._failure = CallFailedError(is_absent=False)

    def place(self, metric: str) -> MetricPlace | None:
        """Where a metric stands; None where this version has none of the name."""
        return self._source.layout.places.get(metric)

    def number(self, place: MetricPlace, position: int) -> "BlockNumber":
        """One number of a metric."""
        return BlockNumber(self, self._source, place.kind, place.offsets[position])

    def stamp(self) -> int | None:
        """The firmware's time, in its own ticks; None where it is not told."""
        return None if self._stamp is None else self._stamp.raw() or None

    def stamp_ns(self) -> int | None:
        """The firmware's time, ns; None where it is not told."""
        stamp = self.stamp()
        return None if stamp is None else stamp * table.FIRMWARE_TICK_NS

    def _is_stale(self) -> bool:
        """Whether the firmware's time has stood still for long."""
        stamp, now_ns = self.stamp(), self._faults.clock.mono_ns()
        if stamp is None:
            return False
        if stamp != self._last_stamp:
            if self._last_stamp is None:
                self._faults.choices.revision += 1
            self._last_stamp, self._changed_mono_ns = stamp, now_ns
        return now_ns - self._changed_mono_ns >= STILL_NS


class BlockNumber:
    """One number in a block.

    Attributes:
        kind, offset: How and where it stands.
    """

    def __init__(self, block: Block, source: MetricsSource, kind: NumberKind, offset: int) -> None:
        self.kind = kind
        self.offset = offset
        self._block = block
        self._buffer = source.buffer
        self._decode = _FORMATS[kind].unpack_from
        self._absent = ABSENT[kind]

    def raw(self) -> int | None:
        """As it stands there after the last look; None where it is all ones: not reported."""
        (number,) = self._decode(self._buffer, self.offset)
        return None if number == self._absent else number

    def read(self, absent: int | None = None) -> int:
        """As it stands there.

        Args:
            absent: What stands for "not reported" beside all ones.

        Raises:
            CallFailedError: The last look brought nothing, or nothing for it.
        """
        if self._block.failure is not None:
            raise self._block.failure
        number = self.raw()
        if number is None or number == absent:
            raise CallFailedError(is_absent=True)
        return number


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCall(Call):
    """A way to a field by a number of the block.

    Attributes:
        number: The number.
        way: What it is.
    """

    number: BlockNumber
    way: Way


def calls_of(block: Block, ways: Sequence[Way]) -> tuple[BlockCall, ...]:
    """The ways to a field that this version of the block has, in order."""
    placed = ((way, block.place(way.metric)) for way in ways)
    return tuple(_call(way, block.number(place, 0)) for way, place in placed if place is not None)


def bounds_of(calls: Sequence[BlockCall], bounds: Bounds) -> Bounds:
    """The bounds of a field that keep out all ones as well, which may be a believable value."""
    highest = ((ABSENT[call.number.kind] - 1) / call.way.per_unit for call in calls)
    return Bounds(bounds.low, min(bounds.high, *highest))


def _call(way: Way, number: BlockNumber) -> BlockCall:
    known = [False]

    def read() -> float:
        try:
            value = number.read(way.absent)
        except CallFailedError as failure:
            # Once there, a gap is a gap of this look: the sensor is asked again at the next.
            raise CallFailedError(is_absent=failure.is_absent and not known[0]) from None
        known[0] = True
        return value if way.per_unit == 1 else value / way.per_unit

    return BlockCall(operation=way.metric, read=read, source=way.source, number=number, way=way)

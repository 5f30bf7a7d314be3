"""A GPU's block of metrics: fetched by one call per read, then decoded number by number.

Where each metric is in the block; what it means is in `table`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final, Protocol

from chopperd.devices.amd import table
from chopperd.devices.amd.table import Method
from chopperd.devices.base import SensorRead
from chopperd.devices.channel import Call
from chopperd.devices.faults import CallFailedError, DeviceFaults, as_kind
from chopperd.devices.read_plan import (
    FORMAT_BY_KIND,
    UNSIGNED_BY_BYTES,
    Buffer,
    NumberKind,
    PlannedCall,
)
from chopperd.errors import TransientDeviceError
from chopperd.plausible import Bounds
from chopperd.units import NS_PER_S

#: All ones in a number's width means "not reported".
ABSENT: Final[Mapping[NumberKind, int]] = {
    kind: (1 << 8 * size) - 1 for size, kind in UNSIGNED_BY_BYTES.items()
}
#: Every block begins with a word that gives its length and version.
HEADER_OFFSET: Final = 0
_HEADER: Final = Struct("<I")
#: A block whose firmware timestamp has not changed for this long is stale.
STILL_NS: Final = NS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSlot:
    """Location of a metric in the block: encoding, and byte offsets (one, or one per die)."""

    kind: NumberKind
    offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsLayout:
    """Where each metric is in one version of the block."""

    version: str  # the version as text ("gpu_metrics v1.8", "amdsmi 26.0")
    size_bytes: int  # size of the whole block
    #: Locations by the metric's name in `amdsmi_gpu_metrics_t`, also where the kernel's name
    #: differs ("current_gfxclks", "current_socket_power"). A count per die of each partition has
    #: the dies of all partitions in a row ("gfx_below_host_limit_ppt_acc").
    slots: Mapping[str, MetricSlot]


class TornBlock:
    """Mixin of a vendor's error: the block that was fetched has another length than before."""


class MetricsSource(Protocol):
    """Fetches the block of one GPU."""

    layout: MetricsLayout  # where each metric is in the block
    buffer: Buffer  # that `fetch` writes the block to; always the same object
    operation: str  # name of the driver call, for errors and counts

    def fetch(self) -> None:
        """Fetch the block into `buffer`; raises the vendor's error."""
        return

    def planned_call(self) -> PlannedCall | None:
        """Return `fetch` as a call of a read plan; None if that is not possible."""
        return None

    def close(self) -> None:
        """Release the source's file or handle; a second call does nothing."""
        return


class Block:
    """A GPU's block of metrics, fetched once per read and checked for torn or stale content."""

    def __init__(self, source: MetricsSource, faults: DeviceFaults) -> None:
        self.source = source  # its buffer before the first fetch is not used, or all ones
        self._faults = faults
        #: Why the last `refresh` gave no usable block; None if it gave one.
        self.failure: CallFailedError | None = None
        self.header: int | None = None  # first word of the first block fetched
        self._stamp = self.first(table.STAMP)
        self._torn_mono_ns: int | None = None
        self._last_stamp: int | None = None
        self._changed_mono_ns = 0

    @property
    def stamp_number(self) -> "BlockNumber | None":
        """The number that is the firmware's timestamp; None until it was seen."""
        return None if self._last_stamp is None else self._stamp

    def refresh(self) -> None:
        """Fetch and check the block; a failure is stored in `failure`.

        Raises:
            DeviceLostError: The GPU is gone, or its block has had another version for a while (the
                driver was replaced): the new version is used once the GPU is found again.
        """
        self.failure = None
        try:
            self.source.fetch()
        except self._faults.vendor_error as error:
            is_absent = self._faults.is_absent(error, self.source.operation)
            if is_absent and self.header is not None:
                self._fail_for_now(error)
                is_absent = False
            self.failure = CallFailedError(is_absent=is_absent)
            if isinstance(error, TornBlock):
                self._count_torn()
            return
        header = _HEADER.unpack_from(self.source.buffer, HEADER_OFFSET)[0]
        if self.header is None:
            self.header = header
            self._faults.revision += 1
        if header != self.header:
            self._drop("header")
            self._count_torn()
            return
        self._torn_mono_ns = None
        if self._is_stale():
            self._drop(table.STAMP)

    def _count_torn(self) -> None:
        """Note a block of another version; raise DeviceLostError once that lasts for `STILL_NS`."""
        now_ns = self._faults.clock.mono_ns()
        if self._torn_mono_ns is None:
            self._torn_mono_ns = now_ns
        if now_ns - self._torn_mono_ns >= STILL_NS:
            raise self._faults.lost(
                "its block of metrics is of another version now", self.source.operation
            )

    def _fail_for_now(self, error: Exception) -> None:
        """Note an error that says "absent", of a block seen before, as a failure of one read.

        Drivers report "not supported" and "no permission" while a GPU is reset.
        """
        failure = self._faults.classified(error, self.source.operation)
        self._faults.transient = as_kind(failure, TransientDeviceError)

    def _drop(self, reason: str) -> None:
        """Count the block as implausible, and use nothing of it."""
        self._faults.implausible_total[reason] += 1
        self.failure = CallFailedError(is_absent=False)

    def slot(self, metric: str) -> MetricSlot | None:
        """Return where a metric is; None where this version does not have it."""
        return self.source.layout.slots.get(metric)

    def number(self, slot: MetricSlot, index: int) -> "BlockNumber":
        """Return a reader of one of a metric's numbers."""
        return BlockNumber(self, slot.kind, slot.offsets[index])

    def first(self, metric: str) -> "BlockNumber | None":
        """Return a reader of a metric's first number; None where this version does not have it."""
        slot = self.slot(metric)
        return None if slot is None else self.number(slot, 0)

    def stamp_ticks(self) -> int | None:
        """Return the firmware's timestamp in its ticks of 10 ns; None where it is not reported."""
        return None if self._stamp is None else self._stamp.raw() or None

    def _is_stale(self) -> bool:
        """Store the firmware's timestamp; return whether it is unchanged for `STILL_NS`."""
        stamp, now_ns = self.stamp_ticks(), self._faults.clock.mono_ns()
        if stamp is None:
            return False
        if stamp != self._last_stamp:
            if self._last_stamp is None:
                self._faults.revision += 1
            self._last_stamp, self._changed_mono_ns = stamp, now_ns
        return now_ns - self._changed_mono_ns >= STILL_NS


class BlockNumber:
    """Reads one number in a block, by encoding and offset in bytes."""

    def __init__(self, block: Block, kind: NumberKind, offset: int) -> None:
        self.kind = kind
        self.offset = offset
        self._block = block
        self._buffer = block.source.buffer
        self._decode = FORMAT_BY_KIND[kind].unpack_from
        self._absent = ABSENT[kind]

    def raw(self) -> int | None:
        """Return the number as last fetched; None if it is all ones, which means not reported."""
        (number,) = self._decode(self._buffer, self.offset)
        return None if number == self._absent else number

    def read(self, absent: int | None = None) -> int:
        """Return the number as last fetched; `absent` also means "not reported".

        Raises:
            CallFailedError: The last fetch gave no usable block, or not this number.
        """
        if self._block.failure is not None:
            raise self._block.failure
        number = self.raw()
        if number is None or number == absent:
            raise CallFailedError(is_absent=True)
        return number


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCall(Call):
    """A call that reads a field from a number of the block."""

    number: BlockNumber
    method: Method


def calls_of(block: Block, methods: Sequence[Method]) -> tuple[BlockCall, ...]:
    """Return calls for those methods of a field that this version of the block has, in order."""
    numbers = ((method, block.first(method.metric)) for method in methods)
    return tuple(_call(method, number) for method, number in numbers if number is not None)


def bounds_of(calls: Sequence[BlockCall], bounds: Bounds) -> Bounds:
    """Return a field's bounds, lowered to exclude all ones ("not reported") in the field's unit."""
    highest = ((ABSENT[call.number.kind] - 1) / call.method.per_unit for call in calls)
    return Bounds(bounds.low, min(bounds.high, *highest))


def _call(method: Method, number: BlockNumber) -> BlockCall:
    was_reported = False

    def read() -> float:
        nonlocal was_reported
        try:
            value = number.read(method.absent)
        except CallFailedError as failure:
            # Once reported, a gap is a failure of this read: the next one tries again.
            raise CallFailedError(is_absent=failure.is_absent and not was_reported) from None
        was_reported = True
        return value if method.per_unit == 1 else value / method.per_unit

    return BlockCall(
        operation=method.metric, read=read, source=method.source, number=number, method=method
    )


def sensor_reads(
    source: MetricsSource, power_source: str | None, vendor_error: type[Exception]
) -> Mapping[str, SensorRead]:
    """Return functions that read a GPU's clock (first die), power, energy and activity, by field.

    Each fetches the block from `source`, which they alone use, and returns None where that fails or
    the number is not reported. The power is that of the samples (`GpuInfo.power_source`).
    """
    instant, average = table.POWER.methods
    methods = {
        "sm_clock_mhz": table.ONE_CLOCK.methods[0],
        "power_w": instant if power_source == instant.source else average,
        "energy_j": table.ENERGY.methods[0],
        "activity_ratio": table.ACTIVITY.methods[0],
    }
    slots = source.layout.slots
    return {
        name: _sensor_read(source, slots[method.metric], method.per_unit, vendor_error)
        for name, method in methods.items()
        if method.metric in slots
    }


def _sensor_read(
    source: MetricsSource, slot: MetricSlot, per_unit: int, vendor_error: type[Exception]
) -> SensorRead:
    unpack, offset = FORMAT_BY_KIND[slot.kind].unpack_from, slot.offsets[0]

    def read() -> float | None:
        try:
            source.fetch()
        except vendor_error:
            return None
        number: int = unpack(source.buffer, offset)[0]
        return None if number == ABSENT[slot.kind] else number / per_unit

    return read

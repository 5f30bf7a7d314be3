"""The writing side of the shared memory: what the sampler process calls while it samples.

One writer process at a time; in it one thread for each GPU and one for triples, each of which
writes its own part only. A slot is marked unfinished before and finished after it is written, so
that a reader tells a torn one (for certain where stores keep their order, as on x86).
"""

import mmap
import os
from collections.abc import Sequence
from dataclasses import replace
from math import nan
from struct import Struct
from typing import Final

import numpy as np

from chopperd.errors import StoreError
from chopperd.model.arrays import Float64s
from chopperd.model.causes import CAUSES, Cause
from chopperd.model.devices import DeviceReading, GpuInfo, ReadScope
from chopperd.model.samples import VALUE_COLUMNS
from chopperd.model.timebase import TimeTriple
from chopperd.sampling.layout import (
    DESCRIPTION_BYTES,
    HEADER,
    LAYOUT_VERSION,
    MAGIC,
    RECORD,
    STATUS,
    STATUS_HEAD_COUNT,
    TOTAL_COUNT,
    TRIPLE,
    TRIPLE_CAPACITY,
    GpuState,
    Records,
    RingDescription,
    RingLayout,
    SamplerState,
)

#: GPUs that may turn up later (a successor after a driver reload) find room in so many slots.
_SPARE_SLOTS: Final = 8

_RECORD_BODY: Final = Struct(f"=5q{len(VALUE_COLUMNS)}d{len(CAUSES)}d")
_RECORD_BYTES: Final = RECORD.itemsize
#: A status block up to `totals_sequence`.
_STATUS_HEAD: Final = Struct(f"={STATUS_HEAD_COUNT}q")
_TRIPLE_BODY: Final = Struct("=3q")
_TOTALS: Final = Struct(f"=q{TOTAL_COUNT}d")
_NO_LIMITS: Final = (nan,) * len(CAUSES)


def _word_offsets(block: "np.dtype[np.void]") -> dict[str, int]:
    """The place of each field of a block, in words of 8 bytes."""
    names = block.names or ()
    return {name: block.fields[name][1] // 8 for name in names} if block.fields else {}


_HEADER_WORDS: Final = _word_offsets(HEADER)
_GENERATION: Final = _HEADER_WORDS["generation"]


class RingWriter:
    """The shared memory as its one writer sees it.

    Opening an empty file lays it out; opening one that an earlier writer left goes on where that
    one stopped: GPUs keep their slots and labels, records their numbers, totals their values.

    Args:
        fd: A memory file, open for reading and writing; stays the caller's to close.
        description: What is sampled.
        capacity: Records of each GPU to keep; that of the first writer holds.

    Raises:
        StoreError: The memory was laid out by another version, or can't be mapped.
    """

    def __init__(self, fd: int, description: RingDescription, capacity: int) -> None:
        is_new = os.fstat(fd).st_size == 0
        layout = RingLayout(len(description.gpus) + _SPARE_SLOTS, capacity)
        if is_new:
            os.ftruncate(fd, layout.total_bytes)
        self._map = mmap.mmap(fd, 0)
        self._words = memoryview(self._map).cast("q")
        if is_new:
            self._set("gpu_slots", layout.gpu_slots)
            self._set("capacity", layout.capacity)
            self._set("layout_version", LAYOUT_VERSION)
        elif self._get("magic") != MAGIC or self._get("layout_version") != LAYOUT_VERSION:
            self.close()
            raise StoreError("the shared memory was laid out by another version of the sampler")
        self._layout = RingLayout(self._get("gpu_slots"), self._get("capacity"))
        self._generation = self._get("generation") + 1
        self._set("state", SamplerState.STARTING)
        self._set("writer_pid", os.getpid())
        self._describe(self._merged(description, is_new=is_new))
        self._set("generation", self._generation)
        for slot in range(self._layout.gpu_slots):
            self.gpu(slot).set_state(GpuState.UNSEEN)
        self._set("magic", MAGIC)

    @property
    def gpus(self) -> tuple[GpuInfo, ...]:
        """The GPU of each slot, labelled as at its first sight."""
        return self._description.gpus

    def is_current(self) -> bool:
        """Whether no other writer has taken over."""
        return self._words[_GENERATION] == self._generation

    def gpu(self, slot: int) -> "GpuWriter":
        """The writer of one GPU's part."""
        layout = self._layout
        return GpuWriter(
            self._map,
            self._words,
            self._generation,
            status_offset=layout.status_offset + slot * STATUS.itemsize,
            records_offset=layout.records_offset + slot * layout.capacity * RECORD.itemsize,
            capacity=layout.capacity,
        )

    def slot_of(self, info: GpuInfo) -> int | None:
        """The slot of a GPU that the back end found; None if there was no room for it."""
        return _slot_of(info, self.gpus)

    def set_state(self, state: SamplerState) -> None:
        """Say what the sampler is doing."""
        if self.is_current():
            self._set("state", state)

    def write_triple(self, triple: TimeTriple) -> None:
        """Add a clock triple; also the sign of life that a supervisor looks for."""
        if not self.is_current():
            return
        written = self._get("triples_written")
        slot = written % TRIPLE_CAPACITY * TRIPLE.itemsize
        offset = self._layout.triples_offset + slot
        self._words[offset // 8] = 0
        _TRIPLE_BODY.pack_into(
            self._map, offset + 8, triple.unix_ns, triple.mono_ns, triple.boot_ns
        )
        self._words[offset // 8] = written + 1
        self._set("triples_written", written + 1)

    def close(self) -> None:
        """Let go of the memory; its content stays for readers and for a successor."""
        self._words.release()
        self._map.close()

    def _get(self, name: str) -> int:
        return self._words[_HEADER_WORDS[name]]

    def _set(self, name: str, value: int) -> None:
        self._words[_HEADER_WORDS[name]] = value

    def _merged(self, description: RingDescription, *, is_new: bool) -> RingDescription:
        """The description with the GPUs of earlier writers first, in their slots."""
        if is_new or self._get("description_sequence") % 2:  # else whoever wrote it died over it
            return description
        start = self._layout.description_offset
        earlier = RingDescription.decoded(self._map[start : start + self._get("description_bytes")])
        if description.failure is not None:
            return replace(earlier, failure=description.failure)
        return replace(
            description,
            gpus=_merged_gpus(earlier.gpus, description.gpus, self._layout.gpu_slots),
        )

    def _describe(self, description: RingDescription) -> None:
        data = description.encoded()
        if len(data) > DESCRIPTION_BYTES:
            raise StoreError(f"{len(description.gpus)} GPUs are too many for the shared memory")
        start = self._layout.description_offset
        sequence = self._get("description_sequence") | 1
        self._set("description_sequence", sequence)
        self._map[start : start + len(data)] = data
        self._set("description_bytes", len(data))
        self._set("description_sequence", sequence + 1)
        self._description = description


class GpuWriter:
    """One GPU's status block and ring of records, written by that GPU's thread only.

    Nothing is written once another writer process has taken over, so that a driver call that
    returns after hours harms nothing. Counts are plain attributes, taken over from the writer
    before, and are published with the next record.

    Attributes:
        ticks_count, missed_count, transient_count, unexpected_count, losses_count, driver_ns: See
            `GpuStatus` in `ring_reader`.
    """

    def __init__(
        self,
        memory: mmap.mmap,
        words: "memoryview[int]",
        generation: int,
        *,
        status_offset: int,
        records_offset: int,
        capacity: int,
    ) -> None:
        self._map = memory
        self._words = words
        self._generation = generation
        self._status_offset = status_offset
        self._call_word = status_offset // 8
        self._records_offset = records_offset
        self._capacity = capacity
        self._bits_by_causes: dict[frozenset[Cause], int] = {}
        (
            _,
            _,
            self._state,
            self._written,
            self._last_mono_ns,
            self.ticks_count,
            self.missed_count,
            self.transient_count,
            self.unexpected_count,
            self.losses_count,
            self.driver_ns,
            self._asked_period_ns,
            self._period_ns,
        ) = map(int, _STATUS_HEAD.unpack_from(memory, status_offset))

    def is_current(self) -> bool:
        """Whether no other writer has taken over."""
        return self._words[_GENERATION] == self._generation

    def begin_call(self, now_mono_ns: int, scope: ReadScope) -> None:
        """Show that a driver call begins, so that a supervisor can see how long it lasts."""
        if self._words[_GENERATION] == self._generation:
            self._words[self._call_word + 1] = scope is ReadScope.FULL
            self._words[self._call_word] = now_mono_ns

    def end_call(self, span_ns: int) -> None:
        """Show that the call has returned without a record, and publish the counts."""
        self.ticks_count += 1
        self.driver_ns += span_ns
        self._publish()

    def write(
        self,
        reading: DeviceReading,
        *,
        t_mono_ns: int,
        span_ns: int,
        late_ns: int,
        scope: ReadScope,
    ) -> None:
        """Add what a call returned as a record, and publish the counts.

        Args:
            reading: What was read.
            t_mono_ns: Middle of the driver call.
            span_ns: Length of the driver call.
            late_ns: How long after its deadline it began.
            scope: How much was read.
        """
        words = self._words
        if words[_GENERATION] != self._generation:
            return
        written = self._written
        offset = self._records_offset + written % self._capacity * _RECORD_BYTES
        words[offset >> 3] = 0
        _RECORD_BODY.pack_into(
            self._map,
            offset + 8,
            t_mono_ns,
            span_ns,
            late_ns,
            scope is ReadScope.FULL,
            self._bits(reading.causes),
            *_values(reading),
            *_limits(reading),
        )
        self._written = words[offset >> 3] = written + 1
        self._last_mono_ns = t_mono_ns
        self.end_call(span_ns)

    def set_state(self, state: GpuState) -> None:
        """Say whether the GPU answers."""
        self._state = state
        self._publish()

    def set_period_ns(self, asked_ns: int, kept_ns: int) -> None:
        """Say at which period the GPU is to be read, and at which it is."""
        self._asked_period_ns, self._period_ns = asked_ns, kept_ns
        self._publish()

    @property
    def written_count(self) -> int:
        """Records since the ring was made."""
        return self._written

    def records(self, position: int) -> Records:
        """The records from a position on, as far as the ring still holds them; a copy."""
        numbers = np.arange(max(position, self._written - self._capacity), self._written)
        ring: Records = np.ndarray(self._capacity, RECORD, self._map, self._records_offset)
        return ring[numbers % self._capacity]

    def write_totals(self, totals: Float64s, integrated_count: int) -> None:
        """Publish the live integrals.

        Args:
            totals: (TOTAL_COUNT,) float64, NaN where never known.
            integrated_count: How many records they cover.
        """
        words = self._words
        if words[_GENERATION] != self._generation:
            return
        sequence = words[self._totals_word] + 1
        _TOTALS.pack_into(
            self._map, self._totals_offset(sequence), integrated_count, *totals.tolist()
        )
        words[self._totals_word] = sequence

    def totals(self) -> tuple[int, Float64s | None]:
        """How many records the live integrals cover, and the integrals; (0, None) if none do.

        Also those that an earlier writer left.
        """
        sequence = self._words[self._totals_word]
        if sequence == 0:
            return 0, None
        integrated_count, *totals = _TOTALS.unpack_from(self._map, self._totals_offset(sequence))
        return integrated_count, np.array(totals)

    @property
    def _totals_word(self) -> int:
        return self._call_word + _STATUS_HEAD.size // 8

    def _totals_offset(self, sequence: int) -> int:
        """Where the copy with a number begins, in bytes."""
        return self._status_offset + _STATUS_HEAD.size + 8 + sequence % 2 * _TOTALS.size

    def _publish(self) -> None:
        """Write the head of the status block, with no call in progress."""
        if self._words[_GENERATION] == self._generation:
            _STATUS_HEAD.pack_into(
                self._map,
                self._status_offset,
                0,
                0,
                self._state,
                self._written,
                self._last_mono_ns,
                self.ticks_count,
                self.missed_count,
                self.transient_count,
                self.unexpected_count,
                self.losses_count,
                self.driver_ns,
                self._asked_period_ns,
                self._period_ns,
            )

    def _bits(self, causes: frozenset[Cause] | None) -> int:
        """The bit set of causes; the few sets that occur are kept, as this runs for each tick."""
        if causes is None:
            return Cause.UNKNOWN.bit
        bits = self._bits_by_causes.get(causes)
        if bits is None:
            bits = self._bits_by_causes[causes] = sum(cause.bit for cause in causes)
        return bits


def _values(reading: DeviceReading) -> tuple[float, ...]:
    """The numbers of a record in the order of `VALUE_COLUMNS`."""
    return (
        nan if reading.sm_clock_mhz is None else reading.sm_clock_mhz,
        nan if reading.mem_clock_mhz is None else reading.mem_clock_mhz,
        nan if reading.power_w is None else reading.power_w,
        nan if reading.energy_j is None else reading.energy_j,
        nan if reading.temperature_c is None else reading.temperature_c,
        nan if reading.memory_used_bytes is None else reading.memory_used_bytes,
        nan if reading.activity_ratio is None else reading.activity_ratio,
    )


def _limits(reading: DeviceReading) -> Sequence[float]:
    """The driver's cumulative times in the order of `CAUSES`."""
    if not reading.limited_ns:
        return _NO_LIMITS
    limits: list[float] = list(_NO_LIMITS)
    for cause, limited_ns in reading.limited_ns.items():
        limits[cause] = limited_ns
    return limits


def _slot_of(info: GpuInfo, gpus: Sequence[GpuInfo]) -> int | None:
    """The slot of the same GPU: same UUID, or same index and name where there is no UUID."""
    for slot, gpu in enumerate(gpus):
        same = gpu.uuid == info.uuid if info.uuid else gpu.index == info.index
        if same and gpu.name == info.name:
            return slot
    return None


def _merged_gpus(
    earlier: Sequence[GpuInfo], present: Sequence[GpuInfo], slots: int
) -> tuple[GpuInfo, ...]:
    """GPUs in slot order: those known before with their labels, then new ones while room lasts."""
    merged = list(earlier)
    for info in present:
        slot = _slot_of(info, earlier)
        if slot is not None:
            merged[slot] = replace(info, gpu=earlier[slot].gpu)
        elif len(merged) < slots:
            merged.append(info)
    return tuple(merged)

"""Reads the shared memory; any number of readers, none of which disturbs the writer."""

import mmap
import os
from bisect import bisect_right
from typing import Final

import msgspec
import numpy as np
from msgspec import Struct

from chopperd.correlate.clock.governing import governing_mhz
from chopperd.errors import StoreError
from chopperd.model.arrays import Float64s
from chopperd.model.devices import ReadScope
from chopperd.sampling.memory.layout import (
    DESCRIPTION_OFFSET,
    HEADER,
    LAYOUT_VERSION,
    MAGIC,
    NO_DIE,
    RECORD,
    SCOPES,
    STATUS,
    STATUS_HEAD_COUNT,
    STATUS_OFFSET,
    TRIPLE,
    TRIPLE_CAPACITY,
    TRIPLES_OFFSET,
    GpuState,
    Pace,
    Records,
    RingDescription,
    RingLayout,
    SamplerState,
)
from chopperd.sampling.memory.slow_state import SlowState, slow_state_of
from chopperd.units import NS_PER_S, TimeTriple

#: A die's mean covers the 2 s that end at the record: what comes after is not known yet. Reports,
#: which have both sides, use 1 s on each.
DIE_WINDOW_NS: Final = 2 * NS_PER_S


def whole_records(ring: Records, position: int, written: int) -> Records:
    """Copy the records `[position, written)` that the ring still holds, oldest first.

    A record that was overwritten while it was copied is left out. In those with clocks of dies,
    `sm_clock_mhz` is that of the governing die.

    Source: DESIGN.md section 2, "Several dies".
    """
    oldest = max(0, written - len(ring))
    first = max(position, oldest)
    records = _copied(ring, first, written)
    if not len(records) or not (records["die_clocks_mhz"] != NO_DIE).any():
        return records
    begin_ns = records["t_mono_ns"][0] - DIE_WINDOW_NS
    times_ns = ring["t_mono_ns"]
    numbers = range(oldest, first)
    skipped_count = bisect_right(numbers, begin_ns, key=lambda n: times_ns[n % len(ring)])
    earlier = _copied(ring, oldest + skipped_count, first)
    both = np.concatenate([earlier, records])
    records["sm_clock_mhz"] = governing_mhz(
        both["t_mono_ns"],
        die_clocks_mhz(both),
        both["sm_clock_mhz"],
        before_ns=DIE_WINDOW_NS - 1,
        after_ns=0,
    )[len(earlier) :]
    return records


def die_clocks_mhz(records: Records) -> Float64s:
    """Return dies' clocks, (n, `MOST_DIES`), NaN where there is none, of (n,) of `RECORD`."""
    whole = records["die_clocks_mhz"]
    return np.where(whole == NO_DIE, np.nan, whole.astype(np.float64))


def _copied(ring: Records, first: int, end: int) -> Records:
    """Copy the records `[first, end)`, without those overwritten meanwhile."""
    numbers = np.arange(first, end)
    slots = numbers % len(ring)
    records = ring[slots]
    # A slot that the writer has begun to fill again shows another sequence now.
    now = ring["sequence"][slots]
    whole: Records = records[(records["sequence"] == numbers + 1) & (now == numbers + 1)]
    return whole


#: How often a block that the writer is changing is read again.
_ATTEMPTS: Final = 100


class Drained(Struct, frozen=True, kw_only=True):
    """The records that a reader gets from one drain: those it had not read yet."""

    records: Records  # (n,) of `RECORD`, oldest first; a copy
    overwritten_count: int  # records that the writer overwrote before they were read
    position: int  # where the next drain begins


class GpuStatus(Struct, frozen=True, kw_only=True):
    """Status of one GPU's sampling."""

    call_started_mono_ns: int | None  # start of the driver call in progress; None if there is none
    call_scope: ReadScope  # how much that call, or the last one, reads
    state: GpuState  # whether the GPU answers
    written: int  # records since the ring was made
    #: Periods that were read, and that were not.
    ticks_count: int
    missed_count: int
    #: Failed reads, by whether the adaptor knew the error.
    transient_count: int
    unexpected_count: int
    losses_count: int  # how often the GPU was lost
    #: Time in driver calls, and that part of it in full reads.
    driver_ns: int
    driver_full_ns: int
    #: The requested period, and the one in use.
    asked_period_ns: int
    period_ns: int
    pace: Pace  # why that one is used
    last_mono_ns: int | None  # time of the newest record; None before the first


class RingReader:
    """Reads the shared memory through a read-only map; the file stays the caller's to close.

    Raises:
        StoreError: The memory is not laid out yet, or was laid out by another version.
    """

    def __init__(self, fd: int) -> None:
        if not is_laid_out(fd):
            raise StoreError("the sampler has not laid out its shared memory")
        self._map = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
        self._header = np.ndarray((), HEADER, self._map)
        if self._header["layout_version"] != LAYOUT_VERSION:
            raise StoreError("the shared memory was laid out by another version of the sampler")
        layout = RingLayout(int(self._header["gpu_slots"]), int(self._header["capacity"]))
        self._triples = np.ndarray(TRIPLE_CAPACITY, TRIPLE, self._map, TRIPLES_OFFSET)
        self._status = np.ndarray(layout.gpu_slots, STATUS, self._map, STATUS_OFFSET)
        shape, strides = (layout.gpu_slots, STATUS_HEAD_COUNT), (STATUS.itemsize, 8)
        self._heads = np.ndarray(shape, np.int64, self._map, STATUS_OFFSET, strides)
        self._records = np.ndarray(
            (layout.gpu_slots, layout.capacity), RECORD, self._map, layout.records_offset
        )

    def close(self) -> None:
        """Unmap the memory."""
        del self._header, self._triples, self._status, self._heads, self._records
        self._map.close()

    @property
    def capacity(self) -> int:
        """Number of records of each GPU that the ring holds."""
        return int(self._records.shape[1])

    @property
    def gpu_slots(self) -> int:
        """Number of GPUs for which there is room."""
        return len(self._status)

    @property
    def is_outgrown(self) -> bool:
        """Whether the GPUs' part was added since it was mapped, so that a new reader is needed."""
        return int(self._header["gpu_slots"]) != self.gpu_slots

    @property
    def triples_written(self) -> int:
        """Number of clock triples since the ring was made."""
        return int(self._header["triples_written"])

    @property
    def state(self) -> SamplerState:
        """The sampler's state, as it last reported it."""
        return SamplerState(int(self._header["state"]))

    @property
    def generation(self) -> int:
        """Number of the present writer, from 1."""
        return int(self._header["generation"])

    @property
    def identity(self) -> int:
        """Random number of this memory; the same after it was moved into a larger file."""
        return int(self._header["identity"])

    def description(self) -> RingDescription:
        """Read the description of what is sampled.

        Raises:
            StoreError: The description is unfinished, as after a writer that died.
        """
        for _ in range(_ATTEMPTS):
            sequence = int(self._header["description_sequence"])
            end = DESCRIPTION_OFFSET + int(self._header["description_bytes"])
            data = self._map[DESCRIPTION_OFFSET:end]
            if sequence % 2 == 0 and sequence == int(self._header["description_sequence"]):
                return msgspec.json.decode(data, type=RingDescription)
        raise StoreError("the sampler's description of the GPUs is unfinished")

    def drain(self, slot: int, position: int = 0) -> Drained:
        """Copy a GPU's complete records from a position on (0: the oldest that is left)."""
        written = int(self._status["written"][slot])
        first = max(position, written - self.capacity)
        records = whole_records(self._records[slot], first, written)
        return Drained(
            records=records, overwritten_count=written - position - len(records), position=written
        )

    def triples(self, position: int = 0) -> tuple[tuple[TimeTriple, ...], int]:
        """Return the clock triples from a position on, and the next position."""
        written = self.triples_written
        numbers = np.arange(max(position, written - TRIPLE_CAPACITY), written)
        places = numbers % TRIPLE_CAPACITY
        rows = self._triples[places]
        now = self._triples["sequence"][places]
        whole = (rows["sequence"] == numbers + 1) & (now == numbers + 1)
        triples = tuple(
            TimeTriple(unix_ns=unix_ns, mono_ns=mono_ns, boot_ns=boot_ns)
            for _, unix_ns, mono_ns, boot_ns in rows[whole].tolist()
        )
        return triples, written

    def status(self, slot: int) -> GpuStatus:
        """Read the status of a GPU's sampling."""
        words = dict(zip(STATUS.names or (), self._heads[slot].tolist(), strict=False))
        words["state"] = GpuState(words["state"])
        words["pace"] = Pace(words["pace"])
        words["call_scope"] = SCOPES[words["call_scope"]]
        words["call_started_mono_ns"] = words["call_started_mono_ns"] or None
        words["last_mono_ns"] = words["last_mono_ns"] or None
        return GpuStatus(**words)

    def slow_state(self, slot: int) -> SlowState:
        """Read a GPU's `SlowState`; only its counts if the writer died while writing."""
        for _ in range(_ATTEMPTS):
            before = self._slow_state_sequences(slot)
            block = self._status["slow_state"][slot].copy()
            if not any(each % 2 for each in before) and before == self._slow_state_sequences(slot):
                return slow_state_of(block)
        # A count never falls, and one word is always whole.
        counted = self._status["slow_state"][slot]
        return SlowState(
            driver_rare_ns=int(counted["driver_rare_ns"]),
            invalid_count=int(counted["invalid_count"]),
        )

    def _slow_state_sequences(self, slot: int) -> tuple[int, int]:
        """Read both sequence counts of a slow state: odd while its writer writes.

        Read from the memory itself, not from a copy, whose bytes may be copied in any order.
        """
        block = self._status["slow_state"]
        return int(block["sequence"][slot]), int(block["state_sequence"][slot])


def is_laid_out(fd: int) -> bool:
    """Whether a writer has laid out the memory file."""
    return os.pread(fd, 8, 0) == MAGIC.to_bytes(8, "little")

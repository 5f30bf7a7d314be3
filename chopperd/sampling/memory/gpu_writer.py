"""Writes one GPU's part of the shared memory, in that GPU's thread, at every tick.

`native/ticks.c` writes the same words without Python.
"""

import mmap
from array import array
from collections.abc import Sequence
from math import nan
from struct import Struct
from typing import Final

import numpy as np

from chopperd.model.devices import MOST_DIES, DeviceReading, ReadScope
from chopperd.model.kinds import CAUSES, Cause
from chopperd.model.samples import VALUE_COLUMNS
from chopperd.sampling.memory.layout import (
    GENERATION_WORD,
    NO_DIE,
    RECORD,
    STATUS,
    STATUS_HEAD_COUNT,
    GpuState,
    Pace,
    Records,
)

_RECORD_BODY: Final = Struct(f"=5q{len(VALUE_COLUMNS)}d{len(CAUSES)}d{MOST_DIES}H")
_RECORD_BYTES: Final = RECORD.itemsize
_HEAD_NAMES: Final = (STATUS.names or ())[:STATUS_HEAD_COUNT]
_HEAD_BYTES: Final = 8 * STATUS_HEAD_COUNT
_NO_LIMITS: Final = (nan,) * len(CAUSES)
_NO_DIES: Final = (NO_DIE,) * MOST_DIES


class _HeadWord:
    """Descriptor: reads and writes the word of the same name in the writer's `head`."""

    def __set_name__(self, owner: type["GpuWriter"], name: str) -> None:
        self._place = _HEAD_NAMES.index(name.removeprefix("_"))

    def __get__(self, writer: "GpuWriter", owner: type["GpuWriter"]) -> int:
        return writer.head[self._place]

    def __set__(self, writer: "GpuWriter", value: int) -> None:
        writer.head[self._place] = value


class GpuWriter:
    """One GPU's status block and ring of records, written by that GPU's thread only.

    Nothing is written once another writer process has taken over, so that a driver call that
    returns after hours harms nothing. Counts are in a private head, copied from the writer before,
    and are published with the next record.
    """

    #: Words of `head`, which is in the order of `STATUS`; see `GpuStatus` in `ring_reader`.
    ticks_count = _HeadWord()
    missed_count = _HeadWord()
    transient_count = _HeadWord()
    unexpected_count = _HeadWord()
    losses_count = _HeadWord()
    driver_ns = _HeadWord()
    driver_full_ns = _HeadWord()
    period_ns = _HeadWord()
    _state = _HeadWord()
    _written = _HeadWord()
    _last_mono_ns = _HeadWord()
    _asked_period_ns = _HeadWord()
    _pace = _HeadWord()

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
        self._failure: tuple[int, str] | None = None
        self.head = array("q", bytes(memory[status_offset : status_offset + _HEAD_BYTES]))
        self.head[0] = self.head[1] = 0  # no call is in progress
        self._head_words = memoryview(self.head)

    def is_current(self) -> bool:
        """Whether no other writer process has taken over."""
        return self._words[GENERATION_WORD] == self._generation

    def begin_call(self, now_mono_ns: int, scope: ReadScope) -> None:
        """Publish that a driver call begins, so that a supervisor sees how long it lasts."""
        if self._words[GENERATION_WORD] == self._generation:
            self._words[self._call_word + 1] = scope is ReadScope.FULL
            self._words[self._call_word] = now_mono_ns

    def end_call(self, span_ns: int, scope: ReadScope) -> None:
        """Count a call that returned without a record, and publish the counts."""
        self._count_call(span_ns, scope)
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
        """Write a reading as a record (see `RECORD`), count its call, and publish the counts."""
        words = self._words
        if words[GENERATION_WORD] != self._generation:
            return
        written = self._written
        # Of several dies, readers work out which governs (`whole_records`).
        clock_mhz = None if reading.die_clocks_mhz else reading.sm_clock_mhz
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
            nan if clock_mhz is None else clock_mhz,
            *_values(reading),
            *_limits(reading),
            *_dies(reading.die_clocks_mhz),
        )
        self._written = words[offset >> 3] = written + 1
        self._last_mono_ns = t_mono_ns
        self._count_call(span_ns, scope)
        self._publish()

    def note_failure(self, error: Exception) -> None:
        """Store the error of a read that failed as a whole, for `read_error`."""
        self._failure = self._written, str(error)

    @property
    def read_error(self) -> str | None:
        """The error of the last read if it failed as a whole; else None. For any thread."""
        failure = self._failure
        return failure[1] if failure is not None and failure[0] == self._written else None

    @property
    def call_started_mono_ns(self) -> int | None:
        """Start of the driver call in progress; None if there is none. For any thread."""
        return self._words[self._call_word] or None

    @property
    def state(self) -> GpuState:
        """The GPU's state (whether it answers) as last published; for any thread."""
        return GpuState(self._state)

    def set_state(self, state: GpuState) -> None:
        """Publish the GPU's state (whether it answers)."""
        self._state = state
        self._publish()

    def set_period_ns(self, asked_ns: int, kept_ns: int, pace: Pace = Pace.ASKED) -> None:
        """Publish the requested period, the period in use, and the reason for it."""
        self._asked_period_ns, self.period_ns, self._pace = asked_ns, kept_ns, pace
        self._publish()

    @property
    def written_count(self) -> int:
        """Number of records since the ring was made; for any thread."""
        return self._written

    def records(self, position: int) -> Records:
        """Return the records from number `position` on, as far as the ring still holds them.

        Where they do not wrap they are a view, valid until the next `write`.
        """
        # A view of the whole ring; drop it soon, else the memory can't be closed.
        ring = np.ndarray(self._capacity, RECORD, self._map, self._records_offset)
        first = max(position, self._written - self._capacity) % self._capacity
        end = self._written % self._capacity
        count = min(self._written - position, self._capacity)
        if first + count <= self._capacity:
            return ring[first : first + count]
        return np.concatenate([ring[first:], ring[:end]])

    def addresses(self) -> tuple[int, ...]:
        """Return the fields of `memory_t` (native.h); valid while the memory is mapped."""
        start: int = np.frombuffer(self._map, np.uint8).__array_interface__["data"][0]
        return (
            self.head.buffer_info()[0],
            start + self._status_offset,
            start + self._records_offset,
            self._capacity,
            start + 8 * GENERATION_WORD,
            self._generation,
        )

    def _count_call(self, span_ns: int, scope: ReadScope) -> None:
        self.ticks_count += 1
        self.driver_ns += span_ns
        if scope is ReadScope.FULL:
            self.driver_full_ns += span_ns

    def _publish(self) -> None:
        """Copy the head into the status block, marking that no call is in progress.

        The call word is copied first, so that the call is over before the counts include it.
        """
        if self._words[GENERATION_WORD] != self._generation:
            return
        self._words[self._call_word : self._call_word + STATUS_HEAD_COUNT] = self._head_words

    def _bits(self, causes: frozenset[Cause] | None) -> int:
        """Return the bit set of causes; cached, as this runs at each tick and few sets occur."""
        if causes is None:
            return Cause.UNKNOWN.bit
        bits = self._bits_by_causes.get(causes)
        if bits is None:
            bits = self._bits_by_causes[causes] = sum(cause.bit for cause in causes)
        return bits


def _values(reading: DeviceReading) -> tuple[float, ...]:
    """Return the numbers of a record in the order of `VALUE_COLUMNS`, after the first."""
    return (
        nan if reading.mem_clock_mhz is None else reading.mem_clock_mhz,
        nan if reading.power_w is None else reading.power_w,
        nan if reading.energy_j is None else reading.energy_j,
        nan if reading.temperature_c is None else reading.temperature_c,
        nan if reading.memory_used_bytes is None else reading.memory_used_bytes,
        nan if reading.activity_ratio is None else reading.activity_ratio,
    )


def _dies(clocks_mhz: Sequence[float | None]) -> tuple[int, ...]:
    """Convert clocks of dies to a record's whole MHz, `MOST_DIES` values; `NO_DIE`: none."""
    if not clocks_mhz:
        return _NO_DIES
    whole = (NO_DIE if mhz is None else min(max(0, round(mhz)), NO_DIE - 1) for mhz in clocks_mhz)
    return (*whole, *_NO_DIES)[:MOST_DIES]


def _limits(reading: DeviceReading) -> Sequence[float]:
    """Return the driver's cumulative limit times in the order of `CAUSES`; NaN: not reported."""
    if not reading.limited_ns:
        return _NO_LIMITS
    limits: list[float] = list(_NO_LIMITS)
    for cause, limited_ns in reading.limited_ns.items():
        limits[cause] = limited_ns
    return limits

"""Reads a Kineto trace file into a `Trace`: one pass, one block of events in memory at a time."""

from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from chopperd.errors import TraceFormatError
from chopperd.model.trace import Damage, Trace, TraceMeta
from chopperd.traces.correlation_ids import merged_devices
from chopperd.traces.read import meta
from chopperd.traces.read.assemble import Assembled, assemble
from chopperd.traces.read.document import (
    Texts,
    document_texts,
    find_opening,
    is_cut_mark,
    trailing_events,
    without_mark,
)
from chopperd.traces.read.event_array import DamagedTextError, DecodedArray, EventArray, event_array
from chopperd.traces.read.json_text import Fault, Refusal
from chopperd.traces.read.meta import device_numbers, kernel_devices
from chopperd.traces.read.rows import TraceRows
from chopperd.traces.read.sniff import other_format
from chopperd.traces.read.source import Buffer, Progress, ReadLimits, TraceSource

DEFAULT_LIMITS: Final = ReadLimits()
_MOST_DEVICES: Final = 128
"""Of the largest machines so far, a partition counted as a device, 64."""
_READ_ON_AGAIN_BYTES: Final = 4 << 20
"""What is fed behind a place where the scanner could not go on by itself, before it tries again."""
_GIVEN_BACK_BYTES: Final = 1 << 16
"""Text that waits and is read again for that; far less, or the same would come again and again."""
_OLD_CATEGORIES: Final = frozenset({"", "cpu_to_cuda"})
"""Of all that torch.autograd.profiler writes, which has rows of "CPU functions" by words only."""
_DAMAGED: Final = (
    "is damaged or cut off, and this installation has no native scanner, which alone reads such "
    "files: install chopperd from a wheel, or reinstall it where a C compiler is"
)
_FIRST_BYTES: Final = 4096
"""Read to decide whether a text may be JSON, unless all of them are blanks."""


def read_trace(
    path: Path,
    *,
    limits: ReadLimits = DEFAULT_LIMITS,
    progress: Progress | None = None,
    name: str | None = None,
    native: bool = True,
) -> Trace:
    """The trace in `path`, of any layout and compression; damage is counted.

    Args:
        path: A file as Kineto or another tool wrote it, gzip or plain.
        limits: What to refuse.
        progress: Called with (stored bytes read, size of the file).
        name: The file's original name, which may contain its rank; None if it is the current one.
        native: Whether the scanner in C may be used, if there is one. Without it only sound files
            are read, to the same trace.

    Raises:
        TraceFormatError: Not a trace: unreadable, empty, too large, or something else; or damaged,
            without the scanner.
    """
    called = path if name is None else Path(name)
    rows = TraceRows()
    with TraceSource(path, limits, progress, name=str(called)) as source:
        reads_on = native and source.is_plain
        events = event_array(rows, limits.block_bytes, native=native)
        document = _Document(source, limits, rows, events, name=called.name, native=native)
        try:
            for data in source.views():
                document.feed(data)
                if reads_on:
                    document.read_on()
            document.finish()
            return document.trace(called)
        except DamagedTextError:
            raise source.error(_DAMAGED) from None


class _Document:
    """The document as it arrives: the keys before the events, the events, the keys after."""

    def __init__(
        self,
        source: TraceSource,
        limits: ReadLimits,
        rows: TraceRows,
        events: EventArray,
        *,
        name: str,
        native: bool,
    ) -> None:
        self._source = source
        self._called = name
        self._limits = limits
        self._opening = bytearray()
        self._wanted_bytes = 0
        self._head: bytes | None = None
        self._texts: Texts | Refusal = {}
        self._rows = rows
        self._events = events
        self._native = native
        self._read_on_from = 0
        self._trailing = 0

    def feed(self, data: Buffer) -> None:
        """Take the next piece of the text."""
        if self._head is None:
            data = self._open(data)
        self._events.feed(data)
        if len(self._opening) + self._events.pending_bytes > self._limits.element_bytes:
            raise self._source.error(
                "is no trace that can be read: one event, or the text before or after the events, "
                f"is larger than {self._limits.element_bytes} bytes"
            )

    def read_on(self) -> None:
        """Once the events have begun, take what the file has of them without that it is fed.

        Where that came to an end at something long or damaged, again when that is passed. What
        waits for its end is given back to the file, and is less than is fed until the next time.
        """
        is_due = self._source.stored_bytes >= self._read_on_from
        if self._head is None or not is_due or self._events.pending_bytes > _GIVEN_BACK_BYTES:
            return
        self._events.read_file(self._source)
        self._read_on_from = self._source.stored_bytes + _READ_ON_AGAIN_BYTES

    def finish(self) -> None:
        """Take what was waiting for more.

        Raises:
            TraceFormatError: There was no event array, or nothing in it was an event.
        """
        if self._head is None and (events := self._opened(bytes(self._opening))):
            self._events.feed(events)
        if self._head is None:
            raise self._no_events()
        self._events.finish()
        if self._event_count and not self._rows.counts.total():
            raise self._source.error(f"has no event among the {self._event_count} elements read")
        if not self._head and self._rows.counts.keys() <= _OLD_CATEGORIES and self._event_count:
            raise self._source.error(
                "is a bare list of events without categories, as the old torch.autograd.profiler "
                "writes: it names no kernels; record it with torch.profiler"
            )

    def trace(self, path: Path) -> Trace:
        """All that was read."""
        keys = meta.read_keys(self._head or b"", self._events.tail, self._texts)
        if isinstance(self._events, DecodedArray) and not (keys.closed and keys.readable):
            raise DamagedTextError
        self._trailing = trailing_events(self._events.tail or b"", native=self._native)
        self._check_places()
        tables = assemble(self._rows, meta.base_time_unix_ns(keys.values))
        self._check_devices(tables)
        return Trace(
            meta=self._meta(path, keys, tables),
            names=tables.names,
            threads=tables.threads,
            records=tables.records,
            calls=tables.calls,
            spans=tables.spans,
            device_spans=tables.device_spans,
            flows=tables.flows,
            collectives=tables.collectives,
            shapes=tables.shapes,
            damage=self._damage(keys, tables),
            span_ns=tables.span_ns,
        )

    def _check_places(self) -> None:
        """Refuse a device whose records are of several processes, stream by stream.

        Source: Kineto writes a record under its device; tools that put files together change that
            number, or make it a text, and leave the one in `args`.
        """
        if not self._rows.places:
            return
        records = self._rows.records
        device, place = records.whole("device", np.int32), records.whole("place", np.int32)
        keys = np.stack((device, records.whole("stream", np.int64), place))
        distinct, counts = np.unique(keys, axis=1, return_counts=True)
        often = distinct[:2, counts > 1]  # a single row may be damaged
        streams, processes = np.unique(often, axis=1, return_counts=True)
        if np.any(processes > 1):
            raise self._merged(int(streams[0, processes > 1][0]))

    def _merged(self, device: int) -> TraceFormatError:
        return self._source.error(
            f"holds records of several processes on device {device}: ranks merged into one file; "
            "give each rank's own file"
        )

    def _check_devices(self, tables: Assembled) -> None:
        """Refuse thousands of devices, and a device that several processes' records are on."""
        devices = tables.records.device
        if len(devices) and np.ptp(devices) >= _MOST_DEVICES:
            count = len(np.unique(devices))
            if count > _MOST_DEVICES:
                raise self._source.error(f"names {count} devices, more than a machine has")
        if merged := merged_devices(tables.records, tables.calls, tables.threads):
            raise self._merged(merged[0])

    @property
    def _event_count(self) -> int:
        lost = self._events.damaged + self._events.undecodable + self._trailing
        return self._rows.counts.total() + lost

    def _open(self, data: Buffer) -> bytes:
        """What of the text so far belongs to the event array; nothing until it opens."""
        self._opening += data
        if len(self._opening) < self._wanted_bytes:
            return b""
        # A text without the array is searched again when there is far more of it.
        self._wanted_bytes = 8 * len(self._opening)
        text = bytes(self._opening)
        if other := other_format(text[:_FIRST_BYTES], self._called):
            raise self._source.error(other)
        start = without_mark(text[:_FIRST_BYTES]).lstrip()
        if start and start[:1] not in b"{[" and not is_cut_mark(start):
            raise self._source.error("is not JSON", len(text[:_FIRST_BYTES]) - len(start))
        return self._opened(text)

    def _opened(self, text: bytes) -> bytes:
        opening = find_opening(text)
        if opening is None:
            return b""
        self._head, self._texts, self._opening = opening.head, opening.texts, bytearray()
        return text[opening.position :]

    def _no_events(self) -> TraceFormatError:
        """Why a text with no event array is no trace."""
        text = without_mark(bytes(self._opening))
        keys = document_texts(text, mend=False)
        if not isinstance(keys, Refusal):
            return self._source.error("is JSON but not a Kineto trace: it has no traceEvents list")
        if not text.strip():
            return self._source.error("is an empty trace")
        if keys.fault is Fault.INCOMPLETE:
            return self._source.error("is cut off before its events", len(self._opening))
        return self._source.error("is not JSON", keys.offset)

    def _meta(self, path: Path, keys: meta.Keys, tables: Assembled) -> TraceMeta:
        values = keys.values
        rank, rank_source = meta.rank_of(values, path.name)
        called = [tables.names[number] for number in sorted(set(tables.calls.name.tolist()))]
        runtime = meta.runtime_of(values, called)
        return TraceMeta(
            path=str(path),
            sha256=self._source.sha256,
            base_time_unix_ns=meta.base_time_unix_ns(values),
            anchored=tables.anchored,
            rank=rank,
            rank_source=rank_source,
            world_size=meta.world_size_of(values),
            backend=meta.backend_of(values),
            groups=meta.groups_of(values),
            trace_id=meta.text_of(values, "trace_id"),
            host_name=meta.text_of(values, "host_name", "HOSTNAME"),
            run=meta.text_of(values, "chopperd_run"),
            job=meta.text_of(values, "chopperd_job"),
            devices=meta.devices_of(values),
            simulated=values.get("chopperd_simulated") is True,
            event_count=self._event_count,
            event_counts=dict(self._rows.counts),
            runtime=runtime,
            device_numbers=device_numbers(
                runtime,
                called,
                kernel_devices(tables.records),
                has_queues=self._rows.has_queues,
            ),
        )

    def _damage(self, keys: meta.Keys, tables: Assembled) -> Damage:
        truncated = self._events.truncated or self._source.truncated
        found = tables.damage
        return replace(
            found,
            damaged_events=self._events.damaged,
            damaged_args=self._events.damaged_args,
            undecodable_events=(
                self._events.undecodable + self._rows.undecodable + found.undecodable_events
            ),
            further_events=self._trailing,
            invalid_records=self._rows.invalid_records + found.invalid_records,
            truncated=truncated or self._source.still_written,
            unclosed=not keys.closed and not truncated,
            unreadable_keys=not keys.readable,
            still_written=self._source.still_written,
        )

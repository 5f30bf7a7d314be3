"""Reads a Kineto trace file into a `Trace`: one pass, one block of events in memory at a time."""

from pathlib import Path
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopperd.errors import TraceFormatError
from chopperd.model.trace import Damage, Trace
from chopperd.traces.correlation_ids import merged_devices
from chopperd.traces.read import meta
from chopperd.traces.read.assemble import assemble
from chopperd.traces.read.document import (
    RANKS,
    Texts,
    document_texts,
    find_opening,
    is_cut_mark,
    trailing_events,
    without_mark,
)
from chopperd.traces.read.event_array import DamagedTextError, DecodedArray, event_array
from chopperd.traces.read.json_text import Fault, Refusal
from chopperd.traces.read.rows import TraceRows
from chopperd.traces.read.sniff import other_format
from chopperd.traces.read.source import Buffer, Progress, ReadLimits, TraceSource

DEFAULT_LIMITS: Final = ReadLimits()
_MOST_DEVICES: Final = 128
"""Of the largest machines so far, a partition counted as a device, 64."""
_RETRY_BYTES: Final = 4 << 20
"""What is fed after the scanner could not read on by itself, before it tries again."""
_REREAD_BYTES: Final = 1 << 16
"""Up to so much pending text is read again for that: far less, so that reading advances."""
_OLD_CATEGORIES: Final = frozenset({"", "cpu_to_cuda"})
"""All that the old torch.autograd.profiler writes."""
_DAMAGED: Final = (
    "is damaged or cut off, and this installation has no native scanner, which alone reads such "
    "files: install chopperd from a wheel, or reinstall it where a C compiler is"
)
_SEVERAL_RANKS: Final = "is of several ranks in one file, for viewers; give each rank's own file"
_FIRST_BYTES: Final = 4096
"""Read to decide whether a text may be JSON, unless all of them are blanks."""


def read_trace(
    path: Path,
    *,
    limits: ReadLimits = DEFAULT_LIMITS,
    progress: Progress | None = None,
    name: str | None = None,
    hashed: bool = True,
) -> Trace:
    """Read the trace in a file, of any layout, gzip or plain; damage is counted.

    `progress`: called with (stored bytes read, size of the file). `name`: the file's original name,
    which may contain its rank; None if it is the current one. `hashed`: whether the file is hashed;
    else its hash is "".

    Raises: TraceFormatError: Not a trace: unreadable, empty, too large, or something else; or
    damaged, where the C scanner is missing.
    """
    called = path if name is None else Path(name)
    with TraceSource(path, limits, progress, name=str(called), hashed=hashed) as source:
        document = _Document(source, limits, called)
        try:
            for data in source.views():
                document.feed(data)
                if source.is_plain:
                    document.read_on()
            document.finish()
            return document.trace()
        except DamagedTextError:
            raise source.error(_DAMAGED) from None


class _Document:
    """Reads a document as it arrives: the keys before the events, the events, the keys after."""

    def __init__(self, source: TraceSource, limits: ReadLimits, called: Path) -> None:
        self._source = source
        self._called = called
        self._limits = limits
        self._opening = bytearray()
        self._wanted_bytes = 0
        self._head: bytes | None = None
        self._texts: Texts | Refusal = {}
        self._rows = TraceRows()
        self._events = event_array(self._rows, limits.block_bytes)
        self._read_on_from = 0
        self._trailing = 0

    def feed(self, data: Buffer) -> None:
        """Take the next piece of the text; refuse an element or other text that is too long."""
        if self._head is None:
            data = self._open(data)
        self._events.feed(data)
        if len(self._opening) + self._events.pending_bytes > self._limits.element_bytes:
            raise self._source.error(
                "is no trace that can be read: one event, or the text before or after the events, "
                f"is larger than {self._limits.element_bytes} bytes"
            )

    def read_on(self) -> None:
        """Let the scanner read on in the file itself, once the events have begun.

        It stops at a long or damaged element and is tried again when that is passed; pending text,
        which is less than is fed until then, is read again.
        """
        is_due = self._source.stored_bytes >= self._read_on_from
        if self._head is None or not is_due or self._events.pending_bytes > _REREAD_BYTES:
            return
        self._events.read_file(self._source)
        self._read_on_from = self._source.stored_bytes + _RETRY_BYTES

    def finish(self) -> None:
        """Read the text still pending, when the document has ended.

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

    def trace(self) -> Trace:
        """Build the trace, after `finish`; raise as `read_trace` does."""
        keys = meta.read_keys(self._head or b"", self._events.tail, self._texts)
        if isinstance(self._events, DecodedArray) and not (keys.closed and keys.readable):
            raise DamagedTextError
        if RANKS in keys.values:
            raise self._source.error(_SEVERAL_RANKS)
        self._trailing = trailing_events(self._events.tail or b"")
        self._check_processes()
        about = meta.trace_meta(
            keys.values,
            path=str(self._called),
            file_name=self._called.name,
            sha256=self._source.sha256,
            event_counts=dict(self._rows.counts),
            event_count=self._event_count,
        )
        found = assemble(self._rows, about)
        self._check_devices(found)
        return replace(
            found,
            meta=meta.with_runtime(found, keys.values, has_queues=self._rows.has_queues),
            damage=self._damage(keys, found.damage),
        )

    def _check_processes(self) -> None:
        """Refuse a device with a stream whose records are of several processes.

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

    def _check_devices(self, trace: Trace) -> None:
        """Refuse thousands of devices, and a device that several processes' records are on."""
        devices = trace.records.device
        if len(devices) and np.ptp(devices) >= _MOST_DEVICES:
            count = len(np.unique(devices))
            if count > _MOST_DEVICES:
                raise self._source.error(f"names {count} devices, more than a machine has")
        if merged := merged_devices(trace.records, trace.calls, trace.threads):
            raise self._merged(merged[0])

    @property
    def _event_count(self) -> int:
        lost = self._events.damaged + self._events.undecodable + self._trailing
        return self._rows.counts.total() + lost

    def _open(self, data: Buffer) -> bytes:
        """Take text; return the part so far that is of the event array, empty until it opens."""
        self._opening += data
        if len(self._opening) < self._wanted_bytes:
            return b""
        # A text without the array is searched again when there is far more of it.
        self._wanted_bytes = 8 * len(self._opening)
        text = bytes(self._opening)
        if other := other_format(text[:_FIRST_BYTES], self._called.name):
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
        """Make the error that says why a text without an event array is no trace."""
        text = without_mark(bytes(self._opening))
        keys = document_texts(text, mend=False)
        if not isinstance(keys, Refusal):
            return self._source.error("is JSON but not a Kineto trace: it has no traceEvents list")
        if not text.strip():
            return self._source.error("is an empty trace")
        if keys.fault is Fault.INCOMPLETE:
            return self._source.error("is cut off before its events", len(self._opening))
        return self._source.error("is not JSON", keys.offset)

    def _damage(self, keys: meta.Keys, found: Damage) -> Damage:
        truncated = self._events.truncated or self._source.truncated
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

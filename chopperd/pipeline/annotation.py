"""Write a copy of a trace file with counters of its GPUs added."""

import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Final, TypeAlias

from isal import igzip
from msgspec import Struct

from chopperd.errors import ConfigError, TimebaseError, TraceError, TraceFormatError
from chopperd.model.timeline import Timeline
from chopperd.model.trace import Trace
from chopperd.pipeline.reports import JoinInput, Progress, ReportOptions, Samples, join_input
from chopperd.report.build.clocked_device import ClockedDevice, clocked_device
from chopperd.report.forms.counter_tracks import (
    CATEGORY,
    CounterTrack,
    counter_events,
    counter_tracks,
)
from chopperd.store.disk import PRIVATE, replaced_file
from chopperd.traces.native.scanner import Scanner, ScannerLibrary, TextBuffer, scanner_library
from chopperd.traces.read.document import find_opening
from chopperd.traces.read.json_text import (
    ANY_VALUE,
    EVENT_BORDER,
    Refusal,
    Scalar,
    first_value,
    is_json,
    scalar,
)
from chopperd.traces.read.rows import integer
from chopperd.traces.read.source import TraceSource
from chopperd.units import NS_PER_S

Pids: TypeAlias = Mapping[int, Scalar]

_CATEGORIES: Final = ("kernel", "Kernel", "gpu_memcpy", "Memcpy", "gpu_memset", "Memset")
_RECORDS_TRIED: Final = 64
"""Records of a kind that are read in each piece of text."""
_EVENT_BYTES: Final = 16 * 1024
"""Longer records are skipped."""
_BETWEEN: Final = b",\n"
_BLANK: Final = b" \t\r\n"
_SEPARATORS: Final = _BLANK + b","
_HELD_BYTES: Final = 1 << 21


class Annotator:
    """Inserts events, JSON objects, into the text of one trace, a piece at a time.

    `opened`: whether the event array was found. `dropped_bytes`: how much of the end of a cut file
    is omitted; known after `finish`. `closes`: the scanner if the file was cut off, to find its
    last whole event; the text is closed after it.
    """

    def __init__(self, events: Iterable[bytes], *, closes: ScannerLibrary | None) -> None:
        self.opened = False
        self.dropped_bytes = 0
        self._events = events
        self._text = b""
        self._bare = False
        self._begun = False
        self._has_inserted = False
        self._end = None if closes is None else _CutEnd(closes)

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Take the next text; yield what can be written by now."""
        if self._begun:
            yield from self._rest(data)
            return
        self._text += data
        if not self.opened:
            yield from self._open()
        if self.opened and self._text.strip(_BLANK):
            yield from self._begin()

    def finish(self) -> Iterator[bytes]:
        """Yield the rest, when the text has ended; set `dropped_bytes`."""
        if self._end is None:
            yield self._text
            return
        end = self._end
        keep, closing = end.closing(bare=self._bare)
        self.dropped_bytes = len(end.held[keep:].strip(_SEPARATORS))
        if keep:
            yield end.comma
        yield end.held[:keep]
        yield closing

    def _open(self) -> Iterator[bytes]:
        """Yield the text up to the array's bracket, and the events, as soon as the array opens."""
        opening = find_opening(self._text)
        if opening is None:
            return
        self.opened, self._bare = True, not opening.head
        yield self._text[: opening.position]
        self._text = self._text[opening.position :]
        between = b"\n"
        for event in self._events:
            yield between + event
            between, self._has_inserted = _BETWEEN, True

    def _begin(self) -> Iterator[bytes]:
        """Yield the comma before the file's own events, where it has any, and the first of them."""
        text, self._text, self._begun = self._text, b"", True
        has_events = text.lstrip(_BLANK)[:1] not in b"],"
        comma = b"," if has_events and self._has_inserted else b""
        if self._end is None:
            yield comma
        else:
            self._end.comma = comma
        yield from self._rest(text)

    def _rest(self, data: bytes) -> Iterator[bytes]:
        if self._end is None:
            yield data
        else:
            yield from self._end.feed(data)


class _CutEnd:
    """Holds back the end of a file that was cut, until its last whole event is known.

    `held`: text not yet returned; it starts between two events. `comma`: separates the inserted
    events from the first of the file.
    """

    def __init__(self, library: ScannerLibrary) -> None:
        self._scanner = Scanner(library)
        self.held = b""
        self.comma = b""
        self._ended = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Take the next text; yield what is certainly no part of a cut event."""
        self.held += data
        if len(self.held) <= _HELD_BYTES or self._ended:
            return
        end, self._ended = self._whole(final=False)
        if end and not self._ended:
            yield self.comma
            yield self.held[:end]
            self.comma, self.held = b"", self.held[end:]

    def closing(self, *, bare: bool) -> tuple[int, bytes]:
        """Return how many held bytes are retained, and the brackets that close the document."""
        end, ended = self._whole(final=True)
        if not ended:
            whole = len(self.held[:end].rstrip(_SEPARATORS))
            return whole, b"\n]" if bare else b"\n]}"
        if bare:
            return end, b""
        whole, closing = _closed_keys(self.held[end:])
        return end + whole, closing

    def _whole(self, *, final: bool) -> tuple[int, bool]:
        """Return where the held text's last whole event ends, and whether the array ends there."""
        stop = self._scanner.scan(TextBuffer(self.held), final=final)
        self._scanner.take()
        return stop.consumed, stop.ended


def _closed_keys(keys: bytes) -> tuple[int, bytes]:
    """Return how many bytes after the array are retained, and the bracket that they may need."""
    opened = b'{"":[]'
    if is_json(opened + keys):
        return len(keys), b""
    commas = [comma.start() for comma in re.finditer(rb",", keys)]
    ends = (len(keys), *reversed(commas))
    whole = next((end for end in ends if is_json(opened + keys[:end] + b"}")), 0)
    return whole, b"}"


def device_pids(chunks: Iterable[bytes], devices: Iterable[int]) -> Pids:
    """Find the `pid` of each device's records, as the file writes it; else the device's number.

    Kineto writes the number itself; a file that another tool wrote may have a text. Only as much of
    the file is read as it takes.
    """
    wanted = set(devices)
    found: dict[int, Scalar] = {}
    for text in chunks:
        for event in _records(text):
            device = _device(event)
            pid = scalar(event.get("pid"))
            if device in wanted and pid is not None:
                found.setdefault(device, pid)
        if found.keys() >= wanted:
            break
    return {device: found.get(device, device) for device in wanted}


def _records(text: bytes) -> Iterator[Mapping[str, object]]:
    for category in _CATEGORIES:
        word = f'"{category}"'.encode()
        position = text.find(word)
        for _ in range(_RECORDS_TRIED):
            if position < 0:
                break
            event = _event_around(text, position)
            if event is not None and event.get("cat") == category:
                yield event
            position = text.find(word, position + len(word))


def _event_around(text: bytes, position: int) -> Mapping[str, object] | None:
    """Return the event that holds a position; None if there is none or it exceeds the text."""
    begin = max(position - _EVENT_BYTES, 0)
    starts = [border.end() for border in EVENT_BORDER.finditer(text, begin, position)]
    found = first_value(ANY_VALUE, memoryview(text)[starts[-1] :]) if starts else None
    if found is None or isinstance(found, Refusal):
        return None
    event = found[0]
    return event if isinstance(event, dict) and event.get("ph") == "X" else None


def _device(event: Mapping[str, object]) -> int:
    args = event.get("args")
    device = scalar(args.get("device")) if isinstance(args, dict) else None
    return integer(scalar(event.get("pid")) if device is None else device)


_GZIP_LEVEL: Final = 1


class Annotated(Struct, frozen=True, kw_only=True):
    """What was added to a trace."""

    gpus: dict[int, str]  # labels of the GPUs with tracks, by trace device
    event_count: int  # counter events
    remarks: tuple[str, ...]  # for people: devices without tracks, damage that remains


class _Counters(Struct, frozen=True, kw_only=True):
    """Counter tracks of each device, and the facts about the trace needed to write its copy."""

    tracks: dict[int, tuple[CounterTrack, ...]]
    gpus: dict[int, str]
    base_ns: int
    sha256: str
    cut: bool
    simulated: bool
    remarks: tuple[str, ...]

    def __len__(self) -> int:
        """Return the number of counter events."""
        return sum(len(track) for tracks in self.tracks.values() for track in tracks)


def annotate_file(
    trace: Path,
    out: Path,
    *,
    samples: Samples,
    options: ReportOptions,
    progress: Progress | None = None,
) -> Annotated:
    """Write a copy of the trace with counter tracks of clock, power, temperature, causes and loss.

    The trace's own text is copied byte for byte, except for the cut event at the end of an
    incomplete file. `out`, which must not be `trace`, is written completely or not at all, readable
    for its owner only, and compressed if its name ends in `.gz`. `progress` is called with bytes
    done and in all, from start to end for each of several readings.

    Raises:
        ConfigError: `out` can't be written to, there are no samples, or no device is mapped.
        TimebaseError: The samples don't reach into the trace, or its times have no origin.
        TraceError: The trace can't be read, was annotated before, or has no device records.
        StoreError: `out` can't be written.
    """
    _check_out(trace, out)
    counters = _counters(join_input(trace, samples, options, progress), options)
    with TraceSource(trace, options.limits) as source:
        pids = dict(device_pids(source.chunks(), counters.tracks))
    events = (
        event
        for device, tracks in counters.tracks.items()
        for track in tracks
        for event in counter_events(
            track, pid=pids[device], base_ns=counters.base_ns, simulated=counters.simulated
        )
    )
    closes = scanner_library() if counters.cut else None
    annotator = Annotator(events, closes=closes)
    with (
        replaced_file(out, mode=PRIVATE) as file,
        TraceSource(trace, options.limits, progress) as source,
    ):
        packed = igzip.open if out.suffix == ".gz" else lambda plain, *_: nullcontext(plain)
        with packed(file, "wb", _GZIP_LEVEL) as sink:
            for data in source.chunks():
                sink.writelines(annotator.feed(data))
            sink.writelines(annotator.finish())
        if source.sha256 != counters.sha256:
            message = f"{trace} changed while it was read; annotate it when it is finished"
            raise TraceFormatError(message, path=str(trace))
    remarks = counters.remarks
    if counters.cut:
        closed = f"its last {annotator.dropped_bytes} bytes are left out and the file is closed"
        remarks += (f"the trace breaks off: {closed}",)
    return Annotated(gpus=counters.gpus, event_count=len(counters), remarks=remarks)


def _check_out(trace: Path, out: Path) -> None:
    if not out.parent.is_dir():
        raise ConfigError([f"-o: there is no folder {out.parent}"])
    if not out.exists():
        return
    if trace.exists() and out.samefile(trace):
        raise ConfigError([f"-o: {out} is the trace itself; name another file"])
    if not stat.S_ISREG(out.stat().st_mode):
        raise ConfigError([f"-o: {out} is not a regular file"])


def _counters(found: JoinInput, options: ReportOptions) -> _Counters:
    trace, timeline, samples = found.trace, found.timeline, found.samples
    _check_trace(trace, timeline)
    if samples is None:
        message = f"no clock samples of the time of {trace.meta.path}: name a file with --samples"
        raise ConfigError([message])
    clocked = {
        device.device: clocked_device(device, timeline, trace, samples, options.join)
        for device in timeline.devices
    }
    tracks = {device: counter_tracks(one, trace.span_ns) for device, one in clocked.items()}
    if not any(tracks.values()):
        raise _nothing_to_show(found, clocked)
    number = trace.damage.damaged_events
    damaged = [f"{number} events are damaged and stay as they are; a viewer may stop at them"]
    return _Counters(
        tracks={device: those for device, those in tracks.items() if those},
        gpus={d: one.samples.gpu.gpu for d, one in clocked.items() if tracks[d] and one.samples},
        base_ns=trace.meta.base_time_unix_ns or 0,
        sha256=trace.meta.sha256,
        cut=trace.damage.truncated or trace.damage.unclosed,
        simulated=samples.simulated or trace.meta.simulated,
        remarks=(*_trackless(clocked, tracks), *(damaged if number else ())),
    )


def _check_trace(trace: Trace, timeline: Timeline) -> None:
    path = trace.meta.path
    if trace.meta.event_counts.get(CATEGORY):
        raise TraceError(f"{path} is annotated already; annotate the original", path=path)
    if trace.damage.still_written:
        raise TraceError(f"{path} is still being written; wait until it is finished", path=path)
    if not timeline.devices:
        raise TraceError(
            f"{path} has no device records, so no GPU to show counters of; trace with CUDA or HIP"
            " activities",
            path=path,
        )
    if not trace.meta.anchored:
        raise TimebaseError(
            f"{path} does not say when it was taken (no baseTimeNanoseconds), so it cannot be"
            " joined with samples; use the file as the profiler wrote it",
            path=path,
        )


def _nothing_to_show(found: JoinInput, clocked: dict[int, ClockedDevice]) -> Exception:
    path, samples = found.trace.meta.path, found.samples
    if samples is not None and all(one.mapped.gpu is None for one in clocked.values()):
        gpus = ", ".join(one.gpu.gpu for one in samples.gpus) or "none"
        device = min(clocked)
        remedy = f"pass --device-map {device}=GPU (sampled: {gpus})"
        return ConfigError([f"{path}: the GPU of its device {device} is unknown; {remedy}"])
    times = [t for one in clocked.values() if one.samples for t in one.samples.t_unix_ns.tolist()]
    reach = f" (they reach from {_seconds(min(times))} to {_seconds(max(times))})" if times else ""
    begin, end = map(_seconds, found.trace.span_ns)
    return TimebaseError(
        f"{path} lasts from {begin} to {end} (Unix time), where there are no clock samples{reach};"
        " name those of its time with --samples",
        path=path,
    )


def _seconds(unix_ns: int) -> str:
    return f"{unix_ns / NS_PER_S:.3f} s"


def _trackless(
    clocked: dict[int, ClockedDevice], tracks: dict[int, tuple[CounterTrack, ...]]
) -> Iterator[str]:
    for device, one in clocked.items():
        if tracks[device]:
            continue
        if one.samples is None:
            yield f"device {device}: its GPU is unknown; pass --device-map"
        else:
            yield f"device {device}: no clock samples of GPU {one.samples.gpu.gpu} in its time"

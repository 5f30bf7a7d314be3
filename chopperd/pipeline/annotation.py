"""Write a copy of a trace, or of those of several ranks, with counters of their GPUs added."""

import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final, Protocol, cast

import msgspec
from isal import isal_zlib
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
from chopperd.traces.native.scanner import scanner_library
from chopperd.traces.read.annotate import Annotator, device_pids
from chopperd.traces.read.document import BASE_TIME, RANKS
from chopperd.traces.read.merge import RankEvents
from chopperd.traces.read.source import TraceSource
from chopperd.units import NS_PER_S

_GZIP_WINDOW_BITS: Final = 31
_GZIP_LEVEL: Final = 1


class Annotated(Struct, frozen=True, kw_only=True):
    """What was added to a trace."""

    gpus: dict[str, str]  # labels of the GPUs with tracks, by trace device ("device 0")
    event_count: int  # counter events
    remarks: tuple[str, ...]  # for people: devices without tracks, damage that remains


class _Counters(Struct, frozen=True, kw_only=True):
    """Counter tracks of each device, and the facts about the trace needed to write its copy."""

    tracks: dict[int, tuple[CounterTrack, ...]]
    gpus: dict[int, str]
    title: str  # "rank 3", or the name of the file
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
    annotator, sink = Annotator(events, closes=closes), _sink(out)
    with (
        replaced_file(out, mode=PRIVATE) as file,
        TraceSource(trace, options.limits, progress) as source,
    ):
        for data in source.chunks():
            _write(file, sink, annotator.feed(data))
        _write(file, sink, annotator.finish())
        if sink is not None:
            file.write(sink.flush())
        _check_same(source, counters, trace)
    remarks = counters.remarks
    if counters.cut:
        closed = f"its last {annotator.dropped_bytes} bytes are left out and the file is closed"
        remarks += (f"the trace breaks off: {closed}",)
    gpus = {f"device {device}": gpu for device, gpu in counters.gpus.items()}
    return Annotated(gpus=gpus, event_count=len(counters), remarks=remarks)


def annotate_ranks(
    traces: Sequence[Path],
    out: Path,
    *,
    samples: Samples,
    options: ReportOptions,
    progress: Progress | None = None,
) -> Annotated:
    """Write the traces of several ranks into one file, each with counter tracks as its own copy.

    Processes are numbered anew and named after their rank, and times count from the first base.

    Raises:
        TraceFormatError: A trace is damaged or breaks off.
        ConfigError, TimebaseError, TraceError, StoreError: As for `annotate_file`.
    """
    for trace in traces:
        _check_out(trace, out)
    found = [_counters(join_input(path, samples, options, progress), options) for path in traces]
    if len({each.sha256 for each in found}) < len(found):
        raise ConfigError(["the same trace is named twice"])
    base_ns, sink = min(each.base_ns for each in found), _sink(out)
    head: dict[str, object] = {"schemaVersion": 1, "displayTimeUnit": "ms"}
    opening = msgspec.json.encode(head | {BASE_TIME: base_ns, RANKS: len(found)})[:-1]
    with replaced_file(out, mode=PRIVATE) as file:
        _write(file, sink, iter([opening + b',"traceEvents":[\n']))
        between = b""
        for nth, (path, counters) in enumerate(zip(traces, found, strict=True)):
            rank = RankEvents(
                counters.title,
                nth=nth,
                ranks=len(found),
                shift_ns=counters.base_ns - base_ns,
                block_bytes=options.limits.block_bytes,
                longest_bytes=options.limits.element_bytes,
                path=str(path),
            )
            for event in _rank_events(path, counters, rank, base_ns, options):
                _write(file, sink, iter([between + event]))
                between = b",\n"
        _write(file, sink, iter([b"\n]}\n"]))
        if sink is not None:
            file.write(sink.flush())
    return Annotated(
        gpus={f"{each.title} device {d}": gpu for each in found for d, gpu in each.gpus.items()},
        event_count=sum(map(len, found)),
        remarks=tuple(f"{each.title}: {remark}" for each in found for remark in each.remarks),
    )


def _rank_events(
    path: Path, counters: _Counters, rank: RankEvents, base_ns: int, options: ReportOptions
) -> Iterator[bytes]:
    """Yield the counters of a rank and the events of its trace, as they stand in the one file."""
    with TraceSource(path, options.limits) as source:
        pids = dict(device_pids(source.chunks(), counters.tracks))
    for device, tracks in counters.tracks.items():
        pid = rank.number(msgspec.json.encode(pids[device]))
        for track in tracks:
            yield from counter_events(track, pid=pid, base_ns=base_ns, simulated=counters.simulated)
    with TraceSource(path, options.limits) as source:
        for data in source.chunks():
            yield from rank.feed(data)
        yield from rank.finish()
        _check_same(source, counters, path)


def _check_same(source: TraceSource, counters: _Counters, path: Path) -> None:
    if source.sha256 != counters.sha256:
        message = f"{path} changed while it was read; annotate it when it is finished"
        raise TraceFormatError(message, path=str(path))


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
        title=_title(trace),
        base_ns=trace.meta.base_time_unix_ns or 0,
        sha256=trace.meta.sha256,
        cut=trace.damage.truncated or trace.damage.unclosed,
        simulated=samples.simulated or trace.meta.simulated,
        remarks=(*_trackless(clocked, tracks), *(damaged if number else ())),
    )


def _title(trace: Trace) -> str:
    rank = trace.meta.rank
    return Path(trace.meta.path).name if rank is None else f"rank {rank}"


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


class _Sink(Protocol):
    """Output stream that compresses its data."""

    def compress(self, data: bytes, /) -> bytes: ...

    def flush(self) -> bytes: ...


def _write(file: BinaryIO, sink: _Sink | None, pieces: Iterator[bytes]) -> None:
    for piece in pieces:
        file.write(sink.compress(piece) if sink is not None else piece)


def _sink(path: Path) -> _Sink | None:
    gzip = isal_zlib.compressobj(_GZIP_LEVEL, wbits=_GZIP_WINDOW_BITS)
    return cast("_Sink", gzip) if path.suffix == ".gz" else None

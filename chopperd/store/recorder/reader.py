"""The flight recorder's reader: the samples of a time, also while another process writes them."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeVar

import numpy as np

from chopperd.correlate.clock.governing import reported_dies
from chopperd.errors import StoreError
from chopperd.model.arrays import Float64s, Int64s
from chopperd.model.devices import GpuInfo
from chopperd.model.report import Note
from chopperd.model.samples import VALUE_COLUMNS, GpuSamples, ProcessRow, SampleSet
from chopperd.sampling.memory.layout import Records
from chopperd.sampling.process_table import merged_processes
from chopperd.sampling.recording import gpu_samples
from chopperd.store.recorder.chunk import Origin, SampleChunk, decoded_chunk, identity, joined
from chopperd.store.recorder.files import JOURNAL, kept_paths
from chopperd.store.recorder.frames import Frame, FrameKind, file_span_ns, read_payload, scanned
from chopperd.store.samples.columns import label_order
from chopperd.units import NS_PER_S, TimeTriple

#: Clock triples this far beyond a time still tie its first and last samples to Unix time.
_MARGIN_NS: Final = 2 * NS_PER_S
_COLUMNS: Final[Mapping[str, type]] = {
    **dict.fromkeys(("t_unix_ns", "read_span_ns", "causes"), np.int64),
    **dict.fromkeys(VALUE_COLUMNS, np.float64),
}
Made = TypeVar("Made")


class ChunkFiles:
    """The chunks of a time in a recorder's folder, read once.

    Args:
        folder: The recorder's.
        from_unix_ns, to_unix_ns: Chunks that may hold samples of `[from, to)` are wanted.

    Attributes:
        newest: Origin of the newest samples in the folder; None if there are none.
        damaged: File and offset of skipped pieces that belong, or may belong, to the time.
        unreadable: Files that may not be read.
    """

    def __init__(self, folder: Path, from_unix_ns: int, to_unix_ns: int) -> None:
        self._folder = folder
        self._from_unix_ns, self._to_unix_ns = from_unix_ns, to_unix_ns
        self.newest: Origin | None = None
        self.damaged: set[tuple[str, int]] = set()
        self.unreadable: set[str] = set()

    def chunks(self) -> list[SampleChunk]:
        """The chunks, in no certain order; some samples may be in two of them.

        The journal is read first: what leaves it meanwhile is then found in the other files.

        Raises:
            OSError: The folder can't be read.
        """
        journal = self._folder / JOURNAL
        chunks = self._read(journal, self._of_file) or []
        self.newest = self._read(journal, _last_origin)
        paths = [path for _, path in kept_paths(self._folder)]
        for path in paths:
            chunks.extend(self._read(path, self._of_file) or [])
        for path in reversed(paths):
            self.newest = self.newest or self._read(path, _last_origin)
        return chunks

    def _of_file(self, fd: int, path: Path) -> list[SampleChunk]:
        if not self._is_wanted(file_span_ns(fd)):
            return []
        scan = scanned(fd)
        self.damaged.update((path.name, offset) for offset in scan.damaged_offsets)
        wanted = [f for f in scan.frames if f.touches(self._from_unix_ns, self._to_unix_ns)]
        chunks = [self._decoded(path, fd, frame) for frame in wanted]
        return [chunk for chunk in chunks if chunk is not None]

    def _is_wanted(self, span_ns: tuple[int, int] | None) -> bool:
        """Whether a file may hold something; one of which nothing is known is damaged or empty."""
        if span_ns is None:
            return True
        return span_ns[0] < self._to_unix_ns and span_ns[1] >= self._from_unix_ns

    def _decoded(self, path: Path, fd: int, frame: Frame) -> SampleChunk | None:
        """The chunk of a frame; None if it has none, or none that can be read."""
        if frame.kind == FrameKind.END:
            return None
        try:
            if frame.kind == FrameKind.SAMPLES and (payload := read_payload(fd, frame)):
                return decoded_chunk(payload)
        except StoreError:
            pass
        self.damaged.add((path.name, frame.offset))
        return None

    def _read(self, path: Path, work: Callable[[int, Path], Made]) -> Made | None:
        """What is made of an open file; None if it is gone, or can't be read, which is noted."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                return work(fd, path)
            finally:
                os.close(fd)
        except FileNotFoundError:
            return None
        except OSError:
            self.unreadable.add(path.name)
            return None


def _last_origin(fd: int, _path: Path) -> Origin | None:
    """Where the last samples of a file come from; None if it has none that can be read."""
    for frame in reversed(scanned(fd).frames):
        try:
            return decoded_chunk(read_payload(fd, frame) or b"").origin
        except StoreError:
            continue
    return None


class RecordedSamples:
    """The samples in a folder that a `FlightRecorder` writes, or wrote.

    Damaged chunks are skipped, counted, and noted in the samples that lack them. May be used from
    any thread.

    Args:
        folder: The recorder's; need not exist.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._damaged: set[tuple[str, int]] = set()

    @property
    def folder(self) -> Path:
        """Where the samples are."""
        return self._folder

    @property
    def damaged_count(self) -> int:
        """Damaged pieces of files found so far, each counted once."""
        return len(self._damaged)

    def between(
        self, from_unix_ns: int, to_unix_ns: int, gpus: Sequence[str] | None = None
    ) -> SampleSet | None:
        """All samples of `[from, to)`, of all GPUs or those of the labels; None if there are none.

        GPUs are identified by UUID; each has its label of the newest samples.
        Times are rounded to 1 us. Where the wall clock was set back, samples whose time was
        already passed are left out. A long time takes much memory: some 200 bytes a sample.

        Raises:
            StoreError: The folder can't be read.
        """
        files = ChunkFiles(self._folder, from_unix_ns - _MARGIN_NS, to_unix_ns + _MARGIN_NS)
        try:
            boots = _by_boot(files.chunks())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"{self._folder}: can't be read: {error.strerror or error}") from error
        self._damaged |= files.damaged
        labels = _labels(boots, files.newest)
        samples = [
            each
            for key, label in labels.items()
            if gpus is None or label in gpus
            if len(each := _of_gpu(boots, key, label, (from_unix_ns, to_unix_ns)))
        ]
        if not samples:
            return None
        origin = boots[-1].chunks[-1].origin
        return SampleSet(
            gpus=tuple(sorted(samples, key=lambda each: label_order(each.gpu.gpu))),
            asked_hz=origin.asked_hz,
            simulated=any(chunk.origin.simulated for boot in boots for chunk in boot.chunks),
            backend=origin.backend,
            driver=origin.driver,
            node=origin.node,
            triples=max(boots, key=lambda boot: boot.row_count).triples,
            processes=merged_processes(
                row for boot in boots for row in boot.processes(ended=boot is not boots[-1])
            ),
            source=str(self._folder),
            notes=tuple(_notes(boots, files)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Boot:
    """What was sampled between two starts of the machine: its times share one MONOTONIC.

    Attributes:
        chunks: In order of time.
        triples: All clock triples, rising.
    """

    chunks: tuple[SampleChunk, ...]
    triples: tuple[TimeTriple, ...]

    @staticmethod
    def of(chunks: Sequence[SampleChunk]) -> "_Boot":
        """The boot that some chunks, in any order, belong to."""
        by_time = {triple.mono_ns: triple for chunk in chunks for triple in chunk.triples}
        return _Boot(
            chunks=tuple(sorted(chunks, key=_last_mono_ns)),
            triples=tuple(by_time[mono_ns] for mono_ns in sorted(by_time)),
        )

    @property
    def row_count(self) -> int:
        """How many samples there are of it."""
        return sum(chunk.row_count for chunk in self.chunks)

    def processes(self, *, ended: bool) -> Iterator[ProcessRow]:
        """Who held the GPUs, as noted.

        Args:
            ended: Whether the machine was started again later, which ends what ran.
        """
        last_ns = self.triples[-1].unix_ns
        for row in (row for chunk in self.chunks for row in chunk.processes):
            yield replace(row, gone_unix_ns=row.gone_unix_ns or last_ns) if ended else row

    def gpus(self) -> dict[str, GpuInfo]:
        """The GPUs by identity, as described last."""
        return {identity(gpu): gpu for chunk in self.chunks for gpu in chunk.origin.gpus}

    def described(self, key: str) -> Iterator[GpuInfo]:
        """How its chunks describe a GPU, in order of time."""
        for chunk in self.chunks:
            yield from (gpu for gpu in chunk.origin.gpus if identity(gpu) == key)

    def records(self, key: str) -> Records | None:
        """All records of a GPU, rising in time, each once; None if there are none."""
        parts = [
            records
            for chunk in self.chunks
            for slot, records in chunk.records.items()
            if identity(chunk.origin.gpus[slot]) == key
        ]
        if not parts:
            return None
        rows = joined(parts)
        _, first = np.unique(rows["t_mono_ns"], return_index=True)
        records: Records = rows[first]
        return records


def _last_mono_ns(chunk: SampleChunk) -> int:
    return chunk.triples[-1].mono_ns if chunk.triples else 0


def _by_boot(chunks: Sequence[SampleChunk]) -> list[_Boot]:
    """The chunks by boot, the latest boot last."""
    groups: dict[str, list[SampleChunk]] = {}
    for chunk in chunks:
        if chunk.triples and chunk.row_count:
            groups.setdefault(chunk.origin.boot_id, []).append(chunk)
    return sorted(map(_Boot.of, groups.values()), key=lambda boot: boot.triples[-1].unix_ns)


def _labels(boots: Sequence[_Boot], newest: Origin | None) -> dict[str, str]:
    """The label of each GPU by identity, no two the same.

    A GPU that is no longer in the machine has its last label, or its UUID if another GPU has that
    label now.
    """
    now = {identity(gpu): gpu.gpu for gpu in (newest.gpus if newest else ())}
    before = {key: gpu.gpu for boot in boots for key, gpu in boot.gpus().items()}
    labels = {key: now[key] for key in before if key in now}
    taken = set(now.values())
    for key, label in reversed(before.items()):
        if key not in labels:
            labels[key] = key if label in taken else label
            taken.add(label)
    return labels


def _of_gpu(
    boots: Sequence[_Boot], key: str, label: str, span_unix_ns: tuple[int, int]
) -> GpuSamples:
    """The samples of one GPU within a time, over all boots; there may be none."""
    infos = [gpu for boot in boots for gpu in boot.described(key)]
    limits_w = {gpu.power_limit_w for gpu in infos} - {None}
    info = replace(
        infos[-1],
        gpu=label,
        # The samples do not hold which of several was in force when.
        power_limit_w=limits_w.pop() if len(limits_w) == 1 else None,
    )
    parts = [
        gpu_samples(info, records, boot.triples)
        for boot in boots
        if (records := boot.records(key)) is not None
    ]
    t_unix_ns = np.concatenate([np.zeros(0, np.int64), *(part.t_unix_ns for part in parts)])
    begin_ns, end_ns = span_unix_ns
    inside = np.flatnonzero((t_unix_ns >= begin_ns) & (t_unix_ns < end_ns))
    passed_ns = np.maximum.accumulate(np.concatenate([[begin_ns - 1], t_unix_ns[inside]]))
    return _rows_of(info, parts, inside[t_unix_ns[inside] > passed_ns[:-1]])


def _rows_of(info: GpuInfo, parts: Sequence[GpuSamples], rows: Int64s) -> GpuSamples:
    """Some rows of several samples of a GPU put one after the other."""
    columns = {
        name: np.concatenate([np.zeros(0, dtype), *(getattr(part, name) for part in parts)])[rows]
        for name, dtype in _COLUMNS.items()
    }
    limited = {
        cause: np.concatenate([p.limited_ns.get(cause, np.full(len(p), np.nan)) for p in parts])
        for cause in sorted({cause for part in parts for cause in part.limited_ns})
    }
    return GpuSamples(
        gpu=info,
        limited_ns={c: v[rows] for c, v in limited.items() if not np.isnan(v[rows]).all()},
        die_clocks_mhz=_dies_of(parts, rows),
        **columns,
    )


def _dies_of(parts: Sequence[GpuSamples], rows: Int64s) -> Float64s | None:
    """The clocks of dies in some rows of several samples; None where there are none."""
    counts = [0 if part.die_clocks_mhz is None else part.die_clocks_mhz.shape[1] for part in parts]
    if not any(counts):
        return None
    clocks_mhz = np.full((sum(map(len, parts)), max(counts)), np.nan)
    begin = 0
    for part, count in zip(parts, counts, strict=True):
        if part.die_clocks_mhz is not None:
            clocks_mhz[begin : begin + len(part), :count] = part.die_clocks_mhz
        begin += len(part)
    return reported_dies(clocks_mhz[rows])


def _notes(boots: Sequence[_Boot], files: ChunkFiles) -> Iterator[Note]:
    """Notes on samples that are missing, damaged or unreadable."""
    lost_count = sum(chunk.lost_count for boot in boots for chunk in boot.chunks)
    if lost_count:
        text = f"{lost_count} samples of about that time were lost before they were kept"
        yield Note(code="samples_lost", text=text)
    if files.damaged:
        text = f"{len(files.damaged)} damaged pieces of the recorded samples were passed over"
        yield Note(code="samples_damaged", text=text)
    if files.unreadable:
        text = f"{len(files.unreadable)} files of recorded samples may not be read"
        yield Note(code="samples_unreadable", text=text)
    if len(boots) > 1:
        text = f"the machine was started anew within the samples ({len(boots)} boots)"
        yield Note(code="several_boots", text=text)

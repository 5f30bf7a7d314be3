"""Read the flight recorder's samples of a time range, even while another process writes them."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, TypeVar

import numpy as np
from msgspec.structs import replace

from chopperd.errors import StoreError
from chopperd.model.arrays import Int64s
from chopperd.model.devices import GpuInfo
from chopperd.model.report import Note
from chopperd.model.samples import GpuSamples, ProcessRow, SampleSet
from chopperd.sampling.memory.layout import Records
from chopperd.sampling.process_table import merged_processes
from chopperd.sampling.recording import in_unix_time, samples_at
from chopperd.store.recorder.chunk import Origin, SampleChunk, identity, joined, rising_triples
from chopperd.store.recorder.files import (
    JOURNAL,
    FrameKind,
    file_span_ns,
    read_chunk,
    sample_paths,
    scanned,
)
from chopperd.store.samples.columns import label_order
from chopperd.units import NS_PER_S

#: Clock triples this far beyond a time still tie its first and last samples to Unix time.
_MARGIN_NS: Final = 2 * NS_PER_S
Made = TypeVar("Made")


class ChunkFiles:
    """Reads the chunks in a recorder's folder that may hold samples of `[from, to)`, once.

    `newest` is the origin of the newest samples in the folder; `damaged` has file and offset of
    skipped pieces that may be of this time; `unreadable` names files that may not be read.
    """

    def __init__(self, folder: Path, from_unix_ns: int, to_unix_ns: int) -> None:
        self._folder = folder
        self._from_unix_ns, self._to_unix_ns = from_unix_ns, to_unix_ns
        self.newest: Origin | None = None
        self.damaged: set[tuple[str, int]] = set()
        self.unreadable: set[str] = set()

    def chunks(self) -> list[SampleChunk]:
        """Read the chunks, in any order, and set the attributes; a sample may be in two chunks.

        The journal is read first: samples that leave it meanwhile are then in the other files.

        Raises:
            OSError: The folder can't be read.
        """
        journal = self._folder / JOURNAL
        chunks = self._read(journal, self._of_file) or []
        self.newest = self._read(journal, _last_origin)
        paths = sample_paths(self._folder)
        for path in paths:
            chunks.extend(self._read(path, self._of_file) or [])
        for path in reversed(paths):
            self.newest = self.newest or self._read(path, _last_origin)
        return chunks

    def _of_file(self, fd: int, path: Path) -> list[SampleChunk]:
        span_ns = file_span_ns(fd)
        if span_ns is not None and not self._is_wanted(span_ns):  # without: damaged, or empty
            return []
        scan = scanned(fd)
        self.damaged.update((path.name, offset) for offset in scan.damaged_offsets)
        chunks = []
        for frame in scan.frames:
            if frame.kind != FrameKind.END and self._is_wanted(frame.span_ns):
                is_known = frame.kind == FrameKind.SAMPLES
                if (chunk := read_chunk(fd, frame) if is_known else None) is not None:
                    chunks.append(chunk)
                else:
                    self.damaged.add((path.name, frame.offset))
        return chunks

    def _is_wanted(self, span_ns: tuple[int, int]) -> bool:
        """Whether a file or frame with these first and last times may hold wanted samples."""
        return span_ns[0] < self._to_unix_ns and span_ns[1] >= self._from_unix_ns

    def _read(self, path: Path, work: Callable[[int, Path], Made]) -> Made | None:
        """Run `work` on an open file; None if the file is gone or (noted) unreadable."""
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
    """Read the origin of the last readable samples of a file; None if there are none."""
    chunks = (read_chunk(fd, frame) for frame in reversed(scanned(fd).frames))
    return next((chunk.origin for chunk in chunks if chunk is not None), None)


class RecordedSamples:
    """Reads samples from a `FlightRecorder`'s folder, which need not exist; for any thread.

    Damaged chunks are skipped, counted, and noted in the samples that lack them.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._damaged: set[tuple[str, int]] = set()

    @property
    def damaged_count(self) -> int:
        """Number of damaged pieces of files found so far, each counted once."""
        return len(self._damaged)

    def between(
        self, from_unix_ns: int, to_unix_ns: int, gpus: Sequence[str] | None = None
    ) -> SampleSet | None:
        """Read the samples of `[from, to)`, of all GPUs or those with a label; None if none.

        GPUs are identified by UUID; each has its newest label. Times are rounded to 1 us. Where the
        wall clock was set back, samples whose time had already passed are left out. Takes some 200
        bytes of memory a sample.

        Raises:
            StoreError: The folder can't be read.
        """
        files = ChunkFiles(self.folder, from_unix_ns - _MARGIN_NS, to_unix_ns + _MARGIN_NS)
        try:
            boots = _by_boot(files.chunks())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"{self.folder}: can't be read: {error.strerror or error}") from error
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
            source=str(self.folder),
            notes=tuple(_notes(boots, files)),
        )


class _Boot:
    """The chunks between two starts of the machine: their times share one MONOTONIC."""

    def __init__(self, chunks: Iterable[SampleChunk]) -> None:
        self.chunks = sorted(chunks, key=lambda chunk: chunk.triples[-1].mono_ns)
        self.triples = rising_triples(self.chunks)

    @property
    def row_count(self) -> int:
        """Number of samples in the chunks."""
        return sum(chunk.row_count for chunk in self.chunks)

    def processes(self, *, ended: bool) -> Iterator[ProcessRow]:
        """Yield the processes that held the GPUs, all as gone if the boot has `ended`."""
        last_ns = self.triples[-1].unix_ns
        for row in (row for chunk in self.chunks for row in chunk.processes):
            yield replace(row, gone_unix_ns=row.gone_unix_ns or last_ns) if ended else row

    def gpus(self) -> dict[str, GpuInfo]:
        """Return the GPUs by identity, as last described."""
        return {identity(gpu): gpu for chunk in self.chunks for gpu in chunk.origin.gpus}

    def records(self, key: str) -> Records:
        """Return all records of a GPU, rising in time, each once."""
        parts = [
            records
            for chunk in self.chunks
            for slot, records in chunk.records.items()
            if identity(chunk.origin.gpus[slot]) == key
        ]
        rows = joined(parts)
        return rows[np.unique(rows["t_mono_ns"], return_index=True)[1]]


def _by_boot(chunks: Sequence[SampleChunk]) -> list[_Boot]:
    """Group chunks that hold samples by boot, the latest boot last."""
    groups: dict[str, list[SampleChunk]] = {}
    for chunk in chunks:
        if chunk.triples and chunk.row_count:
            groups.setdefault(chunk.origin.boot_id, []).append(chunk)
    return sorted(map(_Boot, groups.values()), key=lambda boot: boot.triples[-1].unix_ns)


def _labels(boots: Sequence[_Boot], newest: Origin | None) -> dict[str, str]:
    """Choose the label of each GPU, by identity, no two the same.

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
    """Return the samples of one GPU within a time, over all boots; there may be none."""
    every = (gpu for boot in boots for chunk in boot.chunks for gpu in chunk.origin.gpus)
    infos = [gpu for gpu in every if identity(gpu) == key]
    limits_w = {gpu.power_limit_w for gpu in infos} - {None}
    info = replace(
        infos[-1],
        gpu=label,
        # The samples do not hold which of several was in force when.
        power_limit_w=limits_w.pop() if len(limits_w) == 1 else None,
    )
    begin_ns, end_ns = span_unix_ns
    parts: list[Records] = []
    times: list[Int64s] = [np.full(1, begin_ns - 1)]
    for boot in boots:
        records, t_unix_ns = in_unix_time(boot.records(key), boot.triples)
        inside = (t_unix_ns >= begin_ns) & (t_unix_ns < end_ns)
        parts.append(records[inside])
        times.append(t_unix_ns[inside])
    t_unix_ns = np.concatenate(times)
    rises = t_unix_ns[1:] > np.maximum.accumulate(t_unix_ns)[:-1]
    return samples_at(info, joined(parts)[rises], t_unix_ns[1:][rises])


def _notes(boots: Sequence[_Boot], files: ChunkFiles) -> Iterator[Note]:
    """Yield notes on samples that are missing, damaged, unreadable or of several boots."""
    lost_count = sum(chunk.lost_count for boot in boots for chunk in boot.chunks)
    if lost_count:
        text = f"{lost_count} samples of about that time were lost before they were stored"
        yield Note(code="samples_lost", text=text)
    if files.damaged:
        text = f"{len(files.damaged)} damaged pieces of the recorded samples were skipped"
        yield Note(code="samples_damaged", text=text)
    if files.unreadable:
        text = f"{len(files.unreadable)} files of recorded samples may not be read"
        yield Note(code="samples_unreadable", text=text)
    if len(boots) > 1:
        text = f"the machine was restarted within the samples ({len(boots)} boots)"
        yield Note(code="several_boots", text=text)

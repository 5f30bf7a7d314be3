"""Writes the shared memory, moves it into a larger file, and gives each GPU its slot in it."""

import mmap
import os
from collections.abc import Iterable, Sequence
from itertools import count
from struct import Struct
from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace

from chopperd.errors import StoreError
from chopperd.model.devices import GpuInfo
from chopperd.sampling.memory.gpu_writer import GpuWriter
from chopperd.sampling.memory.layout import (
    DESCRIPTION_BYTES,
    DESCRIPTION_OFFSET,
    HEADER,
    LAYOUT_VERSION,
    MAGIC,
    RECORD,
    SLOW_STATE_OFFSET,
    STATUS,
    STATUS_OFFSET,
    TRIPLE,
    TRIPLE_CAPACITY,
    TRIPLES_OFFSET,
    GpuState,
    RingDescription,
    RingLayout,
    SamplerState,
)
from chopperd.sampling.memory.ring_reader import RingReader
from chopperd.sampling.memory.slow_state import SlowStateWriter
from chopperd.units import TimeTriple

#: Free slots for GPUs that turn up later (a successor after a driver reload).
_SPARE_SLOTS: Final = 8

_TRIPLE_BODY: Final = Struct("=3q")

#: Every field of the header is one word of 8 bytes.
_HEADER_WORDS: Final = {name: word for word, name in enumerate(HEADER.names or ())}


class RingWriter:
    """Writes the shared memory for one sampler process: one thread a GPU, one for triples.

    Opening an empty file lays it out; opening one that an earlier writer left goes on where that
    one stopped: GPUs keep their slots and labels, records their numbers. Where no GPU was found the
    memory ends before the GPUs' part; the first writer with GPUs adds it. A slot is marked
    unfinished before and finished after it is written, so that readers detect a torn one (for
    certain where stores keep their order, as on x86). The memory file stays the caller's to close;
    the capacity (records of each GPU) of the first writer with GPUs holds.

    Raises:
        StoreError: The memory was laid out by another version, or can't be mapped.
    """

    def __init__(self, fd: int, description: RingDescription, capacity: int) -> None:
        is_new = os.pread(fd, 8, 0) in {b"", bytes(8)}  # never laid out, or not to the end
        if is_new:
            os.ftruncate(fd, RingLayout(0, 0).total_bytes)
        self._map = mmap.mmap(fd, 0)
        self._words = memoryview(self._map).cast("q")
        if is_new:
            self._set("gpu_slots", 0)
            self._set("identity", 1 + int.from_bytes(os.urandom(7), "little"))
            self._set("layout_version", LAYOUT_VERSION)
        elif self._get("magic") != MAGIC or self._get("layout_version") != LAYOUT_VERSION:
            self.close()
            raise StoreError("the shared memory was laid out by another version of the sampler")
        if description.gpus and self._get("gpu_slots") == 0:
            self._extend(fd, RingLayout(len(description.gpus) + _SPARE_SLOTS, capacity))
        self._layout = RingLayout(self._get("gpu_slots"), self._get("capacity"))
        self._generation = self._get("generation") + 1
        self._set("state", SamplerState.STARTING)
        self._set("writer_pid", os.getpid())
        self._describe(self._merged(description, is_new=is_new))
        self._set("generation", self._generation)
        self._slow_states = tuple(self._slow_state(slot) for slot in range(self._layout.gpu_slots))
        for slot, slow_state in enumerate(self._slow_states):
            slow_state.reset()
            self.gpu(slot).set_state(GpuState.UNSEEN)
        self._set("magic", MAGIC)

    @property
    def gpus(self) -> tuple[GpuInfo, ...]:
        """The GPU of each slot, with the label it first had."""
        return self._description.gpus

    def is_current(self) -> bool:
        """Whether no other writer process has taken over."""
        return self._get("generation") == self._generation

    def gpu(self, slot: int) -> "GpuWriter":
        """Make a writer of one GPU's status and records."""
        layout = self._layout
        return GpuWriter(
            self._map,
            self._words,
            self._generation,
            status_offset=STATUS_OFFSET + slot * STATUS.itemsize,
            records_offset=layout.records_offset + slot * layout.capacity * RECORD.itemsize,
            capacity=layout.capacity,
        )

    def slow_state(self, slot: int) -> SlowStateWriter:
        """Return the writer of one GPU's slow state; always the same one, for all threads."""
        return self._slow_states[slot]

    def slots_of(self, infos: Sequence[GpuInfo]) -> list[int | None]:
        """Return the slot of each GPU that the back end found; None if there was no room for it."""
        return places_of(infos, self.gpus)

    def ask_for_room(self, infos: Sequence[GpuInfo]) -> None:
        """Publish how many GPU slots `grown` must make for these GPUs."""
        needed_count = len(merged_gpus(self.gpus, infos))
        self._set("slots_wanted", needed_count + _SPARE_SLOTS)

    def set_state(self, state: SamplerState) -> None:
        """Publish the sampler's state, unless another writer has taken over."""
        if self.is_current():
            self._set("state", state)

    def write_triple(self, triple: TimeTriple) -> None:
        """Write a clock triple, which is also the sign of life for the supervisor."""
        if not self.is_current():
            return
        written = self._get("triples_written")
        slot = written % TRIPLE_CAPACITY * TRIPLE.itemsize
        offset = TRIPLES_OFFSET + slot
        self._words[offset // 8] = 0
        _TRIPLE_BODY.pack_into(
            self._map, offset + 8, triple.unix_ns, triple.mono_ns, triple.boot_ns
        )
        self._words[offset // 8] = written + 1
        self._set("triples_written", written + 1)

    def close(self) -> None:
        """Unmap the memory; its content stays for readers and for a successor."""
        self._words.release()
        self._map.close()

    def _slow_state(self, slot: int) -> SlowStateWriter:
        offset = STATUS_OFFSET + slot * STATUS.itemsize + SLOW_STATE_OFFSET
        return SlowStateWriter(self._map, self._words, self._generation, offset)

    def _extend(self, fd: int, layout: RingLayout) -> None:
        """Add the GPUs' part and map it; readers see by `gpu_slots` that it exists."""
        self.close()
        os.ftruncate(fd, layout.total_bytes)
        self._map = mmap.mmap(fd, 0)
        self._words = memoryview(self._map).cast("q")
        self._set("capacity", layout.capacity)
        self._set("gpu_slots", layout.gpu_slots)

    def _get(self, name: str) -> int:
        return self._words[_HEADER_WORDS[name]]

    def _set(self, name: str, value: int) -> None:
        self._words[_HEADER_WORDS[name]] = value

    def _merged(self, description: RingDescription, *, is_new: bool) -> RingDescription:
        """Merge the description with any earlier one, whose GPUs remain in their slots."""
        if is_new or self._get("description_sequence") % 2:  # else whoever wrote it died over it
            return description
        end = DESCRIPTION_OFFSET + self._get("description_bytes")
        data = self._map[DESCRIPTION_OFFSET:end]
        earlier = msgspec.json.decode(data, type=RingDescription)
        if description.failure is not None:
            return replace(earlier, failure=description.failure)
        return replace(
            description, gpus=merged_gpus(earlier.gpus, description.gpus, self._layout.gpu_slots)
        )

    def _describe(self, description: RingDescription) -> None:
        data = msgspec.json.encode(description)
        if len(data) > DESCRIPTION_BYTES:
            raise StoreError(f"{len(description.gpus)} GPUs are too many for the shared memory")
        sequence = self._get("description_sequence") | 1
        self._set("description_sequence", sequence)
        self._map[DESCRIPTION_OFFSET : DESCRIPTION_OFFSET + len(data)] = data
        self._set("description_bytes", len(data))
        self._set("description_sequence", sequence + 1)
        self._description = description


def grown(fd: int) -> int:
    """Copy a memory file to a larger one with the room its writer asked for; return its fd.

    Everything keeps its number (slots, records, counters): a reader goes on where it stopped. No
    writer may be at work; an abandoned one that wakes up writes to the old file only. The old file
    stays the caller's to close.

    Raises:
        StoreError: The file is not laid out.
    """
    reader = RingReader(fd)
    try:
        used_count = len(reader.description().gpus)
        before = RingLayout(reader.gpu_slots, reader.capacity)
    finally:
        reader.close()
    moved = os.memfd_create("chopperd-samples")
    try:
        _move(fd, moved, before, used_count)
    except BaseException:  # no memory left: it is tried again, and must not cost a file each time
        os.close(moved)
        raise
    return moved


def _move(fd: int, moved: int, before: RingLayout, used_count: int) -> None:
    """Copy the whole layout from one file to another, with more room."""
    with mmap.mmap(fd, 0, prot=mmap.PROT_READ) as old:
        wanted = int(np.frombuffer(old, HEADER, 1)["slots_wanted"][0])
        after = RingLayout(max(wanted, before.gpu_slots), before.capacity)
        os.ftruncate(moved, after.total_bytes)
        with mmap.mmap(moved, 0) as new:
            end = STATUS_OFFSET + used_count * STATUS.itemsize
            new[:end] = old[:end]
            size = used_count * before.capacity * RECORD.itemsize
            start, to = before.records_offset, after.records_offset
            new[to : to + size] = old[start : start + size]
            header = np.ndarray((), HEADER, new)
            header["gpu_slots"], header["slots_wanted"] = after.gpu_slots, 0
            del header


def place_of(info: GpuInfo, gpus: Sequence[GpuInfo]) -> int | None:
    """Find the place of the same GPU: same UUID, or same index and name if there is no UUID.

    None if it is not among `gpus`.
    """
    for place, gpu in enumerate(gpus):
        same = gpu.uuid == info.uuid if info.uuid else gpu.index == info.index
        if same and gpu.name == info.name and bool(gpu.parent) == bool(info.parent):
            return place
    return None


def merged_gpus(
    earlier: Sequence[GpuInfo], present: Sequence[GpuInfo], most: int | None = None
) -> tuple[GpuInfo, ...]:
    """List known GPUs in their places with their labels, then new ones while room lasts.

    A GPU that went away keeps its place and its label; a new one that the driver gives the index of
    another gets the first free number, so that no label ever names two GPUs. Where either side has
    no UUID, GPUs at the same PCI address or index are the same. A new partition takes the place of
    the one it replaces. `present` has partitions after their card; `most` limits the number.
    """
    merged = list(earlier)
    places = places_of(present, earlier)
    labels: dict[str, str] = {}
    for info, place in zip(present, places, strict=True):
        if place is not None:
            merged[place] = _known_again(earlier[place], info, labels)
        elif most is None or len(merged) < most:
            merged.append(_labelled(_under(info, labels), {gpu.gpu for gpu in merged}))
        else:
            continue
        if info.parent is None:
            labels[info.gpu] = merged[-1 if place is None else place].gpu
    return tuple(merged)


def places_of(present: Sequence[GpuInfo], earlier: Sequence[GpuInfo]) -> list[int | None]:
    """Find each present GPU's place among those known before; None for a new one."""
    places = [place_of(info, earlier) for info in present]
    taken = {place for place in places if place is not None}
    for number, info in enumerate(present):
        if places[number] is None:
            free = (place for place in range(len(earlier)) if place not in taken)
            place = next((p for p in free if _may_be(info, earlier[p], present, earlier)), None)
            if place is not None:
                places[number] = place
                taken.add(place)
    return places


def _may_be(
    info: GpuInfo, gpu: GpuInfo, present: Sequence[GpuInfo], earlier: Sequence[GpuInfo]
) -> bool:
    """Whether a GPU may be a known one that is not listed by its UUID any more."""
    if info.parent is not None or gpu.parent is not None:
        own, other = _part(info, present), _part(gpu, earlier)
        return own is not None and own == other
    if info.uuid and gpu.uuid:
        return False
    if info.pci_bus_id and gpu.pci_bus_id:
        return info.pci_bus_id == gpu.pci_bus_id
    return info.index == gpu.index


def _part(info: GpuInfo, gpus: Sequence[GpuInfo]) -> tuple[str, str] | None:
    """Return a partition's card UUID and number on that card; None where no card is known."""
    card = next((gpu for gpu in gpus if gpu.gpu == info.parent), None)
    return None if card is None or info.parent is None else (card.uuid, _number(info))


def _number(partition: GpuInfo) -> str:
    return partition.gpu.rpartition(".")[2]


def _known_again(before: GpuInfo, now: GpuInfo, labels: dict[str, str]) -> GpuInfo:
    """Update a known GPU with what the driver reports now, unless that lacks its UUID."""
    if before.uuid and not now.uuid:
        return before
    return replace(_under(now, labels), gpu=before.gpu)


def _under(info: GpuInfo, labels: dict[str, str]) -> GpuInfo:
    """Return a partition named after its card's label here; a whole GPU unchanged."""
    if info.parent is None:
        return info
    parent = labels.get(info.parent, info.parent)
    return replace(info, gpu=f"{parent}.{_number(info)}", parent=parent)


def _labelled(info: GpuInfo, taken: Iterable[str]) -> GpuInfo:
    """Return the GPU with a free label: its own, or else the first free number."""
    if info.gpu not in taken:
        return info
    prefix = f"{info.parent}." if info.parent else ""
    free = (label for number in count() if (label := f"{prefix}{number}") not in taken)
    return replace(info, gpu=next(free))

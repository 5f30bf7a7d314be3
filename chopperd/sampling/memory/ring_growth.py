"""Moves the shared memory into a larger file when more GPUs turned up than it has room for.

Everything keeps its number: slots, records, counters. A reader of the new file goes on where it
stopped in the old one, whose content stays as it was.
"""

import mmap
import os
from typing import Final

import numpy as np

from chopperd.sampling.memory.layout import HEADER, RECORD, STATUS, RingLayout
from chopperd.sampling.memory.ring_reader import RingReader

_NAME: Final = "chopperd-samples"


def new_memory() -> int:
    """A new, empty memory file."""
    return os.memfd_create(_NAME)


def grown(fd: int) -> int:
    """A new memory file with all that is in another, and the room that its writer asked for.

    No writer may be at work; an abandoned one that wakes up writes to the old file only.

    Args:
        fd: The memory file to take over; stays the caller's to close.

    Raises:
        StoreError: Nothing is laid out in it.
    """
    reader = RingReader(fd)
    try:
        used_count = len(reader.description().gpus)
        before = RingLayout(reader.gpu_slots, reader.capacity)
    finally:
        reader.close()
    moved = new_memory()
    try:
        _move(fd, moved, before, used_count)
    except BaseException:  # no memory left: it is tried again, and must not cost a file each time
        os.close(moved)
        raise
    return moved


def _move(fd: int, moved: int, before: RingLayout, used_count: int) -> None:
    """Lay out all that is in one file in another, with more room."""
    with mmap.mmap(fd, 0, prot=mmap.PROT_READ) as old:
        wanted = int(np.frombuffer(old, HEADER, 1)["slots_wanted"][0])
        after = RingLayout(max(wanted, before.gpu_slots), before.capacity)
        os.ftruncate(moved, after.total_bytes)
        with mmap.mmap(moved, 0) as new:
            _copy(old, new, 0, 0, before.status_offset)
            status_bytes = used_count * STATUS.itemsize
            _copy(old, new, before.status_offset, after.status_offset, status_bytes)
            record_bytes = used_count * before.capacity * RECORD.itemsize
            _copy(old, new, before.records_offset, after.records_offset, record_bytes)
            header = np.ndarray((), HEADER, new)
            header["gpu_slots"], header["slots_wanted"] = after.gpu_slots, 0
            del header


def _copy(old: mmap.mmap, new: mmap.mmap, start: int, to: int, size: int) -> None:
    new[to : to + size] = old[start : start + size]

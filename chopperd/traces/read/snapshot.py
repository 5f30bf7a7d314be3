"""Reads snapshots of torch's allocator, which are pickles: in a child process, trusting nothing.

The child unpickles with limits of memory and time, refuses every class, and writes plain columns to
standard output; the parent starts it and builds `MemorySnapshot`s of them.

Source: `torch.cuda.memory._dump_snapshot`; keys as of torch 2.0 to 2.13, all of them optional.
"""

import gc
import os
import pickle
import resource
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final

import msgspec
import numpy as np
from msgspec.structs import replace

from chopperd.errors import TraceError
from chopperd.model.arrays import Int64s
from chopperd.model.memory import MemoryRows, MemorySnapshot, SnapshotAction
from chopperd.units import NS_PER_MS, NS_PER_US

_MIB: Final = 1 << 20
_GIB: Final = 1 << 30
_MOST_FILE_BYTES: Final = _GIB
_TIME_LIMIT_S: Final = 120
_LEAST_TIME_S: Final = 10
_BYTES_A_S: Final = 2 * _MIB  # a seventh of what is usual
_LEAST_MEMORY_BYTES: Final = 256 * _MIB
_MOST_MEMORY_BYTES: Final = 8 * _GIB
_MEMORY_RATIO: Final = 16
"""Entries take 7 times their size in the file as Python objects, stacks that are shared 4 times."""
_MOST_ITEMS: Final = 1 << 22
"""Entries, segments and blocks, of all devices: one that is shared counts as often as it is met."""
_MOST_DEVICES: Final = 128
_MOST_BYTES: Final = 1 << 44
_MOST_US: Final = 1 << 52
_ACTIONS: Final = {action.name.lower(): int(action) for action in SnapshotAction}
_SIZELESS: Final = _ACTIONS["snapshot"]
_ENTRY: Final = np.dtype(
    [("action", "i1"), *((name, "i8") for name in ("address", "bytes", "stream", "time_us"))]
)

_FEWEST_PAIRS: Final = 10
_SPREAD_NS: Final = NS_PER_MS


class _Device(msgspec.Struct):
    """A device of a reply, before its columns."""

    device: int
    count: int = 0
    has_times: bool = False
    reserved_bytes: int = 0
    allocated_bytes: int = 0
    expandable: bool | None = None
    skipped: int = 0
    is_cut: bool = False


def read_snapshot(
    path: Path, command: Sequence[str], time_limit_s: float = _TIME_LIMIT_S
) -> tuple[MemorySnapshot, ...]:
    """Return each device's part of a snapshot file; `command` runs `main` in another process.

    Raises:
        TraceError: It can't be read, is too large, or is no snapshot.
    """
    try:
        # Without waiting for a pipe's writer: only regular files are read.
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from error
    try:
        about = os.fstat(file)
        if not stat.S_ISREG(about.st_mode):
            raise _unreadable(path, "it is no file")
        if about.st_size > _MOST_FILE_BYTES:
            raise _unreadable(path, "it is larger than 1 GiB: record it with fewer max_entries")
        child = subprocess.run(
            command,
            stdin=file,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=time_limit_s,
            check=False,
        )
        if child.returncode:
            raise _unreadable(path, "it is no pickle of plain values as torch writes it")
        return snapshots_of(child.stdout)
    except subprocess.TimeoutExpired as error:
        raise _unreadable(path, f"it takes longer than {time_limit_s:g} s") from error
    except (msgspec.MsgspecError, ValueError) as error:
        raise _unreadable(path, str(error)) from error
    finally:
        os.close(file)


def _unreadable(path: Path, why: str) -> TraceError:
    return TraceError(f"{path}: unreadable snapshot of memory: {why}", path=str(path))


def snapshots_of(reply: bytes) -> tuple[MemorySnapshot, ...]:
    """Return what `reply_to` put into bytes; raise `ValueError` or msgspec's error for others."""
    head, _, body = reply.partition(b"\n")
    view, found = memoryview(body), []
    for one in msgspec.json.decode(head, type=list[_Device]):
        columns = []
        for dtype in (np.int8, *[np.int64] * (3 + one.has_times)):
            columns.append(np.frombuffer(view, dtype, one.count).copy())
            view = view[columns[-1].nbytes :]
        action, address, size, stream = columns[:4]
        found.append(
            MemorySnapshot(
                device=one.device,
                at_ns=columns[4] * NS_PER_US if one.has_times else None,
                action=action,
                address=address,
                bytes=size,
                stream=stream,
                reserved_bytes=one.reserved_bytes,
                allocated_bytes=one.allocated_bytes,
                expandable=one.expandable,
                skipped=one.skipped,
                is_cut=one.is_cut,
            )
        )
    return tuple(found)


def main() -> int:
    """Read a pickle from standard input, in limits, and write the reply to standard output."""
    file = sys.stdin.buffer
    limit(os.fstat(file.fileno()).st_size)
    try:
        reply = reply_to(file)
    except Exception:  # noqa: BLE001 - whatever a hostile pickle makes the unpickler raise
        return 1
    sys.stdout.buffer.write(reply)
    return 0


def limit(file_bytes: int) -> None:
    """Limit this process's address space, by the size of the file to unpickle, and its time."""
    more_bytes = min(_LEAST_MEMORY_BYTES + _MEMORY_RATIO * file_bytes, _MOST_MEMORY_BYTES)
    used = Path("/proc/self/statm")  # libraries with a thread a core reserve GiBs
    pages = int(used.read_text().split()[0]) if used.exists() else 0
    _lower(resource.RLIMIT_AS, pages * resource.getpagesize() + more_bytes)
    _lower(resource.RLIMIT_CPU, min(_LEAST_TIME_S + file_bytes // _BYTES_A_S, _TIME_LIMIT_S))
    _lower(resource.RLIMIT_FSIZE, 0)
    _lower(resource.RLIMIT_CORE, 0)


def _lower(which: int, to: int) -> None:
    _, hard = resource.getrlimit(which)
    to = to if hard == resource.RLIM_INFINITY else min(to, hard)
    resource.setrlimit(which, (to, to))


class _PlainUnpickler(pickle.Unpickler):
    """Refuses all but plain values: no class and no function is looked up."""

    def find_class(self, module: str, name: str) -> object:
        raise pickle.UnpicklingError(f"{module}.{name}")

    def persistent_load(self, _pid: object) -> object:
        raise pickle.UnpicklingError


def reply_to(file: BinaryIO) -> bytes:
    """Return a pickled snapshot's columns as bytes; raise any exception where it is none."""
    gc.disable()
    whole = _mapping(_PlainUnpickler(file).load())
    items = _Budget()
    devices: dict[int, _Device] = {}
    live: dict[int, set[int]] = {}
    for segment in items.of(_sequence(whole["segments"])):
        _add_segment(_mapping(segment), devices, live, items)
    body: dict[int, bytes] = {}
    for number, trace in enumerate(_sequence(whole.get("device_traces") or [])):
        if entries := _sequence(trace):
            device = devices.setdefault(number, _Device(number))
            body[number] = _columns(items.of(entries), device, live.get(number, set()))
    settings = whole.get("allocator_settings")
    said = settings.get("expandable_segments") if type(settings) is dict else None
    for device in devices.values():
        if device.expandable is None and type(said) is bool:
            device.expandable = said
    order = sorted(devices)
    if order and not 0 <= order[0] <= order[-1] < _MOST_DEVICES:
        raise ValueError(order)
    head = msgspec.json.encode([devices[number] for number in order])
    return head + b"\n" + b"".join(body.get(number, b"") for number in order)


class _Budget:
    """Counts items, shared ones each time; stops where they are too many."""

    def __init__(self) -> None:
        self._left = _MOST_ITEMS

    def of(self, items: Sequence[object]) -> Sequence[object]:
        """Return the items; raise `ValueError` where they are too many."""
        self._left -= len(items)
        if self._left < 0:
            raise ValueError(len(items))
        return items


def _add_segment(
    segment: dict[object, object],
    devices: dict[int, _Device],
    live: dict[int, set[int]],
    items: _Budget,
) -> None:
    """Add a segment's sizes to those of its device, and its blocks in use to the live ones."""
    number, total, used = (
        _whole(segment, key) for key in ("device", "total_size", "allocated_size")
    )
    if number < 0 or not 0 <= used <= total <= _MOST_BYTES:
        raise ValueError((number, total, used))
    device = devices.setdefault(number, _Device(number))
    device.reserved_bytes += total
    device.allocated_bytes += used
    if type(expandable := segment.get("is_expandable")) is bool:
        device.expandable = expandable or bool(device.expandable)
    blocks = live.setdefault(number, set())
    for block in items.of(_sequence(segment.get("blocks") or [])):
        if type(block) is dict and block.get("state") == "active_allocated":
            blocks.add(_whole(block, "address"))


def _columns(entries: Sequence[object], device: _Device, live: set[int]) -> bytes:
    """Return a device's entries as bytes of columns, and put the rest into the device.

    `live`: addresses of the blocks in use at the end. Blocks in use, or freed, that no entry
    allocated are older than the first entry.
    """
    table = np.fromiter(_rows(entries), _ENTRY)
    device.has_times = bool((table["time_us"] >= 0).any())
    if device.has_times:
        table = table[table["time_us"] >= 0]
    device.count = len(table)
    device.skipped = len(entries) - device.count
    of_blocks = table[table["action"] <= SnapshotAction.FREE_REQUESTED]
    addresses, first = np.unique(of_blocks["address"], return_index=True)
    is_freed_first = of_blocks["action"][first] == SnapshotAction.FREE_REQUESTED
    device.is_cut = bool(is_freed_first.any()) or not live - {-1} <= set(addresses.tolist())
    names = list(_ENTRY.names or ())[: 4 + device.has_times]
    return b"".join(np.ascontiguousarray(table[name]).tobytes() for name in names)


def _rows(entries: Sequence[object]) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield action, address, size, stream and time of the entries that can be right."""
    for entry in entries:
        if type(entry) is not dict:
            continue
        action = entry.get("action")
        code = _ACTIONS.get(action, -1) if type(action) is str else -1
        size = _whole(entry, "size")
        if code >= 0 and (code == _SIZELESS or 0 <= size <= _MOST_BYTES):
            time_us = _whole(entry, "time_us")
            time_us = time_us if 0 < time_us < _MOST_US else -1
            yield code, _whole(entry, "addr"), size, _whole(entry, "stream"), time_us


def _whole(of: dict[object, object], key: str) -> int:
    value = of.get(key)
    return value if type(value) is int and 0 <= value < 1 << 63 else -1


def _mapping(value: object) -> dict[object, object]:
    if type(value) is not dict:
        raise TypeError
    return value


def _sequence(value: object) -> Sequence[object]:
    if type(value) is not list and type(value) is not tuple:
        raise TypeError
    return value


def aligned(snapshot: MemorySnapshot, rows: MemoryRows, *, anchored: bool) -> MemorySnapshot:
    """Return a snapshot whose times are on a trace's axis, as its rows of memory confirm.

    Both count from 1970, but each by a clock of its own: the median difference between an
    allocation's row and the entry of its address nearest in time is taken off, and is `shift_ns`.
    Without a base for the trace's times the snapshot's say nothing, and are removed.
    """
    if snapshot.at_ns is None or not anchored:
        return replace(snapshot, at_ns=None)
    mine = (rows.device == snapshot.device) & (rows.bytes > 0) & ~rows.is_oom & (rows.address >= 0)
    entries = (snapshot.action == SnapshotAction.ALLOC) & (snapshot.address >= 0)
    differences = _differences(
        (rows.address[mine], rows.at_ns[mine]), (snapshot.address[entries], snapshot.at_ns[entries])
    )
    if len(differences) < _FEWEST_PAIRS:
        return snapshot
    shift_ns = round(float(np.median(differences)))
    if np.median(np.abs(differences - shift_ns)) > _SPREAD_NS:
        return snapshot
    return replace(snapshot, at_ns=snapshot.at_ns - shift_ns, shift_ns=shift_ns)


def _differences(rows: tuple[Int64s, Int64s], entries: tuple[Int64s, Int64s]) -> Int64s:
    """Return how much later the entry nearest to each row is, of those of its address.

    `rows`, `entries`: addresses and times. Rows beyond the first and last entry are left out.
    """
    if not len(entries[0]):
        return np.empty(0, np.int64)
    within = (rows[1] >= entries[1].min()) & (rows[1] <= entries[1].max())
    address = np.concatenate((entries[0], rows[0][within]))
    at_ns = np.concatenate((entries[1], rows[1][within]))
    order = np.lexsort((at_ns, address))
    address, at_ns, is_row = address[order], at_ns[order], order >= len(entries[0])
    slot = np.arange(len(order))
    before = np.maximum.accumulate(np.where(is_row, -1, slot))[is_row]
    after = np.minimum.accumulate(np.where(is_row, len(order), slot)[::-1])[::-1][is_row]
    own, slot = address[is_row], slot[is_row]
    sides = []
    for other in (before, after):
        there = np.clip(other, 0, len(order) - 1)
        found = (other == there) & (address[there] == own)
        sides.append(np.where(found, at_ns[there] - at_ns[slot], np.iinfo(np.int64).max))
    nearest = np.where(np.abs(sides[0]) <= np.abs(sides[1]), *sides)
    found_any: Int64s = nearest[nearest != np.iinfo(np.int64).max]
    return found_any

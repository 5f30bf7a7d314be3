"""A model of torch's caching allocator for one device: who asks for what gets which address.

It leaves what a job's trace and snapshot show: `[memory]` rows, entries of `device_traces`, and
runtime calls. The requests, and when blocks that another stream uses come back, are given.

Left out: `max_split_size`, garbage collection, private pools, rounding of requests to powers.

Source: c10/cuda/CUDACachingAllocator.cpp of torch 2.13.
"""

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from chopperd.model.memory import MemoryRows, MemorySnapshot, SnapshotAction
from chopperd.units import NS_PER_US

KIB: Final = 1 << 10
MIB: Final = 1 << 20
_ROUND: Final = 512
_SMALL_SEGMENT: Final = 2 * MIB
_LARGE_SEGMENT: Final = 20 * MIB
#: Requests from here on get a segment of their own size.
_OWN_SEGMENT: Final = 10 * MIB
_FIRST_ADDRESS: Final = 1 << 40
#: Addresses that expandable segments reserve, far more than a device has.
_RESERVED_SPAN: Final = 1 << 42
_OPERATION_NS: Final = 2_000

#: How long calls take, ns.
CALL_NS: Final = {
    **{"Malloc": 200_000, "Free": 300_000, "EventSynchronize": 20_000},
    **{"MemAddressReserve": 5_000, "MemCreate": 60_000, "MemMap": 10_000, "MemSetAccess": 20_000},
    **{"MemUnmap": 20_000, "MemRelease": 30_000, "StreamSynchronize": 5_000},
}


class Pool(NamedTuple):
    """Where blocks may be handed out again: by size class and by stream."""

    is_large: bool
    stream: int


class _Cached(NamedTuple):
    """A free block, in the order in which the best fit is found."""

    pool: Pool
    size: int
    address: int


class _Live(NamedTuple):
    pool: Pool
    size: int
    requested: int


@dataclass(slots=True)
class AllocatorLog:
    """What was recorded, in order of time: tuples whose fields are those of the model's columns."""

    rows: list[tuple[int, int, int, int, int, bool]] = field(default_factory=list)
    entries: list[tuple[int, SnapshotAction, int, int, int]] = field(default_factory=list)
    calls: list[tuple[str, int, int]] = field(default_factory=list)  # name, start and length in ns

    def memory_rows(self, device: int = 0, thread: int = 0) -> MemoryRows:
        """Return the rows as a trace has them, all on one thread."""
        table = np.array(self.rows, np.int64).reshape(-1, 6).T
        return MemoryRows(
            at_ns=table[0],
            thread=np.full(len(self.rows), thread, np.int32),
            device=np.full(len(self.rows), device, np.int32),
            bytes=table[1],
            address=table[2],
            allocated_bytes=table[3],
            reserved_bytes=table[4],
            is_oom=table[5].astype(np.bool_),
        )


class CachingAllocator:
    """One device's memory. Its clock moves with each request and each call that it makes.

    `capacity_bytes`: None for no limit. `vendor`: "cuda" or "hip", as calls are named. `is_timed`:
    False if who uses it sets its clock.
    """

    def __init__(
        self,
        capacity_bytes: int | None = None,
        *,
        is_expandable: bool = False,
        vendor: str = "cuda",
        is_timed: bool = True,
    ) -> None:
        self.log = AllocatorLog()
        self.now_ns = 0
        self.allocated_bytes = self.reserved_bytes = self.retries = self.segment_calls = 0
        self._capacity_bytes = capacity_bytes
        self._is_expandable = is_expandable
        self._vendor = vendor
        self._is_timed = is_timed
        self._cached: list[_Cached] = []
        self._live: dict[int, _Live] = {}
        #: Due at which allocation, not before when, address.
        self._waiting: list[tuple[int, int, int]] = []
        self._segments: dict[int, int] = {}  # sizes by address; pages of expandable ones
        self._bases: dict[Pool, int] = {}  # first addresses of expandable segments
        self._next_address = _FIRST_ADDRESS
        self._mallocs = 0

    def malloc(self, requested_bytes: int, stream: int = 0, *, is_refused: bool = False) -> int:
        """Return the address of a new block.

        `is_refused`: nothing cached is of use, and the driver has nothing until the cache is
        flushed.

        Raises:
            MemoryError: If there is no room even after all cached memory was given back.
        """
        self._go_on(_OPERATION_NS)
        self._mallocs += 1
        for entry in self._waiting.copy():
            if entry[0] <= self._mallocs and entry[1] <= self.now_ns:
                self._complete(entry)
        size = max(_ROUND, -(-requested_bytes // _ROUND) * _ROUND)
        pool = Pool(size > MIB, stream)
        found = None if is_refused else self._best_fit(pool, size)
        found = found or self._new(pool, size, is_refused=is_refused)
        rest = found.size - size
        if rest >= (MIB + 1 if pool.is_large and not self._is_expandable else _ROUND):
            insort(self._cached, _Cached(pool, rest, found.address + size))
            found = found._replace(size=size)
        self._live[found.address] = _Live(pool, found.size, requested_bytes)
        self._note(SnapshotAction.ALLOC, found.address, requested_bytes, stream)
        self._row(found.size, found.address)
        return found.address

    def free(self, address: int, delay: int | None = None, *, until_ns: int | None = None) -> None:
        """Give a block back; it can be had again `delay` allocations later, None at once.

        A delay stands for `record_stream`: another stream must be done with the block first. It may
        also be a time, `until_ns`, that a later allocation asks for.
        """
        self._go_on(_OPERATION_NS)
        block = self._live[address]
        self._note(SnapshotAction.FREE_REQUESTED, address, block.requested, block.pool.stream)
        entry = self._mallocs + 1 + (delay or 0), until_ns or 0, address
        self._waiting.append(entry)
        if delay is None and until_ns is None:
            self._complete(entry)
        self._row(-block.size, address)

    def synchronize(self) -> None:
        """Let all streams end their work: every freed block can be had again."""
        self._go_on(_OPERATION_NS)
        for entry in self._waiting.copy():
            self._complete(entry)

    def snapshot(self, device: int = 0, base_unix_ns: int = 0) -> MemorySnapshot:
        """Return what a dump at this time holds, its times in whole microseconds."""
        self._note(SnapshotAction.SNAPSHOT, 0, 0, 0)
        columns = np.array(self.log.entries, np.int64).reshape(-1, 5).T
        at_ns, action, address, size, stream = columns
        return MemorySnapshot(
            device=device,
            at_ns=(at_ns + base_unix_ns) // 1000 * 1000,
            action=action.astype(np.int8),
            address=address,
            bytes=size,
            stream=stream,
            reserved_bytes=self.reserved_bytes,
            allocated_bytes=self.allocated_bytes,
            expandable=self._is_expandable,
            skipped=0,
            is_cut=False,
        )

    def dump(self, device: int = 0) -> dict[str, object]:
        """Return what `torch.cuda.memory._snapshot` does; its clock is Unix time.

        Of expandable segments each page is shown as one.
        """
        self._note(SnapshotAction.SNAPSHOT, 0, 0, 0)
        entries = [
            {
                "action": action.name.lower(),
                **({"addr": address} if address >= 0 else {}),
                **{"size": size, "stream": stream, "time_us": at_ns // NS_PER_US},
            }
            for at_ns, action, address, size, stream in self.log.entries
        ]
        return {
            "segments": [self._segment_dump(address, device) for address in sorted(self._segments)],
            "device_traces": [[]] * device + [entries],
            "allocator_settings": {"expandable_segments": self._is_expandable},
        }

    def _segment_dump(self, address: int, device: int) -> dict[str, object]:
        size = self._segments[address]
        waiting = {entry[2] for entry in self._waiting}
        blocks = [
            (at, *live, "active_pending_free" if at in waiting else "active_allocated")
            for at, live in self._live.items()
        ] + [(each.address, each.pool, each.size, 0, "inactive") for each in self._cached]
        inside = sorted(each for each in blocks if address <= each[0] < address + size)
        pool = next((each[1] for each in inside), Pool(size > _SMALL_SEGMENT, 0))
        sizes = {state: 0 for state in ("active_allocated", "active_pending_free", "inactive")}
        for _, _, length, _, state in inside:
            sizes[state] += length
        return {
            **{"device": device, "address": address, "total_size": size, "stream": pool.stream},
            "allocated_size": sizes["active_allocated"],
            "active_size": size - sizes["inactive"],
            "segment_type": "large" if pool.is_large else "small",
            "is_expandable": self._is_expandable,
            "blocks": [
                {"address": at, "size": length, "requested_size": asked, "state": state}
                for at, _, length, asked, state in inside
            ],
        }

    def _best_fit(self, pool: Pool, size: int) -> _Cached | None:
        """Take the smallest cached block that is large enough, of equal ones the first."""
        at = bisect_left(self._cached, (pool, size, 0))
        fits = at < len(self._cached) and self._cached[at].pool == pool
        return self._cached.pop(at) if fits else None

    def _new(self, pool: Pool, size: int, *, is_refused: bool) -> _Cached:
        """Take memory from the driver, if need be after giving back what is cached."""
        take = self._map if self._is_expandable else self._segment
        if is_refused:
            self._call("Malloc")
            self.segment_calls += 1
        elif found := take(pool, size):
            return found
        self.retries += 1
        for entry in self._waiting.copy():
            self._call("EventSynchronize")
            self._complete(entry)
        self._give_back()
        if found := take(pool, size):  # the cache is not searched again
            return found
        self.log.entries.append((self.now_ns, SnapshotAction.OOM, -1, size, pool.stream))
        self._row(size, 0, is_oom=True)
        raise MemoryError(f"{size} bytes")

    def _segment(self, pool: Pool, size: int) -> _Cached | None:
        grow = _SMALL_SEGMENT if not pool.is_large else _LARGE_SEGMENT
        if size >= _OWN_SEGMENT:
            grow = -(-size // _SMALL_SEGMENT) * _SMALL_SEGMENT
        self._call("Malloc")
        self.segment_calls += 1
        if not self._has_room(grow):
            return None
        address = self._next_address
        self._next_address += grow + _SMALL_SEGMENT  # segments do not touch
        self._segments[address] = grow
        self.reserved_bytes += grow
        self._note(SnapshotAction.SEGMENT_ALLOC, address, grow, pool.stream)
        return _Cached(pool, grow, address)

    def _map(self, pool: Pool, size: int) -> _Cached | None:
        """Map pages into the first stretch of the pool's segment that is free and large enough."""
        if pool not in self._bases:
            self._call("MemAddressReserve")
            self._bases[pool] = -(-self._next_address // _LARGE_SEGMENT) * _LARGE_SEGMENT
            self._next_address = self._bases[pool] + _RESERVED_SPAN
        page = _LARGE_SEGMENT if pool.is_large else _SMALL_SEGMENT
        used = sorted(
            (address, address + live.size)
            for address, live in self._live.items()
            if live.pool == pool
        )
        start = self._bases[pool]
        for begin, end in used:
            if begin - start >= size:
                break
            start = end
        first, last = start // page * page, -(-(start + size) // page) * page
        missing = [at for at in range(first, last, page) if at not in self._segments]
        for mapped in range(len(missing)):
            self._call("MemCreate")
            if not self._has_room(page * (mapped + 1)):
                return None
        for address in missing:
            self._call("MemMap")
            self._segments[address] = page
            self.reserved_bytes += page
            self.segment_calls += 1
            self._note(SnapshotAction.SEGMENT_MAP, address, page, pool.stream)
            self._cache(pool, address, page)
        self._call("MemSetAccess")
        return self._cached.pop(
            next(
                at
                for at, each in enumerate(self._cached)
                if each.pool == pool and each.address == start
            )
        )

    def _give_back(self) -> None:
        """Free cached segments, of expandable ones the pages with nothing on them."""
        for each in self._cached.copy():
            if not self._is_expandable:
                if self._segments.get(each.address) == each.size:
                    self._cached.remove(each)
                    self._release("Free", each.address, each.pool)
                continue
            page = _LARGE_SEGMENT if each.pool.is_large else _SMALL_SEGMENT
            first = -(-each.address // page) * page
            last = (each.address + each.size) // page * page
            if first >= last:
                continue
            self._cached.remove(each)
            for begin, end in ((each.address, first), (last, each.address + each.size)):
                if end > begin:
                    insort(self._cached, _Cached(each.pool, end - begin, begin))
            for address in range(first, last, page):
                self._call("StreamSynchronize")
                self._release("MemUnmap", address, each.pool)
                self._call("MemRelease")

    def _release(self, call: str, address: int, pool: Pool) -> None:
        size = self._segments.pop(address)
        self._call(call)
        self.reserved_bytes -= size
        self.segment_calls += 1
        unmapped = self._is_expandable
        action = SnapshotAction.SEGMENT_UNMAP if unmapped else SnapshotAction.SEGMENT_FREE
        self._note(action, address, size, pool.stream)

    def _has_room(self, size: int) -> bool:
        return self._capacity_bytes is None or self.reserved_bytes + size <= self._capacity_bytes

    def _complete(self, entry: tuple[int, int, int]) -> None:
        self._waiting.remove(entry)
        *_, address = entry
        pool, size, requested = self._live.pop(address)
        self._note(SnapshotAction.FREE_COMPLETED, address, requested, pool.stream)
        self._cache(pool, address, size)

    def _cache(self, pool: Pool, address: int, size: int) -> None:
        """Keep a free block, as one with its free neighbours."""
        for each in self._cached.copy():
            touches = each.address == address + size or each.address + each.size == address
            if each.pool == pool and touches:
                self._cached.remove(each)
                address, size = min(address, each.address), size + each.size
        insort(self._cached, _Cached(pool, size, address))

    def _call(self, name: str) -> None:
        driver = "cu" if self._vendor == "cuda" and name.startswith("Mem") else self._vendor
        self.log.calls.append((driver + name, self.now_ns, CALL_NS[name]))
        self._go_on(CALL_NS[name])

    def _go_on(self, length_ns: int) -> None:
        self.now_ns += length_ns * self._is_timed

    def _note(self, action: SnapshotAction, address: int, size: int, stream: int) -> None:
        self.log.entries.append((self.now_ns, action, address, size, stream))

    def _row(self, size: int, address: int, *, is_oom: bool = False) -> None:
        self.allocated_bytes += 0 if is_oom else size
        totals = self.allocated_bytes, self.reserved_bytes
        self.log.rows.append((self.now_ns, size, address, *totals, is_oom))

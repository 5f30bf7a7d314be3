"""The model of torch's allocator against its rules, by hand."""

import numpy as np
import pytest

from chopperd.model.memory import SnapshotAction
from chopperd.simulation.allocator import MIB, CachingAllocator


def names(allocator: CachingAllocator) -> list[str]:
    return [name for name, *_ in allocator.log.calls]


def blocks(allocator: CachingAllocator) -> list[int]:
    return [*allocator.log.memory_rows().bytes.tolist()]


def test_requests_are_rounded_and_small_ones_share_segments_of_2_mib() -> None:
    allocator = CachingAllocator()
    first, second = allocator.malloc(1), allocator.malloc(513)
    assert second == first + 512
    assert blocks(allocator) == [512, 1024]
    assert (names(allocator), allocator.reserved_bytes) == (["cudaMalloc"], 2 * MIB)


@pytest.mark.parametrize(
    ("requested", "segment"),
    [
        (MIB, 2 * MIB),
        (MIB + 1, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (25 * MIB + 1, 26 * MIB),
    ],
)
def test_segments_have_the_sizes_of_their_class(requested: int, segment: int) -> None:
    allocator = CachingAllocator()
    allocator.malloc(requested)
    assert allocator.reserved_bytes == segment


def test_a_large_block_keeps_a_rest_of_up_to_1_mib() -> None:
    allocator = CachingAllocator()
    allocator.malloc(29 * MIB)  # of a segment of 30: exactly 1 MiB is left
    allocator.malloc(29 * MIB - 512)
    assert blocks(allocator) == [30 * MIB, 29 * MIB - 512]


def test_the_smallest_block_that_fits_is_taken_and_freed_neighbours_merge() -> None:
    allocator = CachingAllocator()
    big, small = allocator.malloc(40 * MIB), allocator.malloc(20 * MIB)
    allocator.free(big)
    allocator.free(small)
    assert allocator.malloc(18 * MIB) == small
    first, second = allocator.malloc(20 * MIB), allocator.malloc(20 * MIB)
    assert (first, second) == (big, big + 20 * MIB)
    allocator.free(second)
    allocator.free(first)
    assert allocator.malloc(40 * MIB) == big
    assert (allocator.reserved_bytes, allocator.retries) == (60 * MIB, 0)


def test_a_stream_does_not_get_what_another_has_cached() -> None:
    allocator = CachingAllocator()
    mine = allocator.malloc(20 * MIB, stream=0)
    allocator.free(mine)
    assert allocator.malloc(20 * MIB, stream=1) != mine
    assert allocator.malloc(20 * MIB, stream=0) == mine


def test_a_block_that_waits_comes_back_after_so_many_allocations() -> None:
    allocator = CachingAllocator()
    address = allocator.malloc(20 * MIB)
    allocator.free(address, delay=1)
    assert allocator.allocated_bytes == 0  # it is out of the total at once
    assert allocator.malloc(20 * MIB) != address
    assert allocator.malloc(20 * MIB) == address
    other = allocator.malloc(20 * MIB)
    allocator.free(other, delay=9)
    allocator.synchronize()
    assert allocator.malloc(20 * MIB) == other
    actions = [entry[1] for entry in allocator.log.entries]
    assert actions.count(SnapshotAction.FREE_COMPLETED) == 2


def test_without_room_the_cache_is_flushed_once_and_not_searched_again() -> None:
    allocator = CachingAllocator(50 * MIB)
    held, waits = allocator.malloc(20 * MIB), allocator.malloc(20 * MIB)
    allocator.free(waits, delay=99)
    assert allocator.malloc(20 * MIB) not in {held, waits}
    assert (allocator.retries, allocator.segment_calls) == (1, 5)
    expected = ["cudaMalloc"] * 3 + ["cudaEventSynchronize", "cudaFree", "cudaMalloc"]
    assert names(allocator) == expected


def test_out_of_memory_is_recorded() -> None:
    allocator = CachingAllocator(20 * MIB, vendor="hip")
    allocator.malloc(512)
    with pytest.raises(MemoryError, match="31457280 bytes"):
        allocator.malloc(30 * MIB)
    rows = allocator.log.memory_rows()
    assert rows.is_oom.tolist() == [False, True]
    assert rows.allocated_bytes.tolist() == [512, 512]
    assert allocator.log.entries[-1][1] == SnapshotAction.OOM
    assert set(names(allocator)) == {"hipMalloc"}


def test_expandable_segments_refill_a_hole_at_its_own_address() -> None:
    allocator = CachingAllocator(is_expandable=True)
    first, second = allocator.malloc(30 * MIB), allocator.malloc(30 * MIB)
    assert second == first + 30 * MIB  # one segment grows: 3 pages of 20 MiB
    assert (allocator.reserved_bytes, allocator.segment_calls) == (60 * MIB, 3)
    allocator.free(first)
    assert allocator.malloc(25 * MIB) == first
    third = allocator.malloc(10 * MIB)  # the hole of 5 MiB is too small
    assert third == second + 30 * MIB
    assert blocks(allocator)[-2:] == [25 * MIB, 10 * MIB]
    assert allocator.malloc(512, stream=1) % (2 * MIB) == 0
    assert names(allocator)[0] == "cuMemAddressReserve"


def test_a_flush_unmaps_the_pages_that_hold_nothing() -> None:
    allocator = CachingAllocator(80 * MIB, is_expandable=True)
    large, kept = allocator.malloc(50 * MIB), allocator.malloc(10 * MIB)
    allocator.free(large)
    # Pages 0 and 1 hold nothing, half of page 2 is cached; the other stream needs two.
    other = allocator.malloc(30 * MIB, stream=1)
    assert (allocator.retries, allocator.reserved_bytes) == (1, 80 * MIB - 20 * MIB)
    calls = names(allocator)
    assert calls.count("cuMemUnmap") == calls.count("cuMemRelease") == 2
    tail = ["cuMemCreate", "cuMemCreate", "cuMemMap", "cuMemMap", "cuMemSetAccess"]
    assert calls[-5:] == tail
    allocator.free(other)
    assert allocator.malloc(30 * MIB) == large  # in front of what is held, again after a flush
    assert (allocator.retries, kept) == (2, large + 50 * MIB)


def test_a_page_that_is_partly_used_stays_mapped_on_both_sides() -> None:
    allocator = CachingAllocator(80 * MIB, is_expandable=True)
    head, middle, tail = (allocator.malloc(size * MIB) for size in (10, 60, 10))
    allocator.free(middle)
    allocator.malloc(30 * MIB, stream=1)  # pages 1 and 2 go, halves of 0 and 3 stay
    assert allocator.malloc(10 * MIB) == head + 10 * MIB
    assert allocator.malloc(10 * MIB) == tail - 10 * MIB
    assert allocator.reserved_bytes == 80 * MIB


def test_columns_and_a_dump_hold_what_was_recorded() -> None:
    allocator = CachingAllocator()
    address = allocator.malloc(700)
    allocator.free(address)
    rows, dump = allocator.log.memory_rows(3, 1), allocator.snapshot(3, base_unix_ns=10**18)
    assert (rows.bytes.tolist(), rows.device.tolist()) == ([1024, -1024], [3, 3])
    assert rows.reserved_bytes.tolist() == [2 * MIB] * 2
    assert dump.at_ns is not None
    assert np.all(dump.at_ns % 1000 == 0)
    assert [SnapshotAction(each).name for each in dump.action.tolist()] == [
        *("SEGMENT_ALLOC", "ALLOC", "FREE_REQUESTED", "FREE_COMPLETED", "SNAPSHOT")
    ]
    assert dump.bytes.tolist() == [2 * MIB, 700, 700, 700, 0]
    assert (dump.reserved_bytes, dump.allocated_bytes, dump.expandable) == (2 * MIB, 0, False)
    assert len(CachingAllocator().log.memory_rows()) == 0

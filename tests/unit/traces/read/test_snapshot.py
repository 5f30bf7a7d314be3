"""Pickled snapshots of torch's allocator, of the shapes that its versions write."""

import pickle
from collections.abc import Callable
from io import BytesIO
from random import Random

import numpy as np
import pytest
from msgspec.structs import replace

from chopperd.model.memory import MemorySnapshot, SnapshotAction
from chopperd.traces.read.snapshot import aligned, reply_to, snapshots_of
from tests.trace_building import TraceBuilder

UNIX_US = 1_790_857_026_000_000
Tree = dict[str, object]


def entry(action: str, addr: int, size: int, at_us: int = 0, **more: object) -> Tree:
    told = {"action": action, "addr": addr, "size": size, "stream": 0, "time_us": UNIX_US + at_us}
    return {**told, "frames": [{"name": "f", "filename": "f.py", "line": 3}], **more}


def segment(total: int = 4096, used: int = 1024, **more: object) -> Tree:
    block = {"address": 512, "size": used, "requested_size": used, "state": "active_allocated"}
    return {"device": 0, "address": 512, "total_size": total, "allocated_size": used} | {
        "stream": 0, "segment_type": "small", "segment_pool_id": (0, 0), "blocks": [block], **more
    }  # fmt: skip


def read(tree: object, protocol: int = 4) -> tuple[MemorySnapshot, ...]:
    return snapshots_of(reply_to(BytesIO(pickle.dumps(tree, protocol))))


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_entries_become_columns_in_their_order(protocol: int) -> None:
    entries = [
        entry("segment_alloc", 512, 4096, 1), entry("alloc", 512, 1000, 1, pool_id=(0, 0)),
        entry("oom", 0, 1 << 40, 2, device_free=5), entry("alloc", 1536, 7, 4, stream=1 << 40),
        entry("free_requested", 1536, 7, 9), entry("free_completed", 1536, 7, 30),
        entry("snapshot", 0, 0, 31),
    ]  # fmt: skip
    del entries[2]["addr"]
    settings = {"expandable_segments": False, "PYTORCH_CUDA_ALLOC_CONF": ""}
    tree = {"segments": [segment()], "device_traces": [entries, []], "external_annotations": []}
    (found,) = read({**tree, "allocator_settings": settings}, protocol)
    actions = [SnapshotAction(action).name.lower() for action in found.action.tolist()]
    assert actions == [each["action"] for each in entries]
    assert found.address.tolist() == [512, 512, -1, 1536, 1536, 1536, 0]
    assert found.bytes.tolist() == [4096, 1000, 1 << 40, 7, 7, 7, 0]
    assert found.stream.tolist() == [0, 0, 0, 1 << 40, 0, 0, 0]
    assert found.at_ns is not None
    assert (found.at_ns - 1000 * UNIX_US).tolist() == [1000 * us for us in (1, 1, 2, 4, 9, 30, 31)]
    assert (found.device, found.reserved_bytes, found.allocated_bytes) == (0, 4096, 1024)
    assert (found.expandable, found.skipped, found.is_cut, found.shift_ns) == (
        False,
        0,
        False,
        None,
    )


def test_each_device_has_its_own() -> None:
    segments = [segment(device=3), segment(device=1, total=1 << 30), segment(device=3, total=2048)]
    tree = {"segments": segments, "device_traces": [[], [entry("alloc", 512, 5)], []]}
    first, second = read(tree)
    assert (first.device, first.reserved_bytes, len(first.action)) == (1, 1 << 30, 1)
    assert (second.device, second.reserved_bytes, second.allocated_bytes) == (3, 6144, 2048)
    assert (len(second.action), second.at_ns) == (0, None)


def test_before_2_2_entries_have_no_times_and_before_2_1_there_are_none() -> None:
    entries = [entry("alloc", 512, 5), entry("free_requested", 512, 5)]
    for each in entries:
        del each["time_us"]
    (found,) = read({"segments": [segment(is_expandable=True)], "device_traces": [entries]})
    assert (len(found.action), found.at_ns, found.expandable) == (2, None, True)
    old = segment()
    old["blocks"] = [{"size": 1024, "state": "active_allocated", "history": [{"real_size": 900}]}]
    (found,) = read({"segments": [old]})
    assert (len(found.action), found.reserved_bytes, found.expandable) == (0, 4096, None)


def test_what_entries_do_not_hold_is_skipped_and_counted() -> None:
    good = entry("alloc", 512, 5)
    odd: list[object] = [
        entry("workspace_snapshot", 0, 0), entry("alloc", 512, True), entry("alloc", 512, -5),
        entry("alloc", 512, 1 << 50), {**good, "action": ["alloc"]}, {**good, "size": "5"},
        {**good, "time_us": True}, {**good, "time_us": 1 << 62}, 7, [good], {},
    ]  # fmt: skip
    (found,) = read({"segments": [], "device_traces": [[*odd, good, {**good, "addr": -3}]]})
    assert (len(found.action), found.skipped) == (2, len(odd))
    assert found.address.tolist() == [512, -1]


@pytest.mark.parametrize(
    ("entries", "is_cut"),
    [
        ([entry("alloc", 512, 5)], False),
        ([entry("alloc", 512, 5), entry("free_requested", 512, 5), entry("alloc", 512, 5)], False),
        ([entry("free_requested", 99, 5), entry("alloc", 512, 5)], True),
        ([entry("alloc", 99, 5)], True),  # the block in use at the end is older
        ([entry("free_completed", 99, 5), entry("alloc", 512, 5)], False),
    ],
)
def test_it_is_cut_if_a_block_is_older_than_its_first_entry(
    entries: list[Tree], is_cut: bool
) -> None:
    (found,) = read({"segments": [segment()], "device_traces": [entries]})
    assert found.is_cut is is_cut


class Harmful:
    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return eval, ("1",)


@pytest.mark.parametrize(
    "tree",
    [
        [], {}, 7, {"segments": 7}, {"segments": [7]}, {"segments": [segment(total=-1)]},
        {"segments": [segment(total=512)]}, {"segments": [segment(device=True)]},
        {"segments": [segment(device=128)]}, {"segments": [segment(total=1 << 50)]},
        {"segments": [], "device_traces": [7]}, {"segments": [], "device_traces": 7},
        {"segments": [segment(frames=Harmful())]}, {"segments": [segment(frames=np.int64(3))]},
        {"segments": [], "device_traces": [[entry("alloc", 1, 2)] * 10_000] * 500},
        {"segments": [segment(blocks=[{}] * 5000)] * 1000},
    ],
)  # fmt: skip
def test_other_pickles_are_refused(tree: object) -> None:
    with pytest.raises((TypeError, ValueError, KeyError, pickle.UnpicklingError)):
        read(tree)


def test_a_persistent_id_and_an_end_in_between_are_refused() -> None:
    for data in (b"Pname\n.", pickle.dumps({"segments": []})[:-3]):
        with pytest.raises((pickle.UnpicklingError, EOFError)):
            reply_to(BytesIO(data))


def test_a_reply_that_is_cut_short_is_no_snapshot() -> None:
    tree = {"segments": [], "device_traces": [[entry("alloc", 512, 5)]]}
    with pytest.raises(ValueError, match="smaller"):
        snapshots_of(reply_to(BytesIO(pickle.dumps(tree)))[:-1])


def allocations(
    count: int, shift_us: float, *, seed: int = 1
) -> tuple[MemorySnapshot, TraceBuilder]:
    """Blocks at 30 addresses over and over, a row after each entry; clocks apart by `shift_us`."""
    random, built, entries, at_us = Random(seed), TraceBuilder(), [], 0
    for number in range(count):
        at_us += random.randrange(50, 300)
        addr = 512 * (1 + number % 30)
        entries.append(entry("alloc", addr, 500, at_us))
        row_ns = 1000 * (UNIX_US + at_us) - round(1000 * shift_us)
        if random.random() < 0.9 and 10 < number < count - 10:  # another thread's are missing
            built.allocate(row_ns, 512, address=addr)
            built.allocate(row_ns + 20_000, -512, address=addr)
    (found,) = read({"segments": [], "device_traces": [entries]})
    return found, built


@pytest.mark.parametrize("shift_us", [0, 40, -40, 1400, -1400])
def test_clocks_that_differ_are_found_by_rows_of_equal_addresses(shift_us: float) -> None:
    found, built = allocations(400, shift_us)
    rows = built.build().memory
    moved = aligned(found, rows, anchored=True)
    assert moved.shift_ns == 1000 * shift_us
    assert moved.at_ns is not None
    of_rows = np.isin(moved.at_ns, rows.at_ns[rows.bytes > 0])
    assert np.count_nonzero(of_rows) == np.count_nonzero(rows.bytes > 0)


def test_few_pairs_or_such_that_differ_confirm_nothing() -> None:
    found, built = allocations(28, 0)
    assert aligned(found, built.build().memory, anchored=True) is found
    found, _ = allocations(400, 0)
    _, other = allocations(400, 0, seed=2)
    elsewhere = replace(
        found, at_ns=None if found.at_ns is None else found.at_ns * 2 - found.at_ns[0]
    )
    assert aligned(elsewhere, other.build().memory, anchored=True).shift_ns is None
    assert aligned(found, TraceBuilder().build().memory, anchored=True) is found
    nothing = replace(found, action=found.action + 1)
    assert aligned(nothing, built.build().memory, anchored=True) is nothing


def test_without_a_base_times_say_nothing() -> None:
    found, built = allocations(100, 0)
    assert aligned(found, built.build().memory, anchored=False).at_ns is None

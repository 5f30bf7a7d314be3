"""Rows of devices' memory; expected values are those written here."""

import numpy as np
import pytest

from chopperd.model.memory import MemoryRows
from tests.decoders import Reading, assert_alike, reading
from tests.layouts import Event, complete_event, encode

CALL = complete_event("cuda_runtime", "cudaMalloc", 1, 2) | {"pid": 1, "tid": 1}


def row(
    ts: object, size: object, *, name: object = "[memory]", tid: object = 1, **args: object
) -> Event:
    told = {"Bytes": size, "Device Type": 1, "Device Id": 0, **args}
    place = {"ph": "i", "cat": "cpu_instant_event", "s": "t", "pid": 1, "tid": tid}
    return {**place, "name": name, "ts": ts, "args": told}


def read(*events: object, base_ns: int = 0) -> Reading:
    """What both decoders read, whole and in pieces."""
    keys = {"baseTimeNanoseconds": base_ns} if base_ns else {}
    text = encode({**keys, "traceEvents": [CALL, *events]})
    found = reading(text, native=True)
    for native in (True, False):
        for piece_bytes in (1 << 20, 150):
            assert_alike(found, reading(text, native=native, piece_bytes=piece_bytes))
    return found


def memory(*events: object) -> MemoryRows:
    return read(*events).tables.memory


def test_rows_keep_their_order_in_the_file_where_times_are_equal() -> None:
    full = {"Addr": 7 << 40, "Total Allocated": 1024, "Total Reserved": 2048, "Ev Idx": 3}
    after = {**full, "Total Allocated": 0}
    events = [
        row(9, -512),
        row(5, 1024, **full),
        row(5, -1024, tid=2, **after),
        row(5, 1024, **full),
    ]
    found = read(*events).tables
    assert found.memory.at_ns.tolist() == [5000, 5000, 5000, 9000]
    assert found.memory.bytes.tolist() == [1024, -1024, 1024, -512]
    assert found.memory.address.tolist() == [7 << 40] * 3 + [-1]
    assert found.memory.allocated_bytes.tolist() == [1024, 0, 1024, -1]
    assert found.memory.reserved_bytes.tolist() == [2048, 2048, 2048, -1]
    assert [found.threads[n] for n in found.memory.thread] == [(1, 1), (1, 2), (1, 1), (1, 1)]
    assert found.memory.is_oom.dtype == np.bool_
    assert len(found.memory) == 4


@pytest.mark.parametrize("kind", [1, 6, 12, 20, "6"])
def test_memory_of_any_device_is_read_and_that_of_the_host_is_not(kind: object) -> None:
    others: dict[str, object] = {"Device Type": 0, "Device Id": -1}
    host = row(4, 64, **others)
    found = read(host, row(5, 512, **{"Device Type": kind, "Device Id": "3"}))
    assert found.tables.memory.device.tolist() == [3]
    assert found.lost["undecodable_rows"] == 0


def test_a_refused_request_is_a_row_even_without_its_size() -> None:
    refused = row(5, None, name="[OutOfMemory]")
    found = memory(refused, row(6, 1 << 30, name="[OutOfMemory]"))
    assert (found.is_oom.tolist(), found.bytes.tolist()) == ([True, True], [-1, 1 << 30])


def test_letters_of_a_name_may_be_escaped() -> None:
    text = encode({"traceEvents": [row(5, 512)]}).replace(b"[memory]", b"\\u005bmemor\\u0079]")
    for native in (True, False):
        assert len(reading(text, native=native).tables.memory) == 1


@pytest.mark.parametrize(
    "damaged",
    [
        row("x", 512), row(5, None), row(5, [512]), row(5, 512, **{"Device Type": None}),
        row(5, 512, **{"Device Type": -1}), row(5, 512, **{"Device Id": -1}),
        row(5, 512, **{"Device Id": 2**31}), row(5, 512) | {"args": 5},
    ],
)  # fmt: skip
def test_a_row_without_its_time_size_or_device_is_counted(damaged: Event) -> None:
    found = read(damaged, row(6, 512))
    assert found.tables.memory.at_ns.tolist() == [6000]
    assert found.lost["undecodable_rows"] == 1


def test_rows_that_cannot_be_right_are_counted_and_odd_totals_are_unknown() -> None:
    odd = {"Addr": -5, "Total Allocated": 2**44 + 1, "Total Reserved": 2**63}
    events = [row(5, 2**44 + 1), row(5, -(2**63)), row(4e12, 512), row(6, 512, **odd)]
    found = read(*events).tables
    assert found.memory.at_ns.tolist() == [6000]
    assert found.memory.address.tolist() == [-1]
    assert found.memory.allocated_bytes.tolist() == [-1]
    assert found.memory.reserved_bytes.tolist() == [-1]
    assert found.damage.undecodable_events == 3


def test_a_copy_is_a_row_equal_to_the_one_before_whose_total_did_not_change() -> None:
    full = {"Addr": 4096, "Total Allocated": 512, "Total Reserved": 2048}
    found = read(row(5, 512, **full), row(5, 512, **full), row(6, 512), row(6, 512)).tables
    assert found.memory.at_ns.tolist() == [5000, 6000, 6000]
    assert found.damage.duplicate_rows == 1


@pytest.mark.parametrize(
    "other",
    [
        row(5, 512) | {"ph": "I"}, row(5, 512) | {"ph": "X", "dur": 1}, row(5, 512, name="memory"),
        row(5, 512, name=["[memory]"]), row(5, 512) | {"cat": "user_annotation"},
        row(5, 512, name="[memory]" * 9), row(5, 512, name=None),
    ],
)  # fmt: skip
def test_other_events_are_no_rows(other: Event) -> None:
    found = read(other)
    assert (len(found.tables.memory), found.lost["undecodable_rows"]) == (0, 0)


def test_rows_of_2021_have_no_category_and_mix_with_others_in_file_order() -> None:
    old = row(5, 512)
    del old["cat"]
    found = memory(old, row(5, -512), old | {"cat": 7}, row(5, 1024) | {"cat": ""})
    assert found.bytes.tolist() == [512, -512, 512, 1024]


def test_a_trace_of_memory_rows_alone_has_them() -> None:
    text = encode({"traceEvents": [row(5, 512)]})
    for native in (True, False):
        assert len(reading(text, native=native).tables.memory) == 1

from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from chopperd.model.trace import TraceDevice, TraceMeta
from chopperd.traces.read import meta

BASE = 1_700_000_000_000_000_000


def about(values: Mapping[str, object]) -> TraceMeta:
    return meta.trace_meta(values, path="", file_name="", sha256="", event_counts={}, event_count=0)


def test_keys_before_and_after_the_events_are_read_together() -> None:
    keys = meta.read_keys(b'{"trace_id": 1, "a": 3, "traceEvents": ', b', "chopperd_job": 2}\n')
    assert keys.values == {"trace_id": 1, "chopperd_job": 2}
    assert keys.closed
    assert keys.readable


def test_a_bare_array_has_no_keys() -> None:
    keys = meta.read_keys(b"", b"\n")
    assert (dict(keys.values), keys.closed, keys.readable) == ({}, True, True)
    assert not meta.read_keys(b"", None).closed


@pytest.mark.parametrize("tail", [None, b"", b', "traceName": "x', b', "x": 1'])
def test_keys_of_a_cut_document_are_those_before_the_events(tail: bytes | None) -> None:
    keys = meta.read_keys(b'{"trace_id": 1, "traceEvents": ', tail)
    assert keys.values["trace_id"] == 1
    assert not keys.closed
    assert keys.readable


@pytest.mark.parametrize("cut", range(1, 19))
def test_a_base_time_whose_digits_are_cut_is_not_believed(cut: int) -> None:
    tail = b', "baseTimeNanoseconds": ' + str(BASE).encode()[:cut]
    assert meta.base_time_unix_ns(meta.read_keys(b'{"traceEvents": ', tail).values) is None


def test_a_base_time_beside_damaged_text_is_found() -> None:
    tail = b', "INFO": ["a "quoted" word"],\n  "baseTimeNanoseconds": %d\n}' % BASE
    keys = meta.read_keys(b'{"trace_id": 1, "traceEvents": ', tail)
    assert meta.base_time_unix_ns(keys.values) == BASE
    assert keys.values["trace_id"] == 1
    assert not keys.readable


@pytest.mark.parametrize("value", [0, -5, None, "x", True, [], 10**30])
def test_an_impossible_base_time_is_none(value: object) -> None:
    assert meta.base_time_unix_ns({"baseTimeNanoseconds": value}) is None


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("job7_rank2.pt.trace.json", 2),
        ("trace_8_rank_1.json", 1),
        ("Rank-12.json.gz", 12),
        ("rank0_iter16_18.json", 0),
        ("rank0_of_rank0.json", 0),
        ("rank0_rank1.json", None),
        ("frank3.json", None),
        ("worker3.json", None),
        ("rank.json", None),
    ],
)
def test_a_rank_is_taken_from_a_file_name_that_says_one(name: str, rank: int | None) -> None:
    source = None if rank is None else "file name"
    assert meta.rank_of({}, name) == (rank, source)


def test_the_file_s_own_rank_comes_first() -> None:
    values = {"distributedInfo": {"rank": 0, "world_size": 4}}
    assert meta.rank_of(values, "rank3.json") == (0, "distributedInfo")
    assert about(values).world_size == 4
    assert meta.rank_of({"distributedInfo": "odd"}, "x.json") == (None, None)


def test_devices_are_named_by_the_profiler_and_identified_by_our_own_key() -> None:
    values = {
        "deviceProperties": [{"id": 0, "name": ""}, {"id": 1, "name": "NVIDIA H100"}, "odd"],
        "chopperd_devices": [
            {"device": 1, "uuid": "GPU-1", "pci_bus_id": "0000:01:00.0", "name": "H100"},
            {"device": 2, "uuid": "GPU-2"},
        ],
    }
    assert meta.devices_of(values) == (
        TraceDevice(device=0),
        TraceDevice(device=1, name="H100", uuid="GPU-1", pci_bus_id="0000:01:00.0"),
        TraceDevice(device=2, uuid="GPU-2"),
    )
    assert meta.devices_of({"deviceProperties": None}) == ()


def test_a_text_is_the_first_key_that_holds_one() -> None:
    assert meta.text_of({"a": "A", "b": "B"}, "b", "a") == "B"
    assert meta.text_of({"a": 17}, "b", "a") == "17"
    assert meta.text_of({"a": ""}, "a") is None


def test_groups_are_read_by_name_with_their_ranks_folded() -> None:
    config = [
        {"pg_name": "b", "ranks": [1, 3, 5]},
        {"pg_name": "a", "ranks": [4, 0, 1]},
        {"pg_name": "c", "ranks": [7]},
    ]
    values = {"distributedInfo": {"backend": "nccl", "pg_config": config}}
    a, b, c = meta.groups_of(values) or ()
    assert [(each.name, each.size, each.first, each.stride) for each in (a, b, c)] == [
        ("a", 3, 0, None),
        ("b", 3, 1, 2),
        ("c", 1, 7, 1),
    ]
    assert [rank for rank in range(9) if b.holds(rank)] == [1, 3, 5]
    assert [rank for rank in range(9) if c.holds(rank)] == [7]
    assert not any(a.holds(rank) for rank in range(9)), "not known by its fold"
    assert about(values).backend == "nccl"


@pytest.mark.parametrize(
    "config",
    [
        None,
        [],
        [{"pg_name": "0"}],
        [{"pg_name": "0", "ranks": []}],
        [{"ranks": [0]}],
        [{"pg_name": "0", "ranks": [0, "1"]}],
        [{"pg_name": str(n), "ranks": [0]} for n in range(257)],
    ],
)
def test_odd_or_too_many_groups_are_not_known(config: object) -> None:
    assert meta.groups_of({"distributedInfo": {"pg_config": config}}) is None


def test_an_identity_that_the_profiler_wrote_is_read_and_named_after_its_key() -> None:
    values = {
        "deviceProperties": [
            {"id": 0, "name": "H100", "uuid": "GPU-a"},
            {"id": 1, "name": "H100", "pciBusId": "0000:17:00.0"},
            {"id": 2, "name": "H100", "pciBusId": 23},
        ]
    }
    written = TraceDevice(device=0, name="H100", identity_source="deviceProperties")
    assert meta.devices_of(values) == (
        replace(written, uuid="GPU-a"),
        replace(written, device=1, pci_bus_id="0000:17:00.0"),
        TraceDevice(device=2, name="H100"),  # a bare number is no address
    )


@pytest.mark.parametrize(
    ("values", "calls", "runtime"),
    [
        ({}, ["hipLaunchKernel"], "rocm"),
        ({}, ["cuLaunchKernel", "cudaLaunchKernel"], "cuda"),
        ({"roctracer_version": 4.1}, [], "rocm"),
        ({"cupti_version": 22}, [], "cuda"),
        ({}, [], None),
    ],
)
def test_the_runtime_is_told_by_calls_or_header(
    values: dict[str, object], calls: list[str], runtime: str | None
) -> None:
    assert meta.runtime_of(values, calls) == runtime


def test_of_values_too_long_to_be_of_use_the_short_members_are_read() -> None:
    groups = b",".join(b'{"pg_name": "%d", "ranks": [%d]}' % (n, n) for n in range(4_000))
    head = b'{"distributedInfo": {"pg_config": [' + groups + b'], "rank": 5}, "trace_id": ['
    keys = meta.read_keys(head + groups + b'], "traceEvents": ', b', "chopperd_job": 1}')
    assert meta.rank_of(keys.values, "x.json") == (5, "distributedInfo")
    assert (keys.values["trace_id"], keys.values["chopperd_job"], keys.readable) == (None, 1, True)


@pytest.mark.parametrize("value", [b"1e999", b'"\\ud800"', b"[" * 2000, b"[" * 2000 + b"]" * 2000])
def test_a_value_that_cannot_be_read_is_said_to_be_so_or_does_no_harm(value: bytes) -> None:
    head = b'{"trace_id": 1, "chopperd_run": ' + value + b', "traceEvents": '
    keys = meta.read_keys(head, b"}")
    assert keys.values.get("trace_id") == 1 or not keys.readable or not keys.closed


@pytest.mark.parametrize("bad", [b'"a\xff"', rb'"\ud83d"', b"NaN", b"[-Infinity]"])
def test_text_that_strict_readers_refuse_leaves_the_keys_beside_it(bad: bytes) -> None:
    keys = meta.read_keys(
        b'{"a": ' + bad + b', "trace_id": 1, "traceEvents": ', b', "b": ' + bad + b"}"
    )
    assert (keys.values, keys.closed, keys.readable) == ({"trace_id": 1}, True, True)


def test_keys_around_an_array_within_an_object_are_read() -> None:
    keys = meta.read_keys(b'{"a": {"traceEvents": ', b'}, "trace_id": 1}')
    assert (keys.values, keys.closed, keys.readable) == ({"trace_id": 1}, True, True)


@pytest.mark.parametrize("odd", [rb'"a\ude00": 1', rb'"\ud83d": 1', b'"a": NaN', b'"a\xff": 1'])
def test_the_rank_is_read_beside_what_strict_readers_refuse(odd: bytes) -> None:
    tail = b'],"distributedInfo": {%s, "rank": 3, "world_size": 8}}' % odd
    values = meta.read_keys(b'{"traceEvents": ', tail[1:]).values
    assert (meta.rank_of(values, ""), about(values).world_size) == ((3, "distributedInfo"), 8)

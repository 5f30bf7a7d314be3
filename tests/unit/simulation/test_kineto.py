import json
from collections import Counter, defaultdict
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from bench.truth import rank_truth
from chopperd.simulation.kineto import rank_trace
from chopperd.simulation.node import SimulatedNode
from tests.unit.simulation.conftest import START_NS, simulated

Event = dict[str, Any]
NODES = ("fsdp1", "fsdp2", "amd")


def document(node: SimulatedNode, rank: int, first: int = 0, last: int = 2) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(b"".join(rank_trace(node, rank, first, last)))
    return loaded


def of_category(trace: dict[str, Any], *categories: str) -> list[Event]:
    return [event for event in trace["traceEvents"] if event.get("cat") in categories]


def span_ns(trace: dict[str, Any], event: Event) -> tuple[int, int]:
    start = round(event["ts"] * 1_000) + trace["baseTimeNanoseconds"]
    return start, start + round(event["dur"] * 1_000)


@pytest.fixture(scope="module", params=NODES)
def trace(request: pytest.FixtureRequest) -> dict[str, Any]:
    return document(request.getfixturevalue(request.param), 5, 0, 1)


def test_the_same_spec_gives_the_same_bytes_whatever_was_read_before() -> None:
    one, other = simulated("fsdp1-h100"), simulated("fsdp1-h100")
    other.reading(3, START_NS + 2_300_000_000)
    wanted = b"".join(rank_trace(one, 2, 0, 1))
    assert b"".join(rank_trace(other, 2, 0, 1)) == wanted
    assert b"".join(rank_trace(simulated("fsdp1-h100", seed=1), 2, 0, 1)) != wanted


def test_the_head_says_who_ran_where_and_that_it_is_simulated(fsdp2: SimulatedNode) -> None:
    trace = document(fsdp2, 5, 0, 0)
    keys = list(trace)
    assert keys[:2] == ["schemaVersion", "deviceProperties"]
    assert keys[-3:] == ["baseTimeNanoseconds", "traceEvents", "traceName"]
    info = trace["distributedInfo"]
    assert (info["backend"], info["rank"], info["world_size"]) == ("nccl", 5, 8)
    gpu = fsdp2.gpus[5]
    expected = {"device": 0, "uuid": gpu.uuid, "pci_bus_id": gpu.pci_bus_id, "name": gpu.name}
    assert trace["chopperd_devices"] == [expected]
    assert trace["chopperd_simulated"] is True
    assert "chopperd_run" not in trace, "torch writes none: ranks find each other without"
    assert trace["trace_id"] != document(fsdp2, 4, 0, 0)["trace_id"]
    assert trace["chopperd_job"]
    assert trace["baseTimeNanoseconds"] % 7_889_238_000_000_000 == 0
    assert len(trace["deviceProperties"]) == 1


def test_under_rocm_the_device_number_is_the_drivers_node(amd: SimulatedNode) -> None:
    trace = document(amd, 3, 0, 0)
    kernels = of_category(trace, "kernel")
    assert {event["pid"] for event in kernels} == {event["args"]["device"] for event in kernels}
    assert trace["chopperd_devices"][0]["device"] == kernels[0]["pid"] == 5
    names = {event["name"] for event in of_category(trace, "cuda_runtime")}
    assert all(name.startswith("hip") for name in names)


def test_every_device_record_has_one_earlier_launch_and_an_operator(trace: dict[str, Any]) -> None:
    calls = {event["args"]["correlation"]: event for event in of_category(trace, "cuda_runtime")}
    operators = {event["args"]["External id"]: event for event in of_category(trace, "cpu_op")}
    records = of_category(trace, "kernel", "gpu_memcpy")
    assert len(records) > 2 * 400
    for record in records:
        call = calls[record["args"]["correlation"]]
        assert call["ts"] + 5 < record["ts"]
        operator = operators[record["args"]["External id"]]
        assert operator["ts"] < call["ts"]
        assert call["ts"] + call["dur"] < operator["ts"] + operator["dur"]
        assert (operator["pid"], operator["tid"]) == (call["pid"], call["tid"])
    correlations = [record["args"]["correlation"] for record in records]
    assert len(set(correlations)) == len(records)


def test_arrows_join_launches_and_records(trace: dict[str, Any]) -> None:
    arrows = of_category(trace, "ac2g")
    ends: dict[str, set[int]] = defaultdict(set)
    for arrow in arrows:
        ends[arrow["ph"]].add(arrow["id"])
    records = of_category(trace, "kernel", "gpu_memcpy")
    assert ends["s"] == ends["f"] == {record["args"]["correlation"] for record in records}


def test_host_rows_nest_and_streams_do_not_overlap(trace: dict[str, Any]) -> None:
    host = of_category(trace, "cpu_op", "user_annotation", "cuda_runtime")
    rows: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for event in host:
        rows[event["pid"], event["tid"]].append(span_ns(trace, event))
    for spans in rows.values():
        open_until: list[int] = []
        for start, end in sorted(spans, key=lambda span: (span[0], -span[1])):
            while open_until and open_until[-1] <= start:
                open_until.pop()
            assert not open_until or end <= open_until[-1]
            open_until.append(end)
    streams: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for event in of_category(trace, "kernel", "gpu_memcpy"):
        streams[event["tid"]].append(span_ns(trace, event))
    assert len(streams) == 3
    for spans in streams.values():
        spans.sort()
        assert all(before[1] <= after[0] for before, after in pairwise(spans))


def test_compute_kernels_in_the_file_add_up_to_the_truth(fsdp2: SimulatedNode) -> None:
    trace, truth = document(fsdp2, 5, 2, 4), rank_truth(fsdp2, 5, 2, 4)
    kernels = [event for event in of_category(trace, "kernel") if event["tid"] == 7]
    spans = np.array(sorted(span_ns(trace, event) for event in kernels))
    step = np.searchsorted(truth.windows.start_ns, spans[:, 0], side="right") - 1
    assert np.bincount(step, weights=spans[:, 1] - spans[:, 0]).tolist() == (
        truth.compute_ns.tolist()
    )
    firsts = [spans[step == number, 0].min() for number in range(3)]
    assert firsts == truth.windows.start_ns.tolist()


def test_each_framework_leaves_its_own_annotations(
    fsdp1: SimulatedNode, fsdp2: SimulatedNode
) -> None:
    wanted = {
        "fsdp1-h100": ("FullyShardedDataParallel._pre_forward", "aten::record_stream"),
        "fsdp2-h100": ("FSDP::pre_forward (layers.3)", "fsdp::chunk_cat"),
    }
    names = {
        preset: Counter(event["name"] for event in document(node, 0)["traceEvents"])
        for preset, node in zip(wanted, (fsdp1, fsdp2), strict=True)
    }
    for preset, other in (("fsdp1-h100", "fsdp2-h100"), ("fsdp2-h100", "fsdp1-h100")):
        assert all(names[preset][name] >= 3 for name in wanted[preset])
        assert not any(names[other][name] for name in wanted[preset])
    for counted in names.values():
        assert [counted[f"ProfilerStep#{step}"] for step in (0, 1, 2)] == [2, 2, 2]
        assert counted["Optimizer.step#AdamW.step"] == 2 * 3
        assert any("DataLoader" in name and "__next__" in name for name in counted)
    assert names["fsdp2-h100"]["cudaFree"] == 0


def test_allocator_retries_of_fsdp1_show_as_malloc_wait_frees_malloc(fsdp1: SimulatedNode) -> None:
    trace = document(fsdp1, 4, 0, 3)
    calls = of_category(trace, "cuda_runtime")
    frees = [event for event in calls if event["name"] == "cudaFree"]
    assert frees
    first = min(frees, key=lambda event: event["ts"])
    own = sorted(
        (event for event in calls if event["tid"] == first["tid"]), key=lambda event: event["ts"]
    )
    names = [event["name"] for event in own]
    at = own.index(first)
    assert names[at - 2 : at] == ["cudaMalloc", "cudaDeviceSynchronize"]
    assert next(name for name in names[at:] if name != "cudaFree") == "cudaMalloc"


@pytest.mark.parametrize(("rank", "first", "last"), [(8, 0, 1), (-1, 0, 1), (0, 3, 2)])
def test_ranks_and_steps_that_do_not_exist_are_refused(
    fsdp2: SimulatedNode, rank: int, first: int, last: int
) -> None:
    with pytest.raises(ValueError, match="no rank"):
        rank_trace(fsdp2, rank, first, last)


def test_collectives_count_on_over_steps_alike_on_all_ranks(fsdp2: SimulatedNode) -> None:
    numbers = []
    for rank in (0, 5):
        trace = document(fsdp2, rank, 2, 3)
        kernels = [e for e in of_category(trace, "kernel") if "Seq" in e["args"]]
        assert all("nccl" in event["name"] for event in kernels)
        operators = {
            event["args"]["Seq"]
            for event in of_category(trace, "cpu_op")
            if event["name"] == "record_param_comms"
        }
        numbers.append([event["args"]["Seq"] for event in kernels])
        assert set(numbers[-1]) == operators
    # 39 collectives a step: step 2 begins with the 79th, number 78.
    assert sorted(numbers[0]) == list(range(78, 156))
    assert numbers[0] == numbers[1]

"""Device memory in simulated traces: by the trace's own rows, and by the stalls that were drawn."""

import pickle
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from chopperd.simulation.kineto import rank_snapshot
from chopperd.simulation.node import SimulatedNode
from tests.unit.simulation.conftest import simulated
from tests.unit.simulation.test_kineto import NODES, Event, document, of_category, span_ns

STEPS = 4


@pytest.fixture(scope="module", params=NODES)
def node(request: pytest.FixtureRequest) -> SimulatedNode:
    found: SimulatedNode = request.getfixturevalue(request.param)
    return found


def rows_of(trace: dict[str, Any]) -> list[Event]:
    found = [each for each in trace["traceEvents"] if each["name"] == "[memory]"]
    return sorted(found, key=lambda event: event["ts"])


def by_step(trace: dict[str, Any]) -> list[list[Event]]:
    """The rows inside each step's marker on the host."""
    markers = sorted(
        span_ns(trace, each)
        for each in of_category(trace, "user_annotation")
        if each["name"].startswith("ProfilerStep#")
    )
    base_ns, rows = trace["baseTimeNanoseconds"], rows_of(trace)
    at_ns = [round(each["ts"] * 1_000) + base_ns for each in rows]
    return [
        [row for row, at in zip(rows, at_ns, strict=True) if begin <= at < end]
        for begin, end in markers
    ]


def stalls(node: SimulatedNode, rank: int) -> list[bool]:
    """Whether a stall was drawn in each step."""
    timings = [run.timing for run in node.steps(0, STEPS - 1)]
    return [bool(each.stall_block[rank] >= 0) for each in timings if each is not None]


def test_rows_go_on_from_one_another_and_each_step_gives_back_what_it_took(
    node: SimulatedNode,
) -> None:
    trace = document(node, 4, 0, STEPS - 1)
    rows = [each["args"] for each in rows_of(trace)]
    totals = np.array([each["Total Allocated"] for each in rows])
    sizes = np.array([each["Bytes"] for each in rows])
    assert (totals[1:] == totals[:-1] + sizes[1:]).all()
    assert all(each["Total Reserved"] >= each["Total Allocated"] for each in rows)
    steps = by_step(trace)
    assert sum(map(len, steps)) == len(rows) > STEPS * 250
    for step in steps:
        sizes_of = [each["args"]["Bytes"] for each in step]
        assert sum(sizes_of) == 0
        live: dict[int, int] = {}
        for each in step:
            args = each["args"]
            if args["Bytes"] > 0:
                assert args["Addr"] not in live
                live[args["Addr"]] = args["Bytes"]
            else:
                assert live.pop(args["Addr"]) == -args["Bytes"]
    assert {each["Device Id"] for each in rows} == {0}
    is_rocm = node.program is not None and node.program.job.runtime == "rocm"
    assert {each["Device Type"] for each in rows} == {6 if is_rocm else 1}


def test_both_frameworks_ask_for_the_same_in_each_step(node: SimulatedNode) -> None:
    """Blocks keep up to 1 MiB more than was asked for."""
    steps = by_step(document(node, 1, 0, STEPS - 1))
    sizes = [np.array([each["args"]["Bytes"] for each in step]) for step in steps]
    for each in sizes[1:]:
        assert (np.sign(each) == np.sign(sizes[0])).all()
        assert np.abs(each - sizes[0]).max() <= 1 << 20


def test_fsdp2_gets_the_same_addresses_and_fsdp1_does_not(
    fsdp1: SimulatedNode, fsdp2: SimulatedNode
) -> None:
    shares = []
    for node in (fsdp1, fsdp2):
        steps = by_step(document(node, 1, 0, STEPS - 1))
        at = [np.array([each["args"]["Addr"] for each in step]) for step in steps]
        shares.append(float(np.mean([(a == b).mean() for a, b in pairwise(at)])))
    assert shares[1] == 1.0
    assert shares[0] < 0.9


def test_a_step_flushes_its_cache_where_a_stall_was_drawn_and_nowhere_else() -> None:
    for preset in ("fsdp1-h100", "fsdp1-mi300x", "fsdp2-h100"):
        node = simulated(preset)
        drawn = []
        for rank in (0, 4):
            drawn += stalls(node, rank)
            found = []
            trace = document(node, rank, 0, STEPS - 1)
            for step in by_step(trace):
                begin, end = step[0]["ts"] - 5_000, step[-1]["ts"]
                calls = [
                    each["name"]
                    for each in of_category(trace, "cuda_runtime")
                    if begin <= each["ts"] <= end
                ]
                found.append(any(name.endswith("Free") for name in calls))
            assert found == stalls(node, rank)
        assert any(drawn) == (preset != "fsdp2-h100")


def test_a_snapshot_holds_the_blocks_and_the_history_of_the_same_rows(node: SimulatedNode) -> None:
    tree = pickle.loads(rank_snapshot(node, 2, 0, STEPS - 1))
    trace = document(node, 2, 0, STEPS - 1)
    rows = [each["args"] for each in rows_of(trace)]
    segments = tree["segments"]
    assert sum(each["total_size"] for each in segments) == rows[-1]["Total Reserved"]
    assert sum(each["allocated_size"] for each in segments) == rows[-1]["Total Allocated"]
    for each in segments:
        ends = [block["address"] + block["size"] for block in each["blocks"]]
        starts = [block["address"] for block in each["blocks"]]
        assert starts == [each["address"], *ends[:-1]]
        assert ends[-1] == each["address"] + each["total_size"]
    entries = [e for e in tree["device_traces"][0] if e["action"] in ("alloc", "free_requested")]
    newest = entries[len(entries) - len(rows) :]
    assert [each["addr"] for each in newest] == [each["Addr"] for each in rows]
    base_us = trace["baseTimeNanoseconds"] // 1_000
    at_us = sorted(each["ts"] for each in rows_of(trace))
    assert [e["time_us"] - base_us for e in newest] == [int(each) for each in at_us]


def test_what_waits_for_a_stream_comes_back_when_the_device_is_done(fsdp1: SimulatedNode) -> None:
    entries = pickle.loads(rank_snapshot(fsdp1, 2, 0, 1))["device_traces"][0]
    asked: dict[int, int] = {}
    waits = []
    for each in entries:
        if each["action"] == "free_requested":
            asked[each["addr"]] = each["time_us"]
        elif each["action"] == "free_completed":
            waits.append(each["time_us"] - asked.pop(each["addr"]))
    waited = [each for each in waits if each > 2]
    assert 0.05 < len(waited) / len(waits) < 0.5
    assert max(waited) < 1_000_000

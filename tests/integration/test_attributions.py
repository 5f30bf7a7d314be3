"""The figures of docs/attributions.md, from plain JSON, on the page and from the product.

Plain Python here follows single events as a reader of the page would;
nothing of the product is used for it.
"""

import re
from collections import defaultdict
from collections.abc import Callable
from decimal import Decimal
from functools import cache
from math import prod
from pathlib import Path

import numpy as np
import pytest

from chopperd.correlate.intervals import lengths_ns
from chopperd.correlate.waterfall import busy_masks, idle_split
from chopperd.model.report import ReportDocument
from chopperd.model.report_rows import Row
from chopperd.model.timeline import Phase, Timeline
from chopperd.model.trace import Trace
from chopperd.pipeline.reports import ReportOptions, report_files
from chopperd.traces.timeline.layout import lay_out
from tests.integration.plain_events import (
    Plain,
    clipped,
    end,
    fsdp_operators,
    is_comm,
    is_compute,
    length_ns,
    named,
    ns,
    only,
    plain_events,
    row_of,
    span_ns,
    step_of,
    tell,
)
from tests.integration.reference_reader import CALLS, RECORD_KINDS

pytestmark = pytest.mark.corpus

FSDP2 = "cpu_fsdp2_rank0.pt.trace"
RESNET = "tracelens_mi300x_resnet_act_checkpoint"
A100 = "hta_a100_nccl_ddp"
PAGE = Path(__file__).parents[2] / "docs" / "attributions.md"

Files = Callable[[str], Plain]
Reports = Callable[[str], ReportDocument]
LaidOut = Callable[[str], Timeline]


@pytest.fixture(scope="module")
def files(shared: Path) -> Files:
    """The files by name, read by the standard library."""
    return cache(lambda name: plain_events(shared / "traces" / f"{name}.json.gz"))


@pytest.fixture(scope="module")
def reports(shared: Path) -> Reports:
    """The product's report on each file."""
    folder, options = shared / "traces", ReportOptions()
    return cache(
        lambda name: report_files([folder / f"{name}.json.gz"], samples=None, options=options)
    )


@pytest.fixture(scope="module")
def laid_out(real_trace: Callable[[str], Trace]) -> LaidOut:
    """The product's timeline of each file."""
    return cache(lambda name: lay_out(real_trace(name)))


@pytest.fixture(scope="module")
def page() -> str:
    """The page, white space made even."""
    return re.sub(r"\s+", " ", PAGE.read_text())


def step_row(document: ReportDocument, step: int) -> Row:
    (row,) = (each for each in document.steps if each.step == step and not each.host_only)
    return row


# 1. FSDP2 on a CPU

MM_ARROW, MM_SEQUENCE = 137, 483
FORWARD = (840, 76_291_171)
BACKWARD = (2_112, 209_786_977)
HOOKS = (
    "FSDP::pre_forward (layers.1)",
    "FSDP::post_forward (layers.1)",
    "FSDP::pre_backward (layers.1)",
    "FSDP::backward_prefetch for layers.0",
    "FSDP::post_backward_reduce (layers.1)",
)
MM_OWN_US = {"aten::mm": "943.441", "MmBackward0": "9943.021"}


def test_the_arrow_leads_from_the_forward_mm_to_its_node(files: Files, page: str) -> None:
    plain = files(FSDP2)
    ends = {e["ph"]: e for e in plain.of("fwdbwd") if e["id"] == MM_ARROW}
    operators = plain.of("cpu_op")
    forward = [e for e in operators if e["ts"] == ends["s"]["ts"]]
    node = [e for e in operators if e["ts"] == ends["f"]["ts"]]
    assert [(e["name"], str(e["dur"])) for e in (*forward, *node)] == [*MM_OWN_US.items()]
    assert {e["args"]["Sequence number"] for e in (*forward, *node)} == {MM_SEQUENCE}
    tell(page, MM_ARROW, MM_SEQUENCE, ends["s"]["ts"], ends["f"]["ts"], *MM_OWN_US.values())


def test_own_times_of_one_layer_are_those_of_the_report(
    files: Files, laid_out: LaidOut, page: str
) -> None:
    found: defaultdict[tuple[str | None, str], list[int]] = defaultdict(list)
    for layer, phase, own_ns in fsdp_operators(files(FSDP2)):
        found[layer, phase].append(own_ns)
    mine = {key: (len(each), sum(each)) for key, each in found.items() if key[0] is not None}
    work = laid_out(FSDP2).host
    assert work is not None
    rows: defaultdict[tuple[str | None, str], list[int]] = defaultdict(list)
    for layer, phase, time_ns in zip(work.layer, work.phase, work.own_ns.tolist(), strict=True):
        if layer >= 0 and work.layers[layer] != "(root)":
            rows[work.layers[layer], Phase(phase).label].append(time_ns)
    theirs = {key: (len(each), sum(each)) for key, each in rows.items()}
    assert mine == theirs
    assert (theirs["layers.1", "forward"], theirs["layers.1", "backward"]) == (FORWARD, BACKWARD)
    tell(page, *FORWARD, *BACKWARD)


def test_the_report_has_the_host_time_of_the_page(reports: Reports, page: str) -> None:
    (host,) = reports(FSDP2).host
    (layer,) = [each for each in host.by_layer if each.name == "layers.1"]
    assert layer.count == FORWARD[0] + BACKWARD[0]
    assert layer.host_ns == FORWARD[1] + BACKWARD[1]
    tell(page, layer.count, layer.host_ns)


def test_the_hooks_of_the_page_are_in_the_file(files: Files, page: str) -> None:
    plain = files(FSDP2)
    (marker,) = (e for e in plain.of("user_annotation") if e["name"] == "ProfilerStep#2")
    for name in HOOKS:
        event = min(
            (e for e in plain.of("user_annotation") if e["name"] == name), key=lambda e: e["ts"]
        )
        assert marker["ts"] <= event["ts"] < end(marker)
        row = f"| `{name}` | {event['ts']} | {event['dur']} |"
        assert row in page
    assert str(marker["tid"]) in page


# 2. ResNet on MI300X, with checkpointed blocks

BLOCK = "DistributedDataParallel_0/ResNet_0/CheckpointWrapper_0/Sequential_0/BasicBlock_0"
FORWARD_KERNEL, AGAIN_KERNEL, INPUT_KERNEL, WEIGHT_KERNEL = 6316, 7048, 7130, 7137
CONVOLUTIONS = {
    FORWARD_KERNEL: ("aten::miopen_convolution", Phase.FORWARD, 2_312_110_080),
    AGAIN_KERNEL: ("aten::miopen_convolution", Phase.BACKWARD, 2_312_110_080),
    INPUT_KERNEL: ("aten::convolution_backward", Phase.BACKWARD, 4_624_220_160),
    WEIGHT_KERNEL: ("aten::convolution_backward", Phase.BACKWARD, None),
}
CONV_SEQUENCE, CONV_ARROW = 1208, 135
RCCL, RCCL_BYTES, RCCL_BESIDE_NS, RCCL_EXPOSED_NS = 6637, 5_746_640, 3_953_203, 2_725_197
ROCM_ALL_REDUCES = (2, 23_379_024, 15_887_306)
RESNET_WINDOW = ("3743411271924.855", "3743411290907.783", 18_982_928)
UNLINKED = {"kernel": 757, "gpu_memcpy": 184, "gpu_memset": 27}


@pytest.mark.parametrize("correlation", CONVOLUTIONS)
def test_a_convolution_s_kernels_lead_to_operator_layer_phase_and_work(
    files: Files, laid_out: LaidOut, page: str, correlation: int
) -> None:
    plain, timeline = files(RESNET), laid_out(RESNET)
    (device,) = timeline.devices
    operation, phase, flops = CONVOLUTIONS[correlation]
    record, call = plain.record(correlation), plain.call(correlation)
    operators = plain.around(call, "cpu_op")
    assert operators[-1]["name"] == operation
    assert any("Backward0" in each["name"] for each in operators) == (phase is Phase.BACKWARD)
    row = row_of(device, plain, record)
    assert named(timeline.operations, device.operation[row]) == operation
    assert named(timeline.layers, device.layer[row]) == BLOCK
    assert Phase(device.phase[row]) is phase
    assert timeline.steps[device.step[row]].step == 16
    assert Decimal(RESNET_WINDOW[0]) <= record["ts"] < end(record) < Decimal(RESNET_WINDOW[1])
    if flops is None:
        assert np.isnan(device.flops[row])
    else:
        filters = [64, 64, 3, 3]
        assert operators[-1]["args"]["Input Dims"][0] == [10, 64, 56, 56]
        assert filters in operators[-1]["args"]["Input Dims"]
        times = 2 if "backward" in operation else 1
        assert times * 2 * 10 * 56 * 56 * prod(filters) == flops
        assert device.flops[row] == flops
        tell(page, flops)
    tell(page, str(correlation), record["ts"], record["dur"], call["ts"])


def test_modules_around_the_forward_and_the_recomputed_call(files: Files, page: str) -> None:
    plain = files(RESNET)
    paths = [
        [
            each["name"].removeprefix("nn.Module: ")
            for each in plain.around(plain.call(correlation), "python_function")
            if each["name"].startswith("nn.Module: ")
        ]
        for correlation in (FORWARD_KERNEL, AGAIN_KERNEL, INPUT_KERNEL)
    ]
    assert paths == [[*BLOCK.split("/"), "Conv2d_2"], [*BLOCK.split("/")[3:], "Conv2d_2"], []]
    tell(page, BLOCK)


def test_the_arrow_of_the_convolution_s_node_starts_at_the_first_forward(
    files: Files, page: str
) -> None:
    plain = files(RESNET)
    ends = {e["ph"]: e for e in plain.of("fwdbwd") if e["id"] == CONV_ARROW}
    node = only(
        e
        for e in plain.around(plain.call(INPUT_KERNEL), "cpu_op")
        if e["name"] == "ConvolutionBackward0"
    )
    maker = only(
        e
        for e in plain.around(plain.call(FORWARD_KERNEL), "cpu_op")
        if e["name"] == "aten::convolution"
    )
    assert (ends["f"]["ts"], ends["s"]["ts"]) == (node["ts"], maker["ts"])
    assert {each["args"]["Sequence number"] for each in (node, maker)} == {CONV_SEQUENCE}
    tell(page, CONV_ARROW, str(CONV_SEQUENCE), node["ts"], maker["ts"])


def test_an_all_reduce_of_the_mi300x_file(
    files: Files, laid_out: LaidOut, reports: Reports, page: str
) -> None:
    plain = files(RESNET)
    (device,) = laid_out(RESNET).devices
    record = plain.record(RCCL)
    assert 2 * record["args"]["In msg nelems"] == RCCL_BYTES
    beside_ns = length_ns(clipped(plain, record, is_compute))
    assert (beside_ns, ns(record["dur"]) - beside_ns) == (RCCL_BESIDE_NS, RCCL_EXPOSED_NS)
    masks = busy_masks(device)
    span = span_ns(plain, record["ts"], end(record))
    assert int(lengths_ns(masks.overlap, *span)[0]) == RCCL_BESIDE_NS
    assert int(lengths_ns(masks.exposed_comm, *span)[0]) == RCCL_EXPOSED_NS
    mine = [
        each
        for each in plain.of("kernel")
        if each["args"].get("Collective name") == "allreduce" and step_of(plain, each) == 16
    ]
    assert record in mine
    moved = sum(2 * each["args"]["In msg nelems"] for each in mine)
    time_ns = sum(ns(each["dur"]) for each in mine)
    assert (len(mine), moved, time_ns) == ROCM_ALL_REDUCES
    (reduced,) = (e for e in step_row(reports(RESNET), 16).collectives if e.name == "allreduce")
    assert (reduced.count, reduced.bytes, reduced.time_ns) == ROCM_ALL_REDUCES
    bus_bytes_per_s = moved * 1e9 / time_ns * 2 * 7 / 8
    assert reduced.bus_bytes_per_s == pytest.approx(bus_bytes_per_s)
    one = RCCL_BYTES * 1e3 / ns(record["dur"])  # MB/s
    tell(page, RCCL_BYTES, RCCL_BESIDE_NS, RCCL_EXPOSED_NS, *ROCM_ALL_REDUCES[1:])
    tell(page, f"{one:.2f} MB/s", f"{one * 2 * 7 / 8:.2f} MB/s")
    tell(page, f"{bus_bytes_per_s / 1e6:.2f} MB/s")


def test_records_of_the_mi300x_file_without_a_call(
    files: Files, laid_out: LaidOut, page: str
) -> None:
    plain = files(RESNET)
    calls = {each["args"]["correlation"] for each in plain.of(*CALLS)}
    lone = [each for each in plain.of(*RECORD_KINDS) if each["args"]["correlation"] not in calls]
    counts = {kind: sum(each["cat"] == kind for each in lone) for kind in UNLINKED}
    assert counts == UNLINKED
    # All of them were launched before the first call that the file has.
    highest = max(each["args"]["correlation"] for each in lone)
    assert (highest, min(calls)) == (5178, 5179)
    timeline = laid_out(RESNET)
    (device,) = timeline.devices
    assert timeline.unlinked_records == len(lone)
    rows = [row_of(device, plain, each) for each in lone]
    assert set(device.step[rows].tolist()) == {-1}
    assert set(device.layer[rows].tolist()) == {-1}
    tell(page, len(lone), *UNLINKED.values(), str(highest), str(min(calls)))


# 3. DDP on A100

BUCKET, BEFORE, NORM, COPY = 41795, 41775, 41871, 49125
A100_WINDOW = ("4458676644934.992", "4458676864667.147", 219_732_155)
A100_STEP_NS = (49_728_926, 38_429_422, 12_300_029, 1_760_420)  # busy, compute, comm, both
BUCKET_BYTES, BUCKET_NS, BUCKET_BESIDE_NS, BUCKET_EXPOSED_NS = (
    *(31_502_336, 2_673_916),
    *(400_026, 2_273_890),
)
GAP_NS, PREP_NS, CALL_NS = 161_374, 149_274, 12_100
COPY_BYTES, COPY_NS = 9_437_184, 17_535


@pytest.mark.parametrize(
    ("name", "step", "window", "stream"),
    [(RESNET, 16, RESNET_WINDOW, 0), (A100, 5, A100_WINDOW, 7)],
)
def test_a_step_s_window_goes_from_its_first_kernel_to_the_next_step_s(
    files: Files,
    reports: Reports,
    page: str,
    name: str,
    step: int,
    window: tuple[str, str, int],
    stream: int,
) -> None:
    plain = files(name)
    first = [
        min(
            (
                each
                for each in plain.of("kernel")
                if is_compute(each)
                and int(each["args"]["stream"]) == stream
                and step_of(plain, each) == number
            ),
            key=lambda each: each["ts"],
        )
        for number in (step, step + 1)
    ]
    cuts = [each["ts"] for each in first]
    if name == A100:
        tell(page, *(str(each["args"]["correlation"]) for each in first))
    length = ns(cuts[1] - cuts[0])
    assert (str(cuts[0]), str(cuts[1]), length) == window
    row = step_row(reports(name), step)
    assert (row.start_unix_ns, row.window_ns) == (plain.base_ns + ns(cuts[0]), length)
    tell(page, *window)


def test_a_step_s_busy_time_by_sweeping_over_its_window(
    files: Files, reports: Reports, page: str
) -> None:
    plain = files(A100)
    whole = {"ts": Decimal(A100_WINDOW[0]), "dur": Decimal(A100_WINDOW[2]) / 1000}
    compute, comm = clipped(plain, whole, is_compute), clipped(plain, whole, is_comm)
    busy = clipped(plain, whole, lambda _: True)
    both = length_ns(compute) + length_ns(comm) - length_ns([*compute, *comm])
    assert (length_ns(busy), length_ns(compute), length_ns(comm), both) == A100_STEP_NS
    row = step_row(reports(A100), 5)
    assert (row.busy_ns, row.compute_ns, row.comm_ns, row.overlap_ns) == A100_STEP_NS
    tell(page, *A100_STEP_NS)


def test_one_bucket_s_all_reduce_and_the_gap_before_it(
    files: Files, laid_out: LaidOut, page: str
) -> None:
    plain, timeline = files(A100), laid_out(A100)
    (device,) = timeline.devices
    record, call, before = plain.record(BUCKET), plain.call(BUCKET), plain.record(BEFORE)
    assert 4 * record["args"]["In msg nelems"] == BUCKET_BYTES
    assert ns(record["dur"]) == BUCKET_NS
    beside_ns = length_ns(clipped(plain, record, is_compute))
    assert (beside_ns, BUCKET_NS - beside_ns) == (BUCKET_BESIDE_NS, BUCKET_EXPOSED_NS)
    masks = busy_masks(device)
    span = span_ns(plain, record["ts"], end(record))
    assert int(lengths_ns(masks.overlap, *span)[0]) == BUCKET_BESIDE_NS
    assert int(lengths_ns(masks.exposed_comm, *span)[0]) == BUCKET_EXPOSED_NS
    gap = (ns(record["ts"] - end(before)), ns(call["ts"] - end(before)))
    assert (*gap, ns(record["ts"] - call["ts"])) == (GAP_NS, PREP_NS, CALL_NS)
    empty = {"ts": end(before), "dur": record["ts"] - end(before)}
    assert not clipped(plain, empty, lambda _: True)
    meanwhile = {
        each["name"]
        for each in plain.of(*CALLS)
        if each["tid"] == call["tid"] and end(before) < end(each) and each["ts"] < call["ts"]
    }
    assert not [each for each in meanwhile if re.search("Malloc|Free|Synchronize|Memcpy", each)]
    idle = idle_split(device, masks.busy, timeline.host_activity).rows
    span = span_ns(plain, end(before), record["ts"])
    rows = {name: int(lengths_ns(mask, *span)[0]) for name, mask in idle.items()}
    assert {name: each for name, each in rows.items() if each} == {
        "idle_launch_prep": PREP_NS,
        "idle_launch_call": CALL_NS,
    }
    rate = BUCKET_BYTES / BUCKET_NS
    tell(page, BUCKET_BYTES, BUCKET_NS, BUCKET_BESIDE_NS, BUCKET_EXPOSED_NS)
    tell(page, str(call["tid"]), call["dur"], before["ts"], before["dur"], str(BEFORE))
    tell(page, GAP_NS, PREP_NS, CALL_NS, call["ts"], record["ts"], end(before))
    tell(page, f"{rate:.3f} GB/s")


def test_a_copy_and_a_norm_of_the_a100_file(files: Files, laid_out: LaidOut, page: str) -> None:
    plain, timeline = files(A100), laid_out(A100)
    (device,) = timeline.devices
    copy, norm = plain.record(COPY), plain.record(NORM)
    assert (copy["args"]["bytes"], ns(copy["dur"])) == (COPY_BYTES, COPY_NS)
    assert {each["name"] for each in plain.of("gpu_memcpy")} == {"Memcpy DtoD (Device -> Device)"}
    row = row_of(device, plain, copy)
    assert device.copied_bytes[row] == COPY_BYTES
    tell(page, COPY_BYTES, COPY_NS, f"{COPY_BYTES / COPY_NS:.2f} GB/s")
    operators = [each["name"] for each in plain.around(plain.call(NORM), "cpu_op")]
    assert operators == [
        "autograd::engine::evaluate_function: CudnnBatchNormBackward0",
        "CudnnBatchNormBackward0",
        "aten::cudnn_batch_norm_backward",
    ]
    row = row_of(device, plain, norm)
    assert named(timeline.operations, device.operation[row]) == operators[-1]
    assert Phase(device.phase[row]) is Phase.BACKWARD
    assert not plain.of("python_function")
    assert (timeline.layers, int(device.layer[row])) == ((), -1)
    tell(page, norm["ts"], norm["dur"], *operators)

"""Public traces laid out, against the cases' answers and plain Python over the files themselves."""

from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from chopperd.correlate import intervals
from chopperd.model.arrays import Bools
from chopperd.model.kinds import COMM_CLASSES, COMPUTE_CLASSES, COPY_CLASSES, KernelClass
from chopperd.model.timeline import DeviceTimeline, StepSource, Timeline
from chopperd.model.trace import RecordKind, Trace
from chopperd.traces.read.reader import read_trace
from chopperd.traces.timeline.layout import lay_out
from tests.integration.reference_reader import Row, is_comm, is_symmetric_memory, swept_ns

pytestmark = pytest.mark.corpus

#: Idle, compute and non-compute percent of the span, from the README beside the traces; b200's by a
#: sweep over its rows, as the README counts its collectives over symmetric memory as compute.
SHARES = {
    "hta_a100_nccl_ddp": (76.16, 17.51, 6.33),
    "hta_mi250_rocm62_minitoy": (98.33, 1.24, 0.43),
    "hta_v100_ddp_memory": (42.26, 35.81, 21.93),
    "hta_v100_ns_absolute_ts": (1.58, 97.53, 0.90),
    "kineto2021_v100_resnet50.pt.trace": (31.27, 67.48, 1.25),
    "tracelens_mi300x_qwen15_05b": (8.54, 91.45, 0.00),
    "tracelens_h100_qwen15_05b": (8.07, 91.50, 0.43),
    "tracelens_b200_vllm_eager": (86.27, 10.24, 3.48),
    "tracelens_mi300x_compile_triton": (0.00, 100.0, 0.00),
    "tracelens_mi300x_resnet_act_checkpoint": (2.96, 29.73, 67.30),
}

#: Step numbers by file, and records a step, equal in all steps (minitoy's #2 has none).
STEPS = {
    "hta_a100_nccl_ddp": ([4, 5, 6], 1258),
    "hta_mi250_rocm62_minitoy": ([1, 2], 16),
    "hta_v100_ddp_memory": ([2, 3, 4, 5, 6], 4458),
    "hta_v100_ns_absolute_ts": ([101, 102, 103, 104, 105], 1219),
    "kineto2021_v100_resnet50.pt.trace": ([16, 17, 18, 19, 20, 21], 1516),
    "tracelens_mi300x_qwen15_05b": ([6], 1054),
    "tracelens_h100_qwen15_05b": ([6], 1198),
    "tracelens_mi300x_resnet_act_checkpoint": ([15, 16, 17], 895),
}

LLM_FILES = (
    "tracelens_mi300x_qwen15_05b",
    "tracelens_h100_qwen15_05b",
    "tracelens_b200_vllm_eager",
    "tracelens_mi300x_compile_triton",
)

FRAMEWORKS = {
    "cpu_ddp_rank0.pt.trace": "ddp",
    "cpu_fsdp1_rank1.pt.trace": "fsdp1",
    "cpu_fsdp2_rank0.pt.trace": "fsdp2",
    "hta_a100_nccl_ddp": "ddp",
    "tracelens_h100_qwen15_05b": "none",
}


LaidOut = Callable[[str], Timeline]
PlainRows = Callable[[str], list[Row]]


@pytest.fixture(scope="module")
def laid_out(real_trace: Callable[[str], Trace]) -> LaidOut:
    """The real traces by name, each laid out once."""
    return cache(lambda name: lay_out(real_trace(name)))


def of_case(shared: Path, number: int) -> Timeline:
    (folder,) = (shared / "cases").glob(f"{number:02d}-*")
    return lay_out(read_trace(folder / "trace.json"))


def classed(device: DeviceTimeline, classes: frozenset[KernelClass]) -> Bools:
    return np.isin(device.kernel_class, [int(each) for each in classes])


def union_ns(device: DeviceTimeline, rows: Bools) -> int:
    return intervals.length_ns(intervals.union(device.start_ns[rows], device.end_ns[rows]))


def own_busy_us(device: DeviceTimeline, step: int) -> float:
    return union_ns(device, device.step == step) / 1000


def windows_us(device: DeviceTimeline) -> list[float]:
    return [(window.end_ns - window.start_ns) / 1000 for window in device.windows]


@pytest.mark.parametrize("name", SHARES)
def test_busy_compute_comm_and_copy_equal_a_sweep_over_the_file(
    laid_out: LaidOut, plain_rows: PlainRows, name: str
) -> None:
    (device,) = laid_out(name).devices
    rows = plain_rows(name)
    kernels = [row for row in rows if row.kind is RecordKind.KERNEL]
    copies = [row for row in rows if row.kind is not RecordKind.KERNEL]
    comm = [row for row in kernels if is_comm(row)]
    compute = [row for row in kernels if not is_comm(row)]
    assert union_ns(device, device.step >= -1) == swept_ns(rows)
    assert union_ns(device, classed(device, COMPUTE_CLASSES)) == swept_ns(compute)
    assert union_ns(device, classed(device, COMM_CLASSES)) == swept_ns(comm)
    assert union_ns(device, classed(device, COPY_CLASSES)) == swept_ns(copies)


@pytest.mark.parametrize("name", SHARES)
def test_each_record_has_the_step_that_a_join_over_plain_rows_gives_it(
    laid_out: LaidOut, plain_rows: PlainRows, name: str
) -> None:
    timeline = laid_out(name)
    (device,) = timeline.devices
    numbers = [*(step.step for step in timeline.steps), None]  # -1 is the last: no step
    got = zip(
        device.start_ns.tolist(),
        device.end_ns.tolist(),
        (str(numbers[step]) for step in device.step),
        strict=True,
    )
    expected = ((row.start_ns, row.end_ns, str(row.step)) for row in plain_rows(name))
    assert sorted(got) == sorted(expected)


@pytest.mark.parametrize(("name", "shares"), SHARES.items())
def test_idle_compute_and_non_compute_are_those_of_the_table(
    laid_out: LaidOut, name: str, shares: tuple[float, float, float]
) -> None:
    (device,) = laid_out(name).devices
    span_ns = int(device.end_ns.max() - device.start_ns.min())
    busy = union_ns(device, device.step >= -1)
    compute = union_ns(device, classed(device, COMPUTE_CLASSES))
    got = (span_ns - busy, compute, busy - compute)
    assert [100 * part_ns / span_ns for part_ns in got] == pytest.approx(shares, abs=0.02)


def test_with_collectives_over_symmetric_memory_compute_is_that_of_the_readme(
    laid_out: LaidOut,
) -> None:
    timeline = laid_out("tracelens_b200_vllm_eager")
    (device,) = timeline.devices
    symmetric = np.array([is_symmetric_memory(family) for family in timeline.families])
    compute = union_ns(device, classed(device, COMPUTE_CLASSES) | symmetric[device.family])
    span_ns = int(device.end_ns.max() - device.start_ns.min())
    assert 100 * compute / span_ns == pytest.approx(12.75, abs=0.02)


@pytest.mark.parametrize(("name", "expected"), STEPS.items())
def test_real_steps_are_whole_and_own_what_they_launched(
    laid_out: LaidOut, name: str, expected: tuple[list[int], int]
) -> None:
    timeline = laid_out(name)
    (device,) = timeline.devices
    numbers, launched = expected
    assert [step.step for step in timeline.steps] == numbers
    assert np.bincount(device.step[device.step >= 0]).tolist() == [launched] * len(device.windows)
    assert timeline.recorded_launch_count == timeline.launch_count
    assert len(device.unrecorded) == 0
    for before, after in pairwise(device.windows):
        assert before.end_ns == after.start_ns
    partial = [step.step for step in timeline.steps if step.partial_reasons]
    assert partial == ([2] if "minitoy" in name else [])  # that marker has no optimizer, no work


@pytest.mark.parametrize("name", LLM_FILES)
def test_the_kernels_of_language_models_have_a_class(laid_out: LaidOut, name: str) -> None:
    (device,) = laid_out(name).devices
    lengths_ns = device.end_ns - device.start_ns
    other_ns = lengths_ns[device.kernel_class == KernelClass.OTHER].sum()
    assert other_ns <= 0.05 * lengths_ns.sum()


@pytest.mark.parametrize(("name", "framework"), FRAMEWORKS.items())
def test_the_framework_of_real_files_is_found(laid_out: LaidOut, name: str, framework: str) -> None:
    assert laid_out(name).framework.name == framework


def test_an_on_demand_trace_is_cut_at_its_optimizers(laid_out: LaidOut) -> None:
    timeline = laid_out("cpu_ondemand_5_iterations")
    assert timeline.step_source is StepSource.OPTIMIZER
    assert [step.step for step in timeline.steps] == [0, 1, 2, 3, 4]
    reasons = [step.partial_reasons for step in timeline.steps]
    assert reasons == [("starts_before_trace",), (), (), (), ()]
    lengths_ms = [(step.end_ns - step.start_ns) / 1e6 for step in timeline.steps[1:]]
    # From the ends of the file's optimizer rows, e.g. 4954633158120.96 + 192.421 us.
    assert lengths_ms == pytest.approx([24.7997, 22.7049, 22.8321, 22.6602], abs=0.001)


def test_the_data_wait_of_a_real_loader_is_seen(laid_out: LaidOut) -> None:
    timeline = laid_out("kineto2021_v100_resnet50.pt.trace")
    waits_ns = [intervals.length_ns(thread.data) for thread in timeline.host_activity]
    assert sum(waits_ns) == pytest.approx(272_769_000, abs=1_000)


def test_case_05_invalid_records_leave_their_step_partial(shared: Path) -> None:
    timeline = of_case(shared, 5)
    (device,) = timeline.devices
    assert own_busy_us(device, 0) == 120
    assert (timeline.launch_count, timeline.recorded_launch_count) == (4, 2)
    assert timeline.steps[0].partial_reasons == ("launches_without_record",)


def test_case_09_no_steps_are_invented_and_the_totals_stay(shared: Path) -> None:
    timeline = of_case(shared, 9)
    (device,) = timeline.devices
    assert (timeline.steps, timeline.step_source) == ((), StepSource.NONE)
    assert union_ns(device, device.step == -1) == 140_000
    assert device.end_ns.max() - device.start_ns.min() == 200_000


def test_case_10_a_graph_launch_owns_all_its_kernels(shared: Path) -> None:
    timeline = of_case(shared, 10)
    (device,) = timeline.devices
    assert [own_busy_us(device, step) for step in (0, 1)] == [100, 75]
    assert windows_us(device) == [120, 85]
    assert (timeline.launch_count, timeline.recorded_launch_count, len(device)) == (2, 2, 7)
    assert timeline.families == ("n0", "n1", "n2", "n3")


def test_case_40_work_counts_for_the_step_that_launched_it(shared: Path) -> None:
    (device,) = of_case(shared, 40).devices
    assert [own_busy_us(device, step) for step in (0, 1, 2)] == [200, 80, 70]
    assert windows_us(device) == [200, 80, 70]
    assert [window.tail for window in device.windows] == [False, False, True]


def test_case_42_busy_is_a_union_and_streams_belong_to_devices(shared: Path) -> None:
    first, second = of_case(shared, 42).devices
    assert (own_busy_us(first, 0), own_busy_us(second, 0)) == (150, 160)


def test_case_43_both_spellings_are_communication_and_syncs_are_nothing(shared: Path) -> None:
    (device,) = of_case(shared, 43).devices
    compute = classed(device, COMPUTE_CLASSES)
    comm = classed(device, COMM_CLASSES)
    assert union_ns(device, compute) == 200_000
    assert union_ns(device, comm) == 220_000
    assert union_ns(device, classed(device, COPY_CLASSES)) == 50_000
    assert union_ns(device, device.step == 0) == 420_000
    both = intervals.intersection(
        intervals.union(device.start_ns[compute], device.end_ns[compute]),
        intervals.union(device.start_ns[comm], device.end_ns[comm]),
    )
    assert intervals.length_ns(both) == 50_000


def test_case_45_accumulated_markers_are_one_step(shared: Path) -> None:
    timeline = of_case(shared, 45)
    (device,) = timeline.devices
    assert timeline.accumulation == 4
    assert [step.step for step in timeline.steps] == [3, 7]
    assert [(step.end_ns - step.start_ns) / 1000 for step in timeline.steps] == [430, 430]
    assert [own_busy_us(device, step) for step in (0, 1)] == [260, 260]
    assert all(not step.partial_reasons for step in timeline.steps)
    assert [len(step.markers) for step in timeline.steps] == [4, 4]


def test_case_46_edge_steps_are_told_apart(shared: Path) -> None:
    timeline = of_case(shared, 46)
    (device,) = timeline.devices
    assert [own_busy_us(device, step) for step in (-1, 0, 1)] == [40, 40, 60]
    reasons = [step.partial_reasons for step in timeline.steps]
    assert reasons == [(), (), ("launches_without_record",)]
    assert [window.step for window in device.windows] == [0, 1]


def test_case_48_is_fsdp1_and_its_allocator_time_is_known(shared: Path) -> None:
    timeline = of_case(shared, 48)
    assert timeline.framework.name == "fsdp1"
    (thread,) = timeline.host_activity
    step_5 = timeline.steps[1]
    in_step = intervals.clip(thread.allocator, step_5.start_ns, step_5.end_ns)
    assert intervals.length_ns(in_step) == 3_600_000

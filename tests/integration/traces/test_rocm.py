"""What ROCm's traces write otherwise than CUDA's: each difference on the real files.

Expected figures are counts by the standard library's JSON over the same files, or stand in them.
"""

from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from chopperd.model.kinds import KERNEL_CLASSES, CopyDirection, KernelClass
from chopperd.model.timeline import Timeline
from chopperd.model.trace import Damage, DeviceNumbers, Trace
from chopperd.report.build.trace_notes import rocm_notes
from chopperd.traces.read.reader import read_trace
from chopperd.traces.timeline.host import ALLOCATOR_CALL, SYNC_CALL
from chopperd.traces.timeline.layout import lay_out
from chopperd.traces.timeline.links import COPY_LAUNCH, KERNEL_LAUNCH
from tests.integration.reference_reader import read_json

pytestmark = pytest.mark.corpus

MI250 = "hta_mi250_rocm62_minitoy"
COMPILED = "tracelens_mi300x_compile_triton"
QWEN = "tracelens_mi300x_qwen15_05b"
RESNET = "tracelens_mi300x_resnet_act_checkpoint"
FILES = (MI250, COMPILED, QWEN, RESNET)
NOISE = "hipGetDevicePropertiesR0600"

Read = Callable[[str], tuple[Trace, Timeline]]
Events = list[dict[str, Any]]


@pytest.fixture(scope="module")
def read(shared: Path) -> Read:
    @cache
    def once(name: str) -> tuple[Trace, Timeline]:
        trace = read_trace(shared / "traces" / f"{name}.json.gz")
        return trace, lay_out(trace)

    return once


@pytest.fixture(scope="module")
def events(shared: Path) -> Callable[[str], Events]:
    @cache
    def once(name: str) -> Events:
        document = read_json(shared / "traces" / f"{name}.json.gz")
        return [event for event in document["traceEvents"] if event.get("ph") == "X"]

    return once


def classes(timeline: Timeline) -> Counter[KernelClass]:
    (device,) = timeline.devices
    return Counter(KERNEL_CLASSES[code] for code in device.kernel_class.tolist())


@pytest.mark.parametrize("name", FILES)
def test_devices_are_hsa_nodes_and_the_default_stream_is_0(read: Read, name: str) -> None:
    trace, timeline = read(name)
    assert trace.meta.runtime == "rocm"
    assert trace.meta.device_numbers is DeviceNumbers.HSA_NODES
    (device,) = timeline.devices
    assert device.device == 2
    assert set(device.stream.tolist()) == ({0, 4} if name == RESNET else {0})


@pytest.mark.parametrize("name", ["tracelens_h100_qwen15_05b", "hta_v100_ddp_memory"])
def test_devices_of_cuda_are_as_its_properties_number_them(shared: Path, name: str) -> None:
    trace = read_trace(shared / "traces" / f"{name}.json.gz")
    assert trace.meta.device_numbers is DeviceNumbers.PROPERTIES


@pytest.mark.parametrize("name", FILES)
def test_arguments_of_two_types_lose_no_event(
    read: Read, events: Callable[[str], Events], name: str
) -> None:
    trace, _ = read(name)
    assert trace.damage == Damage()
    calls = [event for event in events(name) if event.get("cat") == "cuda_runtime"]
    assert len(trace.calls) == len(calls)
    # The file really holds what a strict reader fails on.
    streams = {event["args"].get("stream") for event in calls}
    assert ("0x0" in streams) == (name == MI250)
    sizes = {type(event["args"]["bytes"]) for event in calls if "bytes" in event["args"]}
    assert sizes == {MI250: set(), COMPILED: {int}, QWEN: {str}, RESNET: {str}}[name]


@pytest.mark.parametrize(
    ("name", "sized", "copies"), [(MI250, 0, 2), (QWEN, 1, 1), (RESNET, 366, 550)]
)
def test_sizes_of_copies_are_known_where_they_stand_in_the_file(
    read: Read, name: str, sized: int, copies: int
) -> None:
    trace, timeline = read(name)
    assert int((trace.records.copied_bytes > 0).sum()) == sized
    assert classes(timeline)[KernelClass.MEMCPY] == copies
    (device,) = timeline.devices
    ways = Counter(CopyDirection(way) for way in device.copy_direction.tolist())
    way = CopyDirection.H2D if name == MI250 else CopyDirection.D2D
    assert ways[way] == copies  # "Memcpy HtoD (Host -> Device)"
    assert ways[CopyDirection.MEMSET] == (108 if name == RESNET else 0)


@pytest.mark.parametrize(
    ("name", "unlinked", "launches"),
    [(MI250, 0, 16), (COMPILED, 0, 12), (QWEN, 463, 1054), (RESNET, 968, 2604)],
)
def test_every_hip_launch_is_known_and_what_was_launched_before_is_unlinked(
    read: Read, name: str, unlinked: int, launches: int
) -> None:
    _, timeline = read(name)
    assert timeline.unlinked_records == unlinked
    assert timeline.launch_count == timeline.recorded_launch_count == launches
    assert timeline.devices[0].early_count == 0


@pytest.mark.parametrize(
    ("name", "count"), [(MI250, 4), (COMPILED, 21), (QWEN, 507), (RESNET, 282)]
)
def test_noise_calls_are_neither_launches_nor_waits(read: Read, name: str, count: int) -> None:
    trace, _ = read(name)
    called = Counter(trace.names[index] for index in trace.calls.name.tolist())
    assert called[NOISE] == count
    patterns = (KERNEL_LAUNCH, COPY_LAUNCH, ALLOCATOR_CALL, SYNC_CALL)
    assert not any(pattern.search(NOISE) for pattern in patterns)


@pytest.mark.parametrize(
    ("name", "marks"), [(MI250, {1}), (COMPILED, set()), (QWEN, {6}), (RESNET, {15, 16, 17})]
)
def test_steps_are_marked_on_the_device_too(read: Read, name: str, marks: set[int]) -> None:
    trace, timeline = read(name)
    rows = {trace.names[index] for index in trace.device_spans.name.tolist()}
    assert {row for row in rows if row.startswith("ProfilerStep#")} == {
        f"ProfilerStep#{mark}" for mark in marks
    }
    assert marks <= {step.step for step in timeline.steps}


@pytest.mark.parametrize("name", FILES)
def test_every_kernel_has_a_class(read: Read, name: str) -> None:
    found = classes(read(name)[1])
    assert KernelClass.OTHER not in found
    assert found[KernelClass.COMM] == (17 if name == RESNET else 0)


@pytest.mark.parametrize(
    ("name", "start", "kernel_class"),
    [
        (MI250, "Cijk_", KernelClass.GEMM),
        (COMPILED, "Cijk_", KernelClass.GEMM),
        (COMPILED, "attn_fwd", KernelClass.ATTENTION),
        (QWEN, "attn_fwd", KernelClass.ATTENTION),
        (RESNET, "igemm_", KernelClass.GEMM),
        (RESNET, "ck::tensor_operation", KernelClass.GEMM),
        (RESNET, "ncclDevKernel_Generic", KernelClass.COMM),
    ],
)
def test_families_of_amd_s_libraries_have_their_class(
    read: Read, name: str, start: str, kernel_class: KernelClass
) -> None:
    _, timeline = read(name)
    (device,) = timeline.devices
    found = {
        KERNEL_CLASSES[code]
        for code, family in zip(device.kernel_class.tolist(), device.family.tolist(), strict=True)
        if timeline.families[family].startswith(start)
    }
    assert found == {kernel_class}


def test_rccl_s_kernel_goes_by_its_collective_where_that_was_recorded(
    read: Read, events: Callable[[str], Events]
) -> None:
    _, timeline = read(RESNET)
    (device,) = timeline.devices
    found = Counter(timeline.families[index] for index in device.family.tolist())
    told = Counter(
        event["args"].get("Collective name")
        for event in events(RESNET)
        if event["name"].startswith("ncclDevKernel_Generic")
    )
    assert told == {"allreduce": 6, "broadcast": 6, None: 5}
    assert {name: found[name] for name in found if name.startswith("nccl")} == {
        "ncclDevKernel_Generic allreduce": 6,
        "ncclDevKernel_Generic broadcast": 6,
        "ncclDevKernel_Generic": 5,
    }


@pytest.mark.parametrize(
    ("name", "share"), [(MI250, None), (COMPILED, "100.0"), (QWEN, "96.2"), (RESNET, "76.5")]
)
def test_an_mi300x_whose_kernels_end_as_the_next_begins_is_told_of(
    read: Read, name: str, share: str | None
) -> None:
    trace, timeline = read(name)
    notes = {note.code: note.text for note in rocm_notes(timeline.devices[0], trace.meta.runtime)}
    # Too short, or too few launches onto an idle device, to tell of drift.
    assert set(notes) == (set() if share is None else {"rocm_touching_kernels"})
    if share is not None:
        assert notes["rocm_touching_kernels"].startswith(f"{share} % of")

"""The GPU of a trace by its process: what the driver listed, what it saw, and what is not told."""

import pytest
from msgspec.structs import replace

from chopperd.correlate.identity.by_process import Match, TracedProcess, gpu_of_process
from chopperd.correlate.identity.mapping import Traced, map_device
from chopperd.model.devices import GpuInfo, Vendor
from chopperd.model.run import DeviceMap
from chopperd.model.samples import ProcessRow
from chopperd.model.trace import TraceDevice

S = 1_000_000_000
BEGIN, END = 1_000 * S, 1_010 * S
H100, A4000 = "NVIDIA H100 80GB HBM3", "NVIDIA RTX A4000"
CONTEXT, MODEL = 400 << 20, 60 << 30
HOST = "node-1"


def gpu(index: int, name: str = H100, vendor: Vendor = Vendor.NVIDIA) -> GpuInfo:
    return GpuInfo(
        gpu=str(index),
        index=index,
        uuid=f"GPU-{index}abc",
        pci_bus_id=f"00000000:{index + 16:02X}:00.0",
        name=name,
        vendor=vendor,
        kfd_node=index + 2 if vendor is Vendor.AMD else None,
    )


EIGHT = [gpu(index) for index in range(8)]
AMD = [gpu(index, "MI300X", Vendor.AMD) for index in range(8)]


def row(pid: int = 100, held: dict[str, int | None] | None = None, /, **env: str) -> ProcessRow:
    """A process of the machine itself, listed while the trace was taken."""
    return ProcessRow(
        pid=pid,
        ns_pids=(pid,),
        started_unix_ns=BEGIN - 60 * S,
        listed_unix_ns=BEGIN + S,
        gpus=held or {},
        visible=env,
        hosts=(HOST,),
        container=False,
    )


def process(pid: int | None = 100, host: str | None = HOST, used: int = 1) -> TracedProcess:
    return TracedProcess(pid=pid, host=host, span_ns=(BEGIN, END), used_count=used)


def found(
    *rows: ProcessRow,
    device: int = 0,
    of: TracedProcess | None = None,
    gpus: list[GpuInfo] | None = None,
) -> str | None:
    """The label; None if there is no GPU."""
    match = gpu_of_process(device, of or process(), rows, gpus or EIGHT)
    assert (match.gpu is None) != (match.why_not is None)
    return match.gpu.gpu if match.gpu else None


def why(*rows: ProcessRow, device: int = 0, of: TracedProcess | None = None) -> str:
    match = gpu_of_process(device, of or process(), rows, EIGHT)
    assert match.gpu is None
    return match.why_not or ""


def test_the_only_gpu_that_a_process_held_is_its_device_whatever_the_number() -> None:
    assert found(row(100, {"GPU-5abc": MODEL}), device=0) == "5"
    assert found(row(100, {"5": None}), device=3) == "5"


def test_eight_ranks_with_a_context_on_gpu_0_each_have_their_own() -> None:
    """As torch.cuda.set_device(LOCAL_RANK) and a stray context on the first GPU leave them."""
    rows = [row(100, {"0": MODEL}, LOCAL_RANK="0")]
    for rank in range(1, 8):
        held: dict[str, int | None] = {"0": CONTEXT, str(rank): MODEL}
        rows.append(row(100 + rank, held, LOCAL_RANK=str(rank)))
    for rank in range(8):
        assert found(*rows, device=rank, of=process(100 + rank)) == str(rank)
    # The environment of other users can't be read: the memory tells.
    unread = [replace(each, visible=None) for each in rows]
    for rank in range(8):
        assert found(*unread, device=rank, of=process(100 + rank)) == str(rank)


def test_two_gpus_without_a_word_on_which_are_not_told_apart() -> None:
    unread = replace(row(100, {"0": MODEL, "1": MODEL}), visible=None)
    assert why(unread) == (
        "process 100 has contexts on GPU 0, GPU 1, and its visible devices do not show which one "
        "it used"
    )
    small = replace(row(100, {"0": CONTEXT, "1": CONTEXT // 8}), visible=None)
    assert found(small) is None  # contexts alone: no work is seen
    assert found(replace(unread, gpus={"0": None, "1": None})) is None


def test_memory_on_one_gpu_says_nothing_of_a_trace_of_two() -> None:
    unread = replace(row(100, {"0": CONTEXT, "1": MODEL}), visible=None)
    assert found(unread, device=1, of=process(used=2)) is None
    both = row(100, {"0": MODEL, "1": MODEL})
    assert [found(both, device=device, of=process(used=2)) for device in (0, 1)] == ["0", "1"]


def test_a_variable_that_the_memory_contradicts_is_not_believed() -> None:
    # The script set CUDA_VISIBLE_DEVICES itself: device 0 is not GPU 0.
    assert found(row(100, {"0": CONTEXT, "3": MODEL}), device=0) is None
    assert found(row(100, {"1": CONTEXT, "3": MODEL}), device=0) is None


def test_a_single_gpu_listed_before_the_trace_may_have_been_a_context_only() -> None:
    early = replace(row(100, {"0": CONTEXT}), listed_unix_ns=BEGIN - S)
    assert why(replace(early, visible=None), device=3) == (
        "process 100 was listed on GPU 0 only before the trace began"
    )
    assert found(early, device=3) is None  # GPU 3 it saw, but was not listed on
    assert found(early, device=0) == "0"
    assert found(replace(early, gpus={"0": MODEL}, visible=None)) == "0"
    assert found(replace(early, listed_unix_ns=None, visible=None)) is None


def test_a_gpu_that_is_not_sampled_is_nobody_s() -> None:
    assert why(row(100, {"GPU-of-another-node": MODEL}), device=0).endswith("began")
    assert found(row(100, {"GPU-of-another-node": MODEL, "2": CONTEXT}), device=2) is None


@pytest.mark.parametrize(
    ("env", "device", "label"),
    [
        ({"CUDA_VISIBLE_DEVICES": "5"}, 0, "5"),
        ({"CUDA_VISIBLE_DEVICES": "5,3"}, 1, "3"),
        ({"CUDA_VISIBLE_DEVICES": "GPU-6"}, 0, "6"),  # CUDA takes the beginning of a UUID
        ({"CUDA_VISIBLE_DEVICES": "GPU-6abc, GPU-2abc"}, 1, "2"),
        ({"CUDA_VISIBLE_DEVICES": "5,3"}, 2, None),
        ({"CUDA_VISIBLE_DEVICES": "9"}, 0, None),
        ({"CUDA_VISIBLE_DEVICES": "GPU-"}, 0, None),
        ({"CUDA_VISIBLE_DEVICES": ""}, 0, None),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, 0, None),
        ({}, 3, None),  # the script may have chosen itself
        ({"LOCAL_RANK": "3"}, 3, "3"),
        ({"LOCAL_RANK": "3"}, 0, None),
        ({"LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": "4,6"}, 1, "6"),
        ({"LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": "4,6"}, 0, None),
        # Slurm may have hidden GPUs: whether indices count all or the job's is not known.
        ({"SLURM_JOB_GPUS": "1,2", "CUDA_VISIBLE_DEVICES": "1"}, 0, None),
        ({"SLURM_JOB_GPUS": "0,1", "CUDA_VISIBLE_DEVICES": "1"}, 0, "1"),
        ({"SLURM_JOB_GPUS": "0,1", "SLURM_STEP_GPUS": "1", "CUDA_VISIBLE_DEVICES": "0"}, 0, None),
        ({"SLURM_JOB_GPUS": "1,2", "CUDA_VISIBLE_DEVICES": "GPU-2abc"}, 0, "2"),
    ],
)
def test_where_no_driver_lists_processes_a_variable_must_name_the_gpu(
    env: dict[str, str], device: int, label: str | None
) -> None:
    """Worked out by CUDA's rules by hand."""
    assert found(row(**env), device=device) == label


def test_an_environment_that_could_not_be_read_says_nothing() -> None:
    unread = replace(row(), visible=None)
    assert why(unread) == (
        "the driver lists process 100 on no GPU, and the environment of process 100 could not be "
        "read"
    )
    assert why(row()).endswith("its environment names none")


def test_indices_count_in_bus_order_only_where_cuda_says_so_or_all_gpus_are_equal() -> None:
    mixed = [gpu(0, A4000), gpu(1), gpu(2)]
    by_speed, by_bus = {"CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert found(row(**by_speed), gpus=mixed) is None
    assert found(row(**by_speed, **by_bus), gpus=mixed) == "0"
    assert found(row(CUDA_VISIBLE_DEVICES="GPU-1abc"), gpus=mixed) == "1"
    split = [*EIGHT, replace(gpu(8), gpu="7.1", uuid="MIG-x", parent="7")]
    assert found(row(CUDA_VISIBLE_DEVICES="0"), gpus=split) is None
    assert found(row(CUDA_VISIBLE_DEVICES="MIG-x"), gpus=split) == "7.1"


def in_pod(pid: int, own_pid: int, pod: str = "pod-a", /, **env: str) -> ProcessRow:
    one = row(pid, **env)
    return replace(one, ns_pids=(pid, own_pid), hosts=(pod,), container=True)


def test_a_pid_of_a_namespace_is_known_by_the_host_name_of_its_pod() -> None:
    a = replace(in_pod(4000, 7), gpus={"1": MODEL})
    b = replace(in_pod(5000, 7, "pod-b"), gpus={"2": MODEL})
    assert found(a, b, of=process(7, "pod-a")) == "1"
    assert found(a, b, of=process(7, "pod-b")) == "2"
    assert "process 7 of host pod-c is not among" in why(a, b, of=process(7, "pod-c"))
    assert why(a, b, of=process(7, None)).startswith("several processes")
    assert found(a, of=process(7, None)) == "1"
    # Its number outside is another process's inside.
    assert found(a, of=process(4000, "pod-a")) is None


def test_a_process_of_another_machine_is_not_taken_for_ours() -> None:
    ours = row(100, {"3": MODEL})
    assert found(ours, of=process(100, "node-2")) is None
    assert found(ours, of=process(100, "NODE-1.cluster.local")) == "3"
    assert found(replace(ours, hosts=("node-1.a",)), of=process(100, "node-1.b")) is None
    assert found(replace(ours, hosts=()), of=process(100, "node-2")) == "3"  # says nothing else


def test_what_a_container_was_given_is_what_its_indices_count() -> None:
    """In a container CUDA counts what the container has, in bus order."""
    given = {"NVIDIA_VISIBLE_DEVICES": "GPU-6abc,GPU-2abc"}
    pod = process(7, "pod-a")
    assert found(in_pod(1, 7, **given, CUDA_VISIBLE_DEVICES="0"), of=pod) == "2"
    assert found(in_pod(1, 7, **given, LOCAL_RANK="1"), device=1, of=pod) == "6"
    every = in_pod(1, 7, NVIDIA_VISIBLE_DEVICES="all", CUDA_VISIBLE_DEVICES="4")
    assert found(every, of=pod) == "4"
    for text in ("void", ""):
        unknown = in_pod(1, 7, NVIDIA_VISIBLE_DEVICES=text, CUDA_VISIBLE_DEVICES="0")
        assert found(unknown, of=pod) is None
    assert found(in_pod(1, 7, CUDA_VISIBLE_DEVICES="0"), of=pod) is None
    assert found(in_pod(1, 7, CUDA_VISIBLE_DEVICES="GPU-5abc"), of=pod) == "5"


def test_pids_are_reused_so_the_process_must_have_lived_all_the_time() -> None:
    first = replace(row(100, {"1": MODEL}), gone_unix_ns=BEGIN - 30 * S)
    second = replace(row(100, {"2": MODEL}), started_unix_ns=BEGIN - 20 * S)
    assert found(first, second) == "2"
    assert found(replace(second, started_unix_ns=BEGIN + 5 * S)) is None
    assert found(replace(first, gone_unix_ns=END + S)) == "1"
    assert found(replace(first, started_unix_ns=None)) is None


def test_processes_of_a_namespace_that_is_not_ours_match_nothing() -> None:
    foreign = ProcessRow(pid=100, listed_unix_ns=BEGIN + S, gpus={"1": MODEL})
    assert "the driver lists processes of another pid namespace" in why(foreign)


def test_a_trace_that_names_no_process_or_no_time_is_not_matched() -> None:
    assert why(row(), of=process(None)).startswith("the trace does not name")
    assert why(row(), of=replace(process(), span_ns=None)).startswith("the trace does not name")
    assert gpu_of_process(0, process(), [], EIGHT) == Match()


@pytest.mark.parametrize(
    ("env", "label"),
    [
        ({"HIP_VISIBLE_DEVICES": "5"}, "5"),
        ({"CUDA_VISIBLE_DEVICES": "5"}, "5"),
        ({"ROCR_VISIBLE_DEVICES": "2,4", "HIP_VISIBLE_DEVICES": "1"}, "4"),
        ({"ROCR_VISIBLE_DEVICES": "GPU-6abc"}, "6"),
        ({"HIP_VISIBLE_DEVICES": "1,2"}, None),
        ({"SLURM_JOB_GPUS": "4", "ROCR_VISIBLE_DEVICES": "0"}, None),
        ({}, None),
    ],
)
def test_amd_devices_are_chosen_by_rocr_then_by_hip(env: dict[str, str], label: str | None) -> None:
    of = replace(process(), counts_visible=False)
    assert found(row(**env), device=2, of=of, gpus=AMD) == label


def test_amd_indices_in_a_container_or_without_nodes_are_not_known() -> None:
    of = replace(process(7, "pod-a"), counts_visible=False)
    assert found(in_pod(1, 7, HIP_VISIBLE_DEVICES="5"), of=of, gpus=AMD) is None
    bare = [replace(each, kfd_node=None) for each in AMD]
    assert found(row(HIP_VISIBLE_DEVICES="5"), gpus=bare) is None
    assert found(row(CUDA_VISIBLE_DEVICES="5"), gpus=[*AMD, gpu(9)]) is None


def test_a_device_number_that_counts_nodes_is_no_index() -> None:
    of = replace(process(used=2), counts_visible=False)
    assert found(row(CUDA_VISIBLE_DEVICES="5,6"), device=1, of=of) is None


def mapped(name: str | None, rows: list[ProcessRow], *, guess: bool = True) -> tuple[str, str]:
    traced = Traced(devices=[TraceDevice(device=0, name=name)], used=[0], process=process())
    found = map_device(0, traced, EIGHT, DeviceMap(), processes=rows, guess=guess)
    return found.gpu.gpu if found.gpu else found.why_not or "", found.rule or ""


def test_the_rule_comes_after_what_the_trace_says_and_never_against_it() -> None:
    rows = [row(100, {"5": MODEL})]
    assert mapped(H100, rows) == ("5", "process")
    assert mapped(None, rows) == ("5", "process")
    assert mapped(A4000, rows)[1] == ""
    text = "its process held GPU 5, which the trace describes otherwise"
    mixed = [*EIGHT[:7], gpu(7, A4000)]
    traced = Traced(devices=[TraceDevice(device=0, name=A4000)], used=[0, 1], process=process())
    both = map_device(0, traced, mixed, DeviceMap(), processes=rows)
    assert (both.gpu, both.rule) == (mixed[7], "unique_name")
    traced = replace(traced, devices=[TraceDevice(device=n, name=A4000) for n in (0, 1)])
    assert map_device(0, traced, mixed, DeviceMap(), processes=rows).why_not == text


def test_where_another_rank_was_given_the_gpu_the_process_tells_nothing() -> None:
    rows = [row(100, {"5": MODEL})]
    assert mapped(H100, rows, guess=False) == (
        "another trace of the same time was given the same GPU, so neither is used",
        "",
    )

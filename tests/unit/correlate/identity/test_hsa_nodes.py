"""Which GPU a ROCm trace's device number means: whatever can mean two means none.

The truth is a model of what the runtime libraries do: of a host's nodes, CPUs first, a process is
given those that it may open, renumbered without gaps; roctracer writes that number, rocprofiler-sdk
the GPU's place among them; `deviceProperties` are as many as HIP chose of those.
"""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from chopperd.correlate.identity.mapping import Traced, gpu_of_number, map_device
from chopperd.model.devices import GpuInfo, Vendor
from chopperd.model.run import DeviceMap
from chopperd.model.trace import DeviceNumbers, TraceDevice

NODES, ORDINALS = DeviceNumbers.HSA_NODES, DeviceNumbers.GPU_ORDINALS
MI300X = "AMD Instinct MI300X"


def gpu(index: int, node: int | None, *, parent: str | None = None) -> GpuInfo:
    # The label runs against the nodes: nothing may depend on it.
    return GpuInfo(
        gpu=str(7 - index),
        index=7 - index,
        uuid=f"GPU-{index}",
        name=MI300X,
        vendor=Vendor.AMD,
        kfd_node=node,
        parent=parent,
    )


#: Two processors, eight GPUs.
EIGHT = [gpu(index, 2 + index) for index in range(8)]


def mapped(
    device: int,
    numbers: DeviceNumbers,
    gpus: Sequence[GpuInfo] = EIGHT,
    *,
    seen: int = 8,
    used: Sequence[int] | None = None,
    device_map: dict[int, str] | None = None,
    guess: bool = True,
) -> tuple[str | None, str | None]:
    """UUID and rule."""
    found = map_device(
        device,
        Traced(
            devices=[TraceDevice(device=each, name=MI300X) for each in range(seen)],
            used=used or [device],
            numbers=numbers,
        ),
        gpus,
        DeviceMap(entries=tuple((None, number, gpu) for number, gpu in (device_map or {}).items())),
        guess=guess,
    )
    return found.gpu.uuid if found.gpu else None, found.rule


def why_not(device: int, numbers: DeviceNumbers, gpus: Sequence[GpuInfo], seen: int) -> str:
    return gpu_of_number(device, numbers, [device], seen, gpus).why_not or ""


def test_roctracer_s_number_is_a_node_and_rocprofiler_s_a_place_among_gpus() -> None:
    assert mapped(2, NODES) == ("GPU-0", "kfd_node")
    assert mapped(9, NODES) == ("GPU-7", "kfd_node")
    assert mapped(2, ORDINALS) == ("GPU-2", "kfd_node")
    assert mapped(0, ORDINALS, guess=False) == ("GPU-0", "kfd_node")


def test_one_of_eight_that_a_process_saw_may_be_any_but_for_the_highest_number() -> None:
    # One of real traces: device 9 of a process that sees one GPU, on a host of eight.
    assert mapped(9, NODES, seen=1) == ("GPU-7", "kfd_node")
    assert mapped(7, ORDINALS, seen=1) == ("GPU-7", "kfd_node")
    # In a container with only GPU 5 this is GPU 5; by HIP_VISIBLE_DEVICES=0 it is GPU 0.
    assert mapped(2, NODES, seen=1) == (None, None)
    assert mapped(0, ORDINALS, seen=1) == (None, None)
    assert "its process saw 1 GPUs where 8 are sampled" in why_not(2, NODES, EIGHT, 1)
    assert "an unknown number of GPUs" in why_not(2, NODES, EIGHT, 0)


def test_of_a_process_that_saw_more_than_is_sampled_nothing_is_told() -> None:
    assert mapped(3, NODES, EIGHT[:2]) == (None, None)
    assert "saw 8 GPUs where 2 are sampled" in why_not(3, NODES, EIGHT[:2], 8)


def test_a_trace_that_does_not_tell_what_its_numbers_count_is_read_where_only_one_way_goes() -> (
    None
):
    unknown = DeviceNumbers.UNKNOWN
    assert mapped(2, unknown) == (None, None)
    assert "does not say" in why_not(2, unknown, EIGHT, 8)
    assert mapped(9, unknown) == ("GPU-7", "kfd_node")  # there is no tenth GPU
    assert mapped(1, unknown) == ("GPU-1", "kfd_node")  # node 1 is a processor
    assert mapped(2, unknown, used=[1, 2]) == ("GPU-2", "kfd_node")
    assert mapped(2, unknown, used=[2, 8]) == ("GPU-0", "kfd_node")
    assert mapped(2, unknown, used=[1, 2, 8]) == (None, None)


def test_samples_without_nodes_or_of_other_nodes_tell_nothing() -> None:
    bare = [gpu(index, None) for index in range(8)]
    assert mapped(2, NODES, bare) == (None, None)
    assert "do not say which HSA nodes" in why_not(2, NODES, bare, 8)
    assert mapped(12, NODES) == (None, None)
    assert mapped(1, NODES) == (None, None)
    holes = [gpu(0, 2), gpu(1, 3), gpu(2, 5)]
    assert mapped(3, NODES, holes, seen=3) == (None, None)
    assert "others are missing" in why_not(3, NODES, holes, 3)


def test_what_a_user_says_comes_first_and_is_not_replaced() -> None:
    assert mapped(2, NODES, device_map={2: "GPU-6"}) == ("GPU-6", "device_map")
    assert mapped(2, NODES, device_map={2: "GPU-99"}) == (None, None)


def test_another_product_name_contradicts_a_node() -> None:
    said = [TraceDevice(device=0, name="AMD Instinct MI210")]
    found = map_device(2, Traced(devices=said, used=[2], numbers=NODES), [EIGHT[0]], DeviceMap())
    assert (found.gpu, found.rule) == (None, None)


def test_partitions_have_nodes_of_their_own() -> None:
    card = gpu(0, None)
    parts = [gpu(index, 2 + index, parent=card.gpu) for index in range(1, 4)]
    assert mapped(4, NODES, [card, *parts], seen=3) == ("GPU-2", "kfd_node")


def test_properties_of_a_rocm_trace_are_not_taken_for_those_of_a_node_of_their_number() -> None:
    # Of HIP's devices number 1 is the MI210; node 1 of this machine is the MI300X.
    said = [TraceDevice(device=0, name=MI300X), TraceDevice(device=1, name="AMD Instinct MI210")]
    gpus = [
        gpu(0, None),
        GpuInfo(gpu="1", index=1, uuid="GPU-M", name="AMD Instinct MI210", vendor=Vendor.AMD),
    ]
    assert (
        map_device(1, Traced(devices=said, used=[1], numbers=NODES), gpus, DeviceMap()).gpu is None
    )
    by_properties = map_device(1, Traced(devices=said, used=[1]), gpus, DeviceMap())
    assert by_properties.rule == "unique_name"


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_no_process_is_ever_given_another_gpu_s_clock(data: st.DataObject) -> None:
    processors = data.draw(st.integers(1, 4), "processors")
    count = data.draw(st.integers(1, 8), "GPUs of the host")
    openable = sorted(data.draw(st.sets(st.integers(0, count - 1), min_size=1), "may open"))
    seen = sorted(data.draw(st.sets(st.sampled_from(openable), min_size=1), "chosen by HIP"))
    truth = data.draw(st.sampled_from(seen), "traced")
    counts = data.draw(st.sampled_from([NODES, ORDINALS]), "profiler")
    told = data.draw(st.sampled_from([counts, DeviceNumbers.UNKNOWN]), "known")
    # The sampler runs on the host, or in the container.
    inside = data.draw(st.booleans(), "sampled inside")
    sampled = openable if inside else range(count)
    gpus = [gpu(each, processors + place) for place, each in enumerate(sampled)]
    number = openable.index(truth) + (processors if counts is NODES else 0)
    found, rule = mapped(number, told, gpus, seen=len(seen))
    assert found in {None, f"GPU-{truth}"} or (len(gpus) == 1 and rule == "only_one")
    if told is counts and len(seen) == len(gpus):
        assert found == f"GPU-{truth}"

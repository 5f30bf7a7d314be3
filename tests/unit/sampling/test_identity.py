"""Which GPU keeps which label when the driver counts anew."""

from dataclasses import replace

from chopperd.model.devices import GpuInfo
from chopperd.sampling.identity import merged_gpus, place_of
from tests.fakes.samples import gpu_info

A, B, C = (gpu_info(index) for index in range(3))


def at(gpu: GpuInfo, index: int) -> GpuInfo:
    """The GPU as the driver lists it under another index."""
    return replace(gpu, index=index, gpu=str(index))


def labels(gpus: tuple[GpuInfo, ...]) -> dict[str, str]:
    return {gpu.uuid: gpu.gpu for gpu in gpus}


def test_a_gpu_keeps_its_label_when_another_before_it_is_gone() -> None:
    merged = merged_gpus((A, B), (at(B, 0),))
    assert labels(merged) == {"GPU-0": "0", "GPU-1": "1"}
    assert merged[1].index == 0


def test_a_new_gpu_never_takes_the_label_of_another() -> None:
    """GPU 0 was swapped: the driver lists the new one under index 1, which is B's label."""
    merged = merged_gpus((A, B), (at(B, 0), at(C, 1)))
    assert labels(merged) == {"GPU-0": "0", "GPU-1": "1", "GPU-2": "2"}
    assert labels(merged_gpus((), (A, at(B, 0)))) == {"GPU-0": "0", "GPU-1": "1"}


def test_without_room_new_gpus_are_left_out() -> None:
    assert merged_gpus((A,), (A, B), most=1) == (A,)


def test_without_a_uuid_index_and_name_tell() -> None:
    nameless = replace(A, uuid="")
    assert place_of(nameless, (B, nameless)) == 1
    assert place_of(at(nameless, 3), (B, nameless)) is None
    assert place_of(replace(A, name="other"), (A,)) is None

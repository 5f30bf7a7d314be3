"""Which GPU keeps which label when the driver counts anew."""

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from chopperd.model.devices import GpuInfo
from chopperd.sampling.memory.ring import merged_gpus, place_of, places_of
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


def part(card: GpuInfo, number: int, uuid: str) -> GpuInfo:
    return replace(card, gpu=f"{card.gpu}.{number}", uuid=uuid, name="MIG 1g.10gb", parent=card.gpu)


def silent(index: int, pci_bus_id: str | None = None) -> GpuInfo:
    return replace(A, gpu=str(index), index=index, uuid="", name="", pci_bus_id=pci_bus_id)


def test_a_gpu_that_does_not_say_who_it_is_is_the_one_that_was_there() -> None:
    assert merged_gpus((A, B, C), (A, silent(1), C)) == (A, B, C)
    # And once it does, it is the one that did not.
    assert merged_gpus((A, silent(1), C), (A, B, C)) == (A, B, C)
    assert merged_gpus((), (A, silent(1))) == (A, silent(1))
    assert merged_gpus((A, silent(1)), (A, silent(1))) == (A, silent(1))


def test_a_silent_gpu_takes_no_place_of_one_that_is_there_under_another_number() -> None:
    """B moved to index 0; the GPU at index 1 is silent: it may be A."""
    merged = merged_gpus((A, B), (at(B, 0), silent(1)))
    assert labels(merged) == {"GPU-0": "0", "GPU-1": "1", "": "2"}


def test_an_address_tells_more_than_a_number() -> None:
    known = replace(A, pci_bus_id="00000000:17:00.0"), replace(B, pci_bus_id="00000000:65:00.0")
    moved = silent(0, "00000000:65:00.0")
    assert places_of((moved,), known) == [1]
    assert places_of((silent(0, "00000000:AA:00.0"),), known) == [None]


def test_parts_are_named_after_the_label_of_their_card() -> None:
    """The driver lists B, label 1, under index 0 now."""
    b_now = at(B, 0)
    merged = merged_gpus((A, B), (b_now, part(b_now, 2, "MIG-2")))
    assert [(gpu.gpu, gpu.parent) for gpu in merged] == [("0", None), ("1", None), ("1.2", "1")]


def test_a_part_keeps_its_place_and_gives_it_to_one_made_where_it_was() -> None:
    before = (A, part(A, 1, "MIG-1"), part(A, 2, "MIG-2"))
    after = merged_gpus(before, (A, part(A, 1, "MIG-new"), part(A, 2, "MIG-2")))
    assert labels(after) == {"GPU-0": "0", "MIG-new": "0.1", "MIG-2": "0.2"}
    assert labels(merged_gpus(before, (A, part(A, 2, "MIG-2")))) == labels(before)
    # On another card the same number is another part.
    other = part(B, 1, "MIG-b")
    assert places_of((B, other), (A, part(A, 1, "MIG-1"))) == [None, None]


@given(
    before=st.lists(st.integers(0, 5), unique=True, max_size=6),
    now=st.lists(st.integers(0, 5), unique=True, max_size=6),
    parts=st.dictionaries(st.integers(0, 5), st.lists(st.integers(1, 7), unique=True, max_size=3)),
)
@settings(max_examples=100, deadline=None)
def test_no_label_ever_stands_for_two_and_none_that_is_known_shifts(
    before: list[int], now: list[int], parts: dict[int, list[int]]
) -> None:
    """Cards in any order, some gone, some new, each with parts or without."""

    def listed(order: list[int]) -> tuple[GpuInfo, ...]:
        gpus = []
        for index, card in enumerate(order):
            gpu = at(gpu_info(card), index)
            gpus.append(gpu)
            gpus += [part(gpu, number, f"MIG-{card}-{number}") for number in parts.get(card, ())]
        return tuple(gpus)

    first = merged_gpus((), listed(before))
    second = merged_gpus(first, listed(now))
    assert len({gpu.gpu for gpu in second}) == len(second)
    assert len({gpu.uuid for gpu in second}) == len(second)
    known = labels(first)
    assert all(labels(second)[uuid] == label for uuid, label in known.items())
    by_label = {gpu.gpu: gpu for gpu in second}
    for gpu in second:
        if gpu.parent is not None:
            assert gpu.uuid.split("-")[1] == by_label[gpu.parent].uuid.split("-")[1]

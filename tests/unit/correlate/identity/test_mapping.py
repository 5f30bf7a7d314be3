"""Which GPU a trace's device is: every rule, their order, and all that must not be guessed."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from chopperd.correlate.identity.mapping import Traced, map_device
from chopperd.errors import ConfigError
from chopperd.model.devices import GpuInfo, Vendor
from chopperd.model.run import DeviceMap, device_map_of
from chopperd.model.trace import DeviceNumbers, TraceDevice

H100, A4000 = "NVIDIA H100 80GB HBM3", "NVIDIA RTX A4000"


def gpu(index: int, name: str = H100, **changes: str | None) -> GpuInfo:
    known: dict[str, str | None] = {
        "uuid": f"GPU-{index}",
        "pci_bus_id": f"00000000:{index + 16:02X}:00.0",
    }
    known.update(changes)
    return GpuInfo(
        gpu=str(index),
        index=index,
        uuid=known["uuid"] or "",
        pci_bus_id=known["pci_bus_id"],
        name=name,
        vendor=Vendor.NVIDIA,
    )


def said(
    device: int = 0, name: str | None = None, uuid: str | None = None, pci: str | None = None
) -> TraceDevice:
    return TraceDevice(device=device, name=name, uuid=uuid, pci_bus_id=pci)


def mapped(
    device: int,
    traced: list[TraceDevice],
    gpus: list[GpuInfo],
    *,
    used: list[int] | None = None,
    device_map: dict[int, str] | None = None,
    guess: bool = True,
) -> tuple[str | None, str | None]:
    """Label of the GPU and the rule."""
    found = map_device(
        device,
        Traced(devices=traced, used=used or [device]),
        gpus,
        DeviceMap(entries=tuple((None, number, gpu) for number, gpu in (device_map or {}).items())),
        guess=guess,
    )
    return found.gpu.gpu if found.gpu else None, found.rule


EIGHT = [gpu(index) for index in range(8)]


@pytest.mark.parametrize(
    "known",
    [
        {"uuid": "GPU-5"},
        {"uuid": "gpu-5"},
        {"uuid": "5"},  # torch writes it without the prefix
        {"pci": "00000000:15:00.0"},
        {"pci": "0000:15:00.0"},  # CUDA's domain has four digits, NVML's eight
        {"pci": "0000:15:00"},
    ],
)
def test_the_traces_own_word_comes_first(known: dict[str, str]) -> None:
    assert mapped(0, [said(0, H100, **known)], EIGHT, device_map={0: "GPU-2"}) == (
        "5",
        "chopperd_devices",
    )


@pytest.mark.parametrize("wanted", ["GPU-3", "gpu-3", "3", "00000000:13:00.0", "0000:13:00.0"])
def test_the_users_map_takes_a_uuid_a_bus_id_or_a_label(wanted: str) -> None:
    assert mapped(2, [], EIGHT, device_map={2: wanted}) == ("3", "device_map")


def test_functions_of_one_bus_address_are_different_gpus() -> None:
    gpus = [gpu(0, pci_bus_id="0000:65:00.0"), gpu(1, pci_bus_id="0000:65:00.1")]
    assert mapped(0, [said(0, pci="00000000:65:00.1")], gpus) == ("1", "chopperd_devices")


def test_a_label_in_the_users_map_is_not_mistaken_for_a_bare_uuid() -> None:
    gpus = [gpu(0, uuid="GPU-1"), gpu(1, uuid="GPU-0")]
    assert mapped(0, [], gpus, device_map={0: "1"}) == ("1", "device_map")


def test_a_map_to_a_gpu_that_was_not_sampled_is_not_replaced_by_a_guess() -> None:
    assert mapped(0, [said(0, H100)], [gpu(0)], device_map={0: "GPU-7"}) == (None, None)


def test_a_name_that_occurs_once_on_either_side_tells() -> None:
    gpus = [gpu(0, A4000), gpu(1, H100)]
    assert mapped(0, [said(0, H100)], gpus) == ("1", "unique_name")


def test_names_that_repeat_on_either_side_tell_nothing() -> None:
    assert mapped(0, [said(0, H100)], EIGHT) == (None, None)
    both = [said(0, H100), said(1, H100)]
    assert mapped(0, both, [gpu(0), gpu(1, A4000)]) == (None, None)


def test_the_only_device_is_the_only_gpu() -> None:
    assert mapped(0, [], [gpu(3)]) == ("3", "only_one")
    # A roctracer device number is an HSA node id; the file lists one device.
    assert mapped(2, [said(0, None)], [gpu(0)]) == ("0", "only_one")


def test_the_only_gpu_is_not_a_device_of_another_name_or_identity() -> None:
    assert mapped(0, [said(0, A4000)], [gpu(0)]) == (None, None)
    assert mapped(0, [said(0, H100, uuid="GPU-9")], [gpu(0)]) == (None, None)
    assert mapped(0, [said(0, H100, pci="00000000:FF:00.0")], [gpu(0)]) == (None, None)


def test_an_identity_that_the_samples_do_not_give_contradicts_nothing() -> None:
    bare = gpu(0, name="", uuid="", pci_bus_id=None)
    assert mapped(0, [said(0, H100, uuid="GPU-9")], [bare]) == ("0", "only_one")


def test_two_devices_or_two_gpus_are_not_told_apart_by_number() -> None:
    assert mapped(0, [], [gpu(0)], used=[0, 1]) == (None, None)
    assert mapped(0, [], [gpu(0), gpu(1)]) == (None, None)


def test_without_guesses_only_what_someone_said_counts() -> None:
    assert mapped(0, [], [gpu(3)], guess=False) == (None, None)
    assert mapped(0, [said(0, H100)], [gpu(0, A4000), gpu(1)], guess=False) == (None, None)
    assert mapped(0, [said(0, uuid="GPU-3")], [gpu(3)], guess=False) == ("3", "chopperd_devices")
    assert mapped(0, [], [gpu(3)], device_map={0: "3"}, guess=False) == (None, None)


def by_map(text: str, rank: int | None, *, guess: bool = True) -> tuple[str | None, str | None]:
    traced = Traced(devices=[said(0, H100)], used=[0], rank=rank)
    found = map_device(0, traced, EIGHT, device_map_of(text, "--device-map"), guess=guess)
    return found.gpu.gpu if found.gpu else found.why_not, found.rule


def test_a_map_may_say_which_rank_it_is_of() -> None:
    text = "0=GPU-7, 1:0=GPU-3 ,2:0 = 0000:12:00.0,10:1=4"
    assert by_map(text, 1) == ("3", "device_map")
    assert by_map(text, 2) == ("2", "device_map")
    assert by_map(text, 0) == ("7", "device_map")
    assert by_map(text, None) == ("7", "device_map")


def test_where_a_gpu_was_given_twice_only_what_names_its_rank_stands() -> None:
    assert by_map("1:0=GPU-3", 1, guess=False) == ("3", "device_map")
    words, rule = by_map("0=GPU-3", 1, guess=False)
    assert rule is None
    assert words == "another trace of the same time was given the same GPU, so neither is used"


def test_a_gpu_of_the_map_that_is_not_sampled_is_named() -> None:
    assert by_map("0=GPU-9", 0) == ("no sampled GPU is called GPU-9", None)


def test_the_user_may_say_that_numbers_are_in_pci_order() -> None:
    # The labels run against the bus.
    turned = [gpu(0, pci_bus_id="0000:65:00.0"), gpu(1, pci_bus_id="0000:17:00.0")]
    pci = device_map_of("pci", "--device-map")

    def label(device: int, numbers: DeviceNumbers, gpus: list[GpuInfo]) -> str | None:
        found = map_device(device, Traced(used=[device], numbers=numbers), gpus, pci)
        return found.gpu.gpu if found.gpu else None

    assert label(0, DeviceNumbers.PROPERTIES, turned) == "1"
    assert label(1, DeviceNumbers.PROPERTIES, turned) == "0"
    assert label(2, DeviceNumbers.PROPERTIES, turned) is None
    assert label(0, DeviceNumbers.HSA_NODES, turned) is None
    assert label(0, DeviceNumbers.PROPERTIES, [turned[0], gpu(1, pci_bus_id=None)]) is None


@pytest.mark.parametrize("text", ["", "0", "x=1", "0=", "1:=2", "-1=2", "0=1,,", "a:0=1"])
def test_what_is_no_map_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--device-map: '.*' is not "):
        device_map_of(text, "--device-map")


@settings(max_examples=25, deadline=None)
@given(device=st.integers(0, 7), count=st.integers(2, 8), names=st.sampled_from([None, H100]))
def test_equal_gpus_are_never_told_apart_by_equal_numbers(
    device: int, count: int, names: str | None
) -> None:
    traced = [said(number, names) for number in range(count)]
    assert mapped(device, traced, EIGHT[:count]) == (None, None)


def part(number: int, name: str = f"{A4000} MIG 1g.5gb") -> GpuInfo:
    card = gpu(0, name, uuid=f"MIG-{number}", pci_bus_id=None)
    return replace(card, gpu=f"0.{number}", parent="0")


def test_a_part_of_a_card_is_told_by_its_uuid_with_or_without_its_prefix() -> None:
    gpus = [gpu(0), part(1), part(2), gpu(3)]
    assert mapped(0, [said(0, uuid="MIG-2")], gpus) == ("0.2", "chopperd_devices")
    assert mapped(0, [said(0, uuid="2")], gpus) == ("0.2", "chopperd_devices")
    assert mapped(0, [], gpus, device_map={0: "0.1"}) == ("0.1", "device_map")


def test_what_runs_on_a_card_in_parts_runs_on_a_part() -> None:
    assert mapped(0, [], [gpu(0), part(1)]) == ("0.1", "only_one")
    assert mapped(0, [], [gpu(0), part(1), part(2)]) == (None, None)
    # The card's name occurs once, and yet it is not the card.
    assert mapped(0, [said(0, H100)], [gpu(0), part(1), part(2)]) == (None, None)

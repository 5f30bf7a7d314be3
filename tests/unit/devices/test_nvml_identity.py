import pytest

from chopperd.devices.nvml.identity import shares_system_memory


@pytest.mark.parametrize("name", ["NVIDIA GB10", "GB10", "Orin (nvgpu)", "NVIDIA Thor", "Xavier"])
def test_gpus_on_one_chip_with_the_processor_share_its_memory(name: str) -> None:
    assert shares_system_memory(name)


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA A10",
        "NVIDIA GB100",
        "NVIDIA GB200",
        "NVIDIA GH200 480GB",
        "NVIDIA H100 80GB HBM3",
        "NVIDIA Thorn",
        "",
    ],
)
def test_gpus_with_memory_of_their_own_do_not(name: str) -> None:
    assert not shares_system_memory(name)

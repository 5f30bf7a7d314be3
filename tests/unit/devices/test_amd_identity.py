"""What a process sees of a node's GPUs, by hand from ROCm's rules."""

import pytest

from chopperd.devices.amd.identity import KfdNode, pci_bus_id, uuid_of, visible_nodes

NODES = tuple(
    KfdNode(node=2 + n, pci_bus_id=pci_bus_id(0, 0x10 + n, 0, 0), unique_id=0xA0 + n)
    for n in range(4)
)


@pytest.mark.parametrize(
    ("environ", "seen"),
    [
        ({}, [2, 3, 4, 5]),
        ({"ROCR_VISIBLE_DEVICES": "3,1"}, [5, 3]),
        ({"ROCR_VISIBLE_DEVICES": "GPU-00000000000000a2"}, [4]),
        ({"ROCR_VISIBLE_DEVICES": "GPU-00000000000000a2, 0"}, [4, 2]),
        ({"ROCR_VISIBLE_DEVICES": "1,9,2"}, [3]),
        ({"ROCR_VISIBLE_DEVICES": "1,1"}, [3]),
        ({"ROCR_VISIBLE_DEVICES": ""}, []),
        ({"HIP_VISIBLE_DEVICES": "2"}, [4]),
        ({"CUDA_VISIBLE_DEVICES": "2,0"}, [4, 2]),
        ({"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "2"}, [3]),
        ({"HIP_VISIBLE_DEVICES": "", "CUDA_VISIBLE_DEVICES": ""}, [2, 3, 4, 5]),
        ({"ROCR_VISIBLE_DEVICES": "3,1", "HIP_VISIBLE_DEVICES": "1"}, [3]),
        ({"HIP_VISIBLE_DEVICES": "-1"}, []),
    ],
)
def test_variables_choose_one_after_the_other(environ: dict[str, str], seen: list[int]) -> None:
    assert [node.node for node in visible_nodes(NODES, environ)] == seen


def test_names_are_those_of_hip_and_the_kernel() -> None:
    assert uuid_of(0x1A2B) == "GPU-0000000000001a2b"
    assert uuid_of(0x1A2B, 3) == "GPU-0000000000001a2b.3"
    assert uuid_of(0) == uuid_of(None, 1) == ""
    assert pci_bus_id(1, 0xC1, 0, 2) == "0001:c1:00.2"

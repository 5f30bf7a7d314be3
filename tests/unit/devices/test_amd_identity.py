"""Names of AMD GPUs, by hand from the rules of HIP and the kernel."""

from chopperd.devices.amd.identity import pci_bus_id, uuid_of


def test_names_are_those_of_hip_and_the_kernel() -> None:
    assert uuid_of(0x1A2B) == "GPU-0000000000001a2b"
    assert uuid_of(0x1A2B, 3) == "GPU-0000000000001a2b.3"
    assert uuid_of(0) == uuid_of(None, 1) == ""
    assert pci_bus_id(1, 0xC1, 0, 2) == "0001:c1:00.2"

"""KFD's list of nodes, read from files as the kernel writes them."""

from pathlib import Path

from chopperd.devices.amd.identity import TOPOLOGY, KfdNode, kfd_nodes

UNIQUE_ID = 0x1234567890ABCDEF


def write_node(sysfs: Path, number: int, **properties: int) -> None:
    folder = sysfs / TOPOLOGY / str(number)
    folder.mkdir(parents=True)
    lines = {"cpu_cores_count": 0, "simd_count": 0, **properties}
    text = "".join(f"{name} {value}\n" for name, value in lines.items())
    (folder / "properties").write_text(text)


def write_gpu(sysfs: Path, number: int, location: int, unique_id: int = UNIQUE_ID) -> None:
    write_node(
        sysfs,
        number,
        simd_count=1216,
        location_id=location,
        domain=0,
        drm_render_minor=128 + number,
        unique_id=unique_id,
    )


def test_gpus_have_the_numbers_that_count_the_cpus(tmp_path: Path) -> None:
    write_node(tmp_path, 0, cpu_cores_count=96)
    write_node(tmp_path, 1, cpu_cores_count=96)
    write_gpu(tmp_path, 2, 0xC100)
    write_gpu(tmp_path, 3, 0xE528, unique_id=7)
    first = KfdNode(node=2, pci_bus_id="0000:c1:00.0", unique_id=UNIQUE_ID, kernel_node=2)
    second = KfdNode(node=3, pci_bus_id="0000:e5:05.0", unique_id=7, kernel_node=3)
    assert kfd_nodes(tmp_path) == (first, second)


def test_nodes_are_in_order_of_their_numbers(tmp_path: Path) -> None:
    for number in range(11):
        write_gpu(tmp_path, number, 0x100 * number, unique_id=number + 1)
    assert [node.unique_id for node in kfd_nodes(tmp_path)] == list(range(1, 12))


def test_partitions_of_a_card_are_numbered_by_either_release(tmp_path: Path) -> None:
    for release, locations in {"new": (0xC100, 0x1000C100), "old": (0xC100, 0xC101)}.items():
        for number, location in enumerate(locations):
            write_gpu(tmp_path / release, number, location)
        nodes = kfd_nodes(tmp_path / release)
        assert [node.partition for node in nodes] == [0, 1]
        assert {node.pci_bus_id for node in nodes} == {"0000:c1:00.0"}


def test_a_function_of_its_own_is_no_partition(tmp_path: Path) -> None:
    write_gpu(tmp_path, 1, 0xC101)
    (node,) = kfd_nodes(tmp_path)
    assert (node.pci_bus_id, node.partition) == ("0000:c1:00.1", 0)


def test_nodes_that_may_not_be_read_are_not_counted_as_hsa_does_not_count_them(
    tmp_path: Path,
) -> None:
    write_node(tmp_path, 0, cpu_cores_count=96)
    for number in (1, 2, 3, 4):
        write_gpu(tmp_path, number, 0xC000 + 0x100 * number)
    (tmp_path / TOPOLOGY / "1" / "properties").unlink()
    (tmp_path / TOPOLOGY / "3" / "properties").write_text("")
    assert [(node.node, node.kernel_node) for node in kfd_nodes(tmp_path)] == [(1, 2), (2, 4)]
    assert kfd_nodes(tmp_path / "nowhere") == ()

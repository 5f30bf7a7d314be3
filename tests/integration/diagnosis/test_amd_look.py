"""What the doctor sees of AMD's: on fake trees, and with AMD SMI's binding over a fake library."""

import errno
import os
from pathlib import Path

import pytest

from chopperd.cli.doctor import amd_asked
from chopperd.diagnosis.facts import AmdCard, AmdSmi, CardMetrics
from chopperd.diagnosis.machine import amd_of
from chopperd.diagnosis.probe import look_lines, look_of
from tests.fakes.amd.cards import mi210, mi300x
from tests.fakes.amd.smi.fixtures import MakeFakeAmdSmi
from tests.fakes.amd.sysfs.fixtures import MakeSysfs
from tests.fakes.amd.sysfs.tree import SysfsTree

BDF = "0000:0c:00.0"


@pytest.fixture
def machine(tmp_path: Path) -> SysfsTree:
    """A tree from its root, `tmp_path`, on, with one MI300X."""
    kernel = tmp_path / "proc/sys/kernel/osrelease"
    kernel.parent.mkdir(parents=True)
    kernel.write_text("6.8.0-60-generic\n")
    return SysfsTree(tmp_path / "sys")


def test_module_and_cards_are_told_by_the_file_tree(machine: SysfsTree, tmp_path: Path) -> None:
    machine.add(mi300x(), compute="CPX", memory="NPS4", partitions=8)
    machine.add(mi210())
    amd = amd_of(tmp_path)
    assert (amd.is_loaded, amd.module_version, amd.kernel) == (True, "6.12.12", "6.8.0-60-generic")
    modes = [(card.compute_mode, card.memory_mode, card.parts_count) for card in amd.cards]
    assert modes == [("SPX", "NPS1", 1), ("CPX", "NPS4", 8), (None, None, 1)]
    assert not any(card.is_virtual for card in amd.cards)
    assert not amd.was_asked


def test_a_machine_without_the_module_has_nothing(tmp_path: Path) -> None:
    amd = amd_of(tmp_path)
    assert (amd.is_loaded, amd.cards, amd.kernel) == (False, (), None)


def test_a_virtual_function_is_known_by_product_or_by_its_physical_one(
    machine: SysfsTree, tmp_path: Path
) -> None:
    folder = machine.gpus[0].folder
    (folder / "physfn").symlink_to(tmp_path)
    assert amd_of(tmp_path).cards == (
        AmdCard(pci_bus_id=BDF, compute_mode="SPX", memory_mode="NPS1", is_virtual=True),
    )
    (folder / "physfn").unlink()
    (folder / "device").write_text("0x74b5\n")
    assert amd_of(tmp_path).cards[0].is_virtual


@pytest.mark.usefixtures("fake_amdsmi")
def test_each_card_s_block_is_named_or_why_it_can_t_be_used(make_sysfs: MakeSysfs) -> None:
    tree = make_sysfs((mi300x(), mi300x(), mi300x(), mi210()))
    well, refused, unknown, old = tree.gpus
    refused.fails("gpu_metrics", errno.ENOENT)
    header = (unknown.folder / "gpu_metrics").read_bytes()
    (unknown.folder / "gpu_metrics").write_bytes(header[:2] + b"\x07\x07" + header[4:])
    lines = look_of(b"\n".join(look_lines(tree.root)))
    found = {line.pci_bus_id: line for line in lines if isinstance(line, CardMetrics)}
    assert found[well.card.bdf].version == "v1.8"
    assert found[old.card.bdf].version == "v1.3"
    assert found[refused.card.bdf].error == "gpu_metrics: No such file or directory"
    assert found[unknown.card.bdf].error == (
        "gpu_metrics v7.7 is not known to this version of chopperd"
    )


def test_amd_smi_is_named_by_a_process_of_its_own(
    make_fake_amdsmi: MakeFakeAmdSmi, machine: SysfsTree, tmp_path: Path
) -> None:
    fake = make_fake_amdsmi()
    amd = amd_asked(amd_of(tmp_path), machine.root)
    assert amd.was_asked
    assert amd.metrics == (CardMetrics(pci_bus_id=BDF, version="v1.8"),)
    assert amd.smi is not None
    assert amd.smi.binding == fake.binding.version
    assert amd.smi.folder is not None
    assert Path(amd.smi.folder).samefile(fake.binding.folder / "amdsmi")
    assert amd.smi.library is not None
    assert Path(amd.smi.library).samefile(fake.library)
    assert amd.smi.fits is None  # no version in the file's name
    assert fake.node.gpus[0].calls_of("amdsmi_get_gpu_metrics_info") == 0


@pytest.mark.parametrize(("numbers", "fits"), [("26.0", True), ("25.3", False)])
def test_a_library_s_own_name_says_whether_the_binding_is_its(
    numbers: str, fits: bool, make_fake_amdsmi: MakeFakeAmdSmi, tmp_path: Path
) -> None:
    """The binding of ROCm 7.0 was made for libraries 26.0; 25.3 came with 6.4."""
    fake = make_fake_amdsmi()
    if not fake.binding.version.startswith("7.0."):
        pytest.skip("another binding is installed")
    named = fake.rocm / f"lib/libamd_smi.so.{numbers}"
    named.write_bytes(fake.library.read_bytes())
    fake.loses_library()
    (fake.rocm / "lib/libamd_smi.so").symlink_to(named)
    amd = amd_asked(amd_of(tmp_path), tmp_path / "sys")
    assert amd.smi is not None
    assert amd.smi.fits is fits


def test_a_binding_without_a_library_says_so_in_its_own_words(
    make_fake_amdsmi: MakeFakeAmdSmi, tmp_path: Path
) -> None:
    fake = make_fake_amdsmi()
    fake.loses_library()
    amd = amd_asked(amd_of(tmp_path), tmp_path / "sys")
    assert amd.smi is not None
    assert amd.smi.binding is None
    assert "does not load" in (amd.smi.error or "")


def test_a_card_that_hangs_is_waited_for_no_longer_and_leaves_what_was_said(
    machine: SysfsTree, tmp_path: Path
) -> None:
    """Opening a pipe that nobody writes to does not return, as a read of a dead card's file."""
    block = machine.add(mi210()).folder / "gpu_metrics"
    block.unlink()
    os.mkfifo(block)
    amd = amd_asked(amd_of(tmp_path), machine.root, limit_s=6.0)
    assert amd.smi is None
    assert amd.was_asked
    assert {each.pci_bus_id for each in amd.metrics} <= {BDF}


def test_what_a_process_said_before_it_ended_is_kept() -> None:
    whole = b'{"type":"metrics","pci_bus_id":"0000:0c:00.0","version":"v1.8","error":null}\n'
    card = CardMetrics(pci_bus_id=BDF, version="v1.8")
    assert look_of(whole) == (card,)
    assert look_of(whole + b'{"type":"amd_s') == (card,)
    assert look_of(b"") == ()
    assert look_of(b'{"type":"amd_smi","binding":"7.0.2"}') == (AmdSmi(binding="7.0.2"),)

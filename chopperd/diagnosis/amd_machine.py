"""Facts of AMD's driver, read from its file tree; no file of it that asks a GPU is opened."""

from pathlib import Path
from typing import Final

from chopperd.devices.amdgpu.cards import Card, cards
from chopperd.devices.amdgpu.files import text_in
from chopperd.diagnosis.amd_facts import Amd, AmdCard

_ROOT: Final = Path("/")
#: Virtual functions of MI210, MI300X, MI308X, MI325X, MI350X and MI355X.
#: Source: the rule `amd-vgpu` of AMD's GPU operator.
_VIRTUAL_DEVICES: Final = frozenset(
    {0x7410, 0x74B5, 0x74B6, 0x74B9, 0x74BC, 0x74BD, 0x75B0, 0x75B3}
)


def amd_of(root: Path = _ROOT) -> Amd:
    """What the file tree says of AMD's GPUs.

    Args:
        root: Where the tree begins.
    """
    module = root / "sys/module/amdgpu"
    return Amd(
        is_loaded=module.is_dir(),
        module_version=text_in(module / "version"),
        kernel=text_in(root / "proc/sys/kernel/osrelease"),
        cards=tuple(_card(each) for each in cards(root / "sys")),
    )


def _card(found: Card) -> AmdCard:
    return AmdCard(
        pci_bus_id=found.pci_bus_id,
        compute_mode=text_in(found.folder / "current_compute_partition"),
        memory_mode=text_in(found.folder / "current_memory_partition"),
        parts_count=max(len(found.nodes), 1),
        is_virtual=found.device_id in _VIRTUAL_DEVICES or (found.folder / "physfn").exists(),
    )

"""Which GPUs and partitions are there, by the library and by the kernel."""

from dataclasses import dataclass
from pathlib import Path

from chopperd.devices.amd.identity import kfd_nodes
from chopperd.devices.amd.kernel.cards import cards as kernel_cards
from chopperd.devices.amd.smi.library import Library
from chopperd.devices.amd.smi.processors import handles


@dataclass(frozen=True, slots=True, kw_only=True)
class Presence:
    """What is there at one time.

    Attributes:
        processors_count: What the library lists.
        names: PCI addresses of the kernel's cards, and of its compute nodes with their partition.
    """

    processors_count: int
    names: frozenset[str]

    def difference(self, now: "Presence") -> str | None:
        """What came or went, for people; None if nothing did."""
        parts = [f"{name} is gone" for name in sorted(self.names - now.names)]
        parts += [f"{name} has come" for name in sorted(now.names - self.names)]
        if self.processors_count != now.processors_count:
            parts.append(
                f"AMD SMI lists {now.processors_count} processors, "
                f"not {self.processors_count} as before"
            )
        return "; ".join(parts) or None


def present(library: Library, sysfs: Path) -> Presence:
    """What is there now.

    Raises:
        SmiError: The library does not list its processors.
    """
    names = {card.pci_bus_id for card in kernel_cards(sysfs)}
    names |= {f"{node.pci_bus_id} partition {node.partition}" for node in kfd_nodes(sysfs)}
    return Presence(processors_count=len(handles(library)), names=frozenset(names))

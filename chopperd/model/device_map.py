"""Which GPU each device of a trace is, as a user says; light, as the configuration reads it."""

import re
from dataclasses import dataclass
from typing import Final

from chopperd.errors import ConfigError

_PCI_ORDER: Final = "pci"
_ENTRY: Final = re.compile(r"(?:(\d{1,9}):)?(\d{1,9})\s*=\s*(\S.*)", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMap:
    """Which GPU each trace device is, as a user says.

    Attributes:
        entries: Rank (None: of any), device number, and the GPU's label, UUID or PCI bus id.
        pci_order: Whether devices are numbered in the order of PCI bus ids.
    """

    entries: tuple[tuple[int | None, int, str], ...] = ()
    pci_order: bool = False

    def named(self, rank: int | None, device: int, *, any_rank: bool) -> str | None:
        """What is said of a device; what is said of its rank goes before what is said of any.

        Args:
            rank: The trace's; None if unknown.
            device: Its number in the trace.
            any_rank: Whether what is said of no rank counts.
        """
        said = {(of, number): gpu for of, number, gpu in self.entries}
        own = said.get((rank, device)) if rank is not None else None
        return own or (said.get((None, device)) if any_rank else None)


def device_map_of(text: str, name: str) -> DeviceMap:
    """`0=GPU-uuid,3:0=GPU-uuid` or `pci` as a map.

    Args:
        text: As a user wrote it.
        name: What it is called where it was written.

    Raises:
        ConfigError: Which parts are none.
    """
    parts = [part.strip() for part in text.split(",")]
    named = [part for part in parts if part != _PCI_ORDER]
    found = [_ENTRY.fullmatch(part) for part in named]
    wrong = [part for part, match in zip(named, found, strict=True) if match is None]
    if wrong:
        raise ConfigError([f"{name}: {part!r} is not [RANK:]DEVICE=GPU or pci" for part in wrong])
    entries = tuple(
        (None if match[1] is None else int(match[1]), int(match[2]), match[3])
        for match in found
        if match is not None
    )
    return DeviceMap(entries=entries, pci_order=_PCI_ORDER in parts)

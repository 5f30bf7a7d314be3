"""The identity of a trace's run, and the user's map from trace devices to GPUs."""

import re
from typing import Final

from msgspec import Struct

from chopperd.errors import ConfigError


class ProcessGroup(Struct, frozen=True, kw_only=True):
    """A process group that a rank belongs to, as torch lists it in `distributedInfo.pg_config`."""

    name: str  # `pg_name`: a count that all ranks of a job agree on, or a hash of the ranks
    size: int  # the number of its ranks
    first: int  # its lowest rank
    stride: int | None  # from each rank to the next; None where they are not evenly spaced
    digest: int  # CRC-32 of all its ranks

    def holds(self, rank: int) -> bool:
        """Whether a rank is certainly in the group: not where the ranks are unevenly spaced."""
        if self.stride is None:
            return False
        nth, rest = divmod(rank - self.first, self.stride)
        return rest == 0 and 0 <= nth < self.size


class RunIdentity(Struct, frozen=True, kw_only=True):
    """What identifies the run of a trace; `correlate.identity.runs` compares it with others."""

    # As in `TraceMeta`.
    run: str | None = None
    rank: int | None = None
    world_size: int | None = None
    backend: str | None = None
    groups: tuple[ProcessGroup, ...] | None = None
    trace_id: str | None = None
    host_name: str | None = None
    # First and last device record, else of its steps; None without an anchor
    begin_unix_ns: int | None = None
    end_unix_ns: int | None = None
    # (number, start in Unix ns) of some steps that the job numbers itself, in order, and the end of
    # the last one as a further start; empty where there are none
    steps: tuple[tuple[int, int], ...] = ()


_PCI_ORDER: Final = "pci"
_ENTRY: Final = re.compile(r"(?:(\d{1,9}):)?(\d{1,9})\s*=\s*(\S.*)", re.ASCII)


class DeviceMap(Struct, frozen=True, kw_only=True):
    """The user's map from trace devices to GPUs."""

    # Rank (None: of any), device number, and the GPU's label, UUID or PCI bus id
    entries: tuple[tuple[int | None, int, str], ...] = ()
    pci_order: bool = False  # whether devices are numbered in the order of PCI bus ids

    def named(self, rank: int | None, device: int, *, any_rank: bool) -> str | None:
        """Return the GPU that the map gives to a trace device of a rank; None if it names none.

        An entry for the rank precedes one for any rank, which counts only with `any_rank`.
        """
        gpus = {(of, number): gpu for of, number, gpu in self.entries}
        own = gpus.get((rank, device)) if rank is not None else None
        return own or (gpus.get((None, device)) if any_rank else None)


def device_map_of(text: str, name: str) -> DeviceMap:
    """Parse a device map from `0=GPU-uuid,3:0=GPU-uuid` or `pci`; `name` is that of the setting.

    Raises: ConfigError: Parts of the text are not valid; the message lists them.
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

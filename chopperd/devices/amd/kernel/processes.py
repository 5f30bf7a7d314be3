"""Who has memory on an AMD GPU, by the files of the kernel's compute driver."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from chopperd.devices.amd.identity import KfdNode
from chopperd.devices.amd.kernel.files import number_in
from chopperd.model.devices import GpuProcess

#: A folder for each process, by its number in the initial pid namespace.
_PROCESSES: Final = Path("class/kfd/kfd/proc")


def processes(sysfs: Path, nodes: Sequence[KfdNode]) -> tuple[GpuProcess, ...] | None:
    """The processes with memory on a GPU, by number; None where the driver does not say.

    Args:
        sysfs: The root of sysfs.
        nodes: The GPU, or all its partitions.
    """
    names = {f"vram_{node.gpu_id}" for node in nodes if node.gpu_id is not None}
    if not names:
        return None
    try:
        folders = [each for each in (sysfs / _PROCESSES).iterdir() if each.name.isdecimal()]
    except OSError:
        return None
    used_bytes: dict[int, int] = defaultdict(int)
    for folder in folders:
        for name in names:
            used_bytes[int(folder.name)] += number_in(folder / name) or 0
    return tuple(
        GpuProcess(pid=pid, memory_used_bytes=used_bytes[pid])
        for pid in sorted(used_bytes)
        if used_bytes[pid]
    )

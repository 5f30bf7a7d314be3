"""The system's memory, for GPUs that have none of their own; no driver call."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from chopperd.units import BYTES_PER_KIB

_MEMINFO: Final = Path("/proc/meminfo")

# NVML has no flag for it, CUDA's `integrated` needs a context, and the addressing mode doesn't
# tell: a Grace Hopper shares page tables, not memory. DGX Spark, then the Jetson series.
_SHARES_MEMORY: Final = re.compile(r"\b(GB10|Xavier|Orin|Thor)\b")


def shares_system_memory(name: str) -> bool:
    """Whether a GPU of this name has no memory of its own.

    Source: nvml.h on nvmlDeviceGetMemoryInfo: NOT_SUPPORTED on SoCs whose GPU shares memory with
    the system. A GPU that has its own may fail with the same code, hence by name.
    """
    return _SHARES_MEMORY.search(name) is not None


@dataclass(frozen=True, slots=True)
class SystemMemory:
    """The system's memory as the kernel tells it.

    Attributes:
        path: A file of the layout of /proc/meminfo.
    """

    path: Path = _MEMINFO

    def total_bytes(self) -> int | None:
        """All of it; None if the file doesn't say."""
        return self._bytes_by_name().get("MemTotal")

    def used_bytes(self) -> int | None:
        """What a new program could not get: total less available; None if the file doesn't say.

        Free memory is no measure: the kernel's caches fill all that nobody else uses.
        """
        bytes_by_name = self._bytes_by_name()
        total, available = bytes_by_name.get("MemTotal"), bytes_by_name.get("MemAvailable")
        return None if total is None or available is None else total - available

    def _bytes_by_name(self) -> dict[str, int]:
        try:
            text = self.path.read_text(encoding="ascii", errors="replace")
        except OSError:
            return {}
        entries = re.findall(r"^(\w+):\s*(\d+) kB$", text, re.MULTILINE)
        return {name: int(size) * BYTES_PER_KIB for name, size in entries}


#: That of this machine.
SYSTEM_MEMORY: Final = SystemMemory()

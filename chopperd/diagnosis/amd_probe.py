"""Probe AMD's metrics files and library in a separate process, as they may hang or end it.

Reading a block of metrics asks the GPU's firmware; importing AMD's binding loads its library. The
process writes one line of JSON for each card, then one for the binding.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from chopperd.devices.amd.kernel.cards import FileSource, cards
from chopperd.devices.amd.kernel.layouts import UnknownMetricsError
from chopperd.devices.amd.smi.binding import Binding, fits, import_binding
from chopperd.diagnosis.facts import AmdSmi, CardMetrics
from chopperd.errors import BackendUnavailableError

Line: TypeAlias = CardMetrics | AmdSmi

_SYSFS: Final = Path("/sys")
_MAPS: Final = Path("/proc/self/maps")
_FILE_NAME: Final = "libamd_smi.so"
_LIBRARY_VERSION: Final = re.compile(r"\.so\.(\d+)\.(\d+)")


def look_lines(sysfs: Path = _SYSFS) -> Iterator[bytes]:
    """Probe the cards and AMD SMI and yield the output lines; `sysfs` is the root of sysfs."""
    for card in cards(sysfs):
        yield msgspec.json.encode(_metrics(card.pci_bus_id, card.metrics))
    yield msgspec.json.encode(amd_smi())


def amd_smi() -> AmdSmi:
    """Load AMD SMI, calling none of its functions; return its files and versions, or the error."""
    try:
        binding = import_binding()
    except BackendUnavailableError as error:
        return AmdSmi(error=str(error))
    library = _library_file(binding)
    found = _LIBRARY_VERSION.search(Path(library).name)
    numbers = (int(found[1]), int(found[2])) if found else None
    return AmdSmi(
        binding=binding.version,
        folder=str(binding.folder),
        library=library,
        fits=None if numbers is None else fits(binding.version, numbers),
    )


def look_of(output: bytes) -> tuple[Line, ...]:
    """Parse the probe's output lines, without one that the process could not finish."""
    return tuple(line for line in map(_decoded, output.split(b"\n")) if line is not None)


def _metrics(pci_bus_id: str, path: Path) -> CardMetrics:
    try:
        source = FileSource(path)
    except OSError as error:
        reason = error.strerror or str(error)
        return CardMetrics(pci_bus_id=pci_bus_id, error=f"gpu_metrics: {reason}")
    except UnknownMetricsError as error:
        return CardMetrics(pci_bus_id=pci_bus_id, error=str(error))
    source.close()
    version = source.layout.version.removeprefix("gpu_metrics ")
    return CardMetrics(pci_bus_id=pci_bus_id, version=version)


def _library_file(binding: Binding) -> str:
    """Return the loaded file, whose name has its version; else the path that the binding names."""
    mapped = (line.rpartition(" ")[2] for line in _MAPS.read_text().splitlines())
    return next((path for path in mapped if _FILE_NAME in path), binding.library_path)


def _decoded(line: bytes) -> Line | None:
    try:
        found: Line = msgspec.json.decode(line, type=Line)
    except msgspec.MsgspecError:
        return None
    return found

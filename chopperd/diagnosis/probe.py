"""Probe the GPUs in separate processes, since a driver call may never return.

One process writes two lines of JSON: the loaded driver library, then the GPUs as they were read.
The other writes one line for each AMD card, then one for AMD's binding: reading a block of metrics
asks the GPU's firmware, and importing the binding loads its library. A missing line shows that the
process ended or hung before it.
"""

import ctypes
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace

from chopperd.devices.amd.kernel.cards import FileSource, cards
from chopperd.devices.amd.kernel.layouts import UnknownMetricsError
from chopperd.devices.amd.smi.binding import fits, import_binding
from chopperd.devices.base import DeviceBackend, ListsProcesses, ProbesFields
from chopperd.devices.faults import CallsHangError, TimedCalls, Timeouts
from chopperd.devices.registry import choose
from chopperd.diagnosis.facts import AmdSmi, CardMetrics, DriverProbe, Library
from chopperd.diagnosis.machine import Machine
from chopperd.errors import BackendUnavailableError, ChopperdError, ConfigError, DeviceError
from chopperd.model.devices import GpuInfo, GpuProcess, Inventory, InventoryEntry, ReadScope

_BUFFERED: Final = ("power_w", "sm_clock_mhz")
#: Timeout of the first GPU that hangs, and of all later ones together: with the start of the back
#: end they must fit into the time limit of the process (20 s, or 60 s with probes).
_READ_S: Final = 2.0
_LATER_READS_S: Final = 6.0
_PROBE_S: Final = 10.0
_LATER_PROBES_S: Final = 32.0


def survey(
    backend: DeviceBackend, *, calls_count: int = 0, calls: TimedCalls | None = None
) -> Inventory:
    """Read each GPU of a back end once; one that fails or hangs does not hide the others.

    Each call is made `calls_count` times to measure its time and result (0: not at all). Wait for
    `calls`, which makes them, before the back end is closed.

    Raises:
        BackendUnavailableError: There is no GPU.
    """
    infos = backend.devices()
    if not infos:
        raise BackendUnavailableError(f"{backend.name}: the driver reports no GPU")
    reader = _SurveyReader(backend, calls or TimedCalls("its calls"), calls_count, len(infos))
    entries = tuple(reader.entry(info) for info in infos)
    return Inventory(
        backend=backend.name, driver=backend.driver, simulated=backend.simulated, gpus=entries
    )


class _SurveyReader:
    """Reads the GPUs of a back end one by one, each with a timeout."""

    def __init__(
        self, backend: DeviceBackend, calls: TimedCalls, calls_count: int, gpus_count: int
    ) -> None:
        self._backend = backend
        self._calls = calls
        self._calls_count = calls_count
        self._read_patience = Timeouts(first_s=_READ_S, later_s=_LATER_READS_S / gpus_count)
        self._probe_patience = Timeouts(first_s=_PROBE_S, later_s=_LATER_PROBES_S / gpus_count)
        self._hung_indices: set[int] = set()

    def entry(self, info: GpuInfo) -> InventoryEntry:
        """Read a GPU; return it with its values or the error."""
        if info.index in self._hung_indices:  # a part of a card that hangs
            return InventoryEntry(info=info, error="not read: the calls on its card do not return")
        read = partial(self._backend.read, info, ReadScope.FULL)
        try:
            entry = InventoryEntry(info=info, reading=self._calls.answer(read, self._read_patience))
        except (DeviceError, CallsHangError) as error:
            return InventoryEntry(info=info, error=self._noted(info, error))
        entry = replace(entry, processes=self._processes(info))
        if not self._calls_count or not isinstance(self._backend, ProbesFields):
            return entry
        probe = partial(_probed, self._backend, entry, self._calls_count)
        try:
            return self._calls.answer(probe, self._probe_patience)
        except (DeviceError, CallsHangError) as error:  # the values read before remain
            return replace(entry, error=self._noted(info, error))

    def _processes(self, info: GpuInfo) -> tuple[GpuProcess, ...] | None:
        """Return the processes on a GPU; None if the driver does not report them."""
        if not isinstance(self._backend, ListsProcesses):
            return None
        try:
            return self._calls.answer(partial(self._backend.processes, info), self._read_patience)
        except (DeviceError, CallsHangError):
            return None

    def _noted(self, info: GpuInfo, error: Exception) -> str:
        if isinstance(error, CallsHangError):
            self._hung_indices.add(info.index)
        return str(error)


def _probed(backend: ProbesFields, entry: InventoryEntry, calls_count: int) -> InventoryEntry:
    probes = backend.probe(entry.info, calls_count)
    periods_ns = {name: backend.buffered_period_ns(entry.info, name) for name in _BUFFERED}
    known_ns = {name: period_ns for name, period_ns in periods_ns.items() if period_ns is not None}
    return replace(entry, probes=probes, buffered_period_ns=known_ns)


T = TypeVar("T")

LIBRARY_NAME: Final = "libnvidia-ml.so.1"
_MAPS: Final = Path("/proc/self/maps")
_LINES_COUNT: Final = 2
_FILE_NAME: Final = "libnvidia-ml.so"


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Second line of the output: the GPUs, or why there are none, with the exit code."""

    inventory: Inventory | None = None
    error: str | None = None
    exit_code: int = 0


def probe_lines(backend: str, calls_count: int) -> Iterator[bytes]:
    """Probe the GPUs and yield the output lines; `calls_count` as for `survey`."""
    yield msgspec.json.encode(loaded_library(LIBRARY_NAME))
    calls = TimedCalls("its calls")
    try:
        choice = choose(backend)
        with closing(choice.backend) as opened, ExitStack() as stack:
            stack.callback(calls.wait)
            found = survey(opened, calls_count=calls_count, calls=calls)
            pids = {one.pid for gpu in found.gpus for one in gpu.processes or ()}
            is_listed = any(gpu.processes is not None for gpu in found.gpus)
            view = Machine().process_view(pids if is_listed else None)
            found = replace(found, chosen=choice.reason, processes=view)
            # Before the stack ends, which waits for hanging calls.
            yield msgspec.json.encode(Outcome(inventory=found))
    except ChopperdError as error:
        yield msgspec.json.encode(Outcome(error=str(error), exit_code=error.exit_code))


def loaded_library(name: str, maps: Path = _MAPS) -> Library:
    """Load a library into this process without calling any function; return its file or error."""
    try:
        ctypes.CDLL(name)
    except OSError as error:
        return Library(name=name, error=str(error))
    return Library(name=name, path=_mapped(_FILE_NAME, maps) or name)


def _mapped(file_name: str, maps: Path = _MAPS) -> str | None:
    """Return the file of a loaded library; its name has the version."""
    paths = (line.rpartition(" ")[2] for line in maps.read_text().splitlines())
    return next((path for path in paths if file_name in path), None)


def is_whole(output: bytes) -> bool:
    """Whether the output of a probe has all lines, although the process may still run."""
    return output.count(b"\n") >= _LINES_COUNT


def probe_of(backend: str, output: bytes) -> DriverProbe:
    """Parse a probe's output, also if the process ended before the last line."""
    library, outcome = _parsed(output)
    outcome = outcome or Outcome()
    return DriverProbe(
        backend=backend, library=library, inventory=outcome.inventory, error=outcome.error
    )


def inventory_of(output: bytes) -> Inventory:
    """Parse the GPUs in a probe's output.

    Raises:
        ConfigError: No back end has the requested name.
        BackendUnavailableError: The output has no GPUs; says why.
    """
    _, outcome = _parsed(output)
    if outcome is not None and outcome.inventory is not None:
        return outcome.inventory
    if outcome is None or outcome.error is None:
        raise BackendUnavailableError("the process that reads the GPUs ended without an answer")
    if outcome.exit_code == ConfigError.exit_code:
        raise ConfigError([outcome.error])
    raise BackendUnavailableError(outcome.error)


def _parsed(output: bytes) -> tuple[Library | None, Outcome | None]:
    lines = output.split(b"\n")
    library = _decoded(lines[0], Library)
    return library, _decoded(lines[1], Outcome) if len(lines) > 1 else None


def _decoded(line: bytes, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(line, type=kind)
    except msgspec.MsgspecError:
        return None


_PROC: Final = Path("/proc")
#: `_probe`, and `_probe_amd`.
_ARGUMENTS: Final = b"\0-m\0chopperd\0_probe"
#: Index of `starttime`, in clock ticks since boot, among the fields of `stat` after the name.
_START_FIELD: Final = 19


def left_probes(older_than_s: float, proc: Path = _PROC) -> tuple[int, ...]:
    """Return pids of this user's earlier probes that still hang in a driver, rising.

    A probe is waited for only so long: one older than any probe's time limit was abandoned.

    Source: proc(5): `uptime`, and `starttime` of `stat`.
    """
    now_s = float((proc / "uptime").read_text().split()[0])
    pids = sorted(int(folder.name) for folder in proc.glob("[0-9]*"))
    return tuple(pid for pid in pids if _is_left(proc / str(pid), now_s - older_than_s))


def _is_left(folder: Path, before_s: float) -> bool:
    try:
        is_ours = folder.stat().st_uid == os.geteuid()
        if not is_ours or _ARGUMENTS not in (folder / "cmdline").read_bytes():
            return False
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
    except OSError:  # it has ended meanwhile
        return False
    return int(fields[_START_FIELD]) / os.sysconf("SC_CLK_TCK") < before_s


#: Fields of nvidia-smi in the order of the query, with our name and the factor from its unit.
#: `power.draw` is a mean of 1 s since Ampere; `memory.used` is without the reserve.
#: Source: `nvidia-smi --help-query-gpu`; all exist since driver 450.
_FIELDS: Final[Mapping[str, tuple[str, float]]] = {
    "clocks.sm": ("sm_clock_mhz", 1.0),
    "clocks.mem": ("mem_clock_mhz", 1.0),
    "power.draw": ("power_average_w", 1.0),
    "temperature.gpu": ("temperature_c", 1.0),
    "memory.used": ("memory_used_bytes", float(1 << 20)),
    "utilization.gpu": ("activity_ratio", 0.01),
    "enforced.power.limit": ("power_limit_w", 1.0),
    "power.default_limit": ("power_limit_default_w", 1.0),
    "clocks.max.sm": ("sm_clock_max_mhz", 1.0),
    "clocks.max.mem": ("mem_clock_max_mhz", 1.0),
    "memory.total": ("memory_size_bytes", float(1 << 20)),
}
QUERY: Final = (f"--query-gpu=uuid,{','.join(_FIELDS)}", "--format=csv,noheader,nounits")
_NUMBER: Final = re.compile(r"-?\d+(?:\.\d+)?")


def numbers_of(text: str) -> dict[str, dict[str, float]]:
    """Parse nvidia-smi's answer to `QUERY`: each GPU's fields in our units, by its UUID.

    Texts ("[N/A]", "[Not Supported]", "[GPU is lost]") and lines of another form are left out.
    """
    found: dict[str, dict[str, float]] = {}
    for line in text.splitlines():
        uuid, *cells = (cell.strip() for cell in line.split(","))
        if len(cells) != len(_FIELDS):
            continue
        found[uuid] = {
            name: float(cell) * factor
            for cell, (name, factor) in zip(cells, _FIELDS.values(), strict=True)
            if _NUMBER.fullmatch(cell)
        }
    return found


def with_smi_numbers(inventory: Inventory, numbers: Mapping[str, Mapping[str, float]]) -> Inventory:
    """Return the inventory with nvidia-smi's numbers, by UUID, added to its GPUs."""
    gpus = (replace(entry, nvidia_smi=numbers.get(entry.info.uuid)) for entry in inventory.gpus)
    return replace(inventory, gpus=tuple(gpus))


Line: TypeAlias = CardMetrics | AmdSmi
_LINE: Final[msgspec.json.Decoder[Line]] = msgspec.json.Decoder(Line)

_SYSFS: Final = Path("/sys")
_AMD_FILE_NAME: Final = "libamd_smi.so"
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
    library = _mapped(_AMD_FILE_NAME) or binding.library_path
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
    found = []
    for line in output.split(b"\n"):
        with suppress(msgspec.MsgspecError):
            found.append(_LINE.decode(line))
    return tuple(found)


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

"""Facts about the machine, as plain data: other modules collect them, the checks judge them.

Texts of files are unchanged; None means "not there, or not readable".
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import msgspec
from rich.console import Group
from rich.text import Text

from chopperd.model.devices import Inventory
from chopperd.model.live import Pause
from chopperd.report.text.page import table
from chopperd.report.text.wording import plural


class Verdict(StrEnum):
    """Result of a check; `UNKNOWN`: no clear result, which is not a problem yet."""

    OK = "ok"
    PROBLEM = "problem"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Result of one check, in words for people."""

    check: str  # name: "driver library"
    verdict: Verdict
    text: str
    fix: str | None = None  # None if there is nothing to do


def ok(check: str, text: str) -> Finding:
    """Return the finding that a check found no problem."""
    return Finding(check=check, verdict=Verdict.OK, text=text)


def problem(check: str, text: str, fix: str) -> Finding:
    """Return the finding of a problem and its fix."""
    return Finding(check=check, verdict=Verdict.PROBLEM, text=text, fix=fix)


def unknown(check: str, text: str, fix: str | None = None) -> Finding:
    """Return the finding of a check without a clear result."""
    return Finding(check=check, verdict=Verdict.UNKNOWN, text=text, fix=fix)


def encode_findings(findings: Sequence[Finding]) -> bytes:
    """Return the findings as indented JSON: `{"ok": ..., "findings": [...]}`."""
    document = {"ok": not problem_count(findings), "findings": findings}
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def diagnosis_page(findings: Sequence[Finding]) -> Group:
    """Return a page: a line for each finding, then its fix if any; last the number of problems."""
    rows: list[tuple[str, str, str]] = []
    for each in findings:
        rows.append((each.verdict.value, each.check, each.text))
        if each.fix is not None:
            rows.append(("", "", f"-> {each.fix}"))
    count = problem_count(findings)
    summary = f"{plural(count, 'problem')} found" if count else "no problem found"
    body = table("DOCTOR", ("<", "<", "<"), rows, header=False)
    return Group(body, "", Text(summary, style="bold"))


def problem_count(findings: Sequence[Finding]) -> int:
    """Return how many findings are problems."""
    return sum(each.verdict is Verdict.PROBLEM for each in findings)


#: The back ends that read AMD's GPUs: by the kernel's files, and by AMD SMI.
AMD_BACKENDS: Final = frozenset({"amdgpu", "amdsmi"})


class CardMetrics(msgspec.Struct, frozen=True, kw_only=True, tag="metrics"):
    """Result of reading the file `gpu_metrics` of a card."""

    pci_bus_id: str
    version: str | None = None  # of the block, if it is a known one ("v1.8")
    error: str | None = None  # why nothing can be read from it


class AmdSmi(msgspec.Struct, frozen=True, kw_only=True, tag="amd_smi"):
    """AMD SMI as loaded by a separate process, which calls none of its functions."""

    binding: str | None = None  # version of the Python binding; None if it has none
    folder: str | None = None  # of the binding; None if none loads
    library: str | None = None  # the library's file
    fits: bool | None = None  # whether they match; None if the file's name has no version
    error: str | None = None  # why none loads


@dataclass(frozen=True, slots=True, kw_only=True)
class AmdCard:
    """A card that the driver `amdgpu` runs."""

    pci_bus_id: str
    compute_mode: str | None = None  # how its dies are split ("SPX", "CPX"); None if they can't be
    memory_mode: str | None = None  # "NPS1"
    parts_count: int = 1  # GPUs that the compute driver lists for it
    is_virtual: bool = False  # a virtual function (SR-IOV)


@dataclass(frozen=True, slots=True, kw_only=True)
class Amd:
    """State of AMD's driver, cards and library."""

    is_loaded: bool = False  # the kernel module `amdgpu`, or its code in the kernel
    module_version: str | None = None  # None for the kernel's own module
    kernel: str | None = None  # the kernel's version
    cards: tuple[AmdCard, ...] = ()  # by PCI address
    #: Read, with AMD SMI, by a separate process: without cards that did not answer.
    metrics: tuple[CardMetrics, ...] = ()
    smi: AmdSmi | None = None  # None also if the process ended or hung before
    was_asked: bool = False  # whether that process was started
    hung_pid: int | None = None  # that process, if it could not be ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """Number of GPUs on the PCI bus by maker; None if the bus can't be read."""

    nvidia_count: int | None = None
    amd_count: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """A driver library as loaded by a separate process."""

    name: str  # as given to the loader
    path: str | None = None  # the file that was loaded; None if none was
    error: str | None = None  # the loader's message


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverProbe:
    """Result of opening a back end in a separate process."""

    backend: str  # as requested ("auto")
    library: Library | None = None  # NVIDIA's; None if the process ended before it was loaded
    inventory: Inventory | None = None
    error: str | None = None  # why there is no inventory
    hung_pid: int | None = None  # the process if it could not be ended, also after an answer
    stuck_pids: tuple[int, ...] = ()  # earlier probes that still hang: too many for another
    hung_s: float | None = None  # how long it was waited for without an answer


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNode:
    """A device file, and whether this user may use it."""

    path: str
    mode: int  # permission bits
    group: str  # name of its group, or its number if it has no name
    #: Why this user may not read and write it; 0 if allowed. Source: access(2), which includes
    #: the device cgroup and, unlike open(2), wakes no driver.
    errno: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MigInstance:
    """GPU or compute instance of a MIG GPU, which a process needs a device file for."""

    name: str  # its path under the driver's capabilities ("gpu0/mig/gi1")
    node: DeviceNode | None  # None if missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """Signs of a container, and NVIDIA's variables, which select GPUs and libraries in it."""

    evidence: str | None = None  # None on a host
    visible_devices: str | None = None  # `NVIDIA_VISIBLE_DEVICES`
    driver_capabilities: str | None = None  # `NVIDIA_DRIVER_CAPABILITIES`


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """A folder that an agent started by this user would use."""

    what: str  # "state" or "runtime"
    key: str  # of the configuration
    path: str
    problem: str | None = None  # why it can't be used; None if it can
    free_ratio: float | None = None  # free share of its disk
    least_free_ratio: float = 0.0  # share that the configuration leaves free


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """An address that the agent listens on."""

    key: str  # of the configuration
    address: str
    is_taken: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """State of this node's agent."""

    own_version: str  # of this program
    version: str | None = None  # of the agent; None if none answers
    problem: str | None = None  # why it is not healthy, as it reports
    refusal: str | None = None  # why there is no answer although something listens


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """Evenness and synchronisation of the machine's wall clock."""

    step_ns: int  # movement of REALTIME against MONOTONIC during `watched_ns`
    watched_ns: int
    synchronised: bool | None = None  # by the kernel's NTP state; None if unknown
    source: str | None = None  # the kernel's clock source ("tsc")


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A running process; `names` are its name and the file names of its program and script."""

    pid: int
    names: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All facts that the checks judge."""

    problems: tuple[str, ...] = ()  # of the configuration
    hardware: Hardware = field(default_factory=Hardware)
    driver: DriverProbe
    binding: bool = True  # whether the NVML binding is installed
    kernel_module: str | None = None  # `/proc/driver/nvidia/version`
    amd: Amd = field(default_factory=Amd)
    nodes: tuple[DeviceNode, ...] = ()  # device files of GPUs
    mig: tuple[MigInstance, ...] = ()
    container: Container = field(default_factory=Container)
    folders: tuple[Folder, ...] = ()
    listeners: tuple[Listener, ...] = ()
    agent: Agent
    pause: Pause | None = None
    clocks: Clocks
    processes: tuple[Process, ...] = ()
    sees_host: bool = True  # whether `processes` are those of the host, not of a container only
    kineto_taken: bool = False  # whether the socket for trace requests to jobs is in use
    kineto_holder: str | None = None  # by whom, if visible to this user

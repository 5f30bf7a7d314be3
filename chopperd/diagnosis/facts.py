"""The facts that the checks judge, as data: whoever gathers them judges nothing.

Texts of files are as they stand there; None is "not there, or not readable".
"""

from dataclasses import dataclass, field

import msgspec

from chopperd.model.devices import Inventory
from chopperd.model.live import Pause

# Facts of AMD's GPUs, of their driver and of AMD SMI, as data.


class CardMetrics(msgspec.Struct, frozen=True, kw_only=True, tag="metrics"):
    """What a card's file `gpu_metrics` gave when it was read.

    Attributes:
        pci_bus_id: The card.
        version: Of the block, where it is known ("v1.8").
        error: Why nothing can be taken from it, for people.
    """

    pci_bus_id: str
    version: str | None = None
    error: str | None = None


class AmdSmi(msgspec.Struct, frozen=True, kw_only=True, tag="amd_smi"):
    """AMD SMI as a process of its own loaded it; nothing of it is called.

    Attributes:
        binding: Version of the Python binding; None where it says none, or none loads.
        folder: Where the binding lies; None where none loads.
        library: The file of the library that it loaded.
        fits: Whether they were made for each other; None where the file's name does not say.
        error: Why none loads, for people.
    """

    binding: str | None = None
    folder: str | None = None
    library: str | None = None
    fits: bool | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AmdCard:
    """A card that the driver `amdgpu` runs.

    Attributes:
        pci_bus_id: Where it is.
        compute_mode: How its dies are split ("SPX", "CPX"); None where that can't be.
        memory_mode: How its memory is ("NPS1").
        parts_count: As how many GPUs the compute driver lists it.
        is_virtual: Whether it is a virtual function (SR-IOV).
    """

    pci_bus_id: str
    compute_mode: str | None = None
    memory_mode: str | None = None
    parts_count: int = 1
    is_virtual: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Amd:
    """All that was seen of AMD's.

    Attributes:
        is_loaded: Whether the kernel module `amdgpu` is loaded, or part of the kernel.
        module_version: Its version, where it is not the kernel's own.
        kernel: The kernel's version.
        cards: The cards that it runs, by PCI address.
        metrics: What came of reading each; it lacks those that gave no answer.
        smi: AMD SMI; None where it was not looked for, or that process ended before it said.
        was_asked: Whether a process was started for the last two.
        hung_pid: That process, where it would not end.
    """

    is_loaded: bool = False
    module_version: str | None = None
    kernel: str | None = None
    cards: tuple[AmdCard, ...] = ()
    metrics: tuple[CardMetrics, ...] = ()
    smi: AmdSmi | None = None
    was_asked: bool = False
    hung_pid: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """GPUs on the PCI bus, by maker; None where the bus can't be seen."""

    nvidia_count: int | None = None
    amd_count: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """A driver library as a process of its own loaded it.

    Attributes:
        name: As the loader is asked for it.
        path: The file that it found; None where it did not load.
        error: Why it did not load, in the loader's words.
    """

    name: str
    path: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverProbe:
    """What came of opening a back end in a process of its own.

    Attributes:
        backend: Its name, as asked for ("auto").
        library: NVIDIA's library; None where the process ended before it said.
        inventory: The GPUs that it read.
        error: Why there are none, for people.
        hung_pid: The process, where it would not end, with an answer or without.
        stuck_pids: Processes of earlier looks that still hang: too many to start another.
        hung_s: How long it was waited for, where it gave no answer in time.
    """

    backend: str
    library: Library | None = None
    inventory: Inventory | None = None
    error: str | None = None
    hung_pid: int | None = None
    stuck_pids: tuple[int, ...] = ()
    hung_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNode:
    """A device file.

    Attributes:
        path: Where it is.
        mode: Its permission bits.
        group: Name of the group that owns it; its number where it has no name.
        errno: Why this user may not read and write it; 0 if he may. Source: access(2), which asks
            the device cgroup as well and, unlike open(2), wakes no driver.
    """

    path: str
    mode: int
    group: str
    errno: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MigInstance:
    """A part of a MIG GPU that a process needs a device file for.

    Attributes:
        name: Its path under the driver's capabilities ("gpu0/mig/gi1").
        node: Its device file; None where that is missing.
    """

    name: str
    node: DeviceNode | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """What says that this is a container, and what NVIDIA's toolkit was asked to put into it.

    Attributes:
        evidence: What says so; None on a host.
        visible_devices: `NVIDIA_VISIBLE_DEVICES`.
        driver_capabilities: `NVIDIA_DRIVER_CAPABILITIES`.
    """

    evidence: str | None = None
    visible_devices: str | None = None
    driver_capabilities: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """A folder of the agent's.

    Attributes:
        what: "state" or "runtime".
        key: The key of the configuration that sets it.
        path: Where an agent of this user would have it.
        trouble: Why it could not be used there; None if it could.
        free_ratio: Share of its disk that is free.
        least_free_ratio: Share that the configuration leaves to others.
    """

    what: str
    key: str
    path: str
    trouble: str | None = None
    free_ratio: float | None = None
    least_free_ratio: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """An address that the agent listens on.

    Attributes:
        key: The key of the configuration that sets it.
        address: As it stands there.
        is_taken: Whether something listens there now.
    """

    key: str
    address: str
    is_taken: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """The agent of this node, as it answers.

    Attributes:
        version: Its version; None if none answers.
        own_version: The version of this program.
        trouble: Why it is not well, by its own account.
        refusal: Why it, or what listens in its place, gave no answer, though something is there.
    """

    own_version: str
    version: str | None = None
    trouble: str | None = None
    refusal: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """How the machine's clocks behave.

    Attributes:
        step_ns: By how much REALTIME moved against MONOTONIC while we watched.
        watched_ns: How long that was.
        synchronised: Whether the kernel says that something keeps the time right; None: not asked.
        source: The kernel's clock source ("tsc").
    """

    step_ns: int
    watched_ns: int
    synchronised: bool | None = None
    source: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A running process.

    Attributes:
        pid: Its pid, as seen from here.
        names: What it goes by: its name, and the file names of program and script.
    """

    pid: int
    names: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All that the checks look at.

    Attributes:
        problems: What is wrong with the configuration.
        binding: Whether the NVML binding is installed.
        kernel_module: `/proc/driver/nvidia/version`.
        amd: What was seen of AMD's.
        nodes: Device files of GPUs.
        sees_host: Whether the processes are the whole machine's, not a container's alone.
        kineto_taken: Whether something holds the socket by which jobs are asked for traces.
        kineto_holder: What that is, where this user can see it.
    """

    problems: tuple[str, ...] = ()
    hardware: Hardware = field(default_factory=Hardware)
    driver: DriverProbe
    binding: bool = True
    kernel_module: str | None = None
    amd: Amd = field(default_factory=Amd)
    nodes: tuple[DeviceNode, ...] = ()
    mig: tuple[MigInstance, ...] = ()
    container: Container = field(default_factory=Container)
    folders: tuple[Folder, ...] = ()
    listeners: tuple[Listener, ...] = ()
    agent: Agent
    pause: Pause | None = None
    clocks: Clocks
    processes: tuple[Process, ...] = ()
    sees_host: bool = True
    kineto_taken: bool = False
    kineto_holder: str | None = None

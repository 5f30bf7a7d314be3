"""A node with two healthy H100 GPUs and a running agent; tests change what they are about."""

from dataclasses import replace

from chopperd.diagnosis.facts import (
    Agent,
    Amd,
    AmdCard,
    AmdSmi,
    CardMetrics,
    Clocks,
    DeviceNode,
    DriverProbe,
    Facts,
    Folder,
    Hardware,
    Library,
    Listener,
)
from chopperd.model.devices import DeviceReading, GpuInfo, Inventory, InventoryEntry, Vendor

MODULE = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  595.45.04  Release Build  (x)\n"
LIBRARY = Library(
    name="libnvidia-ml.so.1", path="/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.595.45.04"
)
NO_LIBRARY = Library(
    name="libnvidia-ml.so.1", error="libnvidia-ml.so.1: cannot open shared object file"
)


def entry(
    index: int, name: str = "NVIDIA H100 80GB HBM3", error: str | None = None
) -> InventoryEntry:
    info = GpuInfo(
        gpu=str(index), index=index, uuid=f"GPU-{index}", name=name, vendor=Vendor.NVIDIA
    )
    return InventoryEntry(info=info, reading=None if error else DeviceReading(), error=error)


def inventory(*entries: InventoryEntry) -> Inventory:
    gpus = entries or (entry(0), entry(1))
    return Inventory(backend="nvml", driver="595.45.04", simulated=False, gpus=gpus)


def node(path: str, errno: int = 0, mode: int = 0o666, group: str = "root") -> DeviceNode:
    return DeviceNode(path=path, mode=mode, group=group, errno=errno)


PROBE = DriverProbe(backend="auto", library=LIBRARY, inventory=inventory())
HEALTHY = Facts(
    hardware=Hardware(nvidia_count=2, amd_count=0),
    driver=PROBE,
    kernel_module=MODULE,
    nodes=(node("/dev/nvidiactl"), node("/dev/nvidia0"), node("/dev/nvidia1")),
    folders=(
        Folder(
            what="state",
            key="paths.state",
            path="/var/lib/chopperd",
            free_ratio=0.4,
            least_free_ratio=0.05,
        ),
        Folder(what="runtime", key="paths.runtime", path="/run/chopperd", free_ratio=0.9),
    ),
    listeners=(
        Listener(key="metrics.listen", address="127.0.0.1:9469", is_taken=True),
        Listener(key="api.listen", address="127.0.0.1:9470", is_taken=True),
    ),
    agent=Agent(own_version="0.1.0", version="0.1.0"),
    clocks=Clocks(step_ns=20_000, watched_ns=1_000_000_000, synchronised=True, source="tsc"),
)
#: The same node, none of whose GPUs could be read.
UNREAD = replace(HEALTHY, driver=DriverProbe(backend="auto", library=LIBRARY, error="nvml: why"))


def without_gpu(error: str = "nvml: no GPU") -> Facts:
    """A machine with neither GPU nor driver."""
    return replace(
        HEALTHY,
        hardware=Hardware(nvidia_count=0, amd_count=0),
        driver=DriverProbe(backend="auto", library=NO_LIBRARY, error=error),
        kernel_module=None,
        nodes=(),
    )


def amd_card(place: int) -> AmdCard:
    return AmdCard(pci_bus_id=f"0000:{place:02x}:00.0", compute_mode="SPX", memory_mode="NPS1")


SMI = AmdSmi(
    binding="26.0.2+39589fda",
    folder="/opt/rocm-7.0.2/share/amd_smi/amdsmi",
    library="/opt/rocm-7.0.2/lib/libamd_smi.so.26.0",
    fits=True,
)
AMD = Amd(
    is_loaded=True,
    module_version="6.14.14",
    kernel="6.8.0-60-generic",
    cards=(amd_card(12), amd_card(34)),
    metrics=tuple(
        CardMetrics(pci_bus_id=amd_card(place).pci_bus_id, version="v1.8") for place in (12, 34)
    ),
    smi=SMI,
    was_asked=True,
)


def amd_node(backend: str | None, amd: Amd = AMD) -> Facts:
    """A node with two MI300X that this back end reads; None: that can't be read."""
    found = backend and Inventory(
        backend=backend,
        driver="6.14.14",
        simulated=False,
        gpus=(entry(0, "AMD Instinct MI300X"), entry(1, "AMD Instinct MI300X")),
    )
    driver = DriverProbe(
        backend="auto", library=NO_LIBRARY, inventory=found or None, error=None if found else "why"
    )
    return replace(
        without_gpu(),
        hardware=Hardware(nvidia_count=0, amd_count=2),
        driver=driver,
        amd=amd,
        nodes=(node("/dev/kfd"), node("/dev/dri/renderD128"), node("/dev/dri/renderD129")),
    )

"""Whether two names are of one GPU: UUIDs, PCI bus ids and labels as CUDA, NVML and users write."""

from collections.abc import Sequence

from chopperd.model.devices import GpuInfo


def gpu_named(name: str, gpus: Sequence[GpuInfo]) -> GpuInfo | None:
    """The GPU of a label, UUID or PCI bus id; a label goes before what only looks like it."""
    labelled = next((gpu for gpu in gpus if name == gpu.gpu), None)
    return labelled or gpu_identified(name, name, gpus)


def gpu_identified(
    uuid: str | None, pci_bus_id: str | None, gpus: Sequence[GpuInfo]
) -> GpuInfo | None:
    """The GPU of a UUID, or else of a PCI bus id."""
    same_uuid = (gpu for gpu in gpus if same(bare_uuid(uuid), bare_uuid(gpu.uuid)))
    same_bus = (gpu for gpu in gpus if same(bare_bus(pci_bus_id), bare_bus(gpu.pci_bus_id)))
    return next(same_uuid, None) or next(same_bus, None)


def in_pci_order(gpus: Sequence[GpuInfo]) -> list[GpuInfo] | None:
    """The GPUs in the order of their PCI bus ids; None where that is not known, or has MIG parts.

    Source: CUDA's `CUDA_DEVICE_ORDER=PCI_BUS_ID`; NVML's indices have the same order.
    """
    by_bus = {bare_bus(gpu.pci_bus_id): gpu for gpu in gpus if gpu.parent is None}
    if None in by_bus or len(by_bus) != len(gpus):
        return None
    return [by_bus[bus] for bus in sorted(by_bus, key=str)]


def bare_uuid(uuid: str | None) -> str | None:
    """Without its prefix, which torch leaves out."""
    return uuid.casefold().removeprefix("gpu-").removeprefix("mig-") if uuid else None


def bare_bus(pci_bus_id: str | None) -> str | None:
    """With a domain of four digits, as CUDA writes it (NVML: eight), and with its function."""
    if not pci_bus_id:
        return None
    address, _, function = pci_bus_id.casefold().partition(".")
    parts = address.split(":")
    domain = parts[0][-4:] if len(parts) > 2 else ""
    return ":".join((domain.zfill(4), *parts[-2:])) + f".{function or '0'}"


def same(a: str | None, b: str | None) -> bool:
    """Whether two names are known and equal."""
    return bool(a) and bool(b) and a == b

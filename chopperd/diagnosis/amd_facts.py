"""Facts of AMD's GPUs, of their driver and of AMD SMI, as data."""

from dataclasses import dataclass

import msgspec


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

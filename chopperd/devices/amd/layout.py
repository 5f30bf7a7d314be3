"""Where each metric of an AMD GPU stands in a block of memory; what it means is in `table`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from chopperd.devices.read_plan import Buffer, NumberKind, PlannedCall

#: All ones in a number's own width stands for "not reported".
ABSENT: Final[Mapping[NumberKind, int]] = {
    NumberKind.UINT16: 2**16 - 1,
    NumberKind.UINT32: 2**32 - 1,
    NumberKind.UINT64: 2**64 - 1,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricPlace:
    """Where one metric stands.

    Attributes:
        kind: How each of its numbers stands there.
        offsets: Bytes from the start of the block: one, or one for each die, in order.
    """

    kind: NumberKind
    offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsLayout:
    """A block of metrics of one version.

    Attributes:
        version: For people ("gpu_metrics v1.8", "amdsmi 26.0").
        size_bytes: Of the whole block.
        places: By the metric's name: that of `amdsmi_gpu_metrics_t`, also where the kernel's
            differs ("current_gfxclks", "current_socket_power"). What is counted for each die of
            each partition has all dies in a row ("gfx_below_host_limit_ppt_acc").
    """

    version: str
    size_bytes: int
    places: Mapping[str, MetricPlace]


class TornBlock:
    """Marks a vendor's error that says that a block is not as long as it was."""


class MetricsSource(Protocol):
    """Brings the block of one GPU."""

    @property
    def layout(self) -> MetricsLayout:
        """Where what stands in it."""
        ...

    @property
    def buffer(self) -> Buffer:
        """Holds the block after `fetch`; always the same."""
        ...

    @property
    def operation(self) -> str:
        """What bringing it is called, in errors and counts."""
        ...

    def fetch(self) -> None:
        """Bring the block anew.

        Raises:
            Exception: The vendor's error, as `VendorErrors` classes it.
        """
        ...

    def planned_call(self) -> PlannedCall | None:
        """The same without Python; None where that can't be."""
        ...

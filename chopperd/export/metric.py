"""What a metric is: its name, labels and profile, and how it is read from a snapshot."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final, TypeAlias

from chopperd.model.live import GpuLive, NodeSnapshot, TracedTotals

#: Label values in the order of the metric's labels, and the value; None is unknown: no series.
Point: TypeAlias = tuple[tuple[str, ...], float | None]


class Kind(StrEnum):
    """How a value behaves."""

    GAUGE = "gauge"
    COUNTER = "counter"
    INFO = "info"


class Profile(IntEnum):
    """Which metrics are exported; each profile holds the ones before it."""

    MINIMAL = 1
    STANDARD = 2
    FULL = 3

    @property
    def label(self) -> str:
        """The name in the configuration."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Label:
    """A label and the closed set of its values; None: told by the node (a GPU, a version)."""

    name: str
    values: tuple[str, ...] | None = None


GPU: Final = Label("gpu")


@dataclass(frozen=True, slots=True)
class ExportState:
    """What the exporter knows of itself while it renders."""

    series_count: int
    render_errors_count: int


@dataclass(frozen=True, slots=True)
class View:
    """What metrics are read from; `state` is there for the exporter's own, which come last."""

    snapshot: NodeSnapshot
    state: ExportState | None = None


Read: TypeAlias = Callable[[View], Iterable[Point]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric.

    Attributes:
        name: Whole name, with `_total` or `_info` where the kind has it.
        kind: How it behaves.
        unit: Base unit as in the name; empty for counts and states.
        help: What it says, in one line.
        labels: Its labels in order.
        profile: The smallest profile that holds it.
        read: Its points in a snapshot.
    """

    name: str
    kind: Kind
    unit: str
    help: str
    labels: tuple[Label, ...]
    profile: Profile
    read: Read

    @property
    def family_name(self) -> str:
        """The name without the suffix of its kind, as OpenMetrics wants it."""
        return self.name.removesuffix("_total").removesuffix("_info")

    @property
    def documentation(self) -> str:
        """The help with the unit."""
        return f"{self.help} ({self.unit})." if self.unit else f"{self.help}."


def metric(
    name: str, unit: str, profile: Profile, help_text: str, read: Read, *labels: Label
) -> Metric:
    """A row of the catalogue; its kind is told by the suffix of its name.

    Args:
        name: Without the prefix that all share.
        unit: Base unit as in the name.
        profile: The smallest profile that holds it.
        help_text: What it says, in one line without the unit.
        read: Its points in a snapshot.
        *labels: Its labels in order.
    """
    kinds = {"_total": Kind.COUNTER, "_info": Kind.INFO}
    suffix = f"_{name.rpartition('_')[2]}"
    return Metric(
        name=f"chopperd_{name}",
        kind=kinds.get(suffix, Kind.GAUGE),
        unit=unit,
        help=help_text,
        labels=labels,
        profile=profile,
        read=read,
    )


def per_node(value: Callable[[NodeSnapshot], float | None]) -> Read:
    """One point of the whole node."""
    return lambda view: [((), value(view.snapshot))]


def per_node_by(values: Callable[[NodeSnapshot], Mapping[str, float | None]]) -> Read:
    """A point for each value of one label."""
    return lambda view: [((key,), value) for key, value in values(view.snapshot).items()]


def per_gpu(value: Callable[[GpuLive], float | None]) -> Read:
    """A point for each GPU that is up: all of what a GPU has goes when it goes."""
    return lambda view: [((gpu.info.gpu,), value(gpu)) for gpu in view.snapshot.gpus if gpu.up]


def per_gpu_by(values: Callable[[GpuLive], Mapping[str, float]]) -> Read:
    """A point for each GPU that is up and each value of one label."""
    return lambda view: [
        ((gpu.info.gpu, key), value)
        for gpu in view.snapshot.gpus
        if gpu.up
        for key, value in values(gpu).items()
    ]


def per_traced(value: Callable[[TracedTotals], float]) -> Read:
    """A point for each GPU that is up and was traced recently."""
    return lambda view: [((gpu,), value(sums)) for gpu, sums in _traced(view.snapshot)]


def per_traced_by(values: Callable[[TracedTotals], Mapping[str, float]]) -> Read:
    """A point for each GPU that is up and was traced recently, and each value of one label."""
    return lambda view: [
        ((gpu, key), value)
        for gpu, sums in _traced(view.snapshot)
        for key, value in values(sums).items()
    ]


def _traced(snapshot: NodeSnapshot) -> Iterable[tuple[str, TracedTotals]]:
    for gpu in snapshot.gpus:
        if gpu.up and gpu.info.gpu in snapshot.traced:
            yield gpu.info.gpu, snapshot.traced[gpu.info.gpu]

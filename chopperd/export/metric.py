"""Metrics as data: name, labels, profile, and how each is read from a snapshot."""

from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum, StrEnum
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

from msgspec import Struct

from chopperd.model.live import GpuLive, NodeSnapshot, TracedTotals

#: Label values in the order of the metric's labels, and the value; None: unknown, no series.
Point: TypeAlias = tuple[tuple[str, ...], float | None]


class Kind(StrEnum):
    """Prometheus type of a metric."""

    GAUGE = "gauge"
    COUNTER = "counter"
    INFO = "info"


class Profile(IntEnum):
    """Set of metrics to export; each profile includes the ones before it."""

    MINIMAL = 1
    STANDARD = 2
    FULL = 3


class Label(Struct, frozen=True):
    """A label and its closed set of values; None for an open set (GPUs, versions)."""

    name: str
    values: tuple[str, ...] | None = None


GPU: Final = Label("gpu")
#: Base units that names end in.
_UNITS: Final = frozenset(
    {"bytes", "celsius", "cycles", "hertz", "joules", "ratio", "seconds", "watts"}
)


class View(Struct, frozen=True):
    """Input that metrics are read from; only the exporter's own metrics are given its counts."""

    snapshot: NodeSnapshot
    series_count: int | None = None
    render_errors_count: int | None = None


Read: TypeAlias = Callable[[View], Iterable[Point]]


class Source(NamedTuple):
    """Function that reads a metric's points, and the metric's labels in order."""

    read: Read
    labels: tuple[Label, ...] = ()


class Metric(Struct, frozen=True, kw_only=True):
    """Definition of one metric."""

    name: str  # whole, with `_total` or `_info` where the kind has it
    kind: Kind
    unit: str  # base unit as in the name; empty for counts and states
    help: str  # one line, without the unit
    labels: tuple[Label, ...]
    profile: Profile  # the smallest that includes it
    read: Read

    @property
    def family_name(self) -> str:
        """Name without the suffix of its kind, as OpenMetrics requires."""
        return self.name.removesuffix("_total").removesuffix("_info")

    @property
    def documentation(self) -> str:
        """Help text with the unit."""
        return f"{self.help} ({self.unit})." if self.unit else f"{self.help}."


def metric(profile: Profile, name: str, help_text: str, source: Source) -> Metric:
    """Define a metric; kind and unit come from `name`, which is without the common prefix."""
    stem = name.removesuffix("_total")
    kind = Kind.COUNTER if stem != name else Kind.INFO if name.endswith("_info") else Kind.GAUGE
    last_word = stem.rpartition("_")[2]
    return Metric(
        name=f"chopperd_{name}",
        kind=kind,
        unit=last_word if last_word in _UNITS else "",
        help=help_text,
        labels=source.labels,
        profile=profile,
        read=source.read,
    )


minimal: Final = partial(metric, Profile.MINIMAL)
standard: Final = partial(metric, Profile.STANDARD)
full: Final = partial(metric, Profile.FULL)


def _at(path: str, convert: Callable[[Any], float]) -> Callable[[object], float | None]:
    """Return a function that reads and converts an attribute "a.b" of an object; None passes."""
    names = path.split(".")

    def read(value: Any) -> float | None:  # noqa: ANN401
        for name in names:
            if value is None:
                return None
            value = getattr(value, name)
        return None if value is None else convert(value)

    return read


def node(path: str, convert: Callable[[Any], float] = float) -> Source:
    """Return a source with one point for the whole node: an attribute of its snapshot."""
    value = _at(path, convert)
    return Source(lambda view: [((), value(view.snapshot))])


def node_by(label: Label, values: Callable[[NodeSnapshot], Mapping[str, float | None]]) -> Source:
    """Return a source with one point for each value of a label."""
    return Source(
        lambda view: [((key,), value) for key, value in values(view.snapshot).items()], (label,)
    )


def gpu_value(path: str, convert: Callable[[Any], float] = float) -> Source:
    """Return a source with one point for each GPU that is up: an attribute of it."""
    value = _at(path, convert)
    return Source(
        lambda view: [((gpu.info.gpu,), value(gpu)) for gpu in view.snapshot.gpus if gpu.up], (GPU,)
    )


def gpu_by(label: Label, values: Callable[[GpuLive], Mapping[str, float]]) -> Source:
    """Return a source with one point for each GPU that is up and each value of a label."""
    return Source(
        lambda view: [
            ((gpu.info.gpu, key), value)
            for gpu in view.snapshot.gpus
            if gpu.up
            for key, value in values(gpu).items()
        ],
        (GPU, label),
    )


def traced_value(path: str, convert: Callable[[Any], float]) -> Source:
    """Return a source with one point for each GPU that is up and was traced recently."""
    value = _at(path, convert)
    return Source(lambda view: [((gpu,), value(sums)) for gpu, sums in _traced(view)], (GPU,))


def traced_by(label: Label, values: Callable[[TracedTotals], Mapping[str, float]]) -> Source:
    """As `traced_value`, with one point for each GPU and each value of a label."""
    return Source(
        lambda view: [
            ((gpu, key), value)
            for gpu, sums in _traced(view)
            for key, value in values(sums).items()
        ],
        (GPU, label),
    )


def traced_sum(field: str, key: str) -> Source:
    """As `traced_value`, one of the sums in a table; none of a GPU whose table lacks it."""
    return Source(
        lambda view: [((gpu,), getattr(sums, field).get(key)) for gpu, sums in _traced(view)],
        (GPU,),
    )


def _traced(view: View) -> Iterable[tuple[str, TracedTotals]]:
    for gpu in view.snapshot.gpus:
        if gpu.up and gpu.info.gpu in view.snapshot.traced:
            yield gpu.info.gpu, view.snapshot.traced[gpu.info.gpu]

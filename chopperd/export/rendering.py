"""Render a snapshot as metric families, in the text format that the scraper requests."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from math import isfinite
from threading import Lock
from typing import Final

from msgspec.structs import replace
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

from chopperd.clock import Clock
from chopperd.export.agent_metrics import AGENT_METRICS, EXPORT_METRICS
from chopperd.export.gpu_metrics import GPU_METRICS, TRACED_METRICS
from chopperd.export.metric import Metric, Profile, View
from chopperd.model.devices import DeviceReading
from chopperd.model.live import NodeSnapshot
from chopperd.model.services import SnapshotSource
from chopperd.units import NS_PER_S

# The one table of all metrics, for scrapes, documentation and dashboards.

#: In the order in which they are exported; the exporter's own come last.
CATALOGUE: Final = (*GPU_METRICS, *TRACED_METRICS, *AGENT_METRICS, *EXPORT_METRICS)


def metrics_of(profile: Profile) -> tuple[Metric, ...]:
    """Return the metrics of a profile, in the catalogue's order."""
    return tuple(metric for metric in CATALOGUE if metric.profile <= profile)


logger = logging.getLogger(__name__)


class SnapshotCollector(Collector):
    """Collects the metric families of one snapshot, leaving out a metric that fails.

    Unknown values have no series, and metrics without series are left out. Metrics about the
    exporter itself (`own_metrics`) come last. Faults are counted by metric, the first is logged.
    """

    def __init__(
        self,
        snapshot: NodeSnapshot,
        metrics: Sequence[Metric],
        own_metrics: Sequence[Metric],
        faults: Counter[str],
    ) -> None:
        self._snapshot = snapshot
        self._metrics = metrics
        self._own_metrics = own_metrics
        self._faults = faults

    def collect(self) -> Iterator[Family]:
        """Yield the families, in the order of the metrics."""
        series_count = len(self._own_metrics)
        for metric in self._metrics:
            family = self._family(metric, View(self._snapshot))
            series_count += len(family.samples)
            if family.samples:
                yield family
        view = View(self._snapshot, series_count, self._faults.total())
        yield from (self._family(metric, view) for metric in self._own_metrics)

    def _family(self, metric: Metric, view: View) -> Family:
        """Return a metric's family; without samples if values are unknown or can't be read."""
        family = Family(metric.family_name, metric.documentation, metric.kind.value, metric.unit)
        try:
            for key, value in self._points(metric, view):
                names = (label.name for label in metric.labels)
                family.add_sample(metric.name, dict(zip(names, key, strict=True)), value)
        except Exception as error:  # noqa: BLE001 - one metric's fault must not cost the scrape
            self._note_fault(metric.name, repr(error))
            family.samples.clear()
        return family

    def _points(self, metric: Metric, view: View) -> Iterator[tuple[tuple[str, ...], float]]:
        """Yield the points that are known, finite, not repeated and have allowed labels."""
        seen: set[tuple[str, ...]] = set()
        for key, value in metric.read(view):
            if value is None or not isfinite(value):
                continue
            labels = zip(metric.labels, key, strict=True)
            is_allowed = all(each.values is None or v in each.values for each, v in labels)
            if key in seen or not is_allowed:
                self._note_fault(metric.name, f"labels {key} are repeated, or not of their set")
                continue
            seen.add(key)
            "".join(key).encode()  # fail here, for this metric only, not when all are written
            yield key, float(value)

    def _note_fault(self, metric_name: str, what: str) -> None:
        if not self._faults[metric_name]:
            logger.error("metric %s is left out, whole or in part: %s", metric_name, what)
        self._faults[metric_name] += 1


class TextFormat(StrEnum):
    """Text format of a scrape; the value is its content type."""

    PLAIN = "text/plain; version=0.0.4; charset=utf-8"
    OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


_OPENMETRICS_TYPE: Final = "application/openmetrics-text"
_OPENMETRICS_VERSIONS: Final = frozenset({"", "1.0.0", "0.0.1"})
_PLAIN_TYPES: Final = frozenset({"text/plain", "text/*", "*/*"})


def text_format(accept: str | None) -> TextFormat:
    """Return OpenMetrics if the `Accept` header ranks it at least equal; else plain text."""
    best = {TextFormat.PLAIN: 0.0, TextFormat.OPENMETRICS: 0.0}
    for entry in (accept or "").split(","):
        media_type, *parameters = (part.strip().lower() for part in entry.split(";"))
        given = dict(parameter.split("=", 1) for parameter in parameters if "=" in parameter)
        try:
            quality = float(given.get("q", "1"))
        except ValueError:
            continue
        version = given.get("version", "").strip('"')
        if media_type == _OPENMETRICS_TYPE and version in _OPENMETRICS_VERSIONS:
            best[TextFormat.OPENMETRICS] = max(best[TextFormat.OPENMETRICS], quality)
        elif media_type in _PLAIN_TYPES:
            best[TextFormat.PLAIN] = max(best[TextFormat.PLAIN], quality)
    wanted = best[TextFormat.OPENMETRICS]
    return TextFormat.OPENMETRICS if 0 < wanted >= best[TextFormat.PLAIN] else TextFormat.PLAIN


# Families are rendered byte for byte as by the client library, but faster: the library checks and
# escapes each name of each series again, while the catalogue's names are checked by its tests.

_number: Final[Callable[[float], str]] = floatToGoString
_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
#: Suffix and type of counters and infos in the plain text format, which knows neither.
_PLAIN_HEADS: Final = {"counter": ("_total", "counter"), "info": ("_info", "gauge")}


def exposition_text(families: Iterable[Family], wanted: TextFormat) -> str:
    """Render families; their names must be valid, and their documentation without escapes."""
    head = _openmetrics_head if wanted is TextFormat.OPENMETRICS else _plain_head
    lines: list[str] = []
    for family in families:
        lines += head(family)
        lines += map(_sample_line, family.samples)
    if wanted is TextFormat.OPENMETRICS:
        lines.append("# EOF")
    return "\n".join([*lines, ""])


def _plain_head(family: Family) -> Iterator[str]:
    suffix, kind = _PLAIN_HEADS.get(family.type, ("", family.type))
    yield f"# HELP {family.name}{suffix} {family.documentation}"
    yield f"# TYPE {family.name}{suffix} {kind}"


def _openmetrics_head(family: Family) -> Iterator[str]:
    yield f"# HELP {family.name} {family.documentation}"
    yield f"# TYPE {family.name} {family.type}"
    if family.unit:
        yield f"# UNIT {family.name} {family.unit}"


def _sample_line(sample: Sample) -> str:
    if not sample.labels:
        return f"{sample.name} {_number(sample.value)}"
    labels = ",".join(
        f'{name}="{value.translate(_ESCAPES)}"' for name, value in sorted(sample.labels.items())
    )
    return f"{sample.name}{{{labels}}} {_number(sample.value)}"


#: A snapshot older than this is stale: the thread that takes them hangs.
STALE_NS: Final = 5 * NS_PER_S


class MetricsText:
    """Renders the newest snapshot's metrics as text, once for each snapshot and format.

    Thread-safe; never waits for a snapshot. A stale snapshot is exported with no GPU up.
    """

    def __init__(self, snapshots: SnapshotSource, profile: Profile, clock: Clock) -> None:
        metrics = metrics_of(profile)
        self._own = tuple(metric for metric in metrics if metric in EXPORT_METRICS)
        self._metrics = tuple(metric for metric in metrics if metric not in EXPORT_METRICS)
        self._snapshots = snapshots
        self._clock = clock
        self._faults: Counter[str] = Counter()
        self._lock = Lock()
        self._source: NodeSnapshot | None = None
        self._source_is_stale = False
        self._rendered: dict[TextFormat, tuple[bytes, str]] = {}

    def exposition(self, accept: str | None = None) -> tuple[bytes, str]:
        """Return the metrics in the format that the `Accept` header requests, and that type."""
        wanted = text_format(accept)
        with self._lock:
            shown = self._renewed()
            if wanted not in self._rendered:
                collector = SnapshotCollector(shown, self._metrics, self._own, self._faults)
                body = exposition_text(collector.collect(), wanted).encode()
                self._rendered[wanted] = body, wanted.value
            return self._rendered[wanted]

    def _renewed(self) -> NodeSnapshot:
        """Return the snapshot to export; drop rendered texts if it is new or became stale."""
        snapshot = self._snapshots.latest()
        is_stale = self._clock.mono_ns() - snapshot.taken_mono_ns > STALE_NS
        if snapshot is not self._source or is_stale != self._source_is_stale:
            self._source, self._source_is_stale = snapshot, is_stale
            self._rendered.clear()
        return _without_gpus(snapshot) if is_stale else snapshot


def _without_gpus(snapshot: NodeSnapshot) -> NodeSnapshot:
    """Return the snapshot with all GPUs down and without readings."""
    gpus = tuple(replace(gpu, up=False, reading=DeviceReading()) for gpu in snapshot.gpus)
    return replace(snapshot, gpus=gpus, backend_up=False)

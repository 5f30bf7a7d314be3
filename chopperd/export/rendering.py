"""Render a snapshot as metric families, in the text format that the scraper requests."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from math import isfinite
from threading import Lock
from typing import Final, TypeAlias

from msgspec.structs import replace
from prometheus_client.utils import floatToGoString

from chopperd.clock import Clock
from chopperd.export.agent_metrics import AGENT_METRICS, EXPORT_METRICS
from chopperd.export.gpu_metrics import GPU_METRICS, TRACED_METRICS
from chopperd.export.metric import Kind, Metric, Profile, View
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


#: A metric, and its series: label values, and value.
Family: TypeAlias = tuple[Metric, Sequence[tuple[tuple[str, ...], float]]]


def families(
    snapshot: NodeSnapshot,
    metrics: Sequence[Metric],
    own_metrics: Sequence[Metric],
    faults: Counter[str],
) -> Iterator[Family]:
    """Yield the metrics of a snapshot that have series, in their order; one that fails is left out.

    Unknown values have no series. Metrics about the exporter itself (`own_metrics`) come last.
    Faults are counted by metric, the first is logged.
    """
    series_count = len(own_metrics)
    for metric in metrics:
        if points := _points(metric, View(snapshot), faults):
            series_count += len(points)
            yield metric, points
    view = View(snapshot, series_count, faults.total())
    yield from ((metric, _points(metric, view, faults)) for metric in own_metrics)


def _points(
    metric: Metric, view: View, faults: Counter[str]
) -> Sequence[tuple[tuple[str, ...], float]]:
    """Return the points that are known, finite, not repeated and have allowed labels."""
    found: dict[tuple[str, ...], float] = {}
    try:
        for key, value in metric.read(view):
            if value is None or not isfinite(value):
                continue
            labels = zip(metric.labels, key, strict=True)
            is_allowed = all(each.values is None or v in each.values for each, v in labels)
            if key in found or not is_allowed:
                what = f"labels {key} are repeated, or not of their set"
                _note_fault(faults, metric.name, what)
                continue
            "".join(key).encode()  # fail here, for this metric only, not when all are written
            found[key] = float(value)
    except Exception as error:  # noqa: BLE001 - one metric's fault must not cost the scrape
        _note_fault(faults, metric.name, repr(error))
        return ()
    return tuple(found.items())


def _note_fault(faults: Counter[str], metric_name: str, what: str) -> None:
    if not faults[metric_name]:
        logger.error("metric %s is left out, whole or in part: %s", metric_name, what)
    faults[metric_name] += 1


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


# Rendered byte for byte as by the client library, but faster: the library checks and escapes each
# name of each series again, while the catalogue's names are checked by its tests.
_number: Final[Callable[[float], str]] = floatToGoString
_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


def exposition_text(found: Iterable[Family], wanted: TextFormat) -> str:
    """Render families in a format."""
    head = _openmetrics_head if wanted is TextFormat.OPENMETRICS else _plain_head
    lines: list[str] = []
    for metric, points in found:
        lines += head(metric)
        # Labels are sorted, as by the client library.
        order = sorted(range(len(metric.labels)), key=lambda place: metric.labels[place].name)
        for key, value in points:
            pairs = [f'{metric.labels[n].name}="{key[n].translate(_ESCAPES)}"' for n in order]
            labels = f"{{{','.join(pairs)}}}" if pairs else ""
            lines.append(f"{metric.name}{labels} {_number(value)}")
    if wanted is TextFormat.OPENMETRICS:
        lines.append("# EOF")
    return "\n".join([*lines, ""])


def _plain_head(metric: Metric) -> Iterator[str]:
    """Yield the head in a format that has no infos, and names counters with their suffix."""
    yield f"# HELP {metric.name} {metric.documentation}"
    yield f"# TYPE {metric.name} {'gauge' if metric.kind is Kind.INFO else metric.kind}"


def _openmetrics_head(metric: Metric) -> Iterator[str]:
    yield f"# HELP {metric.family_name} {metric.documentation}"
    yield f"# TYPE {metric.family_name} {metric.kind}"
    if metric.unit:
        yield f"# UNIT {metric.family_name} {metric.unit}"


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
                found = families(shown, self._metrics, self._own, self._faults)
                body = exposition_text(found, wanted).encode()
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

"""The collector that turns a snapshot into metric families for the Prometheus client library."""

import logging
from collections.abc import Iterator, Sequence
from math import isfinite

from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from chopperd.export.metric import ExportState, Metric, View
from chopperd.model.live import NodeSnapshot

logger = logging.getLogger(__name__)


class FaultCount:
    """Faults in rendering since the start; the first of each metric is logged.

    Attributes:
        count: How many there were.
    """

    def __init__(self) -> None:
        self.count = 0
        self._logged: set[str] = set()

    def add(self, metric_name: str, what: str) -> None:
        """Count a fault."""
        self.count += 1
        if metric_name not in self._logged:
            self._logged.add(metric_name)
            logger.error("metric %s is left out, whole or in part: %s", metric_name, what)


class SnapshotCollector(Collector):
    """The metric families of one snapshot. A fault in one metric costs that metric only.

    What is unknown has no series, and a metric without series is left out whole.

    Args:
        snapshot: What is exported.
        metrics: The metrics to export.
        own_metrics: Those about the exporter itself, which come last.
        faults: Where faults are counted.
    """

    def __init__(
        self,
        snapshot: NodeSnapshot,
        metrics: Sequence[Metric],
        own_metrics: Sequence[Metric],
        faults: FaultCount,
    ) -> None:
        self._snapshot = snapshot
        self._metrics = metrics
        self._own_metrics = own_metrics
        self._faults = faults

    def collect(self) -> Iterator[Family]:
        """The families, in the order of the metrics."""
        series_count = len(self._own_metrics)
        for metric in self._metrics:
            family = self._family(metric, View(self._snapshot))
            series_count += len(family.samples)
            if family.samples:
                yield family
        view = View(self._snapshot, ExportState(series_count, self._faults.count))
        yield from (self._family(metric, view) for metric in self._own_metrics)

    def _family(self, metric: Metric, view: View) -> Family:
        """One metric; without samples if nothing of it is known, or if it can't be read."""
        family = Family(metric.family_name, metric.documentation, metric.kind.value, metric.unit)
        try:
            for key, value in self._points(metric, view):
                names = (label.name for label in metric.labels)
                family.add_sample(metric.name, dict(zip(names, key, strict=True)), value)
        except Exception as error:  # noqa: BLE001 - one metric's fault must not cost the scrape
            self._faults.add(metric.name, repr(error))
            family.samples.clear()
        return family

    def _points(self, metric: Metric, view: View) -> Iterator[tuple[tuple[str, ...], float]]:
        """What may be exported of a metric: known, finite, with labels of their sets, once."""
        seen: set[tuple[str, ...]] = set()
        for key, value in metric.read(view):
            if value is None or not isfinite(value):
                continue
            if key in seen or not _is_allowed(metric, key):
                self._faults.add(metric.name, f"labels {key} are repeated, or not of their set")
                continue
            seen.add(key)
            "".join(key).encode()  # what can't be written is found here, not while all is written
            yield key, float(value)


def _is_allowed(metric: Metric, key: tuple[str, ...]) -> bool:
    """Whether each label value is of its label's closed set."""
    return all(
        label.values is None or value in label.values
        for label, value in zip(metric.labels, key, strict=True)
    )

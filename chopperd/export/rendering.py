"""The text that is scraped: made once for a snapshot and format, whoever asks and how often."""

from dataclasses import dataclass, replace
from threading import Lock
from typing import Final

from chopperd.clock import Clock
from chopperd.export.agent_metrics import EXPORT_METRICS
from chopperd.export.catalogue import metrics_of
from chopperd.export.collector import FaultCount, SnapshotCollector
from chopperd.export.metric import Profile
from chopperd.export.negotiation import TextFormat, text_format
from chopperd.export.text import exposition_text
from chopperd.model.devices import DeviceReading
from chopperd.model.live import NodeSnapshot
from chopperd.model.services import SnapshotSource
from chopperd.units import NS_PER_S

#: A snapshot older than this stands for now no more: whoever takes them is stuck.
STALE_NS: Final = 5 * NS_PER_S


@dataclass(frozen=True, slots=True)
class Exposition:
    """What a scrape is answered with."""

    body: bytes
    content_type: str


class MetricsText:
    """The metrics of the newest snapshot as text. Any thread may ask; nothing is waited for.

    A snapshot that has grown old is exported with no GPU up, so that nothing stale looks fresh.

    Args:
        snapshots: Where snapshots come from.
        profile: Which metrics.
        clock: Tells how old a snapshot is.
    """

    def __init__(self, snapshots: SnapshotSource, profile: Profile, clock: Clock) -> None:
        metrics = metrics_of(profile)
        self._own = tuple(metric for metric in metrics if metric in EXPORT_METRICS)
        self._metrics = tuple(metric for metric in metrics if metric not in EXPORT_METRICS)
        self._snapshots = snapshots
        self._clock = clock
        self._faults = FaultCount()
        self._lock = Lock()
        self._source: NodeSnapshot | None = None
        self._source_is_stale = False
        self._rendered: dict[TextFormat, Exposition] = {}

    def exposition(self, accept: str | None = None) -> Exposition:
        """The metrics now, in the format that the `Accept` header asks for."""
        wanted = text_format(accept)
        with self._lock:
            shown = self._renewed()
            if wanted not in self._rendered:
                self._rendered[wanted] = Exposition(self._body(shown, wanted), wanted.value)
            return self._rendered[wanted]

    def _renewed(self) -> NodeSnapshot:
        """The snapshot to show; what was rendered is forgotten if it is another, or has aged."""
        snapshot = self._snapshots.latest()
        is_stale = self._clock.mono_ns() - snapshot.taken_mono_ns > STALE_NS
        if snapshot is not self._source or is_stale != self._source_is_stale:
            self._source, self._source_is_stale = snapshot, is_stale
            self._rendered.clear()
        return _without_gpus(snapshot) if is_stale else snapshot

    def _body(self, shown: NodeSnapshot, wanted: TextFormat) -> bytes:
        collector = SnapshotCollector(shown, self._metrics, self._own, self._faults)
        return exposition_text(collector.collect(), wanted).encode()


def _without_gpus(snapshot: NodeSnapshot) -> NodeSnapshot:
    """The snapshot with no GPU up."""
    gpus = tuple(replace(gpu, up=False, reading=DeviceReading()) for gpu in snapshot.gpus)
    return replace(snapshot, gpus=gpus, backend_up=False)

"""The agent's threads beside its main loop: recorder, store, taking in of traces, listeners.

Each is made and started on its own: one that does not start is said, and leaves the others and
sampling as they are.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from socket import socket
from typing import Final

from starlette.types import ASGIApp

from chopperd.agent.archiving import ArchiveThread
from chopperd.agent.counted_store import CountedStore
from chopperd.agent.ending import end_within
from chopperd.agent.health import Health
from chopperd.agent.ingest import IngestService
from chopperd.agent.new_ingest import new_ingest
from chopperd.agent.pause import PauseFile
from chopperd.agent.sockets import Sockets
from chopperd.agent.store_keeping import StoreKeeper
from chopperd.api.access import AccessPolicy
from chopperd.api.app import build_api, build_metrics
from chopperd.api.listeners import Listener
from chopperd.api.services import ApiServices
from chopperd.clock import Clock
from chopperd.config.sections import Config
from chopperd.export.metric import Profile
from chopperd.export.rendering import MetricsText
from chopperd.live.traced import TracedLedger
from chopperd.model.live import AnalysisLive, ArchiveLive, StoreLive, TracedTotals
from chopperd.model.services import SnapshotSource
from chopperd.report.formats import formatted
from chopperd.sampling.ring_reader import RingReader
from chopperd.store.capture_store import CaptureStore
from chopperd.store.flight_recorder import FlightRecorder
from chopperd.store.recorded_samples import RecordedSamples
from chopperd.store.recorder_files import RecorderLimits
from chopperd.store.retention import StoreLimits

logger = logging.getLogger(__name__)

_STORE_NAME: Final = "store.sqlite"
_RECORDER_NAME: Final = "recorder"


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the parts are made from.

    Attributes:
        config: All settings.
        state: The state folder.
        sockets: Where to listen.
        access: Who may ask for what.
        snapshots, pause, health: What the main loop offers.
        ring: The samples.
        clock: Tells the time.
    """

    config: Config
    state: Path
    sockets: Sockets
    access: AccessPolicy
    snapshots: SnapshotSource
    pause: PauseFile
    health: Health
    ring: Callable[[], RingReader | None]
    clock: Clock


class Parts:
    """All parts; `start` and `stop` are called once each, the rest from any thread."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._troubles: dict[str, str] = {}
        self._ledger = TracedLedger(around.clock)
        self._recorded = RecordedSamples(around.state / _RECORDER_NAME)
        self._archive: ArchiveThread | None = None
        self._keeper: StoreKeeper | None = None
        self._ingest: IngestService | None = None
        self._listeners: list[Listener] = []
        self._is_paused = False

    def start(self, is_stopping: Callable[[], bool]) -> None:
        """Make and start each part in turn; returns when all that can run do, or none is wanted."""
        for name, work in (
            ("archive", self._start_archive),
            ("store", self._open_store),
            ("ingest", self._make_ingest),
            ("listeners", self._start_listeners),
            ("ingest", self._start_ingest),
        ):
            if is_stopping():
                return
            self._attempt(name, work)

    def set_paused(self, paused: bool) -> None:
        """Have traces wait, or go on."""
        ingest = self._ingest
        if ingest is None or paused == self._is_paused:
            return
        self._is_paused = paused
        if paused:
            ingest.pause()
        else:
            ingest.resume()

    def archive(self) -> ArchiveLive:
        """How the flight recorder stands."""
        if self._archive is None:
            return ArchiveLive(trouble=self._troubles.get("archive"))
        return self._archive.live()

    def store(self) -> StoreLive:
        """How the store stands."""
        if self._keeper is None:
            return StoreLive(trouble=self._troubles.get("store"))
        return self._keeper.store.live()

    def analysis(self) -> AnalysisLive:
        """How the taking in of traces stands."""
        trouble = self._troubles.get("ingest")
        if self._ingest is None:
            return AnalysisLive(mode=self._around.config.analysis.mode, trouble=trouble)
        live = self._ingest.live()
        return replace(live, trouble=trouble) if trouble else live

    def traced(self) -> Mapping[str, TracedTotals]:
        """Sums over recent captures by GPU label."""
        return self._ledger.recent()

    def stop_serving(self, timeout_s: float) -> None:
        """Stop all but the flight recorder, which takes the last samples."""
        ends: dict[str, Callable[[], object]] = {
            f"listener {number}": listener.stop for number, listener in enumerate(self._listeners)
        }
        if self._ingest is not None:
            ends["ingest"] = self._ingest.stop
        end_within(ends, timeout_s, self._around.clock)

    def stop_keeping(self, timeout_s: float) -> None:
        """Write what is left and close what is on disk."""
        ends: dict[str, Callable[[], object]] = {}
        if self._archive is not None:
            ends["archive"] = self._archive.stop
        if self._keeper is not None:
            ends["store"] = self._keeper.stop
        end_within(ends, timeout_s, self._around.clock)

    def _attempt(self, name: str, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            logger.exception("%s can't be started; the agent goes on without", name)
            self._troubles[name] = f"it could not be started: {error!r}"

    def _start_archive(self) -> None:
        around = self._around
        limits = RecorderLimits(
            max_bytes=around.config.recorder.max_bytes,
            max_days=around.config.recorder.max_days,
            min_free_ratio=around.config.store.min_free_ratio,
        )
        recorder = FlightRecorder(self._recorded.folder, limits, around.clock)
        archive = ArchiveThread(
            recorder,
            around.ring,
            asked_hz=around.config.sampling.hz,
            clock=around.clock,
            damaged_count=lambda: self._recorded.damaged_count,
        )
        archive.start()
        self._archive = archive

    def _open_store(self) -> None:
        limits = StoreLimits(
            max_bytes=self._around.config.store.max_bytes,
            max_days=self._around.config.store.max_days,
            min_free_ratio=self._around.config.store.min_free_ratio,
        )
        path, clock = self._around.state / _STORE_NAME, self._around.clock
        self._keeper = StoreKeeper(CaptureStore.open(path, limits=limits, clock=clock))
        self._keeper.start()

    def _make_ingest(self) -> None:
        if self._keeper is None:
            raise RuntimeError("there is no store")
        store = CountedStore(self._keeper.store, self._ledger)
        self._ingest = new_ingest(
            self._around.config, self._around.state, store, self._around.clock
        )

    def _start_ingest(self) -> None:
        if self._ingest is not None:
            self.set_paused(self._around.pause.current() is not None)
            self._ingest.start()
            self._around.health.watch("ingest", self._ingest_is_alive)

    def _ingest_is_alive(self) -> bool:
        return self._ingest is not None and self._ingest.is_alive

    def _start_listeners(self) -> None:
        services = self._services()
        sockets = self._around.sockets
        on_metrics = [sockets.metrics] if sockets.metrics else []
        on_api = [each for each in (sockets.api, sockets.api_local) if each is not None]
        self._listen("metrics", lambda: build_metrics(services), on_metrics, blocking_threads=0)
        self._listen("api", lambda: build_api(services), on_api, blocking_threads=2)

    def _listen(
        self, name: str, build: Callable[[], ASGIApp], on: list[socket], *, blocking_threads: int
    ) -> None:
        if not on:
            return

        def start() -> None:
            listener = Listener(build(), on, name, blocking_threads=blocking_threads)
            self._listeners.append(listener)
            listener.start()
            self._around.health.watch(name, lambda: listener.is_serving)

        self._attempt(name, start)

    def _services(self) -> ApiServices:
        around = self._around
        if self._keeper is None or self._ingest is None:
            raise RuntimeError("there is no store")
        profile = Profile[around.config.metrics.profile.upper()]
        text = MetricsText(around.snapshots, profile, around.clock)

        def metrics(accept: str | None) -> tuple[bytes, str]:
            exposition = text.exposition(accept)
            return exposition.body, exposition.content_type

        return ApiServices(
            snapshots=around.snapshots,
            steps=self._keeper.store,
            samples=self._recorded,
            ingest=self._ingest,
            pause=around.pause,
            health=around.health,
            render_document=formatted,
            metrics=metrics,
            clock=around.clock,
            access=around.access,
        )

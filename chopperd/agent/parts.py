"""The agent's threads beside its main loop: store, listeners, flight recorder, taking in of traces.

Each is made and started on its own: one that does not start is said, and leaves the others and
sampling as they are. What a part needs is imported when its turn comes, so that metrics are served
before what takes traces in is loaded.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, NoReturn

from chopperd.agent.context import Surroundings
from chopperd.agent.lifecycle import end_within
from chopperd.api.app import build_api, build_metrics
from chopperd.api.listeners import Listener
from chopperd.api.routing import ApiServices
from chopperd.errors import IngestError, IngestReason, StoreError
from chopperd.export.catalogue import profile_named
from chopperd.export.rendering import MetricsText
from chopperd.live.traced import TracedLedger
from chopperd.model.captures import TraceEntry
from chopperd.model.live import (
    AnalysisLive,
    ArchiveLive,
    GpuLive,
    GuardedPart,
    StoreLive,
    TracedTotals,
)
from chopperd.model.services import DropSource, Ingest, SampleSource, StepSource, Upload
from chopperd.report.forms.schema import formatted
from chopperd.store.recorder.reader import RecordedSamples

if TYPE_CHECKING:
    from chopperd.agent.storage import ArchiveThread, StoreKeeper
    from chopperd.api.listeners import Listener
    from chopperd.api.routing import ApiServices
    from chopperd.ingest.service import IngestService
    from chopperd.store.captures.capture_store import CaptureStore


# The listeners for metrics and API, and what they answer from.


def new_services(
    around: Surroundings,
    *,
    steps: StepSource,
    drops: DropSource,
    samples: SampleSource,
    ingest: Ingest,
) -> ApiServices:
    """What both listeners answer from."""
    profile = profile_named(around.config.metrics.profile)
    text = MetricsText(around.snapshots, profile, around.clock)

    def metrics(accept: str | None) -> tuple[bytes, str]:
        exposition = text.exposition(accept)
        return exposition.body, exposition.content_type

    return ApiServices(
        snapshots=around.snapshots,
        steps=steps,
        drops=drops,
        samples=samples,
        ingest=ingest,
        pause=around.pause,
        health=around.health,
        render_document=formatted,
        metrics=metrics,
        clock=around.clock,
        access=around.access,
        failed=lambda _path: around.health.note_fault(GuardedPart.REQUEST),
    )


def metrics_listener(around: Surroundings, services: ApiServices) -> Listener | None:
    """What serves metrics and health, not started; None where nothing is to."""
    listening = around.sockets.metrics
    if listening is None:
        return None
    return Listener(build_metrics(services), [listening], "metrics", blocking_threads=0)


def api_listener(around: Surroundings, services: ApiServices) -> Listener | None:
    """What serves the API, not started; None where nothing is to."""
    sockets = (around.sockets.api, around.sockets.api_local)
    listening = [each for each in sockets if each is not None]
    return Listener(build_api(services), listening, "api") if listening else None


# What is asked in place of a store that can't be had.


class AbsentStore:
    """Knows no steps and no drops (`model.services.StepSource`, `DropSource`), and says why.

    Args:
        trouble: Why there is no store, for people.
    """

    def __init__(self, trouble: str) -> None:
        self._trouble = trouble

    def _refuse(self, *_asked: object, **_for: object) -> NoReturn:
        raise StoreError(f"there is no store: {self._trouble}")

    jobs = steps = step = kernels = latest_document = traces = trace = drops = _refuse


# The taking in of traces as the API has it: before it is there, and where it never will be.


class DeferredIngest:
    """Refuses traces (`model.services.Ingest`) until it is given what takes them in."""

    def __init__(self) -> None:
        self._ingest: Ingest | None = None
        self._trouble = "the agent has just started"

    def give(self, ingest: Ingest) -> None:
        """Take traces in from now on."""
        self._ingest = ingest

    def give_up(self, trouble: str) -> None:
        """Say why there will be none."""
        self._trouble = trouble

    def open_upload(
        self,
        *,
        name: str,
        job: str | None,
        owner_uid: int | None,
        expected_bytes: int | None,
        device_map: str | None = None,
    ) -> Upload:
        """Begin to take a trace.

        Raises:
            IngestError: Traces are not taken in now, or it is too large.
        """
        return self._there().open_upload(
            name=name,
            job=job,
            owner_uid=owner_uid,
            expected_bytes=expected_bytes,
            device_map=device_map,
        )

    def take_file(
        self,
        path: str,
        *,
        job: str | None,
        owner_uid: int | None,
        device_map: str | None = None,
    ) -> tuple[TraceEntry, bool]:
        """Take a copy of a file under `ingest.roots`.

        Raises:
            IngestError: Traces are not taken in now, or this file can't be.
        """
        return self._there().take_file(path, job=job, owner_uid=owner_uid, device_map=device_map)

    def _there(self) -> Ingest:
        if self._ingest is None:
            text = f"traces are not taken in: {self._trouble}"
            raise IngestError(text, reason=IngestReason.BUSY)
        return self._ingest


logger = logging.getLogger(__name__)

_STORE: Final = "the store"
_ARCHIVE: Final = "the flight recorder"
_INGEST: Final = "the taking in of traces"


class Parts:
    """All parts; `start` and the stops are called once each, the rest from any thread.

    Args:
        around: What they are made from.
    """

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._troubles: dict[str, str] = {}
        self._ledger = TracedLedger(around.clock)
        self._recorded = RecordedSamples(around.recorder_folder)
        self._deferred_ingest = DeferredIngest()
        self._archive: ArchiveThread | None = None
        self._keeper: StoreKeeper | None = None
        self._services: ApiServices | None = None
        self._listeners: list[Listener] = []
        self._ingest: IngestService | None = None
        self._is_paused = False

    def start(self, is_stopping: Callable[[], bool]) -> None:
        """Make and start each part in turn; returns when all that can run do, or none is wanted."""
        for name, work in (
            (_STORE, self._open_store),
            ("the metrics listener", self._serve_metrics),
            (_ARCHIVE, self._start_archive),
            (_INGEST, self._start_ingest),
            ("the API listener", self._serve_api),
        ):
            if is_stopping():
                return
            self._attempt(name, work)

    def set_paused(self, *, paused: bool) -> None:
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
            return ArchiveLive(trouble=self._troubles.get(_ARCHIVE))
        return self._archive.live()

    def store(self) -> StoreLive:
        """How the store stands."""
        if self._keeper is None:
            return StoreLive(trouble=self._troubles.get(_STORE))
        return self._keeper.store.live()

    def analysis(self) -> AnalysisLive:
        """How the taking in of traces stands."""
        if self._ingest is None:
            mode, trouble = self._around.config.analysis.mode, self._troubles.get(_INGEST)
            return AnalysisLive(mode=mode, trouble=trouble)
        return self._ingest.live()

    def traced(self, gpus: Iterable[GpuLive]) -> Mapping[str, TracedTotals]:
        """Sums over recent captures by GPU label.

        Args:
            gpus: As they stand now.
        """
        return self._ledger.recent({gpu.info.gpu: gpu.processes for gpu in gpus})

    def stop_serving(self, timeout_s: float) -> None:
        """Stop all but what keeps the last samples."""
        ends: dict[str, Callable[[], object]] = {
            f"listener-{number}": listener.stop for number, listener in enumerate(self._listeners)
        }
        if self._ingest is not None:
            ends["ingest"] = self._ingest.stop
        end_within(ends, timeout_s, self._around.clock)

    def stop_keeping(self, timeout_s: float) -> None:
        """Write what is left and close what is on disk."""
        ends: dict[str, Callable[[], object]] = {}
        if self._archive is not None:
            ends["archive"] = partial(self._archive.stop, timeout_s)
        if self._keeper is not None:
            ends["store"] = self._keeper.stop
        end_within(ends, timeout_s, self._around.clock)

    def _attempt(self, name: str, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            logger.exception("%s can't be started; the agent goes on without", name)
            self._around.health.note_fault(GuardedPart.START)
            self._troubles[name] = trouble = f"it could not be started: {error!r}"
            if name == _INGEST:
                self._deferred_ingest.give_up(trouble)

    def _open_store(self) -> None:
        from chopperd.agent.storage import opened_store

        self._keeper = opened_store(self._around)
        self._keeper.start()

    def _serve_metrics(self) -> None:

        store: CaptureStore | AbsentStore
        store = AbsentStore(self._troubles[_STORE]) if self._keeper is None else self._keeper.store
        self._services = new_services(
            self._around,
            steps=store,
            drops=store,
            samples=self._recorded,
            ingest=self._deferred_ingest,
        )
        self._serve("metrics", metrics_listener(self._around, self._services))

    def _serve_api(self) -> None:

        if self._services is not None:
            self._serve("api", api_listener(self._around, self._services))

    def _serve(self, name: str, listener: "Listener | None") -> None:
        if listener is not None:
            self._listeners.append(listener)
            listener.start()
            self._around.health.watch(f"{name} listener", lambda: listener.is_serving)

    def _start_archive(self) -> None:
        from chopperd.agent.storage import new_archive

        archive = new_archive(self._around, self._recorded)
        archive.start()
        self._archive = archive

    def _start_ingest(self) -> None:
        from chopperd.ingest.service import new_ingest
        from chopperd.ingest.trace_store import CountedStore

        if self._keeper is None:
            raise RuntimeError(self._troubles[_STORE])
        store, around = CountedStore(self._keeper.store, self._ledger), self._around
        note_fault = partial(around.health.note_fault, GuardedPart.ANALYSIS)
        ingest = new_ingest(around.config, around.state, store, around.clock, note_fault=note_fault)
        self._ingest = ingest
        self.set_paused(paused=around.pause.current() is not None)
        ingest.start()
        self._deferred_ingest.give(ingest)
        around.health.watch("trace taking", lambda: ingest.is_alive)

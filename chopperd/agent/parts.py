"""The agent's snapshots, and its threads: store, listeners, flight recorder and ingest.

Each is started on its own: one that fails to start is logged, and neither the others nor sampling
are affected. Storage and ingest are imported when their turn comes, so that metrics are served
before ingest is loaded.
"""

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from msgspec.structs import replace

from chopperd import __version__
from chopperd.agent.lifecycle import Health, end_within
from chopperd.agent.pause import PauseFile
from chopperd.agent.sockets import Sockets
from chopperd.api.access import AccessPolicy
from chopperd.api.app import build_api, build_metrics
from chopperd.api.listeners import Listener
from chopperd.api.routing import ApiServices
from chopperd.clock import Clock
from chopperd.config.paths import RECORDER_FOLDER, node_name
from chopperd.config.sections import Config, RecorderConfig, StoreConfig
from chopperd.errors import IngestError, IngestReason, StoreError
from chopperd.export.metric import Profile
from chopperd.export.rendering import MetricsText
from chopperd.live.node import LiveNode, ProcessCosts
from chopperd.live.traced import TracedLedger
from chopperd.model import live
from chopperd.model.captures import TraceEntry
from chopperd.model.services import Ingest, Upload
from chopperd.report.forms.schema import formatted
from chopperd.store.disk import DiskLimits
from chopperd.store.recorder.reader import RecordedSamples
from chopperd.units import NS_PER_S

if TYPE_CHECKING:
    from chopperd.agent.sampling import Sampling
    from chopperd.agent.storage import ArchiveThread, StoreKeeper
    from chopperd.ingest.service import IngestService
    from chopperd.sampling.memory.ring_reader import RingReader
    from chopperd.store.captures.capture_store import CaptureStore


_EVERY_NS: Final = NS_PER_S
#: A GPU without a sample this long after the ring was first seen is down.
_COMING_NS: Final = 3 * NS_PER_S


class Snapshots:
    """Takes snapshots (`model.services.SnapshotSource`); `latest` is for any thread.

    `drops` are those of the busy clock, to be stored; `faults` counts caught faults by part.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        node: str,
        backend: str,
        slow_hz: float,
        faults: Callable[[], Mapping[live.GuardedPart, int]],
        self_test: live.SelfTestLive | None = None,
    ) -> None:
        self._clock, self._faults, self._self_test = clock, faults, self_test or live.SelfTestLive()
        self._costs = ProcessCosts(clock)
        self._due_ns = 0
        self._ring_seen_ns: int | None = None
        self._node = LiveNode(
            clock, version=__version__, node=node, backend=backend, slow_hz=slow_hz
        )
        self.drops = self._node.drops
        self._latest = self._node.snapshot(
            live.SamplerLive(condition=live.SamplerCondition.STARTING)
        )

    def latest(self) -> live.NodeSnapshot:
        """Return the newest snapshot."""
        return self._latest

    def take_if_due(
        self, sampling: "Sampling", pause: live.Pause | None, parts: "Parts | None"
    ) -> live.NodeSnapshot | None:
        """Take a snapshot if the last is a second old or GPUs are about to appear; else None."""
        now_ns = self._clock.mono_ns()
        if now_ns < self._due_ns and not self._gpus_are_coming(sampling, now_ns):
            return None
        if now_ns >= self._due_ns:
            following_ns = self._due_ns + _EVERY_NS
            self._due_ns = following_ns if following_ns > now_ns else now_ns + _EVERY_NS
        self._node.follow(sampling.ring)
        sampler = sampling.live()
        pids: dict[str, int | None] = {"agent": os.getpid(), "sampler": sampler.pid}
        if parts is None:
            snapshot = self._node.snapshot(sampler)
        else:
            analysis = parts.analysis()
            pids["worker"] = analysis.worker_pid
            snapshot = replace(
                self._node.snapshot(sampler, parts.traced(self._latest.gpus)),
                archive=parts.archive(),
                store=parts.store(),
                analysis=analysis,
            )
        self._latest = replace(
            snapshot,
            pause=pause,
            processes=self._costs.read(pids),
            self_test=self._self_test,
            faults=self._faults(),
        )
        return self._latest

    def _gpus_are_coming(self, sampling: "Sampling", now_ns: int) -> bool:
        """Whether sampling has just begun and some GPU has no sample yet.

        A scrape that comes soon after the start then finds them all.
        """
        if sampling.ring is None:
            return False
        if self._ring_seen_ns is None:
            self._ring_seen_ns = now_ns
        gpus = self._latest.gpus
        is_new = now_ns - self._ring_seen_ns < _COMING_NS
        return not gpus or (is_new and not all(gpu.up for gpu in gpus))


logger = logging.getLogger(__name__)

_STORE: Final = "the store"
_ARCHIVE: Final = "the flight recorder"
_INGEST: Final = "the taking in of traces"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentContext:
    """Configuration and services that the agent's parts share."""

    config: Config
    state: Path  # the state folder
    sockets: Sockets
    access: AccessPolicy
    snapshots: Snapshots
    pause: PauseFile
    health: Health
    ring: "Callable[[], RingReader | None]"  # the samples
    clock: Clock


class AbsentStore:
    """Replaces a store that could not be opened (`StepSource`, `DropSource`): all calls raise."""

    def __init__(self, problem: str) -> None:
        self._problem = problem

    def _refuse(self, *_args: object, **_kwargs: object) -> NoReturn:
        raise StoreError(f"there is no store: {self._problem}")

    jobs = steps = step = kernels = latest_document = traces = trace = drops = _refuse


class DeferredIngest:
    """Refuses traces (`model.services.Ingest`) until ingest has started."""

    open_upload: Callable[..., Upload]
    take_file: Callable[..., tuple[TraceEntry, bool]]

    def __init__(self) -> None:
        self.refuse("the agent has just started")

    def refuse(self, problem: str) -> None:
        """Refuse traces from now on, with this reason."""

        def refused(*_args: object, **_kwargs: object) -> NoReturn:
            text = f"traces are not taken in: {problem}"
            raise IngestError(text, reason=IngestReason.BUSY)

        self.open_upload = self.take_file = refused

    def accept(self, ingest: Ingest) -> None:
        """Pass traces to `ingest` from now on."""
        self.open_upload, self.take_file = ingest.open_upload, ingest.take_file


class Parts:
    """Starts and stops all parts; `start` and the stops run once each, the rest in any thread."""

    def __init__(self, context: AgentContext) -> None:
        self._context = context
        self._problems: dict[str, str] = {}
        self._ledger = TracedLedger(context.clock)
        self._recorded = RecordedSamples(context.state / RECORDER_FOLDER)
        self._deferred_ingest = DeferredIngest()
        self._archive: ArchiveThread | None = None
        self._keeper: StoreKeeper | None = None
        self._services: ApiServices | None = None
        self._listeners: list[Listener] = []
        self._ingest: IngestService | None = None
        self._is_paused = False

    def start(self, is_stopping: Callable[[], bool]) -> None:
        """Start each part in turn, until all that can start have, or the agent is stopping."""
        for name, work in (
            (_STORE, self._open_store),
            ("the metrics listener", self._serve_metrics),
            (_ARCHIVE, self._start_archive),
            (_INGEST, self._start_ingest),
            ("the API listener", self._serve_api),
        ):
            if is_stopping():
                return
            try:
                work()
            except Exception as error:
                logger.exception("%s can't be started; the agent goes on without", name)
                self._context.health.note_fault(live.GuardedPart.START)
                self._problems[name] = problem = f"it could not be started: {error!r}"
                if name == _INGEST:
                    self._deferred_ingest.refuse(problem)

    def set_paused(self, *, paused: bool) -> None:
        """Pause or resume ingest."""
        if self._ingest is not None and paused != self._is_paused:
            self._is_paused = paused
            (self._ingest.pause if paused else self._ingest.resume)()

    def archive(self) -> live.ArchiveLive:
        """Return the flight recorder's state."""
        trouble = self._problems.get(_ARCHIVE)
        return self._archive.live() if self._archive else live.ArchiveLive(trouble=trouble)

    def store(self) -> live.StoreLive:
        """Return the store's state."""
        trouble = self._problems.get(_STORE)
        return self._keeper.store.live() if self._keeper else live.StoreLive(trouble=trouble)

    def analysis(self) -> live.AnalysisLive:
        """Return the state of ingest."""
        if self._ingest is None:
            mode = self._context.config.analysis.mode
            return live.AnalysisLive(mode=mode, trouble=self._problems.get(_INGEST))
        return self._ingest.live()

    def traced(self, gpus: Iterable[live.GpuLive]) -> Mapping[str, live.TracedTotals]:
        """Return sums over recent captures by GPU label; `gpus` gives the processes of now."""
        return self._ledger.recent({gpu.info.gpu: gpu.processes for gpu in gpus})

    def stop_serving(self, timeout_s: float) -> None:
        """Stop listeners and ingest; store and flight recorder go on."""
        ends: dict[str, Callable[[], object]] = {
            f"listener-{number}": listener.stop for number, listener in enumerate(self._listeners)
        }
        if self._ingest is not None:
            ends["ingest"] = self._ingest.stop
        end_within(ends, timeout_s, self._context.clock)

    def stop_storing(self, timeout_s: float) -> None:
        """Write the last samples and drops, and close store and flight recorder."""
        ends: dict[str, Callable[[], object]] = {}
        if self._archive is not None:
            ends["archive"] = partial(self._archive.stop, timeout_s)
        if self._keeper is not None:
            ends["store"] = self._keeper.stop
        end_within(ends, timeout_s, self._context.clock)

    def _limits(self, settings: StoreConfig | RecorderConfig) -> DiskLimits:
        return DiskLimits(
            max_bytes=settings.max_bytes,
            max_days=settings.max_days,
            min_free_ratio=self._context.config.store.min_free_ratio,
        )

    def _open_store(self) -> None:
        from chopperd.agent.storage import StoreKeeper
        from chopperd.store.captures.capture_store import CaptureStore

        context, limits = self._context, self._limits(self._context.config.store)
        path = context.state / "store.sqlite"
        store = CaptureStore(path, limits=limits, clock=context.clock)
        note_fault = partial(context.health.note_fault, live.GuardedPart.STORE)
        self._keeper = StoreKeeper(store, context.snapshots.drops, context.clock, note_fault)
        self._keeper.start()

    def _start_archive(self) -> None:
        from chopperd.agent.storage import ArchiveThread
        from chopperd.store.recorder.writer import FlightRecorder

        context, config = self._context, self._context.config
        limits = self._limits(config.recorder)
        archive = ArchiveThread(
            FlightRecorder(self._recorded.folder, limits, context.clock),
            context.ring,
            node=node_name(config),
            asked_hz=config.sampling.hz,
            clock=context.clock,
            damaged_count=lambda: self._recorded.damaged_count,
            note_fault=partial(context.health.note_fault, live.GuardedPart.RECORDER),
        )
        archive.start()
        self._archive = archive

    def _start_ingest(self) -> None:
        from chopperd.ingest.service import new_ingest

        if self._keeper is None:
            raise RuntimeError(self._problems[_STORE])
        context = self._context
        self._ingest = ingest = new_ingest(
            context.config,
            context.state,
            self._keeper.store,
            context.clock,
            count_document=self._ledger.add,
            note_fault=partial(context.health.note_fault, live.GuardedPart.ANALYSIS),
        )
        self.set_paused(paused=context.pause.current() is not None)
        ingest.start()
        self._deferred_ingest.accept(ingest.uploads)
        context.health.watch("trace taking", lambda: ingest.is_alive)

    def _serve_metrics(self) -> None:
        context = self._context
        store: CaptureStore | AbsentStore
        store = AbsentStore(self._problems[_STORE]) if self._keeper is None else self._keeper.store
        profile = Profile[context.config.metrics.profile.upper()]
        self._services = ApiServices(
            snapshots=context.snapshots,
            steps=store,
            drops=store,
            samples=self._recorded,
            ingest=self._deferred_ingest,
            pause=context.pause,
            health=context.health,
            render_document=formatted,
            metrics=MetricsText(context.snapshots, profile, context.clock).exposition,
            clock=context.clock,
            access=context.access,
            failed=lambda _path: context.health.note_fault(live.GuardedPart.REQUEST),
        )
        if (listening := context.sockets.metrics) is not None:
            app = build_metrics(self._services)
            self._serve(Listener(app, [listening], "metrics", blocking_threads=0), "metrics")

    def _serve_api(self) -> None:
        sockets = self._context.sockets
        listening = [each for each in (sockets.api, sockets.api_local) if each is not None]
        if self._services is not None and listening:
            self._serve(Listener(build_api(self._services), listening, "api"), "api")

    def _serve(self, listener: Listener, name: str) -> None:
        self._listeners.append(listener)
        listener.start()
        self._context.health.watch(f"{name} listener", lambda: listener.is_serving)

"""Hand-written stand-ins for what the agent gives the API, over a few entries that tests set."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from chopperd.api.access import AccessPolicy
from chopperd.api.routing import ApiServices, DocumentForm
from chopperd.errors import IngestError, IngestReason
from chopperd.model.captures import (
    DeviceKernels,
    DropQuery,
    GpuDrop,
    JobEntry,
    StepPage,
    StepQuery,
    TraceEntry,
    TraceState,
    Viewer,
)
from chopperd.model.devices import DeviceReading
from chopperd.model.kinds import Cause
from chopperd.model.live import (
    GpuLive,
    LiveTotals,
    NodeSnapshot,
    Pause,
    SamplerCondition,
    SamplerLive,
)
from chopperd.model.report import FIELDS, ReportDocument
from chopperd.model.report_rows import Row
from chopperd.model.samples import SampleSet
from chopperd.model.services import Upload
from tests.fakes.clock import ScriptedClock
from tests.fakes.samples import gpu_info

OWNER_UID = 1000
STRANGER_UID = 1001
ADMIN_UID = 1002
AGENT_UID = 990
#: Of the document.
CAPTURE = 7
TOKEN = "0123456789abcdef-secret"


def gpu_live(index: int = 0, *, up: bool = True) -> GpuLive:
    reading = DeviceReading(
        sm_clock_mhz=1500.0, power_w=400.0, causes=frozenset({Cause.THERMAL, Cause.POWER_CAP})
    )
    return GpuLive(
        info=replace(gpu_info(index), pci_bus_id=f"00000000:6{index}:00.0"),
        up=up,
        last_sample_unix_ns=1_800_000_000_000_000_000 if up else None,
        reading=reading if up else DeviceReading(),
        totals=LiveTotals(sm_cycles=1e12, sampled_s=700.0, lost_s={Cause.POWER_CAP: 3.5}),
        excess_s=None,
        residency_s={float("inf"): 1.0, 1500.0: 2.0},
        ticks_count=10,
        missed_count=1,
        failed_count=0,
        lost_count=0,
        driver_s=0.25,
        asked_hz=10.0,
        kept_hz=10.0,
        hung=None,
    )


def snapshot(clock: ScriptedClock, *, gpus: int = 2, backend_up: bool = True) -> NodeSnapshot:
    return NodeSnapshot(
        taken_unix_ns=clock.unix_ns(),
        taken_mono_ns=clock.mono_ns(),
        started_unix_ns=clock.unix_ns() - 60 * 10**9,
        version="1.2.3",
        node="node-a",
        backend="simulated",
        backend_up=backend_up,
        driver="1.0",
        simulated=True,
        gpus=tuple(gpu_live(index, up=backend_up) for index in range(gpus)),
        sampler=SamplerLive(condition=SamplerCondition.RUNNING, pid=77),
    )


def step_row(step: int, *, job: str | None = "train", run: str | None = "r1", **more: int) -> Row:
    return Row(
        job=job,
        run=run,
        rank=more.get("rank", 0),
        step=step,
        step_source="profiler_step",
        device=0,
        gpu="0",
        partial=False,
        partial_reasons=(),
        host_only=False,
    )


@dataclass
class FakeSnapshots:
    clock: ScriptedClock
    current: NodeSnapshot

    def latest(self) -> NodeSnapshot:
        return self.current

    def renew(self) -> None:
        self.current = replace(
            self.current, taken_unix_ns=self.clock.unix_ns(), taken_mono_ns=self.clock.mono_ns()
        )


@dataclass
class FakeSteps:
    """All entries are of `OWNER_UID`; each question is noted with who asked."""

    rows: list[Row] = field(default_factory=list)
    device_kernels: list[DeviceKernels] = field(default_factory=list)
    document: ReportDocument | None = None
    entries: list[TraceEntry] = field(default_factory=list)
    asked: list[tuple[StepQuery, int, str | None]] = field(default_factory=list)
    error: Exception | None = None
    wait: Callable[[], object] = lambda: None

    def _see(self, viewer: Viewer) -> bool:
        self.wait()
        if self.error is not None:
            raise self.error
        return viewer.may_see(OWNER_UID)

    def jobs(self, viewer: Viewer) -> tuple[JobEntry, ...]:
        if not self._see(viewer):
            return ()
        names = dict.fromkeys(row.job for row in self.rows)
        return tuple(
            JobEntry(job=name, runs=("r1",), traces=1, captures=1, first_unix_ns=1, last_unix_ns=2)
            for name in names
        )

    def steps(
        self, query: StepQuery, viewer: Viewer, *, limit: int, cursor: str | None
    ) -> StepPage:
        self.asked.append((query, limit, cursor))
        if cursor not in (None, "next"):
            raise ValueError(cursor)
        rows = tuple(self.rows) if self._see(viewer) else ()
        return StepPage(steps=rows[:limit], cursor="next" if len(rows) > limit else None)

    def step(self, step: int, query: StepQuery, viewer: Viewer) -> tuple[Row, ...]:
        if not self._see(viewer):
            return ()
        return tuple(
            row
            for row in self.rows
            if row.step == step and query.job in (None, row.job) and query.run in (None, row.run)
        )

    def kernels(self, step: int, query: StepQuery, viewer: Viewer) -> tuple[DeviceKernels, ...]:
        if not self.step(step, query, viewer):
            return ()
        return tuple(self.device_kernels)

    def latest_document(
        self, job: str | None, viewer: Viewer, capture: int | None = None
    ) -> ReportDocument | None:
        is_wanted = job in (None, "train") and capture in (None, CAPTURE)
        return self.document if self._see(viewer) and is_wanted else None

    def traces(self, viewer: Viewer, *, limit: int) -> tuple[TraceEntry, ...]:
        return tuple(self.entries[:limit]) if self._see(viewer) else ()

    def trace(self, trace_id: str, viewer: Viewer) -> TraceEntry | None:
        mine = self.entries if self._see(viewer) else []
        return next((each for each in mine if each.id == trace_id), None)


@dataclass
class FakeUpload:
    """Counts and hashes what comes, and keeps none of it."""

    ingest: "FakeIngest"
    name: str
    job: str | None
    owner_uid: int | None
    digest: "hashlib._Hash" = field(default_factory=hashlib.sha256)
    taken_bytes: int = 0

    def write(self, data: bytes) -> None:
        self.taken_bytes += len(data)
        self.digest.update(data)
        if self.taken_bytes > self.ingest.max_bytes:
            raise IngestError("the trace is too large", reason=IngestReason.TOO_LARGE)

    def finish(self) -> tuple[TraceEntry, bool]:
        entry = trace_entry(self.digest.hexdigest()[:16], name=self.name, job=self.job)
        entry = replace(entry, owner_uid=self.owner_uid, stored_bytes=self.taken_bytes)
        return self.ingest.keep(entry)

    def abort(self) -> None:
        self.ingest.aborted.append(self.name)


def trace_entry(trace_id: str, *, name: str = "a.json", job: str | None = None) -> TraceEntry:
    return TraceEntry(
        id=trace_id,
        name=name,
        job=job,
        owner_uid=OWNER_UID,
        state=TraceState.QUEUED,
        reason=None,
        stored_bytes=3,
        received_unix_ns=1,
    )


@dataclass
class FakeIngest:
    max_bytes: int = 2**50
    refusal: IngestError | None = None
    taken: list[TraceEntry] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    expected: list[int | None] = field(default_factory=list)
    device_maps: list[str | None] = field(default_factory=list)

    def keep(self, entry: TraceEntry) -> tuple[TraceEntry, bool]:
        is_new = all(each.id != entry.id for each in self.taken)
        if is_new:
            self.taken.append(entry)
        return entry, is_new

    def open_upload(
        self,
        *,
        name: str,
        job: str | None,
        owner_uid: int | None,
        expected_bytes: int | None,
        device_map: str | None = None,
    ) -> Upload:
        self.expected.append(expected_bytes)
        self.device_maps.append(device_map)
        if self.refusal is not None:
            raise self.refusal
        if expected_bytes is not None and expected_bytes > self.max_bytes:
            raise IngestError("the trace is too large", reason=IngestReason.TOO_LARGE)
        return FakeUpload(self, name, job, owner_uid)

    def take_file(
        self, path: str, *, job: str | None, owner_uid: int | None, device_map: str | None = None
    ) -> tuple[TraceEntry, bool]:
        self.device_maps.append(device_map)
        if self.refusal is not None:
            raise self.refusal
        entry = trace_entry(hashlib.sha256(path.encode()).hexdigest()[:16], name=path, job=job)
        return self.keep(replace(entry, owner_uid=owner_uid))


@dataclass
class FakeDrops:
    """Gives what it holds, and notes what was asked."""

    held: list[GpuDrop] = field(default_factory=list)
    asked: list[tuple[DropQuery, int]] = field(default_factory=list)

    def drops(self, query: DropQuery, *, limit: int) -> tuple[GpuDrop, ...]:
        self.asked.append((query, limit))
        return tuple(self.held[:limit])


@dataclass
class FakeSamples:
    """Gives the samples of the time that is asked for, and notes what was asked."""

    held: SampleSet | None = None
    asked: list[tuple[int, int]] = field(default_factory=list)

    def between(
        self, from_unix_ns: int, to_unix_ns: int, gpus: Sequence[str] | None = None
    ) -> SampleSet | None:
        self.asked.append((from_unix_ns, to_unix_ns))
        if self.held is None:
            return None
        wanted = [each for each in self.held.gpus if gpus is None or each.gpu.gpu in gpus]
        return replace(self.held, gpus=tuple(wanted))


@dataclass
class FakePause:
    clock: ScriptedClock
    snapshots: FakeSnapshots

    def pause(self, reason: str, for_s: float | None) -> Pause:
        until = None if for_s is None else self.clock.unix_ns() + round(for_s * 10**9)
        paused = Pause(reason=reason, until_unix_ns=until)
        self.snapshots.current = replace(self.snapshots.current, pause=paused)
        return paused

    def resume(self) -> None:
        self.snapshots.current = replace(self.snapshots.current, pause=None)


@dataclass
class FakeHealth:
    why: str | None = None

    def trouble(self) -> str | None:
        return self.why


@dataclass
class FakeAgent:
    """All of them together."""

    clock: ScriptedClock = field(default_factory=ScriptedClock)
    steps: FakeSteps = field(default_factory=FakeSteps)
    drops: FakeDrops = field(default_factory=FakeDrops)
    samples: FakeSamples = field(default_factory=FakeSamples)
    ingest: FakeIngest = field(default_factory=FakeIngest)
    health: FakeHealth = field(default_factory=FakeHealth)
    failures: list[str] = field(default_factory=list)
    accepted: list[str | None] = field(default_factory=list)
    agent_uid: int = AGENT_UID
    is_member: Callable[[int, str], bool] = lambda uid, group: (
        uid == ADMIN_UID and group == "chopperd"
    )
    snapshots: FakeSnapshots = field(init=False)

    def __post_init__(self) -> None:
        self.snapshots = FakeSnapshots(self.clock, snapshot(self.clock))

    def services(self) -> ApiServices:
        return ApiServices(
            snapshots=self.snapshots,
            steps=self.steps,
            drops=self.drops,
            samples=self.samples,
            ingest=self.ingest,
            pause=FakePause(self.clock, self.snapshots),
            health=self.health,
            render_document=_rendered,
            metrics=self._metrics,
            clock=self.clock,
            access=AccessPolicy(
                agent_uid=self.agent_uid,
                admin_group="chopperd",
                token=TOKEN,
                is_member=self.is_member,
            ),
            failed=self.failures.append,
        )

    def _metrics(self, accept: str | None) -> tuple[bytes, str]:
        self.accepted.append(accept)
        return b"# no metrics\n", "text/plain; version=0.0.4; charset=utf-8"


def _rendered(document: ReportDocument, form: DocumentForm) -> str:
    """The form, and how many families, operations, layers and phases the document has."""
    rows = (*document.totals, *document.steps)
    parts = sum(
        len(getattr(each, field, ()))
        for each in (*rows, *document.host)
        for field in FIELDS.values()
    )
    return f'{{"form": "{form}", "parts": {parts}}}'

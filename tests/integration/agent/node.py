"""A node's taking in of traces on a folder of its own: real threads, workers and store."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from chopperd.clock import SystemClock
from chopperd.config.load import load_config
from chopperd.ingest.service import IngestService, new_ingest, worker_command
from chopperd.model.captures import TraceEntry, TraceState, Viewer
from chopperd.model.report import ReportDocument
from chopperd.store.captures.capture_store import CaptureStore
from chopperd.store.captures.schema import document_of
from chopperd.store.disk import DiskLimits
from chopperd.units import NS_PER_S
from tests.waiting import wait_for

CLOCK: Final = SystemClock()
ADMIN: Final = Viewer(uid=None, is_admin=True)
MIB: Final = 1 << 20
#: The first second of traces made here; long past, so that no sample is waited for.
BASE_S: Final = 1_750_000_000
OVER: Final = frozenset(TraceState) - {TraceState.QUEUED, TraceState.SPOOLED}

SCRIPTED: Final = (
    sys.executable,
    str(Path(__file__).with_name("scripted_worker.py")),
    str(300 * MIB),
)


def trace(
    second: int = 0, *, rank: int | None = None, busy_us: int = 30, kernel: str = "k"
) -> bytes:
    """A trace of one step with one kernel, which begins in the `second`-th second."""
    identity = "" if rank is None else f'"distributedInfo": {{"rank": {rank}}}, '
    base_ns = (BASE_S + second) * NS_PER_S
    return f"""{{"schemaVersion": 1, {identity}"baseTimeNanoseconds": {base_ns}, "traceEvents": [
        {{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "pid": 1, "tid": 1,
          "ts": 1000, "dur": 100, "args": {{}}}},
        {{"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1,
          "ts": 1001, "dur": 5, "args": {{"correlation": 1}}}},
        {{"ph": "X", "cat": "kernel", "name": "{kernel}", "pid": 0, "tid": 7, "ts": 1010,
          "dur": {busy_us}, "args": {{"device": 0, "stream": 7, "correlation": 1}}}}
    ]}}""".encode()


class Node:
    """The service with its store; `settings` are keys of the configuration."""

    def __init__(
        self, state: Path, *, command: Sequence[str] | None = None, **settings: object
    ) -> None:
        self.state = state
        self.inbox = state / "inbox"
        self.faults: list[str] = []
        self.recorder = state / "recorder"
        self.recorder.mkdir(parents=True, exist_ok=True)
        given = {"ingest__settle_s": 0.1, **settings}
        environment = {f"CHOPPERD_{k.upper()}": str(v) for k, v in given.items()}
        config = load_config(None, environment)
        limits = DiskLimits(max_bytes=64 * MIB, max_days=1e6, min_free_ratio=0.0)
        self.store = CaptureStore(state / "store.sqlite", limits=limits, clock=CLOCK)
        own = [*worker_command(config.analysis.memory_max_bytes), "--in-foreground"]
        self.service: IngestService = new_ingest(
            config,
            state,
            self.store,
            CLOCK,
            command=command or own,
            note_fault=lambda: self.faults.append("ingest"),
        )

    def __enter__(self) -> "Node":
        self.service.start()
        wait_for(self.inbox.is_dir)
        return self

    def __exit__(self, *_: object) -> None:
        begin_ns = CLOCK.mono_ns()
        self.service.stop()
        assert CLOCK.mono_ns() - begin_ns < 5 * NS_PER_S
        assert not self.service.is_alive
        self.store.close()

    def drop(
        self, name: str, content: bytes, job: str | None = None, *, age_s: float = 60.0
    ) -> None:
        """Put a file into the inbox as a job would, under another name first; written long ago."""
        folder = self.inbox / job if job else self.inbox
        folder.mkdir(exist_ok=True)
        part = folder / f"{name}.part"
        part.write_bytes(content)
        written_ns = CLOCK.unix_ns() - round(age_s * NS_PER_S)
        os.utime(part, ns=(written_ns, written_ns))
        part.rename(folder / name)

    def traces(self) -> dict[str, TraceEntry]:
        """What the store knows of traces, by name."""
        return {entry.name: entry for entry in self.store.traces(ADMIN, limit=10_000)}

    def ended(self, *names: str) -> bool:
        """Whether all is done that can be with the traces of these names."""
        traces = self.traces()
        return all(name in traces and traces[name].state in OVER for name in names)

    def document(self, job: str | None = None) -> ReportDocument:
        """The newest one."""
        document = self.store.latest_document(job, ADMIN)
        assert document is not None
        return document

    def documents(self) -> list[ReportDocument]:
        """All there are, oldest capture first."""
        bodies = self.store.database.read(
            lambda db: db.execute("SELECT body FROM documents ORDER BY capture").fetchall()
        )
        return [document for (body,) in bodies if (document := document_of(body)) is not None]

    def outcomes(self) -> dict[str, int]:
        """What there was of each, without zeros."""
        return {name: count for name, count in self.service.live().outcomes.items() if count}

    def inbox_files(self) -> list[Path]:
        """What lies in the inbox."""
        return [path for path in self.inbox.rglob("*") if not path.is_dir()]

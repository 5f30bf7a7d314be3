"""Traces, captures and small documents, built by hand for tests of the store."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from msgspec.structs import replace

from chopperd.model.captures import (
    AnalysedTrace,
    CaptureEntry,
    StepQuery,
    TraceEntry,
    TraceState,
    Viewer,
)
from chopperd.model.report import ReportDocument
from chopperd.model.report_rows import Row
from chopperd.model.run import RunIdentity
from chopperd.store.captures.capture_store import CaptureStore
from chopperd.store.disk import DiskLimits
from chopperd.units import NS_PER_S
from tests.fakes.clock import ScriptedClock
from tests.unit.report.documents import classes_of, family, row, single_gpu

#: What the scripted clock says at first; traces of tests ended shortly before.
NOW_UNIX_NS = 1_800_000_000 * NS_PER_S
ADMIN = Viewer(uid=0, is_admin=True)
ALICE, BOB = Viewer(uid=1000, is_admin=False), Viewer(uid=1001, is_admin=False)
EVERYTHING = StepQuery()
LIMITS = DiskLimits(max_bytes=64 * 2**20, max_days=14.0, min_free_ratio=0.0)


def opened(
    path: Path | None = None, clock: ScriptedClock | None = None, limits: DiskLimits = LIMITS
) -> CaptureStore:
    return CaptureStore(path, limits=limits, clock=clock or ScriptedClock())


def trace_id(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:16]


def entry(
    name: str,
    *,
    owner_uid: int | None = 1000,
    job: str | None = "llama",
    state: TraceState = TraceState.QUEUED,
    received_unix_ns: int = NOW_UNIX_NS,
) -> TraceEntry:
    return TraceEntry(
        id=trace_id(name),
        name=name,
        job=job,
        owner_uid=owner_uid,
        state=state,
        reason=None,
        stored_bytes=1000,
        received_unix_ns=received_unix_ns,
    )


def analysed(
    name: str,
    span_s: tuple[float, float] | None = (-20.0, -10.0),
    *,
    rank: int | None = 0,
    job: str | None = "llama",
    run: str | None = "r1",
    **said: object,
) -> AnalysedTrace:
    """A trace from and to so many s after now; its report is its name."""
    begin, end = (None, None) if span_s is None else [NOW_UNIX_NS + round(s * 1e9) for s in span_s]
    return AnalysedTrace(
        id=trace_id(name),
        job=job,
        identity=RunIdentity(
            run=run,
            rank=rank,
            begin_unix_ns=begin,
            end_unix_ns=end,
            **said,  # type: ignore[arg-type]
        ),
        report=name.encode(),
    )


def file_one(store: CaptureStore, trace: AnalysedTrace) -> tuple[CaptureEntry, tuple[bytes, ...]]:
    """File a trace that changes no capture but its own."""
    (filed,) = store.file_analysed(trace)
    return filed.entry, filed.reports


def step_row(
    step: int | None,
    *,
    rank: int | None = 0,
    device: int = 0,
    start_s: float | None = -15.0,
    gpu: str | None = "0",
) -> Row:
    start_unix_ns = None if start_s is None else NOW_UNIX_NS + round(start_s * 1e9)
    return replace(
        row(device, step),
        rank=rank,
        gpu=gpu,
        start_unix_ns=start_unix_ns,
        marker_start_unix_ns=start_unix_ns,
    )


def totals_row(*, rank: int | None = 0, device: int = 0, gpu: str | None = "0") -> Row:
    """DESIGN's example step as the whole file: 1412 ms, of them 131 lost; two families."""
    kernels = (family("gemm_a", "gemm", 700, 95), family("nccl", "comm", 500, None))
    return replace(
        row(device, None), rank=rank, gpu=gpu, families=kernels, classes=classes_of(kernels)
    )


def document(steps: Iterable[Row], totals: Iterable[Row] = ()) -> ReportDocument:
    return replace(single_gpu(), steps=tuple(steps), totals=tuple(totals))


def shown(rows: Iterable[Row]) -> list[tuple[int | None, int | None]]:
    """Step and rank of each row."""
    return [(each.step, each.rank) for each in rows]


def all_steps(
    store: CaptureStore, query: StepQuery = EVERYTHING, *, viewer: Viewer = ADMIN
) -> list[Row]:
    page = store.steps(query, viewer, limit=100_000, cursor=None)
    assert page.cursor is None
    return list(page.steps)

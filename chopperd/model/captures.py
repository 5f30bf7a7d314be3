"""Traces that the agent took in, and the captures that they form.

A capture is the traces of one run that overlap in time: one profiled stretch, seen by several
ranks. Its report is made over all of them; the store keeps it with its rows.
"""

from dataclasses import dataclass
from enum import StrEnum

from chopperd.model.report import Family, Row
from chopperd.model.row_work import Part
from chopperd.model.run import RunIdentity


class TraceState(StrEnum):
    """What became of a trace.

    `QUEUED`: taken in, waits for the worker. `SPOOLED`: kept for later, as analysis is off here.
    `REJECTED`: no usable Kineto trace. `FAILED`: the analysis itself failed or took too long.
    `KILLED`: the worker died over it.
    """

    QUEUED = "queued"
    SPOOLED = "spooled"
    ANALYSED = "analysed"
    REJECTED = "rejected"
    FAILED = "failed"
    KILLED = "killed"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceEntry:
    """One trace that was taken in.

    Attributes:
        id: First 16 hex digits of the SHA-256 of its bytes as stored.
        name: Its file name, as it came.
        job: From the inbox folder, the upload, or the trace itself; None if none says.
        owner_uid: Who may see it beside admins; None if unknown.
        state, reason: What became of it, and why (None where it went well).
        stored_bytes: Size of the file.
        received_unix_ns, finished_unix_ns: When it came, and when its state became final.
        rank, run, capture: Known once it is analysed.
        device_map: Which GPU each of its devices is, as it was handed in; None if not said.
    """

    id: str
    name: str
    job: str | None
    owner_uid: int | None
    state: TraceState
    reason: str | None
    stored_bytes: int
    received_unix_ns: int
    finished_unix_ns: int | None = None
    rank: int | None = None
    run: str | None = None
    capture: int | None = None
    device_map: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalysedTrace:
    """What the worker made of one trace.

    Attributes:
        id: Of its `TraceEntry`.
        job: As taken in, else as the trace says.
        identity: Of its run and rank.
        report: The trace's report (`pipeline.reports.FileReport`) in MessagePack, from which a
            capture's document is made anew when another of its traces arrives.
    """

    id: str
    job: str | None
    identity: RunIdentity
    report: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureEntry:
    """A capture as the store knows it.

    Attributes:
        run: `chopperd_run` of its traces; a name made by the store where several runs of one job
            have one time; else None.
        note: Why it is not part of another of its time.
    """

    id: int
    job: str | None
    run: str | None
    begin_unix_ns: int | None
    end_unix_ns: int | None
    trace_ids: tuple[str, ...]
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Filed:
    """A capture that has changed, with the reports of all its traces in order of arrival."""

    entry: CaptureEntry
    reports: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEntry:
    """A job that traces came from."""

    job: str | None
    runs: tuple[str | None, ...]
    traces: int
    captures: int
    first_unix_ns: int
    last_unix_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Viewer:
    """Who asks: what is shown of jobs depends on it.

    Attributes:
        uid: The user at the other end of the connection; None if it can't be told.
        is_admin: Whether all jobs may be seen, and the agent be told what to do.
    """

    uid: int | None
    is_admin: bool

    def may_see(self, owner_uid: int | None) -> bool:
        """Whether what this user owns may be shown."""
        return self.is_admin or (owner_uid is not None and owner_uid == self.uid)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepQuery:
    """Which step rows are wanted; None does not restrict. Times are of the row's start."""

    job: str | None = None
    run: str | None = None
    rank: int | None = None
    gpu: str | None = None
    step: int | None = None
    from_unix_ns: int | None = None
    to_unix_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPage:
    """Step rows, newest first, without their parts; `cursor` leads on, None at the end."""

    steps: tuple[Row, ...]
    cursor: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceKernels:
    """What one device ran over one capture's trace, in which a step lies, as its row of totals.

    The lists that were not asked for are empty.
    """

    job: str | None
    run: str | None
    rank: int | None
    device: int | None
    gpu: str | None
    families: tuple[Family, ...] = ()
    by_operation: tuple[Part, ...] = ()
    by_layer: tuple[Part, ...] = ()
    by_phase: tuple[Part, ...] = ()

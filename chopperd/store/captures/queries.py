"""Queries of the store: functions of an open database, restricted to what the viewer may see."""

import sqlite3
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Annotated, Final, TypeAlias

import msgspec

from chopperd.model.captures import DeviceKernels, JobEntry, StepPage, StepQuery, TraceEntry, Viewer
from chopperd.model.report import ReportDocument
from chopperd.model.report_rows import Row
from chopperd.store.captures.schema import FIND_TRACES, document_of, row_of, trace_of

#: A step number may occur in every capture; only the newest so many rows are read.
_MOST_CANDIDATES: Final = 20_000
#: Documents that this version can't read are skipped, up to so many.
_MOST_DOCUMENTS: Final = 8

#: What orders rows: newest first, then (of rows without a time of their own) the last step. It is
#: made of a row's own values, so a page stays valid while rows come or are rewritten.
KEY_COLUMNS: Final = ("order_unix_ns", "step", "rank", "device", "twin", "capture")

_Int: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Key: TypeAlias = tuple[_Int, _Int, _Int, _Int, _Int, _Int]

_DECODER: Final = msgspec.msgpack.Decoder(Key)
_LONGEST: Final = 128
_REFUSAL: Final = "the cursor is none that a page of steps gave"


def cursor_of(key: Sequence[int]) -> str:
    """Encode a row's key as the cursor of the page after that row."""
    return urlsafe_b64encode(msgspec.msgpack.encode(tuple(key))).decode().rstrip("=")


def key_of(cursor: str) -> Key:
    """Decode the row's key in a cursor.

    Raises:
        ValueError: The cursor is not from `cursor_of`.
    """
    if len(cursor) > _LONGEST:
        raise ValueError(_REFUSAL)
    try:
        key: Key = _DECODER.decode(urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (ValueError, msgspec.DecodeError) as error:
        raise ValueError(_REFUSAL) from error
    return key


class Conditions:
    """A WHERE clause and its values; the first condition is that the viewer may see a row."""

    def __init__(self, viewer: Viewer) -> None:
        self._parts: list[str] = []
        self.values: list[object] = []
        if not viewer.is_admin:  # no owner equals a user that is not known
            self.add("owner_uid = ?", viewer.uid)

    def add(self, sql: str, *values: object) -> None:
        """Add a condition in SQL, with the values of its placeholders."""
        self._parts.append(sql)
        self.values.extend(values)

    def among(self, column: str, values: Iterable[int]) -> None:
        """Add the condition that a column has one of several values."""
        listed = f"[{','.join(map(str, values))}]"
        self.add(f"{column} IN (SELECT value FROM json_each(?))", listed)

    @property
    def sql(self) -> str:
        """The WHERE clause; empty without conditions."""
        return f" WHERE {' AND '.join(self._parts)}" if self._parts else ""


def step_page(
    connection: sqlite3.Connection, query: StepQuery, viewer: Viewer, limit: int, cursor: str | None
) -> StepPage:
    """Return a page of step rows that match, newest first, after the cursor's row.

    Raises:
        ValueError: The cursor is not from a page.
    """
    where, limit = _matching(query, viewer), max(limit, 1)
    if cursor is not None:
        key = key_of(cursor)
        where.add(f"({', '.join(KEY_COLUMNS)}) < ({', '.join('?' * len(key))})", *key)
    order = ", ".join(f"{column} DESC" for column in KEY_COLUMNS)
    found = connection.execute(
        f"SELECT body, {', '.join(KEY_COLUMNS)} FROM steps{where.sql} ORDER BY {order} LIMIT ?",
        (*where.values, limit + 1),
    ).fetchall()
    more = len(found) > limit
    return StepPage(
        steps=tuple(_rows(body for body, *_ in found[:limit])),
        cursor=cursor_of(found[limit - 1][1:]) if more else None,
    )


def step_rows(
    connection: sqlite3.Connection, step: int, query: StepQuery, viewer: Viewer
) -> tuple[Row, ...]:
    """Return the rows of one step on all devices, by job, run, rank and device.

    Ranks of a step may have come in several captures. Where two captures hold it for the same rank
    and device, the step ran twice, and only the newer run of it is returned, whole.
    """
    where = _matching(query, viewer)
    where.add("+step = ?", step)
    where.among("capture", _captures_of(connection, step, query, viewer))
    found = connection.execute(
        f"SELECT body FROM steps{where.sql} ORDER BY job, run, rank, device, twin, capture",
        where.values,
    )
    return tuple(_rows(body for (body,) in found))


def step_kernels(
    connection: sqlite3.Connection, step: int, query: StepQuery, viewer: Viewer
) -> tuple[DeviceKernels, ...]:
    """Return the kernels that a step launched on each device, as `step_rows` chooses them."""
    return tuple(
        DeviceKernels(
            job=row.job,
            run=row.run,
            rank=row.rank,
            device=row.device,
            gpu=row.gpu,
            families=row.families,
            by_operation=row.by_operation,
            by_layer=row.by_layer,
            by_phase=row.by_phase,
            by_annotation=row.by_annotation,
        )
        for row in step_rows(connection, step, query, viewer)
        if not row.host_only
    )


def newest_document(
    connection: sqlite3.Connection, job: str | None, viewer: Viewer, capture: int | None = None
) -> ReportDocument | None:
    """Return the newest (or this) capture's document, if all of its traces may be seen, or None."""
    where = Conditions(viewer)
    if capture is not None:
        where.add("id = ?", capture)
    if job is not None:
        where.add("job = ?", job)
    found = connection.execute(
        f"SELECT body FROM captures JOIN documents ON capture = id{where.sql} "
        f"ORDER BY newest_unix_ns DESC, id DESC LIMIT {_MOST_DOCUMENTS}",
        where.values,
    )
    return next((document for (body,) in found if (document := document_of(body))), None)


def job_entries(connection: sqlite3.Connection, viewer: Viewer) -> tuple[JobEntry, ...]:
    """Return the jobs of the traces that the viewer may see, newest first."""
    where = Conditions(viewer)
    found = connection.execute(
        f"""
        SELECT job, run, count(*), count(DISTINCT capture),
            min(COALESCE(begin_unix_ns, received_unix_ns)),
            max(COALESCE(end_unix_ns, received_unix_ns))
        FROM traces{where.sql} GROUP BY job, run ORDER BY job, run
        """,
        where.values,
    )
    jobs = [_job(job, list(runs)) for job, runs in groupby(found, key=lambda row: row[0])]
    return tuple(sorted(jobs, key=lambda entry: -entry.last_unix_ns))


def trace_entries(
    connection: sqlite3.Connection, viewer: Viewer, limit: int
) -> tuple[TraceEntry, ...]:
    """Return the newest traces that the viewer may see, newest first."""
    where = Conditions(viewer)
    found = connection.execute(
        f"{FIND_TRACES}{where.sql} ORDER BY received_unix_ns DESC, id DESC LIMIT ?",
        (*where.values, limit),
    )
    return tuple(trace_of(row) for row in found)


def trace_entry(connection: sqlite3.Connection, trace_id: str) -> TraceEntry | None:
    """Return a trace of any owner by its id; None if there is none."""
    found = connection.execute(f"{FIND_TRACES} WHERE id = ?", (trace_id,)).fetchone()
    return None if found is None else trace_of(found)


def waiting_traces(connection: sqlite3.Connection) -> tuple[TraceEntry, ...]:
    """Return the traces that are still to be analysed, oldest first."""
    found = connection.execute(
        f"{FIND_TRACES} WHERE state IN ('queued', 'spooled') ORDER BY received_unix_ns, id"
    )
    return tuple(trace_of(row) for row in found)


def counts(connection: sqlite3.Connection) -> tuple[int, int]:
    """Return the numbers of step rows and of traces."""
    steps, traces = connection.execute(
        "SELECT (SELECT COALESCE(sum(step_count), 0) FROM captures), (SELECT count(*) FROM traces)"
    ).fetchone()
    return int(steps), int(traces)


def _matching(query: StepQuery, viewer: Viewer) -> Conditions:
    where = Conditions(viewer)
    for column in ("job", "run", "rank", "gpu", "step"):
        if (value := getattr(query, column)) is not None:
            where.add(f"{column} = ?", value)
    if query.from_unix_ns is not None:
        where.add("timed AND order_unix_ns >= ?", query.from_unix_ns)
    if query.to_unix_ns is not None:
        where.add("timed AND order_unix_ns < ?", query.to_unix_ns)
    return where


def _captures_of(
    connection: sqlite3.Connection, step: int, query: StepQuery, viewer: Viewer
) -> list[int]:
    """Choose the captures to read a step from, for each job, run and owner; see `step_rows`."""
    where = _matching(query, viewer)
    where.add("step = ?", step)
    found = connection.execute(
        f"SELECT job, run, owner_uid, capture, rank, device FROM steps{where.sql} "
        f"ORDER BY order_unix_ns DESC, capture DESC LIMIT {_MOST_CANDIDATES}",
        where.values,
    )
    by_capture: defaultdict[tuple[object, int], set[tuple[int, int]]] = defaultdict(set)
    for job, run, owner_uid, capture, rank, device in found:
        by_capture[(job, run, owner_uid), capture].add((rank, device))
    covered: defaultdict[object, set[tuple[int, int]]] = defaultdict(set)
    chosen = []
    for (of, capture), mine in by_capture.items():
        if covered[of].isdisjoint(mine):
            covered[of] |= mine
            chosen.append(capture)
    return chosen


def _rows(bodies: Iterable[bytes]) -> Iterator[Row]:
    return (row for body in bodies if (row := row_of(body)) is not None)


def _job(job: str | None, runs: list[tuple[str, str | None, int, int, int, int]]) -> JobEntry:
    _, names, traces, captures, first, last = zip(*runs, strict=True)
    return JobEntry(
        job=job,
        runs=names,
        traces=sum(traces),
        captures=sum(captures),
        first_unix_ns=min(first),
        last_unix_ns=max(last),
    )

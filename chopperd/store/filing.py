"""Where an analysed trace belongs: the capture that it begins, joins, or makes one of several."""

import logging
import sqlite3
from dataclasses import dataclass
from typing import Final

from chopperd.model.captures import AnalysedTrace, CaptureEntry
from chopperd.store.capture_bodies import packed_report, report_of
from chopperd.store.database import Change

logger = logging.getLogger(__name__)

#: Most traces of a capture: its document is made over all of them at once.
MAX_TRACES: Final = 64

_MS: Final = 1_000_000

#: Anyone may say that a trace is of a job: the traces of two users are never put together.
_OF_JOB: Final = """
    SELECT id, (SELECT count(*) FROM traces WHERE capture = captures.id) FROM captures
    WHERE job IS :job AND run IS :run
        AND owner_uid IS (SELECT owner_uid FROM traces WHERE id = :trace)
"""

#: Times of captures and of the trace are taken as closed: touching is overlapping. The newest
#: time of a capture with an anchor is its end.
_OVERLAPPING: Final = f"""
    {_OF_JOB} AND newest_unix_ns >= :begin AND begin_unix_ns <= :end AND end_unix_ns >= :begin
    ORDER BY id
"""

_UNANCHORED: Final = f"{_OF_JOB} AND begin_unix_ns IS NULL ORDER BY id"

#: What is not known of a trace that comes unannounced is told by its entry, when that is put.
_STUB: Final = """
    INSERT INTO {at}.traces (id, name, state, stored_bytes, received_unix_ns)
    VALUES (:trace, :trace, 'queued', 0, :now)
"""

_PLACE: Final = """
    UPDATE {at}.traces SET capture = :capture, job = :job, run = :run, rank = :rank,
        begin_unix_ns = :begin, end_unix_ns = :end
    WHERE id = :trace
"""

_BEGIN: Final = """
    INSERT INTO {at}.captures
        (id, job, run, note, newest_unix_ns, changed_unix_ns, step_count)
    VALUES (:capture, :job, :run, :note, :now, :now, 0)
"""

#: A capture belongs to the owner of all of its traces, if there is one.
_SUM_UP: Final = """
    UPDATE {at}.captures SET
        begin_unix_ns = span.begin, end_unix_ns = span.end, owner_uid = span.owner,
        newest_unix_ns = COALESCE(span.end, newest_unix_ns), changed_unix_ns = :now
    FROM (
        SELECT min(begin_unix_ns) AS begin, max(end_unix_ns) AS end,
            CASE WHEN count(owner_uid) = count(*) AND min(owner_uid) = max(owner_uid)
                THEN min(owner_uid) END AS owner
        FROM {at}.traces WHERE capture = :capture
    ) AS span
    WHERE id = :capture
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filed:
    """Where a trace went.

    Attributes:
        entry: The capture, with this trace.
        reports: Reports of all its traces, in order of arrival.
        absorbed: Captures that have become part of it.
        is_new: Whether the trace had not been put before.
    """

    entry: CaptureEntry
    reports: tuple[bytes, ...]
    absorbed: tuple[int, ...]
    is_new: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    capture: int | None
    absorbed: tuple[int, ...] = ()
    note: str | None = None


def file_trace(change: Change, trace: AnalysedTrace, now_unix_ns: int) -> Filed:
    """Put a trace into its capture, and captures that it joins into one.

    A trace that was filed before stays in its capture; its report is replaced.
    """
    values = _values(trace, now_unix_ns)
    change.adopt_trace(trace.id)
    found = change.connection.execute(
        "SELECT capture FROM traces WHERE id = :trace", values
    ).fetchone()
    if found is None:
        change.execute(_STUB, values)
    place = _place(change, values, None if found is None else found[0])
    capture = place.capture
    if capture is None:
        capture = _new_id(change.connection, now_unix_ns)
        change.execute(_BEGIN, {**values, "capture": capture, "note": place.note})
    change.adopt_capture(capture)
    for other in place.absorbed:
        _absorb(change, other, capture)
    values["capture"] = capture
    change.execute(_PLACE, values)
    change.execute("INSERT OR REPLACE INTO {at}.reports VALUES (:trace, :capture, :report)", values)
    change.execute(_SUM_UP, values)
    return Filed(
        entry=capture_entry(change.connection, capture),
        reports=_reports(change.connection, capture),
        absorbed=place.absorbed,
        is_new=found is None,
    )


def capture_entry(connection: sqlite3.Connection, capture: int) -> CaptureEntry:
    """A capture that there is, with its traces in order of arrival."""
    job, run, begin_unix_ns, end_unix_ns, note = connection.execute(
        "SELECT job, run, begin_unix_ns, end_unix_ns, note FROM captures WHERE id = ?", (capture,)
    ).fetchone()
    traces = connection.execute(
        "SELECT id FROM traces WHERE capture = ? ORDER BY received_unix_ns, id", (capture,)
    )
    return CaptureEntry(
        id=capture,
        job=job,
        run=run,
        begin_unix_ns=begin_unix_ns,
        end_unix_ns=end_unix_ns,
        trace_ids=tuple(trace for (trace,) in traces),
        note=note,
    )


def _values(trace: AnalysedTrace, now_unix_ns: int) -> dict[str, object]:
    return {
        "trace": trace.id,
        "job": trace.job,
        "run": trace.run,
        "rank": trace.rank,
        "begin": trace.begin_unix_ns,
        "end": trace.end_unix_ns,
        "report": packed_report(trace.report),
        "now": now_unix_ns,
    }


def _place(change: Change, values: dict[str, object], filed_in: int | None) -> _Place:
    """The oldest capture with room among those that overlap, and others that still fit into it."""
    if filed_in is not None:
        return _Place(capture=filed_in)
    query = _UNANCHORED if values["begin"] is None else _OVERLAPPING
    candidates = change.connection.execute(query, values).fetchall()
    open_ones = [(capture, count) for capture, count in candidates if count < MAX_TRACES]
    if not open_ones:
        return _Place(capture=None, note=_why_another(len(candidates)))
    (capture, total), *others = open_ones
    absorbed = []
    for other, count in others:
        if total + count < MAX_TRACES:
            absorbed.append(other)
            total += count
    return _Place(capture=capture, absorbed=tuple(absorbed))


def _why_another(full: int) -> str | None:
    if not full:
        return None
    note = f"begun as {full} of the same time had {MAX_TRACES} traces, the most that one may have"
    logger.info("a capture was %s", note)
    return note


def _new_id(connection: sqlite3.Connection, now_unix_ns: int) -> int:
    """Unix ms, so that ids made while the disk is away clash with none on it."""
    last = connection.execute("SELECT max(id) FROM captures").fetchone()[0]
    return max(now_unix_ns // _MS, (last or 0) + 1)


def _absorb(change: Change, other: int, capture: int) -> None:
    """Make one capture part of another; its rows stay to be seen until the document is made."""
    change.adopt_capture(other)
    change.execute(
        "UPDATE {at}.captures SET step_count = step_count + "
        "(SELECT step_count FROM {at}.captures WHERE id = ?) WHERE id = ?",
        (other, capture),
    )
    for table in ("traces", "reports", "steps", "totals"):
        change.execute(f"UPDATE {{at}}.{table} SET capture = ? WHERE capture = ?", (capture, other))
    change.execute(
        "UPDATE OR IGNORE {at}.documents SET capture = ? WHERE capture = ?", (capture, other)
    )
    change.execute("DELETE FROM {at}.documents WHERE capture = ?", (other,))
    change.execute("DELETE FROM {at}.captures WHERE id = ?", (other,))
    change.give_shadow(other, capture)


def _reports(connection: sqlite3.Connection, capture: int) -> tuple[bytes, ...]:
    bodies = connection.execute(
        "SELECT body FROM reports JOIN traces ON traces.id = reports.trace "
        "WHERE reports.capture = ? ORDER BY received_unix_ns, id",
        (capture,),
    )
    return tuple(report_of(body) for (body,) in bodies)

"""Assignment of analysed traces to captures: a trace begins one, joins one, or merges several.

A new trace may show that earlier ones were put together wrongly (two equal jobs at one time, of
which one rank each came first): traces then move between captures.
"""

import logging
import sqlite3
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, combinations
from typing import Final, NamedTuple

import msgspec
import numpy as np

from chopperd.correlate.identity.runs import is_rival, runs_of
from chopperd.model.captures import AnalysedTrace, CaptureEntry, Filed
from chopperd.model.run import RunIdentity
from chopperd.store.captures.schema import COMMON_OWNER
from chopperd.units import NS_PER_MS

logger = logging.getLogger(__name__)

#: Most traces of a capture: its document is made over all of them at once.
MAX_TRACES: Final = 64

_IDENTITIES: Final = msgspec.msgpack.Decoder(RunIdentity)

#: Anyone may claim that a trace is of a job, so traces of two users never share a capture.
_OF_JOB: Final = """
    SELECT id, name, capture, identity, run, rank, begin_unix_ns, end_unix_ns FROM traces
    WHERE capture IN (
        SELECT id FROM captures WHERE job IS :job
            AND owner_uid IS (SELECT owner_uid FROM traces WHERE id = :trace)
            AND {time}
        ORDER BY id DESC LIMIT 64
    )
    ORDER BY capture, received_unix_ns, id
"""

#: Times are closed intervals: those that touch overlap. The newest time of a capture with an
#: anchor is its end.
_OVERLAPPING: Final = _OF_JOB.format(
    time="newest_unix_ns >= :begin AND begin_unix_ns <= :end AND end_unix_ns >= :begin"
)
_UNANCHORED: Final = _OF_JOB.format(time="begin_unix_ns IS NULL")

#: Placeholder of a trace without an entry; the entry fills in the rest.
_STUB: Final = """
    INSERT INTO traces (id, name, state, stored_bytes, received_unix_ns)
    VALUES (:trace, :trace, 'queued', 0, :now)
"""

_DESCRIBE: Final = """
    UPDATE traces SET job = :job, run = :run, rank = :rank, begin_unix_ns = :begin,
        end_unix_ns = :end, identity = :identity
    WHERE id = :trace
"""

_PLACE: Final = """
    UPDATE traces SET capture = :capture,
        run = (SELECT run FROM captures WHERE id = :capture)
    WHERE id = :trace
"""

_BEGIN: Final = """
    INSERT INTO captures
        (id, job, run, note, newest_unix_ns, changed_unix_ns, step_count)
    VALUES (:capture, :job, :run, NULL, :now, :now, 0)
"""

#: Captures of a job, of any owner, without a name that overlap a capture without one.
_NAMELESS: Final = """
    SELECT other.id FROM captures AS one JOIN captures AS other
        ON one.job IS other.job AND one.run IS NULL AND other.run IS NULL
        AND CASE WHEN one.begin_unix_ns IS NULL THEN other.begin_unix_ns IS NULL
            ELSE other.newest_unix_ns >= one.begin_unix_ns
                AND other.begin_unix_ns <= one.end_unix_ns END
    WHERE one.id = ?
"""

#: A capture belongs to the owner of all of its traces, if there is one.
_SUM_UP: Final = f"""
    UPDATE captures SET
        begin_unix_ns = span.begin, end_unix_ns = span.end, owner_uid = span.owner,
        newest_unix_ns = COALESCE(span.end, newest_unix_ns), changed_unix_ns = :now
    FROM (
        SELECT min(begin_unix_ns) AS begin, max(end_unix_ns) AS end,
            {COMMON_OWNER} AS owner
        FROM traces WHERE capture = :capture
    ) AS span
    WHERE id = :capture
"""


class _Member(NamedTuple):
    """One of several traces that overlap in time; `capture` is None for the new one."""

    id: str
    name: str
    capture: int | None
    identity: RunIdentity


def file_trace(
    db: sqlite3.Connection, trace: AnalysedTrace, now_unix_ns: int
) -> tuple[tuple[Filed, ...], bool]:
    """Put a trace into the capture of its run; traces that it overlaps may move.

    A trace that was filed before stays in its capture; its report is replaced.

    Returns:
        The trace's capture, then others that changed, and whether the trace is new to the store.
    """
    values = _values(trace, now_unix_ns)
    read = db.execute
    found = read("SELECT capture FROM traces WHERE id = :trace", values).fetchone()
    if found is None:
        db.execute(_STUB, values)
    db.execute(_DESCRIBE, values)
    filed_in = None if found is None else found[0]
    if filed_in is None:
        return _placed(db, trace, values), found is None
    _put(db, {**values, "capture": filed_in})
    return (_filed(db, filed_in),), False


def _placed(
    db: sqlite3.Connection, trace: AnalysedTrace, values: dict[str, object]
) -> tuple[Filed, ...]:
    """File a trace that is in no capture yet; return its capture, then others that changed."""
    (name,) = db.execute("SELECT name FROM traces WHERE id = :trace", values).fetchone()
    overlapping = _UNANCHORED if values["begin"] is None else _OVERLAPPING
    members = [
        _Member(other, other_name, capture, _identity(identity, *known))
        for other, other_name, capture, identity, *known in db.execute(overlapping, values)
    ]
    members.append(_Member(trace.id, name, None, trace.identity))
    before = _by_capture((each.id, each.capture) for each in members)
    number = runs_of(
        [each.identity for each in members], is_told=False, is_named=trace.job is not None
    )
    groups = [
        [each for each, run in zip(members, number, strict=True) if run == first]
        for first in sorted(set(number))
    ]
    targets, begun = _targets(db, groups, values)
    _move(db, members, targets)
    after = _by_capture(targets.items())
    changed = {capture for capture, those in after.items() if those != before.get(capture)}
    _put(db, {**values, "capture": targets[trace.id]})
    for capture in changed:
        db.execute(_SUM_UP, {**values, "capture": capture})
    changed |= _note(db, {**_conflicts(groups, targets), **begun})
    changed |= _named(db, [{targets[each.id] for each in group} for group in groups])
    mine = targets[trace.id]
    return tuple(_filed(db, each) for each in (mine, *sorted(changed - {mine})))


def _identity(
    body: bytes | None, run: str | None, rank: int | None, begin: int | None, end: int | None
) -> RunIdentity:
    """Decode a stored trace's identity; take it from columns if an earlier version filed it."""
    try:
        return _IDENTITIES.decode(body or b"")
    except msgspec.DecodeError:
        return RunIdentity(run=run, rank=rank, begin_unix_ns=begin, end_unix_ns=end)


def _by_capture(places: Iterable[tuple[str, int | None]]) -> dict[int, set[str]]:
    found: defaultdict[int, set[str]] = defaultdict(set)
    for trace, capture in places:
        if capture is not None:
            found[capture].add(trace)
    return found


def _targets(
    db: sqlite3.Connection, groups: Sequence[Sequence[_Member]], values: dict[str, object]
) -> tuple[dict[str, int], dict[int, str]]:
    """Choose or create each trace's capture; a run stays in its oldest one.

    Returns:
        The captures by trace, and notes on new captures.
    """
    targets: dict[str, int] = {}
    begun: dict[int, str] = {}
    for group in groups:
        captures = dict.fromkeys(each.capture for each in group if each.capture is not None)
        free = [each for each in sorted(captures) if each not in targets.values()]
        for nth, first in enumerate(range(0, len(group), MAX_TRACES)):
            capture = free[nth] if nth < len(free) else _begin(db, group[first], values)
            if nth and capture not in free:
                begun[capture] = (
                    f"begun as {nth} of the same time had {MAX_TRACES} traces, the most that one"
                    " may have"
                )
                logger.info("a capture was %s", begun[capture])
            targets.update((each.id, capture) for each in group[first : first + MAX_TRACES])
    return targets, begun


def _begin(db: sqlite3.Connection, member: _Member, values: dict[str, object]) -> int:
    """Create a capture, return its id: Unix ms, so that it clashes with no salvaged one."""
    last = db.execute("SELECT max(id) FROM captures").fetchone()[0]
    capture = max(int(str(values["now"])) // NS_PER_MS, (last or 0) + 1)
    db.execute(_BEGIN, {**values, "capture": capture, "run": member.identity.run})
    return capture


def _move(db: sqlite3.Connection, members: Sequence[_Member], targets: Mapping[str, int]) -> None:
    """Move traces to their captures; one that would become empty is absorbed whole."""
    left = {each.capture for each in members} - {None, *targets.values()}
    taken_up: dict[int, int] = {}
    for each in members:
        if each.capture is None:
            continue
        if each.capture in left and each.capture not in taken_up:
            taken_up[each.capture] = targets[each.id]
            _absorb(db, each.capture, targets[each.id])
        if taken_up.get(each.capture, each.capture) != targets[each.id]:
            where = {"capture": targets[each.id], "trace": each.id}
            db.execute(_PLACE, where)
            db.execute("UPDATE reports SET capture = :capture WHERE trace = :trace", where)


def _put(db: sqlite3.Connection, values: dict[str, object]) -> None:
    """Put a trace and its report into a capture."""
    db.execute(_PLACE, values)
    db.execute("INSERT OR REPLACE INTO reports VALUES (:trace, :capture, :report)", values)
    db.execute(_SUM_UP, values)


def _conflicts(groups: Sequence[Sequence[_Member]], targets: Mapping[str, int]) -> dict[int, str]:
    """Make notes, by capture, on ranks that another run of that time also has."""
    found: dict[int, str] = {}
    nameless = [[each for each in group if each.identity.run is None] for group in groups]
    for one, other in combinations(nameless, 2):
        pairs = ((a, b) for a in one for b in other if is_rival(a.identity, b.identity))
        if pair := next(pairs, None):
            a, b = pair
            text = (
                f"rank {a.identity.rank} is claimed by {a.name} and by {b.name}: taken for two "
                "runs, each with a report of its own"
            )
            found.setdefault(targets[a.id], text)
            found.setdefault(targets[b.id], text)
    return found


def _note(db: sqlite3.Connection, notes: Mapping[int, str]) -> set[int]:
    """Add notes to captures that have none; return the captures changed."""
    sql = "UPDATE captures SET note = ? WHERE id = ? AND note IS NULL"
    return {capture for capture, note in notes.items() if db.execute(sql, (note, capture)).rowcount}


def _named(db: sqlite3.Connection, groups: Sequence[set[int]]) -> set[int]:
    """Name the nameless runs of a job where several overlap; return the captures changed."""
    read = db.execute
    known = {
        capture: read("SELECT run FROM captures WHERE id = ?", (capture,)).fetchone()[0]
        for group in groups
        for capture in group
    }
    nameless = [group for group in groups if None in {known[each] for each in group}]
    met = {each for capture in set().union(*nameless) for (each,) in read(_NAMELESS, (capture,))}
    foreign = [{each} for each in sorted(met - known.keys())]
    if len(nameless) + len(foreign) < 2:
        return set()
    changed = set()
    for group in (*nameless, *foreign):
        names = sorted(name for each in group if (name := known.get(each)) is not None)
        name = names[0] if names else f"{np.datetime64(min(group), 'ms')}Z"
        for capture in group:
            db.execute("UPDATE captures SET run = ? WHERE id = ?", (name, capture))
            db.execute("UPDATE traces SET run = ? WHERE capture = ?", (name, capture))
            changed.add(capture)
    return changed


def filed_captures(db: sqlite3.Connection, captures: Iterable[int]) -> tuple[Filed, ...]:
    """Read the captures with these ids that still exist, each with its reports."""
    found = (db.execute("SELECT id FROM captures WHERE id = ?", (each,)) for each in captures)
    return tuple(_filed(db, capture) for (capture,) in chain.from_iterable(found))


def _filed(db: sqlite3.Connection, capture: int) -> Filed:
    """Read a capture, with its traces and reports in order of arrival."""
    job, run, begin_unix_ns, end_unix_ns, note = db.execute(
        "SELECT job, run, begin_unix_ns, end_unix_ns, note FROM captures WHERE id = ?", (capture,)
    ).fetchone()
    traces = db.execute(
        "SELECT id FROM traces WHERE capture = ? ORDER BY received_unix_ns, id", (capture,)
    )
    entry = CaptureEntry(
        id=capture,
        job=job,
        run=run,
        begin_unix_ns=begin_unix_ns,
        end_unix_ns=end_unix_ns,
        trace_ids=tuple(trace for (trace,) in traces),
        note=note,
    )
    bodies = db.execute(
        "SELECT body FROM reports JOIN traces ON traces.id = reports.trace "
        "WHERE reports.capture = ? ORDER BY received_unix_ns, id",
        (capture,),
    )
    return Filed(entry=entry, reports=tuple(zlib.decompress(body) for (body,) in bodies))


def _values(trace: AnalysedTrace, now_unix_ns: int) -> dict[str, object]:
    identity = trace.identity
    return {
        "trace": trace.id,
        "job": trace.job,
        "run": identity.run,
        "rank": identity.rank,
        "begin": identity.begin_unix_ns,
        "end": identity.end_unix_ns,
        "identity": msgspec.msgpack.encode(identity),
        "report": zlib.compress(trace.report),
        "now": now_unix_ns,
    }


def _absorb(db: sqlite3.Connection, other: int, capture: int) -> None:
    """Merge a capture into another; its rows stay visible until the new document is made."""
    db.execute(
        "UPDATE captures SET step_count = step_count + "
        "(SELECT step_count FROM captures WHERE id = ?) WHERE id = ?",
        (other, capture),
    )
    for table in ("traces", "reports", "steps"):
        db.execute(f"UPDATE {table} SET capture = ? WHERE capture = ?", (capture, other))
    db.execute("UPDATE OR IGNORE documents SET capture = ? WHERE capture = ?", (capture, other))
    db.execute("DELETE FROM documents WHERE capture = ?", (other,))
    db.execute("DELETE FROM captures WHERE id = ?", (other,))

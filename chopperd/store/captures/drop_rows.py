"""Drops of the busy clock in the store: written, asked for, given up; they belong to no job."""

import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import msgspec

from chopperd.model.captures import DropQuery, DropState, GpuDrop
from chopperd.units import NS_PER_S

#: So many are kept, the newest ones.
MAX_DROPS: Final = 10_000

_PUT: Final = "INSERT OR REPLACE INTO drops VALUES (?, ?, ?, ?, ?)"
_decoder: Final = msgspec.msgpack.Decoder(GpuDrop)


def put_drops(db: sqlite3.Connection, drops: Sequence[GpuDrop]) -> None:
    """Keep drops, each in place of its earlier version."""
    rows = [
        (each.uuid, each.begin_unix_ns, each.gpu, each.end_unix_ns, msgspec.msgpack.encode(each))
        for each in drops
    ]
    db.executemany(_PUT, rows)


def interrupt_open(db: sqlite3.Connection) -> None:
    """End the drops that nobody follows any more where they were last seen."""
    found = db.execute("SELECT body FROM drops WHERE end_unix_ns IS NULL").fetchall()
    put_drops(db, [_interrupted(_decoder.decode(body)) for (body,) in found])


def _interrupted(drop: GpuDrop) -> GpuDrop:
    end_unix_ns = drop.begin_unix_ns + round(drop.length_s * NS_PER_S)
    return replace(drop, state=DropState.INTERRUPTED, end_unix_ns=end_unix_ns)


def found_drops(db: sqlite3.Connection, query: DropQuery, limit: int) -> tuple[GpuDrop, ...]:
    """The drops that match, newest first."""
    found = db.execute(
        """
        SELECT body FROM drops
        WHERE (:gpu IS NULL OR :gpu IN (gpu, uuid))
            AND (:start IS NULL OR end_unix_ns IS NULL OR end_unix_ns > :start)
            AND (:end IS NULL OR begin_unix_ns < :end)
        ORDER BY begin_unix_ns DESC, uuid LIMIT :limit
        """,
        {
            "gpu": query.gpu,
            "start": query.from_unix_ns,
            "end": query.to_unix_ns,
            "limit": limit,
        },
    )
    return tuple(_decoder.decode(body) for (body,) in found)


def prune_drops(db: sqlite3.Connection, oldest_unix_ns: int, most: int = MAX_DROPS) -> int:
    """Give up the drops that began before a time, and those beyond a count; how many."""
    return db.execute(
        """
        DELETE FROM drops WHERE begin_unix_ns < MAX(:oldest, COALESCE((
            SELECT begin_unix_ns FROM drops ORDER BY begin_unix_ns DESC LIMIT 1 OFFSET :last
        ), 0))
        """,
        {"oldest": oldest_unix_ns, "last": most - 1},
    ).rowcount

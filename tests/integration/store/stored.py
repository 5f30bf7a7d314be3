"""What a store holds, as its tests look at it."""

import sqlite3
from contextlib import closing
from pathlib import Path

from chopperd.store.captures.capture_store import CaptureStore
from tests.unit.store.captures.examples import all_steps


def steps_of(store: CaptureStore) -> dict[int, int]:
    """How many rows there are of each step."""
    found: dict[int, int] = {}
    for row in all_steps(store):
        assert row.step is not None
        found[row.step] = found.get(row.step, 0) + 1
    return found


def check_whole(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA quick_check").fetchall() == [("ok",)]

"""Damaged stores give back every row whose pages can still be read."""

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from chopperd.store.captures.capture_store import CaptureStore
from tests.integration.store.stored import steps_of
from tests.integration.store.storing import ROWS, store_capture
from tests.unit.store.captures.examples import ADMIN, opened

PAGE = 4096
CAPTURES = 30


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "store.sqlite"
    with closing(opened(path)) as store:
        for number in range(CAPTURES):
            store_capture(store, number)
    return path


@pytest.fixture
def path(tmp_path: Path, whole: Path) -> Path:
    """A store of its own for each test, closed."""
    return Path(shutil.copy(whole, tmp_path))


def pages_of(path: Path, *names: str) -> list[int]:
    """Leaf pages of tables or indexes, by SQLite's own account (from 1)."""
    with closing(sqlite3.connect(path)) as connection:
        marks = ", ".join("?" * len(names))
        try:
            found = connection.execute(
                f"SELECT pageno FROM dbstat WHERE name IN ({marks}) AND pagetype = 'leaf'", names
            ).fetchall()
        except sqlite3.OperationalError:
            if os.environ.get("CI"):
                raise
            pytest.skip("this SQLite has no dbstat")
    return [page for (page,) in found]


def rows_of(path: Path, table: str) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


def spoil(path: Path, *pages: int) -> None:
    with path.open("r+b") as file:
        for page in pages:
            file.seek((page - 1) * PAGE)
            file.write(b"\xff" * PAGE)


def lost_of(store: CaptureStore) -> str:
    return store.live().set_aside or ""


def test_a_bad_page_of_steps_costs_the_rows_on_it_only(path: Path) -> None:
    """How many rows the page holds is read from it before, by hand: its header's cell count."""
    page = pages_of(path, "steps")[5]
    on_page = int.from_bytes(path.read_bytes()[(page - 1) * PAGE + 3 : (page - 1) * PAGE + 5])
    assert on_page > 0
    spoil(path, page)
    with closing(opened(path)) as store:
        assert sum(steps_of(store).values()) == CAPTURES * ROWS - on_page
        assert store.live().steps == CAPTURES * ROWS - on_page
        assert f" {on_page} lost; remove {path}.damaged-1 to acknowledge" in lost_of(store)
        assert store.latest_document(None, ADMIN) is not None
        assert len(store.traces(ADMIN, limit=100)) == CAPTURES
    with closing(opened(path)) as store:  # said at the next start too, and salvaged but once
        assert sum(steps_of(store).values()) == CAPTURES * ROWS - on_page
        assert f" {on_page} lost" in lost_of(store)
        path.with_name("store.sqlite.damaged-1").unlink()
        assert store.live().set_aside is not None  # as it was after the last change
        store.prune()
        assert store.live().set_aside is None


@pytest.mark.parametrize("table", ["traces", "captures", "reports", "documents"])
def test_a_bad_page_of_any_table_leaves_the_step_rows(path: Path, table: str) -> None:
    """Captures are made again from their traces, so that none of their steps is orphaned."""
    spoil(path, pages_of(path, table)[0])
    with closing(opened(path)) as store:
        assert steps_of(store) == {number: ROWS for number in range(CAPTURES)}
        assert "lost; remove" in lost_of(store)
        assert " 0 lost" not in lost_of(store)


def test_a_bad_index_costs_no_row(path: Path) -> None:
    spoil(path, *pages_of(path, "steps_by_time"))
    with closing(opened(path)) as store:
        assert steps_of(store) == {number: ROWS for number in range(CAPTURES)}
        assert " 0 lost; remove" in lost_of(store)


def test_a_store_of_which_every_other_page_is_bad_gives_the_rest(path: Path) -> None:
    leaves = pages_of(path, "steps")
    spoil(path, *leaves[::2])
    with closing(opened(path)) as store:
        kept = sum(steps_of(store).values())
        lost = int(lost_of(store).split(" lost;")[0].rsplit(maxsplit=1)[-1].replace(",", ""))
        assert kept == CAPTURES * ROWS - lost
        assert 0.3 * CAPTURES * ROWS < kept < 0.7 * CAPTURES * ROWS


def test_rows_whose_bodies_were_changed_are_lost_and_counted(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE steps SET body = zeroblob(9) WHERE step = 3")
        connection.execute("UPDATE traces SET state = 'wrong' WHERE name = '4.json'")
        changed = connection.execute("SELECT changes()").fetchone()[0]
        connection.commit()
    spoil(path, *pages_of(path, "steps_by_time"))
    with closing(opened(path)) as store:
        assert steps_of(store) == {n: ROWS for n in range(CAPTURES) if n != 3}
        assert f" {ROWS + changed} lost" in lost_of(store)


def test_what_is_still_in_the_log_of_a_damaged_store_is_salvaged(path: Path) -> None:
    page = pages_of(path, "steps_by_capture")[0]
    store = opened(path)
    store_capture(store, 99)
    copies = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    store.close()
    for name, content in copies.items():  # as a kill would leave them
        path.with_name(name).write_bytes(content)
    assert copies["store.sqlite-wal"]
    spoil(path, page)
    with closing(opened(path)) as store:
        assert steps_of(store) == {n: ROWS for n in (*range(CAPTURES), 99)}


def test_a_store_cut_in_half_gives_what_is_in_the_half(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)
    with closing(opened(path)) as store:
        kept = sum(steps_of(store).values())
        assert 0.2 * CAPTURES * ROWS < kept < 0.8 * CAPTURES * ROWS
        assert "lost; remove" in lost_of(store)

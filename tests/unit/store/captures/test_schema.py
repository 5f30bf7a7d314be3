import sqlite3
from contextlib import closing

import pytest

from chopperd.store.captures.schema import MIGRATIONS, Migration, migrate, version_of

NEXT: Migration = (
    "ALTER TABLE captures ADD COLUMN colour TEXT",
    "UPDATE captures SET colour = 'blue'",
)


def columns(connection: sqlite3.Connection) -> list[str]:
    return [row[1] for row in connection.execute("PRAGMA main.table_info(captures)")]


@pytest.mark.parametrize("version", range(len(MIGRATIONS) + 1))
def test_every_older_version_comes_up_to_a_next_one_with_its_rows(version: int) -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        migrate(connection, MIGRATIONS[:version])
        assert version_of(connection) == version
        if version:
            connection.execute("INSERT INTO captures VALUES (1, 'j', 'r', 0, '', 1, 2, 2, 3, 4)")
        migrate(connection, (*MIGRATIONS, NEXT))
        assert version_of(connection) == len(MIGRATIONS) + 1
        found = connection.execute("SELECT id, colour FROM captures").fetchall()
        assert found == ([(1, "blue")] if version else [])


def test_a_migration_that_fails_leaves_the_version_before_it_whole() -> None:
    broken: Migration = (*NEXT, "UPDATE no_such_table SET x = 1")
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        migrate(connection, MIGRATIONS)
        before = columns(connection)
        with pytest.raises(sqlite3.OperationalError, match="no_such_table"):
            migrate(connection, (*MIGRATIONS, broken))
        assert version_of(connection) == len(MIGRATIONS)
        assert columns(connection) == before
        assert not connection.in_transaction


def test_a_store_of_the_newest_version_is_left_alone() -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        migrate(connection, MIGRATIONS)
        changes = connection.total_changes
        migrate(connection, MIGRATIONS)
        assert connection.total_changes == changes

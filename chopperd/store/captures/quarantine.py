"""Whether a database file may be used, and putting one aside that may not; nothing is deleted."""

import re
import sqlite3
import threading
from itertools import count
from pathlib import Path
from typing import Final

from chopperd.store.captures.disk_trouble import DamagedError, NewerError
from chopperd.store.captures.schema import version_of

#: "chpd", so that `file` and we tell our stores from other databases.
APPLICATION_ID: Final = 0x63687064

#: The database itself last: whoever is killed in between finds it still in its place.
_PARTS: Final = ("-wal", "-shm", "-journal", "")
_QUARANTINED: Final = re.compile(r"\.(damaged|newer)-[0-9]+")


def check_ours(connection: sqlite3.Connection, at: str, version: int) -> None:
    """Return if the file is empty, or a store of this `version` or before; nothing is written.

    Raises:
        NewerError: It is a store of a later version.
        DamagedError: It is another program's database.
        sqlite3.DatabaseError: It can't be read at all.
    """
    tables = connection.execute(f"SELECT count(*) FROM {at}.sqlite_schema").fetchone()[0]
    identity = connection.execute(f"PRAGMA {at}.application_id").fetchone()[0]
    if tables and identity != APPLICATION_ID:
        raise DamagedError("it is not a database of chopperd")
    found = version_of(connection, at)
    if found > version:
        raise NewerError(f"its version {found} is newer than this program's {version}")


def check_sound(connection: sqlite3.Connection, at: str, limit_s: float) -> None:
    """Return if no malformed page is found in the file within a time.

    The time is kept by a thread, as a check of pages looks for an interrupt only.

    Raises:
        DamagedError: One is.
        sqlite3.DatabaseError: It can't be read at all.
    """
    limit = threading.Timer(limit_s, connection.interrupt)
    limit.name = "chopperd-store-check"
    limit.start()
    try:
        found = connection.execute(f"PRAGMA {at}.quick_check(1)").fetchone()[0]
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
            raise
        return
    finally:
        limit.cancel()
        limit.join()
    if found != "ok":
        raise DamagedError(str(found).splitlines()[-1])


def set_aside(path: Path, why: str) -> Path:
    """Rename a database and what belongs to it to the first free `<name>.<why>-<n>`.

    Raises:
        OSError: It can't be renamed.
    """
    target = next(
        candidate
        for n in count(1)
        if not (candidate := path.with_name(f"{path.name}.{why}-{n}")).exists()
    )
    for part in _PARTS:
        file = path.with_name(path.name + part)
        if file.exists():
            file.rename(target.with_name(target.name + part))
    return target


def quarantined(path: Path) -> list[Path]:
    """The files that `set_aside` renamed and nobody has removed since, oldest number first.

    Raises:
        OSError: The folder can't be read.
    """
    found = [
        file
        for file in path.parent.iterdir()
        if file.name.startswith(path.name)
        and _QUARANTINED.fullmatch(file.name.removeprefix(path.name))
    ]
    return sorted(found, key=lambda file: (len(file.name), file.name))

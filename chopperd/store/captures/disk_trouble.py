"""What an error of SQLite means for the store: a damaged file, a disk that refuses, or a bug."""

import sqlite3
from enum import Enum, auto
from typing import Final


class Trouble(Enum):
    """`DAMAGED`: the file is no sound database. `REFUSED`: it can't be written or read now."""

    DAMAGED = auto()
    REFUSED = auto()


#: By primary result code. Source: sqlite3.h, "Result Codes".
_TROUBLE_BY_CODE: Final = {
    sqlite3.SQLITE_CORRUPT: Trouble.DAMAGED,
    sqlite3.SQLITE_NOTADB: Trouble.DAMAGED,
    sqlite3.SQLITE_FULL: Trouble.REFUSED,
    sqlite3.SQLITE_IOERR: Trouble.REFUSED,
    sqlite3.SQLITE_READONLY: Trouble.REFUSED,
    sqlite3.SQLITE_CANTOPEN: Trouble.REFUSED,
    sqlite3.SQLITE_BUSY: Trouble.REFUSED,
    sqlite3.SQLITE_LOCKED: Trouble.REFUSED,
    sqlite3.SQLITE_PERM: Trouble.REFUSED,
    sqlite3.SQLITE_AUTH: Trouble.REFUSED,
    sqlite3.SQLITE_PROTOCOL: Trouble.REFUSED,
    sqlite3.SQLITE_NOLFS: Trouble.REFUSED,
}


class UnusableFileError(Exception):
    """The file is there but is no store that this program may use."""


class DamagedError(UnusableFileError):
    """A check found the file damaged; says what it found."""


class NewerError(UnusableFileError):
    """The file was made by a later version of the program."""


def trouble_of(error: BaseException) -> Trouble | None:
    """What an error says of the file; None if it is not about the file at all."""
    if isinstance(error, DamagedError):
        return Trouble.DAMAGED
    if isinstance(error, OSError):
        return Trouble.REFUSED
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else _TROUBLE_BY_CODE.get(code & 0xFF)

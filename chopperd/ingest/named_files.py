"""Files that somebody names to the agent: opened only where, and as, he could open them himself."""

import os
import pwd
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from chopperd.errors import IngestError, IngestReason

_FOLDER_FLAGS: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_READ: Final = 4
_ENTER: Final = 1


@contextmanager
def opened_under(path: str, roots: Sequence[Path], uid: int | None) -> Iterator[int]:
    """A descriptor of a plain file below one of the roots.

    What the path leads to is found out first; then it is walked from the top, a name at a time
    and following no link: what is changed meanwhile leads nowhere.

    Args:
        path: As it was named.
        roots: Where files may be named.
        uid: The user who must be able to read it by himself; None: one who may read all.

    Raises:
        IngestError: It is not below a root, not a plain file, or not for this user.
    """
    target = _resolved(path, roots)
    reader = None if uid is None else _Reader(uid)
    folder_fd = os.open("/", _FOLDER_FLAGS)
    try:
        for name in target.parts[1:-1]:
            _check(folder_fd, reader, _ENTER)
            folder_fd = _stepped(folder_fd, name)
        _check(folder_fd, reader, _ENTER)
        file_fd = os.open(target.name, _FILE_FLAGS, dir_fd=folder_fd)
    except OSError as error:
        raise _refused(path, error) from error
    finally:
        os.close(folder_fd)
    try:
        if not stat.S_ISREG(os.fstat(file_fd).st_mode):
            raise IngestError(f"{path} is no plain file", reason=IngestReason.FORBIDDEN)
        _check(file_fd, reader, _READ)
        yield file_fd
    finally:
        os.close(file_fd)


class _Reader:
    """A user, and what the modes of files allow him; lists beyond the modes are not looked at."""

    def __init__(self, uid: int) -> None:
        self._uid = uid
        self._groups = _groups_of(uid)

    def may(self, status: os.stat_result, what: int) -> bool:
        """Whether the mode gives him `what`: read (4) or enter (1)."""
        if self._uid == 0:
            return True
        if status.st_uid == self._uid:
            return bool(status.st_mode >> 6 & what)
        if status.st_gid in self._groups:
            return bool(status.st_mode >> 3 & what)
        return bool(status.st_mode & what)


def _groups_of(uid: int) -> frozenset[int]:
    """The groups of a user by this machine's list; none for a user who is not in it."""
    try:
        user = pwd.getpwuid(uid)
        return frozenset(os.getgrouplist(user.pw_name, user.pw_gid))
    except (KeyError, OSError):
        return frozenset()


def _resolved(path: str, roots: Sequence[Path]) -> Path:
    """Where the path leads, if that is below a root."""
    try:
        target = Path(os.path.realpath(path))
        is_below = Path(path).is_absolute() and any(
            Path(os.path.realpath(root)) in target.parents for root in roots
        )
    except (OSError, ValueError):
        is_below = False
    if not is_below:
        raise IngestError(
            "only files below ingest.roots may be named: send the bytes, or add the folder there",
            reason=IngestReason.FORBIDDEN,
        )
    return target


def _stepped(folder_fd: int, name: str) -> int:
    """The folder of this name instead of the one that it is in."""
    below_fd = os.open(name, _FOLDER_FLAGS, dir_fd=folder_fd)
    os.close(folder_fd)
    return below_fd


def _check(fd: int, reader: _Reader | None, what: int) -> None:
    if reader is not None and not reader.may(os.fstat(fd), what):
        raise IngestError(
            "you may not read this file: send its bytes, or open it to you (chmod, setfacl)",
            reason=IngestReason.FORBIDDEN,
        )


def _refused(path: str, error: OSError) -> IngestError:
    is_missing = isinstance(error, FileNotFoundError | NotADirectoryError)
    reason = IngestReason.NOT_FOUND if is_missing else IngestReason.FORBIDDEN
    return IngestError(f"{path} can't be read: {error.strerror or error}", reason=reason)

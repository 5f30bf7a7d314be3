"""The agent's folders: made with the right modes, and locked by one agent at a time."""

import fcntl
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from chopperd.errors import ConfigError

logger = logging.getLogger(__name__)

_LOCK_NAME: Final = "lock"
_FOLDER_MODE: Final = 0o755
#: Anyone may drop a trace, nobody may list or remove another's.
_INBOX_MODE: Final = 0o1733
_PRIVATE_MODE: Final = 0o700
_STATE_MODES: Final[Mapping[str, int]] = {
    "inbox": _INBOX_MODE,
    "traces": _PRIVATE_MODE,
    "rejected": _PRIVATE_MODE,
    "recorder": _FOLDER_MODE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFolder:
    """The agent's state folder, and the lock that it holds on it.

    Attributes:
        problem: The reason why nothing can be stored there; None if it can.
        lock_fd: Holds the lock until it is closed; None where there is a problem.
    """

    path: Path
    problem: str | None
    lock_fd: int | None = None

    def close(self) -> None:
        """Release the lock."""
        if self.lock_fd is not None:
            os.close(self.lock_fd)


def claimed_state(path: Path) -> StateFolder:
    """Make the state folder with its subfolders, and lock it for this process.

    If it can't be written to, the result says why, and the agent works without it.

    Raises:
        ConfigError: Another agent has it; names its pid.
    """
    try:
        _make(path, _FOLDER_MODE)
        lock_fd = _locked(path)
    except OSError as error:
        return StateFolder(path=path, problem=_problem("state", path, error))
    try:
        for name, mode in _STATE_MODES.items():
            _make(path / name, mode)
    except OSError as error:
        os.close(lock_fd)
        return StateFolder(path=path, problem=_problem("state", path, error))
    return StateFolder(path=path, problem=None, lock_fd=lock_fd)


def made_runtime(path: Path) -> str | None:
    """Make the runtime folder; return the reason why it can't be used, or None."""
    try:
        _make(path, _FOLDER_MODE)
    except OSError as error:
        return _problem("runtime", path, error)
    if not os.access(path, os.W_OK | os.X_OK):
        return f"the runtime folder {path} can't be written to"
    return None


def _make(path: Path, mode: int) -> None:
    """Make a folder with this mode; an existing one stays as it is."""
    try:
        path.mkdir(parents=True)
    except FileExistsError:
        if not path.is_dir():
            raise
        return
    path.chmod(mode)


def _locked(folder: Path) -> int:
    """Lock the folder; return a descriptor that holds the lock until it is closed.

    Raises:
        ConfigError: Another agent has locked it.
    """
    lock_fd = os.open(folder / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(lock_fd, 0)
        os.pwrite(lock_fd, f"{os.getpid()}\n".encode(), 0)
    except BlockingIOError as error:
        pid = os.pread(lock_fd, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(lock_fd)
        problem = f"paths.state: {folder} is used by another agent (pid {pid}); stop it first"
        raise ConfigError([problem]) from error
    except OSError:
        os.close(lock_fd)
        raise
    return lock_fd


def _problem(which: str, path: Path, error: OSError) -> str:
    return f"the {which} folder {path} can't be used: {error.strerror or error}"

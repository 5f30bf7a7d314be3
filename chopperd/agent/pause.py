"""The pause file: while it exists nothing is sampled, captured or analysed.

Anyone with write permission in the runtime folder may make it, with any content or none. Lines
`until=TIME` (RFC 3339, or seconds since 1970) and `reason=TEXT` are recognised.
"""

import logging
import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from chopperd.clock import Clock
from chopperd.model.live import Pause
from chopperd.units import NS_PER_S

logger = logging.getLogger(__name__)

FILE_NAME: Final = "pause"
_LONGEST_BYTES: Final = 4096
_LONGEST_REASON: Final = 200
_NO_REASON: Final = "paused by a file"


class PauseFile:
    """Reads, makes and removes the pause file (`model.services.PauseControl`)."""

    def __init__(self, folder: Path, clock: Clock, on_change: Callable[[], None]) -> None:
        self._path = folder / FILE_NAME
        self._clock = clock
        self._on_change = on_change
        self._lock = threading.Lock()
        #: The file's inode, time and size when it was last read, and its pause then.
        self._seen: tuple[tuple[int, int, int], Pause] | None = None
        #: A pause that could not be written to the file.
        self._held: Pause | None = None

    def current(self) -> Pause | None:
        """Return the pause in force, or None; remove the file of a pause that is over."""
        with self._lock:
            pause = self._from_file() or self._held
            until_ns = None if pause is None else pause.until_unix_ns
            if pause is None or until_ns is None or until_ns > self._clock.unix_ns():
                return pause
            logger.info("the pause is over: %s", pause.reason)
            self._remove()
            return None

    def pause(self, reason: str, for_s: float | None) -> Pause:
        """Pause for a time in s, or (None) until `resume`; return the pause."""
        until_ns = None if for_s is None else self._clock.unix_ns() + round(for_s * NS_PER_S)
        pause = Pause(reason=_one_line(reason) or "paused on request", until_unix_ns=until_ns)
        with self._lock:
            self._remove()
            try:
                self._write(pause)
            except OSError as error:
                logger.warning("paused until the agent ends; %s: %s", self._path, error.strerror)
                self._held = pause
        self._on_change()
        return pause

    def resume(self) -> None:
        """End the pause: remove its file."""
        with self._lock:
            self._remove()
        self._on_change()

    def _from_file(self) -> Pause | None:
        try:
            status = self._path.lstat()
        except OSError:
            self._seen = None
            return None
        mark = status.st_ino, status.st_mtime_ns, status.st_size
        if self._seen is None or self._seen[0] != mark:
            text = self._text() if stat.S_ISREG(status.st_mode) else ""
            self._seen = mark, parsed_pause(text)
        return self._seen[1]

    def _text(self) -> str:
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return ""
        try:
            return os.read(fd, _LONGEST_BYTES).decode(errors="replace")
        except OSError:
            return ""
        finally:
            os.close(fd)

    def _write(self, pause: Pause) -> None:
        lines = [f"reason={pause.reason}"]
        if pause.until_unix_ns is not None:
            lines.append(f"until={pause.until_unix_ns / NS_PER_S:.3f}")
        draft = self._path.with_name(f".{FILE_NAME}.new")
        draft.write_text("\n".join([*lines, ""]), encoding="utf-8")
        draft.replace(self._path)

    def _remove(self) -> None:
        self._held = self._seen = None
        with suppress(FileNotFoundError, NotADirectoryError):
            try:
                self._path.unlink()
            except IsADirectoryError:
                self._path.rmdir()


def parsed_pause(text: str) -> Pause:
    """Parse the content of a pause file; unrecognised lines become the pause's reason."""
    reasons, until_ns = [], None
    for key, value in _lines(text):
        if key == "until" and (time_ns := _unix_ns(value)) is not None:
            until_ns = time_ns
        else:
            reasons.append(value if key == "reason" else f"{key}={value}" if key else value)
    return Pause(reason=_one_line(" ".join(reasons)) or _NO_REASON, until_unix_ns=until_ns)


def _lines(text: str) -> Iterator[tuple[str, str]]:
    """Yield key and value of each line that is not blank; without `=` the key is empty."""
    for line in filter(None, map(str.strip, text.splitlines())):
        key, equals, value = line.partition("=")
        yield (key.strip().lower(), value.strip()) if equals else ("", line)


def _unix_ns(text: str) -> int | None:
    try:
        return round(float(text) * NS_PER_S)
    except (ValueError, OverflowError):
        pass
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return round((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()) * NS_PER_S


def _one_line(text: str) -> str:
    return " ".join(text.split())[:_LONGEST_REASON]

"""Files that stand in for those of sysfs: written in place, and made to fail.

What is different from a real sysfs: `stat` gives a file's real size, not 4096; what a read gets is
what was last written, not made by the read; each read of a block that is being written may see
half of it (of two measurements, as a write takes its time); who has a file open that is made to
fail, or whose device is gone, reads nothing (0 bytes), where a real one answers with an error; a
shorter text than before has line feeds behind it.
"""

import errno
import os
from pathlib import Path

import pytest

#: Links to these fail for root too: opening one is forbidden, reading the other is an error.
_FAILING = {errno.EACCES: Path("/proc/sys/vm/compact_memory"), errno.EIO: Path("/proc/self/mem")}


def write(path: Path, content: str | bytes) -> None:
    """Write a file in place, in one call; a text that is shorter than before ends in line feeds."""
    data = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        if isinstance(content, str):
            data = data.ljust(os.fstat(file).st_size, b"\n")
        os.pwrite(file, data, 0)
        if os.fstat(file).st_size > len(data):
            os.ftruncate(file, len(data))
    finally:
        os.close(file)


def link(path: Path, to: Path) -> None:
    """A relative link, as sysfs has them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(os.path.relpath(to, path.parent))


def fail(path: Path, code: int) -> None:
    """Opening or reading a file fails so: ENOENT, EACCES, EIO, EISDIR, ELOOP."""
    if path.is_file() and not path.is_symlink():
        cut(path, 0)
        path.rename(_aside(path))
    if code in _FAILING:
        if not _FAILING[code].exists():
            pytest.skip(f"this kernel has no {_FAILING[code]}")
        path.symlink_to(_FAILING[code])
    elif code == errno.ELOOP:
        path.symlink_to(path.name)
    elif code == errno.EISDIR:
        path.mkdir()
    else:
        assert code == errno.ENOENT, code


def heal(path: Path) -> None:
    """The same file is there again, empty; who had it open reads it."""
    if path.is_symlink():
        path.unlink()
    elif path.is_dir():
        path.rmdir()
    if (aside := _aside(path)).exists():
        aside.rename(path)


def _aside(path: Path) -> Path:
    return path.with_name(f".{path.name}.aside")


def cut(path: Path, to_bytes: int) -> None:
    """A file holds no more than its first bytes; seen also by whom has it open."""
    os.truncate(path, to_bytes)

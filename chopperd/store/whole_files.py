"""A file that is there whole or not at all, whatever ends its writer."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from chopperd.errors import StoreError

#: Readable by its owner only.
PRIVATE: Final = 0o600
_SHARED: Final = 0o666
_BUFFER_BYTES: Final = 1 << 20


@contextmanager
def replaced_file(path: Path, *, mode: int = _SHARED) -> Iterator[BinaryIO]:
    """A new file, open for writing, that takes the place of `path` in one step at the end.

    Args:
        path: Where it is to be; what is there stays until then, and if anything fails.
        mode: Its access mode, less what the process masks.

    Raises:
        StoreError: It can't be written.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        try:
            part.unlink(missing_ok=True)
            fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
            with os.fdopen(fd, "wb", buffering=_BUFFER_BYTES) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(f"{path}: can't be written: {error.strerror or error}") from error

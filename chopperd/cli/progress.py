"""The bar that shows how far reading a file has come."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO, TypeAlias

Advance: TypeAlias = Callable[[int, int | None], None]


@contextmanager
def reading_progress(stream: TextIO) -> Iterator[Advance | None]:
    """What to call with (bytes done, bytes in all); None where the stream is no terminal."""
    if not stream.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(file=stream), transient=True) as bars:
        task = bars.add_task("reading", total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)

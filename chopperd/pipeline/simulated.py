"""The traces that a simulated job writes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from chopperd.simulation.kineto import rank_trace
from chopperd.simulation.node import SimulatedNode

#: A file with this end is passed over by the inbox.
_UNFINISHED: Final = ".part"


def write_traces(
    node: SimulatedNode, begin_unix_ns: int, end_unix_ns: int, folder: Path, prefix: str = ""
) -> Iterator[Path]:
    """Write each rank's trace of the steps inside a time under a name that says it is unfinished.

    Args:
        node: Where the job runs.
        begin_unix_ns: Start of the time.
        end_unix_ns: Its end; at least one step is written.
        folder: Made if it is not there.
        prefix: Of the files' names.

    Yields:
        What is to be given to `finish_trace`, by rank, when it is written.

    Raises:
        OSError: A file can't be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in simulated_traces(node, begin_unix_ns, end_unix_ns):
        path = folder / f"{prefix}{name}{_UNFINISHED}"
        with path.open("wb") as file:
            file.writelines(content)
        yield path


def finish_trace(path: Path) -> Path:
    """Give a trace of `write_traces` its name."""
    return path.rename(path.with_name(path.name.removesuffix(_UNFINISHED)))


def simulated_traces(
    node: SimulatedNode, begin_unix_ns: int, end_unix_ns: int
) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Name and content of each rank's trace, of the steps inside a time (at least one)."""
    first_step = node.step_at(begin_unix_ns) + 1
    last_step = max(node.step_at(end_unix_ns) - 1, first_step)
    for rank in range(len(node.gpus)):
        yield f"rank{rank}.pt.trace.json", rank_trace(node, rank, first_step, last_step)

"""Write the trace files of a simulated job."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from chopperd.simulation.kineto import rank_trace
from chopperd.simulation.node import SimulatedNode

#: The inbox ignores files with this suffix.
_UNFINISHED: Final = ".part"


def write_traces(
    node: SimulatedNode, begin_unix_ns: int, end_unix_ns: int, folder: Path, prefix: str = ""
) -> Iterator[Path]:
    """Write each rank's trace under a temporary name; yield its path, for `finish_trace`, by rank.

    A trace covers the steps that lie between the two times (at least one).
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in simulated_traces(node, begin_unix_ns, end_unix_ns):
        path = folder / f"{prefix}{name}{_UNFINISHED}"
        with path.open("wb") as file:
            file.writelines(content)
        yield path


def finish_trace(path: Path) -> Path:
    """Rename a file of `write_traces` to its final name; return that."""
    return path.rename(path.with_name(path.name.removesuffix(_UNFINISHED)))


def simulated_traces(
    node: SimulatedNode, begin_unix_ns: int, end_unix_ns: int
) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Yield name and content of each rank's trace, as `write_traces`."""
    first_step = node.step_at(begin_unix_ns) + 1
    last_step = max(node.step_at(end_unix_ns) - 1, first_step)
    for rank in range(len(node.gpus)):
        yield f"rank{rank}.pt.trace.json", rank_trace(node, rank, first_step, last_step)

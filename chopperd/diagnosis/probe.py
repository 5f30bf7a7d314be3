"""Looking at the GPUs in a process of its own, since a driver call may never return.

That process writes two lines of JSON: the driver library as it loaded, then what came of reading
the GPUs. What is missing says how far it came.
"""

import ctypes
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from chopperd.devices.patient_calls import PatientCalls
from chopperd.devices.registry import choose
from chopperd.diagnosis.facts import DriverProbe, Library
from chopperd.diagnosis.machine import Machine
from chopperd.diagnosis.survey import survey
from chopperd.errors import BackendUnavailableError, ChopperdError, ConfigError
from chopperd.model.inventory import Inventory

T = TypeVar("T")

LIBRARY_NAME: Final = "libnvidia-ml.so.1"
_MAPS: Final = Path("/proc/self/maps")
_LINES_COUNT: Final = 2
_FILE_NAME: Final = "libnvidia-ml.so"


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The second line: the GPUs, or why there are none and the exit code that goes with it."""

    inventory: Inventory | None = None
    error: str | None = None
    exit_code: int = 0


def probe_lines(backend: str, calls_count: int) -> Iterator[bytes]:
    """What the process writes, line by line.

    Args:
        backend: The back end to open.
        calls_count: As for `survey`.
    """
    yield msgspec.json.encode(loaded_library(LIBRARY_NAME))
    calls = PatientCalls("its calls")
    try:
        choice = choose(backend)
        with closing(choice.backend) as opened, ExitStack() as stack:
            stack.callback(calls.wait)
            found = survey(opened, calls_count=calls_count, calls=calls)
            pids = {one.pid for gpu in found.gpus for one in gpu.processes or ()}
            says = any(gpu.processes is not None for gpu in found.gpus)
            view = Machine().process_view(pids if says else None)
            found = replace(found, chosen=choice.reason, processes=view)
            # Before the end, which waits for what hangs.
            yield msgspec.json.encode(Outcome(inventory=found))
    except ChopperdError as error:
        yield msgspec.json.encode(Outcome(error=str(error), exit_code=error.exit_code))


def loaded_library(name: str, maps: Path = _MAPS) -> Library:
    """A library, loaded into this process; nothing of it is called."""
    try:
        ctypes.CDLL(name)
    except OSError as error:
        return Library(name=name, error=str(error))
    mapped = (line.rpartition(" ")[2].strip() for line in maps.read_text().splitlines())
    path = next((each for each in mapped if _FILE_NAME in each), None)
    return Library(name=name, path=path or name)


def is_whole(output: bytes) -> bool:
    """Whether all lines are there, although the process may not have ended."""
    return output.count(b"\n") >= _LINES_COUNT


def probe_of(backend: str, output: bytes) -> DriverProbe:
    """What those lines say, also where the process ended in the middle of one."""
    library, outcome = _parsed(output)
    return DriverProbe(
        backend=backend,
        library=library,
        inventory=outcome.inventory if outcome else None,
        error=outcome.error if outcome else None,
    )


def inventory_of(output: bytes) -> Inventory:
    """The GPUs that those lines hold.

    Raises:
        ConfigError: No back end has the name that was asked for.
        BackendUnavailableError: There are none; says why.
    """
    _, outcome = _parsed(output)
    if outcome is not None and outcome.inventory is not None:
        return outcome.inventory
    if outcome is None or outcome.error is None:
        raise BackendUnavailableError("the process that reads the GPUs ended without a word")
    if outcome.exit_code == ConfigError.exit_code:
        raise ConfigError([outcome.error])
    raise BackendUnavailableError(outcome.error)


def _parsed(output: bytes) -> tuple[Library | None, Outcome | None]:
    lines = output.split(b"\n")
    library = _decoded(lines[0], Library)
    return library, _decoded(lines[1], Outcome) if len(lines) > 1 else None


def _decoded(line: bytes, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(line, type=kind)
    except msgspec.MsgspecError:
        return None

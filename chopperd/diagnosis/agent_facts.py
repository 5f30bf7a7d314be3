"""Facts of the agent and of what its settings name: folders, addresses, its socket."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from chopperd import __version__
from chopperd.agent.pause import FILE_NAME, parsed_pause
from chopperd.agent.sockets import LONGEST_SOCKET_PATH_BYTES, SOCKET_NAME
from chopperd.api.binding import is_in_use
from chopperd.client.agent import AgentClient
from chopperd.client.transport import Endpoint
from chopperd.config.paths import runtime_folder, state_folder
from chopperd.config.sections import Config
from chopperd.diagnosis.facts import Agent, Folder, Listener
from chopperd.errors import AgentRefusedError, AgentUnreachableError, ConfigError
from chopperd.model.live import Pause

_CONNECT_S: Final = 1.0


def folders_of(config: Config) -> tuple[Folder, ...]:
    """The folders that an agent started now by this user would have."""
    return (
        _folder("state", "paths.state", lambda: state_folder(config), config.store.min_free_ratio),
        _with_socket(_folder("runtime", "paths.runtime", lambda: runtime_folder(config), 0.0)),
    )


def listeners_of(config: Config) -> tuple[Listener, ...]:
    """The addresses that the agent listens on; none where any free port will do."""
    wanted = (("metrics.listen", config.metrics.listen), ("api.listen", config.api.listen))
    return tuple(
        Listener(key=key, address=address, is_taken=is_in_use(address))
        for key, address in wanted
        if _port(address)
    )


def agent_of(config: Config) -> Agent:
    """The agent of this node, as it answers now."""
    try:
        client = AgentClient.of(config)
    except ConfigError as error:
        return Agent(own_version=__version__, refusal=str(error))
    try:
        said = client.status()
    except AgentRefusedError as error:
        return Agent(own_version=__version__, refusal=str(error))
    except AgentUnreachableError as error:
        is_there = _answers(client.api.endpoints)
        return Agent(own_version=__version__, refusal=str(error) if is_there else None)
    return Agent(
        own_version=__version__,
        version=said.version,
        trouble=said.trouble,
    )


def pause_of(config: Config) -> Pause | None:
    """What the pause file says; None where there is none. One that is over is the agent's to end.

    It may be a folder, and need not be readable: that it is there is enough.
    """
    try:
        path = runtime_folder(config) / FILE_NAME
    except ConfigError:
        return None
    if not os.path.lexists(path):
        return None
    try:
        return parsed_pause(path.read_text(errors="replace") if path.is_file() else "")
    except OSError:
        return parsed_pause("")


def _folder(what: str, key: str, place: Callable[[], Path], least_free_ratio: float) -> Folder:
    try:
        path = place()
    except ConfigError as error:
        return Folder(what=what, key=key, path="(none)", trouble=str(error))
    return Folder(
        what=what,
        key=key,
        path=str(path),
        trouble=_trouble(path),
        free_ratio=_free_ratio(path),
        least_free_ratio=least_free_ratio,
    )


def _with_socket(runtime: Folder) -> Folder:
    """The runtime folder, judged also by whether the agent's socket can be made in it."""
    path = Path(runtime.path) / SOCKET_NAME
    trouble = runtime.trouble
    if trouble is None and len(os.fsencode(path)) > LONGEST_SOCKET_PATH_BYTES:
        trouble = "too long a path for a socket in it"
    elif trouble is None and os.path.lexists(path) and not path.is_socket():
        trouble = f"{SOCKET_NAME} in it is no socket"
    return replace(runtime, trouble=trouble)


def _existing(path: Path) -> Path:
    """The folder, or the nearest above it that is there."""
    return next((each for each in (path, *path.parents) if each.exists()), Path("/"))


def _trouble(path: Path) -> str | None:
    place = _existing(path)
    if not place.is_dir():
        return f"{place} is no folder"
    if os.access(place, os.W_OK | os.X_OK):
        return None
    return "this user may not write there" if place == path else f"can't be made in {place}"


def _free_ratio(path: Path) -> float | None:
    try:
        disk = os.statvfs(_existing(path))
    except OSError:
        return None
    return disk.f_bavail / disk.f_blocks if disk.f_blocks else None


def _port(address: str) -> int:
    return int(address.rpartition(":")[2] or 0)


def _answers(endpoints: Sequence[Endpoint]) -> bool:
    """Whether anything takes a connection where an agent would."""
    for endpoint in endpoints:
        try:
            endpoint.connect(_CONNECT_S).close()
        except OSError:
            continue
        return True
    return False

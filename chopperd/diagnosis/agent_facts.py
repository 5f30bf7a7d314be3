"""Collect facts about the agent and its configured folders, addresses and socket."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from chopperd import __version__
from chopperd.agent.pause import FILE_NAME, parsed_pause
from chopperd.agent.sockets import LONGEST_SOCKET_PATH_BYTES, is_in_use
from chopperd.client.agent import AgentClient, Endpoint
from chopperd.config.paths import SOCKET_NAME, runtime_folder, state_folder
from chopperd.config.sections import Config
from chopperd.diagnosis.facts import Agent, Folder, Listener
from chopperd.errors import AgentRefusedError, AgentUnreachableError, ConfigError
from chopperd.model.live import Pause

_CONNECT_S: Final = 1.0


def folders_of(config: Config) -> tuple[Folder, ...]:
    """Inspect the state and runtime folders of an agent started now by this user."""
    state = _folder("state", lambda: state_folder(config))
    runtime = _folder("runtime", lambda: runtime_folder(config))
    socket = Path(runtime.path) / SOCKET_NAME
    if runtime.problem is None and len(os.fsencode(socket)) > LONGEST_SOCKET_PATH_BYTES:
        runtime = replace(runtime, problem="its path is too long for a socket")
    elif runtime.problem is None and os.path.lexists(socket) and not socket.is_socket():
        runtime = replace(runtime, problem=f"{SOCKET_NAME} in it is not a socket")
    return replace(state, least_free_ratio=config.store.min_free_ratio), runtime


def listeners_of(config: Config) -> tuple[Listener, ...]:
    """Return the configured addresses with a fixed port, and whether each is in use."""
    wanted = (("metrics.listen", config.metrics.listen), ("api.listen", config.api.listen))
    return tuple(
        Listener(key=key, address=address, is_taken=is_in_use(address))
        for key, address in wanted
        if int(address.rpartition(":")[2] or 0)
    )


def agent_of(config: Config) -> Agent:
    """Request the status of this node's agent; return its version or why there is no answer."""
    try:
        client = AgentClient.of(config)
        status = client.status()
    except (ConfigError, AgentRefusedError) as error:
        return Agent(own_version=__version__, refusal=str(error))
    except AgentUnreachableError as error:
        is_there = _answers(client.api.endpoints)
        return Agent(own_version=__version__, refusal=str(error) if is_there else None)
    return Agent(own_version=__version__, version=status.version, problem=status.trouble)


def pause_of(config: Config) -> Pause | None:
    """Read the pause file, readable or not, over or not; None if there is no such file."""
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


def _folder(what: str, path_of: Callable[[], Path]) -> Folder:
    key = f"paths.{what}"
    try:
        path = path_of()
    except ConfigError as error:
        return Folder(what=what, key=key, path="(none)", problem=str(error))
    existing = next((each for each in (path, *path.parents) if each.exists()), Path("/"))
    problem = None
    if not existing.is_dir():
        problem = f"{existing} is not a folder"
    elif not os.access(existing, os.W_OK | os.X_OK):
        is_there = existing == path
        problem = "this user may not write to it" if is_there else f"can't be made in {existing}"
    return Folder(
        what=what, key=key, path=str(path), problem=problem, free_ratio=_free_ratio(existing)
    )


def _free_ratio(path: Path) -> float | None:
    try:
        disk = os.statvfs(path)
    except OSError:
        return None
    return disk.f_bavail / disk.f_blocks if disk.f_blocks else None


def _answers(endpoints: Sequence[Endpoint]) -> bool:
    """Whether a connection to any of an agent's addresses is accepted."""
    for endpoint in endpoints:
        try:
            endpoint.connect(_CONNECT_S).close()
        except OSError:
            continue
        return True
    return False

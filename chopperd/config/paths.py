"""Paths, the node's name, variables of systemd and of the shell, command lines of own processes."""

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import Struct

from chopperd.config.sections import Config
from chopperd.errors import ConfigError

#: Folders of a system-wide agent.
SYSTEM_STATE: Final = Path("/var/lib/chopperd")
SYSTEM_RUNTIME: Final = Path("/run/chopperd")
#: Folder of the flight recorder in the state folder.
RECORDER_FOLDER: Final = "recorder"
#: Name of the API's Unix socket in the runtime folder.
SOCKET_NAME: Final = "api.sock"
#: The variable by which a shell's completion script tells a program what it wants.
COMPLETION_VARIABLE: Final = "_CHOPPERD_COMPLETE"
_NAME: Final = "chopperd"


def state_folder(config: Config) -> Path:
    """Return the state folder of an agent started now; it need not exist.

    `paths.state` if set; the system's folder for root, or if it can be written to; else
    `$XDG_STATE_HOME/chopperd`, by default under `~/.local/state`.

    Raises:
        ConfigError: It would be in the home of a user without one.
    """
    return _folder(config.paths.state, SYSTEM_STATE, _own_state)


def runtime_folder(config: Config) -> Path:
    """Return the folder of socket and pause file of an agent started now; it need not exist.

    As `state_folder`, by `paths.runtime` and `$XDG_RUNTIME_DIR/chopperd`; without that variable in
    the user's state folder, since others could own a folder where all may write.

    Raises:
        ConfigError: It would be in the home of a user without one.
    """
    return _folder(config.paths.runtime, SYSTEM_RUNTIME, _own_runtime)


def readable_state_folders(config: Config) -> tuple[Path, ...]:
    """Return readable folders that may hold the state of an agent, best first.

    `paths.state` if set, else the system's and the user's, if they exist and may be read.
    """
    return _readable(config.paths.state, SYSTEM_STATE, _own_state)


def readable_runtime_folders(config: Config) -> tuple[Path, ...]:
    """Return readable folders that may hold an agent's socket, as `readable_state_folders`."""
    return _readable(config.paths.runtime, SYSTEM_RUNTIME, _own_runtime)


def _folder(configured: str | None, system: Path, own: Callable[[], Path]) -> Path:
    if configured is not None:
        return Path(configured)
    is_ours = os.geteuid() == 0 or (system.is_dir() and os.access(system, os.W_OK | os.X_OK))
    return system if is_ours else own()


def _readable(configured: str | None, system: Path, own: Callable[[], Path]) -> tuple[Path, ...]:
    """Return which of the configured folder, or the system's and the user's, may be searched."""
    folders = [system] if configured is None else [Path(configured)]
    if configured is None:
        with suppress(ConfigError):  # a user without a home
            folders.append(own())
    return tuple(each for each in folders if os.access(each, os.X_OK) and each.is_dir())


def _own_state() -> Path:
    return (_path_in("XDG_STATE_HOME") or _home() / ".local" / "state") / _NAME


def _own_runtime() -> Path:
    folder = _path_in("XDG_RUNTIME_DIR")
    return _own_state() / "run" if folder is None else folder / _NAME


def _home() -> Path:
    try:
        return _path_in("HOME") or Path.home()
    except RuntimeError as error:  # a user without a name, as in containers
        problem = "paths.state and paths.runtime: must be set, as this user has no home folder"
        raise ConfigError([problem]) from error


def _path_in(variable: str) -> Path | None:
    """The path in a variable; None if relative, which the XDG specification ignores, or none."""
    path = Path(os.environ.get(variable, ""))
    return path if path.is_absolute() else None


def own_command(name: str, *arguments: str) -> list[str]:
    """Return the command line that runs a hidden command of chopperd."""
    # -P: the working directory must not shadow a module of ours.
    return [sys.executable, "-P", "-m", "chopperd", name, *arguments]


def node_name(config: Config) -> str:
    """Return the node's name in reports, metrics and samples: configured, else the host's."""
    return config.node.name or os.uname().nodename


def completion_request() -> str | None:
    """Return what a shell's completion requests of this process; None if no shell does.

    Source: shell completion of click, variable `_CHOPPERD_COMPLETE`.
    """
    return os.environ.get(COMPLETION_VARIABLE)


class ServiceManager(Struct, frozen=True, kw_only=True):
    """Settings that systemd passes to this process."""

    #: socket for status messages ("@" first: an abstract one); None without one
    notify_address: str | None = None
    watchdog_s: float | None = None  # how often it wants a sign of life; None where it does not


def service_manager(environment: Mapping[str, str] | None = None) -> ServiceManager:
    """Return systemd's settings in the environment (None: the process's own).

    Source: sd_notify(3), sd_watchdog_enabled(3): `NOTIFY_SOCKET`, `WATCHDOG_USEC`, `WATCHDOG_PID`.
    """
    variables = os.environ if environment is None else environment
    period = variables.get("WATCHDOG_USEC", "")
    is_ours = variables.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    return ServiceManager(
        notify_address=variables.get("NOTIFY_SOCKET") or None,
        watchdog_s=int(period) / 1e6 if is_ours and period.isdecimal() and int(period) else None,
    )

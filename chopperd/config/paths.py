"""Where state and sockets are on this node, what the node is called, and what systemd passes on."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from chopperd.config.sections import Config
from chopperd.errors import ConfigError

# Where state and sockets are kept: as configured, else the system's place, else the user's.


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemPlaces:
    """The folders of an agent that runs for the whole machine."""

    state: Path = Path("/var/lib/chopperd")
    runtime: Path = Path("/run/chopperd")


SYSTEM_PLACES: Final = SystemPlaces()
#: Folder of the flight recorder in the state folder.
RECORDER_FOLDER: Final = "recorder"
_NAME: Final = "chopperd"


def state_folder(
    config: Config,
    environment: Mapping[str, str] | None = None,
    system: SystemPlaces = SYSTEM_PLACES,
) -> Path:
    """Where an agent started now keeps its state; it need not exist.

    `paths.state` where it is set; the system's place for root, or where it exists and may be
    written to; else `$XDG_STATE_HOME/chopperd`, by default under `~/.local/state`.

    Args:
        config: The configuration.
        environment: Variables; None takes those of this process.
        system: The system's places.

    Raises:
        ConfigError: It would be the user's, who has no home.
    """
    if config.paths.state is not None:
        return Path(config.paths.state)
    return system.state if _may_use(system.state) else _own_state(_variables(environment))


def runtime_folder(
    config: Config,
    environment: Mapping[str, str] | None = None,
    system: SystemPlaces = SYSTEM_PLACES,
) -> Path:
    """Where an agent started now keeps its socket and pause file; it need not exist.

    As `state_folder`, of `paths.runtime` and `$XDG_RUNTIME_DIR/chopperd`; without that variable it
    is a folder of the user's state: one in a place that all may write to could be another's.

    Raises:
        ConfigError: It would be the user's, who has no home.
    """
    if config.paths.runtime is not None:
        return Path(config.paths.runtime)
    return system.runtime if _may_use(system.runtime) else _own_runtime(_variables(environment))


def readable_state_folders(
    config: Config,
    environment: Mapping[str, str] | None = None,
    system: SystemPlaces = SYSTEM_PLACES,
) -> tuple[Path, ...]:
    """The folders in which an agent's state may be found by who reads it, best first.

    Only those that exist and may be read: `paths.state` where it is set, else the system's and the
    user's.
    """
    configured = config.paths.state
    own = _if_any(_own_state, environment)
    places = (system.state, *own) if configured is None else (Path(configured),)
    return tuple(place for place in places if _may_read(place))


def readable_runtime_folders(
    config: Config,
    environment: Mapping[str, str] | None = None,
    system: SystemPlaces = SYSTEM_PLACES,
) -> tuple[Path, ...]:
    """The folders in which an agent's socket may be found by its clients, best first.

    As `readable_state_folders`, of `paths.runtime`.
    """
    configured = config.paths.runtime
    own = _if_any(_own_runtime, environment)
    places = (system.runtime, *own) if configured is None else (Path(configured),)
    return tuple(place for place in places if _may_read(place))


def _variables(environment: Mapping[str, str] | None) -> Mapping[str, str]:
    return os.environ if environment is None else environment


def _if_any(
    own: Callable[[Mapping[str, str]], Path], environment: Mapping[str, str] | None
) -> tuple[Path, ...]:
    """The user's folder; none for a user without a home."""
    try:
        return (own(_variables(environment)),)
    except ConfigError:
        return ()


def _own_state(variables: Mapping[str, str]) -> Path:
    if _is_absolute(variables, "XDG_STATE_HOME"):
        return Path(variables["XDG_STATE_HOME"]) / _NAME
    return _home(variables) / ".local" / "state" / _NAME


def _home(variables: Mapping[str, str]) -> Path:
    if _is_absolute(variables, "HOME"):
        return Path(variables["HOME"])
    try:
        return Path.home()
    except RuntimeError as error:  # a user that the machine has no name for, as in containers
        problem = "paths.state and paths.runtime: must be set, as this user has no home folder"
        raise ConfigError([problem]) from error


def _own_runtime(variables: Mapping[str, str]) -> Path:
    if _is_absolute(variables, "XDG_RUNTIME_DIR"):
        return Path(variables["XDG_RUNTIME_DIR"]) / _NAME
    return _own_state(variables) / "run"


def _is_absolute(variables: Mapping[str, str], name: str) -> bool:
    """Whether the variable names a folder; the XDG specification has relative ones ignored."""
    return Path(variables.get(name, "")).is_absolute()


def _may_use(folder: Path) -> bool:
    return os.geteuid() == 0 or (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK))


def _may_read(folder: Path) -> bool:
    """Whether files in it can be opened by their names."""
    return os.access(folder, os.X_OK) and folder.is_dir()


# What this node is called.


def node_name(config: Config) -> str:
    """The node's name in reports, metrics and samples: configured, else the host's."""
    return config.node.name or os.uname().nodename


# What the service manager that started this process says in the environment.


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceManager:
    """How to reach systemd, where it started this process.

    Attributes:
        notify_address: Socket for status messages ("@" first: an abstract one); None without one.
        watchdog_s: How often it wants a sign of life; None where it does not.
    """

    notify_address: str | None = None
    watchdog_s: float | None = None


def service_manager(environment: Mapping[str, str] | None = None) -> ServiceManager:
    """What this process was told.

    Source: sd_notify(3), sd_watchdog_enabled(3): `NOTIFY_SOCKET`, `WATCHDOG_USEC`, `WATCHDOG_PID`.

    Args:
        environment: Variables; None takes those of this process.
    """
    variables = os.environ if environment is None else environment
    period = variables.get("WATCHDOG_USEC", "")
    is_ours = variables.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    return ServiceManager(
        notify_address=variables.get("NOTIFY_SOCKET") or None,
        watchdog_s=int(period) / 1e6 if is_ours and period.isdecimal() and int(period) else None,
    )

"""Paths, the node's name, variables of systemd and of the shell, command lines of own processes."""

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from chopperd.config.sections import Config
from chopperd.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemPaths:
    """Folders of a system-wide agent."""

    state: Path = Path("/var/lib/chopperd")
    runtime: Path = Path("/run/chopperd")


SYSTEM_PATHS: Final = SystemPaths()
#: Folder of the flight recorder in the state folder.
RECORDER_FOLDER: Final = "recorder"
#: The variable by which a shell's completion script tells a program what it wants.
COMPLETION_VARIABLE: Final = "_CHOPPERD_COMPLETE"
_NAME: Final = "chopperd"


def state_folder(
    config: Config, environment: Mapping[str, str] | None = None, system: SystemPaths = SYSTEM_PATHS
) -> Path:
    """Return the state folder of an agent started now; it need not exist.

    `paths.state` if set; the system's folder for root, or if it can be written to; else
    `$XDG_STATE_HOME/chopperd`, by default under `~/.local/state`. Environment None is the
    process's own.

    Raises:
        ConfigError: It would be in the home of a user without one.
    """
    if config.paths.state is not None:
        return Path(config.paths.state)
    return system.state if _may_use(system.state) else _own_state(_variables(environment))


def runtime_folder(
    config: Config, environment: Mapping[str, str] | None = None, system: SystemPaths = SYSTEM_PATHS
) -> Path:
    """Return the folder of socket and pause file of an agent started now; it need not exist.

    As `state_folder`, by `paths.runtime` and `$XDG_RUNTIME_DIR/chopperd`; without that variable in
    the user's state folder, since others could own a folder where all may write.

    Raises:
        ConfigError: It would be in the home of a user without one.
    """
    if config.paths.runtime is not None:
        return Path(config.paths.runtime)
    return system.runtime if _may_use(system.runtime) else _own_runtime(_variables(environment))


def readable_state_folders(
    config: Config, environment: Mapping[str, str] | None = None, system: SystemPaths = SYSTEM_PATHS
) -> tuple[Path, ...]:
    """Return readable folders that may hold the state of an agent, best first.

    `paths.state` if set, else the system's and the user's, if they exist and may be read.
    """
    return _readable(config.paths.state, system.state, _own_state, environment)


def readable_runtime_folders(
    config: Config, environment: Mapping[str, str] | None = None, system: SystemPaths = SYSTEM_PATHS
) -> tuple[Path, ...]:
    """Return readable folders that may hold an agent's socket, as `readable_state_folders`."""
    return _readable(config.paths.runtime, system.runtime, _own_runtime, environment)


def _variables(environment: Mapping[str, str] | None) -> Mapping[str, str]:
    return os.environ if environment is None else environment


def _readable(
    configured: str | None,
    system: Path,
    own: Callable[[Mapping[str, str]], Path],
    environment: Mapping[str, str] | None,
) -> tuple[Path, ...]:
    """Return which of the configured folder, or the system's and the user's, may be searched."""
    folders = [system] if configured is None else [Path(configured)]
    if configured is None:
        with suppress(ConfigError):  # a user without a home
            folders.append(own(_variables(environment)))
    return tuple(each for each in folders if os.access(each, os.X_OK) and each.is_dir())


def _own_state(variables: Mapping[str, str]) -> Path:
    if _is_absolute(variables, "XDG_STATE_HOME"):
        return Path(variables["XDG_STATE_HOME"]) / _NAME
    return _home(variables) / ".local" / "state" / _NAME


def _home(variables: Mapping[str, str]) -> Path:
    if _is_absolute(variables, "HOME"):
        return Path(variables["HOME"])
    try:
        return Path.home()
    except RuntimeError as error:  # a user without a name, as in containers
        problem = "paths.state and paths.runtime: must be set, as this user has no home folder"
        raise ConfigError([problem]) from error


def _own_runtime(variables: Mapping[str, str]) -> Path:
    if _is_absolute(variables, "XDG_RUNTIME_DIR"):
        return Path(variables["XDG_RUNTIME_DIR"]) / _NAME
    return _own_state(variables) / "run"


def _is_absolute(variables: Mapping[str, str], name: str) -> bool:
    """Whether the variable has an absolute path; the XDG specification ignores relative ones."""
    return Path(variables.get(name, "")).is_absolute()


def _may_use(folder: Path) -> bool:
    return os.geteuid() == 0 or (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK))


def own_command(name: str, *arguments: str) -> list[str]:
    """Return the command line that runs a hidden command of chopperd."""
    # -P: the working directory must not shadow a module of ours.
    return [sys.executable, "-P", "-m", "chopperd", name, *arguments]


def node_name(config: Config) -> str:
    """Return the node's name in reports, metrics and samples: configured, else the host's."""
    return config.node.name or os.uname().nodename


def completion_request(environment: Mapping[str, str] | None = None) -> str | None:
    """Return what a shell's completion requests of this process; None if no shell does.

    Source: shell completion of click, variable `_CHOPPERD_COMPLETE`.
    """
    return _variables(environment).get(COMPLETION_VARIABLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceManager:
    """Settings that systemd passes to this process."""

    #: socket for status messages ("@" first: an abstract one); None without one
    notify_address: str | None = None
    watchdog_s: float | None = None  # how often it wants a sign of life; None where it does not


def service_manager(environment: Mapping[str, str] | None = None) -> ServiceManager:
    """Return systemd's settings in the environment (None: the process's own).

    Source: sd_notify(3), sd_watchdog_enabled(3): `NOTIFY_SOCKET`, `WATCHDOG_USEC`, `WATCHDOG_PID`.
    """
    variables = _variables(environment)
    period = variables.get("WATCHDOG_USEC", "")
    is_ours = variables.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    return ServiceManager(
        notify_address=variables.get("NOTIFY_SOCKET") or None,
        watchdog_s=int(period) / 1e6 if is_ours and period.isdecimal() and int(period) else None,
    )

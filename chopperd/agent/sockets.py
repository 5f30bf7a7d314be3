"""The agent's listening sockets, opened first, so that an address in use is an error at start.

Clients that connect before the web framework is loaded wait in the sockets' queues.
"""

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from chopperd.api.binding import bind_tcp, bind_unix
from chopperd.config.sections import Config
from chopperd.errors import ConfigError

if TYPE_CHECKING:
    from chopperd.api.access import AccessPolicy

SOCKET_NAME: Final = "api.sock"
#: Longest path that fits a Unix socket address.
#: Source: unix(7), `sun_path` with its final NUL.
LONGEST_SOCKET_PATH_BYTES: Final = 107


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """The addresses of the agent's listeners; None where there is none."""

    metrics: tuple[str, int] | None
    api: tuple[str, int] | None
    api_socket: Path | None

    def __str__(self) -> str:
        """Describe the addresses for people, on one line."""
        metrics = f"metrics at {_url(self.metrics)}/metrics" if self.metrics else "no metrics"
        api = [_url(self.api)] if self.api else []
        api += [str(self.api_socket)] if self.api_socket else []
        return f"{metrics}, API at {' and '.join(api)}" if api else f"{metrics}, no API"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sockets:
    """Listening sockets; None where the configuration wants none or the folder can't be written."""

    metrics: socket.socket | None
    api: socket.socket | None  # loopback TCP of the API
    api_local: socket.socket | None  # Unix socket of the API
    addresses: Addresses  # their addresses, with the ports that were bound

    def close(self) -> None:
        """Close the sockets that no listener has closed, and remove the Unix socket's file."""
        path = self.addresses.api_socket
        if self.api_local is not None and self.api_local.fileno() >= 0 and path is not None:
            path.unlink(missing_ok=True)
        for listening in (self.metrics, self.api, self.api_local):
            if listening is not None:
                listening.close()


def opened_sockets(config: Config, runtime: Path, *, with_local: bool) -> Sockets:
    """Open all sockets of an agent, listening.

    The Unix one is opened in the runtime folder only `with_local`: if that can be written to.

    Raises:
        ConfigError: Some can't be opened: lists each, and the program that uses it.
    """
    problems: list[str] = []
    path = runtime / SOCKET_NAME
    metrics, api = config.metrics.listen, config.api.listen
    secure = not config.api.insecure
    on_metrics = _opened(metrics, lambda: bind_tcp(metrics, key="metrics.listen"), problems)
    on_api = _opened(api, lambda: bind_tcp(api, key="api.listen", only_loopback=secure), problems)
    on_path = _opened(with_local, lambda: _at(path), problems)
    addresses = Addresses(
        metrics=_name(on_metrics), api=_name(on_api), api_socket=path if on_path else None
    )
    sockets = Sockets(metrics=on_metrics, api=on_api, api_local=on_path, addresses=addresses)
    if problems:
        sockets.close()
        raise ConfigError(problems)
    return sockets


def _opened(
    wanted: object, bind: Callable[[], socket.socket], problems: list[str]
) -> socket.socket | None:
    """Open a socket, if one is wanted; if that fails, append why to `problems`."""
    try:
        return bind() if wanted else None
    except ConfigError as error:
        problems.extend(error.problems)
        return None


def _at(path: Path) -> socket.socket:
    if len(os.fsencode(path)) > LONGEST_SOCKET_PATH_BYTES:
        most = f"{LONGEST_SOCKET_PATH_BYTES} bytes at most"
        raise ConfigError([f"paths.runtime: {path} is too long for a socket ({most})"])
    return bind_unix(path)


def _name(listening: socket.socket | None) -> tuple[str, int] | None:
    if listening is None:
        return None
    address, port = listening.getsockname()[:2]
    return str(address), int(port)


def _url(address: tuple[str, int]) -> str:
    host, port = address
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def access_policy(config: Config) -> "AccessPolicy":
    """Make the API's access policy: user, admin group, token and host names.

    Raises:
        ConfigError: The token's file can't be used.
    """
    # Imports the model of reports and numpy with it: only once the sampler has started.
    from chopperd.api.access import AccessPolicy, host_names, read_token

    token_file = config.api.token_file
    return AccessPolicy(
        agent_uid=os.geteuid(),
        admin_group=config.api.admin_group,
        token=None if token_file is None else read_token(token_file),
        hosts=host_names(config.api.listen, config.api.allowed_hosts),
    )

"""The agent's listening sockets, opened first, so that an address in use is an error at start.

Clients that connect before the web framework is loaded wait in the sockets' queues.
"""

import errno
import ipaddress
import os
import socket
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from chopperd.config.paths import SOCKET_NAME
from chopperd.config.sections import Config
from chopperd.errors import ConfigError

if TYPE_CHECKING:
    from chopperd.api.access import AccessPolicy


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
        metrics = f"metrics at {url_of(self.metrics)}/metrics" if self.metrics else "no metrics"
        api = [url_of(self.api)] if self.api else []
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


def url_of(address: tuple[str, int]) -> str:
    """Return the URL of a TCP address."""
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


_BACKLOG: Final = 128
_PROBE_S: Final = 1.0
_EVERYONE: Final = 0o666


def bind_tcp(listen: str, *, key: str, only_loopback: bool = False) -> socket.socket:
    """Return a socket that listens on "ADDRESS:PORT"; port 0 takes any that is free.

    `key` is the configuration's, for errors.

    Raises:
        ConfigError: Another program listens there, or the address can't be used.
    """
    host = listen.rpartition(":")[0].strip("[]")
    if only_loopback and not ipaddress.ip_address(host).is_loopback:
        problem = "other machines could use it; listen on 127.0.0.1, or set api.insecure"
        raise ConfigError([f'{key} is "{listen}": {problem}'])
    try:
        listening = _bound(listen)
        listening.listen(_BACKLOG)
    except OSError as error:
        in_use = "another program listens there already; `ss -ltnp` names it"
        why = in_use if error.errno == errno.EADDRINUSE else error.strerror or str(error)
        raise ConfigError([f'{key} is "{listen}": {why}']) from error
    listening.setblocking(False)
    return listening


def is_in_use(listen: str) -> bool:
    """Whether something listens at "ADDRESS:PORT"."""
    try:
        _bound(listen).close()
    except OSError as error:
        return error.errno == errno.EADDRINUSE
    return False


def _bound(listen: str) -> socket.socket:
    """Return a socket bound to "ADDRESS:PORT"; raises OSError."""
    host, _, port = listen.rpartition(":")
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sends at once (TCP_NODELAY) only where the socket names its protocol; without it each
    # answer waits for the client's delayed acknowledgement, 40 ms.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, int(port)))
    except OSError:
        bound.close()
        raise
    return bound


def bind_unix(path: Path) -> socket.socket:
    """Return a Unix socket that listens at a path, writable for every user.

    The file of an agent that has ended is replaced.

    Raises:
        ConfigError: Another agent answers there, the path is no socket, or it can't be made.
    """
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _clear(path)
        listening.bind(str(path))
        path.chmod(_EVERYONE)
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        raise ConfigError([f"the socket {path}: {error.strerror or error}"]) from error
    except ConfigError:
        listening.close()
        raise
    listening.setblocking(False)
    return listening


def _clear(path: Path) -> None:
    """Remove a socket file on which nobody answers; raise `ConfigError` for anything else."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigError([f"{path} exists and is not a socket"])
    if (other := _answering(path)) is not None:
        raise ConfigError([f"another agent answers on {path}: {other}"])
    path.unlink()


def _answering(path: Path) -> str | None:
    """Return the pid and program that listen on a Unix socket; None if nothing listens."""
    # Loads numpy with the model of reports, which must not delay the sampler's start.
    from chopperd.api.access import credentials, program_name

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_S)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return None
        pid, _ = credentials(probe)
        return f"pid {pid} ({program_name(pid)})"

"""Sockets that the agent listens on, and what it says of those it can't have."""

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chopperd.agent.sockets import Sockets, opened_sockets
from chopperd.config.load import load_config
from chopperd.config.sections import Config
from chopperd.errors import ConfigError

Open = Callable[..., Sockets]


def configured(**listen: str) -> Config:
    given = {"metrics": "127.0.0.1:0", "api": "127.0.0.1:0", **listen}
    variables = {f"CHOPPERD_{name.upper()}__LISTEN": where for name, where in given.items()}
    return load_config(None, variables)


@pytest.fixture
def open_sockets(tmp_path: Path) -> Iterator[Open]:
    opened: list[Sockets] = []

    def open_them(runtime: Path = tmp_path, *, with_local: bool = True, **listen: str) -> Sockets:
        opened.append(opened_sockets(configured(**listen), runtime, with_local=with_local))
        return opened[-1]

    yield open_them
    for sockets in opened:
        sockets.close()


@pytest.fixture
def taken() -> Iterator[int]:
    """A port on which this process listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_all_listen_from_the_start_at_the_ports_that_are_told(
    open_sockets: Open, tmp_path: Path
) -> None:
    addresses = open_sockets().addresses
    assert addresses.metrics is not None
    assert addresses.api is not None
    assert addresses.api_socket == tmp_path / "api.sock"
    for address in (addresses.metrics, addresses.api):
        assert address[0] == "127.0.0.1"
        socket.create_connection(address, timeout=5).close()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(addresses.api_socket))


def test_an_empty_address_means_none(open_sockets: Open) -> None:
    addresses = open_sockets(metrics="", api="", with_local=False).addresses
    assert (addresses.metrics, addresses.api, addresses.api_socket) == (None, None, None)


def test_ports_in_use_are_all_named(open_sockets: Open, taken: int, tmp_path: Path) -> None:
    where = f"127.0.0.1:{taken}"
    with pytest.raises(ConfigError) as raised:
        open_sockets(metrics=where, api=where)
    assert len(raised.value.problems) == 2
    for key, problem in zip(("metrics", "api"), raised.value.problems, strict=True):
        assert f"{key}.listen" in problem
        assert "another program listens there already" in problem
    assert not (tmp_path / "api.sock").exists()  # what could be had was given back


def test_a_socket_on_which_another_agent_answers_is_left_to_it(
    open_sockets: Open, tmp_path: Path
) -> None:
    open_sockets()
    with pytest.raises(ConfigError, match=f"pid {os.getpid()}"):
        open_sockets()
    assert (tmp_path / "api.sock").exists()


def test_a_socket_that_a_dead_agent_left_is_replaced(open_sockets: Open, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "api.sock"))
        dead.listen()
    assert open_sockets().addresses.api_socket is not None


def test_a_path_too_long_for_a_socket_is_said(open_sockets: Open, tmp_path: Path) -> None:
    fits = tmp_path / ("x" * (107 - len(str(tmp_path)) - len("//api.sock")))
    fits.mkdir()
    assert len(str(fits / "api.sock")) == 107  # 108 bytes with the final NUL
    open_sockets(fits).close()
    longer = fits.with_name(fits.name + "x")
    longer.mkdir()
    with pytest.raises(ConfigError, match=r"paths.runtime: .* too long .*107 bytes"):
        open_sockets(longer)


def test_an_api_beyond_loopback_is_refused_unless_asked_for(open_sockets: Open) -> None:
    with pytest.raises(ConfigError, match=r"api\.insecure"):
        open_sockets(api="0.0.0.0:0")

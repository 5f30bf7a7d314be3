"""Getting sockets, and saying who is in the way."""

import os
import socket
import stat
from pathlib import Path

import pytest

from chopperd.agent.sockets import bind_tcp, bind_unix, is_in_use
from chopperd.api.access import is_member, read_token
from chopperd.api.listeners import unlink_if_ours
from chopperd.errors import ConfigError


def test_a_port_in_use_is_said_to_be_in_use_and_how_to_find_by_whom() -> None:
    with bind_tcp("127.0.0.1:0", key="metrics.listen") as held:
        port = held.getsockname()[1]
        with pytest.raises(ConfigError) as caught:
            bind_tcp(f"127.0.0.1:{port}", key="metrics.listen")
    assert caught.value.problems == [
        f'metrics.listen is "127.0.0.1:{port}": another program listens there already; '
        "`ss -ltnp` names it"
    ]
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("address", ["127.0.0.1", "[::1]"])
def test_an_address_is_in_use_while_something_listens_there(address: str) -> None:
    with bind_tcp(f"{address}:0", key="api.listen") as held:
        listen = f"{address}:{held.getsockname()[1]}"
        assert is_in_use(listen)
    assert not is_in_use(listen)
    assert not is_in_use("192.0.2.1:9470")


def test_answers_do_not_wait_for_a_delayed_acknowledgement() -> None:
    """Asyncio sets TCP_NODELAY only on sockets that name their protocol: else 40 ms an answer."""
    with bind_tcp("127.0.0.1:0", key="api.listen") as listening:
        assert listening.proto == socket.IPPROTO_TCP


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(ConfigError, match=r'api.listen is "192.0.2.1:0": Cannot assign'):
        bind_tcp("192.0.2.1:0", key="api.listen")


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "192.0.2.1:9470"])
def test_the_api_does_not_leave_the_machine_unasked(listen: str) -> None:
    with pytest.raises(ConfigError, match=r"set api\.insecure"):
        bind_tcp(listen, key="api.listen", only_loopback=True)


def test_it_leaves_the_machine_when_told_to() -> None:
    with bind_tcp("0.0.0.0:0", key="api.listen") as listening:
        assert listening.getsockname()[1] > 0


def test_everyone_may_connect_to_the_socket(tmp_path: Path) -> None:
    with bind_unix(tmp_path / "api.sock"):
        mode = (tmp_path / "api.sock").stat().st_mode
    assert stat.S_IMODE(mode) == 0o666


def test_a_dead_agents_socket_is_replaced(tmp_path: Path) -> None:
    bind_unix(tmp_path / "api.sock").close()
    with bind_unix(tmp_path / "api.sock") as listening, socket.socket(socket.AF_UNIX) as client:
        client.connect(listening.getsockname())


def test_a_living_agents_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "api.sock"
    with bind_unix(path):
        with pytest.raises(ConfigError, match=f"another agent answers on .* pid {os.getpid()} "):
            bind_unix(path)
        assert path.exists()


def test_a_file_in_the_way_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "api.sock"
    path.write_text("mine")
    with pytest.raises(ConfigError, match="exists and is not a socket"):
        bind_unix(path)
    assert path.read_text() == "mine"


@pytest.mark.parametrize("name", ["none/api.sock", "x" * 200])
def test_a_socket_that_can_not_be_made_is_said(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="the socket "):
        bind_unix(tmp_path / name)


def test_a_successors_socket_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "api.sock"
    with bind_unix(path):
        unlink_if_ours(path, path.stat().st_ino + 1)
        assert path.exists()
        unlink_if_ours(path, path.stat().st_ino)
        assert not path.exists()
        unlink_if_ours(path, 1)


def token_file(folder: Path, text: str, mode: int = 0o600) -> str:
    path = folder / "token"
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def test_a_token_is_read_without_its_line_end(tmp_path: Path) -> None:
    assert read_token(token_file(tmp_path, "0123456789abcdef\n")) == "0123456789abcdef"


@pytest.mark.parametrize("mode", [0o604, 0o622, 0o666, 0o602])
def test_a_token_that_others_can_read_or_write_is_none(tmp_path: Path, mode: int) -> None:
    with pytest.raises(ConfigError, match="chmod 0600"):
        read_token(token_file(tmp_path, "0123456789abcdef", mode))


@pytest.mark.parametrize("text", ["", "short", "0123456789abcde\n", "0123456789abc\ndef", "é" * 20])
def test_a_token_that_is_no_secret_is_none(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="at least 16 printable"):
        read_token(token_file(tmp_path, text))


def test_a_missing_token_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_token(str(tmp_path / "none"))


def test_groups_that_do_not_exist_have_no_members() -> None:
    assert not is_member(0, "no-such-group-here")
    assert not is_member(3_999_999, "root")
    assert is_member(0, "root")

"""Getting sockets, and saying who is in the way."""

import os
import socket
import stat
from pathlib import Path

import pytest

from chopperd.api.access import is_member, read_token
from chopperd.api.binding import bind_tcp, bind_unix, unlink_if_ours
from chopperd.api.proc_net import listener_on, uid_of_client
from chopperd.errors import ConfigError


def test_a_port_in_use_is_said_to_be_whose() -> None:
    with bind_tcp("127.0.0.1:0", key="metrics.listen") as held:
        port = held.getsockname()[1]
        with pytest.raises(ConfigError) as caught:
            bind_tcp(f"127.0.0.1:{port}", key="metrics.listen")
    own_name = Path("/proc/self/comm").read_text().strip()
    assert caught.value.problems == [
        f'metrics.listen is "127.0.0.1:{port}": pid {os.getpid()} ({own_name}) '
        "listens there already"
    ]
    assert caught.value.exit_code == 2


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
    with pytest.raises(ConfigError, match="is in the way: it is no socket"):
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


def table(folder: Path, name: str, *lines: str) -> None:
    (folder / "net").mkdir(exist_ok=True)
    (folder / "net" / name).write_text("\n".join(["  sl  local_address ...", *lines]) + "\n")


# 127.0.0.1:40000 to 127.0.0.1:9470, as a little-endian machine writes it.
LINE = "{n}: 0100007F:9C40 0100007F:24FE {state} 00000000:00000000 00:00000000 0 {uid} 0 {inode} 1"
CLIENT, SERVER = ("127.0.0.1", 40_000), ("127.0.0.1", 9470)


def test_only_sockets_that_somebody_holds_tell_a_user(tmp_path: Path) -> None:
    """The kernel shows sockets that no process holds as root's (uid 0, inode 0)."""
    cases = {("01", 1000, 77): 1000, ("01", 0, 0): None, ("06", 0, 0): None, ("04", 0, 0): None}
    for (state, uid, inode), expected in cases.items():
        table(tmp_path, "tcp", LINE.format(n=0, state=state, uid=uid, inode=inode))
        assert uid_of_client(CLIENT, SERVER, tmp_path) == expected


def test_all_four_parts_of_a_connection_must_agree(tmp_path: Path) -> None:
    table(tmp_path, "tcp", LINE.format(n=0, state="01", uid=1000, inode=77))
    for client, server in (
        (("127.0.0.2", 40_000), SERVER),
        (("127.0.0.1", 40_001), SERVER),
        (CLIENT, ("127.0.0.2", 9470)),
        (CLIENT, ("127.0.0.1", 9471)),
        (SERVER, CLIENT),
    ):
        assert uid_of_client(client, server, tmp_path) is None


def test_ipv4_inside_ipv6_is_found(tmp_path: Path) -> None:
    mapped = LINE.replace("0100007F", "0000000000000000FFFF00000100007F")
    table(tmp_path, "tcp")
    table(tmp_path, "tcp6", mapped.format(n=0, state="01", uid=1000, inode=77))
    assert uid_of_client(CLIENT, SERVER, tmp_path) == 1000
    mapped_client = ("::ffff:127.0.0.1", 40_000)
    assert uid_of_client(mapped_client, ("::ffff:127.0.0.1", 9470), tmp_path) == 1000


def test_no_tables_tell_nothing(tmp_path: Path) -> None:
    assert uid_of_client(CLIENT, SERVER, tmp_path) is None
    assert listener_on(9470, tmp_path) is None


def test_a_closed_client_is_nobody() -> None:
    """On the real tables: after a close the kernel's line shows uid 0, which must not count."""
    with bind_tcp("127.0.0.1:0", key="api.listen") as listening:
        listening.setblocking(True)
        client = socket.create_connection(listening.getsockname())
        connection, peer = listening.accept()
        with connection:
            assert uid_of_client(peer, listening.getsockname()) == os.getuid()
            client.close()
            assert uid_of_client(peer, listening.getsockname()) is None


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

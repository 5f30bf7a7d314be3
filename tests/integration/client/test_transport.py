"""Requests against a real HTTP server of our own, on a Unix socket and on loopback."""

import os
import pwd
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from chopperd.client.agent import (
    Endpoint,
    SocketEndpoint,
    TcpEndpoint,
    Token,
    Transport,
    api_endpoints,
    metrics_endpoints,
)
from chopperd.config.load import load_config
from chopperd.errors import AgentRefusedError, AgentUnreachableError
from tests.fakes.http_agent import FakeAgent, Reply, as_json, problem, serving
from tests.integration.processes import open_files_count
from tests.waiting import settled, wait_for

STRANGER_UID = 54321


@contextmanager
def raw_server(answer: Callable[[socket.socket], object]) -> Iterator[TcpEndpoint]:
    """Loopback where `answer` is given the first connection."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def accept() -> None:
            connection, _ = listening.accept()
            with connection:
                answer(connection)

        thread = threading.Thread(target=accept)
        thread.start()
        yield TcpEndpoint("127.0.0.1", listening.getsockname()[1])
        thread.join()


def test_a_socket_and_loopback_give_the_same_answer(tmp_path: Path) -> None:
    agent = FakeAgent({"/a": as_json({"x": 1})})
    with serving(agent, tmp_path / "s"), serving(agent) as port:
        for endpoint in (SocketEndpoint(tmp_path / "s"), TcpEndpoint("127.0.0.1", port)):
            assert Transport([endpoint]).fetch("/a") == b'{"x":1}'


def test_the_first_place_that_answers_is_asked(tmp_path: Path) -> None:
    stale = tmp_path / "stale"
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(stale))
    agent = FakeAgent({"/a": Reply(body=b"here")})
    with serving(agent) as port:
        places: list[Endpoint] = [
            SocketEndpoint(tmp_path / "missing"),
            SocketEndpoint(stale),
            TcpEndpoint("127.0.0.1", port),
        ]
        assert Transport(places).fetch("/a") == b"here"


def test_what_is_asked_for_reaches_the_agent() -> None:
    agent = FakeAgent({"/a": Reply()})
    with serving(agent) as port:
        token = Token(text="secret", owner_uid=os.getuid(), group_gid=0, mode=0o600)
        transport = Transport([TcpEndpoint("127.0.0.1", port)], token=token)
        transport.fetch("/a", {"job": "a b&c", "rank": 0, "run": None}, accept="text/csv")
    assert agent.asked == ["/a?job=a+b%26c&rank=0"]
    assert agent.headers[0]["Authorization"] == "Bearer secret"
    assert agent.headers[0]["Accept"] == "text/csv"
    assert agent.headers[0]["Host"] == f"127.0.0.1:{port}"


class StrangersEndpoint(TcpEndpoint):
    """Loopback on which another user listens, in place of an agent that is down."""

    def server_uids(self) -> frozenset[int]:
        return frozenset({STRANGER_UID})


def test_whoever_listens_in_an_agents_place_is_not_told_the_token(tmp_path: Path) -> None:
    token = Token(text="secret", owner_uid=os.getuid(), group_gid=0, mode=0o600)
    agent = FakeAgent({"/a": Reply()})
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o1777)
    with serving(agent) as port, serving(agent, open_to_all / "s"):
        Transport([StrangersEndpoint("127.0.0.1", port)], token=token).fetch("/a")
        Transport([SocketEndpoint(open_to_all / "s")], token=token).fetch("/a")
    assert [each.get("Authorization") for each in agent.headers] == [None, None]


def test_a_token_is_known_to_who_can_read_its_file() -> None:
    own, group = os.getuid(), pwd.getpwuid(os.getuid()).pw_gid
    strangers = Token(text="secret", owner_uid=STRANGER_UID, group_gid=group, mode=0o600)
    assert strangers.is_known_to([STRANGER_UID])
    assert strangers.is_known_to([0])
    assert not strangers.is_known_to([])
    assert not strangers.is_known_to([STRANGER_UID, STRANGER_UID + 1])
    assert strangers.is_known_to([own]) == (own == 0)
    assert replace(strangers, mode=0o640).is_known_to([own])
    assert "secret" not in repr(strangers)


def test_where_nobody_answers_one_line_says_where_and_what_to_do(tmp_path: Path) -> None:
    missing = tmp_path / "api.sock"
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # nobody else gets the port, and nobody listens there
        port = bound.getsockname()[1]
        transport = Transport([SocketEndpoint(missing), TcpEndpoint("127.0.0.1", port)])
        with pytest.raises(AgentUnreachableError) as caught:
            transport.fetch("/a")
    assert str(caught.value) == (
        f"no agent answers at {missing} (no such file or directory), "
        f"127.0.0.1:{port} (connection refused); start one with `chopperd run`"
    )
    with pytest.raises(AgentUnreachableError, match="no address is configured"):
        Transport([]).fetch("/a")


def test_a_refusal_is_one_line_in_the_agents_own_words() -> None:
    agent = FakeAgent({
        "/ambiguous": problem(409, "step 3 is of 2 runs"),
        "/broken": Reply(body=b"<html>", status=502, media_type="text/html"),
    })  # fmt: skip
    with serving(agent) as port:
        transport = Transport([TcpEndpoint("127.0.0.1", port)])
        with pytest.raises(AgentRefusedError) as caught:
            transport.fetch("/ambiguous")
        assert str(caught.value) == "the agent refuses: step 3 is of 2 runs (HTTP 409)"
        assert caught.value.status == 409
        with pytest.raises(AgentRefusedError, match=r"refuses: Bad Gateway \(HTTP 502\)"):
            transport.fetch("/broken")


def test_an_answer_that_breaks_off_is_an_error() -> None:
    agent = FakeAgent({"/a": Reply(body=b"half", cut_bytes=4)})
    with serving(agent) as port, pytest.raises(AgentUnreachableError, match="ended the connection"):
        Transport([TcpEndpoint("127.0.0.1", port)]).fetch("/a")


def test_what_never_answers_is_given_up_in_time() -> None:
    def until_closed(connection: socket.socket) -> None:
        while connection.recv(2**16):
            pass

    with (
        raw_server(until_closed) as endpoint,
        pytest.raises(AgentUnreachableError, match="does not answer: timed out"),
    ):
        Transport([endpoint], timeout_s=0.1).fetch("/a")


def test_what_speaks_no_http_is_named() -> None:
    def garbage(connection: socket.socket) -> None:
        connection.recv(2**16)
        connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")

    with (
        raw_server(garbage) as endpoint,
        pytest.raises(AgentUnreachableError, match=f"the server at {endpoint} does not answer"),
    ):
        Transport([endpoint]).fetch("/a")


def test_requests_leave_no_connection_open(tmp_path: Path) -> None:
    agent = FakeAgent({"/a": Reply(body=b"x"), "/no": problem(404, "no")})
    with serving(agent, tmp_path / "s"):
        transport = Transport([SocketEndpoint(tmp_path / "s")])
        before = settled(open_files_count, quiet_s=0.2)
        for _ in range(5):
            transport.fetch("/a")
            with pytest.raises(AgentRefusedError):
                transport.fetch("/no")
        # The server of this test closes its ends in its own time.
        wait_for(lambda: open_files_count() == before, "connections to close")


def test_the_socket_is_tried_before_the_port(tmp_path: Path) -> None:
    config = load_config(None, {"CHOPPERD_PATHS__RUNTIME": str(tmp_path)})
    assert api_endpoints(config) == (
        SocketEndpoint(tmp_path / "api.sock"),
        TcpEndpoint("127.0.0.1", 9470),
    )
    assert metrics_endpoints(config) == (TcpEndpoint("127.0.0.1", 9469),)


@pytest.mark.parametrize(
    ("listen", "shown"),
    [
        ("0.0.0.0:80", ["127.0.0.1:80"]),
        ("[::]:80", ["[::1]:80"]),
        ("10.0.0.7:80", ["10.0.0.7:80"]),
        ("127.0.0.1:0", []),
        ("", []),
    ],
)
def test_an_address_to_listen_on_becomes_one_to_ask(listen: str, shown: list[str]) -> None:
    config = load_config(None, {"CHOPPERD_METRICS__LISTEN": listen})
    assert [str(endpoint) for endpoint in metrics_endpoints(config)] == shown

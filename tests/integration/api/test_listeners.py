"""Listeners on real sockets: who is at the other end, slow clients, bounds, stopping."""

import gzip
import os
import resource
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from chopperd.agent.sockets import bind_tcp
from chopperd.api.app import MOST_LARGE_ANSWERS, MOST_STREAMS, build_api, build_metrics
from chopperd.api.listeners import Listener
from chopperd.errors import ChopperdError
from tests.fakes.api_services import TOKEN, FakeAgent, step_row
from tests.integration.api.serving import (
    PATIENT_S,
    connected,
    exchange,
    head,
    loopback,
    read_all,
    read_until,
    seconds_since,
    serving,
    unix_socket,
)
from tests.integration.processes import open_files_count
from tests.waiting import settled, wait_for

CLOSE = "Connection: close"
BEARER = f"Authorization: Bearer {TOKEN}"


@pytest.fixture
def agent() -> FakeAgent:
    """An agent of whom the user of these tests is an administrator by being its own user."""
    return FakeAgent(agent_uid=os.getuid())


@pytest.fixture
def tcp(agent: FakeAgent) -> Iterator[socket.socket]:
    listening = loopback()
    with serving(build_api(agent.services()), [listening]):
        yield listening


def test_a_user_is_known_by_his_end_of_a_unix_socket(agent: FakeAgent, tmp_path: Path) -> None:
    agent.steps.rows = [step_row(1)]
    with serving(build_api(agent.services()), [unix_socket(tmp_path)]):
        transport = httpx.HTTPTransport(uds=str(tmp_path / "api.sock"))
        with httpx.Client(transport=transport, base_url="http://localhost") as client:
            answer = client.get("/api/v1/steps")
    assert answer.status_code == 200
    assert [row["step"] for row in answer.json()["steps"]] == [1]


@pytest.mark.parametrize("address", ["127.0.0.1", "[::1]"])
def test_tcp_tells_nobody_but_the_bearer_of_the_token(agent: FakeAgent, address: str) -> None:
    """Also where the client is of this machine, and of the agent's own user, as here."""
    agent.steps.rows = [step_row(1)]
    listening = bind_tcp(f"{address}:0", key="api.listen", only_loopback=True)
    with serving(build_api(agent.services()), [listening]):
        unknown = exchange(listening, head("GET", "/api/v1/steps", CLOSE))
        upload = exchange(listening, head("POST", "/api/v1/traces", "Content-Length: 0", CLOSE))
        known = exchange(listening, head("GET", "/api/v1/steps", BEARER, CLOSE))
        open_to_all = exchange(listening, head("GET", "/api/v1/status", CLOSE))
    assert unknown.startswith(b"HTTP/1.1 401 ")
    assert upload.startswith(b"HTTP/1.1 401 ")
    assert known.startswith(b"HTTP/1.1 200 ")
    assert b'"step":1' in known
    assert open_to_all.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "", "127.0.0.2"])
def test_other_host_names_are_refused(tcp: socket.socket, host: str) -> None:
    request = f"GET /api/v1/status HTTP/1.1\r\nHost: {host}\r\n{CLOSE}\r\n\r\n"
    assert exchange(tcp, request.encode()).startswith(b"HTTP/1.1 421 ")


def test_pages_of_other_ports_may_not_ask(tcp: socket.socket) -> None:
    port = tcp.getsockname()[1]
    own = head("GET", "/api/v1/status", CLOSE).replace(b"localhost", b"localhost:%d" % port)
    for origin, status in (
        (f"http://localhost:{port}", 200),
        ("http://localhost:1", 403),
        ("null", 403),
    ):
        request = own[:-2] + f"Origin: {origin}\r\n\r\n".encode()
        assert exchange(tcp, request).startswith(b"HTTP/1.1 %d " % status), origin


def test_forwarded_headers_change_nobody(agent: FakeAgent, tcp: socket.socket) -> None:
    agent.agent_uid = 4_000_000
    request = head("GET", "/api/v1/status", "X-Forwarded-For: 1.2.3.4", CLOSE)
    assert exchange(tcp, request).startswith(b"HTTP/1.1 200 ")


def test_a_head_that_drips_in_is_cut_off(tcp: socket.socket) -> None:
    with connected(tcp) as client:
        start = time.monotonic()
        client.sendall(b"GET /healthz HTTP/1.1\r\n")
        while seconds_since(start) < 8.0:
            try:
                client.sendall(b"X: y\r\n")
            except (BrokenPipeError, ConnectionResetError):
                break
            time.sleep(0.1)
        assert seconds_since(start) < 5.0


def test_a_body_that_drips_in_is_cut_off_and_forgotten(
    agent: FakeAgent, tcp: socket.socket
) -> None:
    with connected(tcp) as client:
        start = time.monotonic()
        client.sendall(
            head("POST", "/api/v1/traces?name=slow.json", BEARER, "Content-Length: 100000")
        )
        while seconds_since(start) < 8.0:
            try:
                client.sendall(b"x")
            except (BrokenPipeError, ConnectionResetError):
                break
            time.sleep(0.1)
        assert seconds_since(start) < 5.0
    wait_for(lambda: agent.ingest.aborted == ["slow.json"])
    assert agent.ingest.taken == []


def test_a_client_that_does_not_read_is_cut_off(agent: FakeAgent, tmp_path: Path) -> None:
    agent.steps.rows = [step_row(number) for number in range(1000)]
    listening = unix_socket(tmp_path)
    with serving(build_api(agent.services()), [listening]), connected(listening) as client:
        asked = head("GET", "/api/v1/steps?limit=1000")
        client.sendall(asked * 5)
        start = time.monotonic()
        time.sleep(2.0)
        got = read_all(client)
        assert seconds_since(start) < 5.0
    assert len(got) < 5 * 1000 * 500  # not all of five answers of over 0.5 MB


def test_a_busy_connection_is_not_taken_for_a_slow_one(tcp: socket.socket) -> None:
    with httpx.Client(base_url=f"http://localhost:{tcp.getsockname()[1]}") as client:
        start = time.monotonic()
        while seconds_since(start) < 1.5:
            assert client.get("/healthz").status_code == 200


def test_too_long_a_head_is_refused(tcp: socket.socket) -> None:
    endless = head("GET", "/healthz", "X: " + "y" * 600_000)[:-2]
    whole = head("GET", "/healthz", "X: " + "y" * 20_000, CLOSE)
    for request, status in ((endless, 400), (whole, 431)):
        answer = exchange(tcp, request)
        assert answer.startswith(b"HTTP/1.1 %d " % status)
        assert b"application/problem+json" in answer


def test_what_is_no_http_is_refused(tcp: socket.socket) -> None:
    assert exchange(tcp, b"\x16\x03\x01 hello\r\n\r\n").startswith(b"HTTP/1.1 400 ")


def test_a_gibibyte_is_taken_without_memory(agent: FakeAgent, tcp: socket.socket) -> None:
    size, piece = 2**30, bytes(2**20)
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with connected(tcp, 60.0) as client:
        client.sendall(head("POST", "/api/v1/traces", BEARER, f"Content-Length: {size}", CLOSE))
        for _ in range(size // len(piece)):
            client.sendall(piece)
        answer = read_all(client)
    assert answer.startswith(b"HTTP/1.1 202 ")
    assert [each.stored_bytes for each in agent.ingest.taken] == [size]
    after_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert after_kib - before_kib < 32 * 1024


def test_a_refused_upload_hears_why(agent: FakeAgent, tcp: socket.socket) -> None:
    agent.ingest.max_bytes = 10
    with connected(tcp) as client:
        client.sendall(head("POST", "/api/v1/traces", BEARER, f"Content-Length: {2**20}"))
        assert read_until(client, b"}").startswith(b"HTTP/1.1 413 ")


def test_many_requests_leave_threads_and_files_unchanged(
    agent: FakeAgent, tcp: socket.socket
) -> None:
    agent.steps.rows = [step_row(1)]
    ask_for = ("/api/v1/steps", "/api/v1/status", "/metrics", "/openapi.json")
    with httpx.Client(
        base_url=f"http://localhost:{tcp.getsockname()[1]}",
        headers={"authorization": f"Bearer {TOKEN}"},
    ) as client:
        for path in ask_for:
            client.get(path)
        before = settled(_held, quiet_s=0.2)
        for number in range(200):
            assert client.get(ask_for[number % len(ask_for)]).status_code == 200
        wait_for(lambda: _held() == before, f"all to be given back of {before}")


def _held() -> tuple[list[str], int]:
    """Threads and open files of this process."""
    return sorted(each.name for each in threading.enumerate()), open_files_count()


def test_streams_are_bounded_and_give_their_place_back(tcp: socket.socket) -> None:
    streams = [connected(tcp) for _ in range(MOST_STREAMS)]
    for each in streams:
        each.sendall(head("GET", "/api/v1/stream"))
        assert b"event: snapshot" in read_until(each, b"event: snapshot")
    refused = exchange(tcp, head("GET", "/api/v1/stream", CLOSE))
    assert refused.startswith(b"HTTP/1.1 503 ")
    for each in streams:
        each.close()

    def is_free() -> bool:
        with connected(tcp) as client:
            client.sendall(head("GET", "/api/v1/stream"))
            return client.recv(65_536).startswith(b"HTTP/1.1 200 ")

    wait_for(is_free)


def test_it_stops_in_time_with_an_open_stream_and_a_slow_client(
    agent: FakeAgent, tmp_path: Path
) -> None:
    tcp, unix = loopback(), unix_socket(tmp_path)
    listener = Listener(build_api(agent.services()), [tcp, unix], "api")
    listener.start()
    with connected(tcp) as stream, connected(unix) as slow, connected(tcp) as idle:
        stream.sendall(head("GET", "/api/v1/stream"))
        slow.sendall(head("POST", "/api/v1/traces", BEARER, "Content-Length: 10"))
        read_until(stream, b"event: snapshot")
        start = time.monotonic()
        assert listener.stop(5.0)
        assert seconds_since(start) < 1.0
        assert b"event: end" in read_all(stream)
        assert read_all(idle) == b""
    assert not (tmp_path / "api.sock").exists()
    assert [each.name for each in threading.enumerate() if "chopperd" in each.name] == []


def test_it_says_so_when_a_call_is_stuck(
    agent: FakeAgent, caplog: pytest.LogCaptureFixture
) -> None:
    is_asked, go_on = threading.Event(), threading.Event()

    def stuck() -> None:
        is_asked.set()
        go_on.wait(10.0)

    agent.steps.wait = stuck
    listening = loopback()
    listener = Listener(build_api(agent.services()), [listening], "api")
    listener.start()
    with connected(listening) as client:
        client.sendall(head("GET", "/api/v1/jobs", BEARER))
        assert is_asked.wait(5.0)
        assert not listener.stop(0.8)
        assert "has not stopped" in caplog.text
        go_on.set()
        assert listener.stop(5.0)


def test_a_listener_that_never_started_lets_go_of_its_sockets(
    agent: FakeAgent, tmp_path: Path
) -> None:
    unix = unix_socket(tmp_path)
    assert Listener(build_api(agent.services()), [unix], "api").stop()
    assert unix.fileno() == -1
    assert not (tmp_path / "api.sock").exists()


def test_few_answers_are_held_for_clients_that_do_not_read(
    agent: FakeAgent, tmp_path: Path
) -> None:
    agent.steps.rows = [step_row(number) for number in range(1000)]
    listening = unix_socket(tmp_path)
    with serving(build_api(agent.services()), [listening], PATIENT_S):
        clients = [connected(listening) for _ in range(MOST_LARGE_ANSWERS + 6)]
        try:
            for each in clients:
                each.sendall(head("GET", "/api/v1/steps?limit=1000"))
            wait_for(lambda: len(agent.steps.asked) == MOST_LARGE_ANSWERS)
            small = exchange(listening, head("GET", "/api/v1/status", CLOSE))
            assert small.startswith(b"HTTP/1.1 200 ")
            assert len(agent.steps.asked) == MOST_LARGE_ANSWERS
        finally:
            for each in clients:
                each.close()
        whole = exchange(listening, head("GET", "/api/v1/steps?limit=1000", CLOSE))
    assert whole.endswith(b'"cursor":null}')


def test_an_upload_that_breaks_off_is_forgotten(agent: FakeAgent, tcp: socket.socket) -> None:
    with connected(tcp) as client:
        client.sendall(
            head("POST", "/api/v1/traces?name=half", BEARER, "Content-Length: 10") + b"12345"
        )
        wait_for(lambda: agent.ingest.expected == [10])
    wait_for(lambda: agent.ingest.aborted == ["half"])
    assert agent.ingest.taken == []


def test_an_upload_of_unknown_length_is_taken(agent: FakeAgent, tcp: socket.socket) -> None:
    request = head("POST", "/api/v1/traces", BEARER, "Transfer-Encoding: chunked", CLOSE)
    answer = exchange(tcp, request + b"3\r\nabc\r\n0\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 202 ")
    assert agent.ingest.expected == [None]
    assert b"ba7816bf8f01cfea" in answer  # sha256sum of "abc"


def test_a_client_that_waits_to_be_told_is_told_to_go_on(tcp: socket.socket) -> None:
    with connected(tcp) as client:
        wait_for = (BEARER, "Content-Length: 3", "Expect: 100-continue", CLOSE)
        client.sendall(head("POST", "/api/v1/traces", *wait_for))
        assert read_until(client, b"\r\n\r\n").startswith(b"HTTP/1.1 100 ")
        client.sendall(b"abc")
        assert read_all(client).startswith(b"HTTP/1.1 202 ")


def test_a_listener_that_can_not_start_says_so(
    agent: FakeAgent, caplog: pytest.LogCaptureFixture
) -> None:
    listening = loopback()
    listener = Listener(build_api(agent.services()), [listening], "api")
    listening.close()
    with pytest.raises(ChopperdError, match="the api listener does not start"):
        listener.start()
    assert "the api listener failed" in caplog.text
    assert listener.stop()


def test_it_tells_where_it_is_to_be_found(agent: FakeAgent, tmp_path: Path) -> None:
    tcp, unix = loopback(), unix_socket(tmp_path)
    with serving(build_api(agent.services()), [tcp, unix]) as listener:
        assert listener.is_serving
    assert not listener.is_serving


def test_a_body_that_is_no_http_is_forgotten(agent: FakeAgent, tcp: socket.socket) -> None:
    request = head("POST", "/api/v1/traces?name=bad", BEARER, "Transfer-Encoding: chunked")
    with connected(tcp) as client:
        client.sendall(request + b"3\r\nabc\r\n")
        wait_for(lambda: agent.ingest.expected == [None])
        client.sendall(b"nonsense\r\n")
        assert read_all(client) == b""
    wait_for(lambda: agent.ingest.aborted == ["bad"])


def test_metrics_are_served_under_any_name(agent: FakeAgent) -> None:
    listening = loopback()
    listener = Listener(build_metrics(agent.services()), [listening], "metrics", blocking_threads=0)
    listener.start()
    try:
        request = b"GET /metrics HTTP/1.1\r\nHost: node-a.example:9469\r\nConnection: close\r\n\r\n"
        assert exchange(listening, request).startswith(b"HTTP/1.1 200 ")
        request = request.replace(b"GET /metrics", b"POST /metrics")
        assert exchange(listening, request).startswith(b"HTTP/1.1 405 ")
        request = request.replace(b"POST /metrics", b"GET /api/v1/status")
        assert exchange(listening, request).startswith(b"HTTP/1.1 404 ")
    finally:
        assert listener.stop()


def test_the_token_lets_in_who_is_not_known(agent: FakeAgent, tcp: socket.socket) -> None:
    agent.agent_uid = 4_000_000
    for token, status in ((TOKEN, 200), (TOKEN + "x", 401), ("", 401)):
        request = head("GET", "/api/v1/jobs", f"Authorization: Bearer {token}", CLOSE)
        assert exchange(tcp, request).startswith(b"HTTP/1.1 %d " % status)


def test_a_request_with_two_ends_is_refused_and_nothing_after_it_is_read(
    tcp: socket.socket,
) -> None:
    """Else a proxy in front of us could be made to see one request where we see two."""
    smuggled = head("GET", "/healthz", CLOSE)
    headers = (f"Content-Length: {len(smuggled)}", "Transfer-Encoding: chunked")
    request = head("POST", "/api/v1/traces", *headers) + b"0\r\n\r\n" + smuggled
    answer = exchange(tcp, request)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"exclude each other" in answer
    assert answer.count(b"HTTP/1.1 ") == 1


def test_metrics_are_compressed_for_who_asks_for_it(tcp: socket.socket) -> None:
    plain = exchange(tcp, head("GET", "/metrics", CLOSE)).partition(b"\r\n\r\n")[2]
    packed = exchange(tcp, head("GET", "/metrics", "Accept-Encoding: gzip", CLOSE))
    start, _, body = packed.partition(b"\r\n\r\n")
    assert b"content-encoding: gzip" in start.lower()
    assert gzip.decompress(body) == plain

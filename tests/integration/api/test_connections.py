"""Many connections at a time: who gives way, who does not."""

import os
import socket
import threading
from collections.abc import Iterator

import pytest

from chopperd.api.app import build_api
from chopperd.api.listeners import MOST_CONNECTIONS
from tests.fakes.api_services import TOKEN, FakeAgent
from tests.integration.api.serving import (
    PATIENT_S,
    connected,
    exchange,
    head,
    loopback,
    read_all,
    read_until,
    serving,
)
from tests.waiting import wait_for

CLOSE = "Connection: close"
BEARER = f"Authorization: Bearer {TOKEN}"


@pytest.fixture
def agent() -> FakeAgent:
    """An agent of whom the user of these tests is an administrator by being its own user."""
    return FakeAgent(agent_uid=os.getuid())


@pytest.fixture
def tcp(agent: FakeAgent) -> Iterator[socket.socket]:
    """As patient as in use: none of these is cut off for being slow."""
    listening = loopback()
    with serving(build_api(agent.services()), [listening], PATIENT_S):
        yield listening


def test_who_holds_all_connections_and_asks_nothing_keeps_nobody_out(tcp: socket.socket) -> None:
    """Those that let us wait longest give way, be they silent, slow, or done with a request."""
    done = connected(tcp)
    done.sendall(head("GET", "/healthz"))
    read_until(done, b"}")
    idle = [done, *(connected(tcp) for _ in range(2 * MOST_CONNECTIONS))]
    try:
        for each in idle[-8:]:
            each.sendall(b"GET /metrics HTTP/1.1\r\n")
        for _ in range(3):
            answer = exchange(tcp, head("GET", "/metrics", CLOSE))
            assert answer.startswith(b"HTTP/1.1 200 ")
        assert read_all(done) == b""
        assert read_all(idle[1]) == b""
    finally:
        for each in idle:
            each.close()


def test_connections_that_wait_for_us_do_not_give_way(agent: FakeAgent, tcp: socket.socket) -> None:
    go_on = threading.Event()
    agent.steps.wait = lambda: go_on.wait(10.0)
    busy = [connected(tcp) for _ in range(MOST_CONNECTIONS)]
    try:
        for each in busy:  # answered: its end is read from now on
            each.sendall(head("GET", "/healthz"))
            read_until(each, b"}")
        for each in busy:
            each.sendall(head("GET", "/api/v1/jobs", BEARER))
        with connected(tcp) as one_more:
            assert read_all(one_more).startswith(b"HTTP/1.1 503 ")
        go_on.set()
        assert all(read_until(each, b"}").startswith(b"HTTP/1.1 200 ") for each in busy)
    finally:
        go_on.set()
        for each in busy:
            each.close()
    wait_for(lambda: exchange(tcp, head("GET", "/healthz", CLOSE)).startswith(b"HTTP/1.1 200 "))

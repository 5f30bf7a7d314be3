"""Messages to the service manager, on a real datagram socket."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from chopperd.agent.lifecycle import Notifier
from chopperd.config.paths import ServiceManager, service_manager
from chopperd.units import NS_PER_S
from tests.fakes.clock import ScriptedClock


@pytest.fixture
def manager() -> Iterator[socket.socket]:
    """Where systemd would listen: an abstract socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(f"\0chopperd-test-{os.getpid()}")
        server.setblocking(False)
        yield server


def received(server: socket.socket) -> list[str]:
    messages = []
    while True:
        try:
            messages.append(server.recv(4096).decode())
        except BlockingIOError:
            return messages


def address(server: socket.socket) -> str:
    name = server.getsockname()
    return "@" + (name[1:].decode() if isinstance(name, bytes) else name[1:])


def test_messages_arrive_and_a_status_only_when_it_changes(manager: socket.socket) -> None:
    notifier = Notifier(ServiceManager(notify_address=address(manager)), ScriptedClock())
    notifier.ready()
    for status in ("one", "one", "two\nlines"):
        notifier.status(status)
    notifier.alive()  # no sign of life was asked for
    notifier.stopping()
    assert received(manager) == ["READY=1", "STATUS=one", "STATUS=two lines", "STOPPING=1"]


def test_signs_of_life_are_sent_twice_in_the_time_that_is_asked_for(manager: socket.socket) -> None:
    clock = ScriptedClock()
    asked = ServiceManager(notify_address=address(manager), watchdog_s=30.0)
    notifier = Notifier(asked, clock)
    for _ in range(60):
        notifier.alive()
        clock.advance(NS_PER_S)
    assert received(manager) == ["WATCHDOG=1"] * 4


@pytest.mark.parametrize("given", [None, "", "relative", "/nonexistent/socket"])
def test_without_a_service_manager_nothing_happens(given: str | None) -> None:
    Notifier(ServiceManager(notify_address=given), ScriptedClock()).ready()


def test_a_socket_in_the_file_system_is_reached_too(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(str(tmp_path / "notify"))
        server.setblocking(False)
        told = ServiceManager(notify_address=str(tmp_path / "notify"))
        Notifier(told, ScriptedClock()).ready()
        assert received(server) == ["READY=1"]


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, ServiceManager()),
        ({"NOTIFY_SOCKET": ""}, ServiceManager()),
        (
            {"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "30000000"},
            ServiceManager(notify_address="@x", watchdog_s=30.0),
        ),
        (
            {"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())},
            ServiceManager(watchdog_s=30.0),
        ),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, ServiceManager()),
        ({"WATCHDOG_USEC": "0"}, ServiceManager()),
        ({"WATCHDOG_USEC": "soon"}, ServiceManager()),
    ],
)
def test_the_environment_says_what_the_service_manager_wants(
    environment: dict[str, str], expected: ServiceManager
) -> None:
    assert service_manager(environment) == expected


def test_a_start_that_takes_long_asks_for_time_while_it_goes_on(manager: socket.socket) -> None:
    """Asked each 5 s for 30 s more: in 12 s three times."""
    clock = ScriptedClock()
    notifier = Notifier(ServiceManager(notify_address=address(manager)), clock)
    for _ in range(12 * 5):
        notifier.starting()
        clock.advance(NS_PER_S // 5)
    assert received(manager) == ["EXTEND_TIMEOUT_USEC=30000000"] * 3

"""Clients that ask an agent for what costs it most, until they are told to end.

`python -m bench.agent_clients SOCKET METRICS_PORT` runs beside `bench.agent_scrapes`: some ask for
ten minutes of samples, whole reports and pages of steps one after another, others connect and then
neither ask to the end nor read what they asked for.
"""

import argparse
import socket
import threading
import time
from pathlib import Path
from typing import Final

from tests.agent_http import ask

_HEAVY: Final = (
    "/api/v1/gpus/0/samples?points=5000",
    "/api/v1/report/latest?job=bench",
    "/api/v1/steps?limit=1000&include=families",
    "/openapi.json",
)
_SLOW: Final = 8


def ask_on(path: Path, route: str) -> None:
    """Ask the same for ever, each time as soon as the last answer is there."""
    while True:
        try:
            ask(path, route)
        except OSError:
            time.sleep(0.1)


def half_a_request(path: Path) -> None:
    """Begin requests and never end them; cut off, it begins another."""
    while True:
        with socket.socket(socket.AF_UNIX) as client:
            try:
                client.connect(str(path))
                client.sendall(b"GET /metrics HTTP/1.1\r\nHost: loc")
                client.recv(1)
            except OSError:
                time.sleep(0.1)


def unread_answers(port: int) -> None:
    """Ask for scrape after scrape and read none of them."""
    request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
    while True:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            try:
                client.connect(("127.0.0.1", port))
                client.sendall(request * 50)
                time.sleep(20)
            except OSError:
                time.sleep(0.1)


def main(argv: list[str] | None = None) -> None:
    """Ask until killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("socket", type=Path)
    parser.add_argument("port", type=int)
    chosen = parser.parse_args(argv)
    clients = [
        *(threading.Thread(target=ask_on, args=(chosen.socket, route)) for route in _HEAVY),
        *(threading.Thread(target=half_a_request, args=(chosen.socket,)) for _ in range(_SLOW)),
        *(threading.Thread(target=unread_answers, args=(chosen.port,)) for _ in range(_SLOW)),
    ]
    for client in clients:
        client.start()
    for client in clients:
        client.join()


if __name__ == "__main__":
    main()

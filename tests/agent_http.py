"""Asking an agent over its Unix socket, as a local client does."""

import http.client
import json
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class _OverUnix(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=30)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(30)
        self.sock.connect(str(self._path))


@dataclass(frozen=True)
class Asked:
    """An answer."""

    status: int
    text: str

    @property
    def json(self) -> Any:  # noqa: ANN401
        return json.loads(self.text)

    def metric(self, series: str) -> float | None:
        """The value of a series as it is written; None if there is none."""
        for line in self.text.splitlines():
            if line.startswith(f"{series} "):
                return float(line.rpartition(" ")[2])
        return None


def ask(path: Path, route: str, method: str = "GET", accept: str = "*/*") -> Asked:
    """What the agent that listens at a socket answers."""
    connection = _OverUnix(path)
    try:
        connection.request(method, route, headers={"Accept": accept})
        answer = connection.getresponse()
        return Asked(answer.status, answer.read().decode())
    finally:
        connection.close()

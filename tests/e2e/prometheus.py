"""A real Prometheus on loopback, with its own data folder, that scrapes each second."""

import json
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx
import msgspec

from tests.e2e.running import wait_for
from tests.tools import needed

_QUERY_TIMEOUT_S: Final = 10.0
_END_TIMEOUT_S: Final = 10.0


class Series(msgspec.Struct):
    """One series of an answer: its labels, and the time and text of its value."""

    metric: dict[str, str]
    value: tuple[float, str]


class _Data(msgspec.Struct):
    result: list[Series]


class _Answer(msgspec.Struct):
    status: str
    data: _Data


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A running server."""

    address: str

    def query(self, expression: str) -> list[Series]:
        """What an expression that gives a vector is now."""
        response = httpx.get(
            f"http://{self.address}/api/v1/query",
            params={"query": expression},
            timeout=_QUERY_TIMEOUT_S,
        )
        assert response.status_code == httpx.codes.OK, response.text
        return msgspec.json.decode(response.content, type=_Answer).data.result

    def is_ready(self) -> bool:
        """Whether it answers."""
        try:
            return httpx.get(f"http://{self.address}/-/ready").status_code == httpx.codes.OK
        except httpx.TransportError:
            return False


@contextmanager
def scraping(target: str, folder: Path) -> Iterator[Prometheus]:
    """A server that scrapes `target` (address:port) and keeps what it has in `folder`."""
    address = f"127.0.0.1:{free_port()}"
    job = {"job_name": "chopperd", "static_configs": [{"targets": [target]}]}
    config = {"global": {"scrape_interval": "1s"}, "scrape_configs": [job]}
    file = folder / "prometheus.json"  # JSON is YAML
    file.write_text(json.dumps(config), encoding="utf-8")
    command = [
        needed("prometheus"),
        f"--config.file={file}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address={address}",
    ]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        server = Prometheus(address)
        wait_for("Prometheus is ready", server.is_ready)
        yield server
    finally:
        process.terminate()
        process.wait(_END_TIMEOUT_S)


def free_port() -> int:
    """A port of loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

"""A real Prometheus of the tests' own: its own port, data and configuration."""

import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.error import HTTPError

import msgspec

from tests.ports import free_port
from tests.tools import needed
from tests.waiting import wait_for

#: Somebody else may take the port before it does.
_MOST_STARTS: Final = 5
_EVERY_SECOND: Final = """
  - job_name: chopperd
    scrape_interval: 1s
    scrape_timeout: 1s
    static_configs: [{{targets: ["{target}"]}}]
"""


class _Series(msgspec.Struct):
    metric: dict[str, str]
    value: tuple[float, str] | None = None
    values: list[tuple[float, str]] = []


class _Data(msgspec.Struct):
    result: list[_Series] = []


class _Answer(msgspec.Struct):
    status: str
    data: _Data


@dataclass(frozen=True, slots=True)
class Series:
    """One series of an answer: its labels, and (time in s, value) from old to new."""

    labels: Mapping[str, str]
    points: tuple[tuple[float, float], ...]

    @property
    def value(self) -> float:
        """The newest value."""
        return self.points[-1][1]


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A running server."""

    address: str

    def query(self, expression: str, at_s: float | None = None) -> list[Series]:
        """What an instant query gives, at a Unix time or now; it must be a right expression."""
        asked = {"query": expression, **({} if at_s is None else {"time": f"{at_s:.3f}"})}
        url = f"http://{self.address}/api/v1/query?{urllib.parse.urlencode(asked)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as response:
                answer = msgspec.json.decode(response.read(), type=_Answer, strict=False)
        except HTTPError as error:
            raise AssertionError(f"{expression}: {error.read().decode()}") from error
        assert answer.status == "success"
        return [
            Series(each.metric, tuple((time_s, float(text)) for time_s, text in _points(each)))
            for each in answer.data.result
        ]

    def is_ready(self) -> bool:
        """Whether it answers."""
        try:
            with urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=5):
                return True
        except OSError:
            return False


def _points(series: _Series) -> list[tuple[float, str]]:
    return series.values if series.value is None else [series.value]


@contextmanager
def prometheus(folder: Path, scrape_configs: str, rules: str = "") -> Iterator[Prometheus]:
    """A Prometheus that scrapes as `scrape_configs` (YAML, a list) says, ended afterwards.

    Args:
        folder: Where it keeps its data.
        scrape_configs: The list under `scrape_configs:`.
        rules: Text of a file of rules.
    """
    config = folder / "prometheus.yml"
    (folder / "rules.yml").write_text(rules or "groups: []")
    config.write_text(f"rule_files: [rules.yml]\nscrape_configs:\n{scrape_configs}")
    for _ in range(_MOST_STARTS):
        server = Prometheus(f"127.0.0.1:{free_port()}")
        process = _started(folder, config, server.address)
        try:
            wait_for(lambda: process.poll() is not None or server.is_ready(), "Prometheus")  # noqa: B023
            if process.poll() is None:
                yield server
                return
        finally:
            process.terminate()
            process.wait(30)
    raise AssertionError((folder / "prometheus.log").read_text())


def _started(folder: Path, config: Path, address: str) -> "subprocess.Popen[bytes]":
    command = (
        needed("prometheus"),
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address={address}",
        "--log.level=error",
    )
    with (folder / "prometheus.log").open("wb") as log:
        return subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)


def scraping(target: str, folder: Path) -> AbstractContextManager[Prometheus]:
    """A Prometheus that scrapes `target` (address:port) each second."""
    return prometheus(folder, _EVERY_SECOND.format(target=target))

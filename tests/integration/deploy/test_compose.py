"""Compose files and Grafana's provisioning: what they name is there. Nothing of it is started."""

import shutil
from pathlib import Path
from typing import Final

import msgspec
import pytest

from chopperd.config.load import load_config
from tests.tools import ROOT, output

COMPOSE: Final = ROOT / "deploy/compose"
PROVISIONING: Final = ROOT / "deploy/grafana/provisioning"


class _Build(msgspec.Struct):
    context: str
    dockerfile: str


class _Service(msgspec.Struct, forbid_unknown_fields=True):
    build: _Build | None = None
    image: str = ""
    environment: dict[str, str] = {}
    ports: list[str] = []
    volumes: list[str] = []
    depends_on: list[str] = []
    restart: str = ""
    deploy: dict[str, object] = {}
    pid: str = ""


class _Compose(msgspec.Struct, forbid_unknown_fields=True):
    services: dict[str, _Service]
    name: str = ""
    volumes: dict[str, None] = {}


class _Options(msgspec.Struct):
    path: str


class _Provider(msgspec.Struct):
    type: str
    options: _Options


class _Providers(msgspec.Struct):
    apiVersion: int  # noqa: N815, Grafana's name
    providers: list[_Provider]


class _Json(msgspec.Struct):
    timeInterval: str  # noqa: N815, Grafana's name


class _Source(msgspec.Struct):
    type: str
    url: str
    jsonData: _Json  # noqa: N815, Grafana's name


class _Sources(msgspec.Struct):
    apiVersion: int  # noqa: N815, Grafana's name
    datasources: list[_Source]


class _Global(msgspec.Struct):
    scrape_interval: str


class _Targets(msgspec.Struct):
    targets: list[str]


class _Job(msgspec.Struct):
    job_name: str
    static_configs: list[_Targets]
    relabel_configs: list[dict[str, object]]


class _Prometheus(msgspec.Struct):
    globals: _Global = msgspec.field(name="global")
    rule_files: list[str] = []
    scrape_configs: list[_Job] = []


def _compose(name: str = "compose.yml") -> _Compose:
    return msgspec.yaml.decode((COMPOSE / name).read_bytes(), type=_Compose)


def _mounts(service: str) -> dict[str, Path]:
    """The files and folders of the checkout that a service sees, by its own paths."""
    found = {}
    for volume in _compose().services[service].volumes:
        source, target, *_ = volume.split(":")
        if source.startswith("."):
            found[target] = (COMPOSE / source).resolve()
    return found


def _prometheus(file: Path) -> _Prometheus:
    return msgspec.yaml.decode(file.read_bytes(), type=_Prometheus)


def test_everything_that_is_mounted_or_built_is_there() -> None:
    compose = _compose()
    named = set(compose.volumes)
    for service in compose.services.values():
        for volume in service.volumes:
            source = volume.split(":")[0]
            assert source in named or (COMPOSE / source).exists()
        assert set(service.depends_on) <= compose.services.keys()
        if service.build is not None:
            assert (COMPOSE / service.build.context / service.build.dockerfile).is_file()
        else:
            version = service.image.rpartition(":")[2]
            assert version.lstrip("v")[0].isdigit(), "an image of no fixed version"


def test_nothing_but_grafana_is_reached_from_outside_and_that_on_loopback_only() -> None:
    ports = [port for service in _compose().services.values() for port in service.ports]
    assert ports == ["127.0.0.1:3000:3000"]


@pytest.mark.parametrize("name", ["compose.yml", "nvidia.yml"])
def test_the_agent_takes_its_settings(name: str, tmp_path: Path) -> None:
    environment = _compose(name).services["agent"].environment
    own = {key: text for key, text in environment.items() if key.startswith("CHOPPERD_")}
    file = tmp_path / "config.toml"
    file.write_text("")
    config = load_config(file, own)
    assert config.sampling.backend == ("simulated" if name == "compose.yml" else "nvml")
    if name == "compose.yml":
        assert config.metrics.listen == "0.0.0.0:9469"


def test_prometheus_scrapes_the_agent_and_loads_the_rules(tmp_path: Path) -> None:
    mounts = _mounts("prometheus")
    config = mounts["/etc/prometheus/prometheus.yml"]
    (job,) = _prometheus(config).scrape_configs
    assert job.static_configs == [_Targets(targets=["agent:9469"])]
    assert mounts["/etc/prometheus/rules.yml"] == ROOT / "deploy/prometheus/rules.yml"
    for path in mounts.values():
        shutil.copy(path, tmp_path)
    assert "1 rule files found" in output("promtool", "check", "config", tmp_path / config.name)
    # As the example for nodes: the port goes.
    (example,) = _prometheus(ROOT / "deploy/prometheus/scrape.yml").scrape_configs
    assert job.relabel_configs == example.relabel_configs


def test_grafana_finds_prometheus_and_the_boards() -> None:
    mounts = _mounts("grafana")
    assert mounts["/etc/grafana/provisioning"] == PROVISIONING
    sources = msgspec.yaml.decode(
        (PROVISIONING / "datasources/prometheus.yml").read_bytes(), type=_Sources
    )
    (source,) = sources.datasources
    assert source.type == "prometheus"
    assert source.url == "http://prometheus:9090"
    config = _prometheus(COMPOSE / "prometheus.yml")
    assert source.jsonData.timeInterval == config.globals.scrape_interval
    providers = msgspec.yaml.decode(
        (PROVISIONING / "dashboards/chopperd.yml").read_bytes(), type=_Providers
    )
    (provider,) = providers.providers
    assert provider.type == "file"
    boards = mounts[provider.options.path]
    assert {file.name for file in boards.iterdir()} == {
        *("agent.json", "fleet.json", "fsdp.json", "job.json", "node-and-gpu.json")
    }
    home = _compose().services["grafana"].environment["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert (boards / Path(home).name).is_file()
    assert sources.apiVersion == providers.apiVersion == 1

"""The Helm chart by Helm's own code, its manifests by Kubernetes' own schemas."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias, cast

import helm_python
import jsonschema
import kubernetes_validate
import msgspec
import pytest

from chopperd import __version__
from chopperd.config.load import load_config
from chopperd.config.sections import Config
from chopperd.config.table import SETTINGS
from dashboards.__main__ import board_files
from dashboards.rules_file import rule_files
from tests.tools import ROOT, output

Rules: TypeAlias = list[dict[str, str]]
Values: TypeAlias = Mapping[str, object]
Manifest: TypeAlias = dict[str, object]

CHART = ROOT / "helm/chopperd"
KUBERNETES = ("1.27", "1.28", "1.29", "1.30", "1.31")
IMAGE: Values = {"repository": "registry.example/chopperd"}
#: Keys of the configuration that the chart sets itself.
OWN_KEYS = {
    "node.name",
    "paths.state",
    "paths.runtime",
    "metrics.listen",
    "api.listen",
    "api.insecure",
    "health.fail_on_lost_driver",
}
EVERYTHING: Values = {
    "image": {**IMAGE, "digest": "sha256:" + "0" * 64, "pullSecrets": [{"name": "registry"}]},
    "gpu": {"runtimeClassName": "", "access": "volume"},
    "metrics": {"address": "[::]", "port": 9500},
    "config": {
        "metrics": {"profile": "minimal"},
        "sampling": {"hz": 12.5, "slow_hz": 2},
        "store": {"max_bytes": 2**41},
        "api": {"allowed_hosts": ["gpu-1.example"]},
        "traces": {
            "data_wait_patterns": ['"quoted" \\w+ <b>'],
            "classes": [{"class": "comm", "pattern": '^"ours" \\d'}],
        },
        "reference": {"models": {"NVIDIA H100 80GB HBM3": 1980, "b": 1500.5}},
    },
    "hostPaths": {"state": "/data/chopperd", "run": "/run/gpu"},
    "nodeSelector": {"nvidia.com/gpu.present": "true"},
    "affinity": {"nodeAffinity": {}},
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
    "priorityClassName": "system-node-critical",
    "maxUnavailable": 1,
    "podAnnotations": {"example.com/team": "gpu"},
    "podLabels": {"team": "gpu"},
    "networkPolicy": {"from": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]},
    "podMonitor": {"enabled": True, "interval": "30s", "labels": {"release": "prometheus"}},
    "dashboards": {"enabled": True},
    "rules": {"enabled": True, "optional": True, "labels": {"release": "prometheus"}},
}
DEFAULTS: Values = {"image": IMAGE}
SETS = {
    "defaults": DEFAULTS,
    "everything": EVERYTHING,
    "amd": {"image": IMAGE, "gpu": {"runtimeClassName": "", "access": "none"}},
    "little": {"image": IMAGE, "gpu": {"access": "none"}, "networkPolicy": {"enabled": False}},
}


@pytest.fixture(scope="module")
def chart() -> Iterator[helm_python.Chart]:
    with helm_python.Chart.load(CHART) as loaded:
        yield loaded


def _manifests(chart: helm_python.Chart, values: Values) -> dict[str, Manifest]:
    """What is installed, by kind; the one of two ConfigMaps that holds boards as "Dashboards"."""
    rendered = chart.render(dict(values), name="gpu", namespace="monitoring")
    found: dict[str, Manifest] = {}
    for file, text in rendered.items():
        if file.endswith(".yaml") and text.strip():
            manifest = msgspec.yaml.decode(text, type=Manifest)
            kind = "Dashboards" if file.endswith("dashboards.yaml") else str(manifest["kind"])
            assert kind not in found
            found[kind] = manifest
    return found


def _at(manifest: object, *path: str | int) -> object:
    for key in path:
        if isinstance(key, int):
            assert isinstance(manifest, list)
            manifest = manifest[key]
        else:
            assert isinstance(manifest, dict)
            manifest = manifest[key]
    return manifest


def _pod(chart: helm_python.Chart, values: Values) -> object:
    return _at(_manifests(chart, values)["DaemonSet"], "spec", "template", "spec")


def _config(chart: helm_python.Chart, values: Values, folder: Path) -> Config:
    """The agent's reading of the configuration that the pods get."""
    text = _at(_manifests(chart, values)["ConfigMap"], "data", "config.toml")
    file = folder / "config.toml"
    file.write_text(str(text), encoding="utf-8")
    return load_config(file, {})


def test_the_processes_of_the_node_are_seen_only_where_that_is_asked_for(
    chart: helm_python.Chart,
) -> None:
    without, with_them = (_pod(chart, {**DEFAULTS, "hostPID": value}) for value in (False, True))
    assert isinstance(without, dict)
    assert "hostPID" not in without
    assert _at(with_them, "hostPID") is True


@pytest.mark.parametrize("values", SETS.values(), ids=SETS)
def test_helm_finds_nothing_wrong(values: Values) -> None:
    findings = helm_python.lint(CHART, values=dict(values))
    assert findings["errors"] == []
    assert [found["error"] for found in findings["messages"]] == ["icon is recommended"]


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("values", SETS.values(), ids=SETS)
def test_kubernetes_takes_every_manifest(
    chart: helm_python.Chart, values: Values, version: str
) -> None:
    manifests = _manifests(chart, values)
    # Of another maker's types, which have no schema here.
    for kind in ("PodMonitor", "PrometheusRule"):
        manifests.pop(kind, None)
    assert {"DaemonSet", "ConfigMap", "ServiceAccount", "Service"} <= manifests.keys()
    for manifest in manifests.values():
        kubernetes_validate.validate(manifest, version, strict=True)


def test_the_agent_gets_the_charts_own_settings(chart: helm_python.Chart, tmp_path: Path) -> None:
    config = _config(chart, DEFAULTS, tmp_path)
    assert config.metrics.listen == "0.0.0.0:9469"
    assert config.api.listen == "127.0.0.1:9470"
    assert config.health.fail_on_lost_driver
    set_here = {key for key, origin in config.origins.items() if origin != "default"}
    assert set_here == OWN_KEYS - {"node.name", "api.listen", "api.insecure"}


def test_the_agent_reads_what_the_values_say(chart: helm_python.Chart, tmp_path: Path) -> None:
    config = _config(chart, EVERYTHING, tmp_path)
    assert config.metrics.listen == "[::]:9500"
    assert config.metrics.profile == "minimal"
    assert config.sampling.hz == 12.5
    assert config.store.max_bytes == 2**41
    assert config.api.allowed_hosts == ("gpu-1.example",)
    assert config.traces.data_wait_patterns == ('"quoted" \\w+ <b>',)
    (rule,) = config.traces.classes
    assert (rule.kernel_class, rule.pattern) == ("comm", '^"ours" \\d')
    assert config.reference.models == {"NVIDIA H100 80GB HBM3": 1980.0, "b": 1500.5}


@pytest.mark.parametrize("values", SETS.values(), ids=SETS)
def test_the_pod_has_no_privilege(chart: helm_python.Chart, values: Values) -> None:
    pod = _pod(chart, values)
    assert isinstance(pod, dict)
    assert not {"hostPID", "hostIPC", "hostNetwork"} & pod.keys()
    assert pod["automountServiceAccountToken"] is False
    assert _at(pod, "securityContext", "seccompProfile") == {"type": "RuntimeDefault"}
    assert _at(pod, "containers", 0, "securityContext") == {
        "privileged": False,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


@pytest.mark.parametrize(
    ("access", "devices"),
    [("env", "all"), ("volume", "/var/run/nvidia-container-devices"), ("none", None)],
)
def test_all_gpus_are_asked_for_as_the_values_say(
    chart: helm_python.Chart, access: str, devices: str | None
) -> None:
    container = _at(_pod(chart, {"image": IMAGE, "gpu": {"access": access}}), "containers", 0)
    assert isinstance(container, dict)
    variables = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert variables.get("NVIDIA_VISIBLE_DEVICES") == devices
    mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
    assert ("/var/run/nvidia-container-devices/all" in mounts) == (access == "volume")


def _admits(pod: object, labels: Mapping[str, str]) -> bool:
    """Whether the pod may be on a node with these labels: Kubernetes' rule for the affinity."""
    assert isinstance(pod, dict)
    if not all(labels.get(key) == value for key, value in pod.get("nodeSelector", {}).items()):
        return False
    if "affinity" not in pod:
        return True
    terms = _at(
        pod["affinity"],
        "nodeAffinity",
        "requiredDuringSchedulingIgnoredDuringExecution",
        "nodeSelectorTerms",
    )
    assert isinstance(terms, list)
    holds: Mapping[str, Callable[[dict[str, list[str]], str | None], bool]] = {
        "In": lambda rule, value: value in rule["values"],
        "Exists": lambda _, value: value is not None,
        "DoesNotExist": lambda _, value: value is None,
    }
    return any(
        all(
            holds[rule["operator"]](rule, labels.get(rule["key"]))
            for rule in term["matchExpressions"]
        )
        for term in terms
    )


NFD = {"feature.node.kubernetes.io/kernel-version.full": "6.8.0"}
GKE = {"cloud.google.com/gke-nodepool": "pool"}


@pytest.mark.parametrize(
    ("labels", "admitted"),
    [
        ({}, True),  # nothing labels nodes here: a GPU node may look like this
        ({"node-role.kubernetes.io/control-plane": ""}, False),
        (NFD, False),  # discovered, and without a GPU
        ({**NFD, "feature.node.kubernetes.io/pci-0302_10de.present": "true"}, True),
        ({**NFD, "feature.node.kubernetes.io/pci-1200_1002.present": "true"}, True),
        ({**NFD, "nvidia.com/gpu.present": "true"}, True),
        ({**NFD, "nvidia.com/gpu.present": "false"}, False),
        (GKE, False),
        ({**GKE, "cloud.google.com/gke-accelerator": "nvidia-h100-80gb"}, True),
    ],
)
def test_case_63_pods_are_on_nodes_with_a_gpu_whatever_their_taints(
    chart: helm_python.Chart, labels: Mapping[str, str], admitted: bool
) -> None:
    pod = _pod(chart, DEFAULTS)
    assert _admits(pod, labels) is admitted
    assert _at(pod, "tolerations") == [{"operator": "Exists"}]


def test_case_63_the_defaults_take_the_driver_and_no_gpu_from_jobs(
    chart: helm_python.Chart,
) -> None:
    container = _at(_pod(chart, DEFAULTS), "containers", 0)
    assert isinstance(container, dict)
    variables = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert variables["NVIDIA_VISIBLE_DEVICES"] == "all"
    assert variables["NVIDIA_DRIVER_CAPABILITIES"] == "utility"
    assert "nvidia.com/gpu" not in msgspec.json.encode(container["resources"]).decode()


@pytest.mark.parametrize(
    "values",
    [
        {**DEFAULTS, "gpu": {"nodes": "all"}},
        {**DEFAULTS, "nodeSelector": {"a": "b"}},
        {**DEFAULTS, "affinity": {"podAffinity": {}}},
    ],
)
def test_what_a_site_says_of_its_nodes_replaces_the_labels(
    chart: helm_python.Chart, values: Values
) -> None:
    pod = _pod(chart, values)
    assert isinstance(pod, dict)
    assert pod.get("affinity") == values.get("affinity")
    assert pod.get("nodeSelector") == values.get("nodeSelector")


def test_reports_name_the_node_and_not_the_pod(chart: helm_python.Chart) -> None:
    container = _at(_pod(chart, DEFAULTS), "containers", 0)
    assert isinstance(container, dict)
    (entry,) = (each for each in container["env"] if each["name"] == "CHOPPERD_NODE__NAME")
    assert _at(entry, "valueFrom", "fieldRef", "fieldPath") == "spec.nodeName"


def test_every_mount_is_of_a_volume(chart: helm_python.Chart) -> None:
    pod = _pod(chart, EVERYTHING)
    volumes, mounts = _at(pod, "volumes"), _at(pod, "containers", 0, "volumeMounts")
    assert isinstance(volumes, list)
    assert isinstance(mounts, list)
    assert {mount["name"] for mount in mounts} == {volume["name"] for volume in volumes}


def test_a_changed_configuration_starts_the_pods_anew(chart: helm_python.Chart) -> None:
    def checksum(values: Values) -> object:
        template = _at(_manifests(chart, values)["DaemonSet"], "spec", "template")
        return _at(template, "metadata", "annotations", "checksum/config")

    faster: Values = {**DEFAULTS, "config": {"sampling": {"hz": 20}}}
    assert checksum(DEFAULTS) == checksum(DEFAULTS) != checksum(faster)


def test_the_network_lets_in_scrapes_and_lets_nothing_out(chart: helm_python.Chart) -> None:
    policy = _at(_manifests(chart, EVERYTHING)["NetworkPolicy"], "spec")
    assert _at(policy, "policyTypes") == ["Ingress", "Egress"]
    assert _at(policy, "egress") == []
    assert _at(policy, "ingress", 0, "ports") == [{"port": "metrics", "protocol": "TCP"}]
    assert _at(policy, "ingress", 0, "from") == _at(EVERYTHING, "networkPolicy", "from")
    assert "NetworkPolicy" not in _manifests(chart, SETS["little"])


def test_selectors_find_the_pods_and_nothing_else_of_the_release(chart: helm_python.Chart) -> None:
    manifests = _manifests(chart, EVERYTHING)
    labels = _at(manifests["DaemonSet"], "spec", "template", "metadata", "labels")
    own = {"app.kubernetes.io/name": "chopperd", "app.kubernetes.io/instance": "gpu"}
    assert isinstance(labels, dict)
    assert own.items() <= labels.items()
    assert _at(manifests["DaemonSet"], "spec", "selector", "matchLabels") == own
    assert _at(manifests["Service"], "spec", "selector") == own
    assert _at(manifests["PodMonitor"], "spec", "selector", "matchLabels") == own
    assert _at(manifests["NetworkPolicy"], "spec", "podSelector", "matchLabels") == own


def test_the_boards_are_installed_where_asked_for(chart: helm_python.Chart) -> None:
    data = _at(_manifests(chart, EVERYTHING)["Dashboards"], "data")
    assert data == board_files()
    assert "Dashboards" not in _manifests(chart, DEFAULTS)


def _rules(chart: helm_python.Chart, **rules: object) -> list[Mapping[str, object]]:
    """What an operator's Prometheus would load, if promtool takes it."""
    values: Values = {**DEFAULTS, "rules": {"enabled": True, **rules}}
    groups = _at(_manifests(chart, values)["PrometheusRule"], "spec", "groups")
    assert isinstance(groups, list)
    return groups


def _of_file(name: str) -> list[Mapping[str, object]]:
    return msgspec.yaml.decode(rule_files()[name], type=dict[str, list[Mapping[str, object]]])[
        "groups"
    ]


def test_the_rules_are_those_of_the_file(chart: helm_python.Chart, tmp_path: Path) -> None:
    assert _rules(chart) == _of_file("rules.yml")
    both = _of_file("rules.yml") + _of_file("optional-alerts.yml")
    assert _rules(chart, optional=True) == both
    file = tmp_path / "rules.yml"
    file.write_bytes(msgspec.yaml.encode({"groups": _rules(chart, optional=True)}))
    assert "SUCCESS" in output("promtool", "check", "rules", file)
    assert "PrometheusRule" not in _manifests(chart, DEFAULTS)


def test_single_alerts_and_all_of_them_can_be_turned_off(chart: helm_python.Chart) -> None:
    def alerts(**rules: object) -> list[str]:
        found = (_at(group, "rules") for group in _rules(chart, **rules))
        return [rule["alert"] for each in found for rule in cast(Rules, each) if "alert" in rule]

    name = "ChopperdPowerLimitLowered"
    assert name in alerts()
    assert alerts(disabled=[name]) == [each for each in alerts() if each != name]
    assert alerts(alerts=False) == []
    assert _rules(chart, alerts=False) == _of_file("rules.yml")[:-1]


def test_runbooks_are_found_under_the_sites_address(chart: helm_python.Chart) -> None:
    rule = _at(_rules(chart, runbookBase="https://git.example/chopperd/")[-1], "rules", 0)
    found = _at(rule, "annotations", "runbook_url")
    assert found == "https://git.example/chopperd/docs/runbooks/ChopperdAgentDown.md"


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({}, "/image/repository"),
        ({"image": IMAGE, "mage": 1}, "mage"),
        ({"image": {**IMAGE, "digest": "latest"}}, "/image/digest"),
        ({"image": IMAGE, "metrics": {"port": 0}}, "/metrics/port"),
        ({"image": IMAGE, "gpu": {"access": "privileged"}}, "/gpu/access"),
        ({"image": IMAGE, "hostPaths": {"state": "var"}}, "/hostPaths/state"),
        ({"image": IMAGE, "config": {"sampling": {"hz": 5000}}}, "/config/sampling/hz"),
        ({"image": IMAGE, "config": {"sampling": {"hertz": 5}}}, "hertz"),
        ({"image": IMAGE, "config": {"metrics": {"listen": "0.0.0.0:1"}}}, "listen"),
    ],
)
def test_a_wrong_value_is_refused_by_name(
    chart: helm_python.Chart, wrong: Values, named: str
) -> None:
    with pytest.raises(helm_python.HelmValuesError, match=named):
        chart.render(dict(wrong), name="gpu")


def test_the_schema_knows_every_key_of_the_configuration_with_its_default() -> None:
    schema = msgspec.json.decode((CHART / "values.schema.json").read_bytes())
    sections = schema["properties"]["config"]["properties"]
    known = {
        f"{section}.{key}": part
        for section, keys in sections.items()
        for key, part in keys["properties"].items()
    }
    settings = {setting.key: setting for setting in SETTINGS if setting.key not in OWN_KEYS}
    assert known.keys() == settings.keys()
    for key, setting in settings.items():
        if setting.default is not None:
            jsonschema.validate(setting.default, known[key])


def test_the_chart_is_of_the_programs_version(chart: helm_python.Chart) -> None:
    assert chart.metadata["appVersion"] == __version__

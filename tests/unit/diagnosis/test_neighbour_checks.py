"""Each finding about the container and other programs of the node, from its facts."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import msgspec
import pytest

from chopperd.diagnosis import checks
from chopperd.diagnosis.facts import Container, Facts, Finding, Process, Verdict
from chopperd.model.devices import ProcessView
from tests.unit.diagnosis.facts import HEALTHY, PROBE, amd_node, entry, inventory


def only(check: Callable[[Facts], Iterator[Finding]], facts: Facts) -> Finding:
    (finding,) = check(facts)
    return finding


def running(*programs: str) -> Facts:
    processes = tuple(
        Process(pid=100 + place, names=frozenset({name})) for place, name in enumerate(programs)
    )
    return replace(HEALTHY, processes=processes)


def test_a_container_says_what_the_toolkit_was_asked_for() -> None:
    inside = Container(evidence="kubepods", visible_devices="all", driver_capabilities="compute")
    assert only(checks.container, replace(HEALTHY, container=inside)).text == (
        "inside one (kubepods), NVIDIA_VISIBLE_DEVICES=all, NVIDIA_DRIVER_CAPABILITIES=compute"
    )
    assert "host" in only(checks.container, HEALTHY).text


@pytest.mark.parametrize(
    ("process", "program"),
    [
        ("dcgm-exporter", "dcgm-exporter"),
        ("nv-hostengine", "DCGM"),
        ("nvidia_gpu_exporter", "nvidia_gpu_exporter"),
        ("nvidia_gpu_expo", "nvidia_gpu_exporter"),  # as the kernel cuts it
        ("omnistat-monitor", "omnistat"),
        ("amd_smi_exporter", "AMD SMI exporter"),
        ("gpud", "gpud"),
        ("dynolog", "dynolog"),
        ("zeusd", "Zeus"),
        ("gpuagent", "AMD device-metrics-exporter"),
        ("rdcd", "RDC"),
        ("rocm_smi.py", "rocm-smi"),
        ("amdsmi_cli.py", "amd-smi"),
    ],
)
def test_other_readers_are_known_by_their_processes(process: str, program: str) -> None:
    found = only(checks.readers, running("bash", process))
    assert found.verdict is Verdict.OK
    assert found.text.startswith(f"{program} (pid 101): ")


def test_programs_that_read_no_gpu_are_not_named() -> None:
    found = only(checks.readers, running("bash", "node_exporter", "python3"))
    assert found.text == "none that reads GPUs"
    inside = replace(running("bash"), sees_host=False)
    assert only(checks.readers, inside).verdict is Verdict.UNKNOWN
    inside = replace(running("gpud"), sees_host=False)
    assert only(checks.readers, inside).text.startswith("gpud (pid 100)")


@pytest.mark.parametrize("name", ["Tesla V100-SXM2-16GB", "NVIDIA A100-SXM4-80GB", "NVIDIA L40S"])
def test_dcgm_may_keep_the_counters_from_the_profiler_before_hopper(name: str) -> None:
    probe = replace(PROBE, inventory=inventory(entry(0, name)))
    found = only(checks.dcgm_profiling, replace(running("nv-hostengine"), driver=probe))
    assert found.verdict is Verdict.UNKNOWN
    assert name in found.text
    assert list(checks.dcgm_profiling(replace(HEALTHY, driver=probe))) == []


@pytest.mark.parametrize(
    "name", ["NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA GH200 480GB", "NVIDIA B200"]
)
def test_since_hopper_dcgm_is_in_nobody_s_way(name: str) -> None:
    probe = replace(PROBE, inventory=inventory(entry(0, name)))
    facts = replace(running("dcgm-exporter"), driver=probe)
    assert only(checks.dcgm_profiling, facts).verdict is Verdict.OK


def test_a_kineto_socket_that_is_taken_names_who_has_it() -> None:
    assert list(checks.kineto(running("dynolog"))) == []
    taken = replace(running("dynolog"), kineto_taken=True)
    found = only(checks.kineto, taken)
    assert found.verdict is Verdict.UNKNOWN
    assert found.text.startswith("pid 100 (dynolog) holds @dynolog")
    hidden = only(checks.kineto, replace(HEALTHY, kineto_taken=True))
    assert hidden.text.startswith("a program of another user")


def test_two_daemons_on_the_kineto_socket_are_a_conflict() -> None:
    facts = replace(running("dynolog"), kineto_taken=True, kineto_holder="pid 7 (other)")
    found = only(checks.kineto, facts)
    assert found.verdict is Verdict.PROBLEM
    assert found.text.endswith("pid 100 (dynolog) can't open it")
    both = replace(running("dynolog", "dynolog"), kineto_taken=True)
    holder = replace(both, kineto_holder="pid 101 (dynolog)")
    assert "pid 100 (dynolog) can't" in only(checks.kineto, holder).text


@pytest.mark.parametrize("backend", ["amdgpu", "amdsmi"])
def test_agents_of_amd_s_may_hold_the_profiler_s_counters(backend: str) -> None:
    facts = replace(amd_node(backend), processes=running("gpuagent", "rdcd").processes)
    found = only(checks.amd_profiling, facts)
    assert found.verdict is Verdict.UNKNOWN
    assert found.text.startswith("AMD device-metrics-exporter, RDC can read")
    quiet = replace(facts, processes=running("omnistat-monitor").processes)
    assert list(checks.amd_profiling(quiet)) == []
    assert list(checks.amd_profiling(running("gpuagent"))) == []


def test_amd_smi_s_lock_matters_to_whom_calls_it() -> None:
    processes = running("rocm-smi").processes
    found = only(checks.amd_smi_lock, replace(amd_node("amdsmi"), processes=processes))
    assert found.verdict is Verdict.UNKNOWN
    assert "--backend amdgpu" in (found.fix or "")
    by_files = replace(amd_node("amdgpu"), processes=processes)
    assert list(checks.amd_smi_lock(by_files)) == []
    assert list(checks.amd_smi_lock(amd_node("amdsmi"))) == []


def viewed(**seen: int | bool | None) -> Facts:
    view = ProcessView(**seen)  # type: ignore[arg-type]
    inventory = HEALTHY.driver.inventory
    assert inventory is not None
    driver = replace(HEALTHY.driver, inventory=msgspec.structs.replace(inventory, processes=view))
    return replace(HEALTHY, driver=driver)


def test_processes_that_are_all_seen_map_traces() -> None:
    facts = viewed(listed_count=8, seen_count=8, environments=True, own_namespace=False)
    found = only(checks.job_processes, facts)
    assert found.verdict is Verdict.OK
    assert found.text == (
        "the driver lists 8, 8 of them seen in /proc; environments of others can be read"
    )
    idle = only(checks.job_processes, viewed(listed_count=0, own_namespace=False))
    assert idle.text == "the driver lists none now; environments of others can't be read"
    assert list(checks.job_processes(HEALTHY)) == []


@pytest.mark.parametrize(
    "seen",
    [
        {"listed_count": 8, "seen_count": 0},
        {"listed_count": None},
        {"listed_count": 0, "own_namespace": True},
    ],
)
def test_processes_that_are_not_seen_say_which_rules_are_left(
    seen: dict[str, int | bool | None],
) -> None:
    found = only(checks.job_processes, viewed(**seen))
    assert found.verdict is Verdict.UNKNOWN
    assert "hostPID" in (found.fix or "")
    assert "device map" in (found.fix or "")

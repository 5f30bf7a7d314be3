"""Each finding about hardware and driver, from the facts that make it."""

from dataclasses import replace
from errno import EACCES, EIO, EPERM

import msgspec
import pytest

from chopperd.diagnosis import driver_checks
from chopperd.diagnosis.checks import findings
from chopperd.diagnosis.facts import (
    Container,
    DriverProbe,
    Finding,
    Hardware,
    Library,
    MigInstance,
    Verdict,
)
from chopperd.model.devices import Inventory
from tests.unit.diagnosis.facts import (
    HEALTHY,
    LIBRARY,
    MODULE,
    NO_LIBRARY,
    PROBE,
    UNREAD,
    entry,
    inventory,
    node,
    without_gpu,
)

DOCKER = Container(evidence="/.dockerenv")


def only(found: list[Finding]) -> Finding:
    (finding,) = found
    return finding


def fix_of(finding: Finding) -> str:
    assert finding.verdict is Verdict.PROBLEM
    assert finding.fix is not None
    return finding.fix


def test_a_healthy_node_has_nothing_but_ok() -> None:
    found = findings(HEALTHY)
    assert {finding.verdict for finding in found} == {Verdict.OK}
    assert all(finding.fix is None for finding in found)


def test_a_machine_without_gpus_is_told_so_once_and_nothing_of_drivers() -> None:
    found = findings(without_gpu())
    problems = [finding.check for finding in found if finding.verdict is Verdict.PROBLEM]
    assert problems == ["GPU hardware", "GPUs"]
    assert not {"driver library", "kernel module", "device files"} & {each.check for each in found}


def test_gpus_that_are_read_need_no_pci_bus() -> None:
    simulated = Inventory(backend="simulated", driver=None, simulated=True, gpus=(entry(0),))
    facts = replace(
        without_gpu(), driver=DriverProbe(backend="simulated", inventory=simulated), binding=False
    )
    assert only(list(driver_checks.hardware(facts))).verdict is Verdict.OK
    assert only(list(driver_checks.gpus(facts))).text == "SIMULATED, 1 read by simulated"
    assert list(driver_checks.binding(facts)) == []


def test_a_bus_that_can_t_be_seen_is_unknown() -> None:
    facts = replace(without_gpu(), hardware=Hardware())
    assert only(list(driver_checks.hardware(facts))).verdict is Verdict.UNKNOWN


def test_nodes_without_a_library_in_a_container_need_the_capability_utility() -> None:
    driver = DriverProbe(backend="auto", library=NO_LIBRARY, error="nvml: not found")
    inside = Container(evidence="/.dockerenv", driver_capabilities="compute")
    facts = replace(HEALTHY, driver=driver, container=inside)
    fix = fix_of(only(list(driver_checks.library(facts))))
    assert fix == "start the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility"
    for capabilities in (None, "utility", "all"):
        inside = Container(evidence="/.dockerenv", driver_capabilities=capabilities)
        fix = fix_of(only(list(driver_checks.library(replace(facts, container=inside)))))
        assert "NVIDIA's runtime" in fix


def test_a_library_that_is_missing_on_a_host_is_to_be_installed() -> None:
    facts = replace(HEALTHY, driver=DriverProbe(backend="auto", library=NO_LIBRARY))
    found = only(list(driver_checks.library(facts)))
    assert "cannot open shared object" in found.text
    assert "user-space libraries" in fix_of(found)


def test_a_stub_of_the_toolkit_is_no_driver() -> None:
    stub = Library(name="libnvidia-ml.so.1", path="/usr/local/cuda/lib64/stubs/libnvidia-ml.so")
    facts = replace(HEALTHY, driver=replace(PROBE, library=stub))
    assert "LD_LIBRARY_PATH" in fix_of(only(list(driver_checks.library(facts))))


def test_a_process_that_ended_before_it_said_what_it_loaded_leaves_that_unknown() -> None:
    facts = replace(HEALTHY, driver=replace(PROBE, library=None))
    assert only(list(driver_checks.library(facts))).verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(
    "text",
    [
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54.03  Tue Jun  6 22:20:39 UTC 2023\n"
        "GCC version:  gcc version 11.3.0\n",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  535.54.03  Release Build\n",
        "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  535.54.03  Release Build\n",
    ],
)
def test_the_kernel_module_s_version_is_read_from_its_forms(text: str) -> None:
    """The three forms that drivers write, with one version put into each."""
    facts = replace(UNREAD, kernel_module=text)
    found = only(list(driver_checks.kernel_module(facts)))
    assert found.text == "NVIDIA 535.54.03, but the library is 595.45.04"
    assert fix_of(found).startswith("reboot, or stop all users of the GPUs and reload it")
    inside = only(list(driver_checks.kernel_module(replace(facts, container=DOCKER))))
    assert fix_of(inside).startswith("restart the container")


def test_a_module_of_the_library_s_version_is_ok_and_one_that_is_missing_to_be_loaded() -> None:
    assert only(list(driver_checks.kernel_module(HEALTHY))).text == "NVIDIA 595.45.04"
    facts = replace(UNREAD, kernel_module=None)
    assert "modprobe nvidia" in fix_of(only(list(driver_checks.kernel_module(facts))))
    facts = replace(HEALTHY, kernel_module="who knows")
    assert only(list(driver_checks.kernel_module(facts))).verdict is Verdict.UNKNOWN


def test_a_library_without_device_nodes_says_how_to_make_them() -> None:
    facts = replace(UNREAD, nodes=())
    assert "nvidia-modprobe" in fix_of(only(list(driver_checks.device_files(facts))))
    inside = replace(facts, container=DOCKER)
    assert "--gpus all" in fix_of(only(list(driver_checks.device_files(inside))))
    asked = replace(facts, container=Container(evidence="x", visible_devices="all"))
    assert "NVIDIA's runtime" in fix_of(only(list(driver_checks.device_files(asked))))


def test_a_missing_control_node_is_named() -> None:
    facts = replace(UNREAD, nodes=(node("/dev/nvidia0"), node("/dev/nvidia1")))
    assert only(list(driver_checks.device_files(facts))).text == "no /dev/nvidiactl"


def test_fewer_nodes_than_gpus_are_a_problem_on_a_host_and_a_choice_in_a_container() -> None:
    facts = replace(HEALTHY, nodes=HEALTHY.nodes[:2])
    assert only(list(driver_checks.device_files(facts))).text == "for 1 of 2 GPUs only"
    inside = only(list(driver_checks.device_files(replace(facts, container=DOCKER))))
    assert inside.verdict is Verdict.OK
    assert "1 GPUs (of 2 in the machine)" in inside.text


def test_a_cgroup_s_denial_is_told_from_a_mode_s() -> None:
    nodes = tuple(replace(each, errno=EPERM) for each in HEALTHY.nodes)
    found = only(list(driver_checks.device_files(replace(UNREAD, nodes=nodes))))
    assert found.text.startswith("the device cgroup denies /dev/nvidiactl, /dev/nvidia0")
    assert "DeviceAllow" in fix_of(found)
    inside = replace(UNREAD, nodes=nodes, container=DOCKER)
    assert "recreate the container" in fix_of(only(list(driver_checks.device_files(inside))))


def test_a_mode_that_keeps_the_user_out_names_the_group_that_lets_him_in() -> None:
    nodes = (
        node("/dev/nvidiactl"),
        node("/dev/nvidia0", EACCES, 0o660, "video"),
        node("/dev/nvidia1", EACCES, 0o600, "root"),
    )
    first, second = driver_checks.device_files(replace(UNREAD, nodes=nodes))
    assert first.text == "/dev/nvidia0: mode 0660 denies access to this user"
    assert fix_of(first) == "usermod -a -G video USER, and log in again"
    assert "NVreg_DeviceFileMode" in fix_of(second)


def test_what_seems_missing_is_no_problem_where_gpus_are_read() -> None:
    """As on WSL, or in a container that sees the files of GPUs that are another's."""
    facts = replace(HEALTHY, kernel_module=None, nodes=())
    found = [*driver_checks.kernel_module(facts), *driver_checks.device_files(facts)]
    assert [each.verdict for each in found] == [Verdict.UNKNOWN, Verdict.UNKNOWN]
    denied = (*HEALTHY.nodes[:2], node("/dev/nvidia1", EPERM))
    facts = replace(HEALTHY, nodes=denied, container=DOCKER)
    assert only(list(driver_checks.device_files(facts))).verdict is Verdict.UNKNOWN
    other = MODULE.replace("595.45.04", "535.54.03")
    facts = replace(HEALTHY, kernel_module=other)
    assert only(list(driver_checks.kernel_module(facts))).verdict is Verdict.UNKNOWN


def test_another_failure_of_a_node_is_unknown_and_named() -> None:
    nodes = (*HEALTHY.nodes[:2], node("/dev/nvidia1", EIO))
    found = only(list(driver_checks.device_files(replace(UNREAD, nodes=nodes))))
    assert (found.verdict, found.text) == (Verdict.UNKNOWN, "/dev/nvidia1 can't be used: EIO")


def test_many_nodes_are_counted_not_listed() -> None:
    nodes = [node("/dev/nvidiactl"), *(node(f"/dev/nvidia{i}", EPERM) for i in range(8))]
    facts = replace(HEALTHY, nodes=tuple(nodes), hardware=Hardware(nvidia_count=8))
    assert "/dev/nvidia3 and 4 more" in only(list(driver_checks.device_files(facts))).text


def test_a_mig_part_without_its_file_is_named() -> None:
    mig = (
        MigInstance(name="gpu0/mig/gi1", node=node("/dev/nvidia-caps/nvidia-cap3", mode=0o444)),
        MigInstance(name="gpu0/mig/gi2", node=None),
        MigInstance(name="gpu0/mig/gi3", node=node("/dev/nvidia-caps/nvidia-cap9", EPERM)),
    )
    found = only(list(driver_checks.mig(replace(HEALTHY, mig=mig, container=DOCKER))))
    assert "gpu0/mig/gi2, gpu0/mig/gi3" in found.text
    assert "/dev/nvidia-caps" in fix_of(found)
    assert only(list(driver_checks.mig(replace(HEALTHY, mig=mig[:1])))).verdict is Verdict.OK
    assert list(driver_checks.mig(HEALTHY)) == []


def test_a_driver_that_hangs_is_not_to_be_killed() -> None:
    driver = DriverProbe(backend="auto", library=LIBRARY, hung_s=20.0, hung_pid=4711)
    found = only(list(driver_checks.gpus(replace(HEALTHY, driver=driver))))
    assert found.text == "the driver gave no answer in 20 s; process 4711 still hangs in it"
    assert "no kill -9" in fix_of(found)


def test_a_process_that_is_left_after_its_answer_stands_beside_the_gpus() -> None:
    left, rest = driver_checks.gpus(replace(HEALTHY, driver=replace(PROBE, hung_pid=4711)))
    assert left.text == "process 4711 hangs in a driver call that does not return"
    assert "no kill -9" in fix_of(left)
    assert rest.verdict is Verdict.OK


def test_looks_that_still_hang_are_named() -> None:
    facts = replace(HEALTHY, driver=DriverProbe(backend="auto", stuck_pids=(7, 8)))
    found = only(list(driver_checks.gpus(facts)))
    assert found.verdict is Verdict.PROBLEM
    assert found.text == "not read: processes 7, 8 of earlier probes still hang in the driver"
    assert "no kill -9" in fix_of(found)
    assert only(list(driver_checks.library(facts))).verdict is Verdict.UNKNOWN


def test_a_gpu_that_does_not_answer_stands_beside_those_that_do() -> None:
    found = inventory(entry(0), entry(1, error="GPU is lost"))
    facts = replace(HEALTHY, driver=replace(PROBE, inventory=found))
    lost, rest = driver_checks.gpus(facts)
    assert (lost.verdict, lost.text) == (Verdict.PROBLEM, "GPU 1: GPU is lost")
    assert rest.text == "1 read by nvml, driver 595.45.04"


def test_gpus_of_the_bus_that_the_driver_does_not_list_are_missed() -> None:
    facts = replace(HEALTHY, hardware=Hardware(nvidia_count=8))
    assert only(list(driver_checks.gpus(facts))).text == "2 of 8 NVIDIA GPUs answer"
    inside = replace(facts, container=DOCKER)
    assert only(list(driver_checks.gpus(inside))).verdict is Verdict.OK


def test_parts_of_a_card_are_not_taken_for_gpus() -> None:
    part = entry(0)
    info = msgspec.structs.replace(part.info, gpu="0.1", uuid="MIG-1", parent="0")
    part = msgspec.structs.replace(part, info=info)
    facts = replace(HEALTHY, driver=replace(PROBE, inventory=inventory(entry(0), part)))
    assert only(list(driver_checks.gpus(facts))).text == "1 of 2 NVIDIA GPUs answer"
    whole = inventory(entry(0), entry(1), part)
    facts = replace(HEALTHY, driver=replace(PROBE, inventory=whole))
    assert only(list(driver_checks.gpus(facts))).text == (
        "3 read by nvml, driver 595.45.04, 1 of them parts of others"
    )


def test_without_a_word_from_the_process_that_is_said() -> None:
    facts = replace(HEALTHY, driver=DriverProbe(backend="auto"))
    assert "ended without an answer" in only(list(driver_checks.gpus(facts))).text


def test_a_missing_binding_is_a_problem_where_a_gpu_waits_for_it() -> None:
    facts = replace(HEALTHY, binding=False)
    assert fix_of(only(list(driver_checks.binding(facts)))) == "pip install 'chopperd[nvidia]'"

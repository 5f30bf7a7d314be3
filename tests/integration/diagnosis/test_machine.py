"""Facts from a machine's file tree, written under a folder as Linux and NVIDIA's driver do."""

import os
import socket
import subprocess
import sys
from errno import EACCES, EPERM
from pathlib import Path

import pytest

from chopperd.diagnosis.facts import Container, Hardware
from chopperd.diagnosis.machine import Machine, access_errno, is_synchronised
from chopperd.model.devices import ProcessView


def write(root: Path, path: str, text: str = "") -> Path:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def pci(root: Path, slot: str, vendor: str, kind: str) -> None:
    write(root, f"sys/bus/pci/devices/{slot}/vendor", f"{vendor}\n")
    write(root, f"sys/bus/pci/devices/{slot}/class", f"{kind}\n")


def test_an_empty_tree_is_all_unknown(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    assert machine.hardware() == Hardware()
    assert machine.kernel_module() is None
    assert machine.clock_source() is None
    assert machine.container() == Container()
    assert (machine.nodes(), machine.mig(), machine.processes()) == ((), (), ())
    assert machine.kineto() == (False, None)


def test_gpus_are_counted_by_maker_and_other_devices_of_theirs_are_not(tmp_path: Path) -> None:
    pci(tmp_path, "0000:10:00.0", "0x10de", "0x030200")  # 3D controller
    pci(tmp_path, "0000:11:00.0", "0x10de", "0x030000")  # display
    pci(tmp_path, "0000:11:00.1", "0x10de", "0x040300")  # its audio
    pci(tmp_path, "0000:12:00.0", "0x10de", "0x068000")  # NVSwitch
    pci(tmp_path, "0000:20:00.0", "0x1002", "0x120000")  # processing accelerator
    pci(tmp_path, "0000:21:00.0", "0x8086", "0x030000")
    assert Machine(tmp_path).hardware() == Hardware(nvidia_count=2, amd_count=1)


def test_device_files_come_with_what_keeps_this_user_out(tmp_path: Path) -> None:
    for name in ("nvidiactl", "nvidia0", "nvidia1", "nvidia-uvm", "kfd", "dri/renderD128"):
        write(tmp_path, f"dev/{name}").chmod(0o660)
    denied = {"nvidia1": EPERM, "kfd": EACCES}
    nodes = Machine(tmp_path, lambda path: denied.get(path.name, 0)).nodes()
    assert [(node.path, node.errno) for node in nodes] == [
        ("/dev/nvidiactl", 0),
        ("/dev/nvidia0", 0),
        ("/dev/nvidia1", EPERM),
        ("/dev/kfd", EACCES),
        ("/dev/dri/renderD128", 0),
    ]
    assert {node.mode for node in nodes} == {0o660}
    assert all(node.group for node in nodes)


def test_access_is_the_kernel_s_answer(tmp_path: Path) -> None:
    assert access_errno(write(tmp_path, "there")) == 0
    assert access_errno(tmp_path / "nowhere") == 2  # ENOENT


def test_mig_parts_are_found_with_their_files(tmp_path: Path) -> None:
    """As NVIDIA's module writes them; minor 5 has no file under /dev."""
    parts = "proc/driver/nvidia/capabilities/gpu0/mig"
    access = "DeviceFileMinor: {}\nDeviceFileMode: 292\nDeviceFileModify: 1\n"
    write(tmp_path, f"{parts}/gi1/access", access.format(3))
    write(tmp_path, f"{parts}/gi1/ci0/access", access.format(4))
    write(tmp_path, f"{parts}/gi2/access", access.format(5))
    write(tmp_path, "dev/nvidia-caps/nvidia-cap3")
    write(tmp_path, "dev/nvidia-caps/nvidia-cap4")
    found = Machine(tmp_path, lambda path: EPERM if path.name == "nvidia-cap4" else 0).mig()
    assert [(each.name, each.node and each.node.errno) for each in found] == [
        ("gpu0/mig/gi1", 0),
        ("gpu0/mig/gi2", None),
        ("gpu0/mig/gi1/ci0", EPERM),
    ]


def test_a_part_s_file_that_may_be_read_only_is_open(tmp_path: Path) -> None:
    parts = "proc/driver/nvidia/capabilities/gpu0/mig"
    write(tmp_path, f"{parts}/gi1/access", "DeviceFileMinor: 3\n")
    write(tmp_path, "dev/nvidia-caps/nvidia-cap3").chmod(0o444)
    (found,) = Machine(tmp_path, lambda _: EACCES).mig()
    assert found.node is not None
    assert found.node.errno == 0


@pytest.mark.parametrize(
    ("path", "text", "evidence"),
    [
        (".dockerenv", "", "/.dockerenv"),
        ("run/.containerenv", "", "/run/.containerenv"),
        ("run/systemd/container", "systemd-nspawn\n", "systemd-nspawn"),
        ("proc/self/cgroup", "0::/kubepods.slice/kubepods-pod7.slice\n", "kubepods"),
        ("proc/self/cgroup", "0::/system.slice/chopperd.service\n", None),
    ],
)
def test_a_container_is_told_from_a_host(
    path: str, text: str, evidence: str | None, tmp_path: Path
) -> None:
    write(tmp_path, path, text)
    write(tmp_path, "proc/self/environ", "A=1\0NVIDIA_VISIBLE_DEVICES=0,1\0broken\0")
    assert Machine(tmp_path).container() == Container(evidence=evidence, visible_devices="0,1")


def test_processes_go_by_name_program_and_script(tmp_path: Path) -> None:
    write(tmp_path, "proc/12/comm", "nvidia_gpu_expo\n")
    write(tmp_path, "proc/12/cmdline", "/usr/bin/nvidia_gpu_exporter\0--web\0")
    write(tmp_path, "proc/7/comm", "python3\n")
    write(tmp_path, "proc/7/cmdline", "/usr/bin/python3\0-u\0/opt/bin/omnistat-monitor\0--x\0")
    write(tmp_path, "proc/3/comm", "kthreadd\n")
    write(tmp_path, "proc/3/cmdline", "")
    found = {process.pid: process.names for process in Machine(tmp_path).processes()}
    assert found == {
        3: {"kthreadd"},
        7: {"python3", "omnistat-monitor"},
        12: {"nvidia_gpu_expo", "nvidia_gpu_exporter"},
    }


@pytest.mark.parametrize(
    ("first", "is_host"), [("systemd", True), ("init", True), ("bash", False), ("pause", False)]
)
def test_a_container_s_own_processes_are_told_from_the_machine_s(
    first: str, is_host: bool, tmp_path: Path
) -> None:
    write(tmp_path, "proc/1/comm", f"{first}\n")
    assert Machine(tmp_path).sees_host() is is_host


@pytest.mark.parametrize("written", ["@dynolog", "@dynolog@"])
def test_the_kineto_socket_and_who_holds_it(written: str, tmp_path: Path) -> None:
    head = "Num       RefCount Protocol Flags    Type St Inode Path\n"
    row = f"0000000000000000: 00000002 00000000 00000000 0002 01 4711 {written}\n"
    other = "0000000000000000: 00000002 00000000 00000000 0002 01 815 @dynologx\n"
    write(tmp_path, "proc/net/unix", head + other)
    assert Machine(tmp_path).kineto() == (False, None)
    write(tmp_path, "proc/net/unix", head + other + row)
    assert Machine(tmp_path).kineto() == (True, None)
    write(tmp_path, "proc/12/comm", "dynolog\n")
    (tmp_path / "proc/12/fd").mkdir()
    (tmp_path / "proc/12/fd/3").symlink_to("socket:[4711]")
    assert Machine(tmp_path).kineto() == (True, "pid 12 (dynolog)")


def test_this_machine_s_own_kineto_socket_is_seen() -> None:
    machine = Machine()
    if machine.kineto()[0]:
        pytest.skip("a Kineto daemon runs here")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as held:
        held.bind(b"\0dynolog\0")
        taken, holder = machine.kineto()
        assert taken
        assert holder is not None
    assert machine.kineto() == (False, None)


def test_the_kernel_says_whether_its_time_is_kept_or_nothing() -> None:
    assert is_synchronised() in {True, False, None}


def test_a_kernel_module_s_and_a_clock_source_s_text_are_given(tmp_path: Path) -> None:
    write(tmp_path, "proc/driver/nvidia/version", "NVRM version: x\n")
    write(tmp_path, "sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc\n")
    assert Machine(tmp_path).kernel_module() == "NVRM version: x\n"
    assert Machine(tmp_path).clock_source() == "tsc"


def test_what_is_seen_of_listed_processes_is_found_out_by_looking(tmp_path: Path) -> None:
    write(tmp_path, "proc/7/stat", "7 (x) S")
    write(tmp_path, "proc/7/environ", "A=1\0")
    write(tmp_path, "proc/8/stat", "8 (y) S")
    machine = Machine(tmp_path)
    assert machine.process_view({7, 9}) == ProcessView(
        listed_count=2, seen_count=1, environments=True
    )
    assert machine.process_view({7, 8}).environments is False
    assert machine.process_view(None) == ProcessView()
    write(tmp_path, "proc/1/environ", "A=1\0")
    assert machine.process_view(set()) == ProcessView(listed_count=0, environments=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="a pid namespace takes root")
def test_a_pid_namespace_of_its_own_is_told_by_the_kernel() -> None:
    code = "from chopperd.diagnosis.machine import Machine; print(Machine().process_view(None))"
    inside = ("unshare", "-p", "-f", "--mount-proc", sys.executable, "-c", code)
    found = subprocess.run(inside, capture_output=True, text=True, check=True).stdout
    assert "own_namespace=True" in found
    here = Machine().process_view([os.getpid()])
    assert (here.seen_count, here.environments) == (1, True)

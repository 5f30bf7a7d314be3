"""Collect facts about the machine from its file tree, without any call to a driver."""

import ctypes
import errno
import os
import re
from collections.abc import Callable, Collection
from grp import getgrgid
from pathlib import Path
from typing import Final, TypeAlias

from chopperd.api.access import program_name
from chopperd.devices.amd.identity import text_in
from chopperd.devices.amd.kernel.cards import Card, cards
from chopperd.diagnosis.facts import (
    Amd,
    AmdCard,
    Container,
    DeviceNode,
    Hardware,
    MigInstance,
    Process,
)
from chopperd.model.devices import ProcessView

Access: TypeAlias = Callable[[Path], int]

#: Device files that reading GPUs needs: not `nvidia-uvm` and `nvidia-modeset`.
_NODES: Final = ("dev/nvidiactl", "dev/nvidia[0-9]*", "dev/kfd", "dev/dri/renderD*")
_NVIDIA: Final = "0x10de"
_AMD: Final = "0x1002"
#: Display controllers and processing accelerators. Source: PCI code and ID assignment.
_GPU_CLASSES: Final = ("0x0300", "0x0302", "0x0380", "0x1200")
_MIG_INSTANCES: Final = ("gpu*/mig/gi*/access", "gpu*/mig/gi*/ci*/access")
_MINOR: Final = re.compile(r"^DeviceFileMinor:\s*(\d+)", re.MULTILINE)
_CONTAINER_MARKS: Final = (".dockerenv", "run/.containerenv", "run/secrets/kubernetes.io")
_CONTAINER_GROUP: Final = re.compile(r"docker|kubepods|containerd|libpod|/lxc")
#: The abstract name in `/proc/net/unix`, with and without its final NUL.
_KINETO_NAMES: Final = frozenset({"@dynolog", "@dynolog@"})
_INTERPRETER: Final = re.compile(r"python[\d.]*|bash|sh")
_FIRST_PROCESSES: Final = frozenset({"systemd", "init"})
_TIME_ERROR: Final = 5
#: The file number of the machine's first pid namespace. Source: PROC_PID_INIT_INO of proc_ns.h.
_FIRST_PID_NAMESPACE: Final = 0xEFFFFFFC


def access_errno(path: Path) -> int:
    """Return the error number if this user may not read and write a file; 0 if allowed.

    Source: access(2): EPERM (device cgroup) or EACCES (mode), which `os.access` doesn't return.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    denied = libc.access(os.fsencode(path), os.R_OK | os.W_OK)
    return ctypes.get_errno() if denied else 0


class Machine:
    """Reads facts from the file tree at `root`; `access` returns the error of using a file."""

    def __init__(self, root: Path = Path("/"), access: Access = access_errno) -> None:
        self._root = root
        self._proc = root / "proc"
        self._access = access

    def kernel_module(self) -> str | None:
        """Return the text of NVIDIA's kernel module's version file; None if there is none."""
        return _text(self._proc / "driver/nvidia/version")

    def clock_source(self) -> str | None:
        """Return the name of the kernel's clock source ("tsc"); None if unknown."""
        folder = self._root / "sys/devices/system/clocksource/clocksource0"
        return text_in(folder / "current_clocksource")

    def hardware(self) -> Hardware:
        """Count the GPUs on the PCI bus."""
        bus = self._root / "sys/bus/pci/devices"
        try:
            found = [_vendor(device) for device in bus.iterdir()]
        except OSError:
            return Hardware()
        return Hardware(nvidia_count=found.count(_NVIDIA), amd_count=found.count(_AMD))

    def nodes(self) -> tuple[DeviceNode, ...]:
        """Return the device files of GPUs, sorted by name in each kind."""
        paths = [path for pattern in _NODES for path in sorted(self._root.glob(pattern))]
        return tuple(node for path in paths if (node := self._node(path)) is not None)

    def mig(self) -> tuple[MigInstance, ...]:
        """Return the GPU and compute instances of MIG that the driver has files for."""
        folder = self._proc / "driver/nvidia/capabilities"
        files = [path for pattern in _MIG_INSTANCES for path in sorted(folder.glob(pattern))]
        return tuple(
            MigInstance(name=str(file.parent.relative_to(folder)), node=self._capability(file))
            for file in files
        )

    def container(self) -> Container:
        """Return signs of a container, and NVIDIA's variables in this process's environment."""
        entries = (_text(self._proc / "self/environ") or "").split("\0")
        variables = dict(entry.split("=", 1) for entry in entries if "=" in entry)
        return Container(
            evidence=self._container_evidence(),
            visible_devices=variables.get("NVIDIA_VISIBLE_DEVICES"),
            driver_capabilities=variables.get("NVIDIA_DRIVER_CAPABILITIES"),
        )

    def processes(self) -> tuple[Process, ...]:
        """Return all visible processes, by rising pid."""
        folders = sorted(self._proc.glob("[0-9]*"), key=lambda folder: int(folder.name))
        return tuple(Process(pid=int(each.name), names=_process_names(each)) for each in folders)

    def sees_host(self) -> bool:
        """Whether the machine's first process is visible: in most containers it is not."""
        return text_in(self._proc / "1/comm") in _FIRST_PROCESSES

    def process_view(self, listed: Collection[int] | None) -> ProcessView:
        """Return how far the processes a driver lists are visible; `listed` None: it lists none.

        If none is visible, access to the environment of process 1 is tested instead of theirs.
        """
        seen = [pid for pid in listed or () if (self._proc / str(pid) / "stat").exists()]
        try:
            namespace = (self._proc / "self/ns/pid").stat().st_ino
        except OSError:
            namespace = None
        return ProcessView(
            listed_count=None if listed is None else len(listed),
            seen_count=len(seen),
            environments=all(_text(self._proc / str(pid) / "environ") for pid in seen or (1,)),
            own_namespace=None if namespace is None else namespace != _FIRST_PID_NAMESPACE,
        )

    def kineto(self) -> tuple[bool, str | None]:
        """Return whether Kineto's abstract socket is in use, and by which process, if visible."""
        table = _text(self._proc / "net/unix") or ""
        columns = [line.split() for line in table.splitlines()[1:]]
        inodes = [int(cells[6]) for cells in columns if cells[7:8] and cells[7] in _KINETO_NAMES]
        return bool(inodes), _holder_of(inodes, self._proc)

    def _node(self, path: Path) -> DeviceNode | None:
        try:
            status = path.stat()
        except OSError:
            return None
        return DeviceNode(
            path=f"/{path.relative_to(self._root)}",
            mode=status.st_mode & 0o777,
            group=_group(status.st_gid),
            errno=self._access(path),
        )

    def _capability(self, file: Path) -> DeviceNode | None:
        minor = _MINOR.search(_text(file) or "")
        if minor is None:
            return None
        path = self._root / f"dev/nvidia-caps/nvidia-cap{minor[1]}"
        node = self._node(path)
        # Capabilities are opened for reading only.
        is_readable = node is not None and node.errno == errno.EACCES and os.access(path, os.R_OK)
        if node is None or not is_readable:
            return node
        return DeviceNode(path=node.path, mode=node.mode, group=node.group)

    def _container_evidence(self) -> str | None:
        for mark in _CONTAINER_MARKS:
            if (self._root / mark).exists():
                return f"/{mark}"
        manager = text_in(self._root / "run/systemd/container")
        if manager:
            return manager
        group = _CONTAINER_GROUP.search(_text(self._proc / "self/cgroup") or "")
        return group[0].strip("/") if group else None


def is_synchronised() -> bool | None:
    """Whether the kernel's clock is synchronised (NTP); None if the kernel does not answer.

    Source: adjtimex(2) in its reading mode: TIME_ERROR (5) is "not synchronised".
    """
    timex = ctypes.create_string_buffer(512)  # struct timex, 208 bytes, zeroed: read only
    state = ctypes.CDLL(None, use_errno=True).adjtimex(timex)
    return None if state < 0 else state != _TIME_ERROR


def _text(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return None


def _vendor(device: Path) -> str | None:
    """Return the vendor id of a PCI device; None if it is not a GPU."""
    kind = _text(device / "class") or ""
    return text_in(device / "vendor") if kind.startswith(_GPU_CLASSES) else None


def _group(gid: int) -> str:
    try:
        return getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def _process_names(folder: Path) -> frozenset[str]:
    """Return the names of a process: its own, its program's, and its script's if interpreted."""
    name = text_in(folder / "comm") or ""
    program, *others = (_text(folder / "cmdline") or "").split("\0")
    names = {name, program.rpartition("/")[2]}
    if _INTERPRETER.fullmatch(program.rpartition("/")[2]):
        script = next((each for each in others if each and not each.startswith("-")), "")
        names.add(script.rpartition("/")[2])
    return frozenset(names - {""})


def _holder_of(inodes: Collection[int], proc: Path) -> str | None:
    """Find a process with one of the sockets open: "pid 12 (name)"; None if none is visible."""
    links = {f"socket:[{inode}]" for inode in inodes}
    for process in proc.glob("[0-9]*") if links else ():
        try:
            is_holder = any(str(each.readlink()) in links for each in (process / "fd").iterdir())
        except OSError:  # another user's, or it has ended
            continue
        if is_holder:
            return f"pid {process.name} ({program_name(int(process.name), proc)})"
    return None


#: Virtual functions of MI210, MI300X, MI308X, MI325X, MI350X and MI355X.
#: Source: the rule `amd-vgpu` of AMD's GPU operator.
_VIRTUAL_DEVICES: Final = frozenset(
    {0x7410, 0x74B5, 0x74B6, 0x74B9, 0x74BC, 0x74BD, 0x75B0, 0x75B3}
)


def amd_of(root: Path) -> Amd:
    """Collect facts about AMD's driver from the file tree, without opening files that ask a GPU."""
    module = root / "sys/module/amdgpu"
    return Amd(
        is_loaded=module.is_dir(),
        module_version=text_in(module / "version"),
        kernel=text_in(root / "proc/sys/kernel/osrelease"),
        cards=tuple(_card(each) for each in cards(root / "sys")),
    )


def _card(found: Card) -> AmdCard:
    return AmdCard(
        pci_bus_id=found.pci_bus_id,
        compute_mode=text_in(found.folder / "current_compute_partition"),
        memory_mode=text_in(found.folder / "current_memory_partition"),
        parts_count=max(len(found.nodes), 1),
        is_virtual=found.device_id in _VIRTUAL_DEVICES or (found.folder / "physfn").exists(),
    )

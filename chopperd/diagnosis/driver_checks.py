"""Checks of NVIDIA's GPUs: hardware, library, kernel module, device files, MIG, reads."""

import errno
import re
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath
from typing import Final

from chopperd.diagnosis.facts import DeviceNode, Facts, Finding, ok, problem, unknown
from chopperd.model.devices import Inventory

_GROUP_READ_WRITE: Final = 0o060
_MOST_NAMED: Final = 4


def refusals(
    check: str, facts: Facts, nodes: Iterable[DeviceNode], *, is_needed: bool, open_by: str
) -> Iterator[Finding]:
    """Yield a finding for each group of files that this user may not open for the same reason.

    `is_needed`: GPUs can't be read without them; `open_by`: the fix for files that their group may
    not use either.
    """
    groups: dict[tuple[int, str, int], list[DeviceNode]] = {}
    for node in nodes:
        groups.setdefault((node.errno, node.group, node.mode), []).append(node)
    for group in groups.values():
        text, fix = _refusal(facts, group[0], named([node.path for node in group]), open_by)
        if fix is None or not is_needed:
            yield unknown(check, text, fix)
        else:
            yield problem(check, text, fix)


def named(names: list[str]) -> str:
    """Join the names, or the first few and the number of the rest."""
    more = len(names) - _MOST_NAMED
    shown = ", ".join(names[:_MOST_NAMED])
    return f"{shown} and {more} more" if more > 0 else shown


def _refusal(facts: Facts, node: DeviceNode, paths: str, open_by: str) -> tuple[str, str | None]:
    """Return why the user may not open the files, and the fix."""
    if node.errno == errno.EPERM:
        fix = "DeviceAllow=char-* rw in its unit"
        if facts.container.evidence is not None:
            fix = "recreate the container (a daemon-reload takes its GPUs away), or --device them"
        return f"the device cgroup denies {paths}", fix
    if node.errno != errno.EACCES:
        return f"{paths} can't be used: {errno.errorcode.get(node.errno, str(node.errno))}", None
    is_group_s = node.mode & _GROUP_READ_WRITE == _GROUP_READ_WRITE
    fix = f"usermod -a -G {node.group} USER, and log in again" if is_group_s else open_by
    return f"{paths}: mode {node.mode:04o} denies access to this user", fix


_GPU_NODE: Final = re.compile(r"/dev/nvidia\d+")
_CONTROL_NODE: Final = "/dev/nvidiactl"
#: "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54.03  ...", and since the open modules
#: "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  595.45.04  ...".
_MODULE_VERSION: Final = re.compile(r"Kernel Module\D*?(?: for \S+)?\s+(\d+(?:\.\d+)+)")
_LIBRARY_VERSION: Final = re.compile(r"\.so\.(\d+(?:\.\d+)+)$")
_OPEN_BY: Final = "NVreg_DeviceFileMode=0666 for the module nvidia (modprobe.d)"
_HANG_FIX: Final = "see dmesg (Xid, amdgpu); reset the GPU or reboot; no kill -9"


def hardware(facts: Facts) -> Iterator[Finding]:
    """Check whether there is a GPU at all."""
    check, counts = "GPU hardware", facts.hardware
    found = [
        f"{count} {maker}"
        for maker, count in (("NVIDIA", counts.nvidia_count), ("AMD", counts.amd_count))
        if count
    ]
    if found:
        yield ok(check, f"{' and '.join(found)} on the PCI bus")
    elif facts.driver.inventory is not None:
        yield ok(check, "none on the PCI bus, but the back end reads GPUs")
    elif counts.nvidia_count is None:
        yield unknown(check, "the PCI bus can't be read from here")
    else:
        text = "no NVIDIA or AMD GPU on the PCI bus"
        yield problem(check, text, "run on a node that has one; `--backend simulated` needs none")


def binding(facts: Facts) -> Iterator[Finding]:
    """Check whether the Python binding of NVML is installed."""
    if facts.binding:
        yield ok("NVML binding", "installed")
    elif _has_nvidia(facts):
        yield problem("NVML binding", "not installed", "pip install 'chopperd[nvidia]'")


def library(facts: Facts) -> Iterator[Finding]:
    """Check whether NVIDIA's library loads, and from which file."""
    check, loaded = "driver library", facts.driver.library
    if loaded is None and facts.driver.stuck_pids:
        yield unknown(check, "not loaded: earlier probes still hang in the driver")
    elif loaded is None:
        yield unknown(check, "the process that loads it ended before it did")
    elif loaded.path is not None and "/stubs/" in loaded.path:
        fix = "remove CUDA's folder `stubs` from LD_LIBRARY_PATH"
        yield problem(check, f"{loaded.path} is the toolkit's stub, which reads no GPU", fix)
    elif loaded.path is not None:
        yield ok(check, loaded.path)
    elif _has_nvidia(facts):
        fix = _library_fix(facts)
        yield problem(check, f"{loaded.name} does not load: {loaded.error}", fix)


def _library_fix(facts: Facts) -> str:
    if facts.container.evidence is None:
        return "install the driver's user-space libraries in the kernel module's version"
    given = facts.container.driver_capabilities
    if given is not None and not {"utility", "all"} & set(given.split(",")):
        return f"start the container with NVIDIA_DRIVER_CAPABILITIES={given},utility"
    return (
        "start the container with NVIDIA's runtime (`--gpus all`, runtimeClassName: nvidia) and "
        "NVIDIA_DRIVER_CAPABILITIES=utility"
    )


def kernel_module(facts: Facts) -> Iterator[Finding]:
    """Check whether NVIDIA's kernel module is loaded and has the library's version."""
    check = "kernel module"
    if not _has_nvidia(facts):
        return
    if facts.kernel_module is None:
        yield _unloaded(check, facts)
        return
    version = _version(_MODULE_VERSION, facts.kernel_module)
    loaded = facts.driver.library
    of_library = _version(_LIBRARY_VERSION, (loaded.path if loaded else None) or "")
    if version is None:
        yield unknown(check, "loaded; its version can't be read")
    elif of_library is None or of_library == version:
        yield ok(check, f"NVIDIA {version}")
    else:
        yield _mismatch(check, facts, f"NVIDIA {version}, but the library is {of_library}")


def _unloaded(check: str, facts: Facts) -> Finding:
    if _is_read(facts):
        return unknown(check, "no /proc/driver/nvidia/version, yet the GPUs are read")
    fix = "modprobe nvidia; if that fails, dmesg says why (nouveau, Secure Boot, headers)"
    return problem(check, "NVIDIA's is not loaded: no /proc/driver/nvidia/version", fix)


def _mismatch(check: str, facts: Facts, text: str) -> Finding:
    if _is_read(facts):
        return unknown(check, f"{text}, yet the GPUs are read")
    fix = "reboot, or stop all users of the GPUs and reload it (modprobe -r nvidia_uvm nvidia)"
    if facts.container.evidence is not None:
        fix = "restart the container: the driver was replaced under it; else reboot the node"
    return problem(check, text, fix)


def device_files(facts: Facts) -> Iterator[Finding]:
    """Check whether NVIDIA's device files exist and this user may open them."""
    check = "device files"
    if not _has_nvidia(facts):
        return
    nodes = [node for node in facts.nodes if node.path.startswith("/dev/nvidia")]
    gpus = [node for node in nodes if _GPU_NODE.fullmatch(node.path)]
    if not gpus or all(node.path != _CONTROL_NODE for node in nodes):
        yield _missing(check, facts, _CONTROL_NODE if gpus else "/dev/nvidia0 or another GPU's")
        return
    refused = [node for node in nodes if node.errno]
    yield from refusals(check, facts, refused, is_needed=not _is_read(facts), open_by=_OPEN_BY)
    expected = facts.hardware.nvidia_count
    is_short = expected is not None and len(gpus) < expected
    if is_short and facts.container.evidence is None:
        text = f"for {len(gpus)} of {expected} GPUs only"
        yield problem(check, text, "nvidia-modprobe -c N for each missing file; see dmesg")
    elif not refused:
        part = f" (of {expected} in the machine)" if is_short else ""
        yield ok(check, f"{_CONTROL_NODE} and {len(gpus)} GPUs{part}, open to this user")


def mig(facts: Facts) -> Iterator[Finding]:
    """Check whether this user may open the files of MIG instances; no finding without MIG."""
    if not facts.mig:
        return
    check = "MIG"
    closed = [each.name for each in facts.mig if each.node is None or each.node.errno]
    if not closed:
        yield ok(check, f"{len(facts.mig)} instances, open to this user")
        return
    fix = "nvidia-modprobe -f makes their files"
    if facts.container.evidence is not None:
        fix = "give the container their files under /dev/nvidia-caps"
    yield problem(check, f"no access to {named(closed)}: their memory is not known", fix)


def gpus(facts: Facts) -> Iterator[Finding]:
    """Check whether the GPUs can be read."""
    check, probe = "GPUs", facts.driver
    if probe.stuck_pids:
        pids = named([str(pid) for pid in probe.stuck_pids])
        text = f"not read: processes {pids} of earlier probes still hang in the driver"
        yield problem(check, text, _HANG_FIX)
        return
    if probe.hung_s is not None:
        left = "" if probe.hung_pid is None else f"; process {probe.hung_pid} still hangs in it"
        text = f"the driver gave no answer in {probe.hung_s:g} s{left}"
        yield problem(check, text, _HANG_FIX)
        return
    if probe.inventory is None:
        text = probe.error or "the process that reads them ended without an answer"
        yield problem(check, text, "see the other lines; `chopperd devices` tries again")
        return
    if probe.hung_pid is not None:
        text = f"process {probe.hung_pid} hangs in a driver call that does not return"
        yield problem(check, text, _HANG_FIX)
    yield from _read(check, facts, probe.inventory)


def _read(check: str, facts: Facts, found: Inventory) -> Iterator[Finding]:
    failed = [entry.failure for entry in found.gpus if entry.failure]
    yield from (problem(check, each, "see dmesg (Xid); reset the GPU") for each in failed)
    whole = sum(entry.info.parent is None for entry in found.gpus)
    expected = facts.hardware.nvidia_count or 0
    # A container may be given some of them only.
    if found.backend == "nvml" and whole < expected and facts.container.evidence is None:
        text = f"{whole} of {expected} NVIDIA GPUs answer"
        yield problem(check, text, "see dmesg for the others (Xid, fallen off the bus)")
    elif len(failed) < len(found.gpus):
        mark = "SIMULATED, " if found.simulated else ""
        version = f", driver {found.driver}" if found.driver else ""
        parts = len(found.gpus) - whole
        with_parts = f", {parts} of them parts of others" if parts else ""
        read = len(found.gpus) - len(failed)
        yield ok(check, f"{mark}{read} read by {found.backend}{version}{with_parts}")
    if found.chosen is not None:
        yield ok("back end", found.chosen)


def _has_nvidia(facts: Facts) -> bool:
    """Whether anything on this machine indicates an NVIDIA GPU."""
    loaded = facts.driver.library
    return bool(
        facts.hardware.nvidia_count
        or facts.kernel_module is not None
        or any(node.path.startswith("/dev/nvidia") for node in facts.nodes)
        or (loaded and loaded.path)
    )


def _is_read(facts: Facts) -> bool:
    """Whether any GPU is read through NVML, so that missing parts are not needed."""
    found = facts.driver.inventory
    return (
        found is not None
        and found.backend == "nvml"
        and any(entry.error is None for entry in found.gpus)
    )


def _missing(check: str, facts: Facts, path: str) -> Finding:
    if _is_read(facts):
        return unknown(check, f"no {path}, yet the GPUs are read")
    requested = facts.container.visible_devices
    if facts.container.evidence is None:
        fix = "nvidia-modprobe -c 0 makes them; enable nvidia-persistenced to have them at boot"
    elif requested in {None, "", "void", "none"}:
        fix = "start the container with `--gpus all` (NVIDIA_VISIBLE_DEVICES=all)"
    else:
        fix = f"NVIDIA_VISIBLE_DEVICES={requested} gives none: start it with NVIDIA's runtime"
    return problem(check, f"no {path}", fix)


def _version(pattern: re.Pattern[str], text: str) -> str | None:
    found = pattern.search(PurePosixPath(text).name if text.startswith("/") else text)
    return found[1] if found else None

"""Checks of AMD's GPUs: kernel module, files, virtual functions, partitions, AMD SMI."""

from collections.abc import Iterator, Sequence
from typing import Final

from chopperd.diagnosis.driver_checks import named, refusals
from chopperd.diagnosis.facts import (
    AMD_BACKENDS,
    AmdCard,
    AmdSmi,
    DeviceNode,
    Facts,
    Finding,
    ok,
    problem,
    unknown,
)

#: This back end reads the kernel's files; it needs neither device files nor a library.
_BY_FILES: Final = "amdgpu"
_BY_LIBRARY: Final = "amdsmi"
_KFD: Final = "/dev/kfd"
_WHOLE: Final = "SPX"
_OPEN_BY: Final = 'a udev rule: KERNEL=="kfd" and KERNEL=="renderD*", GROUP="render", MODE="0660"'
_UNNEEDED: Final = "not needed: the kernel's files are read"


def kernel_module(facts: Facts) -> Iterator[Finding]:
    """Check whether AMD's kernel module is loaded and runs all GPUs; report its version."""
    check, amd = "AMD kernel module", facts.amd
    if not _has_amd(facts):
        return
    if not amd.is_loaded:
        fix = "modprobe amdgpu; if that fails, dmesg says why (blacklisted, Secure Boot, headers)"
        yield problem(check, "amdgpu is not loaded: no /sys/module/amdgpu", fix)
        return
    version = amd.module_version or f"of Linux {amd.kernel or '(unknown)'}"
    in_machine = facts.hardware.amd_count or 0
    if len(amd.cards) >= in_machine:
        yield ok(check, f"amdgpu {version}")
    else:
        text = f"amdgpu {version} runs {len(amd.cards)} of {in_machine} AMD GPUs"
        yield problem(check, text, "see dmesg; vfio-pci may have them, for virtual machines")


def device_files(facts: Facts) -> Iterator[Finding]:
    """Check whether AMD's device files exist and this user may open them, if they are needed."""
    check = "AMD device files"
    if not _has_amd(facts):
        return
    nodes = [node for node in facts.nodes if node.path.startswith((_KFD, "/dev/dri/"))]
    refused = [node for node in nodes if node.errno]
    if _backend(facts) == _BY_FILES and (refused or not _has_kfd(nodes)):
        state = "closed to this user" if refused else f"no {_KFD}"
        yield ok(check, f"{state}, and {_UNNEEDED}")
    elif not _has_kfd(nodes) and _backend(facts) is not None:
        yield unknown(check, f"no {_KFD}, yet the GPUs are read")
    elif not _has_kfd(nodes):
        fix = "modprobe amdgpu; into a container: --device /dev/kfd --device /dev/dri"
        yield problem(check, f"no {_KFD}", fix)
    elif refused:
        is_needed = _backend(facts) is None
        yield from refusals(check, facts, refused, is_needed=is_needed, open_by=_OPEN_BY)
    else:
        yield ok(check, f"{_KFD} and {len(nodes) - 1} under /dev/dri, open to this user")


def metrics(facts: Facts) -> Iterator[Finding]:
    """Check whether each card's file `gpu_metrics` can be read and has a known version."""
    check, amd = "gpu_metrics", facts.amd
    if not amd.cards or not amd.was_asked:
        return
    versions = sorted({each.version for each in amd.metrics if each.version})
    if versions:
        known = sum(each.version is not None for each in amd.metrics)
        yield ok(check, f"{', '.join(versions)}, of {known} of {len(amd.cards)} cards")
    silent = {card.pci_bus_id for card in amd.cards} - {each.pci_bus_id for each in amd.metrics}
    if silent:
        left = "" if amd.hung_pid is None else f"; process {amd.hung_pid} still hangs in it"
        text = f"no answer from {named(sorted(silent))}{left}"
        yield problem(check, text, "see dmesg (amdgpu); reset the GPU or reboot; no kill -9")
    # A virtual function has none, which is another check's finding.
    virtual = {card.pci_bus_id for card in amd.cards if card.is_virtual}
    errors = [each for each in amd.metrics if each.error and each.pci_bus_id not in virtual]
    for reason in sorted({each.error or "" for each in errors}):
        where = named([each.pci_bus_id for each in errors if each.error == reason])
        if _backend(facts) == _BY_LIBRARY:
            yield unknown(check, f"{where}: {reason}; AMD SMI is read instead")
        else:
            fix = "a newer chopperd may know it; or install AMD SMI: pip install 'chopperd[amd]'"
            yield problem(check, f"{where}: {reason}", fix)


def virtual_functions(facts: Facts) -> Iterator[Finding]:
    """Check whether GPUs are virtual functions (SR-IOV); no finding if none is."""
    found = [card.pci_bus_id for card in facts.amd.cards if card.is_virtual]
    if found:
        text = f"{named(found)}: virtual functions, for which the driver reports little or nothing"
        fix = "run chopperd on the host, where clocks, power and energy are reported"
        yield unknown("SR-IOV", text, fix)


def partitions(facts: Facts) -> Iterator[Finding]:
    """Report how the cards are split into partitions; no finding if they can't be."""
    modes: dict[str, list[AmdCard]] = {}
    for card in facts.amd.cards:
        if card.compute_mode is not None:
            mode = "/".join(filter(None, (card.compute_mode, card.memory_mode)))
            modes.setdefault(mode, []).append(card)
    parts = [f"{mode} on {len(cards)}" for mode, cards in sorted(modes.items())]
    if not parts:
        return
    split = any(each.compute_mode != _WHOLE for cards in modes.values() for each in cards)
    note = ": clock, power and memory are the card's, reported once" if split else ""
    yield ok("partitions", f"{', '.join(parts)}{note}")
    hidden = [
        card.pci_bus_id
        for card in facts.amd.cards
        if card.compute_mode not in {None, _WHOLE} and card.parts_count < 2
    ]
    if hidden:
        text = f"the parts of {named(hidden)} are hidden: its compute nodes can't be read here"
        yield unknown("partitions", text, "give access to /dev/dri/renderD* (device cgroup)")


def amd_smi(facts: Facts) -> Iterator[Finding]:
    """Check whether AMD SMI's binding and library are installed, in matching versions."""
    check, amd = "AMD SMI", facts.amd
    if not amd.was_asked or not _has_amd(facts):
        return
    found, is_unneeded = amd.smi, _backend(facts) == _BY_FILES
    if found is None:
        text = "the process that loads it ended or hung before it did"
        yield unknown(check, f"{text}; {_UNNEEDED}" if is_unneeded else text)
        return
    text, fix = _smi_state(found)
    if is_unneeded:
        yield ok(check, f"{text}; {_UNNEEDED}")
    elif fix is not None:
        yield problem(check, text, fix)
    else:
        yield ok(check, text)


def _smi_state(found: AmdSmi) -> tuple[str, str | None]:
    """Return the versions and None, or what is wrong and the fix."""
    if found.error is not None:
        fix = "install ROCm's amd-smi-lib; if that has no binding, pip install 'chopperd[amd]'"
        return found.error, fix
    versions = (
        f"binding {found.binding or '(no version)'} in {found.folder}, library {found.library}"
    )
    if found.fits is False:
        fix = "set ROCM_PATH to the ROCm whose share/amd_smi belongs to that library"
        return f"{versions}: their versions do not match", fix
    return versions, None


def _has_amd(facts: Facts) -> bool:
    """Whether anything indicates an AMD GPU, or one of AMD's back ends was requested."""
    is_meant = facts.driver.backend in AMD_BACKENDS or _backend(facts) is not None
    return bool(facts.hardware.amd_count or facts.amd.cards or _has_kfd(facts.nodes) or is_meant)


def _has_kfd(nodes: Sequence[DeviceNode]) -> bool:
    return any(node.path == _KFD for node in nodes)


def _backend(facts: Facts) -> str | None:
    """Return the back end by which AMD's GPUs are read; None if none is read."""
    found = facts.driver.inventory
    if found is None or found.backend not in AMD_BACKENDS:
        return None
    return found.backend if any(entry.error is None for entry in found.gpus) else None

"""What stands between us and AMD's GPUs: kernel module, files, virtual functions, AMD SMI."""

from collections.abc import Iterator, Sequence
from typing import Final

from chopperd.diagnosis.driver_checks import named, refusals
from chopperd.diagnosis.facts import AmdCard, AmdSmi, DeviceNode, Facts
from chopperd.diagnosis.findings import Finding, ok, problem, unknown

#: The back end that reads the kernel's files needs neither device file nor library.
_BY_FILES: Final = "amdgpu"
_BY_LIBRARY: Final = "amdsmi"
_AMD_BACKENDS: Final = frozenset({_BY_FILES, _BY_LIBRARY})
_KFD: Final = "/dev/kfd"
_WHOLE: Final = "SPX"
_OPEN_BY: Final = 'a udev rule: KERNEL=="kfd" and KERNEL=="renderD*", GROUP="render", MODE="0660"'
_UNNEEDED: Final = "not needed: the kernel's files are read"


def kernel_module(facts: Facts) -> Iterator[Finding]:
    """Whether AMD's kernel module is loaded, of which version, and whether it runs all GPUs."""
    check, amd = "AMD kernel module", facts.amd
    if not _has_amd(facts):
        return
    if not amd.is_loaded:
        fix = (
            "modprobe amdgpu; where that fails, dmesg says why (blacklisted, Secure Boot, headers)"
        )
        yield problem(check, "amdgpu is not loaded: no /sys/module/amdgpu", fix)
        return
    version = amd.module_version or f"of Linux {amd.kernel or '(unknown)'}"
    in_machine = facts.hardware.amd_count or 0
    if len(amd.cards) >= in_machine:
        yield ok(check, f"amdgpu {version}")
    else:
        text = f"amdgpu {version} runs {len(amd.cards)} of {in_machine} AMD GPUs"
        yield problem(check, text, "see dmesg; or they are vfio-pci's: given to virtual machines")


def device_files(facts: Facts) -> Iterator[Finding]:
    """Whether AMD's device files are there and may be used, where they are needed."""
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
    """Whether each card's file `gpu_metrics` can be read, and is of a version that is known."""
    check, amd = "gpu_metrics", facts.amd
    if not amd.cards or not amd.was_asked:
        return
    versions = sorted({each.version for each in amd.metrics if each.version})
    if versions:
        known = sum(each.version is not None for each in amd.metrics)
        yield ok(check, f"{', '.join(versions)}, of {known} of {len(amd.cards)} cards")
    silent = {card.pci_bus_id for card in amd.cards} - {each.pci_bus_id for each in amd.metrics}
    if silent:
        left = "" if amd.hung_pid is None else f"; process {amd.hung_pid} is left alone in it"
        text = f"no answer from {named(sorted(silent))}{left}"
        yield problem(check, text, "see dmesg (amdgpu); reset the GPU or reboot; no kill -9")
    # A virtual function has none, which is told in its own line.
    virtual = {card.pci_bus_id for card in amd.cards if card.is_virtual}
    errors = [each for each in amd.metrics if each.error and each.pci_bus_id not in virtual]
    for reason in sorted({each.error or "" for each in errors}):
        where = named([each.pci_bus_id for each in errors if each.error == reason])
        yield _unread(check, facts, f"{where}: {reason}")


def _unread(check: str, facts: Facts, text: str) -> Finding:
    if _backend(facts) == _BY_LIBRARY:
        return unknown(check, f"{text}; AMD SMI is asked instead")
    fix = "a newer chopperd may know it; or install AMD SMI: pip install 'chopperd[amd]'"
    return problem(check, text, fix)


def virtual_functions(facts: Facts) -> Iterator[Finding]:
    """Whether what is seen here are virtual functions of GPUs (SR-IOV)."""
    found = [card.pci_bus_id for card in facts.amd.cards if card.is_virtual]
    if found:
        text = f"{named(found)}: virtual functions, of which the driver tells little or nothing"
        yield unknown("SR-IOV", text, "clocks, power and energy are told on the host: run it there")


def partitions(facts: Facts) -> Iterator[Finding]:
    """How cards are split; nothing where none can be."""
    modes: dict[str, list[AmdCard]] = {}
    for card in facts.amd.cards:
        if card.compute_mode is not None:
            mode = "/".join(filter(None, (card.compute_mode, card.memory_mode)))
            modes.setdefault(mode, []).append(card)
    parts = [f"{mode} on {len(cards)}" for mode, cards in sorted(modes.items())]
    if not parts:
        return
    split = any(each.compute_mode != _WHOLE for cards in modes.values() for each in cards)
    note = ": clock, power and memory of a part are its card's, told once" if split else ""
    yield ok("partitions", f"{', '.join(parts)}{note}")
    hidden = [card.pci_bus_id for card in facts.amd.cards if _hides_parts(card)]
    if hidden:
        text = f"the parts of {named(hidden)} can't be seen: its compute nodes can't be read here"
        yield unknown("partitions", text, "let the process at /dev/dri/renderD* (device cgroup)")


def _hides_parts(card: AmdCard) -> bool:
    """Whether a card is split and yet listed whole."""
    return card.compute_mode not in {None, _WHOLE} and card.parts_count < 2


def amd_smi(facts: Facts) -> Iterator[Finding]:
    """Whether AMD SMI's binding and library are there, and of versions that fit."""
    check, amd = "AMD SMI", facts.amd
    if not amd.was_asked or not _has_amd(facts):
        return
    found, is_unneeded = amd.smi, _backend(facts) == _BY_FILES
    if found is None:
        text = "the process that was to load it ended, or hung, before it did"
        yield unknown(check, f"{text}; {_UNNEEDED}" if is_unneeded else text)
        return
    trouble = _smi_trouble(found)
    if trouble is None:
        note = f"; {_UNNEEDED}" if is_unneeded else ""
        yield ok(check, f"{_smi_versions(found)}{note}")
    elif is_unneeded:
        yield ok(check, f"{trouble[0]}; {_UNNEEDED}")
    else:
        yield problem(check, *trouble)


def _smi_trouble(found: AmdSmi) -> tuple[str, str] | None:
    """What is wrong with it, and the fix."""
    if found.error is not None:
        fix = "install ROCm's amd-smi-lib, and pip install 'chopperd[amd]' where it has no binding"
        return found.error, fix
    if found.fits is False:
        fix = "set ROCM_PATH to the ROCm whose share/amd_smi belongs to that library"
        return f"{_smi_versions(found)}: not made for each other", fix
    return None


def _smi_versions(found: AmdSmi) -> str:
    return f"binding {found.binding or '(no version)'} in {found.folder}, library {found.library}"


def _has_amd(facts: Facts) -> bool:
    """Whether anything speaks for an AMD GPU here, or whoever asks does."""
    is_meant = facts.driver.backend in _AMD_BACKENDS or _backend(facts) is not None
    return bool(facts.hardware.amd_count or facts.amd.cards or _has_kfd(facts.nodes) or is_meant)


def _has_kfd(nodes: Sequence[DeviceNode]) -> bool:
    return any(node.path == _KFD for node in nodes)


def _backend(facts: Facts) -> str | None:
    """The back end by which AMD's GPUs are read; None where none is."""
    found = facts.driver.inventory
    if found is None or found.backend not in _AMD_BACKENDS:
        return None
    return found.backend if any(entry.error is None for entry in found.gpus) else None

"""Each finding about AMD's driver, files and AMD SMI, from the facts that make it."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from errno import EACCES, EPERM

import msgspec
import pytest

from chopperd.diagnosis import amd_checks
from chopperd.diagnosis.checks import findings
from chopperd.diagnosis.facts import (
    Amd,
    AmdSmi,
    CardMetrics,
    Container,
    DeviceNode,
    DriverProbe,
    Facts,
    Finding,
    Verdict,
)
from tests.unit.diagnosis.facts import AMD, HEALTHY, SMI, amd_card, amd_node, node, without_gpu

READ_BY = pytest.mark.parametrize("backend", ["amdgpu", "amdsmi"])
AMD_CHECKS = (
    amd_checks.kernel_module,
    amd_checks.device_files,
    amd_checks.metrics,
    amd_checks.virtual_functions,
    amd_checks.partitions,
    amd_checks.amd_smi,
)


def only(check: Callable[[Facts], Iterator[Finding]], facts: Facts) -> Finding:
    (finding,) = check(facts)
    return finding


@READ_BY
def test_a_node_whose_gpus_are_read_has_no_problem(backend: str) -> None:
    found = findings(amd_node(backend))
    assert [each.text for each in found if each.verdict is Verdict.PROBLEM] == []
    texts = {each.check: each.text for each in found}
    assert texts["AMD kernel module"] == "amdgpu 6.14.14"
    assert texts["AMD device files"] == "/dev/kfd and 2 under /dev/dri, open to this user"
    assert texts["gpu_metrics"] == "v1.8, of 2 of 2 cards"
    assert texts["partitions"] == "SPX/NPS1 on 2"
    assert texts["AMD SMI"].startswith("binding 26.0.2+39589fda in /opt/rocm-7.0.2/share")
    assert texts["AMD SMI"].endswith("are read") is (backend == "amdgpu")


@pytest.mark.parametrize("facts", [HEALTHY, without_gpu()])
def test_a_node_without_amd_gpus_hears_nothing_of_them(facts: Facts) -> None:
    assert [finding for check in AMD_CHECKS for finding in check(facts)] == []


def test_a_module_that_is_not_loaded_is_to_be_loaded() -> None:
    found = only(amd_checks.kernel_module, amd_node(None, Amd()))
    assert found.verdict is Verdict.PROBLEM
    assert (found.fix or "").startswith("modprobe amdgpu")


def test_a_module_that_came_with_the_kernel_has_its_version() -> None:
    found = only(amd_checks.kernel_module, amd_node("amdgpu", replace(AMD, module_version=None)))
    assert (found.verdict, found.text) == (Verdict.OK, "amdgpu of Linux 6.8.0-60-generic")


def test_gpus_that_another_driver_has_are_counted() -> None:
    found = only(amd_checks.kernel_module, amd_node("amdgpu", replace(AMD, cards=AMD.cards[:1])))
    assert (found.verdict, found.text) == (Verdict.PROBLEM, "amdgpu 6.14.14 runs 1 of 2 AMD GPUs")
    assert "vfio-pci" in (found.fix or "")


@pytest.mark.parametrize(
    ("nodes", "state"),
    [
        ((), "no /dev/kfd"),
        ((node("/dev/kfd", EPERM), node("/dev/dri/renderD128", EPERM)), "closed to this user"),
    ],
)
def test_device_files_are_no_problem_where_the_kernel_s_are_read(
    nodes: tuple[DeviceNode, ...], state: str
) -> None:
    found = only(amd_checks.device_files, replace(amd_node("amdgpu"), nodes=nodes))
    assert found.verdict is Verdict.OK
    assert found.text == f"{state}, and not needed: the kernel's files are read"


def test_missing_and_closed_device_files_are_problems_where_nothing_is_read() -> None:
    facts = amd_node(None)
    missing = only(amd_checks.device_files, replace(facts, nodes=()))
    assert (missing.verdict, missing.text) == (Verdict.PROBLEM, "no /dev/kfd")
    closed = (node("/dev/kfd", EACCES, 0o660, "render"), node("/dev/dri/renderD128"))
    found = only(amd_checks.device_files, replace(facts, nodes=closed))
    assert (found.verdict, found.fix) == (
        Verdict.PROBLEM,
        "usermod -a -G render USER, and log in again",
    )
    root_s = (node("/dev/kfd", EACCES, 0o600), node("/dev/dri/renderD128", EACCES, 0o600))
    found = only(amd_checks.device_files, replace(facts, nodes=root_s))
    assert (found.fix or "").startswith("a udev rule")
    denied = replace(
        facts, nodes=(node("/dev/kfd", EPERM),), container=Container(evidence="/.dockerenv")
    )
    assert "--device" in (only(amd_checks.device_files, denied).fix or "")


def test_a_card_of_another_user_is_unknown_where_ours_is_read_by_the_library() -> None:
    nodes = (node("/dev/kfd"), node("/dev/dri/renderD129", EACCES, 0o660, "render"))
    found = only(amd_checks.device_files, replace(amd_node("amdsmi"), nodes=nodes))
    assert found.verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("backend", "verdict"),
    [("amdgpu", Verdict.PROBLEM), ("amdsmi", Verdict.UNKNOWN), (None, Verdict.PROBLEM)],
)
def test_a_block_of_an_unknown_version_is_no_problem_where_amd_smi_reads_it(
    backend: str | None, verdict: Verdict
) -> None:
    reason = "gpu_metrics v2.9 is not known to this version of chopperd"
    metrics = tuple(CardMetrics(pci_bus_id=card.pci_bus_id, error=reason) for card in AMD.cards)
    found = only(amd_checks.metrics, amd_node(backend, replace(AMD, metrics=metrics)))
    assert found.verdict is verdict
    assert found.text.startswith(f"0000:0c:00.0, 0000:22:00.0: {reason}")


def test_a_card_that_gives_no_answer_is_named_beside_one_that_does() -> None:
    facts = amd_node("amdgpu", replace(AMD, metrics=AMD.metrics[:1]))
    well, silent = amd_checks.metrics(facts)
    assert (well.verdict, well.text) == (Verdict.OK, "v1.8, of 1 of 2 cards")
    assert (silent.verdict, silent.text) == (Verdict.PROBLEM, "no answer from 0000:22:00.0")
    _, left = amd_checks.metrics(replace(facts, amd=replace(facts.amd, hung_pid=7)))
    assert left.text.endswith("; process 7 still hangs in it")


def test_cards_that_were_not_asked_have_no_finding() -> None:
    facts = amd_node("amdgpu", replace(AMD, metrics=(), smi=None, was_asked=False))
    assert list(amd_checks.metrics(facts)) == []
    assert list(amd_checks.amd_smi(facts)) == []


def test_a_virtual_function_is_told_once_and_its_host_named() -> None:
    cards = tuple(replace(card, is_virtual=True) for card in AMD.cards)
    metrics = tuple(CardMetrics(pci_bus_id=card.pci_bus_id, error="no such") for card in cards)
    facts = amd_node("amdgpu", replace(AMD, cards=cards, metrics=metrics))
    found = only(amd_checks.virtual_functions, facts)
    assert found.verdict is Verdict.UNKNOWN
    assert "on the host" in (found.fix or "")
    assert list(amd_checks.metrics(facts)) == []


def test_partitions_are_told_by_their_modes() -> None:
    split = replace(amd_card(12), compute_mode="CPX", memory_mode="NPS4", parts_count=8)
    cards = (split, amd_card(34))
    found = only(amd_checks.partitions, amd_node("amdgpu", replace(AMD, cards=cards)))
    assert found.verdict is Verdict.OK
    assert found.text.startswith("CPX/NPS4 on 1, SPX/NPS1 on 1: clock, power and memory")
    whole = replace(amd_card(12), compute_mode=None, memory_mode=None)
    assert list(amd_checks.partitions(amd_node("amdgpu", replace(AMD, cards=(whole,))))) == []


def test_parts_that_the_device_cgroup_hides_are_told() -> None:
    """Linux refuses a compute node's properties to whom may not open its render node."""
    card = replace(amd_card(12), compute_mode="DPX", parts_count=1)
    split, hidden = amd_checks.partitions(amd_node("amdgpu", replace(AMD, cards=(card,))))
    assert (split.verdict, hidden.verdict) == (Verdict.OK, Verdict.UNKNOWN)
    assert hidden.text.startswith("the parts of 0000:0c:00.0 are hidden")


@pytest.mark.parametrize(
    ("smi", "text", "fix"),
    [
        (AmdSmi(error="AMD's binding is found nowhere"), "found nowhere", "amd-smi-lib"),
        (msgspec.structs.replace(SMI, fits=False), "their versions do not match", "ROCM_PATH"),
    ],
)
def test_amd_smi_that_can_t_be_used_matters_only_where_nothing_else_reads(
    smi: AmdSmi, text: str, fix: str
) -> None:
    broken = replace(AMD, smi=smi)
    found = only(amd_checks.amd_smi, amd_node(None, broken))
    assert found.verdict is Verdict.PROBLEM
    assert text in found.text
    assert fix in (found.fix or "")
    found = only(amd_checks.amd_smi, amd_node("amdgpu", broken))
    assert found.verdict is Verdict.OK
    assert text in found.text


def test_a_library_that_ends_its_process_is_unknown() -> None:
    found = only(amd_checks.amd_smi, amd_node(None, replace(AMD, smi=None)))
    assert (found.verdict, found.fix) == (Verdict.UNKNOWN, None)


def test_whoever_names_the_back_end_hears_what_it_lacks_on_any_machine() -> None:
    named = replace(without_gpu(), driver=DriverProbe(backend="amdsmi", error="no"))
    assert only(amd_checks.kernel_module, named).verdict is Verdict.PROBLEM

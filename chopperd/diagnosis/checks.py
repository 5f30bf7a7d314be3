"""All checks of `chopperd doctor`, in the order in which their findings are read."""

from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

from chopperd.diagnosis import agent_checks, amd_checks, driver_checks, neighbour_checks
from chopperd.diagnosis.diagnosis import Finding
from chopperd.diagnosis.facts import Facts

Check: TypeAlias = Callable[[Facts], Iterator[Finding]]

CHECKS: Final[tuple[Check, ...]] = (
    neighbour_checks.container,
    driver_checks.hardware,
    driver_checks.kernel_module,
    driver_checks.device_files,
    driver_checks.library,
    driver_checks.binding,
    driver_checks.mig,
    amd_checks.kernel_module,
    amd_checks.device_files,
    amd_checks.metrics,
    amd_checks.virtual_functions,
    amd_checks.partitions,
    amd_checks.amd_smi,
    driver_checks.gpus,
    agent_checks.configuration,
    agent_checks.folders,
    agent_checks.listeners,
    agent_checks.agent,
    agent_checks.pause,
    agent_checks.clocks,
    neighbour_checks.job_processes,
    neighbour_checks.readers,
    neighbour_checks.dcgm_profiling,
    neighbour_checks.amd_profiling,
    neighbour_checks.amd_smi_lock,
    neighbour_checks.kineto,
)


def findings(facts: Facts) -> tuple[Finding, ...]:
    """What all checks make of these facts."""
    return tuple(finding for check in CHECKS for finding in check(facts))

"""Asking the driver, and nvidia-smi, by processes of their own that may hang without us."""

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from chopperd.cli.bounded import Answer, answer_of
from chopperd.cli.output import complain
from chopperd.errors import BackendUnavailableError

if TYPE_CHECKING:
    from chopperd.diagnosis.amd_facts import Amd
    from chopperd.diagnosis.facts import DriverProbe
    from chopperd.model.inventory import Inventory

#: Longest wait for a driver that is only looked at, and for one each of whose calls is timed.
_LOOK_S: Final = 20.0
_SURVEY_S: Final = 60.0
_CALLS_COUNT: Final = 100
_SMI_S: Final = 10.0
_AMD_S: Final = 10.0
#: So many that hang keep from starting another, which would hang as well and can't be ended.
_MOST_STUCK: Final = 2
_WITHOUT_DRIVER: Final = frozenset({"simulated", "replay"})
_NVIDIA_SMI: Final = "nvidia-smi"


def surveyed(backend: str) -> "Inventory":
    """The GPUs of a back end, each call timed, with nvidia-smi's own numbers where it is installed.

    Raises:
        ConfigError: No back end has this name.
        BackendUnavailableError: It can't be used, or gave no answer in time.
    """
    from chopperd.diagnosis.nvidia_smi import beside
    from chopperd.diagnosis.probe import inventory_of, is_whole

    stuck_pids = _stuck(backend)
    if stuck_pids:
        named = ", ".join(map(str, stuck_pids))
        message = f"{backend}: not asked: processes {named} of earlier looks still hang in it"
        raise BackendUnavailableError(message)
    answer = _asked(backend, _CALLS_COUNT, _SURVEY_S)
    if answer.status is None and not is_whole(answer.output):
        left = f"; process {answer.left_pid} is left alone in it" if answer.left_pid else ""
        message = f"{backend}: the driver gave no answer in {_SURVEY_S:g} s{left}"
        raise BackendUnavailableError(message)
    if answer.left_pid:
        complain(f"process {answer.left_pid} is left alone in a driver call that does not return")
    inventory = inventory_of(answer.output)
    return beside(inventory, _smi_numbers()) if inventory.backend == "nvml" else inventory


def probed(backend: str, limit_s: float = _LOOK_S) -> "DriverProbe":
    """What came of one look at the GPUs of a back end."""
    from chopperd.diagnosis.facts import DriverProbe
    from chopperd.diagnosis.probe import is_whole, probe_of

    stuck_pids = _stuck(backend)
    if stuck_pids:
        return DriverProbe(backend=backend, stuck_pids=stuck_pids)
    answer = _asked(backend, 0, limit_s, quiet=True)
    probe = probe_of(backend, answer.output)
    if answer.status is not None:
        return probe
    hung_s = None if is_whole(answer.output) else limit_s
    return replace(probe, hung_s=hung_s, hung_pid=answer.left_pid)


def amd_asked(amd: "Amd", sysfs: Path, limit_s: float = _AMD_S) -> "Amd":
    """What was seen of AMD's GPUs, with what cards and AMD SMI say in a process of its own.

    Args:
        amd: What the file tree says.
        sysfs: The root of sysfs.
        limit_s: How long the process is waited for.
    """
    from chopperd.diagnosis.amd_facts import AmdSmi, CardMetrics
    from chopperd.diagnosis.amd_probe import look_of

    command = _command("_probe_amd", "--sysfs", str(sysfs))
    answer = answer_of(command, limit_s, quiet=True)
    lines = look_of(answer.output)
    return replace(
        amd,
        metrics=tuple(line for line in lines if isinstance(line, CardMetrics)),
        smi=next((line for line in lines if isinstance(line, AmdSmi)), None),
        was_asked=True,
        hung_pid=answer.left_pid,
    )


def _stuck(backend: str) -> tuple[int, ...]:
    """Processes of earlier looks that hang; none where they are too few to keep from another."""
    from chopperd.diagnosis.left_probes import left_probes

    if backend in _WITHOUT_DRIVER:
        return ()
    pids = left_probes(_SURVEY_S + _LOOK_S)
    return pids if len(pids) >= _MOST_STUCK else ()


def _asked(backend: str, calls_count: int, limit_s: float, *, quiet: bool = False) -> Answer:
    from chopperd.diagnosis.probe import is_whole

    command = _command("_probe", "--backend", backend, "--calls", str(calls_count))
    return answer_of(command, limit_s, quiet=quiet, is_whole=is_whole)


def _command(*arguments: str) -> list[str]:
    """A command of ours; -P: the working directory must not shadow a module of ours."""
    return [sys.executable, "-P", "-m", "chopperd", *arguments]


def _smi_numbers() -> Mapping[str, Mapping[str, float]]:
    """nvidia-smi's numbers by the UUID of the GPU; empty where it is not installed or not well."""
    from chopperd.diagnosis.nvidia_smi import QUERY, numbers_of

    try:
        answer = answer_of([_NVIDIA_SMI, *QUERY], _SMI_S, quiet=True)
    except OSError:
        return {}
    if answer.status is None:
        complain(f"{_NVIDIA_SMI} gave no answer in {_SMI_S:g} s; its numbers are not shown")
    elif answer.status:
        complain(f"{_NVIDIA_SMI} failed with status {answer.status}; its numbers are not shown")
    else:
        return numbers_of(answer.output.decode(errors="replace"))
    return {}

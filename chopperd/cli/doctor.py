"""Saying what keeps chopperd from working here, and what to do about it."""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from chopperd.cli import options
from chopperd.cli.output import complain, print_page, write
from chopperd.clock import SystemClock
from chopperd.config.load import DEFAULT_PATH, effective, load_config
from chopperd.errors import BackendUnavailableError, ConfigError
from chopperd.model.safe_text import visible_lines

if TYPE_CHECKING:
    import subprocess

    from chopperd.config.sections import Config
    from chopperd.diagnosis.facts import Amd, DriverProbe, Facts
    from chopperd.model.devices import Inventory


#: The root of the file tree that is looked at.
_ROOT: Final = Path("/")
_AMD_BACKENDS: Final = frozenset({"amdgpu", "amdsmi"})


@click.command()
@options.backend
@options.list_form
@options.config_path
def doctor(
    backend: str | None,
    form: options.ListFormat,
    config: Path | None,
) -> None:
    """Say what is missing on this machine, and the fix; exits with 1 where there is a problem."""
    from chopperd.diagnosis.checks import findings
    from chopperd.diagnosis.findings import Verdict, diagnosis_page, encode_findings

    found = findings(_facts(backend, config or DEFAULT_PATH))
    if form == "json":
        write(encode_findings(found).decode())
    else:
        print_page(diagnosis_page(found))
    raise click.exceptions.Exit(int(any(each.verdict is Verdict.PROBLEM for each in found)))


def _facts(backend: str | None, path: Path) -> "Facts":
    """All that is looked at; the driver in a process of its own."""
    from chopperd.diagnosis import agent_facts
    from chopperd.diagnosis.facts import Clocks, Facts
    from chopperd.diagnosis.machine import Machine, is_synchronised

    config, problems = _config(path)
    clock, machine = SystemClock(), Machine(_ROOT)
    before = clock.triple()
    driver = probed(backend or config.sampling.backend)
    kineto_taken, kineto_holder = machine.kineto()
    agent = agent_facts.agent_of(config)
    after = clock.triple()
    watched_ns = after.mono_ns - before.mono_ns
    return Facts(
        problems=problems,
        hardware=machine.hardware(),
        driver=driver,
        binding=find_spec("pynvml") is not None,
        kernel_module=machine.kernel_module(),
        amd=_amd(driver),
        nodes=machine.nodes(),
        mig=machine.mig(),
        container=machine.container(),
        folders=agent_facts.folders_of(config),
        listeners=agent_facts.listeners_of(config),
        agent=agent,
        pause=agent_facts.pause_of(config),
        clocks=Clocks(
            step_ns=after.unix_ns - before.unix_ns - watched_ns,
            watched_ns=watched_ns,
            synchronised=is_synchronised(),
            source=machine.clock_source(),
        ),
        processes=machine.processes(),
        sees_host=machine.sees_host(),
        kineto_taken=kineto_taken,
        kineto_holder=kineto_holder,
    )


def _amd(driver: "DriverProbe") -> "Amd":
    """What there is of AMD's; cards and AMD SMI are asked where nothing hangs in a driver yet."""
    from chopperd.diagnosis.machine import amd_of

    amd = amd_of(_ROOT)
    read_by = driver.inventory.backend if driver.inventory else None
    is_there = amd.is_loaded or bool(_AMD_BACKENDS & {driver.backend, read_by})
    hangs = driver.hung_s is not None or driver.hung_pid is not None or driver.stuck_pids
    return amd if hangs or not is_there else amd_asked(amd, _ROOT / "sys")


def _config(path: Path) -> "tuple[Config, tuple[str, ...]]":
    """The configuration, or the defaults and what is wrong with it."""
    try:
        return load_config(path), ()
    except ConfigError as error:
        return load_config(None, {}), tuple(error.problems)


# What this machine and its configuration offer.


@click.command()
@options.backend
@options.list_form
@options.config_path
def devices(
    backend: str | None,
    form: options.ListFormat,
    config: Path | None,
) -> None:
    """List the GPUs and, field by field, what answers, by which call, and how fast."""
    from chopperd.report.text.inventory import encode_inventory, render_inventory

    found = surveyed(backend or load_config(config or DEFAULT_PATH).sampling.backend)
    if form == "json":
        write(encode_inventory(found).decode())
    else:
        print_page(render_inventory(found))


@click.command("check-config")
@options.config_file
def check_config(
    file: Path | None,
) -> None:
    """Check the configuration and print what is in force, and where each value comes from."""
    from chopperd.report.text.lists import render_settings

    print_page(render_settings(effective(load_config(file or DEFAULT_PATH))))


# Running a program that asks a driver, for a limited time.
#
# One that does not answer is asked to end and then left alone, never killed: that has frozen GPUs.

_END_S: Final = 1.0
#: How often it is looked whether the output is whole.
_LOOK_S: Final = 0.2
#: In place of an exit status: nobody waits for the process any more, nor does its object complain.
_LEFT_ALONE: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a program said.

    Attributes:
        status: Its exit status; None where it did not end by itself in time.
        output: What it wrote, as far as it came.
        left_pid: The process, where it would not end.
    """

    status: int | None
    output: bytes
    left_pid: int | None = None


def answer_of(
    command: Sequence[str],
    limit_s: float,
    *,
    quiet: bool = False,
    is_whole: Callable[[bytes], bool] = lambda _: False,
) -> Answer:
    """Run a program to its end, or until `limit_s` have passed, or it said all it has to say.

    Args:
        command: The program and its arguments.
        limit_s: How long to wait for it.
        quiet: Whether its complaints are dropped; else they follow when it has ended, or is left:
            with our own stderr it would keep whoever reads that waiting.
        is_whole: Whether what it wrote so far is all: then it has a second to end by itself.

    Raises:
        OSError: It can't be started.
    """
    import subprocess

    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL if quiet else subprocess.PIPE,
        start_new_session=True,  # an interrupt from the terminal is ours to handle
    )
    try:
        output, complaints = _said(process, limit_s, is_whole)
    except subprocess.TimeoutExpired:
        return _ended(process)
    except BaseException:
        process.terminate()
        raise
    _pass_on(complaints)
    return Answer(status=process.returncode, output=output)


def _said(
    process: "subprocess.Popen[bytes]", limit_s: float, is_whole: Callable[[bytes], bool]
) -> tuple[bytes, bytes | None]:
    """All that a process writes until it ends; raises `TimeoutExpired` where it does not."""
    import subprocess

    looks_count = max(1, math.ceil(limit_s / _LOOK_S))
    for _ in range(looks_count):
        try:
            return process.communicate(timeout=limit_s / looks_count)
        except subprocess.TimeoutExpired as late:
            if is_whole(late.output or b""):
                break
    else:
        raise subprocess.TimeoutExpired(process.args, limit_s)
    return process.communicate(timeout=_END_S)


def _ended(process: "subprocess.Popen[bytes]") -> Answer:
    import subprocess

    process.terminate()
    try:
        output, complaints = process.communicate(timeout=_END_S)
    except subprocess.TimeoutExpired as late:
        _pass_on(late.stderr)
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
        process.returncode = _LEFT_ALONE
        return Answer(status=None, output=late.output or b"", left_pid=process.pid)
    _pass_on(complaints)
    return Answer(status=None, output=output)


def _pass_on(complaints: bytes | None) -> None:
    sys.stderr.write(visible_lines((complaints or b"").decode(errors="replace")))


# Asking the driver, and nvidia-smi, by processes of their own that may hang without us.

#: Longest wait for a driver that is only looked at, and for one each of whose calls is timed.
_PROBE_S: Final = 20.0
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
    from chopperd.diagnosis.probe import beside, inventory_of, is_whole

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


def probed(backend: str, limit_s: float = _PROBE_S) -> "DriverProbe":
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
    from chopperd.diagnosis.amd_probe import look_of
    from chopperd.diagnosis.facts import AmdSmi, CardMetrics

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
    from chopperd.diagnosis.probe import left_probes

    if backend in _WITHOUT_DRIVER:
        return ()
    pids = left_probes(_SURVEY_S + _PROBE_S)
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
    from chopperd.diagnosis.probe import QUERY, numbers_of

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

"""Commands `doctor`, `devices` and `check-config`; programs that may hang in a driver."""

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
from chopperd.config.paths import own_command
from chopperd.errors import BackendUnavailableError, ConfigError
from chopperd.safe_text import visible_lines

if TYPE_CHECKING:
    import subprocess

    from chopperd.diagnosis.facts import Amd, DriverProbe, Facts
    from chopperd.model.devices import Inventory


_ROOT: Final = Path("/")


@options.documented("chopperd doctor", "chopperd doctor --format json")
@options.backend
@options.list_form
@options.config_path
def doctor(backend: str | None, form: options.ListFormat, config: Path | None) -> None:
    """Check what chopperd needs on this machine, and say how to fix it; exit 1 on a problem."""
    from chopperd.diagnosis.checks import findings
    from chopperd.diagnosis.facts import diagnosis_page, encode_findings, problem_count

    found = findings(_facts(backend, config or DEFAULT_PATH))
    if form == "json":
        write(encode_findings(found).decode())
    else:
        print_page(diagnosis_page(found))
    raise click.exceptions.Exit(1 if problem_count(found) else 0)


def _facts(backend: str | None, path: Path) -> "Facts":
    from chopperd.diagnosis import agent_facts
    from chopperd.diagnosis.facts import Clocks, Facts
    from chopperd.diagnosis.machine import Machine, is_synchronised

    try:
        config, problems = load_config(path), list[str]()
    except ConfigError as error:  # go on with the defaults
        config, problems = load_config(None, {}), error.problems
    clock, machine = SystemClock(), Machine(_ROOT)
    before = clock.triple()
    driver = probed(backend or config.sampling.backend)
    kineto_taken, kineto_holder = machine.kineto()
    agent = agent_facts.agent_of(config)
    after = clock.triple()
    watched_ns = after.mono_ns - before.mono_ns
    return Facts(
        problems=tuple(problems),
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
    """Return facts about AMD's driver; query cards and AMD SMI unless a driver call hangs."""
    from chopperd.diagnosis.facts import AMD_BACKENDS
    from chopperd.diagnosis.machine import amd_of

    amd = amd_of(_ROOT)
    read_by = driver.inventory.backend if driver.inventory else None
    is_there = amd.is_loaded or bool(AMD_BACKENDS & {driver.backend, read_by})
    hangs = driver.hung_s is not None or driver.hung_pid is not None or driver.stuck_pids
    return amd if hangs or not is_there else amd_asked(amd, _ROOT / "sys")


@options.documented("chopperd devices", "chopperd devices --format json")
@options.backend
@options.list_form
@options.config_path
def devices(backend: str | None, form: options.ListFormat, config: Path | None) -> None:
    """List the GPUs and, for each field, the driver call that gives it and its time."""
    from chopperd.report.text.inventory import encode_inventory, render_inventory

    found = surveyed(backend or load_config(config or DEFAULT_PATH).sampling.backend)
    if form == "json":
        write(encode_inventory(found).decode())
    else:
        print_page(render_inventory(found))


@click.command(
    "check-config",
    epilog=options.examples("chopperd check-config", "chopperd check-config chopperd.toml"),
)
@options.config_file
def check_config(file: Path | None) -> None:
    """Check the configuration; print each setting in force and where it was set."""
    from chopperd.report.text.lists import render_settings

    print_page(render_settings(effective(load_config(file or DEFAULT_PATH))))


# Programs that call a driver run for a limited time. One that does not answer is terminated and
# then abandoned, never killed: that has frozen GPUs.

_END_S: Final = 1.0
_CHECK_EVERY_S: Final = 0.2
#: In place of an exit status, so that `Popen` does not warn of a running child.
_ABANDONED: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Output and exit status of a program that may have hung."""

    status: int | None  # its exit status; None if it did not end by itself in time
    output: bytes  # what it wrote until then
    left_pid: int | None = None  # the process, if it could not be ended


def answer_of(
    command: Sequence[str],
    limit_s: float,
    *,
    quiet: bool = False,
    is_whole: Callable[[bytes], bool] = lambda _: False,
) -> Answer:
    """Run a program until it ends, its output is complete, or `limit_s` have passed.

    Unless `quiet`, its stderr is copied to ours at the end, since readers of our stderr would wait
    for an abandoned process that had inherited it. Once `is_whole` says that the output so far is
    complete, it has a second to end by itself. Raises `OSError` if it can't be started.
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
        output, errors = _output(process, limit_s, is_whole)
    except subprocess.TimeoutExpired:
        return _terminated(process)
    except BaseException:
        process.terminate()
        raise
    _pass_on(errors)
    return Answer(status=process.returncode, output=output)


def _output(
    process: "subprocess.Popen[bytes]", limit_s: float, is_whole: Callable[[bytes], bool]
) -> tuple[bytes, bytes | None]:
    import subprocess

    waits_count = max(1, math.ceil(limit_s / _CHECK_EVERY_S))
    for _ in range(waits_count):
        try:
            return process.communicate(timeout=limit_s / waits_count)
        except subprocess.TimeoutExpired as late:
            if is_whole(late.output or b""):
                break
    else:
        raise subprocess.TimeoutExpired(process.args, limit_s)
    return process.communicate(timeout=_END_S)


def _terminated(process: "subprocess.Popen[bytes]") -> Answer:
    import subprocess

    process.terminate()
    try:
        output, errors = process.communicate(timeout=_END_S)
    except subprocess.TimeoutExpired as late:
        _pass_on(late.stderr)
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
        process.returncode = _ABANDONED
        return Answer(status=None, output=late.output or b"", left_pid=process.pid)
    _pass_on(errors)
    return Answer(status=None, output=output)


def _pass_on(errors: bytes | None) -> None:
    sys.stderr.write(visible_lines((errors or b"").decode(errors="replace")))


#: Time limits of a probe that reads once, and of one that times each call.
_PROBE_S: Final = 20.0
_SURVEY_S: Final = 60.0
_CALLS_COUNT: Final = 100
_SMI_S: Final = 10.0
_AMD_S: Final = 10.0
#: With so many hanging probes no other is started: it would hang as well and can't be ended.
_MOST_STUCK: Final = 2
_WITHOUT_DRIVER: Final = frozenset({"simulated", "replay"})
_NVIDIA_SMI: Final = "nvidia-smi"


def surveyed(backend: str) -> "Inventory":
    """Return the GPUs of a back end with each call timed, and nvidia-smi's numbers if installed.

    Raises:
        ConfigError: No back end has this name.
        BackendUnavailableError: The back end can't be used, or gave no answer in time.
    """
    from chopperd.diagnosis.probe import inventory_of, is_whole, with_smi_numbers

    if stuck_pids := _stuck(backend):
        named = ", ".join(map(str, stuck_pids))
        message = f"{backend}: not read: processes {named} of earlier probes still hang in it"
        raise BackendUnavailableError(message)
    answer = _probe_answer(backend, _CALLS_COUNT, _SURVEY_S)
    if answer.status is None and not is_whole(answer.output):
        left = f"; process {answer.left_pid} still hangs in it" if answer.left_pid else ""
        message = f"{backend}: the driver gave no answer in {_SURVEY_S:g} s{left}"
        raise BackendUnavailableError(message)
    if answer.left_pid:
        complain(f"process {answer.left_pid} hangs in a driver call that does not return")
    inventory = inventory_of(answer.output)
    return with_smi_numbers(inventory, _smi_numbers()) if inventory.backend == "nvml" else inventory


def probed(backend: str, limit_s: float = _PROBE_S) -> "DriverProbe":
    """Probe the GPUs of a back end once in another process; return the result."""
    from chopperd.diagnosis.facts import DriverProbe
    from chopperd.diagnosis.probe import is_whole, probe_of

    if stuck_pids := _stuck(backend):
        return DriverProbe(backend=backend, stuck_pids=stuck_pids)
    answer = _probe_answer(backend, 0, limit_s, quiet=True)
    probe = probe_of(backend, answer.output)
    if answer.status is not None:
        return probe
    hung_s = None if is_whole(answer.output) else limit_s
    return replace(probe, hung_s=hung_s, hung_pid=answer.left_pid)


def amd_asked(amd: "Amd", sysfs: Path, limit_s: float = _AMD_S) -> "Amd":
    """Add metrics of cards and AMD SMI, read by another process, to the facts about AMD."""
    from chopperd.diagnosis.facts import AmdSmi, CardMetrics
    from chopperd.diagnosis.probe import look_of

    command = own_command("_probe_amd", "--sysfs", str(sysfs))
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
    """Return pids of earlier probes that hang; empty if few enough to start another."""
    from chopperd.diagnosis.probe import left_probes

    if backend in _WITHOUT_DRIVER:
        return ()
    pids = left_probes(_SURVEY_S + _PROBE_S)
    return pids if len(pids) >= _MOST_STUCK else ()


def _probe_answer(backend: str, calls_count: int, limit_s: float, *, quiet: bool = False) -> Answer:
    from chopperd.diagnosis.probe import is_whole

    command = own_command("_probe", "--backend", backend, "--calls", str(calls_count))
    return answer_of(command, limit_s, quiet=quiet, is_whole=is_whole)


def _smi_numbers() -> Mapping[str, Mapping[str, float]]:
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

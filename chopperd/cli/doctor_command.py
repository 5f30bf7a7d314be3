"""Saying what keeps chopperd from working here, and what to do about it."""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from chopperd.cli import options
from chopperd.cli.output import print_page, write
from chopperd.clock import SystemClock
from chopperd.config.load import DEFAULT_PATH, load_config
from chopperd.errors import ConfigError

if TYPE_CHECKING:
    from chopperd.config.sections import Config
    from chopperd.diagnosis.amd_facts import Amd
    from chopperd.diagnosis.facts import DriverProbe, Facts

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
    from chopperd.diagnosis.diagnosis import Verdict
    from chopperd.diagnosis.diagnosis_page import diagnosis_page, encode_findings

    found = findings(_facts(backend, config or DEFAULT_PATH))
    if form == "json":
        write(encode_findings(found).decode())
    else:
        print_page(diagnosis_page(found))
    raise click.exceptions.Exit(int(any(each.verdict is Verdict.PROBLEM for each in found)))


def _facts(backend: str | None, path: Path) -> "Facts":
    """All that is looked at; the driver in a process of its own."""
    from chopperd.cli.probing import probed
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
    from chopperd.cli.probing import amd_asked
    from chopperd.diagnosis.amd_machine import amd_of

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

"""The whole agent on a simulated node, to see what chopperd does."""

import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import click

from chopperd.cli import options
from chopperd.cli.output import print_report, write
from chopperd.cli.scratch import scratch_folder
from chopperd.clock import SystemClock
from chopperd.config.load import DEFAULT_PATH, load_config
from chopperd.errors import AgentUnreachableError

if TYPE_CHECKING:
    from chopperd.agent.sockets import Addresses
    from chopperd.model.report import ReportDocument

_EXIT_SIGNAL: Final = 128
_NAME_WIDTH: Final = 9
_TITLE: Final = "RUNNING ON SIMULATED DATA until Ctrl-C; try"


@click.command()
@options.seconds
@options.preset
@options.seed
@options.form
@options.stay
def demo(
    seconds: float,
    preset: str,
    seed: int,
    form: options.Format,
    stay: bool | None,
) -> None:
    """Run the agent on a simulated training job and show its report; needs no GPU."""
    from chopperd.agent.service import Agent
    from chopperd.cli.demonstration import Demonstration, Play, demo_config, job_processes
    from chopperd.simulation.spec import SimulationSpec

    stays = sys.stdout.isatty() if stay is None else stay
    start_unix_ns = SystemClock().unix_ns()
    spec = SimulationSpec(seed=seed, preset=preset, start_unix_ns=start_unix_ns)

    def show(document: "ReportDocument") -> None:
        print_report(document, form)
        if stays and form == "text":
            _print_addresses(agent.addresses)

    with scratch_folder() as folder, job_processes(spec) as pids:
        spec = replace(spec, host=os.uname().nodename, pids=pids)
        config = demo_config(load_config(DEFAULT_PATH), folder)
        demonstration = Demonstration(Play(spec=spec, seconds=seconds, stays=stays), config, show)
        agent = Agent(
            config, simulation=spec, on_ready=lambda ready: demonstration.start(ready.stop)
        )
        agent.run()
        try:
            demonstration.finish()
        except AgentUnreachableError:  # it was asked something while it ended, as it was told to
            if agent.stopped_by is None:
                raise
    if agent.stopped_by is not None and not demonstration.is_shown:
        raise click.exceptions.Exit(_EXIT_SIGNAL + agent.stopped_by)


def _print_addresses(addresses: "Addresses") -> None:
    """What to try on the agent while it runs, each on a line of its own, to be copied."""
    rows: list[tuple[str, str]] = []
    if addresses.metrics is not None:
        rows.append(("metrics", f"curl {_url(addresses.metrics)}/metrics"))
    if addresses.api is not None:
        url = _url(addresses.api)
        rows += [("API", f"curl {url}/api/v1/status"), ("docs", f"{url}/docs")]
    if (path := addresses.api_socket) is not None:
        rows.append(("socket", f"curl --unix-socket {path} http://localhost/api/v1/gpus"))
        commands = ("top", "status", "steps", "report")
        rows += [
            ("", f"CHOPPERD_PATHS__RUNTIME={path.parent} chopperd {name}") for name in commands
        ]
    lines = (f"{name:<{_NAME_WIDTH}}{what}\n" for name, what in rows)
    write(f"\n{_TITLE}\n{''.join(lines)}")


def _url(address: tuple[str, int]) -> str:
    host, port = address
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

"""The whole agent on a simulated node, to see what chopperd does."""

import sys
from typing import TYPE_CHECKING, Final

import typer

from chopperd.cli import options
from chopperd.cli.output import print_page, print_report
from chopperd.cli.scratch import scratch_folder
from chopperd.clock import SystemClock
from chopperd.config.load import DEFAULT_PATH, load_config

if TYPE_CHECKING:
    from pathlib import Path

    from chopperd.agent.service import Agent
    from chopperd.model.report import ReportDocument

_EXIT_INTERRUPTED: Final = 130


def demo(
    seconds: options.Seconds = 5.0,
    preset: options.Preset = "fsdp2-h100",
    seed: options.Seed = 0,
    form: options.Form = "text",
    stay: options.Stay = None,
) -> None:
    """Run the agent on a simulated training job and show its report; needs no GPU."""
    from chopperd.agent.service import Agent
    from chopperd.cli.demonstration import Demonstration, Play, demo_config
    from chopperd.simulation.spec import SimulationSpec

    stays = sys.stdout.isatty() if stay is None else stay
    spec = SimulationSpec(seed=seed, preset=preset, start_unix_ns=SystemClock().unix_ns())

    def show(document: "ReportDocument", agent: Agent) -> None:
        print_report(document, form)
        if stays and form == "text":
            _show_addresses(agent)

    with scratch_folder() as folder:
        config = demo_config(load_config(DEFAULT_PATH), folder)
        demonstration = Demonstration(Play(spec=spec, seconds=seconds, stays=stays), config, show)
        Agent(config, simulation=spec, on_ready=demonstration.start).run()
        demonstration.finish()
    raise typer.Exit(0 if demonstration.is_shown else _EXIT_INTERRUPTED)

"""The command line's commands, in the order of the help; each stands in a module by subject.

Heavy imports stand inside the commands, so that `chopperd version` and usage errors are quick.
"""

from typing import Final

import typer

from chopperd import __version__
from chopperd.cli import options
from chopperd.cli.agent import COMMAND as AGENT
from chopperd.cli.agent_commands import metrics, run, status, steps
from chopperd.cli.annotate_command import annotate
from chopperd.cli.demo_command import demo
from chopperd.cli.doctor_command import doctor
from chopperd.cli.node_commands import check_config, devices
from chopperd.cli.output import write
from chopperd.cli.report_commands import record, report
from chopperd.cli.selftest_command import selftest
from chopperd.cli.top_command import top
from chopperd.logs import configure_logging

_EXIT_USAGE: Final = 2

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    log_json: options.LogForm = False,
    log_level: options.LogFrom = None,
) -> None:
    """Say what the GPU clock costs each training step, and why."""
    is_agent = context.invoked_subcommand == AGENT
    configure_logging(log_level or ("info" if is_agent else "warning"), as_json=log_json)
    if context.invoked_subcommand is None:
        write(f"{context.get_help()}\n")
        raise typer.Exit(_EXIT_USAGE)


@app.command()
def version() -> None:
    """Print the version."""
    write(f"{__version__}\n")


app.command(AGENT)(run)
app.command()(demo)
# What follows CMD is CMD's.
app.command(context_settings={"allow_interspersed_args": False})(record)
app.command()(report)
app.command()(annotate)
app.command()(top)
app.command()(status)
app.command()(steps)
app.command()(metrics)
app.command()(devices)
app.command()(doctor)
app.command()(selftest)
app.command("check-config")(check_config)

"""The commands in the order of the help, each defined in one of several modules.

A module is loaded when one of its commands is used, and loads the libraries of its work only when
it starts: `chopperd version`, usage errors and the start of a report stay quick.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import Final

import click

from chopperd import __version__
from chopperd.cli import options
from chopperd.cli.agent import COMMAND as AGENT
from chopperd.cli.output import write
from chopperd.config.paths import COMPLETION_VARIABLE
from chopperd.logs import configure_logging

_EXIT_USAGE: Final = 2

#: The module of `chopperd.cli` that defines each command, under the command's name.
_MODULES: Final[Mapping[str, str]] = {
    AGENT: "agent_commands",
    "demo": "agent_commands",
    "record": "report_commands",
    "report": "report_commands",
    "annotate": "report_commands",
    "compare": "comparing",
    "top": "top",
    "status": "agent_commands",
    "steps": "agent_commands",
    "traces": "agent_commands",
    "jobs": "agent_commands",
    "drops": "agent_commands",
    "metrics": "agent_commands",
    "devices": "doctor",
    "doctor": "doctor",
    "selftest": "selftest",
    "check-config": "doctor",
    "explain": "report_commands",
}


class _Commands(click.Group):
    """Command group that imports a command's module when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - as click calls it
        """Return all names, in the order of the help."""
        return [*self.commands, *_MODULES]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return the command of a name; None if there is none."""
        if cmd_name not in _MODULES:
            return super().get_command(ctx, cmd_name)
        module = import_module(f"chopperd.cli.{_MODULES[cmd_name]}")
        found: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; raise `UsageError`, which names one that is spelt alike, without it."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = get_close_matches(args[0], self.list_commands(ctx), n=1)
            meant = f" Did you mean '{near[0]}'?" if near else ""
            raise click.UsageError(f"{error.message}{meant}", ctx) from error


@click.group(
    cls=_Commands,
    epilog=options.examples(
        "chopperd demo", "chopperd record -- torchrun --nproc-per-node 8 train.py"
    ),
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)
@click.version_option(__version__, message="%(version)s")
@options.log_form
@options.log_from
@click.pass_context
def app(context: click.Context, log_json: bool, log_level: options.LogLevel | None) -> None:
    """Measure what the GPU clock costs each training step, and why."""
    is_agent = context.invoked_subcommand == AGENT
    configure_logging(log_level or ("info" if is_agent else "warning"), as_json=log_json)
    if context.invoked_subcommand is None:
        write(f"{context.get_help()}\n")
        raise click.exceptions.Exit(_EXIT_USAGE)


@app.command(epilog=options.examples("chopperd version", "chopperd --version"))
def version() -> None:
    """Print the version."""
    write(f"{__version__}\n")


@app.command(
    epilog=options.examples(
        'eval "$(chopperd completion bash)"',
        "chopperd completion fish > ~/.config/fish/completions/chopperd.fish",
    )
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script by which a SHELL completes commands, options and values of chopperd."""
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    if found is None:  # click knows all three
        raise click.exceptions.Exit(1)
    write(found(app, {}, "chopperd", COMPLETION_VARIABLE).source())

"""The command line: parses, calls the pipeline, prints, and turns errors into exit codes."""

import typer

from chopperd import __version__

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


@app.callback()
def root() -> None:
    """Say what the GPU clock costs each training step, and why."""


def main() -> None:
    """Run the command line."""
    app()

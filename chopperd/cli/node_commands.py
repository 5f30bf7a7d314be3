"""What this machine and its configuration offer."""

from pathlib import Path

import click

from chopperd.cli import options
from chopperd.cli.output import print_page, write
from chopperd.config.load import DEFAULT_PATH, effective, load_config


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
    from chopperd.cli.probing import surveyed
    from chopperd.report.inventory import encode_inventory, render_inventory

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
    from chopperd.report.settings import render_settings

    print_page(render_settings(effective(load_config(file or DEFAULT_PATH))))

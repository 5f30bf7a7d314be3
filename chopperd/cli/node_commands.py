"""What this machine and its configuration offer."""

from chopperd.cli import options
from chopperd.cli.output import print_page, write
from chopperd.config.load import DEFAULT_PATH, effective, load_config


def devices(
    backend: options.Backend = None,
    form: options.ListForm = "text",
    config: options.ConfigPath = None,
) -> None:
    """List the GPUs and, field by field, what answers, by which call, and how fast."""
    from chopperd.cli.probing import surveyed
    from chopperd.report.inventory import encode_inventory, render_inventory

    found = surveyed(backend or load_config(config or DEFAULT_PATH).sampling.backend)
    if form == "json":
        write(encode_inventory(found).decode())
    else:
        print_page(render_inventory(found))


def check_config(file: options.ConfigFile = None) -> None:
    """Check the configuration and print what is in force, and where each value comes from."""
    from chopperd.report.settings import render_settings

    print_page(render_settings(effective(load_config(file or DEFAULT_PATH))))

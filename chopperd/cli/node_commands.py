"""What this machine and its configuration offer."""

from contextlib import closing

from chopperd.cli import options
from chopperd.cli.output import print_page, write
from chopperd.config.load import DEFAULT_PATH, effective, load_config


def devices(
    backend: options.Backend = None,
    form: options.ListForm = "text",
    config: options.ConfigPath = None,
) -> None:
    """List the GPUs and which of their fields answer."""
    from chopperd.devices.registry import open_backend
    from chopperd.devices.survey import survey
    from chopperd.report.inventory import encode_inventory, render_inventory

    name = backend or load_config(config or DEFAULT_PATH).sampling.backend
    with closing(open_backend(name)) as opened:
        found = survey(opened)
    if form == "json":
        write(encode_inventory(found).decode())
    else:
        print_page(render_inventory(found))


def check_config(file: options.ConfigFile = None) -> None:
    """Check the configuration and print what is in force, and where each value comes from."""
    from chopperd.report.settings import render_settings

    print_page(render_settings(effective(load_config(file or DEFAULT_PATH))))

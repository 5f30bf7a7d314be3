"""The live table of all GPUs: from the agent where one runs, else sampled by the command itself."""

import sys
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from chopperd.cli import options
from chopperd.cli.output import print_page
from chopperd.cli.terminal import quiet_stderr, quit_key
from chopperd.config.load import DEFAULT_PATH, load_config
from chopperd.config.sections import Config
from chopperd.errors import AgentUnreachableError
from chopperd.units import NS_PER_S

if TYPE_CHECKING:
    from chopperd.model.live import NodeSnapshot

#: A single table waits so long for losses, which take two looks at the totals.
_ONCE_NS: Final = 6 * NS_PER_S


@click.command()
@options.once
@options.backend
@options.config_path
def top(
    once: bool,
    backend: str | None,
    config: Path | None,
) -> None:
    """Show the GPUs as they are now; where no agent runs, or with --backend, it samples itself."""
    with closing(_snapshots(load_config(config or DEFAULT_PATH), backend)) as snapshots:
        if once or not sys.stdout.isatty():
            _print_once(snapshots)
        else:
            _show(snapshots)


def _snapshots(config: Config, backend: str | None) -> "Generator[NodeSnapshot]":
    from chopperd.cli.own_sampling import own_snapshots
    from chopperd.client.agent import AgentClient

    if backend is None:
        client = AgentClient.of(config)
        try:
            client.status()
        except AgentUnreachableError:
            pass  # it takes no agent
        else:
            return client.snapshots()
    return own_snapshots(config, backend or config.sampling.backend)


def _print_once(snapshots: "Iterable[NodeSnapshot]") -> None:
    from chopperd.report.live_page import live_page

    history: list[NodeSnapshot] = []
    for snapshot in snapshots:
        history.append(snapshot)
        waited_ns = snapshot.taken_mono_ns - history[0].taken_mono_ns
        if waited_ns >= _ONCE_NS or _has_losses(history):
            break
    print_page(live_page(history))


def _has_losses(history: "Sequence[NodeSnapshot]") -> bool:
    """Whether the losses of all GPUs that answer, of which there are some, are known by now."""
    from chopperd.report.live_rates import lost_ratios

    ratios = lost_ratios(history)
    known = [ratios[gpu.info.gpu] is not None for gpu in history[-1].gpus if gpu.up]
    return bool(known) and all(known)


def _show(snapshots: "Iterable[NodeSnapshot]") -> None:
    """Show the table until a key or an interrupt ends it."""
    from rich.console import Console
    from rich.live import Live

    from chopperd.report.live_page import live_page
    from chopperd.report.live_rates import window
    from chopperd.report.text import Shown

    console = Console(highlight=False, markup=False, emoji=False)
    history: tuple[NodeSnapshot, ...] = ()
    screen = Live(console=console, screen=True, auto_refresh=False)
    try:
        # The page shows what a sampler would warn of.
        with quiet_stderr(), quit_key() as is_quit, screen as page:
            for snapshot in snapshots:
                history = window((*history, snapshot))
                page.update(Shown(live_page(history)), refresh=True)
                if is_quit():
                    return
    except KeyboardInterrupt:
        return  # the usual way to leave

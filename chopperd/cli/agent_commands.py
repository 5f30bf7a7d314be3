"""Running the agent of this node, and asking it."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from chopperd.cli import options
from chopperd.cli.agent import AgentOptions, leave, run_agent
from chopperd.cli.output import print_page, write
from chopperd.config.load import DEFAULT_PATH, load_config

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chopperd.client.agent import AgentClient


@click.command()
@options.backend
@options.config_path
def run(
    backend: str | None,
    config: Path | None,
) -> None:
    """Run the agent of this node: sample, keep, analyse, serve, until it is told to stop."""
    leave(run_agent(AgentOptions(config=config, backend=backend)))


@click.command()
@options.list_form
@options.config_path
def status(
    form: options.ListFormat,
    config: Path | None,
) -> None:
    """Say how the agent and its GPUs stand; exits with 1 where something is not well."""
    from chopperd.api.models import snapshot_of
    from chopperd.report.text.live_pages import node_troubles, status_page

    client = agent_client(config)
    said, body = client.status_and_json()
    now = snapshot_of(said, client.gpus())
    troubles = [*([said.trouble] if said.trouble else []), *node_troubles(now)]
    if form == "json":
        _write_json(body)
    else:
        print_page(status_page(now, troubles))
    raise click.exceptions.Exit(1 if troubles else 0)


@click.command()
@options.job
@options.run
@options.rank
@options.gpu
@options.last_steps
@options.form
@options.config_path
def steps(
    job: str | None,
    run: str | None,
    rank: int | None,
    gpu: str | None,
    last: int,
    form: options.Format,
    config: Path | None,
) -> None:
    """List the last steps that the agent has seen in traces."""
    from chopperd.model.captures import StepQuery

    client = agent_client(config)
    query = StepQuery(job=job, run=run, rank=rank, gpu=gpu)
    rows = client.last_steps(query, last)
    simulated = client.status().backend.simulated
    if form == "csv":
        from chopperd.report.forms.columns import render_steps_csv

        write(render_steps_csv(rows, simulated=simulated))
        return
    from chopperd.report.text.lists import critical_rows, encode_steps, render_steps

    if form == "json":
        write(encode_steps(rows, simulated=simulated).decode())
        return
    is_of_all = rank is None and gpu is None
    print_page(render_steps(critical_rows(rows) if is_of_all else rows, simulated=simulated))


@click.command()
@options.last_traces
@options.list_form
@options.config_path
def traces(last: int, form: options.ListFormat, config: Path | None) -> None:
    """List the traces that the agent received, newest first, and why any was rejected."""
    client = agent_client(config)
    found = client.traces(last)
    simulated = client.status().backend.simulated
    if form == "json":
        _write_list("traces", found, simulated=simulated)
        return
    from chopperd.report.text.lists import render_traces

    print_page(render_traces(found, simulated=simulated))


@click.command()
@options.list_form
@options.config_path
def jobs(form: options.ListFormat, config: Path | None) -> None:
    """List the jobs that the agent has traces of, newest first."""
    client = agent_client(config)
    found = client.jobs()
    simulated = client.status().backend.simulated
    if form == "json":
        _write_list("jobs", found, simulated=simulated)
        return
    from chopperd.report.text.lists import render_jobs

    print_page(render_jobs(found, simulated=simulated))


@click.command()
@options.gpu
@options.last_drops
@options.list_form
@options.config_path
def drops(gpu: str | None, last: int, form: options.ListFormat, config: Path | None) -> None:
    """List the drops of busy clocks that the agent saw, newest first."""
    client = agent_client(config)
    found = client.drops(gpu=gpu, limit=last)
    simulated = client.status().backend.simulated
    if form == "json":
        _write_list("drops", found, simulated=simulated)
        return
    from chopperd.report.text.lists import render_drops

    print_page(render_drops(found, simulated=simulated))


@click.command()
@options.config_path
def metrics(
    config: Path | None,
) -> None:
    """Print what the agent gives to Prometheus."""
    write(agent_client(config).metrics())


def agent_client(config: Path | None) -> "AgentClient":
    """The agent of this node, where the configuration has it."""
    from chopperd.client.agent import AgentClient

    return AgentClient.of(load_config(config or DEFAULT_PATH))


def _write_list(name: str, entries: "Sequence[object]", *, simulated: bool | None) -> None:
    import msgspec

    _write_json(msgspec.json.encode({"simulated": simulated, name: entries}))


def _write_json(body: bytes) -> None:
    import msgspec

    write(msgspec.json.format(body, indent=2).decode() + "\n")

"""Commands that run the agent of this node, query it, or show what it would show."""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from chopperd.cli import options
from chopperd.cli.agent import AgentOptions, leave, run_agent
from chopperd.cli.output import print_page, print_report, program, write
from chopperd.config.load import DEFAULT_PATH, load_config
from chopperd.errors import AgentUnreachableError

if TYPE_CHECKING:
    from chopperd.agent.sockets import Addresses
    from chopperd.client.agent import AgentClient
    from chopperd.model.report import ReportDocument

_EXIT_SIGNAL: Final = 128
_NAME_WIDTH: Final = 9
_TITLE: Final = "RUNNING ON SIMULATED DATA until Ctrl-C; try"


@options.documented("chopperd run --config chopperd.toml", "chopperd run --backend simulated")
@options.backend
@options.config_path
def run(backend: str | None, config: Path | None) -> None:
    """Run the agent of this node until it is stopped: sample, store, analyse, serve."""
    leave(run_agent(AgentOptions(config=config, backend=backend)))


@options.documented("chopperd status", "chopperd status --format json")
@options.list_form
@options.config_path
def status(form: options.ListFormat, config: Path | None) -> None:
    """Show the state of the agent and its GPUs; exit 1 if any has a problem."""
    from chopperd.api.models import snapshot_of
    from chopperd.report.text.live_pages import node_troubles, status_page

    client = options.agent_client(config)
    answer, body = client.status_and_json()
    now = snapshot_of(answer, client.gpus())
    problems = [*([answer.trouble] if answer.trouble else []), *node_troubles(now)]
    if form == "json":
        _write_json(body)
    else:
        print_page(status_page(now, problems))
    raise click.exceptions.Exit(1 if problems else 0)


@options.documented("chopperd steps --last 20", "chopperd steps --job llama --rank 0 --format csv")
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
    """List the last steps in the traces that the agent has analysed; exit 1 if there are none."""
    from chopperd.model.captures import StepQuery

    client = options.agent_client(config)
    query = StepQuery(job=job, run=run, rank=rank, gpu=gpu)
    rows = client.last_steps(query, last)
    simulated = client.status().backend.simulated
    if form == "csv":
        from chopperd.report.forms.columns import render_steps_csv

        write(render_steps_csv(rows, simulated=simulated))
    else:
        from chopperd.report.text.lists import critical_rows, encode_steps, render_steps

        if form == "json":
            write(encode_steps(rows, simulated=simulated).decode())
        else:
            shown = critical_rows(rows) if rank is None and gpu is None else rows
            print_page(render_steps(shown, simulated=simulated))
    raise click.exceptions.Exit(0 if rows else 1)


@options.documented("chopperd traces", "chopperd traces --last 5 --format json")
@options.last_traces
@options.list_form
@options.config_path
def traces(last: int, form: options.ListFormat, config: Path | None) -> None:
    """List the traces that the agent received, newest first, and why any was rejected."""
    _print_list("traces", lambda client: client.traces(last), form, config)


@options.documented("chopperd jobs", "chopperd jobs --format json")
@options.list_form
@options.config_path
def jobs(form: options.ListFormat, config: Path | None) -> None:
    """List the jobs that the agent has traces of, newest first."""
    _print_list("jobs", lambda client: client.jobs(), form, config)


@options.documented("chopperd drops", "chopperd drops --gpu 3 --last 10")
@options.gpu
@options.last_drops
@options.list_form
@options.config_path
def drops(gpu: str | None, last: int, form: options.ListFormat, config: Path | None) -> None:
    """List the drops of busy clocks that the agent detected, newest first."""
    _print_list("drops", lambda client: client.drops(gpu=gpu, limit=last), form, config)


@options.documented("chopperd metrics", "chopperd metrics > chopperd.prom")
@options.config_path
def metrics(config: Path | None) -> None:
    """Print the metrics that the agent exports to Prometheus."""
    write(options.agent_client(config).metrics())


def _print_list(
    name: str,
    entries_of: "Callable[[AgentClient], Sequence[object]]",
    form: options.ListFormat,
    config: Path | None,
) -> None:
    """Request entries from the agent and print them as a table, or as JSON under `name`."""
    client = options.agent_client(config)
    entries = entries_of(client)
    simulated = client.status().backend.simulated
    if form == "json":
        import msgspec

        _write_json(msgspec.json.encode({"simulated": simulated, name: entries}))
        return
    from chopperd.report.text import lists

    render = getattr(lists, f"render_{name}")  # `render_traces` and the like
    print_page(render(entries, simulated=simulated))


def _write_json(body: bytes) -> None:
    import msgspec

    write(msgspec.json.format(body, indent=2).decode() + "\n")


@options.documented("chopperd demo", "chopperd demo --preset fsdp2-mi300x --seconds 2")
@options.seconds
@options.preset
@options.seed
@options.form
@options.stay
def demo(seconds: float, preset: str, seed: int, form: options.Format, stay: bool | None) -> None:
    """Run the agent on a simulated training job and show its report; needs no GPU."""
    from chopperd.agent.service import Agent
    from chopperd.cli.demo import Demonstration, demo_config, demo_spec, job_processes, write_token
    from chopperd.cli.own import scratch_folder
    from chopperd.clock import SystemClock

    stays = sys.stdout.isatty() if stay is None else stay
    spec = demo_spec(seed, preset, SystemClock().unix_ns(), seconds=seconds)

    def show(document: "ReportDocument") -> None:
        print_report(document, form)
        if stays and form == "text":
            _print_addresses(agent.addresses, token)

    with scratch_folder() as folder, job_processes(spec) as pids:
        spec = replace(spec, host=os.uname().nodename, pids=pids)
        config = demo_config(load_config(DEFAULT_PATH), folder)
        token = write_token(config)
        demonstration = Demonstration(spec, config, show, seconds=seconds, stays=stays)
        agent = Agent(
            config, simulation=spec, on_ready=lambda ready: demonstration.start(ready.stop)
        )
        agent.run()
        try:
            demonstration.finish()
        except AgentUnreachableError:  # it was asked something while it was stopping
            if agent.stopped_by is None:
                raise
    if agent.stopped_by is not None and not demonstration.is_shown:
        raise click.exceptions.Exit(_EXIT_SIGNAL + agent.stopped_by)


def _print_addresses(addresses: "Addresses", token: str) -> None:
    """Print where to look; the token in the page's address, which no server sees, shows the job."""
    from chopperd.agent.sockets import url_of

    rows: list[tuple[str, str]] = []
    if addresses.api is not None:
        rows.append(("page", f"{url_of(addresses.api)}/#token={token}"))
    if addresses.metrics is not None:
        rows.append(("metrics", f"curl {url_of(addresses.metrics)}/metrics"))
    if addresses.api is not None:
        url = url_of(addresses.api)
        rows += [("API", f"curl {url}/api/v1/status"), ("docs", f"{url}/docs")]
    if (path := addresses.api_socket) is not None:
        rows.append(("socket", f"curl --unix-socket {path} http://localhost/api/v1/gpus"))
        commands = ("top", "status", "steps", "report", "drops")
        rows += [
            ("", f"CHOPPERD_PATHS__RUNTIME={path.parent} {program()} {name}") for name in commands
        ]
    lines = (f"{name:<{_NAME_WIDTH}}{what}\n" for name, what in rows)
    write(f"\n{_TITLE}\n{''.join(lines)}")

"""From a trace in the inbox to its steps in the API, and what the worker takes for it.

`python -m bench.agent_inbox` prints Markdown.
"""

import argparse
import shutil
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from bench.agents import CLOCK, JOB, BenchAgent, good_agent, kernel_kib, print_report, wait_until
from bench.big_trace import NO_BIG_TRACE, made
from bench.markdown import Figure, figure_table, median_and_range, table
from bench.processes import cpu_ns
from chopperd.simulation.kineto import rank_trace
from chopperd.simulation.node import SimulatedNode
from chopperd.simulation.presets import SimulationSpec
from chopperd.units import NS_PER_S
from tests.agent_http import ask

MOST_WORKER_MIB: Final = 400.0
AIM_WORKER_MIB: Final = 250.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """One trace through a fresh agent.

    Attributes:
        analysed_s: From its appearance in the inbox to its steps in the API.
        cpu_s: CPU time of the worker.
        peak_mib: Largest resident set of the worker.
    """

    analysed_s: float
    cpu_s: float
    peak_mib: float


def passage(source: Path) -> Passage:
    """Drop a copy of a trace and wait for its steps."""
    with good_agent() as under:
        begin_ns = dropped(under, source)
        wait_until("its steps", lambda: has_steps(under), within_s=600)
        end_ns = CLOCK.mono_ns()
        worker = under.worker_pid()
        if worker is None:
            raise RuntimeError("the worker is gone: its memory can't be told")
        return Passage(
            analysed_s=(end_ns - begin_ns) / NS_PER_S,
            cpu_s=cpu_ns(worker) / NS_PER_S,
            peak_mib=kernel_kib(worker, "status", "VmHWM") / 1024,
        )


def dropped(under: BenchAgent, source: Path, name: str = "rank0.json") -> int:
    """Put a copy into the inbox as a job does; when it appeared there, in MONOTONIC ns."""
    under.inbox.mkdir(exist_ok=True)
    part = under.inbox / f".{name}.part"
    shutil.copyfile(source, part)
    part.rename(under.inbox / name)
    return CLOCK.mono_ns()


def has_steps(under: BenchAgent) -> bool:
    """Whether the API shows any step of the job."""
    return bool(ask(under.socket, f"/api/v1/steps?job={JOB}&limit=1").json["steps"])


def small_trace(folder: Path) -> Path:
    """One rank of a simulated job, two steps."""
    begin_ns = CLOCK.unix_ns() - 60 * NS_PER_S
    node = SimulatedNode(SimulationSpec(start_unix_ns=begin_ns))
    step = node.step_at(begin_ns + 30 * NS_PER_S)
    path = folder / "small.json"
    path.write_bytes(b"".join(rank_trace(node, 0, step, step + 1)))
    return path


def report(runs: int) -> str:
    """Everything as Markdown."""
    with TemporaryDirectory(prefix="chopperd-bench-") as folder:
        big = made("big")
        sources = [small_trace(Path(folder)), *([big] if big else [])]
        seen = {
            f"{path.stat().st_size / 1e6:.0f} MB": [passage(path) for _ in range(runs)]
            for path in sources
        }
    rows = [
        [
            size,
            median_and_range([each.analysed_s for each in passages]),
            median_and_range([each.cpu_s for each in passages]),
            median_and_range([each.peak_mib for each in passages], ".0f"),
        ]
        for size, passages in seen.items()
    ]
    peak_mib = max(each.peak_mib for passages in seen.values() for each in passages)
    peak = Figure(
        what="worker's largest resident set, MiB",
        shown=f"{peak_mib:.0f}",
        value=peak_mib,
        must=MOST_WORKER_MIB,
        aim=AIM_WORKER_MIB,
    )
    lines = [
        f"Traces dropped into the inbox of a fresh agent, {runs} times each. The time holds 0.5 s "
        "in which the file must not change (the default is 2 s) and the worker's start.",
        table(("trace", "in the API after s", "worker's CPU s", "worker's peak MiB"), rows),
        figure_table([peak]),
    ]
    if big is None:
        lines.append(NO_BIG_TRACE)
    return "\n\n".join(lines)


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    chosen = parser.parse_args(argv)
    print_report(lambda: report(chosen.runs))


if __name__ == "__main__":
    main()

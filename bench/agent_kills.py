"""kill -9 of the whole agent at random moments: what is lost, torn or left, and what follows.

`python -m bench.agent_kills` prints Markdown. Each life is fed a trace and killed while it starts,
takes it in, analyses it, stores it or rests; the next life must show each step that any earlier one
has shown.
"""

import argparse
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from bench.agents import CLOCK, JOB, BenchAgent, agent, print_report, processes_in, wait_until
from bench.markdown import Figure, figure_table
from chopperd.model.arrays import Float64s
from chopperd.model.captures import TraceState
from chopperd.simulation.kineto import rank_trace
from chopperd.store.recorder.reader import RecordedSamples
from chopperd.units import NS_PER_MS, NS_PER_S
from tests.agent_http import ask

MOST_SAMPLING_MS: Final = 1000.0
#: One life in so many is killed while it starts, not at some time after.
_STARTING_IN: Final = 4
_STARTING_MS: Final = 800
#: The others within so many times what an undisturbed analysis takes here and now.
_SERVING_RATIO: Final = 1.3
#: The journal is written each second; what is younger may go with the agent.
_UNRECORDED_NS: Final = 3 * NS_PER_S

Step = tuple[str | None, int | None, int | None]


@dataclass(slots=True, kw_only=True)
class Toll:
    """What all the kills cost.

    Attributes:
        told: Steps that any life has shown.
        lost: Those that a later life did not show.
        orphan_count: Processes that outlived the agent by 5 s.
        left: Files in the runtime folder or temporary ones in the state folder, at the very end.
        damaged_count: Torn pieces in the flight recorder.
        unrecorded_count: Kills before which samples older than 3 s were not in the recorder.
        given_up_count: Traces put aside, with the reason, after kills in six of their analyses.
        serving_ms: After the first good scrape an agent was killed within this time.
        sampling_ms: From each start to the first sample of all GPUs.
        fd_counts: Open files of the agent at rest, before and after all the kills.
    """

    told: set[Step] = field(default_factory=set)
    lost: set[Step] = field(default_factory=set)
    orphan_count: int = 0
    left: tuple[str, ...] = ()
    damaged_count: int = 0
    unrecorded_count: int = 0
    given_up_count: int = 0
    serving_ms: int = 0
    sampling_ms: list[float] = field(default_factory=list)
    fd_counts: list[int] = field(default_factory=list)


def shown_steps(under: BenchAgent) -> set[Step]:
    """All step rows that the API shows."""
    steps: set[Step] = set()
    cursor = ""
    while True:
        page = ask(under.socket, f"/api/v1/steps?limit=1000&job={JOB}{cursor}").json
        steps |= {(row["run"], row["step"], row["device"]) for row in page["steps"]}
        if page["cursor"] is None:
            return steps
        cursor = f"&cursor={page['cursor']}"


def traces_of(under: BenchAgent) -> Iterator[bytes]:
    """Small traces of rank 0, each of another two steps."""
    step = under.node.step_at(CLOCK.unix_ns() - 10 * NS_PER_S)
    while True:
        yield b"".join(rank_trace(under.node, 0, step, step + 1))
        step += 2


def one_life(under: BenchAgent, toll: Toll, kill_ms: int, trace: tuple[str, bytes] | None) -> None:
    """Start it, feed it, and kill it.

    Args:
        under: What is killed.
        toll: Is added to.
        kill_ms: After the first good scrape or, with no trace, after the start.
        trace: Name and content; dropped at the first good scrape.
    """
    begin_unix_ns, begin_ns = CLOCK.unix_ns(), CLOCK.mono_ns()
    under.start()
    if trace is not None:
        wait_until("a good scrape", under.is_good)
        drop(under, *trace)
        begin_ns = CLOCK.mono_ns()
        toll.lost |= toll.told - shown_steps(under)
    CLOCK.sleep_until(begin_ns + kill_ms * NS_PER_MS)
    if trace is not None:
        toll.told |= shown_steps(under)
    killed_unix_ns = CLOCK.unix_ns()
    under.kill()
    look_at_what_is_left(under, toll, begin_unix_ns, killed_unix_ns)


def drop(under: BenchAgent, name: str, trace: bytes) -> None:
    """Put a trace into the inbox as a job does."""
    under.inbox.mkdir(exist_ok=True)
    part = under.inbox / f".{name}.part"
    part.write_bytes(trace)
    part.rename(under.inbox / name)


def look_at_what_is_left(
    under: BenchAgent, toll: Toll, begin_unix_ns: int, killed_unix_ns: int
) -> None:
    """Processes and samples of a life that has just been ended."""
    until_ns = CLOCK.mono_ns() + 5 * NS_PER_S
    while (alive := processes_in(under.folder)) and CLOCK.mono_ns() < until_ns:
        CLOCK.sleep_until(CLOCK.mono_ns() + 10 * NS_PER_MS)
    toll.orphan_count += len(alive)
    recorded = RecordedSamples(under.folder / "state" / "recorder")
    samples = recorded.between(begin_unix_ns, CLOCK.unix_ns())
    toll.damaged_count += recorded.damaged_count
    if samples is None:
        toll.unrecorded_count += killed_unix_ns - begin_unix_ns > 2 * _UNRECORDED_NS
        return
    first_ns = max(int(gpu.t_unix_ns[0]) for gpu in samples.gpus)
    last_ns = min(int(gpu.t_unix_ns[-1]) for gpu in samples.gpus)
    toll.unrecorded_count += killed_unix_ns - last_ns > _UNRECORDED_NS
    toll.sampling_ms.append((first_ns - begin_unix_ns) / NS_PER_MS)


def kill_often(kills: int) -> Toll:
    """Kill it so often, between a first and a last life that end well."""
    chance = random.Random(20261128)
    toll = Toll()
    with agent(ANALYSIS__IDLE_S="2", INGEST__SETTLE_S="0.2") as under:
        contents = traces_of(under)
        dropped = [("first.json", next(contents))]
        toll.serving_ms = round(_SERVING_RATIO * whole_life(under, toll, dropped))
        for number in range(kills):
            if number % _STARTING_IN == _STARTING_IN - 1:
                one_life(under, toll, chance.randint(0, _STARTING_MS), None)
                continue
            dropped.append((f"kill{number}.json", next(contents)))
            one_life(under, toll, chance.randint(0, toll.serving_ms), dropped[-1])
        dropped.append(("last.json", next(contents)))
        whole_life(under, toll, dropped)
        state = under.folder / "state"
        left = [
            *(under.folder / "run").iterdir(),
            *state.glob("inbox/*/*"),
            *state.glob("**/*.part"),
        ]
        toll.left = tuple(str(path.relative_to(under.folder)) for path in left)
    return toll


def whole_life(under: BenchAgent, toll: Toll, dropped: list[tuple[str, bytes]]) -> float:
    """Start it, let it end all work, and stop it; from the last trace to the end of work, ms."""
    under.start()
    wait_until("a good scrape", under.is_good)
    begin_ns = CLOCK.mono_ns()
    drop(under, *dropped[-1])
    wait_until("all traces", lambda: under.finished_count() == len(dropped))
    worked_ms = (CLOCK.mono_ns() - begin_ns) / NS_PER_MS
    wait_until("the worker to end", lambda: under.worker_pid() is None)
    toll.lost |= toll.told - shown_steps(under)
    toll.fd_counts.append(open_file_count(under))
    toll.given_up_count = given_up_count(under)
    under.stop()
    return worked_ms


def open_file_count(under: BenchAgent) -> int:
    """Open files of the agent but those of its state, of which there are more with time."""
    state = str(under.folder / "state")
    links = [str(entry.readlink()) for entry in Path(f"/proc/{under.pid}/fd").iterdir()]
    return sum(not link.startswith(state) for link in links)


def given_up_count(under: BenchAgent) -> int:
    """Traces that were not analysed, as the kills fell into too many of their analyses."""
    return sum(trace.state is TraceState.KILLED for trace in under.traces())


def report(kills: int) -> str:
    """Everything as Markdown."""
    toll = kill_often(kills)
    sampling_ms: Float64s = np.array(toll.sampling_ms)
    fds = toll.fd_counts
    figures = [
        _count("steps that were shown once and then lost", len(toll.lost)),
        _count("torn or damaged pieces in the recorder", toll.damaged_count),
        _count("kills that cost samples older than 3 s", toll.unrecorded_count),
        _count("processes that outlived the agent by 5 s", toll.orphan_count),
        _count("files left in the runtime folder or the inbox at the end", len(toll.left)),
        _count("open files at rest, more than before the kills", max(0, fds[-1] - fds[0])),
        Figure(
            what="traces put aside after kills in six of their analyses",
            shown=f"{toll.given_up_count}",
            value=float(toll.given_up_count),
        ),
        Figure(
            what="sampling again, ms p50/max",
            shown=f"{np.median(sampling_ms):.0f}/{sampling_ms.max():.0f}",
            value=float(sampling_ms.max()),
            must=MOST_SAMPLING_MS,
        ),
    ]
    return (
        f"{kills} kills, one in {_STARTING_IN} in the first {_STARTING_MS} ms of a start, the "
        f"others within {toll.serving_ms} ms after the first good scrape, in which a trace "
        f"arrives, is analysed and stored; {len(toll.told):,} steps were shown and asked for "
        "again.\n\n"
        f"{figure_table(figures)}"
    )


def _count(what: str, count: int) -> Figure:
    return Figure(what=what, shown=f"{count}", value=float(count), must=0.0)


def main(argv: list[str] | None = None) -> None:
    """Kill and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    chosen = parser.parse_args(argv)
    print_report(lambda: report(chosen.kills))


if __name__ == "__main__":
    main()

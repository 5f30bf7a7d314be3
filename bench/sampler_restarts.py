"""A thousand samplers, each ended or killed: what is left of them in the process that keeps them.

`python -m bench.sampler_restarts` prints Markdown. The supervisor, the sampler process and the
shared memory are those of the product, the GPUs scripted. Several supervisors take turns, so that
one's sampler starts while another's is ended.
"""

import argparse
import gc
import logging
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.agents import print_report, wait_until
from bench.markdown import Figure, figure_table
from chopperd.clock import SystemClock
from chopperd.sampling.settings import RestartPolicy, SamplerSettings
from chopperd.sampling.supervisor import SamplerSupervisor, SupervisorState
from tests.integration.sampling.supervised import SCRIPT

CLOCK: Final = SystemClock()
SIDE_BY_SIDE: Final = 4
#: What the first rounds take is not a leak.
SETTLED: Final = 5
MOST_MORE_MIB: Final = 2.0
#: No pause between two samplers, however soon each ends.
AT_ONCE: Final = RestartPolicy(start_s=60.0, hung_s=30.0, longest_pause_s=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What this process holds: open files, memory files among them, threads, children, memory.

    The memory is what is in no file, as pages of files are shared with other programs.
    """

    files: int
    memories: int
    threads: int
    children: int
    own_mib: float


@dataclass(slots=True)
class Kept:
    """One supervisor and the rounds that its samplers have had."""

    supervisor: SamplerSupervisor
    rounds: int = 0
    ended_pids: list[int] = field(default_factory=list)

    def end_one(self) -> None:
        """End its sampler, every other time by kill -9; another one starts."""
        pid = self.supervisor.pid
        assert pid is not None
        self.rounds += 1
        self.ended_pids.append(pid)
        if self.rounds % 2:
            os.kill(pid, signal.SIGKILL)
            wait_until("a successor", lambda: self.supervisor.poll() and self.supervisor.pid != pid)
        else:
            self.supervisor.suspend()
            self.supervisor.stop(30.0)
            self.supervisor.launch()


def held() -> Held:
    """What this process holds now."""
    gc.collect()
    links = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            links.append(str(entry.readlink()))
        except FileNotFoundError:  # the listing's own
            continue
    rollup = Path("/proc/self/smaps_rollup").read_text().splitlines()
    kinds = ("Pss_Anon:", "Pss_Shmem:")
    own_kib = sum(int(line.split()[1]) for line in rollup if line.startswith(kinds))
    return Held(
        files=len(links),
        memories=sum("memfd:" in link for link in links),
        threads=threading.active_count(),
        children=len(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()),
        own_mib=own_kib / 1024,
    )


@contextmanager
def several(folder: Path) -> Iterator[list[Kept]]:
    """Supervisors whose samplers run; all have ended afterwards."""
    command = [sys.executable, str(SCRIPT), "--gpus", "2", "--folder", str(folder)]
    settings = SamplerSettings(hz=10.0, budget_ratio=1.0)
    kept = [Kept(SamplerSupervisor(command, settings, CLOCK, AT_ONCE)) for _ in range(SIDE_BY_SIDE)]
    try:
        for each in kept:
            each.supervisor.start()
        yield kept
    finally:
        for each in kept:
            each.supervisor.stop(30.0)
            each.supervisor.close()


def restarted(kept: list[Kept], rounds: int) -> None:
    """Let so many samplers come and go; all run again at the end."""
    for turn in range(rounds):
        each = kept[turn % len(kept)]
        wait_for_running(each)
        each.end_one()
    for each in kept:
        wait_for_running(each)


def wait_for_running(kept: Kept) -> None:
    """Wait until its sampler samples."""
    wait_until("a sampler", lambda: kept.supervisor.poll() is SupervisorState.RUNNING)


def report(rounds: int) -> str:
    """Everything as Markdown."""
    with tempfile.TemporaryDirectory() as folder, several(Path(folder)) as kept:
        restarted(kept, SETTLED * len(kept))
        before, began_s = held(), time.monotonic()
        restarted(kept, rounds)
        took_s, after = time.monotonic() - began_s, held()
        left = sum(len(each.supervisor.left_pids) for each in kept)
        generations = sum(each.supervisor.reader.generation for each in kept)
    figures = [
        _count("open files, more than before", after.files - before.files),
        _count("memory files, more than before", after.memories - before.memories),
        _count("threads, more than before", after.threads - before.threads),
        _count("children, more than before", after.children - before.children),
        _count("samplers left alone", left),
        Figure(
            what="memory (PSS in no file), MiB more than before",
            shown=f"{after.own_mib - before.own_mib:.2f}",
            value=after.own_mib - before.own_mib,
            must=MOST_MORE_MIB,
        ),
    ]
    return (
        f"{rounds} samplers, half of them killed by -9, under {SIDE_BY_SIDE} supervisors in one "
        f"process of {before.own_mib:.0f} MiB of its own; {generations} took a ring over. "
        f"{1000 * took_s / rounds:.0f} ms a sampler, {took_s:.0f} s in all.\n\n"
        f"{figure_table(figures)}"
    )


def _count(what: str, count: int) -> Figure:
    return Figure(what=what, shown=f"{count}", value=float(count), must=0.0)


def main(argv: list[str] | None = None) -> None:
    """Restart and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1000)
    chosen = parser.parse_args(argv)
    logging.disable(logging.WARNING)  # a line for each that was killed
    print_report(lambda: report(chosen.rounds))


if __name__ == "__main__":
    main()

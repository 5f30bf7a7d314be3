"""How soon the agent samples and serves after its start, also after kill -9, and how it ends.

`python -m bench.agent_starts` prints Markdown.
"""

import argparse
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.agents import CLOCK, BenchAgent, agent, idle, print_report, wait_until
from bench.markdown import Figure, figure_table, median_and_range
from bench.processes import cpu_ns
from chopperd.store.recorder.reader import RecordedSamples
from chopperd.units import NS_PER_MS

MOST_FIRST_SAMPLE_MS: Final = 1000.0
MOST_GOOD_SCRAPE_MS: Final = 1500.0
MOST_END_MS: Final = 2000.0
#: The flight recorder has what is older.
_RECORDED_AFTER_S: Final = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One start; times from before the process was made, in ms.

    Attributes:
        first_sample_ms: To the first sample of the GPU that was sampled last.
        good_scrape_ms: To the end of the first scrape in which every GPU is up.
        cpu_ms: CPU time of agent and sampler until then.
    """

    first_sample_ms: float
    good_scrape_ms: float
    cpu_ms: float


def started(under: BenchAgent) -> Start:
    """Start it, and leave it running."""
    begin_unix_ns, begin_ns = CLOCK.unix_ns(), CLOCK.mono_ns()
    under.start()
    wait_until("a good scrape", under.is_good, every_ms=5)
    good_ns = CLOCK.mono_ns()
    used_ns = cpu_ns(under.pid) + cpu_ns(under.sampler_pid())
    idle(_RECORDED_AFTER_S)
    first_ns = first_sample_unix_ns(under.folder, begin_unix_ns)
    return Start(
        first_sample_ms=(first_ns - begin_unix_ns) / NS_PER_MS,
        good_scrape_ms=(good_ns - begin_ns) / NS_PER_MS,
        cpu_ms=used_ns / NS_PER_MS,
    )


def floor_start_ms() -> float:
    """What an interpreter takes here and now that imports numpy and does nothing."""
    begin_ns = CLOCK.mono_ns()
    subprocess.run([sys.executable, "-c", "import numpy"], check=True)
    return (CLOCK.mono_ns() - begin_ns) / NS_PER_MS


def first_sample_unix_ns(folder: Path, since_unix_ns: int) -> int:
    """When every GPU had a sample, as the flight recorder kept them.

    Raises:
        RuntimeError: It kept none since.
    """
    kept = RecordedSamples(folder / "state" / "recorder").between(since_unix_ns, CLOCK.unix_ns())
    if kept is None:
        raise RuntimeError("the flight recorder kept nothing since the start")
    return max(int(gpu.t_unix_ns[0]) for gpu in kept.gpus)


def report(starts: int) -> str:
    """Everything as Markdown."""
    clean, killed, end_ms, floor_ms = [], [], [], []
    with agent() as under:
        for _ in range(starts):
            floor_ms.append(floor_start_ms())
            clean.append(started(under))
            under.kill()
            killed.append(started(under))
            begin_ns = CLOCK.mono_ns()
            under.stop()
            end_ms.append((CLOCK.mono_ns() - begin_ns) / NS_PER_MS)
    cpu_ms = [each.cpu_ms for each in (*clean, *killed)]
    figures = [
        *_figures("start", clean),
        *_figures("start after kill -9", killed),
        _figure("SIGTERM to end, ms", end_ms, MOST_END_MS),
        _figure("CPU of agent and sampler until the good scrape, ms", cpu_ms, None),
        _figure("beside them: an interpreter that imports numpy, ms", floor_ms, None),
    ]
    return (
        f"{starts} starts of `chopperd run` each; the slowest counts. The start is that of the "
        "interpreter; who starts it again after a kill adds its own delay.\n\n"
        f"{figure_table(figures)}"
    )


def _figures(name: str, starts: list[Start]) -> list[Figure]:
    first_ms = [each.first_sample_ms for each in starts]
    good_ms = [each.good_scrape_ms for each in starts]
    return [
        _figure(f"{name} to first sample of all GPUs, ms", first_ms, MOST_FIRST_SAMPLE_MS),
        _figure(f"{name} to good scrape, ms", good_ms, MOST_GOOD_SCRAPE_MS),
    ]


def _figure(what: str, values_ms: list[float], must_ms: float | None) -> Figure:
    shown = median_and_range(values_ms, ".0f")
    return Figure(what=what, shown=shown, value=max(values_ms), must=must_ms)


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=5)
    chosen = parser.parse_args(argv)
    print_report(lambda: report(chosen.starts))


if __name__ == "__main__":
    main()

"""How late samples are at 100 Hz while the agent's own worker analyses a large trace.

`python -m bench.agent_lateness` prints Markdown. The samples are read from the sampler's memory, by
turns with a process that only sleeps as often, as `bench.sampling` has it.
"""

import argparse
from pathlib import Path
from typing import Final

import numpy as np

from bench.agent_inbox import dropped
from bench.agents import CLOCK, GPUS, BenchAgent, good_agent, print_report, wait_until
from bench.big_trace import NO_BIG_TRACE, made
from bench.markdown import Figure, figure_table, table
from chopperd.model.arrays import Float64s
from chopperd.sampling.memory.ring_reader import RingReader
from chopperd.units import NS_PER_MS, NS_PER_S

HZ: Final = 100.0
MOST_P99_MS: Final = 2.0
AIM_P99_MS: Final = 1.0
MOST_MS: Final = 50.0


def late_ms_between(ring: RingReader, begin_mono_ns: int, end_mono_ns: int) -> Float64s:
    """(n,) lateness of the samples of a time, of all GPUs."""
    kept = []
    for slot in range(GPUS):
        records = ring.drain(slot).records
        inside = (records["t_mono_ns"] >= begin_mono_ns) & (records["t_mono_ns"] < end_mono_ns)
        kept.append(records["late_ns"][inside])
    return np.concatenate(kept) / NS_PER_MS


def late_at_rest_ms(under: BenchAgent, seconds: float) -> Float64s:
    """(n,) lateness while nothing else happens."""
    with under.ring() as ring:
        begin_ns = CLOCK.mono_ns()
        CLOCK.sleep_until(begin_ns + round(seconds * NS_PER_S))
        return late_ms_between(ring, begin_ns, CLOCK.mono_ns())


def late_in_analysis_ms(under: BenchAgent, source: Path) -> Float64s:
    """(n,) lateness from the start of the analysis of the big trace to its end."""
    dropped(under, source)
    wait_until("the worker to work", lambda: under.status()["analysis"]["working_on"])
    with under.ring() as ring:
        begin_ns = CLOCK.mono_ns()
        wait_until(
            "the analysis",
            lambda: not under.status()["analysis"]["working_on"],
            within_s=600,
            every_ms=500,
        )
        return late_ms_between(ring, begin_ns, CLOCK.mono_ns())


def report(analyses: int, seconds: float) -> str:
    """Everything as Markdown."""
    source = made("big")
    if source is None:
        return NO_BIG_TRACE
    rest, busy = [], []
    for _ in range(analyses):
        # A fresh agent each time: it would not analyse the same bytes again.
        with good_agent(SAMPLING__HZ=f"{HZ:g}", SAMPLING__DRIVER_BUDGET_RATIO="0.5") as under:
            rest.append(late_at_rest_ms(under, seconds))
            busy.append(late_in_analysis_ms(under, source))
    rest_ms, busy_ms = np.concatenate(rest), np.concatenate(busy)
    p99_ms, most_ms = float(np.quantile(busy_ms, 0.99)), float(busy_ms.max())
    figures = [
        Figure(
            what="late in the analysis, p99 ms",
            shown=f"{p99_ms:.2f}",
            value=p99_ms,
            must=MOST_P99_MS,
            aim=AIM_P99_MS,
        ),
        Figure(
            what="late in the analysis, most, ms",
            shown=f"{most_ms:.1f}",
            value=most_ms,
            must=MOST_MS,
        ),
    ]
    rows = [_row("nothing", rest_ms), _row("470 MB being analysed by the agent", busy_ms)]
    lines = [
        f"{GPUS} GPUs at {HZ:g} Hz in the whole agent; {analyses} analyses, {seconds:g} s of rest "
        "before each.",
        figure_table(figures),
        table(("beside", "samples", "late ms p50/p99/max"), rows),
    ]
    return "\n\n".join(lines)


def _row(beside: str, late_ms: Float64s) -> list[str]:
    quantiles = np.quantile(late_ms, [0.5, 0.99, 1.0])
    return [beside, f"{len(late_ms):,}", "/".join(f"{each:.2f}" for each in quantiles)]


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--analyses", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0, help="of rest before each")
    chosen = parser.parse_args(argv)
    print_report(lambda: report(chosen.analyses, chosen.seconds))


if __name__ == "__main__":
    main()

"""How long a scrape takes over HTTP, whatever else the agent has to do.

`python -m bench.agent_scrapes` prints Markdown. A snapshot is rendered by the first scrape that
asks for it; Prometheus scrapes so seldom that this one is always its own. Those are found among
many scrapes by their new text, and they are what counts.
"""

import argparse
import http.client
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from bench.agent_idle import analyse_capture
from bench.agent_inbox import dropped
from bench.agents import CLOCK, GPUS, BenchAgent, good_agent, idle, print_report, wait_until
from bench.big_trace import NO_BIG_TRACE, made
from bench.markdown import Figure, figure_table, table
from bench.processes import ROOT, ended
from chopperd.model.arrays import Float64s
from chopperd.units import NS_PER_MS, NS_PER_S
from tests.fakes.nvml.scenario import TIMEOUT

MOST_MS: Final = 20.0
AIM_MS: Final = 5.0
FORMATS: Final = {
    "text": "text/plain;version=0.0.4",
    "OpenMetrics": "application/openmetrics-text;version=1.0.0",
}
_EVERY_NS: Final = 40 * NS_PER_MS
_HANGS: Final = "nvmlDeviceGetClockInfo"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrapes:
    """Scrapes of one format.

    Attributes:
        taken_ms: (n,) from before the request to the last byte.
        is_new: (n,) whether it was the first of its snapshot.
    """

    taken_ms: Float64s
    is_new: np.ndarray


class Scraper:
    """Scrapes on one connection that stays open, as Prometheus does."""

    def __init__(self, port: int, accept: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._headers = {"Accept": accept, "Accept-Encoding": "gzip"}
        self._last = b""
        self._taken_ms: list[float] = []
        self._is_new: list[bool] = []

    def scrape(self) -> None:
        """Scrape once."""
        begin_ns = CLOCK.mono_ns()
        self._connection.request("GET", "/metrics", headers=self._headers)
        answer = self._connection.getresponse()
        body = answer.read()
        self._taken_ms.append((CLOCK.mono_ns() - begin_ns) / NS_PER_MS)
        if answer.status != 200:
            raise RuntimeError(f"a scrape was answered with {answer.status}")
        self._is_new.append(body != self._last)
        self._last = body

    def close(self) -> Scrapes:
        """What was found; the first scrape, which connects, is left out."""
        self._connection.close()
        return Scrapes(taken_ms=np.array(self._taken_ms[1:]), is_new=np.array(self._is_new[1:]))


def scrapes(under: BenchAgent, is_over: Callable[[], bool]) -> dict[str, Scrapes]:
    """Scrape by turns in each format, until told that it is over."""
    scrapers = {name: Scraper(under.metrics_port, accept) for name, accept in FORMATS.items()}
    due_ns = CLOCK.mono_ns()
    while not is_over():
        for scraper in scrapers.values():
            CLOCK.sleep_until(due_ns)
            due_ns = max(due_ns, CLOCK.mono_ns() - _EVERY_NS) + _EVERY_NS
            scraper.scrape()
    return {name: scraper.close() for name, scraper in scrapers.items()}


def for_s(seconds: float) -> Callable[[], bool]:
    """Tells when so many seconds have passed since now."""
    end_ns = CLOCK.mono_ns() + round(seconds * NS_PER_S)
    return lambda: CLOCK.mono_ns() >= end_ns


@contextmanager
def a_hung_call(under: BenchAgent, seconds: float) -> Iterator[None]:
    """A call of one GPU does not return for so long."""
    gpu = under.scenario.gpus[3]
    gpu.fails(TIMEOUT, _HANGS, delay_ms=round(1000 * seconds))
    try:
        # So long that the GPU counts as silent, and a new sampler is considered.
        idle(1.0)
        yield
    finally:
        gpu.fails(0, _HANGS)


@contextmanager
def heavy_clients(under: BenchAgent) -> Iterator[None]:
    """Other clients ask for much, slowly."""
    analyse_capture(under)
    addresses = (str(under.socket), str(under.metrics_port))
    command = [sys.executable, "-m", "bench.agent_clients", *addresses]
    clients = subprocess.Popen(command, cwd=ROOT)
    try:
        idle(1.0)
        yield
    finally:
        ended(clients)


def analysed_big_trace(under: BenchAgent, source: Path) -> Callable[[], bool]:
    """Have the big trace analysed; tells when it is over."""
    before = under.finished_count()
    dropped(under, source)
    wait_until("the worker to work", lambda: under.status()["analysis"]["working_on"])
    looked_ns = [CLOCK.mono_ns()]

    def is_over() -> bool:
        # Asked seldom, so that asking is no load of its own.
        if CLOCK.mono_ns() - looked_ns[0] < NS_PER_S // 2:
            return False
        looked_ns[0] = CLOCK.mono_ns()
        return under.finished_count() > before

    return is_over


def measured(seconds: float, big: Path | None) -> dict[str, dict[str, Scrapes]]:
    """Scrapes by what else went on, and by format."""
    with good_agent(ANALYSIS__IDLE_S="2") as under:
        beside: dict[str, AbstractContextManager[None]] = {
            "nothing": nullcontext(),
            "clients that ask much, slowly": heavy_clients(under),
            # Last: the call goes on hanging for a while.
            "a driver call that hangs": a_hung_call(under, seconds + 5),
        }
        seen = {}
        for name, load in beside.items():
            with load:
                seen[name] = scrapes(under, for_s(seconds))
            if name == "nothing" and big is not None:
                seen["470 MB being analysed"] = scrapes(under, analysed_big_trace(under, big))
        return seen


def report(seconds: float) -> str:
    """Everything as Markdown."""
    big = made("big")
    seen = measured(seconds, big)
    figures = [_figure(beside, by_format) for beside, by_format in seen.items()]
    rows = [
        [beside, name, *_cells(each.taken_ms[each.is_new]), *_cells(each.taken_ms)]
        for beside, by_format in seen.items()
        for name, each in by_format.items()
    ]
    header = ("beside", "format", "n", "first of a snapshot", "n", "all")
    lines = [
        f"{GPUS} GPUs, standard profile, TCP, a connection that stays open, gzip accepted; a "
        f"scrape each {_EVERY_NS // NS_PER_MS} ms for {seconds:g} s. Only the first scrape of each "
        "snapshot (each second) renders: Prometheus' own always do, so their p99 counts, of both "
        "formats.",
        figure_table(figures),
        "ms p50/p99/max:",
        table(header, rows),
        *([NO_BIG_TRACE] if big is None else []),
    ]
    return "\n\n".join(lines)


def _figure(beside: str, by_format: dict[str, Scrapes]) -> Figure:
    new_ms = np.concatenate([each.taken_ms[each.is_new] for each in by_format.values()])
    p50_ms, p99_ms = np.quantile(new_ms, [0.5, 0.99])
    return Figure(
        what=f"scrape beside {beside}, p50/p99 ms",
        shown=f"{p50_ms:.1f}/{p99_ms:.1f}",
        value=float(p99_ms),
        must=MOST_MS,
        aim=AIM_MS,
    )


def _cells(taken_ms: Float64s) -> list[str]:
    if not len(taken_ms):
        return ["0", ""]
    p50_ms, p99_ms, most_ms = np.quantile(taken_ms, [0.5, 0.99, 1.0])
    return [f"{len(taken_ms)}", f"{p50_ms:.1f}/{p99_ms:.1f}/{most_ms:.1f}"]


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    chosen = parser.parse_args(argv)
    print_report(lambda: report(chosen.seconds))


if __name__ == "__main__":
    main()

"""How soon the agent samples and serves after its start, and the memory that it takes idle.

`python -m bench.agent` prints Markdown. It runs as its users run it, over eight simulated GPUs.
"""

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from bench.markdown import median_and_range, table, verdict
from bench.processes import ROOT
from chopperd.clock import SystemClock
from chopperd.store.recorded_samples import RecordedSamples
from chopperd.units import NS_PER_MS, NS_PER_S
from tests.agent_http import Asked, ask

_GPUS: Final = 8
_DEADLINE_S: Final = 60
_POLL_NS: Final = 2 * NS_PER_MS
_CLOCK: Final = SystemClock()


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """One agent, from its start to its end.

    Attributes:
        first_sample_ms: From before the start of the process to its first sample.
        good_scrape_ms: From then to the end of the first scrape in which every GPU is up.
        end_ms: From SIGTERM to its end.
        pss_mib: Proportional set size by process, at the end.
    """

    first_sample_ms: float
    good_scrape_ms: float
    end_ms: float
    pss_mib: dict[str, float]


def life(idle_s: float) -> Life:
    """Start an agent, let it idle, and end it."""
    with TemporaryDirectory(prefix="chopperd-bench-") as name:
        folder = Path(name)
        begin_unix_ns, begin_ns = _CLOCK.unix_ns(), _CLOCK.mono_ns()
        with _agent(folder) as process:
            socket = folder / "run" / "api.sock"
            _wait_for_good_scrape(socket)
            good_ns = _CLOCK.mono_ns()
            _CLOCK.sleep_until(good_ns + round(idle_s * NS_PER_S))
            sampler = ask(socket, "/api/v1/status").json["sampler"]["pid"]
            pss_mib = {"agent": _pss_mib(process.pid), "sampler": _pss_mib(int(sampler))}
            end_ns = _CLOCK.mono_ns()
            process.send_signal(signal.SIGTERM)
            process.wait(_DEADLINE_S)
            ended_ns = _CLOCK.mono_ns()
        return Life(
            first_sample_ms=(_first_sample_unix_ns(folder) - begin_unix_ns) / NS_PER_MS,
            good_scrape_ms=(good_ns - begin_ns) / NS_PER_MS,
            end_ms=(ended_ns - end_ns) / NS_PER_MS,
            pss_mib=pss_mib,
        )


@contextmanager
def _agent(folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "CHOPPERD_PATHS__STATE": str(folder / "state"),
        "CHOPPERD_PATHS__RUNTIME": str(folder / "run"),
        "CHOPPERD_METRICS__LISTEN": "127.0.0.1:0",
        "CHOPPERD_API__LISTEN": "127.0.0.1:0",
    }
    command = [sys.executable, "-m", "chopperd", "run", "--backend", "simulated"]
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.terminate()


def _wait_for_good_scrape(socket: Path) -> None:
    until_ns = _CLOCK.mono_ns() + _DEADLINE_S * NS_PER_S
    while not _is_good(_scrape(socket)):
        if _CLOCK.mono_ns() > until_ns:
            raise TimeoutError(f"no good scrape within {_DEADLINE_S} s")
        _CLOCK.sleep_until(_CLOCK.mono_ns() + _POLL_NS)


def _scrape(socket: Path) -> Asked | None:
    try:
        return ask(socket, "/metrics")
    except OSError:
        return None


def _is_good(answer: Asked | None) -> bool:
    if answer is None or answer.status != 200:
        return False
    return all(answer.metric(f'chopperd_gpu_up{{gpu="{gpu}"}}') == 1 for gpu in range(_GPUS))


def _first_sample_unix_ns(folder: Path) -> int:
    """The time of the oldest sample that the flight recorder kept."""
    kept = RecordedSamples(folder / "state" / "recorder").between(0, _CLOCK.unix_ns())
    if kept is None:
        raise RuntimeError("the flight recorder kept nothing")
    return min(int(gpu.t_unix_ns[0]) for gpu in kept.gpus)


def _pss_mib(pid: int) -> float:
    """Memory of a process, that shared with others divided among them.

    Source: proc(5), `/proc/PID/smaps_rollup`, `Pss` in kB.
    """
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("the kernel tells no Pss")


def page(lives: list[Life]) -> str:
    """The results as Markdown."""
    rows = [
        _row("start to first sample, ms", [each.first_sample_ms for each in lives], 1000.0),
        _row("start to good scrape, ms", [each.good_scrape_ms for each in lives], 1500.0),
        _row("SIGTERM to end, ms", [each.end_ms for each in lives], 2000.0),
        _row("idle, agent, PSS MiB", [each.pss_mib["agent"] for each in lives]),
        _row("idle, sampler, PSS MiB", [each.pss_mib["sampler"] for each in lives]),
        _row("idle, both, PSS MiB", [sum(each.pss_mib.values()) for each in lives], 120.0),
    ]
    return table(["", "median (range)", "limit", ""], rows)


def _row(what: str, values: list[float], most: float | None = None) -> list[str]:
    """A line of the table; the slowest counts against the limit."""
    limit, kept = ("", "") if most is None else (f"{most:.0f}", verdict(met=max(values) <= most))
    return [what, median_and_range(values, ".0f"), limit, kept]


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--idle-s", type=float, default=10.0, help="before memory is looked at")
    chosen = parser.parse_args(argv)
    print(page([life(chosen.idle_s) for _ in range(chosen.starts)]))


if __name__ == "__main__":
    main()

"""What sampling costs and how punctual it is: the real process over a fake driver of eight GPUs.

`python -m bench.sampling` prints Markdown. The driver is the tests' compiled one, under the real
binding: its calls return at once, so what is measured is ours, not a driver's.
Most of it is what waking costs: beside each rate stands a C program that does nothing but sleep.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, TypedDict

import numpy as np

from bench.big_trace import trace_path
from bench.markdown import Figure, median_and_range, table, verdict
from bench.processes import ROOT, cpu_ns
from chopperd.clock import SystemClock
from chopperd.model.arrays import Float64s
from chopperd.sampling.native.library import native_library
from chopperd.sampling.settings import SamplerSettings
from chopperd.sampling.supervisor import SamplerSupervisor
from chopperd.units import NS_PER_MS, NS_PER_S
from tests.fakes.nvml.build import BuildUnavailableError, build
from tests.fakes.nvml.fixtures import SCENARIO_VARIABLE
from tests.fakes.nvml.scenario import Scenario, Segment

GPUS: Final = 8
RATES_HZ: Final = (10.0, 100.0, 1000.0)
#: Most of a core that the sampler may take, by rate; nothing is demanded of others.
MOST_OF_A_CORE: Final = {10.0: 0.005, 100.0: 0.03}
AIM_OF_A_CORE: Final = {10.0: 0.002, 100.0: 0.01}
LOOKS: Final = {True: "by the C part", False: "in Python: the C part is missing"}
HEADER: Final = (
    "fast loop (slow loop 1 Hz)",
    "% of a core",
    "must",
    "aim",
    "of must",
    "",
    "floor",
    "kept Hz",
    "late ms p50/p99/max",
    "floor",
)
MOST_START_MS: Final = 1000.0
#: While a trace is analysed: 99th percentile and maximum of the lateness.
MOST_LATE_MS: Final = (2.0, 50.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """One stretch of sampling.

    Attributes:
        hz: Rate that was asked for.
        core_ratio: CPU time of the sampler process over wall time.
        calls_ratio: Time in driver calls over wall time, all GPUs together.
        kept_hz: Samples per GPU and second, of the GPU with fewest.
        late_ms: (n,) how long after its deadline each read began, all GPUs.
        floor_ratio: CPU time of as many threads that only sleep, at the same time and rate.
        floor_late_ms: (m,) how late their sleeps ended.
    """

    hz: float
    core_ratio: float
    calls_ratio: float
    kept_hz: float
    late_ms: Float64s
    floor_ratio: float
    floor_late_ms: Float64s


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """What is run.

    Attributes:
        sampler: Starts the product's sampler process over the fake driver.
        floor: The program that only sleeps.
    """

    sampler: Sequence[str]
    floor: Path


def sampling(programs: Programs, hz: float, seconds: float, settle_s: float = 1.0) -> Sampling:
    """Sample for a while, and sleep beside it; the first reads, which do more, are left out."""
    clock = SystemClock()
    settings = SamplerSettings(
        hz=hz,
        history_s=seconds + 30,
        budget_ratio=1.0,
        sensors_every_s=None,  # once, as a rule: not what a second of sampling costs
    )
    supervisor = SamplerSupervisor(programs.sampler, settings, clock)
    supervisor.start()
    try:
        pid = supervisor.pid
        assert pid is not None
        clock.sleep_until(clock.mono_ns() + round(settle_s * NS_PER_S))
        cpu_begin_ns, begin_ns = cpu_ns(pid), clock.mono_ns()
        floor = _floor(programs.floor, hz, seconds)
        cpu_used_ns, end_ns = cpu_ns(pid) - cpu_begin_ns, clock.mono_ns()
        drained = [supervisor.reader.drain(slot).records for slot in range(GPUS)]
    finally:
        supervisor.stop()
        supervisor.close()
    inside = [
        records[(records["t_mono_ns"] >= begin_ns) & (records["t_mono_ns"] < end_ns)]
        for records in drained
    ]
    lasted_s = (end_ns - begin_ns) / NS_PER_S
    return Sampling(
        hz=hz,
        core_ratio=cpu_used_ns / NS_PER_S / lasted_s,
        calls_ratio=sum(int(records["span_ns"].sum()) for records in inside) / NS_PER_S / lasted_s,
        kept_hz=min(len(records) for records in inside) / lasted_s,
        late_ms=np.concatenate([records["late_ns"] for records in inside]) / NS_PER_MS,
        floor_ratio=floor["core_ratio"],
        floor_late_ms=np.array(floor["late_ns"]) / NS_PER_MS,
    )


class _Floor(TypedDict):
    core_ratio: float
    late_ns: list[int]


def _floor(program: Path, hz: float, seconds: float) -> _Floor:
    """What merely sleeping so often costs; returns when the seconds are over."""
    command = [str(program), str(hz), str(seconds), str(GPUS)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: _Floor = json.loads(done.stdout)
    return found


def built_floor(folder: Path) -> Path:
    program = folder / "floor"
    source = Path(__file__).with_name("floor.c")
    command = ["gcc", "-std=gnu11", "-O2", "-Wall", "-pthread", "-o", str(program), str(source)]
    subprocess.run(command, check=True)
    return program


def start_ms(command: Sequence[str]) -> float:
    """From before the start of the process to the first sample of the last GPU, at 10 Hz."""
    clock = SystemClock()
    supervisor = SamplerSupervisor(command, SamplerSettings(hz=10.0), clock)
    began_ns = clock.mono_ns()
    supervisor.start()
    try:
        clock.sleep_until(clock.mono_ns() + NS_PER_S)
        drained = [supervisor.reader.drain(slot).records for slot in range(GPUS)]
    finally:
        supervisor.stop()
        supervisor.close()
    first_ns = max(int(records["t_mono_ns"][0]) for records in drained)
    return (first_ns - began_ns) / NS_PER_MS


@contextmanager
def programs() -> Iterator[Programs]:
    """What is run, built where that is needed.

    Raises:
        BuildUnavailableError: The driver can't be compiled here.
    """
    with TemporaryDirectory(prefix="chopperd-bench-") as folder:
        library = build(Path(folder))
        scenario = Scenario(Path(folder) / "scenario.bin", GPUS)
        for gpu in scenario.gpus:
            gpu.plays(
                Segment(length_ns=80 * NS_PER_MS, sm_clock_mhz=1755, reasons=4),
                Segment(length_ns=30 * NS_PER_MS, sm_clock_mhz=1980, power_mw=300_000),
                repeats=True,
            )
        sampler = [
            *("env", f"LD_LIBRARY_PATH={library.parent}", f"{SCENARIO_VARIABLE}={scenario.path}"),
            *(sys.executable, "-P", "-m", "chopperd", "_sampler", "--backend", "nvml"),
        ]
        yield Programs(sampler=sampler, floor=built_floor(Path(folder)))


@contextmanager
def analysis() -> Iterator[None]:
    """A report of the big trace again and again, at the lowest priority, as an agent makes it."""
    report = f"{sys.executable} -m chopperd report {trace_path('big')} --format json"
    command = ["nice", "-n", "19", "sh", "-c", f"while true; do {report} > /dev/null; done"]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        yield
    finally:
        _end_group(process)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGTERM)
    process.wait()


def sampling_row(done: Sampling, beside: str = "") -> list[str]:
    """One line of the table."""
    percent = 100 * done.core_ratio
    figure = Figure(
        what=f"{done.hz:g} Hz{beside}",
        shown=f"{percent:.2f}",
        value=percent,
        must=_percent(MOST_OF_A_CORE.get(done.hz)),
        aim=_percent(AIM_OF_A_CORE.get(done.hz)),
    )
    late = "/".join(f"{np.quantile(done.late_ms, q):.2f}" for q in (0.5, 0.99, 1.0))
    floor = "/".join(f"{np.quantile(done.floor_late_ms, q):.2f}" for q in (0.5, 0.99, 1.0))
    return [*figure.cells, f"{100 * done.floor_ratio:.2f}", f"{done.kept_hz:.2f}", late, floor]


def _percent(ratio: float | None) -> float | None:
    return None if ratio is None else 100 * ratio


def report(seconds: float, starts: int) -> str:
    """Everything as Markdown; says what is missing where the driver can't be built."""
    try:
        with programs() as run:
            return _measured(run, seconds, starts)
    except BuildUnavailableError as error:
        return f"Skipped: the fake driver can't be built: {error}."


def _measured(run: Programs, seconds: float, starts: int) -> str:
    rows = [sampling_row(sampling(run, hz, seconds)) for hz in RATES_HZ]
    lines = []
    if trace_path("big").exists():
        with analysis():
            busy = sampling(run, 100.0, seconds)
        rows.append(sampling_row(busy, ", a trace being analysed"))
        p99_ms, most_ms = np.quantile(busy.late_ms, [0.99, 1.0])
        met = bool(p99_ms <= MOST_LATE_MS[0] and most_ms <= MOST_LATE_MS[1])
        lines.append(
            f"While a trace is analysed: p99 at most {MOST_LATE_MS[0]:g} ms, none over "
            f"{MOST_LATE_MS[1]:g} ms: {verdict(met=met)}."
        )
    started_ms = [start_ms(run.sampler) for _ in range(starts)]
    met = float(np.median(started_ms)) <= MOST_START_MS
    lines.append(
        f"Start to the first sample of all GPUs (at 10 Hz, {starts} starts): "
        f"{median_and_range(started_ms, '.0f')} ms, at most {MOST_START_MS:.0f}: "
        f"{verdict(met=met)}."
    )
    intro = (
        f"{GPUS} GPUs of the fake driver, one process, {seconds:g} s each. The floor is a process "
        f"of {GPUS} threads in C that sleep as often at the same time and do nothing else. "
        f"Looks are made {LOOKS[native_library() is not None]}."
    )
    return "\n\n".join([intro, table(HEADER, rows), "\n".join(lines)])


def main(argv: list[str] | None = None) -> None:
    """Print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--starts", type=int, default=5)
    chosen = parser.parse_args(argv)
    print(report(chosen.seconds, chosen.starts))


if __name__ == "__main__":
    main()

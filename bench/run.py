"""Runs every benchmark and writes `bench/results.md`; how to: bench/README.md.

Each part runs in a process of its own; one that fails is said so, and the others still run.
"""

import argparse
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from bench.processes import ROOT
from chopperd import __version__

RESULTS: Final = ROOT / "bench" / "results.md"
#: A part that takes longer hangs, or the machine is far too busy to measure on.
PART_LIMIT_S: Final = 1200
_PACKAGES: Final = ("numpy", "msgspec", "isal", "nvidia-ml-py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One benchmark: a module that prints Markdown.

    Attributes:
        title: Heading of its results.
        module: What is run.
        arguments: For the whole run.
        quick_arguments: For a quick one.
    """

    title: str
    module: str
    arguments: tuple[str, ...] = ()
    quick_arguments: tuple[str, ...] = ()


PARTS: Final = (
    Part(
        title="Trace to report",
        module="bench.trace_to_report",
        arguments=("--runs", "3"),
        quick_arguments=("--runs", "1"),
    ),
    Part(
        title="Sampling",
        module="bench.sampling",
        arguments=("--seconds", "20", "--starts", "5"),
        quick_arguments=("--seconds", "5", "--starts", "2"),
    ),
    Part(
        title="Sampling AMD GPUs",
        module="bench.amd_sampling",
        arguments=("--seconds", "20", "--starts", "5"),
        quick_arguments=("--seconds", "5", "--starts", "2"),
    ),
    Part(
        title="Join",
        module="bench.join",
        arguments=("--runs", "5"),
        quick_arguments=("--runs", "2"),
    ),
    Part(
        title="Store",
        module="bench.store",
        arguments=("--captures", "20000", "--runs", "5"),
        quick_arguments=("--captures", "2000", "--runs", "2"),
    ),
    Part(
        title="Flight recorder",
        module="bench.recorder",
        arguments=("--minutes", "60", "--runs", "5"),
        quick_arguments=("--minutes", "5", "--runs", "2"),
    ),
    Part(
        title="Rendering metrics",
        module="bench.metrics",
        arguments=("--repeats", "200"),
        quick_arguments=("--repeats", "40"),
    ),
    Part(
        title="Agent: start and end",
        module="bench.agent_starts",
        arguments=("--starts", "5"),
        quick_arguments=("--starts", "2"),
    ),
    Part(
        title="Agent: CPU and memory at rest",
        module="bench.agent_idle",
        arguments=("--seconds", "45", "--captures", "8", "--fast-seconds", "100"),
        quick_arguments=("--seconds", "15", "--captures", "2", "--fast-seconds", "20"),
    ),
    Part(
        title="Agent: scrapes",
        module="bench.agent_scrapes",
        arguments=("--seconds", "20"),
        quick_arguments=("--seconds", "5"),
    ),
    Part(
        title="Agent: lateness of samples",
        module="bench.agent_lateness",
        arguments=("--analyses", "3"),
        quick_arguments=("--analyses", "1"),
    ),
    Part(
        title="Agent: trace to report",
        module="bench.agent_inbox",
        arguments=("--runs", "3"),
        quick_arguments=("--runs", "1"),
    ),
    Part(
        title="Agent: kill -9",
        module="bench.agent_kills",
        arguments=("--kills", "100"),
        quick_arguments=("--kills", "10"),
    ),
    Part(
        title="Sampler restarts",
        module="bench.sampler_restarts",
        arguments=("--rounds", "1000"),
        quick_arguments=("--rounds", "50"),
    ),
    Part(
        title="Accusations",
        module="bench.accusations",
        arguments=("--nodes", "100"),
        quick_arguments=("--nodes", "5"),
    ),
    Part(
        title="False alerts",
        module="bench.alerts",
        arguments=("--days", "125", "--faulty", "5"),
        quick_arguments=("--days", "5", "--faulty", "1"),
    ),
    Part(
        title="Runs compared",
        module="bench.compare",
        arguments=("--pairs", "200"),
        quick_arguments=("--pairs", "40"),
    ),
    Part(title="Modules on the path of a report and a sample", module="bench.hands"),
    Part(
        title="Assignment of GPUs by samples",
        module="bench.assignment",
        arguments=("--nodes", "500"),
        quick_arguments=("--nodes", "20"),
    ),
    Part(
        title="Accuracy",
        module="bench.accuracy",
        arguments=("--seeds", "20"),
        quick_arguments=("--seeds", "2"),
    ),
    Part(
        title="Samples that are not the trace's",
        module="bench.foreign_samples",
        arguments=("--seeds", "5"),
        quick_arguments=("--seeds", "1"),
    ),
)


def results_of(part: Part, *, quick: bool) -> str:
    """The section of one part, with the command that makes it."""
    arguments = part.quick_arguments if quick else part.arguments
    command = ("-m", part.module, *arguments)
    lines = [f"## {part.title}", f"`python {' '.join(command)}`"]
    began_s = time.monotonic()
    if find_spec(part.module) is None:
        return "\n\n".join([*lines, f"Skipped: there is no {part.module} in this checkout."])
    try:
        done = subprocess.run(
            [sys.executable, *command],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=PART_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "\n\n".join([*lines, f"**Failed**: not done after {PART_LIMIT_S} s."])
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["nothing was said"]
        print(done.stderr, file=sys.stderr)
        lines.append(f"**Failed** with status {done.returncode}: `{_without_paths(said[-1])}`")
    lines.append(done.stdout.strip())
    lines.append(
        f"Took {time.monotonic() - began_s:.0f} s; load average then {os.getloadavg()[0]:.1f}."
    )
    return "\n\n".join(lines)


def _without_paths(text: str) -> str:
    return text.replace(f"{ROOT}{os.sep}", "")


def _processor() -> str:
    """What the kernel calls the processor."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _memory_gib() -> float:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30


def page(sections: Sequence[str], *, quick: bool, load: float) -> str:
    """The results as one page: what was measured, on what, and the sections."""
    cores = len(os.sched_getaffinity(0))
    installed = ", ".join(f"{package} {version(package)}" for package in _PACKAGES)
    kind = "A quick run: fewer repeats and seeds, not for quoting." if quick else "A whole run."
    head = [
        "# Results of the benchmarks",
        "Written by `make bench`; limits are the budgets of the design. Ranges are least to most "
        "over the runs named; ratios are of runs that took turns, so compare them and not the "
        "seconds, which the machine's other load moves.",
        "A verdict is on the figure in its row or sentence: *met* is at most (or at least) what it "
        "must be; an aim is said beside it.",
        f"{datetime.now(UTC):%Y-%m-%d}. {kind} chopperd {__version__}, {installed}, Python "
        f"{platform.python_version()}.",
        f"{cores} cores of {_processor()}, {_memory_gib():.0f} GiB, Linux {platform.release()}, "
        f"load average {load:.1f} at the start.",
    ]
    return "\n\n".join([*head, *sections]) + "\n"


def main(argv: list[str] | None = None) -> None:
    """Run all parts (or those named) and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer repeats and seeds")
    parser.add_argument("--only", default="", help="parts whose module's name contains this: agent")
    parser.add_argument("--output", type=Path, default=RESULTS)
    chosen = parser.parse_args(argv)
    load, sections = os.getloadavg()[0], []
    for part in PARTS:
        if chosen.only in part.module:
            print(f"{part.title} ...", file=sys.stderr, flush=True)
            sections.append(results_of(part, quick=chosen.quick))
            chosen.output.write_text(page(sections, quick=chosen.quick, load=load))
    print(f"wrote {chosen.output}", file=sys.stderr)


if __name__ == "__main__":
    main()

"""A full report of a large trace against HTA's mere load of it: time and memory, on one core.

`python -m bench.trace_to_report` prints Markdown. HTA stands in a virtual environment of its own.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from bench.big_trace import MAKER, UUID, device_of, samples_path, trace_path
from bench.markdown import Figure, figure_table, median_and_range, table, verdict
from bench.processes import ROOT, WORK, Usage, last_core, measured

HTA_PYTHON: Final = WORK / "hta-venv" / "bin" / "python"
_HTA_LOAD: Final = (
    "import sys; from hta.trace_analysis import TraceAnalysis; TraceAnalysis(trace_dir=sys.argv[1])"
)
LEAST_SPEEDUP: Final = 10
AIM_SPEEDUP: Final = 20
MOST_MIB: Final = 400.0
AIM_MIB: Final = 250.0
_MIB: Final = 2**20


def report_command(name: str) -> list[str]:
    """Reports on a trace as a user would."""
    return [
        *(sys.executable, "-m", "chopperd", "report", _from_root(trace_path(name))),
        *("--samples", _from_root(samples_path(name))),
        *("--device-map", f"{device_of(name)}={UUID}", "--format", "json"),
    ]


def hta_command(name: str) -> list[str]:
    """Loads the folder of a trace into HTA."""
    return [str(HTA_PYTHON), "-c", _HTA_LOAD, _from_root(trace_path(name).parent)]


def _from_root(path: Path) -> str:
    return str(path.relative_to(ROOT))


def alternating_runs(runs: int, core: int) -> tuple[list[Usage], list[Usage]]:
    """Usage of our reports and of HTA's loads, which take turns on one core."""
    ours, theirs = [], []
    for _ in range(runs):
        ours.append(measured(report_command("big"), core=core, output=WORK / "report.json"))
        theirs.append(measured(hta_command("big"), core=core, output=WORK / "hta.txt"))
    return ours, theirs


def comparison(ours: Sequence[Usage], theirs: Sequence[Usage]) -> str:
    """Both tools in a table, and the ratio against the limit."""
    rows = [_usage_row("chopperd: report with clocks, JSON", ours)]
    lines = []
    if theirs:
        rows.append(_usage_row("HTA: load", theirs))
        lines.append(_speedup(ours, theirs))
    peak = max(usage.peak_bytes for usage in ours)
    memory = Figure(
        what="peak memory, MiB",
        shown=f"{peak / _MIB:.0f}",
        value=peak / _MIB,
        must=MOST_MIB,
        aim=AIM_MIB,
    )
    lines.append(f"\n{figure_table([memory])}")
    header = ("", "runs", "wall s", "CPU s", "peak MiB")
    return table(header, rows) + "\n\n" + "\n".join(lines)


def _usage_row(name: str, usages: Sequence[Usage]) -> list[str]:
    return [
        name,
        str(len(usages)),
        median_and_range([usage.wall_s for usage in usages]),
        median_and_range([usage.cpu_s for usage in usages]),
        median_and_range([usage.peak_bytes / _MIB for usage in usages], ".0f"),
    ]


def _speedup(ours: Sequence[Usage], theirs: Sequence[Usage]) -> str:
    """Ratios of each pair of neighbouring runs: other load on the machine hits both alike."""
    wall = [b.wall_s / a.wall_s for a, b in zip(ours, theirs, strict=True)]
    cpu = [b.cpu_s / a.cpu_s for a, b in zip(ours, theirs, strict=True)]
    memory = [b.peak_bytes / a.peak_bytes for a, b in zip(ours, theirs, strict=True)]
    return (
        f"Faster by {median_and_range(wall, '.1f')} in wall time, {median_and_range(cpu, '.1f')} "
        f"in CPU time; {median_and_range(memory, '.1f')} times less memory. In wall time it must "
        f"be at least {LEAST_SPEEDUP}: {verdict(met=float(np.median(wall)) >= LEAST_SPEEDUP)}; "
        f"aim {AIM_SPEEDUP}: {verdict(met=float(np.median(wall)) >= AIM_SPEEDUP)}."
    )


def stage_table(core: int) -> str:
    """Where the time of one report goes."""
    output = WORK / "stages.json"
    command = [sys.executable, "-m", "bench.stages", _from_root(trace_path("big"))]
    command += [_from_root(samples_path("big")), str(device_of("big")), UUID]
    measured(command, core=core, output=output)
    stages = json.loads(output.read_text())
    whole_s = sum(stage["cpu_s"] for stage in stages)
    rows = [
        [
            stage["name"],
            f"{stage['cpu_s']:.2f}",
            f"{100 * stage['cpu_s'] / whole_s:.0f}",
            f"{stage['peak_bytes'] / _MIB:.0f}",
        ]
        for stage in stages
    ]
    return table(("stage", "CPU s", "%", "peak so far MiB"), rows)


def decoders(core: int) -> str:
    """CPU time of reading alone, by the scanner in C and by the decoder in Python."""
    usages: list[Usage] = []
    for native in (True, False):
        library = "event_array.scanner_library" if native else "lambda: None"
        code = (
            "import sys; from pathlib import Path; "
            "from chopperd.traces.read import event_array, reader; "
            f"event_array.scanner_library = {library}; "
            "reader.read_trace(Path(sys.argv[1]))"
        )
        command = [sys.executable, "-c", code, _from_root(trace_path("big"))]
        usages.append(measured(command, core=core, output=WORK / "read.txt"))
    scanned, decoded = usages
    rows = [_usage_row("scanner in C", [scanned]), _usage_row("decoder in Python", [decoded])]
    return (
        f"{table(('', 'runs', 'wall s', 'CPU s', 'peak MiB'), rows)}\n\nOf the decoder's CPU "
        f"time, start and imports included, the scanner takes {scanned.cpu_s / decoded.cpu_s:.2f}."
    )


def scaling(runs: int, core: int) -> str:
    """CPU time of traces of growing size, run in turns, and per GB."""
    usages: dict[str, list[Usage]] = {name: [] for name in ("small", "big", "large")}
    for _ in range(runs):
        for name, done in usages.items():
            output = WORK / f"{name}.json"
            done.append(measured(report_command(name), core=core, output=output))
    rows, per_gb = [], []
    for name, done in usages.items():
        size_gb = trace_path(name).stat().st_size / 1e9
        per_gb.append(float(np.median([usage.cpu_s for usage in done])) / size_gb)
        rows.append([f"{size_gb:.2f}", *_usage_row("", done)[1:], f"{per_gb[-1]:.1f}"])
    header = ("GB", "runs", "wall s", "CPU s", "peak MiB", "CPU s/GB")
    growth = per_gb[2] / per_gb[1]
    return (
        f"{table(header, rows)}\n\nA GB of the largest costs {growth:.2f} times one of the next "
        "(below 1: the fixed start-up counts more in the smaller one)."
    )


def report(runs: int) -> str:
    """Everything as Markdown; says what is missing where inputs are."""
    if not MAKER.exists():
        return (
            "Skipped: the trace is made by tools/make_big_trace.py of CHOPPERD_SHARED: not found."
        )
    names = ("big", "small", "large")
    subprocess.run([sys.executable, "-m", "bench.big_trace", *names], cwd=ROOT, check=True)
    core = last_core()
    if HTA_PYTHON.exists():
        ours, theirs = alternating_runs(runs, core)
        beside = f"HTA {_version('HolisticTraceAnalysis')} on pandas {_version('pandas')}"
    else:
        ours = [
            measured(report_command("big"), core=core, output=WORK / "report.json")
            for _ in range(runs)
        ]
        theirs, beside = [], f"HTA skipped: no {_from_root(HTA_PYTHON)} (make bench installs it)"
    size = trace_path("big").stat().st_size / 1e6
    return "\n\n".join(
        [
            f"A trace of {size:.0f} MB, page cache warm, one core for either. {beside}.",
            comparison(ours, theirs),
            "### Where the time goes",
            stage_table(core),
            "### The two decoders",
            decoders(core),
            "### Growth with the size",
            scaling(runs, core),
        ]
    )


def _version(package: str) -> str:
    code = f"from importlib.metadata import version; print(version({package!r}))"
    found = subprocess.run(
        [str(HTA_PYTHON), "-c", code], capture_output=True, text=True, check=True
    )
    return found.stdout.strip()


def main(argv: list[str] | None = None) -> None:
    """Print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    print(report(parser.parse_args(argv).runs))


if __name__ == "__main__":
    main()

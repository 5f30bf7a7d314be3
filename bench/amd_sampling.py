"""What sampling AMD GPUs costs: the real process over fakes of both ways to read them.

`python -m bench.amd_sampling` prints Markdown. AMD SMI is the tests' compiled library under the
real binding; the kernel's files are files of our own, in place of /sys for the sampler alone. Their
calls return at once, so what is measured is ours, not a driver's.
"""

import argparse
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np

from bench.markdown import median_and_range, table, verdict
from bench.sampling import (
    GPUS,
    HEADER,
    MOST_START_MS,
    Programs,
    built_floor,
    sampling,
    sampling_row,
    start_ms,
)
from tests.fakes.amd.cards import mi300x
from tests.fakes.amd.motion import Segment
from tests.fakes.amd.smi.bindings import INSTALLED, binding
from tests.fakes.amd.smi.build import BuildUnavailableError, build
from tests.fakes.amd.smi.fixtures import SCENARIO_VARIABLE, rocm_tree
from tests.fakes.amd.smi.node import SmiNode
from tests.fakes.amd.sysfs.tree import SysfsTree

RATES_HZ: Final = (10.0, 100.0)
_BUSY: Final = Segment(
    die_clocks_mhz=(2100, 2098, 2095, 2100, 2099, 2100, 2100, 2097), limits=frozenset({"ppt"})
)
#: The firmware measures anew: a block that stands still for a second is stale.
_ADVANCE_S: Final = 0.3
#: Sensors, energy and counters are looked at first, which is no part of what a second costs.
_SETTLE_S: Final = 20.0
_OVER_SYS: Final = ("unshare", "--mount", "sh", "-c", 'mount --rbind "$0" /sys && exec "$@"')
_SAMPLER: Final = (sys.executable, "-P", "-m", "chopperd", "_sampler", "--backend")


@contextmanager
def by_library(folder: Path) -> Iterator[list[str]]:
    """How the sampler is started over AMD SMI."""
    used = binding(INSTALLED)
    node = SmiNode(folder / "amdsmi.scenario", [mi300x()] * GPUS, of=used)
    node.plays(_BUSY)
    rocm = rocm_tree(folder / "rocm", build(folder, used, frozenset()), used)
    variables = (f"ROCM_PATH={rocm}", f"{SCENARIO_VARIABLE}={node.path}")
    yield ["env", *variables, *_SAMPLER, "amdsmi"]


@contextmanager
def by_files(folder: Path) -> Iterator[list[str]]:
    """How the sampler is started over the kernel's files, which go on meanwhile.

    Raises:
        BuildUnavailableError: Nothing can be put in place of /sys here.
    """
    tree = SysfsTree(folder / "sys", [mi300x()] * GPUS)
    tree.plays(_BUSY)
    wrapper = [*_OVER_SYS, str(tree.root)]
    if subprocess.run([*wrapper, "true"], capture_output=True, check=False).returncode:
        raise BuildUnavailableError("a mount namespace can't be made")
    with tree.advancing(_ADVANCE_S):
        yield [*wrapper, *_SAMPLER, "amdgpu"]


def report(seconds: float, starts: int) -> str:
    """Everything as Markdown; says what is missing where it can't be measured."""
    parts = [
        f"{GPUS} MI300X of eight dies, one process, {seconds:g} s each. Each look takes the whole "
        "block of metrics, and is made by the C part. The floor is as in *Sampling*."
    ]
    with TemporaryDirectory(prefix="chopperd-bench-") as folder, ExitStack() as held:
        floor = built_floor(Path(folder))
        rows, lines = [], []
        for name, way in {"amdsmi": by_library, "amdgpu": by_files}.items():
            try:
                command = held.enter_context(way(Path(folder)))
            except BuildUnavailableError as error:
                lines.append(f"{name}: skipped: {error}.")
                continue
            run = Programs(sampler=command, floor=floor)
            done = [sampling(run, hz, seconds, settle_s=_SETTLE_S) for hz in RATES_HZ]
            rows += [sampling_row(each, f", {name}") for each in done]
            in_calls = ", ".join(f"{100 * each.calls_ratio:.2f} at {each.hz:g} Hz" for each in done)
            lines.append(f"{name}, of that in calls, % of a core at most: {in_calls}.")
            started_ms = [start_ms(command) for _ in range(starts)]
            met = float(np.median(started_ms)) <= MOST_START_MS
            lines.append(
                f"{name}, start to the first sample of all GPUs (at 10 Hz, {starts} starts): "
                f"{median_and_range(started_ms, '.0f')} ms, at most {MOST_START_MS:.0f}: "
                f"{verdict(met=met)}."
            )
    return "\n\n".join([*parts, table(HEADER, rows), "\n".join(lines)])


def main(argv: list[str] | None = None) -> None:
    """Print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--starts", type=int, default=5)
    chosen = parser.parse_args(argv)
    print(report(chosen.seconds, chosen.starts))


if __name__ == "__main__":
    main()

"""What sampling AMD's GPUs costs: the real process over a fake AMD SMI, eight GPUs of eight dies.

`python -m bench.sampling_amd` prints Markdown. Calls are made one at a time, under the lock that
the real library needs. The fake one works out each block of metrics anew, which takes time that is
not ours: the time from before a call to after it is taken off, and told. The first seconds, in
which energy and counters are checked, are left out.
"""

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from bench.markdown import table
from bench.sampling import GPUS, HEADER, LOOKS, RATES_HZ, Programs, built_floor, sampling
from bench.sampling import sampling_row as row
from chopperd.sampling.native.library import native_library
from chopperd.units import NS_PER_MS
from tests.fakes.amd.cards import mi300x
from tests.fakes.amd.motion import Segment
from tests.fakes.amd.smi.bindings import binding
from tests.fakes.amd.smi.build import BuildUnavailableError, build
from tests.fakes.amd.smi.fixtures import PACKAGE, SCENARIO_VARIABLE, rocm_tree
from tests.fakes.amd.smi.node import SmiNode

_SETTLE_S: Final = 10.0


@contextmanager
def programs() -> Iterator[Programs]:
    """What is run, built where that is needed.

    Raises:
        BuildUnavailableError: The library can't be compiled here.
    """
    with TemporaryDirectory(prefix="chopperd-bench-") as name:
        folder, used = Path(name), binding()
        library = build(folder, used)
        node = SmiNode(folder / "scenario.bin", [mi300x()] * GPUS, of=used)
        node.plays(
            Segment(length_ns=80 * NS_PER_MS, die_clocks_mhz=1755, limits=frozenset({"ppt"})),
            Segment(length_ns=30 * NS_PER_MS, die_clocks_mhz=2100, power_w=300),
            repeats=True,
        )
        paths = [str(used.folder), os.environ.get("PYTHONPATH", "")]
        sampler = [
            *("env", f"ROCM_PATH={rocm_tree(folder / 'rocm', library, used)}"),
            f"PYTHONPATH={os.pathsep.join(path for path in paths if path)}",
            f"{SCENARIO_VARIABLE}={node.path}",
            *(sys.executable, "-P", "-m", "chopperd", "_sampler", "--backend", "amdsmi"),
        ]
        yield Programs(sampler=sampler, floor=built_floor(folder))


def report(seconds: float) -> str:
    """Everything as Markdown; says what is missing where it can't be run."""
    if find_spec(PACKAGE) is None:
        return "Skipped: AMD's Python binding is not installed."
    try:
        with programs() as run:
            found = [sampling(run, hz, seconds, _SETTLE_S) for hz in RATES_HZ]
    except BuildUnavailableError as error:
        return f"Skipped: the fake library can't be built: {error}."
    rows = [row(replace(done, core_ratio=done.core_ratio - done.calls_ratio)) for done in found]
    calls = ", ".join(f"{100 * done.calls_ratio:.2f} % at {done.hz:g} Hz" for done in found)
    intro = (
        f"{GPUS} GPUs of eight dies each of the fake library, one process, {seconds:g} s each. "
        f"Without the time in its calls, which took {calls} of a core at most. "
        f"The floor is as above. Looks are made {LOOKS[native_library() is not None]}."
    )
    return f"{intro}\n\n{table(HEADER, rows)}"


def main() -> None:
    """Print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    print(report(parser.parse_args().seconds))


if __name__ == "__main__":
    main()

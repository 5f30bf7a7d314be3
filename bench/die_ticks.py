"""What the clocks of eight dies add to a tick without Python: looks at a file, back to back.

`python -m bench.die_ticks` prints Markdown. The file is in memory, as the kernel's are, and a whole
ring of records has been written before, so that the memory of the oldest is as cold as it gets.
"""

import argparse
import os
import time
from ctypes import addressof
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np

from bench.markdown import median_and_range, table
from chopperd.devices.read_plan import ReadPlan
from chopperd.sampling.memory.layout import RingDescription
from chopperd.sampling.memory.ring import RingWriter
from chopperd.sampling.native.library import Loop, NativeLibrary, memory_of, native_library
from chopperd.sampling.native.plans import NativePlan
from chopperd.sampling.native.ticks import NativeTotals
from chopperd.sampling.orders import Interrupt
from chopperd.units import NS_PER_S
from tests.fakes.file_gpu import GPU, FileGpu

TICKS: Final = 100_000
GPUS: Final = 8
RATES_HZ: Final = (100, 1000)
#: Records of 30 s at 1 kHz, as the sampler keeps them.
_CAPACITY: Final = 30_000
_DIES: Final = 8


def plans(folder: Path) -> dict[str, ReadPlan]:
    """What is compared: the same look without the dies, with them as numbers, and with the rule."""
    backend = FileGpu(folder / "block", dies_count=_DIES)
    backend.block.clocks_mhz = tuple(range(1900, 1900 + _DIES))
    backend.write()
    whole = backend.plan
    other = tuple(value for value in whole.values if not value.name.startswith("die_clocks_mhz"))
    return {"without dies": replace(whole, values=other), "with eight dies": whole}


def tick_ns(library: NativeLibrary, plan: ReadPlan) -> float:
    """Time of one tick, with its record and its share in the totals, ns."""
    fd = os.memfd_create("ring")
    ring = RingWriter(fd, RingDescription(gpus=(GPU,)), _CAPACITY)
    gpu = ring.gpu(0)
    memory = memory_of(gpu.places())
    totals = NativeTotals(library, GPU, gpu, memory, NS_PER_S)
    interrupt, native = Interrupt(), NativePlan(plan)
    begin, end = np.zeros(TICKS, np.int64), np.full(TICKS, 2**62, np.int64)
    loop = Loop(
        memory=addressof(memory),
        integrator=addressof(totals.integrator),
        interrupt_word=interrupt.address,
        interrupt=interrupt.count,
        deadlines_mono_ns=begin.__array_interface__["data"][0],
        ends_mono_ns=end.__array_interface__["data"][0],
        are_full=begin.__array_interface__["data"][0],
        return_mono_ns=2**62,
        return_driver_ns=2**62,
        count=TICKS,
    )
    loop.plans[0] = native.address
    library.carry_out(loop)
    loop.next = 0
    began_ns = time.perf_counter_ns()
    library.carry_out(loop)
    passed_ns = time.perf_counter_ns() - began_ns
    if loop.carried_count[0] != TICKS:
        raise RuntimeError("looks were not as planned")
    ring.close()
    os.close(fd)
    return passed_ns / TICKS


def report(runs: int) -> str:
    """The table, and what the dies of a node cost by rate."""
    library = native_library()
    if library is None:
        return "Skipped: the C part is missing."
    with TemporaryDirectory(prefix="chopperd-bench-") as folder:
        found: dict[str, list[float]] = {}
        compared = plans(Path(folder))
        for _ in range(runs):
            for name, plan in compared.items():
                found.setdefault(name, []).append(tick_ns(library, plan))
    rows = [(name, median_and_range(times_ns, ".0f")) for name, times_ns in found.items()]
    bare_ns, whole_ns = (float(np.median(times_ns)) for times_ns in found.values())
    shares = ", ".join(
        f"{100 * (whole_ns - bare_ns) * GPUS * hz / NS_PER_S:.4f} % at {hz} Hz" for hz in RATES_HZ
    )
    return (
        f"{TICKS:,} looks in a row by the C part at a file of one GPU, {runs} runs.\n\n"
        f"{table(('look', 'ns'), rows)}\n\nOf a core, the dies of {GPUS} GPUs take {shares}."
    )


def main() -> None:
    """Print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    print(report(parser.parse_args().runs))


if __name__ == "__main__":
    main()

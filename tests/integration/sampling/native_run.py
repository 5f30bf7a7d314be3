"""Samples through a C library that is named, in a process that is started for it."""

import logging
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec.structs import replace

from chopperd.sampling.native.library import NativeLibrary
from tests.fakes.file_gpu import FileGpu
from tests.fakes.nvml.scenario import NOT_SUPPORTED, SUCCESS, Scenario
from tests.integration.sampling.one_gpu import QUICK, CountedNvml, one_gpu

#: What it prints when all went well.
BUILT = "sampled"


def sample_blocks(library: NativeLibrary, path: Path) -> None:
    """Files, locks, dies, stamps; a block that is absurd, one that stands still, a short one."""
    logging.disable()  # of what fails on purpose: all that is printed is the sanitizers'
    backend = FileGpu(path, still_ns=100_000_000)
    settings = replace(QUICK, history_s=1.0)
    with one_gpu(backend, library, settings, own_read_every_ns=50_000_000) as sampled:
        for turn in range(60):
            backend.block.stamp += 1
            backend.block.clocks_mhz = (0xFFFE if turn % 20 == 9 else 2000 + turn, 0, 140, turn)
            backend.write()
            sampled.samples_on(6)  # more than the ring holds
        sampled.samples_on(60)
        assert 1 < backend.read_count < sampled.status.written
        backend.shorten()
        sampled.ticks_on(10)
    backend.close()


def main(library: NativeLibrary, scenario: Scenario) -> None:
    backend = CountedNvml()
    gpu = scenario.gpus[0]
    with one_gpu(backend, library, replace(QUICK, history_s=1.0)) as sampled:
        sampled.samples_on(300)  # more than the ring holds
        gpu.fails_field(NOT_SUPPORTED, "thermal")
        sampled.samples_on()
        gpu.fails_field(SUCCESS, "thermal")
        sampled.samples_on()
        assert backend.read_count < sampled.status.written / 2
    with TemporaryDirectory() as folder:
        sample_blocks(library, Path(folder, "block"))
    backend.close()
    print(BUILT)


if __name__ == "__main__":
    main(NativeLibrary(Path(sys.argv[1])), Scenario.attached(Path(sys.argv[2])))

"""How many modules and functions of the package a report, and one sample, pass through.

`python -m bench.hands` prints Markdown; `--list` adds the names of the modules. Both run in this
process, first to import everything, then counted by `sys.setprofile`. A module counts if one of its
functions is called, or one of its dataclasses made. The simulation is not counted for the sample,
as it is in place of a driver.
"""

import io
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType, FrameType
from typing import Final

from bench.markdown import table
from chopperd.cli import run
from chopperd.cli.demo import simulated_traces
from chopperd.clock import SystemClock
from chopperd.devices.base import BackendOptions
from chopperd.devices.registry import open_backend
from chopperd.export.metric import Profile
from chopperd.export.rendering import MetricsText
from chopperd.live.node import LiveNode
from chopperd.model.live import NodeSnapshot, SamplerCondition, SamplerLive
from chopperd.sampling.memory.layout import RingDescription
from chopperd.sampling.memory.ring import RingWriter
from chopperd.sampling.memory.ring_reader import RingReader
from chopperd.sampling.process import run_sampler
from chopperd.sampling.settings import SamplerSettings
from chopperd.simulation.node import SimulatedNode
from chopperd.simulation.presets import SimulationSpec
from chopperd.units import NS_PER_S
from tests.golden.inputs import write_samples

#: At most this many modules.
AIMS: Final = {"report": 80, "sample": 15}
_BEGIN_NS: Final = 1_750_000_000 * NS_PER_S
_SAMPLED_S: Final = 1.5


class Hands:
    """Counts the functions of the package that are called, in this and in later threads.

    Args:
        ignored: Beginning of the names of modules that do not count.
    """

    def __init__(self, ignored: str = "-") -> None:
        self._except = ignored
        self._seen: dict[CodeType, str] = {}
        self._counts = False

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Follow calls in this thread and those started now; they count inside `counting`."""
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count calls from now on."""
        self._counts = True
        try:
            yield
        finally:
            self._counts = False

    @property
    def modules(self) -> list[str]:
        """The modules whose functions were called, also those of a dataclass alone."""
        return sorted(set(self._seen.values()))

    @property
    def functions(self) -> int:
        """How many functions were called."""
        return len(self._seen)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        if self._counts and event == "call":
            name = frame.f_globals.get("__name__", "")
            if name.startswith("chopperd.") and not name.startswith(self._except):
                self._seen[frame.f_code] = name


def of_report(folder: Path) -> Hands:
    """Of `chopperd report` on one rank's trace of two seconds, joined with samples of one GPU."""
    end_ns = _BEGIN_NS + 2 * NS_PER_S
    node = SimulatedNode(SimulationSpec(start_unix_ns=_BEGIN_NS))
    name, content = next(simulated_traces(node, _BEGIN_NS + NS_PER_S // 2, end_ns))
    trace, samples = folder / name, folder / "samples.csv"
    trace.write_bytes(b"".join(content))
    write_samples(samples, "hands", (_BEGIN_NS, end_ns), gpus=1)
    arguments = ["report", str(trace), "--samples", str(samples), "--device-map", "0=0"]
    hands = Hands()
    with redirect_stdout(io.StringIO()):
        run(arguments)
        with hands.watching(), hands.counting():
            run(arguments)
    return hands


def of_sample() -> Hands:
    """Of a sample of the simulated node: sampler, shared memory, snapshot, scraped text."""
    clock, stop, hands = SystemClock(), threading.Event(), Hands("chopperd.simulation.")
    backend = open_backend("simulated", BackendOptions())
    fd = os.memfd_create("hands")
    devices = backend.devices()
    writer = RingWriter(fd, RingDescription(gpus=devices, backend=backend.name), 300)
    node = LiveNode(clock, version="0", node="here", backend=None, slow_hz=1.0)
    node.follow(RingReader(fd))
    source = _Snapshots(node)
    text = MetricsText(source, Profile.STANDARD, clock)
    with hands.watching():
        sampler = threading.Thread(
            target=run_sampler, args=(backend, writer, SamplerSettings(hz=20.0), clock, stop)
        )
        sampler.start()
        stop.wait(_SAMPLED_S)  # without what happens at the start only
        text.exposition()
        with hands.counting():
            stop.wait(_SAMPLED_S)
            text.exposition()
        stop.set()
        sampler.join()
    return hands


class _Snapshots:
    """The newest snapshot of a node, taken when asked."""

    def __init__(self, node: LiveNode) -> None:
        self._node = node

    def latest(self) -> NodeSnapshot:
        """The node now."""
        running = SamplerLive(condition=SamplerCondition.RUNNING, pid=os.getpid())
        return self._node.snapshot(running)


def main(argv: list[str]) -> None:
    """Print the figures."""
    with TemporaryDirectory() as folder:
        found = {"report": of_report(Path(folder)), "sample": of_sample()}
    rows = [
        (name, str(len(hands.modules)), str(AIMS[name]), str(hands.functions))
        for name, hands in found.items()
    ]
    print(table(("path of a", "modules", "aim", "functions"), rows))
    if "--list" in argv:
        for name, hands in found.items():
            print(f"\n{name}: {', '.join(hands.modules)}")


if __name__ == "__main__":
    main(sys.argv[1:])

"""Opens the back end "amdsmi" over a fake library, away from this machine's own sysfs."""

from pathlib import Path

from chopperd.clock import Clock, SystemClock
from chopperd.devices.amd.smi.backend import AmdSmiBackend, Paths
from chopperd.devices.amd.smi.library import open_library
from chopperd.model.devices import DeviceReading, ReadScope
from chopperd.units import NS_PER_S
from tests.fakes.amd.motion import boot_ns
from tests.fakes.amd.smi.fixtures import FakeAmdSmi
from tests.fakes.clock import ScriptedClock

#: Looks that are far enough apart for a check of energy, and close enough for its integral.
_STEP_NS = NS_PER_S // 2


def open_amdsmi(folder: Path, clock: Clock | None = None) -> AmdSmiBackend:
    """The back end; `folder` stands for / and may hold `sys` and `kfd`."""
    paths = Paths(sysfs=folder / "sys", kfd=folder / "kfd")
    return AmdSmiBackend(open_library(), clock or SystemClock(), paths)


class Stepped:
    """A back end over a fake whose firmware and whose time advance together, by `advance` only.

    Attributes:
        fake: The library.
        clock: The back end's.
        backend: The back end.
        at_ns: The firmware's time (CLOCK_BOOTTIME).
    """

    def __init__(self, fake: FakeAmdSmi, folder: Path) -> None:
        self.fake = fake
        self.clock = ScriptedClock()
        self.at_ns = boot_ns()
        fake.node.freeze(self.at_ns)
        self.backend = open_amdsmi(folder, self.clock)

    def advance(self, ns: int) -> None:
        self.at_ns += ns
        self.clock.advance(ns)
        self.fake.node.freeze(self.at_ns)

    def read(self, gpu: int = 0, scope: ReadScope = ReadScope.FULL) -> DeviceReading:
        return self.backend.read(self.backend.devices()[gpu], scope)

    def after(self, ns: int, gpu: int = 0) -> DeviceReading:
        """A full look so much later."""
        self.advance(ns)
        return self.read(gpu)

    def settle(self) -> "Stepped":
        """Let the energy be checked and cycles be timed, on all GPUs."""
        for _ in range(8):
            self.advance(_STEP_NS)
            for device in self.backend.devices():
                self.backend.read(device, ReadScope.FULL)
        return self

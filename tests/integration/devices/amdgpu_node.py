"""A fake sysfs and the back end over it, whose time passes at once."""

import errno
import os
from pathlib import Path

import pytest

from chopperd.devices.amd.kernel.backend import AmdgpuBackend
from chopperd.errors import DeviceError
from chopperd.model.devices import DeviceReading, GpuInfo, ReadScope
from chopperd.units import NS_PER_MS, NS_PER_S
from tests.fakes.amd.motion import Segment
from tests.fakes.amd.sysfs.card import SysfsCard
from tests.fakes.amd.sysfs.tree import SysfsTree
from tests.fakes.clock import ScriptedClock

START_NS = 1_000 * NS_PER_S


class AmdgpuNode:
    """Looks at a tree at instants of a test's choosing.

    Attributes:
        tree: The files.
        backend: Reads them.
    """

    def __init__(self, tree: SysfsTree, segment: Segment) -> None:
        self.tree = tree
        self.clock = ScriptedClock(mono_ns=START_NS)
        tree.freeze(START_NS)
        tree.plays(segment)
        self._gone: SysfsCard | None = None
        self.backend = AmdgpuBackend(tree.root, self.clock)

    @property
    def gpus(self) -> tuple[GpuInfo, ...]:
        """All that it lists."""
        return self.backend.devices()

    def passes(self, span_ns: int) -> None:
        """Let time pass without a look."""
        self.clock.advance(span_ns)
        self.tree.freeze(self.clock.mono_ns())

    def look(
        self, gpu: int = 0, scope: ReadScope = ReadScope.FULL, after_ms: int = 100
    ) -> DeviceReading:
        """A look at a GPU some time after the last."""
        self.passes(after_ms * NS_PER_MS)
        return self.backend.read(self.gpus[gpu], scope)

    def loses(self, gpu: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """A card goes away for good, as from its bus: a file that is open answers so from then on.

        That of a regular file would go on being read.
        """
        card = self.tree.gpus[gpu]
        (card.folder / "gpu_metrics").unlink()
        card.folder.rename(card.folder.with_name("gone"))
        self.tree.gpus = tuple(each for each in self.tree.gpus if each is not card)
        self._gone = card
        preadv = os.preadv

        def read(fd: int, buffers: list[object], offset: int) -> int:
            if Path(f"/proc/self/fd/{fd}").readlink().name.endswith(" (deleted)"):
                raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
            return preadv(fd, buffers, offset)  # type: ignore[arg-type]

        monkeypatch.setattr(os, "preadv", read)

    def returns(self) -> None:
        """The card that went away is back."""
        assert self._gone is not None
        self._gone.folder.with_name("gone").rename(self._gone.folder)
        self.tree.gpus += (self._gone,)
        self.tree.advance()

    def settles(self, seconds: int = 4) -> "AmdgpuNode":
        """Look at all whole GPUs for a while: energy and counters pass their checks meanwhile."""
        for _ in range(10 * seconds):
            self.passes(100 * NS_PER_MS)
            for device in self.gpus:
                if device.parent is None:
                    try:
                        self.backend.read(device, ReadScope.FULL)
                    except DeviceError:
                        continue
        return self

"""One GPU's loop over the fake driver in a thread of its own, with the C library or without."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pynvml
import pytest

from chopperd.clock import Clock, SystemClock
from chopperd.devices.base import DeviceBackend
from chopperd.devices.nvml.backend import NvmlBackend
from chopperd.model.devices import DeviceReading, GpuInfo, ReadScope
from chopperd.sampling.device_loop import DeviceLoop, LoopParts
from chopperd.sampling.memory.layout import Records, RingDescription
from chopperd.sampling.memory.ring import RingWriter
from chopperd.sampling.memory.ring_reader import GpuStatus, RingReader
from chopperd.sampling.native.library import NativeLibrary
from chopperd.sampling.native.ticks import Interrupt, NativeTicks, with_native
from chopperd.sampling.settings import SamplerSettings
from tests.fakes import dies
from tests.fakes.nvml.fixtures import BelievedEnergy
from tests.waiting import wait_for

CLOCK = SystemClock()
QUICK = SamplerSettings(hz=200.0, slow_hz=10.0, budget_ratio=1.0, probe_every_s=0.1)


class CountedNvml(NvmlBackend):
    """The real back end; counts the looks that it makes itself; believes the energy at once."""

    energy_check = BelievedEnergy

    def __init__(self, clock: Clock | None = None) -> None:
        self.read_count = 0
        super().__init__(pynvml, clock or CLOCK)

    def read(self, device: GpuInfo, scope: ReadScope) -> DeviceReading:
        self.read_count += 1
        return super().read(device, scope)


class OneGpu:
    """A loop that runs, and what it has written.

    Attributes:
        ring, gpu, reader: Its memory.
        interrupt: What ends its waits.
    """

    def __init__(
        self,
        fd: int,
        backend: DeviceBackend,
        library: NativeLibrary | None,
        settings: SamplerSettings,
        own_read_every_ns: int | None = None,
    ) -> None:
        devices = backend.devices()
        self.fd = fd
        self.ring = RingWriter(fd, RingDescription(gpus=devices), settings.capacity)
        self.reader = RingReader(fd)
        self._stop, self.interrupt = threading.Event(), Interrupt()
        self.gpu = gpu = self.ring.gpu(0)
        parts = LoopParts(slow_state=self.ring.slow_state(0))
        if library is not None:
            parts = with_native(parts, library, backend, devices[0], gpu, CLOCK, self.interrupt)
        if own_read_every_ns is not None:
            assert isinstance(parts.ticks, NativeTicks)
            parts.ticks.own_read_every_ns = own_read_every_ns
        loop = DeviceLoop(backend, devices[0], gpu, settings, CLOCK, self._stop, parts)
        self.thread = threading.Thread(target=loop.run, name="chopperd-gpu-0")
        self.thread.start()

    @property
    def status(self) -> GpuStatus:
        return self.reader.status(0)

    @property
    def records(self) -> Records:
        return self.reader.drain(0).records

    @property
    def full_records(self) -> Records:
        """Those of full looks."""
        records = self.records
        full: Records = records[records["scope"] == 1]
        return full

    def waits_for(self, condition: Callable[[GpuStatus], object]) -> GpuStatus:
        """Wait until its status is so; the status then."""
        wait_for(lambda: condition(self.status))
        return self.status

    def samples_on(self, count: int = 60) -> None:
        """Wait for so many more records."""
        aim = self.status.written + count
        self.waits_for(lambda status: status.written >= aim)

    def ticks_on(self, count: int = 60) -> GpuStatus:
        """Wait for so many more ticks, whatever came of them; the status then."""
        aim = self.status.ticks_count + count
        return self.waits_for(lambda status: status.ticks_count >= aim)

    def stop(self) -> None:
        self._stop.set()
        self.interrupt.raise_()
        self.thread.join(10)
        assert not self.thread.is_alive()


@contextmanager
def one_gpu(
    backend: DeviceBackend,
    library: NativeLibrary | None,
    settings: SamplerSettings = QUICK,
    own_read_every_ns: int | None = None,
) -> Iterator[OneGpu]:
    """The loop, stopped at the end."""
    fd = os.memfd_create("ring")
    sampled = OneGpu(fd, backend, library, settings, own_read_every_ns)
    try:
        yield sampled
    finally:
        sampled.stop()
        sampled.reader.close()
        sampled.ring.close()
        os.close(fd)


def goes_by_plan(sampled: OneGpu, reads_count: Callable[[], int]) -> bool:
    """Whether of the next looks the back end makes few.

    Args:
        sampled: The loop.
        reads_count: Looks that the back end has made itself.
    """
    before = reads_count()
    sampled.samples_on(40)
    return reads_count() - before < 20


def assert_governed(records: Records) -> None:
    """Each record has the clock of the die that governs by it and those before it."""
    looks = [(int(record["t_mono_ns"]), record["die_clocks_mhz"].tolist()) for record in records]
    for number, clock_mhz in enumerate(records["sm_clock_mhz"].tolist()):
        recent = looks[max(0, number - 1000) : number + 1]
        assert clock_mhz == pytest.approx(dies.governing_mhz(recent), nan_ok=True, abs=0)

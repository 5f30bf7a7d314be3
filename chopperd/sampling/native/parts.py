"""What of one GPU's loop the C library takes over, where it is there."""

from dataclasses import replace

from chopperd.clock import Clock, SystemClock
from chopperd.devices.base import DeviceBackend, PlansReads
from chopperd.model.devices import GpuInfo
from chopperd.sampling.device_loop import LoopParts
from chopperd.sampling.interrupt import Interrupt
from chopperd.sampling.memory.gpu_writer import GpuWriter
from chopperd.sampling.native.library import NativeLibrary, memory_of
from chopperd.sampling.native.ticks import NativeTicks
from chopperd.sampling.native.totals import NativeTotals
from chopperd.sampling.settings import SamplerSettings
from chopperd.units import NS_PER_S


def with_native(
    parts: LoopParts,
    library: NativeLibrary,
    backend: DeviceBackend,
    device: GpuInfo,
    gpu: GpuWriter,
    settings: SamplerSettings,
    clock: Clock,
    interrupt: Interrupt,
) -> LoopParts:
    """The parts of one GPU's loop, some of them taken over by the library.

    The totals are. The ticks are too, where the back end has plans and time is the machine's.
    """
    memory = memory_of(gpu.places())
    every_ns = round(settings.totals_every_s * NS_PER_S)
    totals = NativeTotals(library, device, gpu, memory, every_ns)
    ticks: NativeTicks | None = None
    if isinstance(backend, PlansReads) and isinstance(clock, SystemClock):
        ticks = NativeTicks(library, backend, device, memory, totals, interrupt, clock)
    return replace(parts, ticks=ticks, totals=totals)

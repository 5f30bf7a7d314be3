"""What of one GPU's loop the C library takes over, where it is there."""

from chopperd.clock import Clock, SystemClock
from chopperd.devices.base import DeviceBackend, PlansReads
from chopperd.model.devices import GpuInfo
from chopperd.sampling.device_loop import LoopParts
from chopperd.sampling.gpu_writer import GpuWriter
from chopperd.sampling.interrupt import Interrupt
from chopperd.sampling.native.library import NativeLibrary, memory_of
from chopperd.sampling.native.ticks import NativeTicks
from chopperd.sampling.native.totals import NativeTotals
from chopperd.sampling.settings import SamplerSettings
from chopperd.sampling.side import GpuSideWriter
from chopperd.units import NS_PER_S


def native_parts(
    library: NativeLibrary,
    backend: DeviceBackend,
    device: GpuInfo,
    gpu: GpuWriter,
    side: GpuSideWriter,
    settings: SamplerSettings,
    clock: Clock,
    interrupt: Interrupt,
) -> LoopParts:
    """Who does what for one GPU.

    The totals are the library's. The ticks are too, where the back end has plans and time is the
    machine's.
    """
    memory = memory_of(gpu.places())
    every_ns = round(settings.totals_every_s * NS_PER_S)
    totals = NativeTotals(library, device, gpu, memory, every_ns)
    ticks: NativeTicks | None = None
    if isinstance(backend, PlansReads) and isinstance(clock, SystemClock):
        ticks = NativeTicks(library, backend, device, memory, totals, interrupt, clock)
    return LoopParts(side=side, ticks=ticks, totals=totals)

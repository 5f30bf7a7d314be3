"""Live integrals by the C library: `RunningTotals`, brought up to date between two ticks."""

from ctypes import addressof, c_int64

from chopperd.model.arrays import Float64s
from chopperd.model.devices import GpuInfo, Vendor
from chopperd.sampling.memory.gpu_writer import GpuWriter
from chopperd.sampling.memory.layout import TOTAL_COUNT, Records
from chopperd.sampling.native.library import (
    SPACINGS,
    Integrals,
    Integrator,
    Memory,
    NativeLibrary,
    new_integrals,
)


class NativeIntegrals:
    """What `LiveIntegrals` does, in C.

    Args:
        library: The library.
        info: The GPU.
        most_records: Records that may come at once.
    """

    def __init__(self, library: NativeLibrary, info: GpuInfo, most_records: int) -> None:
        self._library = library
        self._scratch = (c_int64 * (most_records + SPACINGS))()
        self.kept: Integrals = new_integrals(
            reference_mhz=info.sm_clock_max_mhz,
            limit_mhz=info.sm_clock_limit_mhz,
            has_idle_bit=info.vendor is Vendor.NVIDIA,
            scratch=self._scratch,
        )

    @property
    def totals(self) -> list[float]:
        """The `TOTAL_COUNT` totals, see `layout`."""
        return list(self.kept.totals)

    def resume(self, totals: Float64s, seen: Records) -> None:
        """Go on from another sampler's totals, which already hold the records `seen`."""
        self.add(seen, 0)
        self.kept.totals[:TOTAL_COUNT] = totals.tolist()

    def add(self, records: Records, period_ns: int) -> None:
        """Integrate on over new records; see `LiveIntegrals.add`."""
        if not len(records):
            return
        whole = records.copy()  # without gaps in memory, and for as long as the call lasts
        is_added = self._library.add(
            self.kept,
            whole.__array_interface__["data"][0],
            capacity=len(whole),
            first=0,
            count=len(whole),
            period_ns=period_ns,
        )
        if not is_added:
            raise ValueError(f"{len(whole)} records are too many at once")


class NativeTotals:
    """One GPU's totals; `integrator` may be used by the library between two calls of this.

    Args:
        library: The library.
        info: The GPU.
        gpu: Its part of the shared memory.
        memory: The same for the library.
        every_ns: How often they are brought up to date.
    """

    def __init__(
        self,
        library: NativeLibrary,
        info: GpuInfo,
        gpu: GpuWriter,
        memory: Memory,
        every_ns: int,
    ) -> None:
        self._library = library
        self._gpu = gpu
        self._memory = memory
        self._integrals = NativeIntegrals(library, info, memory.capacity)
        self.integrator = Integrator(
            memory=addressof(memory), integrals=addressof(self._integrals.kept), every_ns=every_ns
        )

    def resume(self) -> None:
        """Go on from the totals of the sampler before this one, if there was one."""
        self.integrator.integrated_count, totals = self._gpu.totals()
        if totals is not None:
            self._integrals.resume(totals, self._gpu.integrated_records())

    def update_if_due(self, now_mono_ns: int) -> None:
        """Bring them up to the newest record where that was last done long enough ago."""
        if now_mono_ns >= self.integrator.due_mono_ns:
            self.update(now_mono_ns)

    def update(self, now_mono_ns: int) -> None:
        """Bring them up to the newest record and publish them."""
        self._library.integrate(self.integrator, now_mono_ns)

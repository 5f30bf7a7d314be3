"""Live integrals of one GPU, brought up to its newest record now and then, and published."""

from typing import Protocol

from chopperd.model.devices import GpuInfo
from chopperd.sampling.integrals import LiveIntegrals
from chopperd.sampling.memory.gpu_writer import GpuWriter


class RunningTotals(Protocol):
    """One GPU's totals, for the thread that reads it."""

    def resume(self) -> None:
        """Go on from the totals of the sampler before this one, if there was one."""
        ...

    def update_if_due(self, now_mono_ns: int) -> None:
        """Bring them up to the newest record where that was last done long enough ago."""
        ...

    def update(self, now_mono_ns: int) -> None:
        """Bring them up to the newest record and publish them."""
        ...


class PythonTotals:
    """The totals as `LiveIntegrals` works them out.

    Args:
        info: The GPU.
        gpu: Its part of the shared memory.
        every_ns: How often they are brought up to date.
    """

    def __init__(self, info: GpuInfo, gpu: GpuWriter, every_ns: int) -> None:
        self._gpu = gpu
        self._every_ns = every_ns
        self._due_mono_ns = 0
        self._integrals = LiveIntegrals(info)
        self._integrated_count = 0
        self._period_ns = 0

    def resume(self) -> None:
        """Go on from the totals of the sampler before this one, if there was one."""
        self._integrated_count, totals = self._gpu.totals()
        if totals is not None:
            self._integrals.resume(totals, self._gpu.integrated_records())

    def update_if_due(self, now_mono_ns: int) -> None:
        """Bring them up to the newest record where that was last done long enough ago."""
        if now_mono_ns >= self._due_mono_ns:
            self.update(now_mono_ns)

    def update(self, now_mono_ns: int) -> None:
        """Bring them up to the newest record and publish them."""
        self._due_mono_ns = now_mono_ns + self._every_ns
        records = self._gpu.records(self._integrated_count)
        self._integrated_count = self._gpu.written_count
        # Where the rate has changed meanwhile, the slower one tells how far apart samples may lie.
        longest_ns = max(self._period_ns, self._gpu.period_ns)
        self._period_ns = self._gpu.period_ns if len(records) else longest_ns
        self._integrals.add(records, longest_ns)
        self._gpu.write_totals(self._integrals.totals, self._integrated_count)

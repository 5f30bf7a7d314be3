"""What a supervisor reads from the shared memory of how its sampler process fares."""

from chopperd.sampling.memory.layout import GpuState, SamplerState
from chopperd.sampling.memory.ring_reader import RingReader, is_laid_out
from chopperd.units import NS_PER_S


class SamplerSigns:
    """The signs of life in a memory file; nothing before a sampler has laid it out.

    Args:
        fd: The memory file; stays the caller's to close.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._reader: RingReader | None = None

    @property
    def reader(self) -> RingReader | None:
        """The memory with all GPUs that were found; None where it is not laid out."""
        if self._reader is not None and self._reader.is_outgrown:
            self.close()
        if self._reader is None and is_laid_out(self._fd):
            self._reader = RingReader(self._fd)
        return self._reader

    def close(self) -> None:
        """Let go of the memory."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    @property
    def generation(self) -> int:
        """Number of the newest process that wrote; 0 before the first."""
        reader = self.reader
        return reader.generation if reader is not None else 0

    def samples(self, generation: int) -> bool:
        """Whether the process of this number, or a later one, samples."""
        return self._says(SamplerState.RUNNING, generation)

    def failure(self, generation: int) -> str | None:
        """Why the process of this number could not sample, in its own words; None if it could."""
        if self._reader is None or not self._says(SamplerState.FAILED, generation):
            return None
        return self._reader.description().failure

    def is_stuck(self, now_ns: int, hung_ns: int) -> bool:
        """Whether the process that sampled shows no life, or waits for drivers only.

        Args:
            now_ns: CLOCK_MONOTONIC.
            hung_ns: Age of a driver call that is too old.
        """
        reader = self.reader
        if reader is None:
            return False
        limit_ns = now_ns - hung_ns
        triples, _ = reader.triples(reader.triples_written - 1)
        if not triples or triples[-1].mono_ns < limit_ns - NS_PER_S:
            return True
        statuses = [reader.status(slot) for slot in range(reader.gpu_slots)]
        present = [gpu for gpu in statuses if gpu.state is GpuState.UP]
        started = [gpu.call_started_mono_ns for gpu in present]
        return bool(present) and all(at is not None and at < limit_ns for at in started)

    def calls(self, now_ns: int) -> str:
        """The driver calls in progress and their age, for a message; empty if there are none."""
        reader = self.reader
        if reader is None:
            return ""
        gpus = reader.description().gpus
        statuses = [reader.status(slot) for slot in range(len(gpus))]
        ages = [
            f"GPU {gpu.gpu} {status.call_scope.value} read for {(now_ns - at) / NS_PER_S:.0f} s"
            for gpu, status in zip(gpus, statuses, strict=True)
            if (at := status.call_started_mono_ns) is not None
        ]
        return f" ({', '.join(ages)})" if ages else ""

    def _says(self, state: SamplerState, generation: int) -> bool:
        reader = self.reader
        return reader is not None and reader.generation >= generation and reader.state is state

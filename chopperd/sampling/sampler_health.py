"""Checks whether a sampler process works, must end by itself or must be restarted."""

import threading
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from chopperd.clock import Clock
from chopperd.errors import BackendUnavailableError
from chopperd.sampling.memory.layout import GpuState, SamplerState
from chopperd.sampling.memory.ring_reader import RingReader, is_laid_out
from chopperd.sampling.settings import ExitStatus
from chopperd.units import NS_PER_S


class SelfEnd(NamedTuple):
    """A sampler's decision to end: the state that it reports, and why.

    `CHANGED`: its GPUs are no longer those present. `SILENT`: no GPU answers; a new process may
    have more luck.
    """

    state: SamplerState
    reason: str

    @property
    def status(self) -> int:
        """The exit status of the process."""
        is_changed = self.state is SamplerState.CHANGED
        return ExitStatus.CHANGED if is_changed else BackendUnavailableError.exit_code


class Ending:
    """The sampler's decision to end by itself, in `chosen`; the first counts. For any thread."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self._lock = threading.Lock()
        self.chosen: SelfEnd | None = None

    def choose(self, end: SelfEnd) -> None:
        """Store this end if it is the first, and set `stop`."""
        with self._lock:
            self.chosen = self.chosen or end
        self._stop.set()


#: A process that no GPU has answered for this long ends; a new one may find the driver again.
GIVE_UP_NS: Final = 10 * NS_PER_S


class HasReadError(Protocol):
    """A GPU whose reads are watched."""

    @property
    def read_error(self) -> str | None:
        """Why the last read failed as a whole; None if it did not."""
        ...


class SilenceWatch:
    """Watches whether any GPU answers: where none does, the driver is gone, not a GPU.

    A GPU whose call hangs is not silent, since its read has not failed.
    """

    def __init__(self, gpus: Sequence[HasReadError], clock: Clock) -> None:
        self._gpus = tuple(gpus)
        self._clock = clock
        self._since_ns = 0
        self.reason: str | None = None

    def update(self) -> bool:
        """Check all GPUs and set `reason`; return whether silence began or ended."""
        before = self.reason
        reasons = [gpu.read_error for gpu in self._gpus]
        self.reason = reasons[0] if reasons and None not in reasons else None
        if (before is None) == (self.reason is None):
            return False
        self._since_ns = self._clock.mono_ns()
        return True

    @property
    def is_final(self) -> bool:
        """Whether no GPU has answered for over 10 s, so that a new process must try."""
        return self.reason is not None and self._clock.mono_ns() - self._since_ns > GIVE_UP_NS


class SamplerHealth:
    """A sampler's signs of life, read from its memory file, which stays the caller's to close."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._reader: RingReader | None = None

    @property
    def reader(self) -> RingReader | None:
        """Reader of the memory, mapped again once GPUs were added; None before it is laid out."""
        if self._reader is not None and self._reader.is_outgrown:
            self.close()
        if self._reader is None and is_laid_out(self._fd):
            self._reader = RingReader(self._fd)
        return self._reader

    def close(self) -> None:
        """Unmap the memory."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    @property
    def generation(self) -> int:
        """Number of the newest writer process; 0 before the first."""
        reader = self.reader
        return reader.generation if reader is not None else 0

    def samples(self, generation: int) -> bool:
        """Whether the process of this number, or a later one, samples."""
        return self._says(SamplerState.RUNNING, generation)

    def failure(self, generation: int) -> str | None:
        """The reason reported by the process of this number if it could not sample; else None."""
        if self._reader is None or not self._says(SamplerState.FAILED, generation):
            return None
        return self._reader.description().failure

    def is_stuck(self, now_ns: int, hung_ns: int) -> bool:
        """Whether the sampler shows no sign of life, or every GPU's driver call is too old."""
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
        """Describe the driver calls in progress and their age, for a message; empty if none."""
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
